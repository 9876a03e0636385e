//! How a pool is set up: "Connection Pool Options" in the pooling specification.

use std::time::Duration;

/// `maxPoolSize` where the user says nothing.
pub const DEFAULT_MAX_POOL_SIZE: usize = 100;

/// `maxConnecting` where the user says nothing.
pub const DEFAULT_MAX_CONNECTING: usize = 2;

/// How long the pool rests after it failed to establish a connection in the background.
pub const DEFAULT_MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// The options of a pool. All pools of a client share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// `maxPoolSize`; `None` is without limit.
    pub max_pool_size: Option<usize>,
    /// `minPoolSize`: how many connections are kept even if no caller asks for them.
    pub min_pool_size: usize,
    /// `maxIdleTimeMS`; `None` is without limit.
    pub max_idle_time: Option<Duration>,
    /// `maxConnecting`: how many connections are established at once.
    pub max_connecting: usize,
    /// `waitQueueTimeoutMS`; `None` is without limit.
    pub wait_queue_timeout: Option<Duration>,
    /// How long the pool rests after a failure in the background. `None` turns all work in the
    /// background off: no population, and perished connections are closed only where a check-out
    /// or check-in meets them.
    pub maintenance_interval: Option<Duration>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            max_pool_size: Some(DEFAULT_MAX_POOL_SIZE),
            min_pool_size: 0,
            max_idle_time: None,
            max_connecting: DEFAULT_MAX_CONNECTING,
            wait_queue_timeout: None,
            maintenance_interval: Some(DEFAULT_MAINTENANCE_INTERVAL),
        }
    }
}

impl PoolOptions {
    /// Whether the options go together.
    ///
    /// # Errors
    ///
    /// If they do not. The error says which.
    pub fn check(&self) -> Result<(), PoolOptionsError> {
        if self.max_connecting == 0 {
            return Err(PoolOptionsError::NoneConnecting);
        }
        match self.max_pool_size {
            Some(max) if self.min_pool_size > max => {
                Err(PoolOptionsError::MinOverMax { min: self.min_pool_size, max })
            }
            _ => Ok(()),
        }
    }
}

/// Options that contradict each other. Their author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolOptionsError {
    /// No connection could ever be made.
    #[error("maxConnecting must be at least 1")]
    NoneConnecting,
    /// More must exist than may exist.
    #[error("minPoolSize={min} is more than maxPoolSize={max}; lower the one or raise the other")]
    MinOverMax {
        /// `minPoolSize`.
        min: usize,
        /// `maxPoolSize`.
        max: usize,
    },
}
