//! Databases, collections and indexes: what exists and how it is laid out.
//!
//! Owns the rows of the `catalog` keyspace and the picture of them in memory. A collection and
//! each of its indexes has an *ident*, a number that is never used again; it prefixes their keys.
//! Dropping leaves a row naming the idents whose keys are yet to be removed, so that a drop takes
//! the same time whatever the size, and survives a crash.
//!
//! ```text
//!   c <database> 00 <collection>   →  BSON: ident, uuid, options, indexes
//!   d <ident>                      →  empty: the keys of this ident are garbage
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{Binary, Bson, DateTime, Document, doc};
use quorate_query::Meter;
use quorate_query::expression::{Compiler, Variables};
use quorate_query::matcher::Matcher;
use quorate_query::value::Path;
use quorate_storage::key::FieldOrder;
use quorate_storage::{Batch, Direction, KeyRange, KeyspaceId, Snapshot};

use crate::context::Now;
use crate::error::{CommandError, Result};
use crate::fields::{to_raw, whole_number};
use crate::index_keys::IndexField;
use crate::namespace::{Names, Namespace};
use crate::plan::same_key;
use crate::scheduling::has_repetition;
use crate::usage::Usage;

/// The most indexes one collection may have.
pub(crate) const MAX_INDEXES: usize = 64;

/// The name of the index that every collection has.
pub(crate) const ID_INDEX: &str = "_id_";

const COLLECTION_ROW: u8 = b'c';
const DROPPED_ROW: u8 = b'd';

/// The number that prefixes the keys of a collection or an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ident(pub(crate) u64);

impl Ident {
    /// That of collections that are made as they are read. No stored one has it.
    pub(crate) const MADE_UP: Self = Self(u64::MAX);

    /// The bytes of an ident.
    pub(crate) const LENGTH: usize = 8;

    pub(crate) fn prefix(self) -> [u8; Self::LENGTH] {
        self.0.to_be_bytes()
    }
}

/// A collection or a view.
#[derive(Clone, Debug)]
pub(crate) struct Collection {
    pub(crate) namespace: Namespace,
    pub(crate) ident: Ident,
    pub(crate) uuid: Binary,
    /// The options of `create`, as `listCollections` shows them.
    pub(crate) options: Document,
    pub(crate) capped: Option<Capped>,
    pub(crate) view: Option<View>,
    pub(crate) validator: Option<Validator>,
    pub(crate) indexes: Vec<Arc<Index>>,
    /// How commands used it. Copies count together.
    pub(crate) usage: Arc<Usage>,
}

/// The limits of a capped collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capped {
    pub(crate) bytes: u64,
    pub(crate) documents: Option<u64>,
}

/// A stored aggregation that is read as if it were a collection.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) on: String,
    pub(crate) pipeline: Vec<Document>,
}

/// An index of a collection.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) ident: Ident,
    pub(crate) name: String,
    /// As `listIndexes` shows it.
    pub(crate) spec: Document,
    pub(crate) fields: Vec<IndexField>,
    pub(crate) paths: Vec<Path>,
    pub(crate) unique: bool,
    pub(crate) sparse: bool,
    pub(crate) hidden: bool,
    pub(crate) partial: Option<Arc<Matcher>>,
    pub(crate) expire_after_seconds: Option<i64>,
    /// Whether some document has an array in it. Never taken back.
    pub(crate) multikey: bool,
    /// How many operations of clients have read it since this member knows it. Copies count together.
    uses: Arc<AtomicU64>,
}

impl Index {
    /// The key pattern.
    pub(crate) fn key(&self) -> Document {
        self.spec.get_document("key").cloned().unwrap_or_default()
    }

    /// Counts an operation of a client that reads it.
    pub(crate) fn count_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// How many operations have read it.
    pub(crate) fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_id(&self) -> bool {
        self.name == ID_INDEX
    }

