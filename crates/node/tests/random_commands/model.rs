//! What a member should hold and answer: an ordered map of documents for each collection, and nothing clever.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document, doc};

use crate::steps::{
    COLLECTIONS, Catalog, Change, DATABASES, Delete, Filter, Index, Read, Sort, Update, ViewOn,
    Write, database_of,
};

pub(crate) const DUPLICATE_KEY: i32 = 11000;
const TYPE_MISMATCH: i32 = 14;
const BAD_VALUE: i32 = 2;
const INVALID: i32 = 121;

/// A document: its collection and its `_id`.
pub(crate) type Place = (usize, i32);

/// What a write looks at, and a transaction may hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    Document(Place),
    /// The values of a unique index.
    Unique(usize, &'static str, Vec<Option<i32>>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Collection {
    pub(crate) documents: BTreeMap<i32, Document>,
    pub(crate) indexes: BTreeSet<Index>,
    pub(crate) hidden: BTreeSet<Index>,
    /// Whether documents are kept as they were before a change.
    pub(crate) images: bool,
    /// Documents that are written have an `a` of at least this.
    pub(crate) least: Option<i32>,
    /// The most documents of a capped collection, and their order, which others do not have.
    pub(crate) capped: Option<usize>,
    pub(crate) order: Vec<i32>,
    /// When its description changed last.
    pub(crate) described: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) on: ViewOn,
    pub(crate) filter: Filter,
    /// When its description changed last.
    pub(crate) described: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) collections: BTreeMap<usize, Collection>,
    pub(crate) views: BTreeMap<usize, View>,
    /// When the name of a collection was given or taken last.
    pub(crate) named: BTreeMap<usize, u64>,
    /// Counts changes.
    pub(crate) clock: u64,
    /// When a claim was changed last.
    pub(crate) changed: BTreeMap<Claim, u64>,
}

/// What a write is answered with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Written { n: i32, modified: i32, upserted: Vec<(i32, Bson)>, errors: Vec<(i32, i32)> },
    Value { value: Option<Document>, n: i32, upserted: Option<Bson> },
    Failed(i32),
}

impl Told {
    /// The code of its first error.
    pub(crate) fn error(&self) -> Option<i32> {
        match self {
            Self::Written { errors, .. } => errors.first().map(|(_, code)| *code),
            Self::Value { .. } => None,
            Self::Failed(code) => Some(*code),
        }
    }

    /// Reads the reply to a write.
    pub(crate) fn of(reply: &Document) -> Self {
        if reply.get_f64("ok").ok() != Some(1.0) {
            return Self::Failed(reply.get_i32("code").unwrap_or(-1));
        }
        if let Ok(about) = reply.get_document("lastErrorObject") {
            let value = reply.get_document("value").ok().cloned();
            let n = about.get_i32("n").unwrap_or(-1);
            return Self::Value { value, n, upserted: about.get("upserted").cloned() };
        }
        let listed = |name: &str| -> Vec<Document> {
            let items = reply.get_array(name).map(Vec::as_slice).unwrap_or_default();
            items.iter().filter_map(|item| item.as_document().cloned()).collect()
        };
        let index = |item: &Document| item.get_i32("index").unwrap_or(-1);
        let upserted = listed("upserted").into_iter();
        let upserted =
            upserted.map(|item| (index(&item), item.get("_id").cloned().unwrap_or(Bson::Null)));
        let errors = listed("writeErrors").into_iter();
        Self::Written {
            n: reply.get_i32("n").unwrap_or(-1),
            modified: reply.get_i32("nModified").unwrap_or(0),
            upserted: upserted.collect(),
            errors: errors.map(|item| (index(&item), item.get_i32("code").unwrap_or(-1))).collect(),
        }
    }
}

/// What a write does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    pub(crate) told: Option<Told>,
    /// Everything that it looks at.
    pub(crate) claims: BTreeSet<Claim>,
    pub(crate) modified: BTreeSet<Place>,
    /// Each document in each state that it went through.
    pub(crate) trail: Vec<(Place, Option<Document>)>,
    /// Whether every statement changed a document.
    pub(crate) complete: bool,
}

/// One statement's share of the answer.
struct Done {
    n: i32,
    modified: i32,
    upserted: Option<i32>,
}

