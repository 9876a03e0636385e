//! Stages about the server itself: the caller knows the answers.

use bson::Document;

use super::output::check_known;
use crate::error::Result;

/// A stage that starts a pipeline with documents only the server knows.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SystemStage {
    /// `$collStats`, with its options.
    CollStats(Document),
    /// `$indexStats`.
    IndexStats,
    /// `$currentOp`, with its options.
    CurrentOp(Document),
    /// `$listSessions`, with its options.
    ListSessions(Document),
    /// `$listLocalSessions`, with its options.
    ListLocalSessions(Document),
}

impl SystemStage {
    /// The stage's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CollStats(_) => "$collStats",
            Self::IndexStats => "$indexStats",
            Self::CurrentOp(_) => "$currentOp",
            Self::ListSessions(_) => "$listSessions",
            Self::ListLocalSessions(_) => "$listLocalSessions",
        }
    }

    fn known_options(&self) -> &'static [&'static str] {
        match self {
            Self::CollStats(_) => &["latencyStats", "storageStats", "count", "queryExecStats"],
            Self::IndexStats => &[],
            Self::CurrentOp(_) => &[
                "allUsers", "idleConnections", "idleCursors", "idleSessions", "localOps",
                "truncateOps", "backtrace", "targetAllNodes",
            ],
            Self::ListSessions(_) | Self::ListLocalSessions(_) => &["allUsers", "users"],
        }
    }

    /// Refuses options that the stage does not have.
    pub(super) fn check_options(&self, options: &Document) -> Result<()> {
        check_known(self.name(), options, self.known_options())
    }

    pub(super) fn of(name: &str, options: &Document) -> Option<Self> {
        let options = options.clone();
        Some(match name {
            "$collStats" => Self::CollStats(options),
            "$indexStats" => Self::IndexStats,
            "$currentOp" => Self::CurrentOp(options),
            "$listSessions" => Self::ListSessions(options),
            "$listLocalSessions" => Self::ListLocalSessions(options),
            _ => return None,
        })
    }
}
