//! Certificates and keys in PEM files.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::TlsError;

/// How an encrypted key begins (PKCS#8), and how its header says so (the older format).
const ENCRYPTED: [&str; 2] = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"];

/// The certificates of a file, at least one.
///
/// # Errors
///
/// If the file cannot be read, or holds none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| TlsError::pem(path, "a certificate", error))?;
    if found.is_empty() {
        return Err(TlsError::pem(path, "a certificate", "there is none"));
    }
    Ok(found)
}

/// The private key of a file, which may hold certificates as well.
///
/// # Errors
///
/// If the file cannot be read, or holds none, or one that is encrypted.
pub fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let failed = |reason: &dyn std::fmt::Display| TlsError::pem(path, "a private key", reason);
    let text = std::fs::read(path).map_err(|error| failed(&error))?;
    if ENCRYPTED.iter().any(|mark| contains(&text, mark.as_bytes())) {
        return Err(TlsError::EncryptedKey(path.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| failed(&error))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
