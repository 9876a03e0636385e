//! SCRAM-SHA-1 and SCRAM-SHA-256 as values: messages in, messages out.
//!
//! Follows RFC 5802 and RFC 7677 with the changes of the MongoDB authentication specification: user
//! names are not prepared, SHA-1 hashes the password first, fewer than 4096 iterations are refused.
//! This file owns the arithmetic that both sides share; `client` proves, `server` checks.

mod client;
mod server;

use hmac::{Hmac, Mac};
use sha1::{Digest, Sha1};
use sha2::Sha256;

pub use client::{
    KeyCache, MAX_ITERATIONS, MIN_ITERATIONS, ScramClient, ScramKeys, ServerFirst, ServerSignature,
};
pub use server::{ClientFirst, MAX_MESSAGE_LENGTH, ServerConversation, StoredCredentials};

quorate_protocol::named! {
    /// Which of the two.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ScramMechanism {
        /// SCRAM-SHA-1.
        ScramSha1 = "SCRAM-SHA-1",
        /// SCRAM-SHA-256.
        ScramSha256 = "SCRAM-SHA-256",
    }
}

impl ScramMechanism {
    /// How many iterations a server stores new credentials with.
    pub const fn default_iterations(self) -> u32 {
        match self {
            Self::ScramSha1 => 10_000,
            Self::ScramSha256 => 15_000,
        }
    }

    /// How many random bytes a server salts new credentials with.
    pub const fn salt_length(self) -> usize {
        match self {
            Self::ScramSha1 => 16,
            Self::ScramSha256 => 28,
        }
    }

    fn hmac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        match self {
            Self::ScramSha1 => hmac_of::<Hmac<Sha1>>(key, message),
            Self::ScramSha256 => hmac_of::<Hmac<Sha256>>(key, message),
        }
    }

    fn digest(self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::ScramSha1 => Sha1::digest(message).to_vec(),
            Self::ScramSha256 => Sha256::digest(message).to_vec(),
        }
    }

    /// The password in the form that the mechanism salts.
    fn prepare(self, user: &str, password: &str) -> Result<String, ScramError> {
        match self {
            Self::ScramSha1 => {
                let digest = md5::Md5::digest(format!("{user}:mongo:{password}"));
                Ok(hex::encode(digest))
            }
            Self::ScramSha256 => match stringprep::saslprep(password) {
                Ok(prepared) => Ok(prepared.into_owned()),
                Err(error) => Err(ScramError::Password(error.to_string())),
            },
        }
    }

    /// `Hi` of the RFC: takes milliseconds.
    fn salted_password(self, prepared: &str, salt: &[u8], iterations: u32) -> Vec<u8> {
        let password = prepared.as_bytes();
        // The only error is a key of a length that HMAC refuses, and HMAC takes any length.
        match self {
            Self::ScramSha1 => {
                let mut out = vec![0; 20];
                let _ = pbkdf2::pbkdf2::<Hmac<Sha1>>(password, salt, iterations, &mut out);
                out
            }
            Self::ScramSha256 => {
                let mut out = vec![0; 32];
                let _ = pbkdf2::pbkdf2::<Hmac<Sha256>>(password, salt, iterations, &mut out);
                out
            }
        }
    }
}

fn hmac_of<M: Mac + hmac::digest::KeyInit>(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = <M as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn exclusive_or(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(left, right)| left ^ right).collect()
}

/// Why a conversation ended badly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScramError {
    /// A message that the RFC does not know. The peer is at fault.
    #[error("the peer's {0} is malformed; check what it runs")]
    Malformed(&'static str),
    /// The peer answered another conversation.
    #[error("the peer does not repeat our nonce")]
    WrongNonce,
    /// Fewer or more iterations than are sensible.
    #[error(
        "the server asks for {0} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
    )]
    Iterations(u32),
    /// SASLprep refuses the password.
    #[error("the password holds characters that SASLprep forbids: {0}; choose another")]
    Password(String),
    /// The server says no.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The server does not know the password: it may be an impostor.
    #[error("the server's signature is wrong: it does not know the password itself")]
    WrongSignature,
    /// The client does not know the password.
    #[error("the client's proof is wrong: it does not know the password")]
    WrongProof,
}
