//! Stages about the server itself: the caller knows the answers.

use bson::Document;

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
