//! Which entries belong to transactions of several documents, and what they do in them.
//!
//! Every reader of the oplog that has to know asks here. A document may have any fields, those of a command among them:
//! the operation of an entry tells whether its object is a command, and the first field of a command is its name.

use bson::{Document, RawDocument};

/// What an entry does in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionPart {
    /// It holds operations, and more entries follow.
    Partial,
    /// It holds operations, and is the last entry.
    Last,
    /// It ends the transaction without its changes.
    Abort,
}

impl TransactionPart {
    /// What a decoded entry does; none if it is no part of a transaction.
    pub fn of(entry: &Document) -> Option<Self> {
        let (operation, object) = (entry.get_str("op").ok()?, entry.get_document("o").ok()?);
        let name = object.keys().next()?;
        Self::read(operation, name, || object.get_bool("partialTxn").unwrap_or(false))
    }

    /// The same, of the bytes of an entry.
    pub fn of_raw(entry: &RawDocument) -> Option<Self> {
        let (operation, object) = (entry.get_str("op").ok()?, entry.get_document("o").ok()?);
        let (name, _) = object.iter().next()?.ok()?;
        Self::read(operation, name.as_str(), || object.get_bool("partialTxn").unwrap_or(false))
    }

    fn read(operation: &str, name: &str, goes_on: impl FnOnce() -> bool) -> Option<Self> {
        if operation != "c" {
            return None;
        }
        match name {
            "applyOps" if goes_on() => Some(Self::Partial),
            "applyOps" => Some(Self::Last),
            "abortTransaction" => Some(Self::Abort),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};

    use super::*;

    #[test]
    fn only_commands_of_transactions_are_parts_of_one() {
        let operations = doc! { "applyOps": [] };
        let partial = doc! { "applyOps": [], "partialTxn": true };
        let abort = doc! { "abortTransaction": 1 };
        for (operation, object, expected) in [
            ("c", operations.clone(), Some(TransactionPart::Last)),
            ("c", partial.clone(), Some(TransactionPart::Partial)),
            ("c", abort.clone(), Some(TransactionPart::Abort)),
            ("c", doc! { "create": "c", "applyOps": [] }, None),
            ("i", operations, None),
            ("i", partial, None),
            ("u", abort, None),
            ("n", doc! { "msg": "partialTxn" }, None),
        ] {
            let entry = doc! { "op": operation, "o": object };
            let raw = RawDocumentBuf::try_from(&entry).unwrap();
            assert_eq!(TransactionPart::of(&entry), expected, "{entry}");
            assert_eq!(TransactionPart::of_raw(&raw), expected, "{entry}");
        }
        assert_eq!(TransactionPart::of(&doc! { "op": "c" }), None);
    }
}