impl Filter {
    pub(crate) fn matches(&self, document: &Document) -> bool {
        let any = |field: &str, test: &dyn Fn(i32) -> bool| match document.get(field) {
            Some(Bson::Int32(value)) => test(*value),
            Some(Bson::Array(items)) => items.iter().filter_map(Bson::as_i32).any(test),
            _ => false,
        };
        match self {
            Self::All => true,
            Self::Id(id) => any("_id", &|value| value == *id),
            Self::IdAnd(id, other) => any("_id", &|value| value == *id) && other.matches(document),
            Self::Equal(field, wanted) => any(field, &|value| value == *wanted),
            Self::Null(field) => matches!(document.get(field), None | Some(Bson::Null)),
            Self::Compare(field, operator, than) => any(field, &|value| match *operator {
                "$gt" => value > *than,
                "$gte" => value >= *than,
                "$lt" => value < *than,
                _ => value <= *than,
            }),
            Self::In(field, wanted) => any(field, &|value| wanted.contains(&value)),
            Self::Exists(field, exists) => document.contains_key(field) == *exists,
            Self::Either(one, two) => one.matches(document) || two.matches(document),
            Self::Both(one, two) => one.matches(document) && two.matches(document),
        }
    }

    /// The document that an upsert begins with.
    fn beginning(&self, id: i32) -> Document {
        let mut document = doc! { "_id": id };
        if let Self::IdAnd(_, other) = self
            && let Self::Equal(field, value) = **other
        {
            document.insert(field, value);
        }
        document
    }
}

impl Change {
    fn apply(&self, document: &Document, filter: &Filter) -> Result<Document, i32> {
        let mut new = document.clone();
        let set_items = |new: &mut Document, value: i32, is_meant: &mut dyn FnMut(i32) -> bool| {
            let Some(Bson::Array(items)) = new.get_mut("b") else { return Err(BAD_VALUE) };
            let meant = |item: &&mut Bson| item.as_i32().is_some_and(&mut *is_meant);
            let changed: Vec<&mut Bson> = items.iter_mut().filter(meant).collect();
            let count = changed.len();
            changed.into_iter().for_each(|item| *item = value.into());
            Ok(count)
        };
        match self {
            Self::Set(field, value) => {
                new.insert(*field, value.clone());
            }
            Self::SetByPipeline(field, value) => {
                new.insert(*field, *value);
            }
            Self::Unset(field) => {
                new.remove(field);
            }
            Self::Add(field, by) => match document.get(field) {
                None => {
                    new.insert(*field, *by);
                }
                Some(Bson::Int32(value)) => {
                    new.insert(*field, value + by);
                }
                Some(_) => return Err(TYPE_MISMATCH),
            },
            Self::Push(value) => match new.get_mut("b") {
                None => {
                    new.insert("b", vec![*value]);
                }
                Some(Bson::Array(items)) => items.push(Bson::Int32(*value)),
                Some(_) => return Err(BAD_VALUE),
            },
            Self::SetMatched(value) => {
                let Filter::IdAnd(_, matched) = filter else { return Err(BAD_VALUE) };
                let Filter::Equal("b", wanted) = **matched else { return Err(BAD_VALUE) };
                let mut is_first = true;
                let first = &mut |item| item == wanted && std::mem::take(&mut is_first);
                if set_items(&mut new, *value, first)? == 0 {
                    return Err(BAD_VALUE);
                }
            }
            Self::SetItems(value) => {
                set_items(&mut new, *value, &mut |_| true)?;
            }
            Self::SetLarge { least, value } => {
                set_items(&mut new, *value, &mut |item| item >= *least)?;
            }
            Self::Replace(content) => {
                new = doc! { "_id": document.get("_id") };
                new.extend(content.clone());
            }
        }
        Ok(new)
    }
}

impl Sort {
    /// In this order.
    fn sort(self, documents: &mut [Document]) {
        let number = |document: &Document, field: &str| document.get_i32(field).ok();
        documents.sort_by(|one, two| {
            let by_id = number(one, "_id").cmp(&number(two, "_id"));
            let by_id = if self.by_id > 0 { by_id } else { by_id.reverse() };
            let by_a = number(one, "a").cmp(&number(two, "a"));
            match self.by_a {
                None => by_id,
                Some(way) if way > 0 => by_a.then(by_id),
                Some(_) => by_a.reverse().then(by_id),
            }
        });
    }
}

impl Index {
    pub(crate) fn values(&self, document: &Document) -> Vec<Option<i32>> {
        self.fields.iter().map(|(field, _)| document.get_i32(field).ok()).collect()
    }
}

