//! What can be wrong with a connection string: errors, which refuse it, and warnings, which do not.
//!
//! The author of the string is at fault in every case. No text here repeats a password: parts that
//! may hold one are named, never quoted.

use std::fmt;

use quorate_protocol::AddressError;

use crate::credential::CredentialError;
use crate::{MAX_LENGTH, MAX_SEEDS};

/// A part of a connection string, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// User name and password.
    UserInfo,
    /// A host.
    Host,
    /// The default database.
    Database,
    /// The options.
    Options,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserInfo => "user name or password",
            Self::Host => "host",
            Self::Database => "database name",
            Self::Options => "options",
        })
    }
}

/// The string is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Longer than [`MAX_LENGTH`].
    #[error("the connection string is {0} bytes long; at most {MAX_LENGTH} are accepted")]
    TooLong(usize),
    /// Neither of the two schemes.
    #[error("a connection string starts with mongodb:// or mongodb+srv://; put one of them first")]
    BadScheme,
    /// Nothing where the first host should be.
    #[error(
        "there is no host after the scheme; write mongodb://host:port, and the path of a unix \
         socket percent-encoded, as in mongodb://%2Ftmp%2Fmongodb-27017.sock"
    )]
    MissingHost,
    /// More than [`MAX_SEEDS`].
    #[error("{0} hosts are listed; at most {MAX_SEEDS} are accepted, and a few members suffice")]
    TooManyHosts(usize),
    /// What follows a host's colon is no port. Not quoted: it may be a password whose host is
    /// missing.
    #[error(
        "what follows {0:?} and its colon is not a port from 1 to 65535; an IPv6 address needs \
         brackets, as in [::1]:27017, and a password an @ and a host after it"
    )]
    BadPort(String),
    /// One of the hosts cannot be an address.
    #[error("{0}")]
    BadHost(#[from] AddressError),
    /// An at-sign, a second colon, a slash, a question mark or a space stands in the credentials.
    #[error(
        "the user name or password holds a character with a meaning of its own (: / ? # @ % or a \
         space); percent-encode it, as in p%40ss for p@ss"
    )]
    UserInfoNotEncoded,
    /// An at-sign without a user name before it.
    #[error("the user name before the @ is empty; give one or remove the @")]
    EmptyUserName,
    /// A percent sign that starts no escape.
    #[error("the {0} holds a % that two hexadecimal digits do not follow; write %25 for a %")]
    BadEscape(Part),
    /// Escapes that decode to something other than UTF-8.
    #[error("the {0} does not decode to UTF-8; percent-encode the UTF-8 bytes of the text")]
    NotUtf8(Part),
    /// A character that no database name may hold.
    #[error("the database name holds {0:?}, which no database name may; rename or remove it")]
    BadDatabase(char),
    /// A key without an equals sign, or an equals sign without a key.
    #[error("the option {0:?} is not of the form name=value; complete or remove it")]
    IncompleteOption(String),
    /// `authSource=` with nothing after it.
    #[error("authSource is empty; name the database that holds the user, or remove the option")]
    EmptyAuthSource,
    /// A mechanism that does not exist.
    #[error(
        "the authMechanism {0:?} is unknown; use SCRAM-SHA-256, SCRAM-SHA-1, PLAIN, GSSAPI, \
         MONGODB-X509, MONGODB-AWS or MONGODB-OIDC"
    )]
    UnknownMechanism(String),
    /// User, password and mechanism do not fit together.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// Two options that exclude each other.
    #[error("{0} and {1} exclude each other; remove one of them")]
    Conflict(&'static str, &'static str),
    /// `tls` and `ssl` (or two of the same) with different values.
    #[error("tls and ssl are the same option and are given different values; keep one of them")]
    ContradictoryTls,
    /// An option that means nothing without another.
    #[error("{0} is given without {1}; add {1} or remove {0}")]
    Requires(&'static str, &'static str),
    /// `minPoolSize` above `maxPoolSize`.
    #[error("minPoolSize {min} is above maxPoolSize {max}; lower the one or raise the other")]
    PoolBounds {
        /// `minPoolSize`
        min: u32,
        /// `maxPoolSize`
        max: u32,
    },
    /// An option for `mongodb+srv://` in a `mongodb://` string.
    #[error("{0} is only for mongodb+srv://; remove it or change the scheme")]
    OnlyWithSrv(&'static str),
    /// `mongodb+srv://` with a port.
    #[error("mongodb+srv:// takes the ports from DNS; remove the port from the host")]
    SrvWithPort,
    /// `mongodb+srv://` with several hosts.
    #[error("mongodb+srv:// takes the hosts from DNS; name exactly one host")]
    SrvWithSeveralHosts,
    /// `mongodb+srv://` with an IP address or a socket.
    #[error("mongodb+srv:// needs a host name to ask DNS about; an address or a path is none")]
    SrvNotAName,
    /// A suffix so short that hosts of other owners match it.
    #[error(
        "srvAllowedHostsSuffix {0:?} is too wide; give at least a registered domain, as in \
         .example.com"
    )]
    BadAllowedSuffix(String),
}

