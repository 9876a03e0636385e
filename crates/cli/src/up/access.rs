//! The login and the certificates of a set: made once, kept beside its data, used by every member
//! and named by the connection string.
//!
//! A set with `--data` keeps them in that directory and has the same ones again the next time. A set
//! in memory keeps them in a directory of its own, which is removed with the set.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::process::ProcessId;
use super::running;
use crate::screen::Result;
use crate::words::percent_encoded;

/// The user that `--auth` makes.
pub(super) const USER: &str = "admin";

/// How many random bytes a password has.
const PASSWORD_BYTES: usize = 18;

/// How many random bytes the key that members share has.
const KEY_BYTES: usize = 48;

/// The names under which clients of this machine reach the members.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// What the names of directories with secrets of sets in memory begin with; a process number follows.
const DIRECTORY_PREFIX: &str = "secrets-";

/// How clients and members prove who they are.
#[derive(Debug, Default)]
pub(super) struct Access {
    password: Option<String>,
    key: Option<PathBuf>,
    certificate: Option<PathBuf>,
    authority: Option<PathBuf>,
    /// Removed when the set ends.
    _directory: Option<OwnDirectory>,
}

impl Access {
    /// Creates the wanted files that do not exist yet. `known` is the password that an earlier run made.
    pub(super) fn prepare(
        data: Option<&Path>,
        auth: bool,
        tls: bool,
        known: Option<String>,
    ) -> Result<Self> {
        if !auth && !tls {
            return Ok(Self::default());
        }
        let (directory, own) = match data {
            Some(data) => (data.to_owned(), None),
            None => {
                let own = OwnDirectory::new()?;
                (own.0.clone(), Some(own))
            }
        };
        let failed = |error: io::Error| {
            problem!(
                "cannot keep the login and the certificates in {}: {error}; give another --data",
                directory.display()
            )
        };
        DirBuilder::new().mode(0o700).recursive(true).create(&directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        let mut access = Self { _directory: own, ..Self::default() };
        if auth {
            let key = directory.join("keyfile");
            if !key.exists() {
                let bytes = STANDARD.encode(random::<KEY_BYTES>()?);
                write_secret(&key, &bytes).map_err(failed)?;
            }
            access.key = Some(key);
            access.password = Some(match known {
                Some(known) => known,
                None => URL_SAFE_NO_PAD.encode(random::<PASSWORD_BYTES>()?),
            });
        }
        if tls {
            let (authority, certificate) = (directory.join("ca.pem"), directory.join("server.pem"));
            if !authority.exists() || !certificate.exists() {
                let (authority_text, certificate_text) = certificates()?;
                write_secret(&authority, &authority_text).map_err(failed)?;
                write_secret(&certificate, &certificate_text).map_err(failed)?;
            }
            (access.authority, access.certificate) = (Some(authority), Some(certificate));
        }
        Ok(access)
    }

    /// The password of [`USER`], if clients log in.
    pub(super) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Whether connections are encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.certificate.is_some()
    }

    /// The options of `quorate serve`.
    pub(super) fn serve_arguments(&self) -> Vec<OsString> {
        let mut told = Vec::new();
        let files = [
            ("--keyfile", &self.key),
            ("--tls-cert", &self.certificate),
            ("--tls-ca", &self.authority),
        ];
        for (option, file) in files {
            if let Some(file) = file {
                told.push(option.into());
                told.push(file.into());
            }
        }
        told
    }

    /// The connection string of the whole set.
    pub(super) fn set_uri(&self, hosts: &[&str], name: &str) -> String {
        self.uri(hosts, &format!("replicaSet={}", percent_encoded(name)), true)
    }

    /// The connection string of the whole set for a client that has no login yet.
    pub(super) fn set_uri_without_login(&self, hosts: &[&str], name: &str) -> String {
        self.uri(hosts, &format!("replicaSet={}", percent_encoded(name)), false)
    }

    /// The connection string of one member for a client that has no login yet.
    pub(super) fn member_uri_without_login(&self, host: &str) -> String {
        self.uri(&[host], "directConnection=true", false)
    }

    fn uri(&self, hosts: &[&str], option: &str, with_login: bool) -> String {
        let mut uri = "mongodb://".to_owned();
        let password = self.password.as_ref().filter(|_| with_login);
        if let Some(password) = password {
            uri.push_str(&format!("{USER}:{password}@"));
        }
        uri.push_str(&format!("{}/?{option}", hosts.join(",")));
        if password.is_some() {
            uri.push_str("&authSource=admin");
        }
        if let Some(authority) = &self.authority {
            let path = percent_encoded(&authority.display().to_string());
            uri.push_str(&format!("&tls=true&tlsCAFile={path}"));
        }
        uri
    }
}

/// A directory that is removed with this value.
#[derive(Debug)]
struct OwnDirectory(PathBuf);

impl OwnDirectory {
    fn new() -> Result<Self> {
        let place = running::directory()?;
        remove_abandoned(&place);
        Ok(Self(place.join(format!("{DIRECTORY_PREFIX}{}", std::process::id()))))
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what sets left behind whose process was killed.
fn remove_abandoned(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten().take(running::MAX_FILES) {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(DIRECTORY_PREFIX));
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok())
            && ProcessId::of(pid).is_none()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Writes a file that only its owner can read.
pub(super) fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

fn random<const LENGTH: usize>() -> Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes)
        .map_err(|error| problem!("the system has no random numbers: {error}; try again"))?;
    Ok(bytes)
}

/// The certificate of an authority, and a certificate with its key that the authority signed.
fn certificates() -> Result<(String, String)> {
    let made = || -> Result<_, rcgen::Error> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority.distinguished_name = DistinguishedName::new();
        authority.distinguished_name.push(DnType::CommonName, "quorate up");
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let mut server = CertificateParams::new(NAMES.map(str::to_owned))?;
        server.distinguished_name = DistinguishedName::new();
        server.distinguished_name.push(DnType::OrganizationName, "quorate up");
        server.distinguished_name.push(DnType::CommonName, "localhost");
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &issuer)?;
        Ok((issuer.pem(), certificate.pem() + &key.serialize_pem()))
    };
    made().map_err(|error| problem!("no certificate can be made: {error}; try without --tls"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_made_once_and_kept() {
        use std::os::unix::fs::MetadataExt;
        let data = tempfile::tempdir().unwrap();
        let access = Access::prepare(Some(data.path()), true, true, None).unwrap();
        let read = |name: &str| fs::read_to_string(data.path().join(name)).unwrap();
        let before = ["keyfile", "ca.pem", "server.pem"].map(read);
        for name in ["keyfile", "server.pem"] {
            assert_eq!(data.path().join(name).metadata().unwrap().mode() & 0o077, 0, "{name}");
        }
        let known = access.password().map(str::to_owned);
        let again = Access::prepare(Some(data.path()), true, true, known).unwrap();
        assert_eq!(["keyfile", "ca.pem", "server.pem"].map(read), before);
        assert_eq!(again.password(), access.password());
        let uri = again.set_uri(&["127.0.0.1:1", "127.0.0.1:2"], "a b");
        let parsed = quorate_connection_string::ConnectionString::parse(&uri).unwrap();
        assert_eq!(parsed.options().replica_set.as_deref(), Some("a b"));
        assert!(parsed.tls_enabled(), "{uri}");
    }

    #[test]
    fn an_open_set_needs_nothing() {
        let access = Access::prepare(None, false, false, None).unwrap();
        assert!(access.serve_arguments().is_empty());
        assert_eq!(access.set_uri(&["a:1"], "rs0"), "mongodb://a:1/?replicaSet=rs0");
    }
}
