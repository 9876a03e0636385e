//! The side that proves that it knows a password.
//!
//! Channel binding is not offered: servers do not support it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use quorate_protocol::Lock;
use subtle::ConstantTimeEq as _;

use super::{ScramError, ScramMechanism, exclusive_or};

/// The fewest iterations accepted. Fewer would let an impostor make guessing the password cheap.
pub const MIN_ITERATIONS: u32 = 4096;

/// The most iterations accepted. More would let an impostor keep us busy for minutes.
pub const MAX_ITERATIONS: u32 = 1_000_000;

/// How many keys one client remembers: a set shares one, a change of password brings another.
const MAX_CACHED_KEYS: usize = 64;

/// The keys that a password, a salt and a number of iterations give.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    client_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl std::fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScramKeys")
    }
}

type KeyName = (ScramMechanism, Vec<u8>, u32);

/// Keys of one credential, so that only the first connection pays for the iterations.
#[derive(Debug, Default)]
pub struct KeyCache {
    keys: Lock<BTreeMap<KeyName, ScramKeys>>,
}

impl KeyCache {
    fn get(&self, name: &KeyName) -> Option<ScramKeys> {
        self.keys.lock().get(name).cloned()
    }

    fn put(&self, name: KeyName, keys: ScramKeys) {
        let mut all = self.keys.lock();
        if all.len() >= MAX_CACHED_KEYS {
            all.clear();
        }
        all.insert(name, keys);
    }
}

/// One conversation, after its first message was made.
#[derive(Clone, Debug)]
pub struct ScramClient {
    mechanism: ScramMechanism,
    nonce: String,
    client_first_bare: String,
}

impl ScramClient {
    /// A conversation. The random bytes must never have been used before.
    pub fn new(mechanism: ScramMechanism, user: &str, random: &[u8]) -> Self {
        Self::with_nonce(mechanism, user, BASE64.encode(random))
    }

    fn with_nonce(mechanism: ScramMechanism, user: &str, nonce: String) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let client_first_bare = format!("n={user},r={nonce}");
        Self { mechanism, nonce, client_first_bare }
    }

    /// The mechanism.
    pub fn mechanism(&self) -> ScramMechanism {
        self.mechanism
    }

    /// `client-first-message`.
    pub(crate) fn first_message(&self) -> String {
        format!("n,,{}", self.client_first_bare)
    }

    /// Reads `server-first-message`. Fails if it is not one, repeats another nonce, or asks for too
    /// few or too many iterations.
    pub(crate) fn on_server_first(&self, message: &str) -> Result<ServerFirst, ScramError> {
        let mut fields = message.split(',');
        let mut field = |name: &'static str| {
            let found = fields.next().and_then(|field| field.strip_prefix(name));
            found.ok_or(ScramError::Malformed("server-first-message"))
        };
        let (nonce, salt, iterations) = (field("r=")?, field("s=")?, field("i=")?);
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::WrongNonce);
        }
        let malformed = ScramError::Malformed("server-first-message");
        let salt = BASE64.decode(salt).map_err(|_| malformed.clone())?;
        let iterations = iterations.parse().map_err(|_| malformed)?;
        if !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return Err(ScramError::Iterations(iterations));
        }
        let without_proof = format!("c=biws,r={nonce}");
        let auth_message = format!("{},{message},{without_proof}", self.client_first_bare);
        let mechanism = self.mechanism;
        Ok(ServerFirst { mechanism, salt, iterations, without_proof, auth_message })
    }
}

/// What the server asked for: everything but the password is known now.
#[derive(Clone, Debug)]
pub struct ServerFirst {
    mechanism: ScramMechanism,
    salt: Vec<u8>,
    iterations: u32,
    without_proof: String,
    auth_message: String,
}

impl ServerFirst {
    /// The keys, if they are remembered.
    pub(crate) fn cached_keys(&self, cache: &KeyCache) -> Option<ScramKeys> {
        cache.get(&(self.mechanism, self.salt.clone(), self.iterations))
    }

    /// Computes the keys and remembers them. Takes milliseconds: run it on a thread that may block.
    /// Fails if the password holds characters that SASLprep forbids.
    pub(crate) fn compute_keys(
        &self,
        user: &str,
        password: &str,
        cache: &KeyCache,
    ) -> Result<ScramKeys, ScramError> {
        let prepared = self.mechanism.prepare(user, password)?;
        let salted = self.mechanism.salted_password(&prepared, &self.salt, self.iterations);
        let keys = ScramKeys {
            client_key: self.mechanism.hmac(&salted, b"Client Key"),
            server_key: self.mechanism.hmac(&salted, b"Server Key"),
        };
        cache.put((self.mechanism, self.salt.clone(), self.iterations), keys.clone());
        Ok(keys)
    }

    /// `client-final-message`, and what the server must answer.
    pub(crate) fn final_message(&self, keys: &ScramKeys) -> (String, ServerSignature) {
        let stored_key = self.mechanism.digest(&keys.client_key);
        let signature = self.mechanism.hmac(&stored_key, self.auth_message.as_bytes());
        let proof = exclusive_or(&keys.client_key, &signature);
        let message = format!("{},p={}", self.without_proof, BASE64.encode(proof));
        let expected = self.mechanism.hmac(&keys.server_key, self.auth_message.as_bytes());
        (message, ServerSignature(expected))
    }
}

