//! What the behaviour tests share: short ways to ask one question.

use bson::{Bson, Document, RawDocumentBuf};
use quorate_query::Matcher;

/// Whether a query matches, asked of the parsed and of the raw form, which must agree.
pub(crate) fn matches(query: &Document, document: &Document) -> bool {
    let matcher = Matcher::parse(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    let parsed = matcher.matches(document).unwrap();
    let raw = RawDocumentBuf::try_from(document).unwrap();
    assert_eq!(matcher.matches(&raw).unwrap(), parsed, "raw and parsed disagree on {document}");
    parsed
}

/// Asserts that a query matches all of the first documents and none of the second.
pub(crate) fn check(query: Document, yes: &[Document], no: &[Document]) {
    for document in yes {
        assert!(matches(&query, document), "{query} should match {document}");
    }
    for document in no {
        assert!(!matches(&query, document), "{query} should not match {document}");
    }
}

/// The error code of a refused query.
pub(crate) fn refusal(query: Document) -> i32 {
    match Matcher::parse(&query) {
        Ok(_) => panic!("{query} should be refused"),
        Err(error) => error.code().0,
    }
}

pub(crate) fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse().unwrap())
}

pub(crate) fn regex(pattern: &str, options: &str) -> Bson {
    Bson::RegularExpression(bson::Regex {
        pattern: pattern.try_into().unwrap(),
        options: options.try_into().unwrap(),
    })
}

pub(crate) fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    })
}

pub(crate) fn date(millis: i64) -> Bson {
    Bson::DateTime(bson::DateTime::from_millis(millis))
}
