//! The options of a client, fixed at its start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_client_session::{
    DEFAULT_MAX_ADAPTIVE_RETRIES, DEFAULT_SERVER_SELECTION_TIMEOUT, WriteConcern, compressors,
};
use quorate_connection_string::{ConnectionString, Credential, Limit, Options};
use quorate_protocol::{ReadPreference, ServerAddress};
use quorate_server_discovery::DiscoveryOptions;
use quorate_wire::CompressorId;

use crate::discovery::EventListener;
use crate::handshake::ServerApi;
use crate::metadata::DriverInfo;
use crate::pace::Pace;
use crate::pool::PoolOptions;
use crate::tap::Tap;
use crate::tls::TlsOptions;

/// How many characters of a document log messages carry by default.
pub const DEFAULT_LOGGED_DOCUMENT_LENGTH: usize = 1000;

/// The options of a client. Start from a connection string and change what it cannot say.
#[derive(Clone)]
pub struct ClientOptions {
    /// How to find the servers.
    pub discovery: DiscoveryOptions,
    /// How to keep connections.
    pub pool: PoolOptions,
    /// `serverSelectionTimeoutMS`.
    pub server_selection_timeout: Duration,
    /// `socketTimeoutMS`: how long to wait for a reply; `None` is without limit.
    pub socket_timeout: Option<Duration>,
    /// `timeoutMS`: how long a whole operation may take, retries included; `None` is without limit.
    pub timeout: Option<Duration>,
    /// The user that logs in, and how.
    pub credential: Option<Credential>,
    /// TLS; `None` for plain text.
    pub tls: Option<TlsOptions>,
    /// `appName`.
    pub app_name: Option<String>,
    /// `compressors`, the preferred one first.
    pub compressors: Vec<CompressorId>,
    /// `zlibCompressionLevel`.
    pub zlib_level: Option<i32>,
    /// `hostMap`: advertised name to reachable address.
    pub host_map: BTreeMap<ServerAddress, ServerAddress>,
    /// `proxyHost`: not supported. A client with one is refused, for going past it may be what the
    /// user wanted to avoid.
    pub proxy_host: Option<String>,
    /// The read preference of reads that give none.
    pub read_preference: ReadPreference,
    /// The read concern of reads.
    pub read_concern: Option<String>,
    /// The write concern of writes.
    pub write_concern: WriteConcern,
    /// `retryReads`.
    pub retry_reads: bool,
    /// `retryWrites`.
    pub retry_writes: bool,
    /// `maxAdaptiveRetries`: how often an operation is sent again to overloaded servers.
    pub max_adaptive_retries: u32,
    /// `enableOverloadRetargeting`: whether another server is tried after an overloaded one.
    pub enable_overload_retargeting: bool,
    /// The stable API, if it is declared.
    pub server_api: Option<ServerApi>,
    /// Libraries around this client that want to be known.
    pub wrappers: Vec<DriverInfo>,
    /// The database after the slash.
    pub default_database: Option<String>,
    /// How many characters of a command or reply a log message carries. Unless it is set,
    /// `MONGODB_LOG_MAX_DOCUMENT_LENGTH` of the environment says so, or else it is
    /// [`DEFAULT_LOGGED_DOCUMENT_LENGTH`].
    pub logged_document_length: Option<usize>,
    /// Hears every event.
    pub listener: Option<EventListener>,
    /// The time and the chance of `Session::with_transaction`, for tests; `None` is the runtime's
    /// time and the client's own chance.
    pub pace: Option<Arc<dyn Pace>>,
    /// Sees all that the discovery core is given, so that it can be recorded.
    pub tap: Option<Arc<dyn Tap>>,
}

impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("discovery", &self.discovery)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl ClientOptions {
    /// What a connection string says.
    pub fn from_connection_string(string: &ConnectionString) -> Self {
        let options = string.options();
        Self {
            discovery: DiscoveryOptions::from_connection_string(string),
            pool: pool_options(options),
            server_selection_timeout: options
                .server_selection_timeout
                .unwrap_or(DEFAULT_SERVER_SELECTION_TIMEOUT),
            socket_timeout: options.socket_timeout.and_then(Limit::bound),
            timeout: options.timeout.and_then(Limit::bound),
            credential: string.credential().cloned(),
            tls: TlsOptions::from_connection_string(string),
            app_name: options.app_name.clone(),
            compressors: compressors(options),
            zlib_level: options.zlib_compression_level.map(i32::from),
            host_map: BTreeMap::new(),
            proxy_host: options.proxy_host.clone(),
            read_preference: options.whole_read_preference(),
            read_concern: options.read_concern_level.clone(),
            write_concern: WriteConcern::from_options(options),
            retry_reads: options.retry_reads.unwrap_or(true),
            retry_writes: options.retry_writes.unwrap_or(true),
            max_adaptive_retries: options
                .max_adaptive_retries
                .unwrap_or(DEFAULT_MAX_ADAPTIVE_RETRIES),
            enable_overload_retargeting: options.enable_overload_retargeting.unwrap_or(false),
            server_api: None,
            wrappers: Vec::new(),
            default_database: string.default_database().map(str::to_owned),
            logged_document_length: None,
            listener: None,
            pace: None,
            tap: None,
        }
    }
}

fn pool_options(options: &Options) -> PoolOptions {
    let defaults = PoolOptions::default();
    PoolOptions {
        max_pool_size: options
            .max_pool_size
            .map_or(defaults.max_pool_size, |limit| limit.bound().map(|most| most.get() as usize)),
        min_pool_size: options.min_pool_size.map_or(0, |least| least as usize),
        max_idle_time: options.max_idle_time.and_then(Limit::bound),
        max_connecting: options
            .max_connecting
            .map_or(defaults.max_connecting, |most| most.get() as usize),
        wait_queue_timeout: options.wait_queue_timeout.filter(|limit| !limit.is_zero()),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(uri: &str) -> ClientOptions {
        ClientOptions::from_connection_string(&ConnectionString::parse(uri).unwrap())
    }

    #[test]
    fn a_connection_string_sets_every_part() {
        let options = options(
            "mongodb://a,b/app?maxPoolSize=0&minPoolSize=2&maxConnecting=5&retryWrites=false\
             &serverSelectionTimeoutMS=7&compressors=zstd,snappy&w=majority&journal=true\
             &readPreference=nearest&tls=true&tlsInsecure=true&waitQueueTimeoutMS=9",
        );
        assert_eq!(options.pool.max_pool_size, None);
        assert_eq!((options.pool.min_pool_size, options.pool.max_connecting), (2, 5));
        assert_eq!(options.pool.wait_queue_timeout, Some(Duration::from_millis(9)));
        assert!(!options.retry_writes && options.retry_reads);
        assert_eq!(options.server_selection_timeout, Duration::from_millis(7));
        assert_eq!(options.compressors, [CompressorId::Zstd, CompressorId::Snappy]);
        let concern = options.write_concern.document().unwrap();
        assert_eq!(concern, bson::rawdoc! { "w": "majority", "j": true });
        assert!(options.tls.unwrap().allow_invalid_hostnames);
        assert_eq!(options.default_database.as_deref(), Some("app"));
    }

    #[test]
    fn nothing_said_is_left_to_the_server() {
        let options = options("mongodb://a");
        assert!(options.write_concern.is_acknowledged());
        assert_eq!(options.write_concern.document(), None);
        assert_eq!(options.pool, PoolOptions::default());
        assert!(options.tls.is_none());
        let unacknowledged = self::options("mongodb://a/?w=0");
        assert!(!unacknowledged.write_concern.is_acknowledged());
    }
}
