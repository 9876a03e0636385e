//! Stored credentials as documents, and SCRAM's errors as those of commands.
//!
//! The conversation itself is that of `quorate-authentication`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::{Document, doc};
use quorate_authentication::ScramError;
use quorate_authentication::scram::StoredCredentials;
use sha2::{Digest, Sha256};

use super::{LoggedIn, Mechanism, users_namespace};
use crate::error::CommandError;
use crate::node::Node;

/// What is stored to check a user's proof, as `admin.system.users` holds it.
pub(crate) fn credentials_to_document(credentials: &StoredCredentials) -> Document {
    doc! {
        "iterationCount": credentials.iterations as i32,
        "salt": BASE64.encode(&credentials.salt),
        "storedKey": BASE64.encode(&credentials.stored_key),
        "serverKey": BASE64.encode(&credentials.server_key),
    }
}

pub(crate) fn credentials_from_document(
    mechanism: Mechanism,
    stored: &Document,
) -> Option<StoredCredentials> {
    let bytes = |name: &str| BASE64.decode(stored.get_str(name).ok()?).ok();
    Some(StoredCredentials {
        mechanism,
        iterations: u32::try_from(stored.get_i32("iterationCount").ok()?).ok()?,
        salt: bytes("salt")?,
        stored_key: bytes("storedKey")?,
        server_key: bytes("serverKey")?,
    })
}

/// What an unknown user's proof is checked against, which no proof fits.
///
/// The salt is always the same for one name, on every member and after a restart, as that of a known
/// user is: it is drawn from the identifier of the users' collection, which is visible only to users that
/// may list the collections of `admin`.
pub(crate) fn decoy_credentials(
    node: &Node,
    who: &LoggedIn,
    mechanism: Mechanism,
) -> StoredCredentials {
    let (collection, _) = node.read(&users_namespace());
    let draw = |length: usize| -> Vec<u8> {
        let secret = collection.as_ref().map_or(&[][..], |found| &found.uuid.bytes);
        let digest = Sha256::new()
            .chain_update(secret)
            .chain_update(mechanism.name())
            .chain_update(who.session_uid());
        digest.finalize().iter().copied().cycle().take(length).collect()
    };
    let key_length = match mechanism {
        Mechanism::ScramSha1 => 20,
        Mechanism::ScramSha256 => 32,
    };
    StoredCredentials {
        mechanism,
        iterations: mechanism.default_iterations(),
        salt: draw(mechanism.salt_length()),
        stored_key: node.random_bytes(key_length),
        server_key: node.random_bytes(key_length),
    }
}

/// The reply to a conversation that went wrong.
pub(crate) fn scram_refused(error: ScramError) -> CommandError {
    match error {
        ScramError::Malformed(_) => {
            fail!(BAD_VALUE, "a SCRAM message is malformed; check the driver")
        }
        ScramError::Password(_) => {
            fail!(BAD_VALUE, "the password has characters that SASLprep forbids; choose another")
        }
        // A wrong nonce, proof or signature, and whatever else the conversation finds.
        _ => failed(),
    }
}

/// One error for an unknown user and for a wrong password, so that neither can be found out.
pub(crate) fn failed() -> CommandError {
    fail!(AUTHENTICATION_FAILED, "Authentication failed.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn credentials_read_back_what_they_write() {
        for mechanism in Mechanism::ALL {
            let salt = vec![7; mechanism.salt_length()];
            let credentials = StoredCredentials::derive(mechanism, "u", "p", salt).unwrap();
            let stored = credentials_to_document(&credentials);
            assert_eq!(credentials_from_document(mechanism, &stored), Some(credentials));
            assert!(!stored.to_string().contains("\"p\""));
        }
    }

    #[test]
    fn a_wrong_proof_and_a_wrong_nonce_look_alike() {
        for error in [ScramError::WrongProof, ScramError::WrongNonce] {
            assert_eq!(scram_refused(error).code, ErrorCode::AUTHENTICATION_FAILED);
        }
        assert_eq!(scram_refused(ScramError::Malformed("x")).code, ErrorCode::BAD_VALUE);
    }
}
