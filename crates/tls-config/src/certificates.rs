//! Certificate and key files, for both ends of TLS. Callers decide which authorities to trust.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How an encrypted key begins (PKCS #8), and how its header says so (the older format).
const ENCRYPTED: [&str; 2] = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"];

/// A file does not hold what it should. The author of the file, or of its path, is at fault.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("{} cannot be read: {reason}; check the path and its permissions", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Its private key is protected by a passphrase.
    #[error(
        "the private key in {} is encrypted; write one without a passphrase with: openssl pkey -in \
         FILE -out PLAIN",
        .0.display()
    )]
    Encrypted(PathBuf),
    /// It holds something else.
    #[error("{} does not hold {expected} in PEM format: {reason}", .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// Why it does not.
        reason: String,
    },
}

impl FileError {
    fn new(path: &Path, expected: &'static str, error: &pem::Error) -> Self {
        let path = path.to_owned();
        match error {
            pem::Error::Io(error) => Self::Unreadable { path, reason: error.to_string() },
            pem::Error::NoItemsFound => {
                Self::Pem { path, expected, reason: "there is none".into() }
            }
            other => Self::Pem { path, expected, reason: other.to_string() },
        }
    }
}

/// The certificates of a file, at least one.
///
/// # Errors
///
/// If the file cannot be read or holds none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    const EXPECTED: &str = "a certificate";
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| FileError::new(path, EXPECTED, &error))?;
    if found.is_empty() {
        return Err(FileError::new(path, EXPECTED, &pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// The first private key of a file.
///
/// # Errors
///
/// If the file cannot be read or holds none that is not encrypted.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let unreadable = |error| FileError::new(path, "a private key", &pem::Error::Io(error));
    let text = std::fs::read(path).map_err(unreadable)?;
    let holds = |mark: &str| text.windows(mark.len()).any(|window| window == mark.as_bytes());
    if ENCRYPTED.into_iter().any(holds) {
        return Err(FileError::Encrypted(path.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| FileError::new(path, "a private key", &error))
}

/// The authorities of a file, as those that are trusted.
///
/// # Errors
///
/// If the file cannot be read, holds none, or one of them is malformed.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, FileError> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        authorities.add(certificate).map_err(|error| FileError::Pem {
            path: path.to_owned(),
            expected: "certificates of authorities",
            reason: error.to_string(),
        })?;
    }
    Ok(authorities)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_what_is_missing_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent.pem");
        let error = read_certificates(&absent).unwrap_err().to_string();
        assert!(error.contains("absent.pem cannot be read"), "{error}");
        let empty = directory.path().join("empty.pem");
        std::fs::write(&empty, "nothing\n").unwrap();
        for error in [
            read_certificates(&empty).unwrap_err().to_string(),
            read_key(&empty).unwrap_err().to_string(),
            read_authorities(&empty).unwrap_err().to_string(),
        ] {
            assert!(error.contains("empty.pem does not hold a "), "{error}");
        }
    }

    #[test]
    fn encrypted_keys_are_named_with_a_next_step() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        for mark in ENCRYPTED {
            std::fs::write(&path, format!("{mark}\nAAAA\n")).unwrap();
            let error = read_key(&path).unwrap_err();
            assert!(matches!(error, FileError::Encrypted(_)), "{error}");
            assert!(error.to_string().contains("openssl pkey"), "{error}");
        }
    }

    #[test]
    fn a_file_may_hold_certificate_and_key() {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let both = directory.path().join("both.pem");
        std::fs::write(&both, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        assert_eq!(read_certificates(&both).unwrap().len(), 1);
        assert!(read_key(&both).is_ok());
        assert_eq!(read_authorities(&both).unwrap().len(), 1);
    }
}
