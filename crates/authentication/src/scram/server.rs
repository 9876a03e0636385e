//! The side that checks whether a client knows a password.
//!
//! Passwords are never stored: only what is needed to check a proof, salted and iterated.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;

use super::{ScramError, ScramMechanism, exclusive_or};

/// The longest message of a conversation that is read.
pub const MAX_MESSAGE_LENGTH: usize = 4096;

/// What is stored to check a user's proof.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredCredentials {
    /// The mechanism that they are good for.
    pub mechanism: ScramMechanism,
    /// How often the password was hashed.
    pub iterations: u32,
    /// What the password was hashed with.
    pub salt: Vec<u8>,
    /// What a proof is checked against.
    pub stored_key: Vec<u8>,
    /// What we prove ourselves with.
    pub server_key: Vec<u8>,
}

impl std::fmt::Debug for StoredCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoredCredentials({}, {} iterations)", self.mechanism.name(), self.iterations)
    }
}

impl StoredCredentials {
    /// Derives credentials from a password, with the usual number of iterations. Takes milliseconds.
    ///
    /// # Errors
    ///
    /// If the password holds characters that SASLprep forbids.
    pub fn derive(
        mechanism: ScramMechanism,
        user: &str,
        password: &str,
        salt: Vec<u8>,
    ) -> Result<Self, ScramError> {
        let iterations = mechanism.default_iterations();
        Self::derive_with(mechanism, user, password, salt, iterations)
    }

    /// The same with another number of iterations.
    ///
    /// # Errors
    ///
    /// As [`derive`](Self::derive).
    pub fn derive_with(
        mechanism: ScramMechanism,
        user: &str,
        password: &str,
        salt: Vec<u8>,
        iterations: u32,
    ) -> Result<Self, ScramError> {
        let prepared = mechanism.prepare(user, password)?;
        let salted = mechanism.salted_password(&prepared, &salt, iterations);
        let client_key = mechanism.hmac(&salted, b"Client Key");
        Ok(Self {
            mechanism,
            iterations,
            salt,
            stored_key: mechanism.digest(&client_key),
            server_key: mechanism.hmac(&salted, b"Server Key"),
        })
    }
}

/// `client-first-message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst {
    /// The name that the client gives.
    pub user: String,
    nonce: String,
    header: String,
    bare: String,
}

impl ClientFirst {
    /// Reads `n,,n=<user>,r=<nonce>`.
    ///
    /// # Errors
    ///
    /// If it is not that, or is longer than [`MAX_MESSAGE_LENGTH`].
    pub fn parse(message: &[u8]) -> Result<Self, ScramError> {
        let malformed = || ScramError::Malformed("client-first-message");
        let text = text(message).ok_or_else(malformed)?;
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
        let user = field(fields.next(), "n=").ok_or_else(malformed)?;
        let user = user.replace("=2C", ",").replace("=3D", "=");
        let nonce = field(fields.next(), "r=").ok_or_else(malformed)?.to_owned();
        if nonce.is_empty() {
            return Err(malformed());
        }
        let header = format!("{binding},{identity},");
        Ok(Self { user, nonce, header, bare: bare.to_owned() })
    }
}

/// A conversation that waits for the client's proof.
#[derive(Clone, Debug)]
pub struct ServerConversation {
    credentials: StoredCredentials,
    nonce: String,
    header: String,
    client_first_bare: String,
    server_first: String,
}

impl ServerConversation {
    /// Answers the client's first message. Returns the conversation and the answer. The random bytes
    /// must never have been used before.
    pub fn start(
        first: ClientFirst,
        credentials: StoredCredentials,
        random: &[u8],
    ) -> (Self, String) {
        let nonce = format!("{}{}", first.nonce, BASE64.encode(random));
        Self::with_nonce(first, credentials, nonce)
    }

