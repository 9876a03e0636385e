//! The credential that user name, password and options add up to.
//!
//! Follows the "MongoCredential Properties" of each mechanism in the specification
//! "Authentication". What can never be right is refused while the string is read. What may yet come
//! from elsewhere (a password asked for at a prompt, a callback) is left to
//! [`Credential::check_complete`]. Nothing here authenticates.

use std::collections::BTreeMap;
use std::fmt;

use crate::secret::{REDACTED, Secret};

/// The database of users that are kept outside the server.
pub const EXTERNAL: &str = "$external";

/// The database of users when nothing else is said.
const DEFAULT_SOURCE: &str = "admin";

quorate_protocol::named! {
    /// How a client proves who it is.
    ///
    /// [`name`](Self::name) is the name sent to servers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Mechanism {
        /// SCRAM-SHA-1
        ScramSha1 = "SCRAM-SHA-1",
        /// SCRAM-SHA-256
        ScramSha256 = "SCRAM-SHA-256",
        /// PLAIN, for LDAP
        Plain = "PLAIN",
        /// GSSAPI, for Kerberos
        Gssapi = "GSSAPI",
        /// MONGODB-X509
        X509 = "MONGODB-X509",
        /// MONGODB-AWS
        Aws = "MONGODB-AWS",
        /// MONGODB-OIDC
        Oidc = "MONGODB-OIDC",
    }
}

impl Mechanism {
    fn property_names(self) -> &'static [&'static str] {
        match self {
            Self::ScramSha1 | Self::ScramSha256 | Self::Plain | Self::X509 => &[],
            Self::Gssapi => {
                &["SERVICE_NAME", "CANONICALIZE_HOST_NAME", "SERVICE_REALM", "SERVICE_HOST"]
            }
            Self::Aws => &["AWS_SESSION_TOKEN"],
            Self::Oidc => &["ENVIRONMENT", "TOKEN_RESOURCE"],
        }
    }
}

/// Names and values for a mechanism. Values that may be secret are not shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MechanismProperties(BTreeMap<String, String>);

