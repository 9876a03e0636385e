//! How monitors learn of changes.

use std::fmt;

/// `serverMonitoringMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ServerMonitoringMode {
    /// Stream, except on function platforms.
    #[default]
    Auto,
    /// Stream where the server can.
    Stream,
    /// Ask at intervals.
    Poll,
}

impl ServerMonitoringMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Stream, Self::Poll];

    /// The name in connection strings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Stream => "stream",
            Self::Poll => "poll",
        }
    }
}

impl fmt::Display for ServerMonitoringMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