    /// Reads a specification that has been checked and completed by `createIndexes`.
    pub(crate) fn from_spec(ident: Ident, spec: Document) -> Result<Self> {
        let damaged = || fail!(CANNOT_CREATE_INDEX, "no key pattern");
        let pattern = spec.get_document("key").map_err(|_| damaged())?;
        let mut fields = Vec::with_capacity(pattern.len());
        let mut paths = Vec::with_capacity(pattern.len());
        for (name, direction) in pattern {
            let path = Path::parse(name)?;
            let descending = match direction {
                Bson::Double(number) => *number < 0.0,
                other => whole_number(other).is_some_and(|number| number < 0),
            };
            let order = if descending { FieldOrder::Descending } else { FieldOrder::Ascending };
            fields.push(IndexField { components: path.components().to_vec(), order });
            paths.push(path);
        }
        let flag = |name: &str| match spec.get(name) {
            Some(Bson::Boolean(truth)) => *truth,
            Some(other) => whole_number(other).is_some_and(|number| number != 0),
            None => false,
        };
        let partial = match spec.get_document("partialFilterExpression") {
            Ok(filter) => Some(Arc::new(Matcher::parse(filter)?)),
            Err(_) => None,
        };
        let name = spec.get_str("name").map_err(|_| damaged())?.to_owned();
        let is_id = name == ID_INDEX;
        Ok(Self {
            ident,
            name,
            fields,
            paths,
            unique: flag("unique") || is_id,
            sparse: flag("sparse"),
            hidden: flag("hidden"),
            partial,
            expire_after_seconds: spec.get("expireAfterSeconds").and_then(whole_number),
            multikey: false,
            uses: Arc::default(),
            spec,
        })
    }

    fn to_row(&self) -> Document {
        doc! { "ident": self.ident.0 as i64, "multikey": self.multikey, "spec": &self.spec }
    }

    fn from_row(row: &Document) -> Result<Self> {
        let spec = row.get_document("spec").map_err(|_| damaged_row())?.clone();
        let mut index = Self::from_spec(ident_field(row)?, spec)?;
        index.multikey = row.get_bool("multikey").unwrap_or(false);
        Ok(index)
    }
}

/// The rules that documents of a collection follow.
#[derive(Clone, Debug)]
pub(crate) struct Validator {
    /// With expressions that see no time and know no interrupt.
    matcher: Arc<Matcher>,
    /// The rules, if they have expressions, which ask for the time and may take long: then each command reads them for itself.
    read_anew: Option<Arc<Document>>,
    /// Whether they evaluate an expression for each element of an array: then what they cost is not in proportion to the document.
    pub(crate) is_costly: bool,
}

impl Validator {
    /// Reads the rules.
    pub(crate) fn parse(rules: &Document) -> Result<Self> {
        let matcher = Arc::new(Matcher::parse_with(rules, &Self::compiler(None, None))?);
        let read_anew = has_expressions(rules).then(|| Arc::new(rules.clone()));
        let is_costly = has_repetition(to_raw(rules)?.as_bytes());
        Ok(Self { matcher, read_anew, is_costly })
    }

    /// Whether they have expressions, which may take long for a document.
    pub(crate) fn has_expressions(&self) -> bool {
        self.read_anew.is_some()
    }

    /// Whether both were read together, so that no other rules were given in between.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.matcher, &other.matcher)
    }

    /// What compiles the expressions of rules.
    pub(crate) fn compiler(now: Option<Now>, meter: Option<Meter>) -> Compiler {
        let mut variables = Variables::new(0);
        if let Some(now) = now {
            variables = variables.with_now(DateTime::from_millis(now.wall.as_millis()));
        }
        Compiler::new(match meter {
            Some(meter) => variables.with_meter(meter),
            None => variables,
        })
    }

    /// What tells for one command whether documents follow the rules.
    pub(crate) fn matcher(&self, compiler: impl FnOnce() -> Compiler) -> Result<Arc<Matcher>> {
        match &self.read_anew {
            None => Ok(Arc::clone(&self.matcher)),
            Some(rules) => Ok(Arc::new(Matcher::parse_with(rules, &compiler())?)),
        }
    }
}

