//! An authority of a test's own, and the certificates it issues.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use tempfile::TempDir;

/// An authority, whose files are gone when it is dropped.
pub struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new one that no program trusts yet.
    ///
    /// # Panics
    ///
    /// If its files cannot be written.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    /// The file of the authority's own certificate.
    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A certificate of this machine that a test changes before it is signed, and its key, both in
    /// DER.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn issue_with(&self, change: impl FnOnce(&mut CertificateParams)) -> (Vec<u8>, Vec<u8>) {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().to_vec(), key.serialize_der())
    }

    /// A file with the certificate and the key of a user or server on this machine.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn issue(&self, name: &str, organisation: &str) -> PathBuf {
        self.issue_file(name, organisation, &["localhost", "127.0.0.1"])
    }

    /// A file with the certificate and the key of a server that is reached by this name alone.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn issue_for(&self, host: &str, organisation: &str) -> PathBuf {
        self.issue_file(host, organisation, &[host])
    }

    fn issue_file(&self, name: &str, organisation: &str, hosts: &[&str]) -> PathBuf {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organisation);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.directory.path().join(format!("{name}.pem"));
        std::fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
        path
    }
}