/// The string is accepted, but something in it was ignored or is old-fashioned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// No such option. It was ignored.
    UnknownOption(String),
    /// The option was given more than once. The last valid value counts.
    RepeatedOption(&'static str),
    /// The value was ignored.
    InvalidValue {
        /// The option.
        option: &'static str,
        /// The text, or `None` where it may be secret.
        value: Option<String>,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// An old name, still understood.
    DeprecatedOption {
        /// The name as we know it, whatever case it was written in.
        option: &'static str,
        /// What to write instead.
        replacement: &'static str,
    },
    /// An old name beside the new one. The old one was ignored.
    ReplacedOption {
        /// The old name.
        option: &'static str,
        /// The new name.
        replacement: &'static str,
    },
    /// `1` or `yes` for true, `0` or `no` for false, and the like.
    DeprecatedBoolean {
        /// The option.
        option: &'static str,
        /// What was written.
        value: String,
        /// What it was taken for.
        meaning: bool,
    },
    /// A compressor we do not have. It was left out of the list.
    UnknownCompressor(String),
    /// Two ampersands with nothing between them, or one at the end.
    EmptyOption,
    /// More hosts than a replica set can have.
    ManyHosts(usize),
}

/// The most members that a replica set can have.
pub(crate) const MAX_SET_MEMBERS: usize = 50;

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption(name) => {
                write!(f, "the option {name:?} is unknown and was ignored; check its spelling")
            }
            Self::RepeatedOption(option) => {
                write!(f, "{option} is given more than once; the last valid value is used")
            }
            Self::InvalidValue { option, value: Some(value), expected } => {
                write!(f, "{option}={value:?} was ignored; expected {expected}")
            }
            Self::InvalidValue { option, value: None, expected } => {
                write!(f, "the value of {option} was ignored; expected {expected}")
            }
            Self::DeprecatedOption { option, replacement } => {
                write!(f, "{option} is deprecated; write {replacement} instead")
            }
            Self::ReplacedOption { option, replacement } => {
                write!(f, "{option} is deprecated and was ignored, since {replacement} is given")
            }
            Self::DeprecatedBoolean { option, value, meaning } => {
                write!(f, "{option}={value:?} is deprecated; write {option}={meaning} instead")
            }
            Self::UnknownCompressor(name) => {
                write!(
                    f,
                    "the compressor {name:?} is unknown and was left out; use snappy, zlib or zstd"
                )
            }
            Self::EmptyOption => {
                f.write_str("an & with no option beside it was ignored; remove it")
            }
            Self::ManyHosts(count) => write!(
                f,
                "{count} hosts are listed, and a replica set has at most {MAX_SET_MEMBERS} members; list \
                 a few of them, the others are found"
            ),
        }
    }
}
