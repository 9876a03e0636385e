//! The options of a client, fixed at its start.
//!
//! Options of a connection string that would be unsafe or misleading to ignore, and that a client on
//! the standard library alone cannot honour, are refused with a next step. The rest of the string is
//! read by `quorate-connection-string`, and its discovery part by `quorate-server-discovery`.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use quorate_authentication::UnsupportedMechanism;
use quorate_client_session::{
    DEFAULT_MAX_ADAPTIVE_RETRIES, DEFAULT_SERVER_SELECTION_TIMEOUT, WriteConcern, compressors,
};
use quorate_connection_string::{ConnectionString, Credential, Limit, ParseError};
use quorate_protocol::ReadPreference;
use quorate_server_discovery::{DiscoveryOptions, OptionsError, SOCKET_CHECK_INTERVAL, Threading};
use quorate_tls_config::{TlsError, TlsOptions};
use quorate_wire::CompressorId;

/// The options of a client, fixed at its start.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The options of the discovery core: seeds, set name, `connectTimeoutMS`, `heartbeatFrequencyMS` and so on.
    /// Its threading is always taken as [`Threading::Single`].
    pub discovery: DiscoveryOptions,
    /// `appname`.
    pub app_name: Option<String>,
    /// `serverSelectionTryOnce`: scan once more when nothing is suitable, then give up. Selection
    /// takes as long as one scan at most. Otherwise it goes on for `server_selection_timeout`, plus
    /// the time of one scan.
    pub server_selection_try_once: bool,
    /// `serverSelectionTimeoutMS`; without effect while `server_selection_try_once` is true. Zero
    /// means: take what there is after one scan.
    pub server_selection_timeout: Duration,
    /// `socketCheckIntervalMS`: a connection that was idle this long is pinged before it is used.
    pub socket_check_interval: Duration,
    /// `socketTimeoutMS`: how long to wait for the reply to an operation; `None` is for ever.
    pub socket_timeout: Option<Duration>,
    /// The read preference of `find`, `count` and `aggregate`.
    pub read_preference: ReadPreference,
    /// `readConcernLevel` of the same.
    pub read_concern_level: Option<String>,
    /// The write concern of `insert`, `update` and `delete`.
    pub write_concern: WriteConcern,
    /// `retryReads`: try a read once more after an error that a failover may explain.
    pub retry_reads: bool,
    /// `retryWrites`: send a write again that an overloaded server turned away. Other errors do not let this
    /// client repeat a write.
    pub retry_writes: bool,
    /// `maxAdaptiveRetries`: how often what an overloaded server turned away is sent again.
    pub max_adaptive_retries: u32,
    /// `enableOverloadRetargeting`: whether such a retry avoids the server that was overloaded.
    pub enable_overload_retargeting: bool,
    /// `compressors`, the preferred one first.
    pub compressors: Vec<CompressorId>,
    /// `zlibCompressionLevel`.
    pub zlib_compression_level: Option<i8>,
    /// The user that logs in, and how.
    pub credential: Option<Credential>,
    /// TLS; `None` for plain text.
    pub tls: Option<TlsOptions>,
    /// Feeds every random choice. By default the operating system's.
    pub seed: u64,
}

impl ClientOptions {
    /// The defaults with these discovery options.
    pub fn new(discovery: DiscoveryOptions) -> Self {
        Self {
            discovery: DiscoveryOptions { threading: Threading::Single, ..discovery },
            app_name: None,
            server_selection_try_once: true,
            server_selection_timeout: DEFAULT_SERVER_SELECTION_TIMEOUT,
            socket_check_interval: SOCKET_CHECK_INTERVAL,
            socket_timeout: None,
            read_preference: ReadPreference::PRIMARY,
            read_concern_level: None,
            write_concern: WriteConcern::default(),
            retry_reads: true,
            retry_writes: true,
            max_adaptive_retries: DEFAULT_MAX_ADAPTIVE_RETRIES,
            enable_overload_retargeting: false,
            compressors: Vec::new(),
            zlib_compression_level: None,
            credential: None,
            tls: None,
            seed: RandomState::new().hash_one(0_u8),
        }
    }

    /// What a connection string says.
    ///
    /// # Errors
    ///
    /// If it asks for something that this client does not have.
    pub fn from_connection_string(string: &ConnectionString) -> Result<Self, StartError> {
        let options = string.options();
        refuse_what_is_missing(string)?;
        let defaults = Self::new(DiscoveryOptions::from_connection_string(string));
        Ok(Self {
            app_name: options.app_name.clone(),
            server_selection_try_once: options
                .server_selection_try_once
                .unwrap_or(defaults.server_selection_try_once),
            server_selection_timeout: options
                .server_selection_timeout
                .unwrap_or(defaults.server_selection_timeout),
            socket_timeout: options.socket_timeout.and_then(Limit::bound),
            read_preference: options.whole_read_preference(),
            read_concern_level: options.read_concern_level.clone(),
            write_concern: WriteConcern::from_options(options),
            retry_reads: options.retry_reads.unwrap_or(defaults.retry_reads),
            retry_writes: options.retry_writes.unwrap_or(defaults.retry_writes),
            max_adaptive_retries: options
                .max_adaptive_retries
                .unwrap_or(defaults.max_adaptive_retries),
            enable_overload_retargeting: options
                .enable_overload_retargeting
                .unwrap_or(defaults.enable_overload_retargeting),
            compressors: compressors(options),
            zlib_compression_level: options.zlib_compression_level,
            credential: string.credential().cloned(),
            tls: TlsOptions::from_connection_string(string),
            ..defaults
        })
    }
}

