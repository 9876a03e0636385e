//! The table of options: the name of each, the field it fills, and how its text is read.
//!
//! A new option is one field in `Options` and one line here; reading, writing, warnings about
//! repetition and bad values follow from the line.

use crate::codec::{
    Acknowledgement, AppName, BITS_32, BITS_64, Boolean, Codec, Compressors, Count, CountLimit,
    Expected, Milliseconds, MillisecondsLimit, Mode, MonitoringMode, Notes, Port, PositiveCount,
    Properties, SecretText, ServiceName, Staleness, Tags, Text, ZlibLevel,
};
use crate::credential::Mechanism;
use crate::error::ParseError;
use crate::options::Options;
use crate::srv;

/// What becomes of a value that an option cannot have.
pub(crate) enum Rejection {
    /// The option is ignored with a warning that says what was expected.
    Ignore(Expected),
    /// The whole string is refused, because guessing would be unsafe.
    Refuse(ParseError),
}

impl From<Expected> for Rejection {
    fn from(expected: Expected) -> Self {
        Self::Ignore(expected)
    }
}

/// One option.
pub(crate) struct Definition {
    /// The name as the specification spells it.
    pub(crate) name: &'static str,
    /// Whether its value must not be shown.
    pub(crate) secret: bool,
    /// Whether it may be repeated, each value adding to a list.
    pub(crate) list: bool,
    /// Puts the value of a text into its field.
    pub(crate) read: fn(&mut Options, &str, &mut Notes<'_>) -> Result<(), Rejection>,
    /// The texts that would give the field its value: none if it is unset, several for a list.
    pub(crate) write: fn(&Options) -> Vec<String>,
}

/// The definition of a name in any case.
pub(crate) fn find(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.iter().find(|definition| definition.name.eq_ignore_ascii_case(name))
}

/// An old or second name of an option.
pub(crate) struct Alias {
    pub(crate) name: &'static str,
    pub(crate) replacement: &'static str,
    pub(crate) deprecated: bool,
}

/// `gssapiServiceName` is no plain alias (its value is one property of several) and is handled
/// where options are read.
pub(crate) const ALIASES: &[Alias] = &[
    Alias { name: "ssl", replacement: "tls", deprecated: false },
    Alias { name: "j", replacement: "journal", deprecated: true },
    Alias { name: "wtimeout", replacement: "wTimeoutMS", deprecated: true },
];

macro_rules! define {
    ($name:literal, $field:ident, $codec:ty) => {
        define!($name, $field, $codec, secret: false)
    };
    ($name:literal, $field:ident, $codec:ty, secret: $secret:literal) => {
        Definition {
            name: $name,
            secret: $secret,
            list: false,
            read: |options, text, notes| {
                options.$field = Some(<$codec>::read(text, notes)?);
                Ok(())
            },
            write: |options| options.$field.iter().map(<$codec>::write).collect(),
        }
    };
}

/// Every option, in the order in which they are written.
pub(crate) static DEFINITIONS: &[Definition] = &[
    define!("replicaSet", replica_set, Text),
    define!("directConnection", direct_connection, Boolean),
    define!("loadBalanced", load_balanced, Boolean),
    define!("appname", app_name, AppName),
    Definition {
        name: "authMechanism",
        secret: false,
        list: false,
        read: |options, text, _| match Mechanism::from_name(text) {
            Some(mechanism) => {
                options.auth_mechanism = Some(mechanism);
                Ok(())
            }
            None => Err(Rejection::Refuse(ParseError::UnknownMechanism(text.to_owned()))),
        },
        write: |options| options.auth_mechanism.iter().map(ToString::to_string).collect(),
    },
    Definition {
        name: "authSource",
        secret: false,
        list: false,
        read: |options, text, _| {
            if text.is_empty() {
                return Err(Rejection::Refuse(ParseError::EmptyAuthSource));
            }
            options.auth_source = Some(text.to_owned());
            Ok(())
        },
        write: |options| options.auth_source.iter().cloned().collect(),
    },
    define!("authMechanismProperties", auth_mechanism_properties, Properties),
    define!("compressors", compressors, Compressors),
    define!("connectTimeoutMS", connect_timeout, MillisecondsLimit<BITS_32>),
    define!("enableOverloadRetargeting", enable_overload_retargeting, Boolean),
    define!("heartbeatFrequencyMS", heartbeat_frequency, Milliseconds<500>),
    define!("journal", journal, Boolean),
    define!("localThresholdMS", local_threshold, Milliseconds<0>),
    define!("maxAdaptiveRetries", max_adaptive_retries, Count),
    define!("maxConnecting", max_connecting, PositiveCount),
    define!("maxIdleTimeMS", max_idle_time, MillisecondsLimit<BITS_32>),
    define!("maxPoolSize", max_pool_size, CountLimit),
    define!("maxStalenessSeconds", max_staleness, Staleness),
    define!("minPoolSize", min_pool_size, Count),
    define!("proxyHost", proxy_host, Text),
    define!("proxyPort", proxy_port, Port),
    define!("proxyUsername", proxy_username, Text),
    define!("proxyPassword", proxy_password, SecretText, secret: true),
    define!("readConcernLevel", read_concern_level, Text),
    define!("readPreference", read_preference, Mode),
    Definition {
        name: "readPreferenceTags",
        secret: false,
        list: true,
        read: |options, text, notes| {
            options.read_preference_tags.push(Tags::read(text, notes)?);
            Ok(())
        },
        write: |options| options.read_preference_tags.iter().map(Tags::write).collect(),
    },
    define!("retryReads", retry_reads, Boolean),
    define!("retryWrites", retry_writes, Boolean),
    define!("serverMonitoringMode", server_monitoring_mode, MonitoringMode),
    define!("serverSelectionTimeoutMS", server_selection_timeout, Milliseconds<0>),
    define!("serverSelectionTryOnce", server_selection_try_once, Boolean),
    define!("socketTimeoutMS", socket_timeout, MillisecondsLimit<BITS_32>),
    Definition {
        name: "srvAllowedHostsSuffix",
        secret: false,
        list: false,
        read: |options, text, _| {
            let suffix = srv::normalise_suffix(text).map_err(Rejection::Refuse)?;
            options.srv_allowed_hosts_suffix = Some(suffix);
            Ok(())
        },
        write: |options| options.srv_allowed_hosts_suffix.iter().cloned().collect(),
    },
    define!("srvMaxHosts", srv_max_hosts, CountLimit),
    define!("srvServiceName", srv_service_name, ServiceName),
    define!("timeoutMS", timeout, MillisecondsLimit<BITS_32>),
    define!("tls", tls, Boolean),
    define!("tlsAllowInvalidCertificates", tls_allow_invalid_certificates, Boolean),
    define!("tlsAllowInvalidHostnames", tls_allow_invalid_hostnames, Boolean),
    define!("tlsCAFile", tls_ca_file, Text),
    define!("tlsCertificateKeyFile", tls_certificate_key_file, Text),
    define!(
        "tlsCertificateKeyFilePassword",
        tls_certificate_key_file_password,
        SecretText,
        secret: true
    ),
    define!(
        "tlsDisableCertificateRevocationCheck",
        tls_disable_certificate_revocation_check,
        Boolean
    ),
    define!("tlsDisableOCSPEndpointCheck", tls_disable_ocsp_endpoint_check, Boolean),
    define!("tlsInsecure", tls_insecure, Boolean),
    define!("w", w, Acknowledgement),
    define!("wTimeoutMS", w_timeout, MillisecondsLimit<BITS_64>),
    define!("waitQueueTimeoutMS", wait_queue_timeout, Milliseconds<1>),
    define!("zlibCompressionLevel", zlib_compression_level, ZlibLevel),
];
