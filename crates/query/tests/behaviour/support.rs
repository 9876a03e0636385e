//! What the behaviour tests share: short ways to ask one question.

use bson::{Bson, DateTime, Document, RawDocumentBuf, Timestamp};
use quorate_query::expression::{Compiler, Variables};
use quorate_query::{Matcher, QueryError, Update, UpdateContext};

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

/// Documents are compared as bytes: the order of fields and the types of numbers count.
pub(crate) fn assert_same(found: &Document, wanted: &Document) {
    assert_eq!(found.to_vec().unwrap(), wanted.to_vec().unwrap(), "{found} is not {wanted}");
}

pub(crate) fn context() -> UpdateContext {
    UpdateContext::new(DateTime::from_millis(1_000), Timestamp { time: 7, increment: 3 })
}

/// Applies an update; the document stays if nothing changes.
pub(crate) fn apply(update: Document, before: &Document) -> Result<Option<Document>, QueryError> {
    Update::parse(&update.into())?.apply(before, &context())
}

/// Asserts what an update makes of a document.
pub(crate) fn updates(update: Document, before: Document, after: Document) {
    match apply(update.clone(), &before) {
        Ok(Some(found)) => assert_same(&found, &after),
        Ok(None) => panic!("{update} should change {before}"),
        Err(error) => panic!("{update} on {before}: {error}"),
    }
}

/// Asserts that an update changes nothing.
pub(crate) fn leaves(update: Document, before: Document) {
    let found = apply(update.clone(), &before).unwrap();
    assert!(found.is_none(), "{update} should leave {before} and made {found:?}");
}

/// The code with which an update is refused.
pub(crate) fn update_refusal(update: Document, before: Document) -> i32 {
    match apply(update.clone(), &before) {
        Ok(found) => panic!("{update} on {before} should be refused and made {found:?}"),
        Err(error) => error.code().0,
    }
}

/// A compiler for expressions without variables.
pub(crate) fn compiler() -> Compiler {
    Compiler::new(Variables::new(0))
}