impl Collection {
    /// Whether another document has the same values in a unique index.
    fn collides(&self, id: i32, document: &Document) -> bool {
        self.indexes.iter().filter(|index| index.unique).any(|index| {
            let values = index.values(document);
            self.documents
                .iter()
                .any(|(other, known)| *other != id && index.values(known) == values)
        })
    }

    fn found(&self, filter: &Filter) -> Vec<Document> {
        self.documents.values().filter(|document| filter.matches(document)).cloned().collect()
    }

    /// Whether a document may be written.
    fn is_valid(&self, document: &Document) -> bool {
        self.least.is_none_or(|least| Filter::Compare("a", "$gte", least).matches(document))
    }

    /// A document came or went.
    pub(crate) fn keep_order(&mut self, id: i32) {
        match self.documents.contains_key(&id) {
            false => self.order.retain(|known| *known != id),
            true if self.capped.is_some() && !self.order.contains(&id) => self.order.push(id),
            true => {}
        }
    }

    /// The oldest document, if there are too many.
    fn too_old(&self) -> Option<i32> {
        let most = self.capped?;
        self.order.first().copied().filter(|_| self.order.len() > most)
    }

    /// Whether every unique index is.
    pub(crate) fn is_sound(&self) -> bool {
        self.documents.iter().all(|(id, document)| !self.collides(*id, document))
    }
}

fn id_of(document: &Document) -> i32 {
    document.get_i32("_id").unwrap_or(-1)
}

impl Model {
    fn found(&self, collection: usize, filter: &Filter) -> Vec<Document> {
        self.collections.get(&collection).map(|known| known.found(filter)).unwrap_or_default()
    }

    fn claim(&self, effects: &mut Effects, collection: usize, document: &Document) {
        effects.claims.insert(Claim::Document((collection, id_of(document))));
        let known = self.collections.get(&collection).into_iter().flat_map(|known| &known.indexes);
        for index in known.filter(|index| index.unique) {
            let values = index.values(document);
            effects.claims.insert(Claim::Unique(collection, index.name, values));
        }
    }

    /// Puts a document into its place, or takes it away.
    fn put(&mut self, effects: &mut Effects, place: Place, document: Option<Document>) {
        let (collection, id) = place;
        effects.modified.insert(place);
        effects.trail.push((place, document.clone()));
        let clock = self.clock + 1;
        let known = self.collections.entry(collection).or_insert_with(|| {
            self.clock = clock;
            self.named.insert(collection, clock);
            Collection { described: clock, ..Collection::default() }
        });
        match document {
            Some(document) => known.documents.insert(id, document),
            None => known.documents.remove(&id),
        };
        known.keep_order(id);
    }

    fn insert(
        &mut self,
        effects: &mut Effects,
        collection: usize,
        document: &Document,
    ) -> Result<(), i32> {
        let id = id_of(document);
        self.claim(effects, collection, document);
        let known = self.collections.get(&collection);
        if known.is_some_and(|known| !known.is_valid(document)) {
            return Err(INVALID);
        }
        if known
            .is_some_and(|known| known.documents.contains_key(&id) || known.collides(id, document))
        {
            return Err(DUPLICATE_KEY);
        }
        self.put(effects, (collection, id), Some(document.clone()));
        while let Some(oldest) = self.collections.get(&collection).and_then(Collection::too_old) {
            self.put(effects, (collection, oldest), None);
        }
        Ok(())
    }

    /// Changes a document; true unless it is the same afterwards.
    fn change(
        &mut self,
        effects: &mut Effects,
        collection: usize,
        old: &Document,
        (change, filter): (&Change, &Filter),
    ) -> Result<(Document, bool), i32> {
        self.claim(effects, collection, old);
        let (id, new) = (id_of(old), change.apply(old, filter)?);
        // The order of fields counts; documents are equal in any.
        if new.iter().eq(old.iter()) {
            return Ok((new, false));
        }
        self.claim(effects, collection, &new);
        if self.collections.get(&collection).is_some_and(|known| !known.is_valid(&new)) {
            return Err(INVALID);
        }
        if self.collections.get(&collection).is_some_and(|known| known.collides(id, &new)) {
            return Err(DUPLICATE_KEY);
        }
        self.put(effects, (collection, id), Some(new.clone()));
        Ok((new, true))
    }

