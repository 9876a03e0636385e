//! Word to the host that the log has grown.
//!
//! The host pushes new entries to followers and wakes the syncing thread. That takes as long as the write itself, and no
//! other writer should wait for it: the word is given when the write lock is free again.

use quorate_protocol::OpTimeAndWallTime;

use crate::node::Node;
use crate::replication::Author;

/// The entries of a writer that the host has yet to hear of. It hears of them when this is dropped, at the latest.
pub(crate) struct Announcement<'n> {
    node: &'n Node,
    appended: Option<(OpTimeAndWallTime, Author)>,
}

impl<'n> Announcement<'n> {
    pub(super) fn new(node: &'n Node) -> Self {
        Self { node, appended: None }
    }

    /// The log has grown up to this entry. The host hears at once of what was appended before: a writer that commits
    /// again and again would keep it waiting.
    pub(crate) fn add(&mut self, last: OpTimeAndWallTime, author: Author) {
        self.tell();
        self.appended = Some((last, author));
    }

    /// Tells the host now.
    pub(crate) fn tell(&mut self) {
        if let (Some((last, author)), Some(replication)) =
            (self.appended.take(), self.node.replication())
        {
            replication.tell_appended(last, author);
        }
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}