impl MechanismProperties {
    /// Properties whose values are safe to show. Everything else may be a token.
    const SHOWN: [&'static str; 6] = [
        "SERVICE_NAME", "CANONICALIZE_HOST_NAME", "SERVICE_REALM", "SERVICE_HOST", "ENVIRONMENT",
        "TOKEN_RESOURCE",
    ];

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value under a name, secret or not.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The properties by name, values exposed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn set_default(&mut self, name: &str, value: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub(crate) fn redacted(&self) -> String {
        self.to_text(|name, value| {
            let shown = Self::SHOWN.contains(&name);
            (if shown { value } else { REDACTED }).to_owned()
        })
    }

    pub(crate) fn to_text(&self, value_text: impl Fn(&str, &str) -> String) -> String {
        let pairs: Vec<String> = self
            .iter()
            .map(|(name, value)| format!("{name}:{}", value_text(name, value)))
            .collect();
        pairs.join(",")
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for MechanismProperties {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(properties: I) -> Self {
        Self(properties.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for MechanismProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.redacted())
    }
}

/// User name and password as they stand before the `@`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserInfo {
    pub(crate) user_name: String,
    pub(crate) password: Option<Secret>,
}

/// What to authenticate with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// `None` leaves the choice to the handshake (SCRAM-SHA-256 or SCRAM-SHA-1).
    pub mechanism: Option<Mechanism>,
    /// Missing where the mechanism finds the name elsewhere.
    pub user_name: Option<String>,
    /// Shown as `***`; [`Secret::expose`] gives the text.
    pub password: Option<Secret>,
    /// The database that knows the user.
    pub source: String,
    /// The properties given, and the defaults of those that have one.
    pub properties: MechanismProperties,
}

/// User, password, mechanism and properties do not fit together. The author of the connection
/// string is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The mechanism needs a name.
    #[error("{0} needs a user name; write it before the host, as in mongodb://name@host")]
    MissingUserName(Mechanism),
    /// The mechanism needs a password.
    #[error("{0} needs a password; write it after the user name, as in name:password@host")]
    MissingPassword(&'static str),
    /// The mechanism has no use for a password.
    #[error("{0} takes no password; remove it from the connection string")]
    PasswordNotAllowed(Mechanism),
    /// The mechanism has no use for a user name.
    #[error("MONGODB-OIDC with ENVIRONMENT:{0} takes no user name; remove it")]
    UserNameNotAllowed(String),
    /// The mechanism keeps its users elsewhere.
    #[error("{0} authenticates against $external; remove authSource or set it to $external")]
    SourceNotExternal(Mechanism),
    /// The mechanism does not know the property.
    #[error("{0} has no property {1:?}; remove it from authMechanismProperties")]
    UnknownProperty(&'static str, String),
    /// The property has a value that it cannot have.
    #[error("the property {0} can not be {1:?}; use one of: {2}")]
    BadProperty(&'static str, String, &'static str),
    /// A property is missing.
    #[error("MONGODB-OIDC needs the property {0}; add {0}:… to authMechanismProperties")]
    MissingProperty(&'static str),
    /// `TOKEN_RESOURCE` where the mechanism does not ask for it.
    #[error("TOKEN_RESOURCE is only for ENVIRONMENT:azure and ENVIRONMENT:gcp; remove it")]
    UnusedTokenResource,
}

/// What a credential is made of.
pub(crate) struct Ingredients<'a> {
    pub(crate) user_info: Option<&'a UserInfo>,
    pub(crate) mechanism: Option<Mechanism>,
    pub(crate) source: Option<&'a str>,
    pub(crate) database: Option<&'a str>,
    pub(crate) properties: Option<&'a MechanismProperties>,
}

impl Credential {
    /// The credential that the ingredients add up to; `None` if the string does not ask to authenticate, which
    /// a database or an `authSource` alone do not.
    pub(crate) fn new(from: &Ingredients<'_>) -> Result<Option<Self>, CredentialError> {
        if from.user_info.is_none() && from.mechanism.is_none() {
            return Ok(None);
        }
        let default_source = match from.mechanism {
            None | Some(Mechanism::ScramSha1 | Mechanism::ScramSha256) => {
                from.database.unwrap_or(DEFAULT_SOURCE)
            }
            Some(Mechanism::Plain) => from.database.unwrap_or(EXTERNAL),
            Some(Mechanism::Gssapi | Mechanism::X509 | Mechanism::Aws | Mechanism::Oidc) => {
                EXTERNAL
            }
        };
        let mut credential = Self {
            mechanism: from.mechanism,
            user_name: from.user_info.map(|info| info.user_name.clone()),
            password: from.user_info.and_then(|info| info.password.clone()),
            source: from.source.unwrap_or(default_source).to_owned(),
            properties: from.properties.cloned().unwrap_or_default(),
        };
        credential.check_property_names()?;
        match credential.mechanism {
            None => {}
            Some(
                mechanism @ (Mechanism::ScramSha1 | Mechanism::ScramSha256 | Mechanism::Plain),
            ) => credential.require_user_name(mechanism)?,
            Some(Mechanism::Gssapi) => credential.check_gssapi()?,
            Some(mechanism @ Mechanism::X509) => {
                credential.refuse_password(mechanism)?;
                credential.require_external(mechanism)?;
            }
            Some(mechanism @ Mechanism::Aws) => {
                credential.require_external(mechanism)?;
                if credential.user_name.is_some() && credential.password.is_none() {
                    return Err(CredentialError::MissingPassword("MONGODB-AWS with a user name"));
                }
            }
            Some(Mechanism::Oidc) => credential.check_oidc()?,
        }
        Ok(Some(credential))
    }

    /// Whether there is all that the mechanism needs, nothing more to be asked or called back for.
    ///
    /// # Errors
    ///
    /// What is missing. A client that can get it elsewhere may fill the field in and ask again.
    pub fn check_complete(&self) -> Result<(), CredentialError> {
        match self.mechanism {
            Some(Mechanism::Oidc) if self.properties.get("ENVIRONMENT").is_none() => {
                Err(CredentialError::MissingProperty("ENVIRONMENT"))
            }
            None | Some(Mechanism::ScramSha1 | Mechanism::ScramSha256 | Mechanism::Plain)
                if self.password.is_none() =>
            {
                Err(CredentialError::MissingPassword(
                    self.mechanism.map_or("SCRAM", Mechanism::name),
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_property_names(&self) -> Result<(), CredentialError> {
        let (name, known) = match self.mechanism {
            Some(mechanism) => (mechanism.name(), mechanism.property_names()),
            None => ("SCRAM", &[] as &[_]),
        };
        match self.properties.iter().find(|(property, _)| !known.contains(property)) {
            Some((unknown, _)) => Err(CredentialError::UnknownProperty(name, unknown.to_owned())),
            None => Ok(()),
        }
    }

    fn require_user_name(&self, mechanism: Mechanism) -> Result<(), CredentialError> {
        match self.user_name {
            Some(_) => Ok(()),
            None => Err(CredentialError::MissingUserName(mechanism)),
        }
    }

    fn refuse_password(&self, mechanism: Mechanism) -> Result<(), CredentialError> {
        match self.password {
            None => Ok(()),
            Some(_) => Err(CredentialError::PasswordNotAllowed(mechanism)),
        }
    }

    fn require_external(&self, mechanism: Mechanism) -> Result<(), CredentialError> {
        if self.source == EXTERNAL {
            Ok(())
        } else {
            Err(CredentialError::SourceNotExternal(mechanism))
        }
    }

    fn check_gssapi(&mut self) -> Result<(), CredentialError> {
        self.require_user_name(Mechanism::Gssapi)?;
        self.require_external(Mechanism::Gssapi)?;
        let choice = self.properties.get("CANONICALIZE_HOST_NAME").unwrap_or("none");
        if !["none", "forward", "forwardAndReverse", "true", "false"].contains(&choice) {
            return Err(CredentialError::BadProperty(
                "CANONICALIZE_HOST_NAME",
                choice.to_owned(),
                "none, forward, forwardAndReverse",
            ));
        }
        self.properties.set_default("SERVICE_NAME", "mongodb");
        Ok(())
    }

    fn check_oidc(&self) -> Result<(), CredentialError> {
        self.refuse_password(Mechanism::Oidc)?;
        self.require_external(Mechanism::Oidc)?;
        let resource = self.properties.get("TOKEN_RESOURCE");
        let environment = self.properties.get("ENVIRONMENT");
        match environment {
            None | Some("test" | "k8s") if resource.is_some() => {
                Err(CredentialError::UnusedTokenResource)
            }
            Some("azure" | "gcp") if resource.is_none() => {
                Err(CredentialError::MissingProperty("TOKEN_RESOURCE"))
            }
            // Only Azure tells identities apart by name.
            Some(environment @ ("test" | "k8s" | "gcp")) if self.user_name.is_some() => {
                Err(CredentialError::UserNameNotAllowed(environment.to_owned()))
            }
            None | Some("test" | "azure" | "gcp" | "k8s") => Ok(()),
            Some(unknown) => Err(CredentialError::BadProperty(
                "ENVIRONMENT",
                unknown.to_owned(),
                "azure, gcp, k8s, test",
            )),
        }
    }
}