fn has_expressions(rules: &Document) -> bool {
    fn has(value: &Bson) -> bool {
        match value {
            Bson::Document(inner) => has_expressions(inner),
            Bson::Array(items) => items.iter().any(has),
            _ => false,
        }
    }
    rules.iter().any(|(name, value)| name == "$expr" || has(value))
}

impl Collection {
    /// The index of `_id`; a view has none, nor has a collection without it.
    pub(crate) fn id_index(&self) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.is_id())
    }

    /// Refuses a view, for commands about what is stored.
    pub(crate) fn refuse_view(&self) -> Result<()> {
        match self.view {
            None => Ok(()),
            Some(_) => Err(fail!(
                COMMAND_NOT_SUPPORTED_ON_VIEW,
                "Namespace {} is a view, not a collection",
                self.namespace
            )),
        }
    }

    /// The index with these fields. There may be several, which their names tell apart.
    pub(crate) fn index_with_key(&self, key: &Document) -> Result<Option<&Arc<Index>>> {
        let mut found = self.indexes.iter().filter(|index| same_key(&index.key(), key));
        match (found.next(), found.next()) {
            (Some(first), Some(second)) => Err(fail!(
                AMBIGUOUS_INDEX_KEY_PATTERN,
                "several indexes have the fields {key}, among them {} and {}; use a name",
                first.name,
                second.name
            )),
            (first, _) => Ok(first),
        }
    }

    /// A collection without indexes, from the options of `create`.
    pub(crate) fn new(
        namespace: Namespace,
        ident: Ident,
        uuid: Binary,
        options: Document,
    ) -> Result<Self> {
        let number = |name: &str| options.get(name).and_then(whole_number);
        let positive = |name: &str| number(name).and_then(|n| u64::try_from(n).ok());
        let capped = options.get_bool("capped").unwrap_or(false).then(|| Capped {
            bytes: positive("size").unwrap_or(0),
            documents: positive("max").filter(|&max| max > 0),
        });
        let view = match options.get_str("viewOn") {
            Ok(on) => {
                let stages = options.get_array("pipeline").cloned().unwrap_or_default();
                let stage = |stage: Bson| match stage {
                    Bson::Document(stage) => Some(stage),
                    _ => None,
                };
                let pipeline = stages.into_iter().filter_map(stage).collect();
                Some(View { on: on.to_owned(), pipeline })
            }
            Err(_) => None,
        };
        let validator = match options.get_document("validator") {
            Ok(query) if !query.is_empty() => Some(Validator::parse(query)?),
            _ => None,
        };
        let (indexes, usage) = (Vec::new(), Arc::default());
        Ok(Self { namespace, ident, uuid, options, capped, view, validator, indexes, usage })
    }

    pub(crate) fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// An index by which documents with any value of this field are found, or without one.
    pub(crate) fn index_on(&self, field: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| {
            let leads = index.paths.first().is_some_and(|path| path.as_str() == field);
            leads && !index.hidden && !index.sparse && index.partial.is_none()
        })
    }

    fn row_key(namespace: &Namespace) -> Vec<u8> {
        let mut key = vec![COLLECTION_ROW];
        key.extend(namespace.database.as_bytes());
        key.push(0);
        key.extend(namespace.collection.as_bytes());
        key
    }

    pub(crate) fn to_row(&self) -> Document {
        let indexes: Vec<_> = self.indexes.iter().map(|index| Bson::from(index.to_row())).collect();
        doc! {
            "ns": self.namespace.to_string(),
            "ident": self.ident.0 as i64,
            "uuid": self.uuid.clone(),
            "options": &self.options,
            "indexes": indexes,
        }
    }

    pub(crate) fn from_row(row: &Document) -> Result<Self> {
        let namespace = Namespace::parse(row.get_str("ns").map_err(|_| damaged_row())?)?;
        let Some(Bson::Binary(uuid)) = row.get("uuid") else { return Err(damaged_row()) };
        let options = row.get_document("options").map_err(|_| damaged_row())?.clone();
        let mut collection = Self::new(namespace, ident_field(row)?, uuid.clone(), options)?;
        for index in row.get_array("indexes").map_err(|_| damaged_row())? {
            let row = index.as_document().ok_or_else(damaged_row)?;
            collection.indexes.push(Arc::new(Index::from_row(row)?));
        }
        Ok(collection)
    }
}

