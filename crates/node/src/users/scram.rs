//! The server's side of SCRAM, and the credentials it checks against.
//!
//! Passwords are never stored: only what is needed to check a proof, salted and iterated. Follows
//! RFC 5802 and, for SHA-256, RFC 7677; the password forms are those of the driver specification
//! `auth/auth.md`. Random bytes are handed in.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::{Document, doc};
use hmac::{Hmac, Mac};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::error::{CommandError, ErrorCode};

/// The longest message of a conversation that is read.
const MAX_MESSAGE_LENGTH: usize = 4096;

/// A mechanism that users can log in with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    ScramSha1,
    ScramSha256,
}

impl Mechanism {
    pub(crate) const ALL: [Self; 2] = [Self::ScramSha1, Self::ScramSha256];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ScramSha1 => "SCRAM-SHA-1",
            Self::ScramSha256 => "SCRAM-SHA-256",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    fn iterations(self) -> u32 {
        match self {
            Self::ScramSha1 => 10_000,
            Self::ScramSha256 => 15_000,
        }
    }

    pub(crate) fn salt_length(self) -> usize {
        match self {
            Self::ScramSha1 => 16,
            Self::ScramSha256 => 28,
        }
    }

    fn hash(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::ScramSha1 => Sha1::digest(bytes).to_vec(),
            Self::ScramSha256 => Sha256::digest(bytes).to_vec(),
        }
    }

    fn keyed_hash(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::ScramSha1 => keyed::<Hmac<Sha1>>(key, bytes),
            Self::ScramSha256 => keyed::<Hmac<Sha256>>(key, bytes),
        }
    }

    fn salted_password(self, password: &str, salt: &[u8], iterations: u32) -> Vec<u8> {
        match self {
            Self::ScramSha1 => {
                let mut salted = vec![0; 20];
                // Only a key of forbidden length can fail, and these take any.
                let _ = pbkdf2::pbkdf2::<Hmac<Sha1>>(
                    password.as_bytes(),
                    salt,
                    iterations,
                    &mut salted,
                );
                salted
            }
            Self::ScramSha256 => {
                let mut salted = vec![0; 32];
                let _ = pbkdf2::pbkdf2::<Hmac<Sha256>>(
                    password.as_bytes(),
                    salt,
                    iterations,
                    &mut salted,
                );
                salted
            }
        }
    }

    /// The password in the form that the mechanism salts.
    fn prepare(self, user: &str, password: &str) -> Result<String, CommandError> {
        match self {
            Self::ScramSha1 => {
                let digest = Md5::digest(format!("{user}:mongo:{password}"));
                Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Self::ScramSha256 => match stringprep::saslprep(password) {
                Ok(prepared) => Ok(prepared.into_owned()),
                Err(_) => Err(CommandError::bad_value(
                    "the password has characters that SASLprep forbids; choose another",
                )),
            },
        }
    }
}

fn keyed<M: Mac + hmac::digest::KeyInit>(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    match <M as hmac::digest::KeyInit>::new_from_slice(key) {
        Ok(mut mac) => {
            mac.update(bytes);
            mac.finalize().into_bytes().to_vec()
        }
        // HMAC takes keys of any length.
        Err(_) => Vec::new(),
    }
}

/// What is stored to check a user's proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    mechanism: Mechanism,
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Credentials {
    /// Derives credentials from a password.
    pub(crate) fn new(
        mechanism: Mechanism,
        user: &str,
        password: &str,
        salt: Vec<u8>,
    ) -> Result<Self, CommandError> {
        let iterations = mechanism.iterations();
        let prepared = mechanism.prepare(user, password)?;
        let salted = mechanism.salted_password(&prepared, &salt, iterations);
        let client_key = mechanism.keyed_hash(&salted, b"Client Key");
        Ok(Self {
            mechanism,
            iterations,
            salt,
            stored_key: mechanism.hash(&client_key),
            server_key: mechanism.keyed_hash(&salted, b"Server Key"),
        })
    }

    pub(crate) fn to_document(&self) -> Document {
        doc! {
            "iterationCount": self.iterations as i32,
            "salt": BASE64.encode(&self.salt),
            "storedKey": BASE64.encode(&self.stored_key),
            "serverKey": BASE64.encode(&self.server_key),
        }
    }

    pub(crate) fn from_document(mechanism: Mechanism, stored: &Document) -> Option<Self> {
        let bytes = |name: &str| BASE64.decode(stored.get_str(name).ok()?).ok();
        Some(Self {
            mechanism,
            iterations: u32::try_from(stored.get_i32("iterationCount").ok()?).ok()?,
            salt: bytes("salt")?,
            stored_key: bytes("storedKey")?,
            server_key: bytes("serverKey")?,
        })
    }
}

/// The client's first message.
pub(crate) struct ClientFirst {
    pub(crate) user: String,
    nonce: String,
    header: String,
    bare: String,
}

impl ClientFirst {
    /// Reads `n,,n=<user>,r=<nonce>`.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, CommandError> {
        let text = text(message)?;
        let mut parts = text.splitn(3, ',');
        let (Some(binding), Some(identity), Some(bare)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        // Channel binding is not offered, so a client that insists on it is refused.
        if binding != "n" && binding != "y" {
            return Err(malformed());
        }
        let mut fields = bare.split(',');
        let user = field(fields.next(), 'n')?.replace("=2C", ",").replace("=3D", "=");
        let nonce = field(fields.next(), 'r')?.to_owned();
        if nonce.is_empty() {
            return Err(malformed());
        }
        let header = format!("{binding},{identity},");
        Ok(Self { user, nonce, header, bare: bare.to_owned() })
    }
}

