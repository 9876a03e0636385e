//! A query as a whole: filter, order, skip and limit, run through the planner.

use std::sync::Arc;

use bson::spec::ElementType;
use bson::{Bson, Document, RawDocument};
use quorate_protocol::bson_length::value_length;
use quorate_query::matcher::{MatchDetails, Matcher};

use crate::catalog::Collection;
use crate::error::Result;
use crate::finder::{Finder, Found, InterruptSlot, Matching};
use crate::index_keys::leading_id;
use crate::plan::{self, Access, Plan, Question};
use crate::records::View;
use crate::sort::{self, Bar, Room, SortOrder};

/// Matching documents, one after the other.
pub(crate) type FoundStream = Box<dyn Iterator<Item = Result<Found>> + Send>;

/// Which documents of a collection are wanted, and in which order.
#[derive(Clone)]
pub(crate) struct Selection {
    pub(crate) collection: Arc<Collection>,
    pub(crate) view: View,
    pub(crate) matcher: Arc<Matcher>,
    pub(crate) sort: Option<Document>,
    pub(crate) hint: Option<Bson>,
    /// The smallest key of the hinted index that is wanted.
    pub(crate) min: Option<Document>,
    /// The smallest key of the hinted index that is no longer wanted.
    pub(crate) max: Option<Document>,
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) interrupt: InterruptSlot,
    /// How much a sort may hold; the usual, if it is not said.
    pub(crate) room: Option<Room>,
}

impl Selection {
    /// All documents that match, in no particular order.
    pub(crate) fn new(
        collection: Arc<Collection>,
        view: View,
        matcher: Arc<Matcher>,
        interrupt: InterruptSlot,
    ) -> Self {
        Self {
            collection,
            view,
            matcher,
            sort: None,
            hint: None,
            min: None,
            max: None,
            skip: 0,
            limit: None,
            interrupt,
            room: None,
        }
    }

    pub(crate) fn plan(&self) -> Result<Plan> {
        plan::choose(&Question {
            collection: &self.collection,
            matcher: &self.matcher,
            sort: self.sort.as_ref(),
            hint: self.hint.as_ref(),
            min: self.min.as_ref(),
            max: self.max.as_ref(),
        })
    }

    /// The order that must be made in memory if the plan does not give it.
    pub(crate) fn sort_order(&self) -> Result<Option<SortOrder>> {
        match &self.sort {
            Some(sort) if !sort.is_empty() && !sort.contains_key("$natural") => {
                SortOrder::parse(sort).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Finds what is selected, but for documents that cannot pass the bar.
    pub(crate) fn finder(self, plan: Plan, bar: Option<Arc<Bar>>) -> Result<Finder> {
        if let Access::Index(access) = &plan.access {
            access.index.count_use();
        }
        let matching = Matching { matcher: self.matcher, bar };
        Finder::new(self.view, self.collection, matching, plan, self.interrupt)
    }

    /// Runs the query.
    pub(crate) fn run(self) -> Result<FoundStream> {
        let plan = self.plan()?;
        self.run_plan(plan)
    }

    /// Runs the query in a way that was chosen before.
    pub(crate) fn run_plan(self, plan: Plan) -> Result<FoundStream> {
        let order = self.sort_order()?.filter(|_| !plan.sorted);
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        let limit = self.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let room = self.room.clone().unwrap_or_else(|| Room::of(&self.interrupt));
        let bar = order.map(|order| Arc::new(Bar::new(order)));
        let finder = self.finder(plan, bar.clone())?;
        match bar {
            Some(bar) => {
                let needed = limit.map(|limit| limit.saturating_add(skip));
                let sorted = sort::sort(&bar, finder, needed, &room)?;
                Ok(Box::new(after(sorted, skip).take(limit.unwrap_or(usize::MAX))))
            }
            None => Ok(match limit {
                Some(limit) => Box::new(after(finder, skip).take(limit)),
                None => Box::new(after(finder, skip)),
            }),
        }
    }
}

/// Whether a filter asks for the document with an `_id` and for nothing else. Then that needs no plan.
pub(crate) fn is_plain_id(filter: &RawDocument) -> bool {
    let Some((kind, id)) = leading_id(filter) else { return false };
    // Only these are equal to nothing but themselves, and to numbers of the same value.
    let is_plain = matches!(
        kind,
        ElementType::String
            | ElementType::ObjectId
            | ElementType::Int32
            | ElementType::Int64
            | ElementType::Binary
            | ElementType::DateTime
    );
    // Behind the value there is only the zero that ends a document.
    is_plain && value_length(kind as u8, id).is_some_and(|length| length + 1 == id.len())
}

/// The document with this `_id`, which is all that a query asks for. The collection has an index of `_id`.
pub(crate) fn look_up(
    collection: &Collection,
    view: &View,
    id: &RawDocument,
    interrupt: &InterruptSlot,
) -> Result<Option<Found>> {
    if let Some(index) = collection.id_index() {
        index.count_use();
    }
    let found = view.by_id(collection, id)?;
    interrupt.note_look_up(found.is_some());
    let details = MatchDetails::default();
    Ok(found.map(|(record, document)| Found { record, document, details }))
}

/// What is found after the first so many. An error is not skipped.
fn after<T>(
    found: impl Iterator<Item = Result<T>>,
    mut skip: usize,
) -> impl Iterator<Item = Result<T>> {
    found.filter(move |item| {
        let is_wanted = item.is_err() || skip == 0;
        skip = skip.saturating_sub(1);
        is_wanted
    })
}

#[cfg(test)]
mod tests {
    use bson::spec::BinarySubtype;
    use bson::{Binary, DateTime, RawDocumentBuf, bson, doc, oid::ObjectId};

    use super::*;

    #[test]
    fn a_filter_is_a_plain_id_if_it_has_one_value_that_equals_itself_alone() {
        let is_plain = |filter: &Document| is_plain_id(&RawDocumentBuf::try_from(filter).unwrap());
        let binary = Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] };
        let pattern =
            bson::Regex { pattern: "^a".try_into().unwrap(), options: "".try_into().unwrap() };
        let plain = [
            bson!(1),
            bson!(1_i64),
            bson!("a"),
            bson!(""),
            ObjectId::from_bytes([0; 12]).into(),
            DateTime::from_millis(0).into(),
            binary.into(),
        ];
        for id in plain {
            assert!(is_plain(&doc! {"_id": id.clone()}), "{id}");
            assert!(!is_plain(&doc! {"_id": id.clone(), "a": 1}), "{id} and more");
            assert!(!is_plain(&doc! {"a": 1, "_id": id.clone()}), "more and {id}");
            assert!(!is_plain(&doc! {"_ic": id.clone()}) && !is_plain(&doc! {"_id.": id}));
        }
        let others =
            [bson!(1.5), Bson::Null, bson!({"$gt": 1}), bson!([1]), pattern.into(), bson!(true)];
        for other in others {
            assert!(!is_plain(&doc! {"_id": other.clone()}), "{other}");
        }
        assert!(!is_plain(&doc! {}));
    }
}
