//! What may be stored, and under which keys an index holds it.

use std::sync::Arc;

use bson::spec::ElementType;
use bson::{Bson, Document, RawBsonRef, RawDocument};
use quorate_query::matcher::failure;
use quorate_query::value::DocumentRef;

use crate::catalog::{Collection, Index, Validator};
use crate::error::{CommandError, ErrorCode, Result};
use crate::index_keys::{DocumentKeys, append_id_key, document_keys, leading_id, plain_key};
use crate::structure::{Depth, check_document_bytes, malformed};
use crate::writer::Writer;

/// The largest document that may be stored.
const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// The keys under which an index holds a document; none if the index leaves it out.
pub(crate) fn index_keys_of(index: &Index, document: &RawDocument) -> Result<DocumentKeys> {
    if let Some(partial) = &index.partial
        && !partial.matches(document)?
    {
        return Ok(DocumentKeys::default());
    }
    if index.is_id() {
        // An `_id` is one value, whatever it is: an array is refused before it gets here.
        return document_keys(document, &index.fields);
    }
    let keys = document_keys(document, &index.fields)?;
    if index.sparse && keys.all_missing {
        return Ok(DocumentKeys::default());
    }
    Ok(keys)
}

/// Puts the key under which an index holds a document in place of what was in `key`. False if it may hold the document
/// under another number of keys than one, which [`index_keys_of`] tells.
pub(crate) fn only_key_of(
    index: &Index,
    document: &RawDocument,
    key: &mut Vec<u8>,
) -> Result<bool> {
    let holds_all = index.partial.is_none() && !index.sparse;
    if index.is_id() && holds_all {
        // It is one value: an array is refused before it gets here.
        key.clear();
        append_id_key(document, &index.fields, key)?;
        return Ok(true);
    }
    Ok(holds_all && plain_key(document, &index.fields, key)?.is_some())
}

/// The keys of a document in each index of its collection.
pub(crate) fn keys_of(
    collection: &Collection,
    document: &RawDocument,
) -> Result<Vec<DocumentKeys>> {
    collection.indexes.iter().map(|index| index_keys_of(index, document)).collect()
}

/// The keys of a document in one index, before and after an update.
pub(crate) struct ChangedKeys {
    /// The place of the index in its collection.
    pub(crate) place: usize,
    pub(crate) before: DocumentKeys,
    pub(crate) after: DocumentKeys,
}

/// The keys of a document in the indexes whose keys an update may change. It touches some fields alone, or any.
pub(crate) fn changed_keys(
    collection: &Collection,
    (old, new): (&RawDocument, &RawDocument),
    touches: Option<&dyn Fn(&str) -> bool>,
) -> Result<Vec<ChangedKeys>> {
    let may_change = |index: &Index| {
        !index.is_id()
            && touches.is_none_or(|touches| index.partial.is_some() || looks_at(index, touches))
    };
    let indexes = collection.indexes.iter().enumerate();
    let keys = |(place, index): (usize, &Arc<Index>)| {
        let (before, after) = (index_keys_of(index, old)?, index_keys_of(index, new)?);
        Ok(ChangedKeys { place, before, after })
    };
    indexes.filter(|(_, index)| may_change(index)).map(keys).collect()
}

fn looks_at(index: &Index, touches: &dyn Fn(&str) -> bool) -> bool {
    let mut first = index.fields.iter().filter_map(|field| field.components.first());
    first.any(|first| touches(&first.name))
}

/// Refuses what must not be stored: too large, too deep, malformed, or with an `_id` of a type
/// that cannot identify.
pub(crate) fn check_document(document: &RawDocument) -> Result<()> {
    let size = document.as_bytes().len();
    refuse_if!(size > MAX_DOCUMENT_BYTES => BSON_OBJECT_TOO_LARGE,
        "object to insert too large. size in bytes: {size}, max size: {MAX_DOCUMENT_BYTES}");
    check_document_bytes(document.as_bytes(), Depth::STORED)?;
    // Nearly every document begins with an `_id` of a type that needs no other look.
    let kind = leading_id(document).map(|(kind, _)| kind);
    if kind.is_some_and(|kind| !QUESTIONABLE_IDS.contains(&kind)) {
        return Ok(());
    }
    match document.get("_id") {
        Ok(Some(RawBsonRef::Array(_))) => Err(invalid_id("array")),
        Ok(Some(RawBsonRef::RegularExpression(_))) => Err(invalid_id("regex")),
        Ok(Some(RawBsonRef::Undefined)) => Err(invalid_id("undefined")),
        Ok(Some(RawBsonRef::Document(id))) => check_id_names(id),
        _ => Ok(()),
    }
}

/// The types of an `_id` that cannot identify, or only if they hold nothing that is forbidden.
const QUESTIONABLE_IDS: [ElementType; 4] = [
    ElementType::Array,
    ElementType::RegularExpression,
    ElementType::Undefined,
    ElementType::EmbeddedDocument,
];

/// Operators are no names, except for those of a reference to another document.
fn check_id_names(id: &RawDocument) -> Result<()> {
    for element in id {
        let (name, _) = element.map_err(|_| malformed())?;
        let name = name.as_str();
        if name.starts_with('$') && !["$ref", "$id", "$db"].contains(&name) {
            refuse!(
                DOLLAR_PREFIXED_FIELD_NAME,
                "_id fields may not contain '$'-prefixed fields: {name} is not valid for \
                     storage."
            );
        }
    }
    Ok(())
}

fn invalid_id(kind: &str) -> CommandError {
    fail!(INVALID_ID_FIELD, "The '_id' value cannot be of type {kind}")
}

impl Writer<'_> {
    /// Refuses a document that breaks the rules of its collection. One that replaces a document that broke them
    /// already passes where the rules are moderate.
    pub(super) fn check_validator(
        &mut self,
        collection: &Collection,
        document: &RawDocument,
        replaced: Option<&RawDocument>,
    ) -> Result<()> {
        let Some(validator) = &collection.validator else { return Ok(()) };
        let action = collection.options.get_str("validationAction").unwrap_or("error");
        let level = collection.options.get_str("validationLevel").unwrap_or("strict");
        if action != "error" || level == "off" {
            return Ok(());
        }
        if let (Some(old), "moderate") = (replaced, level)
            && !self.judge(validator, old)?
        {
            return Ok(());
        }
        if !self.judge(validator, document)? {
            let message = "Document failed validation";
            let mut error = CommandError::new(ErrorCode::DOCUMENT_VALIDATION_FAILURE, message);
            let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
            let rules = collection.options.get_document("validator").cloned().unwrap_or_default();
            let compiler = Validator::compiler(Some(self.now()), self.meter());
            let details = failure(&rules, DocumentRef::Raw(document), &compiler);
            let info = bson::doc! { "failingDocumentId": id, "details": details };
            error.details.insert("errInfo", info);
            return Err(error);
        }
        Ok(())
    }
}

pub(super) fn duplicate_key(
    collection: &Collection,
    index: &Index,
    document: &RawDocument,
) -> CommandError {
    let pattern = index.key();
    let mut values = Document::new();
    for (name, path) in pattern.keys().zip(&index.paths) {
        let value = path.get(DocumentRef::Raw(document));
        values.insert(name, value.map_or(Bson::Null, |value| value.to_bson()));
    }
    let shown: Vec<_> = values.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut error = fail!(
        DUPLICATE_KEY,
        "E11000 duplicate key error collection: {} index: {} dup key: {{ {} }}",
        collection.namespace,
        index.name,
        shown.join(", ")
    );
    error.details.insert("keyPattern", pattern);
    error.details.insert("keyValue", values);
    error
}