    fn upsert(
        &mut self,
        effects: &mut Effects,
        collection: usize,
        filter: &Filter,
        change: &Change,
    ) -> Result<Document, i32> {
        let id = filter.id().unwrap_or(-1);
        let new = change.apply(&filter.beginning(id), filter)?;
        self.insert(effects, collection, &new)?;
        Ok(new)
    }

    fn update(
        &mut self,
        effects: &mut Effects,
        collection: usize,
        update: &Update,
    ) -> Result<Done, i32> {
        let found = self.found(collection, &update.filter);
        if found.is_empty() && update.upsert {
            let new = self.upsert(effects, collection, &update.filter, &update.change)?;
            return Ok(Done { n: 1, modified: 0, upserted: Some(id_of(&new)) });
        }
        let mut done = Done { n: 0, modified: 0, upserted: None };
        for old in &found {
            done.n += 1;
            let change = (&update.change, &update.filter);
            done.modified += i32::from(self.change(effects, collection, old, change)?.1);
        }
        Ok(done)
    }

    fn delete(&mut self, effects: &mut Effects, collection: usize, delete: &Delete) -> Done {
        let found = self.found(collection, &delete.filter);
        for old in &found {
            self.claim(effects, collection, old);
            self.put(effects, (collection, id_of(old)), None);
        }
        Done { n: found.len() as i32, modified: 0, upserted: None }
    }

    /// A write is made here.
    pub(crate) fn write(&mut self, collection: usize, write: &Write) -> Effects {
        let mut effects = Effects { complete: true, ..Effects::default() };
        let told = match write {
            Write::Insert { documents, ordered } => {
                self.statements(&mut effects, documents, *ordered, |model, effects, document| {
                    let done = Done { n: 1, modified: 0, upserted: None };
                    model.insert(effects, collection, document).map(|()| done)
                })
            }
            Write::Update { statements, ordered } => {
                self.statements(&mut effects, statements, *ordered, |model, effects, update| {
                    model.update(effects, collection, update)
                })
            }
            Write::Delete { statements, ordered } => {
                self.statements(&mut effects, statements, *ordered, |model, effects, delete| {
                    Ok(model.delete(effects, collection, delete))
                })
            }
            Write::FindAndModify { .. } => {
                match self.find_and_modify(&mut effects, collection, write) {
                    Ok(told) => told,
                    Err(code) => Told::Failed(code),
                }
            }
        };
        effects.complete &= !effects.modified.is_empty() && told.error().is_none();
        effects.told = Some(told);
        self.note(&effects);
        effects
    }

    /// Remembers what was changed.
    fn note(&mut self, effects: &Effects) {
        self.clock += 1;
        let modified: Vec<Claim> =
            effects.modified.iter().map(|place| Claim::Document(*place)).collect();
        let uniques =
            effects.claims.iter().filter(|claim| matches!(claim, Claim::Unique(..))).cloned();
        for claim in modified.into_iter().chain(uniques.collect::<Vec<_>>()) {
            self.changed.insert(claim, self.clock);
        }
    }

    /// Documents go that are older than an index says.
    pub(crate) fn expire(&mut self, now: bson::DateTime) -> Effects {
        let mut effects = Effects::default();
        let mut old = Vec::new();
        for (collection, known) in &self.collections {
            let expires = known.indexes.iter().filter_map(|index| index.expires).next();
            let Some(life) = expires else { continue };
            let is_old = |document: &Document| {
                let date = document.get_datetime("t");
                date.is_ok_and(|date| {
                    date.timestamp_millis() + life * 1_000 <= now.timestamp_millis()
                })
            };
            let found = known.documents.iter().filter(|(_, document)| is_old(document));
            old.extend(found.map(|(id, _)| (*collection, *id)));
        }
        for place in old {
            self.put(&mut effects, place, None);
        }
        self.note(&effects);
        effects
    }

    /// Documents are merged into another collection.
    pub(crate) fn merge(
        &mut self,
        collection: usize,
        filter: &Filter,
        to: usize,
        matched: &str,
    ) -> Effects {
        let mut effects = Effects::default();
        for document in self.found(collection, filter) {
            let place = (to, id_of(&document));
            let known = self.collections.get(&to).and_then(|known| known.documents.get(&place.1));
            let new = match (known, matched) {
                (None, _) | (Some(_), "replace") => document,
                (Some(known), "merge") => {
                    let mut merged = known.clone();
                    merged.extend(document);
                    merged
                }
                (Some(known), _) => known.clone(),
            };
            if known.is_none_or(|known| !known.iter().eq(new.iter())) {
                self.put(&mut effects, place, Some(new));
            }
        }
        self.note(&effects);
        effects
    }

