#![doc = include_str!("../README.md")]
//!
//! This crate owns the syntax, the options as typed values, the credential they add up to, and the
//! rules for what may stand together (specifications "Connection String", "URI Options",
//! "Authentication", "Initial DNS Seedlist Discovery" and those they refer to). It does no I/O:
//! the client asks DNS and hands the answers in ([`ConnectionString::apply_txt_records`],
//! [`ConnectionString::seed_list`]), and applies defaults to options that are not given.
//!
//! Nothing is printed. What the specifications want logged comes back as [`Warning`]s.
//!
//! # What is an error and what a warning
//!
//! Unknown options and values that an option cannot have are ignored with a warning. A string that
//! is malformed, combines what must not be combined, or says something about security that we
//! cannot honour is refused.

mod codec;
mod conflicts;
mod credential;
mod definitions;
mod error;
mod options;
mod percent;
mod read;
mod secret;
mod srv;
mod write;

use std::fmt;
use std::str::FromStr;

use quorate_protocol::ServerAddress;

pub use codec::MAX_APP_NAME_LENGTH;
use conflicts::SeedKind;
pub use credential::{Credential, CredentialError, EXTERNAL, Mechanism, MechanismProperties};
use credential::{Ingredients, UserInfo};
pub use error::{ParseError, Part, Warning};
pub use options::{Compressor, Limit, Options, WriteAcknowledgement};
pub use secret::{REDACTED, Secret};
pub use srv::{MAX_TXT_LENGTH, SeedListError, SrvTarget, TxtError};
use write::Secrets;

/// The longest connection string that is read, in bytes.
pub const MAX_LENGTH: usize = 64 * 1024;

/// The most hosts that are taken from a connection string or from DNS.
pub const MAX_SEEDS: usize = 1000;

/// Where the first servers to ask come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// The hosts of the string, in its order: at least one.
    Hosts(Vec<ServerAddress>),
    /// DNS knows them under this host name (lower-case, no dot at its end).
    Srv(String),
}

/// A connection string that obeys every rule.
///
/// `Display` and `Debug` never show a password; [`ConnectionString::to_uri_with_secrets`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionString {
    seeds: Seeds,
    user_info: Option<UserInfo>,
    credential: Option<Credential>,
    default_database: Option<String>,
    options: Options,
    warnings: Vec<Warning>,
}

impl ConnectionString {
    /// Reads a connection string.
    ///
    /// # Errors
    ///
    /// See [`ParseError`].
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        read::connection_string(text)
    }

    /// The hosts, or the name to ask DNS about.
    pub fn seeds(&self) -> &Seeds {
        &self.seeds
    }

    /// What to authenticate with; `None` if the string does not ask to.
    pub fn credential(&self) -> Option<&Credential> {
        self.credential.as_ref()
    }

    /// The database after the slash.
    pub fn default_database(&self) -> Option<&str> {
        self.default_database.as_deref()
    }

    /// Everything after the question mark.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What was ignored or is old-fashioned, in the order in which it was found.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Whether to use TLS: what `tls` or `ssl` says; otherwise yes for `mongodb+srv://`, and yes if
    /// a TLS file is named or a TLS flag is true, since those make sense with TLS only.
    pub fn tls_enabled(&self) -> bool {
        let options = &self.options;
        let implied = [
            options.tls_allow_invalid_certificates,
            options.tls_allow_invalid_hostnames,
            options.tls_disable_certificate_revocation_check,
            options.tls_disable_ocsp_endpoint_check,
            options.tls_insecure,
            Some(options.tls_ca_file.is_some()),
            Some(options.tls_certificate_key_file.is_some()),
            Some(matches!(self.seeds, Seeds::Srv(_))),
        ];
        options.tls.unwrap_or_else(|| implied.contains(&Some(true)))
    }

    /// The string with passwords and tokens in it. `to_string` writes the same with `***` instead.
    pub fn to_uri_with_secrets(&self) -> String {
        write::connection_string(self, Secrets::Shown)
    }

    fn user_info(&self) -> Option<&UserInfo> {
        self.user_info.as_ref()
    }

    /// Puts the parts together, if they fit.
    fn assemble(
        seeds: Seeds,
        user_info: Option<UserInfo>,
        default_database: Option<String>,
        options: Options,
        warnings: Vec<Warning>,
    ) -> Result<Self, ParseError> {
        let kind = match &seeds {
            Seeds::Hosts(hosts) => SeedKind::Hosts(hosts.len()),
            Seeds::Srv(_) => SeedKind::Srv,
        };
        conflicts::check(&options, kind)?;
        let credential = Credential::new(&Ingredients {
            user_info: user_info.as_ref(),
            mechanism: options.auth_mechanism,
            source: options.auth_source.as_deref(),
            database: default_database.as_deref(),
            properties: options.auth_mechanism_properties.as_ref(),
        })?;
        Ok(Self { seeds, user_info, credential, default_database, options, warnings })
    }

    /// The same string with other options and further warnings.
    fn with_options(&self, options: Options, further: Vec<Warning>) -> Result<Self, ParseError> {
        let mut warnings = self.warnings.clone();
        warnings.extend(further);
        let (seeds, user_info) = (self.seeds.clone(), self.user_info.clone());
        Self::assemble(seeds, user_info, self.default_database.clone(), options, warnings)
    }
}

impl FromStr for ConnectionString {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write::connection_string(self, Secrets::Redacted))
    }
}
