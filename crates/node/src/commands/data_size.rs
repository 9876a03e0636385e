//! `dataSize`: how many bytes a collection has, or those of its documents whose keys are in a range.
//!
//! Specification: the manual, "dataSize". The shell around a member adds the time that it took.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_query::matcher::Matcher;

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::Fields;
use crate::namespace::Namespace;
use crate::select::Selection;

pub(super) fn data_size(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "dataSize");
    let namespace = Namespace::parse(fields.required_string("dataSize")?)?;
    let bound = |name: &str| -> Result<Option<Document>> {
        Ok(fields.document(name)?.filter(|bound| !bound.is_empty()).cloned())
    };
    let (min, max) = (bound("min")?, bound("max")?);
    let estimate = fields.flag("estimate")?;
    refuse_if!(min.is_some() != max.is_some() => BAD_VALUE, "only one of min or max specified");
    let (collection, view) = request.read(&namespace)?;
    let Some(collection) = collection else {
        return reply(
            &doc! { "estimate": estimate, "size": 0_i64, "numObjects": 0_i64, "ok": 1.0 },
        );
    };
    collection.refuse_view()?;
    let (size, documents) = match min {
        // What a collection holds is counted with every write.
        None => {
            let totals = request.totals(&collection)?;
            (totals.bytes, totals.documents)
        }
        Some(min) => {
            let average = match estimate {
                true => {
                    let totals = request.totals(&collection)?;
                    Some(totals.bytes.checked_div(totals.documents).unwrap_or(0))
                }
                false => None,
            };
            let key = bound("keyPattern")?.unwrap_or_else(|| ascending(&min));
            refuse_if!(collection.index_with_key(&key)?.is_none() => INDEX_NOT_FOUND,
                "couldn't find valid index containing key pattern {key}");
            let matcher = Arc::new(Matcher::parse(&Document::new())?);
            let interrupt = request.interrupt.clone();
            let selection = Selection {
                hint: Some(Bson::Document(key)),
                min: Some(min),
                max,
                ..Selection::new(collection, view, matcher, interrupt)
            };
            let (mut size, mut documents) = (0, 0);
            for found in selection.run()? {
                size += average.unwrap_or(found?.document.as_bytes().len() as u64);
                documents += 1;
            }
            (size, documents)
        }
    };
    reply(&doc! {
        "estimate": estimate, "size": size as i64, "numObjects": documents as i64, "ok": 1.0,
    })
}

/// The key pattern that bounds stand for where none is given.
fn ascending(bound: &Document) -> Document {
    bound.keys().map(|name| (name.clone(), Bson::Int32(1))).collect()
}