/// A conversation that waits for the client's proof.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    credentials: Credentials,
    nonce: String,
    header: String,
    client_first_bare: String,
    server_first: String,
}

impl Conversation {
    /// Answers the client's first message. Returns the conversation and the answer.
    pub(crate) fn start(
        first: ClientFirst,
        credentials: Credentials,
        random: &[u8],
    ) -> (Self, Vec<u8>) {
        let nonce = format!("{}{}", first.nonce, BASE64.encode(random));
        let salt = BASE64.encode(&credentials.salt);
        let server_first = format!("r={nonce},s={salt},i={}", credentials.iterations);
        let answer = server_first.clone().into_bytes();
        let conversation = Self {
            credentials,
            nonce,
            header: first.header,
            client_first_bare: first.bare,
            server_first,
        };
        (conversation, answer)
    }

    /// Checks the client's proof. Returns our own.
    pub(crate) fn finish(&self, message: &[u8]) -> Result<Vec<u8>, CommandError> {
        let text = text(message)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or_else(malformed)?;
        let mut fields = without_proof.split(',');
        let binding = field(fields.next(), 'c')?;
        let nonce = field(fields.next(), 'r')?;
        let proof = BASE64.decode(proof).map_err(|_| malformed())?;
        if BASE64.decode(binding).ok().as_deref() != Some(self.header.as_bytes())
            || nonce != self.nonce
        {
            return Err(failed());
        }
        let signed = format!("{},{},{without_proof}", self.client_first_bare, self.server_first);
        let mechanism = self.credentials.mechanism;
        let signature = mechanism.keyed_hash(&self.credentials.stored_key, signed.as_bytes());
        if signature.len() != proof.len() {
            return Err(failed());
        }
        let client_key: Vec<u8> =
            signature.iter().zip(&proof).map(|(left, right)| left ^ right).collect();
        if !equal_in_constant_time(&mechanism.hash(&client_key), &self.credentials.stored_key) {
            return Err(failed());
        }
        let own = mechanism.keyed_hash(&self.credentials.server_key, signed.as_bytes());
        Ok(format!("v={}", BASE64.encode(own)).into_bytes())
    }
}

/// The time it takes tells nothing about where the difference is.
fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

fn text(message: &[u8]) -> Result<&str, CommandError> {
    if message.len() > MAX_MESSAGE_LENGTH {
        return Err(malformed());
    }
    std::str::from_utf8(message).map_err(|_| malformed())
}

fn field(part: Option<&str>, name: char) -> Result<&str, CommandError> {
    part.and_then(|part| part.strip_prefix(name)?.strip_prefix('=')).ok_or_else(malformed)
}

fn malformed() -> CommandError {
    CommandError::new(ErrorCode::BAD_VALUE, "a SCRAM message is malformed; check the driver")
}

/// One error for an unknown user and for a wrong password, so that neither can be found out.
pub(crate) fn failed() -> CommandError {
    CommandError::new(ErrorCode::AUTHENTICATION_FAILED, "Authentication failed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example conversation of RFC 7677, section 3.
    #[test]
    fn the_published_conversation_is_accepted() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let mut credentials =
            Credentials::new(Mechanism::ScramSha256, "user", "pencil", salt.clone()).unwrap();
        let salted = Mechanism::ScramSha256.salted_password("pencil", &salt, 4096);
        let client_key = Mechanism::ScramSha256.keyed_hash(&salted, b"Client Key");
        credentials.iterations = 4096;
        credentials.stored_key = Mechanism::ScramSha256.hash(&client_key);
        credentials.server_key = Mechanism::ScramSha256.keyed_hash(&salted, b"Server Key");
        let first = ClientFirst::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first.user, "user");
        let (mut conversation, _) = Conversation::start(first, credentials, b"");
        conversation.nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".to_owned();
        conversation.server_first =
            format!("r={},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", conversation.nonce);
        let last = format!(
            "c=biws,r={},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            conversation.nonce
        );
        let answer = conversation.finish(last.as_bytes()).unwrap();
        assert_eq!(answer, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let wrong = last.replace("p=dH", "p=eH");
        assert_eq!(
            conversation.finish(wrong.as_bytes()).unwrap_err().code,
            ErrorCode::AUTHENTICATION_FAILED
        );
        let other_nonce = last.replace("r=rOp", "r=rOq");
        assert!(conversation.finish(other_nonce.as_bytes()).is_err());
    }

    #[test]
    fn credentials_read_back_what_they_write() {
        for mechanism in Mechanism::ALL {
            let credentials =
                Credentials::new(mechanism, "u", "p", vec![7; mechanism.salt_length()]).unwrap();
            let stored = credentials.to_document();
            assert_eq!(Credentials::from_document(mechanism, &stored), Some(credentials));
            assert!(!stored.to_string().contains("\"p\""));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        for message in [&b""[..], b"n,,", b"p=tls,,n=u,r=x", b"n,,n=u", b"n,,n=u,r=", b"\xFF"] {
            assert!(ClientFirst::parse(message).is_err(), "{message:?}");
        }
        assert!(ClientFirst::parse(&[b'n'; MAX_MESSAGE_LENGTH + 1]).is_err());
        let escaped = ClientFirst::parse(b"n,,n=a=2Cb=3D,r=x").unwrap();
        assert_eq!(escaped.user, "a,b=");
    }
}
