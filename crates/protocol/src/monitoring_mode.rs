//! How monitors learn of changes.

crate::named! {
    /// `serverMonitoringMode`.
    ///
    /// [`name`](Self::name) is the name in connection strings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub enum ServerMonitoringMode {
        /// Stream, except on function platforms.
        #[default]
        Auto = "auto",
        /// Stream where the server can.
        Stream = "stream",
        /// Ask at intervals.
        Poll = "poll",
    }
}