    fn statements<S>(
        &mut self,
        effects: &mut Effects,
        statements: &[S],
        ordered: bool,
        mut run: impl FnMut(&mut Self, &mut Effects, &S) -> Result<Done, i32>,
    ) -> Told {
        let (mut n, mut modified) = (0, 0);
        let (mut upserted, mut errors) = (Vec::new(), Vec::new());
        for (index, statement) in statements.iter().enumerate() {
            let index = index as i32;
            let before = effects.trail.len();
            match run(self, effects, statement) {
                Ok(done) => {
                    n += done.n;
                    modified += done.modified;
                    upserted.extend(done.upserted.map(|id| (index, Bson::Int32(id))));
                    effects.complete &= effects.trail.len() > before;
                }
                Err(code) => {
                    errors.push((index, code));
                    if ordered {
                        break;
                    }
                }
            }
        }
        Told::Written { n, modified, upserted, errors }
    }

    fn find_and_modify(
        &mut self,
        effects: &mut Effects,
        collection: usize,
        write: &Write,
    ) -> Result<Told, i32> {
        let Write::FindAndModify { filter, sort, change, upsert, new } = write else {
            return Err(-1);
        };
        let mut found = self.found(collection, filter);
        sort.sort(&mut found);
        let (old, n) = (found.into_iter().next(), 1);
        Ok(match (old, change) {
            (None, Some(change)) if *upsert => {
                let made = self.upsert(effects, collection, filter, change)?;
                let upserted = made.get("_id").cloned();
                Told::Value { value: new.then_some(made), n, upserted }
            }
            (None, _) => Told::Value { value: None, n: 0, upserted: None },
            (Some(old), None) => {
                self.claim(effects, collection, &old);
                self.put(effects, (collection, id_of(&old)), None);
                Told::Value { value: Some(old), n, upserted: None }
            }
            (Some(old), Some(change)) => {
                let (made, _) = self.change(effects, collection, &old, (change, filter))?;
                let value = Some(if *new { made } else { old });
                Told::Value { value, n, upserted: None }
            }
        })
    }

    /// The documents that a view shows.
    fn shown(&self, view: usize) -> Collection {
        let Some(View { on, filter, .. }) = self.views.get(&view) else {
            return Collection::default();
        };
        let found = match on {
            ViewOn::Collection(collection) => self.found(*collection, filter),
            ViewOn::View(view) => self.shown(*view).found(filter),
        };
        let documents = found.into_iter().map(|document| (id_of(&document), document)).collect();
        Collection { documents, ..Collection::default() }
    }

    /// The collection that a view shows documents of, and when what is in between was described last.
    pub(crate) fn base_of(&self, view: usize) -> Option<(usize, Vec<u64>)> {
        let View { on, described, .. } = self.views.get(&view)?;
        match on {
            ViewOn::Collection(collection) => {
                let base = self.collections.get(collection)?;
                Some((*collection, vec![*described, base.described]))
            }
            ViewOn::View(view) => {
                let (collection, mut all) = self.base_of(*view)?;
                all.push(*described);
                Some((collection, all))
            }
        }
    }

    pub(crate) fn read_view(&self, view: usize, read: &Read) -> Vec<Document> {
        let collections = BTreeMap::from([(0, self.shown(view))]);
        Self { collections, ..Self::default() }.read(0, read)
    }

    /// What a read shows: documents, in order if that is asked for.
    pub(crate) fn read(&self, collection: usize, read: &Read) -> Vec<Document> {
        match read {
            Read::Find { filter, sort, skip, limit } => {
                let mut found = self.found(collection, filter);
                let Some(sort) = sort else { return found };
                sort.sort(&mut found);
                let limit = if *limit == 0 { usize::MAX } else { *limit as usize };
                found.into_iter().skip(*skip as usize).take(limit).collect()
            }
            Read::Count { filter } => {
                vec![doc! { "n": self.found(collection, filter).len() as i32 }]
            }
            Read::Distinct { field, filter } => {
                let found = self.found(collection, filter);
                let values = found.iter().filter_map(|document| document.get(field));
                let values: BTreeSet<Option<i32>> = values
                    .flat_map(|value| match value {
                        Bson::Array(items) => items.iter().map(Bson::as_i32).collect(),
                        value => vec![value.as_i32()],
                    })
                    .collect();
                values.into_iter().map(|value| doc! { "value": value }).collect()
            }
            Read::Group { filter } => {
                let mut groups: BTreeMap<Option<i32>, i32> = BTreeMap::new();
                for document in self.found(collection, filter) {
                    *groups.entry(document.get_i32("a").ok()).or_default() += 1;
                }
                groups.into_iter().map(|(a, n)| doc! { "_id": a, "n": n }).collect()
            }
        }
    }

