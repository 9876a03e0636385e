//! The options of a connection string as typed values (the specification "URI Options").
//!
//! Every field is `None` when the string does not give the option, so that the client can
//! apply defaults of its own and tell "not given" from "given as the default". Which texts are
//! accepted is decided in `codec`; which combinations are, in `conflicts`.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use quorate_protocol::{ReadPreference, ReadPreferenceMode, ServerMonitoringMode, TagSet};

use crate::credential::{Mechanism, MechanismProperties};
use crate::secret::Secret;

/// A bound that zero (or minus one, for staleness) switches off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
    /// No bound at all.
    Unlimited,
    /// This much and no more.
    AtMost(T),
}

impl<T: Copy> Limit<T> {
    /// The bound, or `None` if there is none.
    pub fn bound(self) -> Option<T> {
        match self {
            Self::Unlimited => None,
            Self::AtMost(bound) => Some(bound),
        }
    }
}

/// How many members must have a write before it is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteAcknowledgement {
    /// This many members; zero asks for no acknowledgement.
    Members(u32),
    /// A majority of the voting members.
    Majority,
    /// The rule of this name in the set's configuration.
    Custom(String),
}

quorate_protocol::named! {
    /// How wire messages may be compressed.
    ///
    /// [`name`](Self::name) is the name sent in the handshake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Compressor {
        /// snappy
        Snappy = "snappy",
        /// zlib
        Zlib = "zlib",
        /// zstd
        Zstd = "zstd",
    }
}

/// Everything that can stand after the question mark. `None` (or an empty list) means "not given".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `appname`: sent in the handshake; at most 128 bytes.
    pub app_name: Option<String>,
    /// `authMechanism`. The credential built from it is
    /// [`ConnectionString::credential`](crate::ConnectionString::credential).
    pub auth_mechanism: Option<Mechanism>,
    /// `authMechanismProperties`, as written.
    pub auth_mechanism_properties: Option<MechanismProperties>,
    /// `authSource`.
    pub auth_source: Option<String>,
    /// `compressors`, those we know, the preferred one first.
    pub compressors: Option<Vec<Compressor>>,
    /// `connectTimeoutMS`; 0 means that a connection attempt may take for ever.
    pub connect_timeout: Option<Limit<Duration>>,
    /// `directConnection`.
    pub direct_connection: Option<bool>,
    /// `enableOverloadRetargeting`.
    pub enable_overload_retargeting: Option<bool>,
    /// `heartbeatFrequencyMS`; at least 500 ms.
    pub heartbeat_frequency: Option<Duration>,
    /// `journal`, formerly `j`.
    pub journal: Option<bool>,
    /// `loadBalanced`.
    pub load_balanced: Option<bool>,
    /// `localThresholdMS`; 0 means that only the fastest server will do.
    pub local_threshold: Option<Duration>,
    /// `maxAdaptiveRetries`.
    pub max_adaptive_retries: Option<u32>,
    /// `maxConnecting`.
    pub max_connecting: Option<NonZeroU32>,
    /// `maxIdleTimeMS`; 0 means that a connection may idle for ever.
    pub max_idle_time: Option<Limit<Duration>>,
    /// `maxPoolSize`; 0 means no maximum.
    pub max_pool_size: Option<Limit<NonZeroU32>>,
    /// `maxStalenessSeconds`; -1 means no maximum, otherwise at least 90 s.
    pub max_staleness: Option<Limit<Duration>>,
    /// `minPoolSize`.
    pub min_pool_size: Option<u32>,
    /// `proxyHost`: a SOCKS5 proxy.
    pub proxy_host: Option<String>,
    /// `proxyPort`; 1080 if not given.
    pub proxy_port: Option<NonZeroU16>,
    /// `proxyUsername`.
    pub proxy_username: Option<String>,
    /// `proxyPassword`.
    pub proxy_password: Option<Secret>,
    /// `readConcernLevel`: any text, because servers may learn new levels.
    pub read_concern_level: Option<String>,
    /// `readPreference`.
    pub read_preference: Option<ReadPreferenceMode>,
    /// `readPreferenceTags`, in order of preference; an empty set suits every member.
    pub read_preference_tags: Vec<TagSet>,
    /// `replicaSet`.
    pub replica_set: Option<String>,
    /// `retryReads`.
    pub retry_reads: Option<bool>,
    /// `retryWrites`.
    pub retry_writes: Option<bool>,
    /// `serverMonitoringMode`.
    pub server_monitoring_mode: Option<ServerMonitoringMode>,
    /// `serverSelectionTimeoutMS`; 0 means: take what is there now or fail at once.
    pub server_selection_timeout: Option<Duration>,
    /// `serverSelectionTryOnce`; of use to single-threaded clients alone.
    pub server_selection_try_once: Option<bool>,
    /// `socketTimeoutMS`; 0 means no timeout. Superseded by `timeoutMS`.
    pub socket_timeout: Option<Limit<Duration>>,
    /// `srvAllowedHostsSuffix`: replaces the parent-domain rule for SRV answers. Lower-case, without
    /// dots around it.
    pub srv_allowed_hosts_suffix: Option<String>,
    /// `srvMaxHosts`; 0 means no maximum.
    pub srv_max_hosts: Option<Limit<NonZeroU32>>,
    /// `srvServiceName`.
    pub srv_service_name: Option<String>,
    /// `timeoutMS`: the time an operation may take in all; 0 means for ever.
    pub timeout: Option<Limit<Duration>>,
    /// `tls`, also spelt `ssl`. Whether TLS is used in the end is
    /// [`ConnectionString::tls_enabled`](crate::ConnectionString::tls_enabled).
    pub tls: Option<bool>,
    /// `tlsAllowInvalidCertificates`.
    pub tls_allow_invalid_certificates: Option<bool>,
    /// `tlsAllowInvalidHostnames`.
    pub tls_allow_invalid_hostnames: Option<bool>,
    /// `tlsCAFile`.
    pub tls_ca_file: Option<String>,
    /// `tlsCertificateKeyFile`.
    pub tls_certificate_key_file: Option<String>,
    /// `tlsCertificateKeyFilePassword`.
    pub tls_certificate_key_file_password: Option<Secret>,
    /// `tlsDisableCertificateRevocationCheck`.
    pub tls_disable_certificate_revocation_check: Option<bool>,
    /// `tlsDisableOCSPEndpointCheck`.
    pub tls_disable_ocsp_endpoint_check: Option<bool>,
    /// `tlsInsecure`: neither the certificate nor the host name is checked.
    pub tls_insecure: Option<bool>,
    /// `w`.
    pub w: Option<WriteAcknowledgement>,
    /// `wTimeoutMS`, formerly `wtimeout`; 0 means no timeout. Superseded by `timeoutMS`.
    pub w_timeout: Option<Limit<Duration>>,
    /// `waitQueueTimeoutMS`. Superseded by `timeoutMS`.
    pub wait_queue_timeout: Option<Duration>,
    /// `zlibCompressionLevel`: -1 (the compressor's default) to 9.
    pub zlib_compression_level: Option<i8>,
}

impl Options {
    /// The read preference that `readPreference`, `readPreferenceTags` and `maxStalenessSeconds` make.
    pub fn whole_read_preference(&self) -> ReadPreference {
        ReadPreference {
            tag_sets: self.read_preference_tags.clone(),
            max_staleness: self.max_staleness.and_then(Limit::bound),
            ..ReadPreference::new(self.read_preference.unwrap_or_default())
        }
    }
}
