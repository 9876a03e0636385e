//! `distinct`: the different values of a field.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bson::{Bson, doc};
use quorate_query::value::{DocumentRef, LeafArrays, Path};
use quorate_storage::key::value_key;
use quorate_wire::to_bson_timestamp;

use super::aggregate::read_view;
use super::common::{check_collation, parse_filter, reply};
use crate::context::{Command, Outcome};
use crate::cursors::DocumentStream;
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw};
use crate::records::DocumentBytes;
use crate::select::Selection;

/// The most bytes of values in one reply, which is one document.
const MAX_VALUE_BYTES: usize = 16 * 1024 * 1024;

/// What a value costs besides its bytes.
const VALUE_OVERHEAD: usize = 2 * size_of::<Bson>() + 64;

pub(super) fn distinct(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "distinct");
    check_collation(&fields)?;
    let path = Path::parse(fields.required_string("key")?)?;
    let matcher = parse_filter(request, &fields, "query")?;
    let (collection, view) = request.read(&namespace)?;
    let Some(collection) = collection else { return answer(request, Vec::new()) };
    let documents: DocumentStream = if collection.view.is_some() {
        let query = fields.document("query")?.cloned().unwrap_or_default();
        let stages = [Bson::from(doc! { "$match": query })];
        let documents = read_view(request, &namespace, &stages)?;
        Box::new(documents.map(|document| to_raw(&document?).map(DocumentBytes::from)))
    } else {
        let interrupt = request.interrupt.clone();
        let selection = Selection {
            hint: fields.raw("hint").cloned(),
            ..Selection::new(collection, view, matcher, interrupt)
        };
        Box::new(selection.run()?.map(|found| found.map(|found| found.document)))
    };
    // By key, so that values that compare equal are one, and the reply is in order.
    let mut values: BTreeMap<Vec<u8>, Bson> = BTreeMap::new();
    let mut bytes = 0;
    let mut charge = request.meter().charge();
    for document in documents {
        let document = document?;
        let mut seen = Vec::new();
        path.any(DocumentRef::Raw(&document), LeafArrays::Whole, &mut |value, _| {
            seen.extend(value.map(|value| value.to_bson()));
            false
        });
        let flattened = seen.into_iter().flat_map(|value| match value {
            Bson::Array(items) => items,
            other => vec![other],
        });
        for value in flattened {
            let Entry::Vacant(place) = values.entry(value_key(&value)?) else { continue };
            bytes += place.key().len();
            refuse_if!(bytes > MAX_VALUE_BYTES => 17217,
                "distinct too big, 16mb cap; use aggregate with $group");
            // In the map, and then in the reply.
            charge.grow("distinct", VALUE_OVERHEAD + 3 * place.key().len())?;
            place.insert(value);
        }
    }
    answer(request, values.into_values().collect())
}

fn answer(request: &Request<'_>, values: Vec<Bson>) -> Result<Outcome> {
    let mut answer = doc! { "values": values };
    if let Some(time) = request.at_cluster_time() {
        answer.insert("atClusterTime", to_bson_timestamp(time));
    }
    answer.insert("ok", 1.0);
    reply(&answer)
}
