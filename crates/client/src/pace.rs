//! The time and the chance by which `with_transaction` spaces its attempts, as something that can be
//! handed in.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use quorate_protocol::MonotonicTime;

/// A wait that ends by itself.
pub type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that never goes back, a way to let time pass on it, and a source of chance.
pub trait Pace: Send + Sync + fmt::Debug {
    /// The time.
    fn now(&self) -> MonotonicTime;

    /// A number that is evenly spread over `[0, 1)`.
    fn chance(&self) -> f64;

    /// Ends once this much time has passed on this clock.
    fn pause(&self, interval: Duration) -> Pause;
}
