//! The table of options: the name of each, the field it fills, and how its text is read.
//!
//! A new option is one field in `Options` and one line here; reading, writing, warnings about
//! repetition and bad values follow from the line.

use crate::codec::{
    ACKNOWLEDGEMENT, APP_NAME, BITS_32, BITS_64, BOOLEAN, COMPRESSORS, COUNT, COUNT_LIMIT,
    Expected, MONITORING_MODE, Notes, PORT, POSITIVE_COUNT, PROPERTIES, READ_PREFERENCE, SECRET,
    SERVICE_NAME, STALENESS, TAGS, TEXT, ZLIB_LEVEL, milliseconds, milliseconds_limit,
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
    ($name:literal, $field:ident, $codec:expr) => {
        define!($name, $field, $codec, secret: false)
    };
    ($name:literal, $field:ident, $codec:expr, secret: $secret:literal) => {
        Definition {
            name: $name,
            secret: $secret,
            list: false,
            read: |options, text, notes| {
                options.$field = Some(($codec.read)(text, notes)?);
                Ok(())
            },
            write: |options| options.$field.iter().map($codec.write).collect(),
        }
    };
}

/// Every option, in the order in which they are written.
pub(crate) static DEFINITIONS: &[Definition] = &[
    define!("replicaSet", replica_set, TEXT),
    define!("directConnection", direct_connection, BOOLEAN),
    define!("loadBalanced", load_balanced, BOOLEAN),
    define!("appname", app_name, APP_NAME),
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
    define!("authMechanismProperties", auth_mechanism_properties, PROPERTIES),
    define!("compressors", compressors, COMPRESSORS),
    define!("connectTimeoutMS", connect_timeout, milliseconds_limit::<BITS_32>()),
    define!("enableOverloadRetargeting", enable_overload_retargeting, BOOLEAN),
    define!("heartbeatFrequencyMS", heartbeat_frequency, milliseconds::<500>()),
    define!("journal", journal, BOOLEAN),
    define!("localThresholdMS", local_threshold, milliseconds::<0>()),
    define!("maxAdaptiveRetries", max_adaptive_retries, COUNT),
    define!("maxConnecting", max_connecting, POSITIVE_COUNT),
    define!("maxIdleTimeMS", max_idle_time, milliseconds_limit::<BITS_32>()),
    define!("maxPoolSize", max_pool_size, COUNT_LIMIT),
    define!("maxStalenessSeconds", max_staleness, STALENESS),
    define!("minPoolSize", min_pool_size, COUNT),
    define!("proxyHost", proxy_host, TEXT),
    define!("proxyPort", proxy_port, PORT),
    define!("proxyUsername", proxy_username, TEXT),
    define!("proxyPassword", proxy_password, SECRET, secret: true),
    define!("readConcernLevel", read_concern_level, TEXT),
    define!("readPreference", read_preference, READ_PREFERENCE),
    Definition {
        name: "readPreferenceTags",
        secret: false,
        list: true,
        read: |options, text, notes| {
            options.read_preference_tags.push((TAGS.read)(text, notes)?);
            Ok(())
        },
        write: |options| options.read_preference_tags.iter().map(TAGS.write).collect(),
    },
    define!("retryReads", retry_reads, BOOLEAN),
    define!("retryWrites", retry_writes, BOOLEAN),
    define!("serverMonitoringMode", server_monitoring_mode, MONITORING_MODE),
    define!("serverSelectionTimeoutMS", server_selection_timeout, milliseconds::<0>()),
    define!("serverSelectionTryOnce", server_selection_try_once, BOOLEAN),
    define!("socketTimeoutMS", socket_timeout, milliseconds_limit::<BITS_32>()),
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
    define!("srvMaxHosts", srv_max_hosts, COUNT_LIMIT),
    define!("srvServiceName", srv_service_name, SERVICE_NAME),
    define!("timeoutMS", timeout, milliseconds_limit::<BITS_32>()),
    define!("tls", tls, BOOLEAN),
    define!("tlsAllowInvalidCertificates", tls_allow_invalid_certificates, BOOLEAN),
    define!("tlsAllowInvalidHostnames", tls_allow_invalid_hostnames, BOOLEAN),
    define!("tlsCAFile", tls_ca_file, TEXT),
    define!("tlsCertificateKeyFile", tls_certificate_key_file, TEXT),
    define!(
        "tlsCertificateKeyFilePassword",
        tls_certificate_key_file_password,
        SECRET,
        secret: true
    ),
    define!(
        "tlsDisableCertificateRevocationCheck",
        tls_disable_certificate_revocation_check,
        BOOLEAN
    ),
    define!("tlsDisableOCSPEndpointCheck", tls_disable_ocsp_endpoint_check, BOOLEAN),
    define!("tlsInsecure", tls_insecure, BOOLEAN),
    define!("w", w, ACKNOWLEDGEMENT),
    define!("wTimeoutMS", w_timeout, milliseconds_limit::<BITS_64>()),
    define!("waitQueueTimeoutMS", wait_queue_timeout, milliseconds::<1>()),
    define!("zlibCompressionLevel", zlib_compression_level, ZLIB_LEVEL),
];