    fn hide(&mut self, collection: usize, index: Index, hidden: bool) -> bool {
        let known = self.collections.get_mut(&collection);
        let Some(known) = known.filter(|known| known.indexes.contains(&index)) else {
            return false;
        };
        known.described = self.clock;
        match hidden {
            true => known.hidden.insert(index),
            false => known.hidden.remove(&index),
        };
        true
    }

    /// Documents take the place of those of another collection.
    fn replace(&mut self, collection: usize, filter: &Filter, to: usize) -> bool {
        let found = self.found(collection, filter);
        let target = self.collections.get(&to).cloned().unwrap_or_default();
        if target.capped.is_some() {
            return false;
        }
        let documents = found.into_iter().map(|document| (id_of(&document), document)).collect();
        let new = Collection { documents, described: self.clock, ..target };
        let is_sound =
            new.is_sound() && new.documents.values().all(|document| new.is_valid(document));
        if is_sound {
            self.collections.insert(to, new);
        }
        is_sound
    }

    /// All collections and views of a database go.
    fn drop_database(&mut self, database: &str) {
        self.collections.retain(|known, _| database_of(*known) != database);
        let clock = self.clock;
        self.named = (0..COLLECTIONS as usize).map(|known| (known, clock)).collect();
        if database == DATABASES[0] {
            self.views.clear();
        }
    }

    /// The description of collections changes here, if it may. None if either answer is right.
    pub(crate) fn describe(&mut self, collection: usize, change: &Catalog) -> Option<bool> {
        self.clock += 1;
        let clock = self.clock;
        let exists = self.collections.contains_key(&collection);
        self.named.insert(collection, clock);
        if let Catalog::Rename { to, .. } | Catalog::Out { to, .. } = change {
            self.named.insert(*to, clock);
        }
        match change {
            Catalog::Create { .. } | Catalog::Drop
                if exists == matches!(change, Catalog::Create { .. }) =>
            {
                None
            }
            Catalog::Create { most } => {
                let capped = most.map(|most| most as usize);
                let new = Collection { described: clock, capped, ..Collection::default() };
                self.collections.insert(collection, new);
                Some(true)
            }
            Catalog::Drop => {
                self.collections.remove(&collection);
                Some(true)
            }
            Catalog::Rename { to, drop_target } => {
                let in_the_way = self.collections.contains_key(to) && !drop_target;
                if *to == collection || in_the_way || !exists {
                    return Some(false);
                }
                let moved = self.collections.remove(&collection);
                let moved = moved.map(|moved| Collection { described: clock, ..moved });
                self.collections.insert(*to, moved.unwrap_or_default());
                Some(true)
            }
            Catalog::CreateIndex(index) => {
                let known = self.collections.entry(collection).or_default();
                known.described = clock;
                let is_new = known.indexes.insert(*index);
                if is_new && !known.is_sound() {
                    known.indexes.remove(index);
                    return Some(false);
                }
                Some(true)
            }
            Catalog::DropIndex(index) => {
                let Some(known) = self.collections.get_mut(&collection) else { return Some(false) };
                known.described = clock;
                known.hidden.remove(index);
                Some(known.indexes.remove(index))
            }
            Catalog::Hide { index, hidden } => Some(self.hide(collection, *index, *hidden)),
            Catalog::Out { filter, to } => Some(self.replace(collection, filter, *to)),
            Catalog::DropDatabase => {
                self.drop_database(database_of(collection));
                Some(true)
            }
            Catalog::Validate { least } => {
                let Some(known) = self.collections.get_mut(&collection) else { return Some(false) };
                (known.described, known.least) = (clock, *least);
                Some(true)
            }
            Catalog::KeepImages(enabled) => {
                let Some(known) = self.collections.get_mut(&collection) else { return Some(false) };
                (known.described, known.images) = (clock, *enabled);
                Some(true)
            }
        }
    }
}
