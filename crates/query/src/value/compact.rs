//! Values of long lists in little memory.

use bson::oid::ObjectId;
use bson::{Bson, DateTime};

use super::ValueRef;

/// A value. The usual ones take a fifth of what [`Bson`] takes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Compact {
    Int32(i32),
    Int64(i64),
    Double(f64),
    DateTime(DateTime),
    ObjectId(ObjectId),
    String(Box<str>),
    Other(Box<Bson>),
}

const _: () = assert!(size_of::<Compact>() * 4 < size_of::<Bson>());

impl From<Bson> for Compact {
    fn from(value: Bson) -> Self {
        match value {
            Bson::Int32(number) => Self::Int32(number),
            Bson::Int64(number) => Self::Int64(number),
            Bson::Double(number) => Self::Double(number),
            Bson::DateTime(time) => Self::DateTime(time),
            Bson::ObjectId(id) => Self::ObjectId(id),
            Bson::String(text) => Self::String(text.into()),
            other => Self::Other(Box::new(other)),
        }
    }
}

impl<'a> From<&'a Compact> for ValueRef<'a> {
    fn from(value: &'a Compact) -> Self {
        match value {
            Compact::Int32(number) => Self::Int32(*number),
            Compact::Int64(number) => Self::Int64(*number),
            Compact::Double(number) => Self::Double(*number),
            Compact::DateTime(time) => Self::DateTime(*time),
            Compact::ObjectId(id) => Self::ObjectId(*id),
            Compact::String(text) => Self::String(text),
            Compact::Other(value) => Self::from(&**value),
        }
    }
}
