//! Key files: the secret that the members of a set share, and the login that follows from it.
//!
//! A member that calls another logs in as `__system` of `local` with SCRAM-SHA-256; the password is
//! the file's text without its white space. Reading the file, and whether others may read it, is left
//! to the code that opens it.

use quorate_connection_string::{Credential, Mechanism, MechanismProperties, Secret};

use crate::scram::{ScramError, ScramMechanism, StoredCredentials};

/// The user as which members log in to each other.
pub const INTERNAL_USER: &str = "__system";

/// The database that members log in to.
pub const INTERNAL_DATABASE: &str = "local";

/// The fewest characters of a key.
const MIN_LENGTH: usize = 6;

/// The most characters of a key.
const MAX_LENGTH: usize = 1024;

/// The key of a key file. Not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    key: Secret,
}

impl KeyFile {
    /// Reads the text of a key file.
    ///
    /// # Errors
    ///
    /// If what is left without white space is too short, too long, or not of the base64 alphabet.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let key: String = text.chars().filter(|character| !character.is_whitespace()).collect();
        if let Some(character) = key.chars().find(|&character| !is_base64(character)) {
            return Err(KeyFileError::Character(character));
        }
        if !(MIN_LENGTH..=MAX_LENGTH).contains(&key.len()) {
            return Err(KeyFileError::Length(key.len()));
        }
        Ok(Self { key: Secret::new(key) })
    }

    /// What a member logs in to another with.
    pub fn credential(&self) -> Credential {
        Credential {
            mechanism: Some(Mechanism::ScramSha256),
            user_name: Some(INTERNAL_USER.to_owned()),
            password: Some(self.key.clone()),
            source: INTERNAL_DATABASE.to_owned(),
            properties: MechanismProperties::default(),
        }
    }

    /// What a member checks the login of another against. Takes milliseconds: do it once, with a salt
    /// of [`ScramMechanism::salt_length`] random bytes.
    ///
    /// # Errors
    ///
    /// As [`StoredCredentials::derive`]; keys of the base64 alphabet are always accepted.
    pub fn stored_credentials(&self, salt: Vec<u8>) -> Result<StoredCredentials, ScramError> {
        let mechanism = ScramMechanism::ScramSha256;
        StoredCredentials::derive(mechanism, INTERNAL_USER, self.key.expose(), salt)
    }
}

fn is_base64(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '+' | '/' | '=')
}

/// Why a text is no key. The author of the file is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// Too short or too long.
    #[error(
        "the key has {0} characters; {MIN_LENGTH} to {MAX_LENGTH} are accepted: make one with \
         openssl rand -base64 756"
    )]
    Length(usize),
    /// Not of the base64 alphabet.
    #[error(
        "the key holds {0:?}, which is not of the base64 alphabet; make one with openssl rand \
         -base64 756"
    )]
    Character(char),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scram::{ClientFirst, KeyCache, ScramClient, ServerConversation};

    #[test]
    fn white_space_does_not_count() {
        let one = KeyFile::parse("abc def+/=\n").unwrap();
        assert_eq!(one, KeyFile::parse("  abcdef+/=").unwrap());
        assert!(!format!("{one:?}").contains("abcdef"));
    }

    #[test]
    fn what_is_no_key_is_refused_with_a_next_step() {
        assert_eq!(KeyFile::parse("abcde"), Err(KeyFileError::Length(5)));
        assert_eq!(KeyFile::parse(&"a".repeat(1025)), Err(KeyFileError::Length(1025)));
        assert_eq!(KeyFile::parse("abcdef!"), Err(KeyFileError::Character('!')));
        assert!(KeyFileError::Length(5).to_string().contains("openssl rand"));
    }

    #[test]
    fn members_with_the_same_key_know_each_other() {
        let login = |callers: &KeyFile, own: &KeyFile| {
            let credential = callers.credential();
            let user = credential.user_name.unwrap();
            let client = ScramClient::new(ScramMechanism::ScramSha256, &user, &[1; 24]);
            let first = ClientFirst::parse(client.first_message().as_bytes()).unwrap();
            assert_eq!((first.user.as_str(), credential.source.as_str()), ("__system", "local"));
            let stored = own.stored_credentials(vec![3; 28]).unwrap();
            let (server, answer) = ServerConversation::start(first, stored, &[2; 24]);
            let first = client.on_server_first(&answer).unwrap();
            let password = credential.password.unwrap();
            let keys = first.compute_keys(&user, password.expose(), &KeyCache::default()).unwrap();
            let (proof, signature) = first.final_message(&keys);
            server.finish(proof.as_bytes()).and_then(|own| signature.verify(&own))
        };
        let (key, other) =
            (KeyFile::parse("sharedkey").unwrap(), KeyFile::parse("otherkey").unwrap());
        assert_eq!(login(&key, &key), Ok(()));
        assert_eq!(login(&other, &key), Err(ScramError::WrongProof));
    }
}