    fn with_nonce(
        first: ClientFirst,
        credentials: StoredCredentials,
        nonce: String,
    ) -> (Self, String) {
        let salt = BASE64.encode(&credentials.salt);
        let server_first = format!("r={nonce},s={salt},i={}", credentials.iterations);
        let answer = server_first.clone();
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
    ///
    /// # Errors
    ///
    /// [`ScramError::WrongProof`] if the client does not know the password; others if its message
    /// is not one of this conversation.
    pub fn finish(&self, message: &[u8]) -> Result<String, ScramError> {
        let malformed = || ScramError::Malformed("client-final-message");
        let text = text(message).ok_or_else(malformed)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or_else(malformed)?;
        let mut fields = without_proof.split(',');
        let binding = field(fields.next(), "c=").ok_or_else(malformed)?;
        let nonce = field(fields.next(), "r=").ok_or_else(malformed)?;
        let proof = BASE64.decode(proof).map_err(|_| malformed())?;
        if BASE64.decode(binding).ok().as_deref() != Some(self.header.as_bytes())
            || nonce != self.nonce
        {
            return Err(ScramError::WrongNonce);
        }
        let signed = format!("{},{},{without_proof}", self.client_first_bare, self.server_first);
        let mechanism = self.credentials.mechanism;
        let signature = mechanism.hmac(&self.credentials.stored_key, signed.as_bytes());
        let client_key = exclusive_or(&signature, &proof);
        if signature.len() != proof.len()
            || !bool::from(mechanism.digest(&client_key).ct_eq(&self.credentials.stored_key))
        {
            return Err(ScramError::WrongProof);
        }
        let own = mechanism.hmac(&self.credentials.server_key, signed.as_bytes());
        Ok(format!("v={}", BASE64.encode(own)))
    }
}

fn text(message: &[u8]) -> Option<&str> {
    if message.len() > MAX_MESSAGE_LENGTH {
        return None;
    }
    std::str::from_utf8(message).ok()
}

fn field<'a>(part: Option<&'a str>, name: &str) -> Option<&'a str> {
    part.and_then(|part| part.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::super::{KeyCache, ScramClient};
    use super::*;

    /// The example conversation of RFC 7677, section 3.
    #[test]
    fn the_published_conversation_is_accepted() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let mechanism = ScramMechanism::ScramSha256;
        let credentials =
            StoredCredentials::derive_with(mechanism, "user", "pencil", salt, 4096).unwrap();
        let first = ClientFirst::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first.user, "user");
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let (conversation, answer) =
            ServerConversation::with_nonce(first, credentials, nonce.to_owned());
        assert_eq!(answer, format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"));
        let last = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let answer = conversation.finish(last.as_bytes()).unwrap();
        assert_eq!(answer, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let wrong = last.replace("p=dH", "p=eH");
        assert_eq!(conversation.finish(wrong.as_bytes()), Err(ScramError::WrongProof));
        let short = last.replace("p=dHzbZapW", "p=");
        assert_eq!(conversation.finish(short.as_bytes()), Err(ScramError::WrongProof));
        let other_nonce = last.replace("r=rOp", "r=rOq");
        assert_eq!(conversation.finish(other_nonce.as_bytes()), Err(ScramError::WrongNonce));
    }

    #[test]
    fn both_sides_understand_each_other() {
        for mechanism in ScramMechanism::ALL {
            let stored = StoredCredentials::derive(mechanism, "a,b=", "secret", vec![7; 16]);
            let client = ScramClient::new(mechanism, "a,b=", &[1; 24]);
            let first = ClientFirst::parse(client.first_message().as_bytes()).unwrap();
            assert_eq!(first.user, "a,b=");
            let (server, answer) = ServerConversation::start(first, stored.unwrap(), &[2; 24]);
            let first = client.on_server_first(&answer).unwrap();
            let finish = |password| {
                let keys = first.compute_keys("a,b=", password, &KeyCache::default()).unwrap();
                let (proof, signature) = first.final_message(&keys);
                server.finish(proof.as_bytes()).map(|own| signature.verify(&own))
            };
            assert_eq!(finish("secret"), Ok(Ok(())));
            assert_eq!(finish("Secret"), Err(ScramError::WrongProof));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        for message in [&b""[..], b"n,,", b"p=tls,,n=u,r=x", b"n,,n=u", b"n,,n=u,r=", b"\xFF"] {
            assert!(ClientFirst::parse(message).is_err(), "{message:?}");
        }
        assert!(ClientFirst::parse(&[b'n'; MAX_MESSAGE_LENGTH + 1]).is_err());
    }

    #[test]
    fn credentials_are_not_shown() {
        let stored =
            StoredCredentials::derive(ScramMechanism::ScramSha256, "u", "p", vec![7; 28]).unwrap();
        assert_eq!(format!("{stored:?}"), "StoredCredentials(SCRAM-SHA-256, 15000 iterations)");
    }
}
