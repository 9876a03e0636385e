//! What an application may pass as a document or a value.
//!
//! Owns the conversions into raw BSON; what the values mean is left to the server.

use bson::raw::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf};
use bson::{Bson, Document};

use crate::error::Error;

/// A document in either of the `bson` crate's forms.
pub trait IntoRaw {
    /// The document as bytes.
    ///
    /// # Errors
    ///
    /// If a key holds a zero byte.
    fn into_raw(self) -> Result<RawDocumentBuf, Error>;
}

impl IntoRaw for RawDocumentBuf {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        Ok(self)
    }
}

impl IntoRaw for &RawDocument {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        Ok(self.to_owned())
    }
}

impl IntoRaw for Document {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        (&self).into_raw()
    }
}

impl IntoRaw for &Document {
    fn into_raw(self) -> Result<RawDocumentBuf, Error> {
        RawDocumentBuf::try_from(self).map_err(unusable)
    }
}

/// A value of any kind: a hint is a name or a document, an update is a document or a pipeline, a
/// comment is anything.
pub trait IntoValue {
    /// The value as bytes.
    ///
    /// # Errors
    ///
    /// If a key holds a zero byte.
    fn into_value(self) -> Result<RawBson, Error>;
}

impl IntoValue for RawBson {
    fn into_value(self) -> Result<RawBson, Error> {
        Ok(self)
    }
}

impl IntoValue for Bson {
    fn into_value(self) -> Result<RawBson, Error> {
        RawBson::try_from(self).map_err(unusable)
    }
}

macro_rules! values {
    (documents: $($document:ty),*; pipelines: $($pipeline:ty),*; scalars: $($scalar:ty),*) => {
        $(impl IntoValue for $document {
            fn into_value(self) -> Result<RawBson, Error> {
                self.into_raw().map(RawBson::Document)
            }
        })*
        $(impl IntoValue for $pipeline {
            fn into_value(self) -> Result<RawBson, Error> {
                array(self).map(RawBson::Array)
            }
        })*
        $(impl IntoValue for $scalar {
            fn into_value(self) -> Result<RawBson, Error> {
                Ok(RawBson::from(self))
            }
        })*
    };
}

values! {
    documents: RawDocumentBuf, &RawDocument, Document, &Document;
    pipelines: Vec<Document>, Vec<RawDocumentBuf>;
    scalars: &str, String, i32, i64, f64, bool, RawArrayBuf
}

impl<const N: usize> IntoValue for [Document; N] {
    fn into_value(self) -> Result<RawBson, Error> {
        array(self).map(RawBson::Array)
    }
}

/// Documents as an array.
pub(crate) fn array(
    documents: impl IntoIterator<Item = impl IntoRaw>,
) -> Result<RawArrayBuf, Error> {
    let mut array = RawArrayBuf::new();
    for document in documents {
        array.push(document.into_raw()?);
    }
    Ok(array)
}

fn unusable(error: bson::error::Error) -> Error {
    Error::bad_command(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{doc, rawdoc};

    #[test]
    fn updates_are_documents_or_pipelines() {
        let update = doc! { "$set": { "a": 1 } };
        let raw = rawdoc! { "$set": { "a": 1 } };
        assert_eq!((&update).into_value().unwrap(), RawBson::Document(raw.clone()));
        assert_eq!([update].into_value().unwrap(), RawBson::Array(array([raw]).unwrap()));
        assert!(doc! { "a\0b": 1 }.into_value().is_err());
    }
}