fn ident_field(row: &Document) -> Result<Ident> {
    row.get_i64("ident").map(|ident| Ident(ident as u64)).map_err(|_| damaged_row())
}

fn damaged_row() -> CommandError {
    fail!(INTERNAL_ERROR, "a row of the catalog is damaged; restore the data directory from a copy")
}

/// Everything that exists at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    collections: BTreeMap<Namespace, Arc<Collection>>,
    /// What was dropped and still has keys.
    dropped: BTreeSet<Ident>,
    next_ident: u64,
    /// Whether a collection has, or had, rules that may take long.
    has_costly_rules: bool,
}

impl Catalog {
    /// Reads the rows of a snapshot.
    pub(crate) fn load(snapshot: &dyn Snapshot, keyspace: KeyspaceId) -> Result<Self> {
        let mut catalog = Self::default();
        for pair in snapshot.scan(keyspace, KeyRange::all(), Direction::Forward)? {
            let (key, value) = pair?;
            match key.split_first() {
                Some((&COLLECTION_ROW, _)) => {
                    let row = Document::from_reader(&value[..])?;
                    let collection = Collection::from_row(&row)?;
                    catalog.note(&collection);
                    catalog.collections.insert(collection.namespace.clone(), Arc::new(collection));
                }
                Some((&DROPPED_ROW, ident)) => {
                    let ident = ident.try_into().map_err(|_| damaged_row())?;
                    let ident = Ident(u64::from_be_bytes(ident));
                    catalog.note_ident(ident);
                    catalog.dropped.insert(ident);
                }
                _ => return Err(damaged_row()),
            }
        }
        Ok(catalog)
    }

    fn note(&mut self, collection: &Collection) {
        self.note_ident(collection.ident);
        collection.indexes.iter().for_each(|index| self.note_ident(index.ident));
        let rules = collection.validator.as_ref();
        self.has_costly_rules |= rules.is_some_and(|rules| rules.is_costly);
    }

    /// Whether the rules of a collection may take long.
    pub(crate) fn has_costly_rules(&self) -> bool {
        self.has_costly_rules
    }

    fn note_ident(&mut self, ident: Ident) {
        self.next_ident = self.next_ident.max(ident.0 + 1);
    }

    /// Sets identifiers aside, which nothing else gets. Returns the first.
    pub(crate) fn reserve_idents(&mut self, count: u64) -> u64 {
        let first = self.next_ident;
        self.next_ident += count;
        first
    }

    /// The next identifiers are these, which were set aside.
    pub(crate) fn use_idents_from(&mut self, first: u64) {
        self.next_ident = first;
    }

    pub(crate) fn allocate_ident(&mut self) -> Ident {
        let ident = Ident(self.next_ident);
        self.next_ident += 1;
        ident
    }

    pub(crate) fn get(&self, namespace: &dyn Names) -> Option<&Arc<Collection>> {
        self.collections.get(namespace)
    }