/// The signature by which the server shows that it knows the password, too.
#[derive(Clone, Debug)]
pub struct ServerSignature(Vec<u8>);

impl ServerSignature {
    /// Reads `server-final-message`.
    ///
    /// # Errors
    ///
    /// If the server refuses, or does not know the password itself.
    pub fn verify(&self, message: &str) -> Result<(), ScramError> {
        let first = message.split(',').next().unwrap_or_default();
        if let Some(reason) = first.strip_prefix("e=") {
            return Err(ScramError::Refused(reason.to_owned()));
        }
        let signature = first
            .strip_prefix("v=")
            .and_then(|text| BASE64.decode(text).ok())
            .ok_or(ScramError::Malformed("server-final-message"))?;
        match bool::from(signature.ct_eq(&self.0)) {
            true => Ok(()),
            false => Err(ScramError::WrongSignature),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Example {
        mechanism: ScramMechanism,
        nonce: &'static str,
        server_first: &'static str,
        client_final: &'static str,
        server_final: &'static str,
    }

    /// The conversations printed in the authentication specification.
    const EXAMPLES: [Example; 2] = [
        Example {
            mechanism: ScramMechanism::ScramSha1,
            nonce: "fyko+d2lbbFgONRv9qkxdawL",
            server_first: "r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,\
                           s=rQ9ZY3MntBeuP3E1TDVC4w==,i=10000",
            client_final: "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,\
                           p=MC2T8BvbmWRckDw8oWl5IVghwCY=",
            server_final: "v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0=",
        },
        Example {
            mechanism: ScramMechanism::ScramSha256,
            nonce: "rOprNGfwEbeRWgbNEkqO",
            server_first: "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                           s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            client_final: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                           p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            server_final: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        },
    ];

    #[test]
    fn the_specifications_conversations_come_out_as_printed() {
        for example in EXAMPLES {
            let client =
                ScramClient::with_nonce(example.mechanism, "user", example.nonce.to_owned());
            assert_eq!(client.first_message(), format!("n,,n=user,r={}", example.nonce));
            let first = client.on_server_first(example.server_first).unwrap();
            let cache = KeyCache::default();
            assert!(first.cached_keys(&cache).is_none());
            let keys = first.compute_keys("user", "pencil", &cache).unwrap();
            assert_eq!(first.cached_keys(&cache), Some(keys.clone()));
            let (message, signature) = first.final_message(&keys);
            assert_eq!(message, example.client_final);
            assert_eq!(signature.verify(example.server_final), Ok(()));
            assert_eq!(signature.verify("v=AAAA"), Err(ScramError::WrongSignature));
            assert_eq!(
                signature.verify("e=other-error"),
                Err(ScramError::Refused("other-error".into()))
            );
            assert!(matches!(signature.verify("x"), Err(ScramError::Malformed(_))));
        }
    }

    #[test]
    fn names_are_escaped_and_not_prepared() {
        let client = ScramClient::with_nonce(ScramMechanism::ScramSha256, "a=b,c", "n".to_owned());
        assert_eq!(client.first_message(), "n,,n=a=3Db=2Cc,r=n");
    }

    #[test]
    fn impostors_are_refused() {
        let client = ScramClient::with_nonce(ScramMechanism::ScramSha256, "user", "abc".to_owned());
        let error = |message: &str| client.on_server_first(message).unwrap_err();
        assert_eq!(error("r=abcd,s=AAAA,i=4095"), ScramError::Iterations(4095));
        assert_eq!(error("r=abcd,s=AAAA,i=1000001"), ScramError::Iterations(1_000_001));
        assert_eq!(error("r=xbcd,s=AAAA,i=4096"), ScramError::WrongNonce);
        assert_eq!(error("r=abc,s=AAAA,i=4096"), ScramError::WrongNonce);
        for malformed in ["", "r=abcd", "r=abcd,s=*,i=4096", "r=abcd,s=AAAA,i=x", "s=AAAA,r=abcd"] {
            assert!(matches!(error(malformed), ScramError::Malformed(_)), "{malformed}");
        }
        assert!(client.on_server_first("r=abcd,s=AAAA,i=4096").is_ok());
    }

    /// The prose tests of the specification: IX and its compatibility forms are one password.
    #[test]
    fn passwords_are_prepared_for_sha_256_only() {
        for (mechanism, same) in
            [(ScramMechanism::ScramSha256, true), (ScramMechanism::ScramSha1, false)]
        {
            let client = ScramClient::with_nonce(mechanism, "IX", "n".to_owned());
            let first = client.on_server_first("r=nn,s=AAAA,i=4096").unwrap();
            let keys = |password| first.compute_keys("IX", password, &KeyCache::default()).unwrap();
            assert_eq!(keys("IX") == keys("I\u{ad}X"), same);
            assert_eq!(keys("IV") == keys("\u{2163}"), same);
        }
        let client = ScramClient::with_nonce(ScramMechanism::ScramSha256, "u", "n".to_owned());
        let first = client.on_server_first("r=nn,s=AAAA,i=4096").unwrap();
        let refused = first.compute_keys("u", "a\u{7}", &KeyCache::default());
        assert!(matches!(refused, Err(ScramError::Password(_))));
    }
}
