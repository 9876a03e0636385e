//! How a server authenticates its peers: TLS for clients and members, and what makes another server a member.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_authentication::{Authenticator, KeyFile};
use quorate_connection_string::{Credential, Mechanism, MechanismProperties};
use quorate_node::Certificate;
use quorate_tls_config::Subject;

use crate::key_files::{KeyFilesError, read_key_file};
use crate::tls::{Tls, TlsError, TlsOptions};

/// How members of a set know each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// Not at all: every connection that claims to be a member is believed. For loopback and networks of trust.
    #[default]
    Unchecked,
    /// By the secret of this file.
    KeyFile(PathBuf),
    /// By certificates of one organisation: the same O, OU and DC.
    Certificate,
}

/// Members could not know each other. The options are at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] TlsError),
    /// The key file is of no use.
    #[error(transparent)]
    KeyFile(#[from] KeyFilesError),
    /// No certificate authority vouches for other members.
    #[error(
        "a member of a set checks the certificates of the others; give the file of the authorities \
         with --tls-ca, or --tls-mode allow to call them without TLS"
    )]
    NoAuthority,
    /// Certificates need TLS.
    #[error(
        "members that know each other by certificates need TLS; give --tls-cert and --tls-ca, and \
         --tls-mode require or prefer"
    )]
    NoCertificates,
    /// A certificate that says nothing.
    #[error(
        "the certificate of this server names no organisation (O, OU or DC), so that no other could \
         be of the same; make one that does"
    )]
    NoOrganisation,
}

/// What connections in both directions are secured with.
#[derive(Default)]
pub(crate) struct Security {
    pub(crate) tls: Option<Arc<Tls>>,
    /// What this server proves with that it is a member, the first to be tried first.
    pub(crate) logins: Vec<Authenticator>,
    /// The secrets by which others prove it.
    pub(crate) keys: Vec<KeyFile>,
    /// Whether a certificate of the own organisation makes its holder a member.
    members_by_certificate: bool,
}

impl Security {
    pub(crate) fn new(
        tls: Option<&TlsOptions>,
        membership: &Membership,
        in_set: bool,
    ) -> Result<Self, SecurityError> {
        let tls = tls.map(Tls::new).transpose()?.flatten();
        if let Some(tls) = &tls
            && in_set
            && tls.calls_encrypted()
            && !tls.has_authority()
        {
            return Err(SecurityError::NoAuthority);
        }
        let mut security = Self { tls: tls.map(Arc::new), ..Self::default() };
        match membership {
            Membership::Unchecked => {}
            Membership::KeyFile(path) => {
                security.keys = read_key_file(path)?;
                let logins = security.keys.iter().map(KeyFile::credential);
                security.logins = logins.filter_map(|key| Authenticator::new(key).ok()).collect();
            }
            Membership::Certificate => {
                let own = security.tls.as_ref().filter(|tls| tls.calls_encrypted());
                let Some(tls) = own else { return Err(SecurityError::NoCertificates) };
                if !tls.subject().is_of_same_organisation(tls.subject()) {
                    return Err(SecurityError::NoOrganisation);
                }
                security.members_by_certificate = true;
                security.logins = Authenticator::new(by_certificate()).into_iter().collect();
            }
        }
        Ok(security)
    }

    /// What a client's certificate, which was vouched for, means here.
    pub(crate) fn certificate(&self, subject: &Subject) -> Certificate {
        let own = self.tls.as_ref().filter(|_| self.members_by_certificate);
        let is_member = own.is_some_and(|tls| tls.subject().is_of_same_organisation(subject));
        Certificate { subject: subject.to_string(), is_member }
    }
}

fn by_certificate() -> Credential {
    Credential {
        mechanism: Some(Mechanism::X509),
        user_name: None,
        password: None,
        source: "$external".to_owned(),
        properties: MechanismProperties::default(),
    }
}