    pub(crate) fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.collections.values()
    }

    pub(crate) fn in_database<'a>(
        &'a self,
        database: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Collection>> {
        self.collections.values().filter(move |found| found.namespace.database == database)
    }

    /// The databases that have a collection, in order.
    pub(crate) fn databases(&self) -> BTreeSet<String> {
        self.collections.keys().map(|namespace| namespace.database.clone()).collect()
    }

    /// Refuses a new database whose name differs from that of another only by its case, as MongoDB does: on some
    /// disks both would be one directory.
    pub(crate) fn check_case(&self, database: &str) -> Result<()> {
        const ALWAYS: [&str; 3] = ["admin", "config", "local"];
        let first = Namespace { database: database.to_owned(), collection: String::new() };
        let exists = self.collections.range(first..).next();
        if ALWAYS.contains(&database) || exists.is_some_and(|(name, _)| name.database == database) {
            return Ok(());
        }
        let names = self.collections.keys().map(|namespace| namespace.database.as_str());
        match ALWAYS.into_iter().chain(names).find(|name| name.eq_ignore_ascii_case(database)) {
            Some(existing) => Err(fail!(
                DATABASE_DIFFER_CASE,
                "db already exists with different case already have: [{existing}] trying to create \
                     [{database}]"
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn dropped(&self) -> impl Iterator<Item = Ident> {
        self.dropped.iter().copied()
    }

    pub(crate) fn first_dropped(&self) -> Option<Ident> {
        self.dropped.first().copied()
    }

    /// Adds or replaces a collection, here and in the batch.
    pub(crate) fn put(
        &mut self,
        collection: Collection,
        keyspace: KeyspaceId,
        batch: &mut Batch,
    ) -> Result<Arc<Collection>> {
        let row = to_raw(&collection.to_row())?;
        batch.insert(keyspace, Collection::row_key(&collection.namespace), row.into_bytes());
        // A transaction brings identifiers that were set aside before.
        self.note(&collection);
        let collection = Arc::new(collection);
        self.collections.insert(collection.namespace.clone(), Arc::clone(&collection));
        Ok(collection)
    }

    /// Takes a collection out, here and in the batch, without touching its keys.
    pub(crate) fn take(
        &mut self,
        namespace: &Namespace,
        keyspace: KeyspaceId,
        batch: &mut Batch,
    ) -> Option<Arc<Collection>> {
        batch.remove(keyspace, Collection::row_key(namespace));
        self.collections.remove(namespace)
    }

    /// Notes that the keys of an ident are garbage.
    pub(crate) fn discard(&mut self, ident: Ident, keyspace: KeyspaceId, batch: &mut Batch) {
        batch.insert(keyspace, dropped_key(ident), Vec::new());
        self.dropped.insert(ident);
    }

    /// Notes that no key of a discarded ident is left.
    pub(crate) fn forget(&mut self, ident: Ident, keyspace: KeyspaceId, batch: &mut Batch) {
        batch.remove(keyspace, dropped_key(ident));
        self.dropped.remove(&ident);
    }
}

fn dropped_key(ident: Ident) -> Vec<u8> {
    let mut key = vec![DROPPED_ROW];
    key.extend(ident.prefix());
    key
}

#[cfg(test)]
mod tests {
    use quorate_query::value::DocumentRef;

    use super::*;
    use crate::context::{Interrupt, Interruption};
    use crate::error::ErrorCode;
    use crate::finder::InterruptSlot;

    /// Rules are applied while no other client can write: they must end with the command.
    #[test]
    fn rules_that_may_take_long_end_with_the_command_that_they_are_applied_for() {
        let document = bson::rawdoc! { "a": [1, 2, 3], "n": 5 };
        for (long, is_costly) in [
            (bson::doc! { "$filter": { "input": "$a", "cond": { "$gt": ["$$this", 0] } } }, true),
            (bson::doc! { "$range": [0, "$n"] }, false),
        ] {
            let rule = bson::doc! { "$expr": { "$gt": [{ "$size": long }, 0] } };
            let validator = Validator::parse(&bson::doc! { "$or": [rule] }).unwrap();
            let interrupt = Arc::new(Interrupt::default());
            let compiler = || {
                let slot = Arc::new(InterruptSlot::new(Arc::clone(&interrupt)));
                Validator::compiler(None, Some(Meter::of_operation(slot, Arc::default())))
            };
            let accepts = || {
                let matcher = validator.matcher(compiler).unwrap();
                matcher.matches(DocumentRef::Raw(&document)).map_err(CommandError::from)
            };
            assert_eq!(validator.is_costly, is_costly);
            assert!(validator.has_expressions() && accepts().unwrap());
            interrupt.set(Interruption::Killed);
            assert_eq!(accepts().unwrap_err().code, ErrorCode::INTERRUPTED);
        }
        let plain = Validator::parse(&bson::doc! { "a": { "$gt": 1 } }).unwrap();
        assert!(!plain.is_costly && !plain.has_expressions());
    }
}
