//! How widely a write must be known before it counts.

use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use quorate_connection_string::{Limit, Options, WriteAcknowledgement};
use quorate_wire::AppendSome;

/// How widely a write must be known before it counts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WriteConcern {
    /// `w`.
    pub w: Option<WriteAcknowledgement>,
    /// `j`.
    pub journal: Option<bool>,
    /// `wtimeout`.
    pub w_timeout: Option<Duration>,
}

impl WriteConcern {
    /// `{ w: "majority" }`.
    pub const MAJORITY: Self =
        Self { w: Some(WriteAcknowledgement::Majority), journal: None, w_timeout: None };

    /// What `w`, `journal` and `wTimeoutMS` of a connection string say.
    pub fn from_options(options: &Options) -> Self {
        let w_timeout = options.w_timeout.and_then(Limit::bound);
        Self { w: options.w.clone(), journal: options.journal, w_timeout }
    }

    /// Whether the server is asked for a reply at all.
    pub fn is_acknowledged(&self) -> bool {
        self.w != Some(WriteAcknowledgement::Members(0)) || self.journal == Some(true)
    }

    /// The `writeConcern` document; `None` leaves it to the server.
    pub fn document(&self) -> Option<RawDocumentBuf> {
        let mut document = RawDocumentBuf::new();
        match &self.w {
            None => {}
            Some(WriteAcknowledgement::Members(count)) => {
                document.append(cstr!("w"), i64::from(*count));
            }
            Some(WriteAcknowledgement::Majority) => document.append(cstr!("w"), "majority"),
            Some(WriteAcknowledgement::Custom(name)) => document.append(cstr!("w"), name.as_str()),
        }
        document.append_some(cstr!("j"), self.journal);
        if let Some(limit) = self.w_timeout {
            let millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
            document.append(cstr!("wtimeout"), millis);
        }
        (!document.is_empty()).then_some(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_written_and_nothing_is_left_to_the_server() {
        assert_eq!(WriteConcern::default().document(), None);
        let concern = WriteConcern {
            w: Some(WriteAcknowledgement::Custom("dc".to_owned())),
            journal: Some(true),
            w_timeout: Some(Duration::from_millis(5)),
        };
        let expected = bson::rawdoc! { "w": "dc", "j": true, "wtimeout": 5_i64 };
        assert_eq!(concern.document(), Some(expected));
    }

    #[test]
    fn w_zero_is_unacknowledged_unless_journaled() {
        let zero = WriteConcern { w: Some(WriteAcknowledgement::Members(0)), ..Default::default() };
        assert!(!zero.is_acknowledged());
        assert!(WriteConcern { journal: Some(true), ..zero }.is_acknowledged());
    }
}