impl ClientOptions {
    /// The same with seeds that DNS gave.
    #[cfg(feature = "srv")]
    pub(crate) fn with_seeds(
        string: &ConnectionString,
        seeds: Vec<quorate_protocol::ServerAddress>,
    ) -> Result<Self, StartError> {
        let mut options = Self::from_connection_string(string)?;
        options.discovery.seeds = seeds;
        Ok(options)
    }
}

/// Why there is no client. The author of the options is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The connection string cannot be read.
    #[error(transparent)]
    ConnectionString(#[from] ParseError),
    /// Options contradict each other.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The mechanism is not spoken.
    #[error(transparent)]
    Mechanism(#[from] UnsupportedMechanism),
    /// `for_uri` does no I/O, and the seeds of a `mongodb+srv://` string are in DNS.
    #[error("mongodb+srv:// needs DNS; use Client::connect")]
    UnresolvedSrv,
    /// DNS has no seeds to believe.
    #[cfg(feature = "srv")]
    #[error(transparent)]
    Resolve(#[from] quorate_seed_list::ResolveError),
    /// The connection string asks for something that this client does not have.
    #[error("the blocking client has no {feature}; {next_step}")]
    Missing {
        /// What it does not have.
        feature: &'static str,
        /// What to do instead.
        next_step: &'static str,
    },
}

/// Silence would send a password nowhere, plain text over a network, or an operation past its limit.
fn refuse_what_is_missing(string: &ConnectionString) -> Result<(), StartError> {
    let options = string.options();
    let missing = |feature, next_step| Err(StartError::Missing { feature, next_step });
    if options.load_balanced == Some(true) {
        return missing("load balancer mode", "use the asynchronous client");
    }
    if options.proxy_host.is_some() {
        return missing("SOCKS5", "use the asynchronous client, or remove proxyHost");
    }
    if options.timeout.is_some() {
        return missing("timeoutMS", "set socketTimeoutMS and connectTimeoutMS instead");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;
    use quorate_protocol::ReadPreferenceMode;

    fn read(uri: &str) -> Result<ClientOptions, StartError> {
        ClientOptions::from_connection_string(&uri.parse()?)
    }

    #[test]
    fn defaults_are_those_of_a_single_threaded_client() {
        let options = read("mongodb://a").unwrap();
        assert!(options.server_selection_try_once && options.retry_reads && options.retry_writes);
        assert!(options.max_adaptive_retries == 2 && !options.enable_overload_retargeting);
        assert_eq!(options.server_selection_timeout, Duration::from_secs(30));
        assert_eq!(options.socket_check_interval, Duration::from_secs(5));
        assert_eq!(options.socket_timeout, None);
        assert_eq!(options.discovery.heartbeat_frequency(), Duration::from_secs(60));
        assert_eq!(options.discovery.threading, Threading::Single);
        assert_eq!(options.write_concern.document(), None);
    }

    #[test]
    fn what_the_string_says_is_taken() {
        let options = read(
            "mongodb://a/?serverSelectionTryOnce=false&serverSelectionTimeoutMS=7\
             &socketTimeoutMS=250&readPreference=nearest&readPreferenceTags=dc:ny&appname=x\
             &retryReads=false&w=majority&journal=true&wTimeoutMS=5&readConcernLevel=local\
             &compressors=zlib,zstd&retryWrites=false&maxAdaptiveRetries=5\
             &enableOverloadRetargeting=true",
        )
        .unwrap();
        assert!(!options.server_selection_try_once && !options.retry_reads);
        assert!(!options.retry_writes && options.enable_overload_retargeting);
        assert_eq!(options.max_adaptive_retries, 5);
        assert_eq!(options.server_selection_timeout, Duration::from_millis(7));
        assert_eq!(options.socket_timeout, Some(Duration::from_millis(250)));
        assert_eq!(options.read_preference.mode, ReadPreferenceMode::Nearest);
        assert_eq!(options.read_preference.tag_sets.len(), 1);
        assert_eq!(options.app_name.as_deref(), Some("x"));
        assert_eq!(options.compressors, [CompressorId::Zlib, CompressorId::Zstd]);
        let concern = options.write_concern.document().unwrap();
        assert_eq!(concern, rawdoc! { "w": "majority", "j": true, "wtimeout": 5_i64 });
        assert_eq!(options.read_concern_level.as_deref(), Some("local"));
    }

    #[test]
    fn options_made_by_hand_are_held_to_the_same() {
        let with = |change: fn(&mut DiscoveryOptions)| {
            let mut discovery = DiscoveryOptions::with_seeds(["a".parse().unwrap()]);
            change(&mut discovery);
            crate::Client::new(ClientOptions::new(discovery)).map(drop)
        };
        assert!(with(|_| ()).is_ok());
        assert!(matches!(with(|o| o.load_balanced = true), Err(StartError::Missing { .. })));
        assert!(matches!(with(|o| o.stable_api = true), Err(StartError::Missing { .. })));
        let short = |o: &mut DiscoveryOptions| o.heartbeat_frequency = Some(Duration::ZERO);
        assert!(matches!(with(short), Err(StartError::Options(_))));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_a_next_step() {
        for (uri, feature) in [
            ("mongodb://ada:secret@a/?loadBalanced=true", "load balancer mode"),
            ("mongodb://a/?proxyHost=p", "SOCKS5"),
            ("mongodb://a/?timeoutMS=5", "timeoutMS"),
        ] {
            let error = read(uri).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("the blocking client has no {feature}; ")),
                "{error}"
            );
            assert!(!error.contains("secret"));
        }
    }
}
