//! Steps of a random run: what they are, and the command that each of them sends.
//!
//! A step holds all of its values, so a run of which some steps were taken out is a run as well. A single update
//! or delete names its document by `_id`, or by a sort: which of several documents is meant never depends on the
//! plan.

use crate::support::now;
use bson::{Bson, Document, doc};

/// Few of each, so that steps meet.
pub(crate) const COLLECTIONS: u64 = 4;
pub(crate) const VIEWS: u64 = 2;
pub(crate) const DATABASES: [&str; 2] = ["db", "other"];
/// The sessions that run transactions and writes that are repeated.
pub(crate) const SESSIONS: u64 = 2;
/// How long documents with a date live, in seconds, and the dates that they have.
pub(crate) const LIFE: i64 = 100;

/// The date so many lives after the members' present.
pub(crate) fn date(lives: i64) -> bson::DateTime {
    bson::DateTime::from_millis(now().wall.as_millis() + lives * LIFE * 1_000)
}

/// More bytes than the documents of a capped collection have.
const CAPPED_BYTES: i32 = 1 << 20;

/// The last collection is in another database, and has the name of the first.
const ELSEWHERE: usize = COLLECTIONS as usize - 1;

pub(crate) fn database_of(collection: usize) -> &'static str {
    DATABASES[usize::from(collection == ELSEWHERE)]
}

pub(crate) fn name_of(collection: usize) -> String {
    format!("c{}", collection % ELSEWHERE)
}

pub(crate) fn full_name(collection: usize) -> String {
    format!("{}.{}", database_of(collection), name_of(collection))
}

/// A command on the database of a collection.
pub(crate) fn on(collection: usize, mut command: Document) -> Document {
    command.insert("$db", database_of(collection));
    command
}

pub(crate) fn name_of_view(view: usize) -> String {
    format!("v{view}")
}

/// What a view shows documents of. All views are in the first database.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ViewOn {
    Collection(usize),
    View(usize),
}

impl ViewOn {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Collection(collection) => name_of(collection),
            Self::View(view) => name_of_view(view),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ViewChange {
    Create {
        on: ViewOn,
        filter: Filter,
    },
    Modify {
        on: ViewOn,
        filter: Filter,
    },
    Drop,
    /// A write to a view is refused.
    Write(Write),
}

impl ViewChange {
    pub(crate) fn command(&self, view: usize) -> Document {
        let name = name_of_view(view);
        let described = |command: &str, on: &ViewOn, filter: &Filter| {
            doc! {
                command: &name, "viewOn": on.name(), "pipeline": [{ "$match": filter.command() }],
            }
        };
        match self {
            Self::Create { on, filter } => described("create", on, filter),
            Self::Modify { on, filter } => described("collMod", on, filter),
            Self::Drop => doc! { "drop": name },
            Self::Write(write) => write.command_on(&name),
        }
    }
}

/// Which documents are meant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Filter {
    All,
    Id(i32),
    /// This document, if it is so.
    IdAnd(i32, Box<Filter>),
    Equal(&'static str, i32),
    Null(&'static str),
    Compare(&'static str, &'static str, i32),
    In(&'static str, Vec<i32>),
    Exists(&'static str, bool),
    Either(Box<Filter>, Box<Filter>),
    Both(Box<Filter>, Box<Filter>),
}

impl Filter {
    pub(crate) fn command(&self) -> Document {
        match self {
            Self::All => doc! {},
            Self::Id(id) => doc! { "_id": *id },
            Self::IdAnd(id, other) => {
                let mut filter = doc! { "_id": *id };
                filter.extend(other.command());
                filter
            }
            Self::Equal(field, value) => doc! { *field: *value },
            Self::Null(field) => doc! { *field: Bson::Null },
            Self::Compare(field, operator, value) => doc! { *field: { *operator: *value } },
            Self::In(field, values) => doc! { *field: { "$in": values.clone() } },
            Self::Exists(field, exists) => doc! { *field: { "$exists": *exists } },
            Self::Either(one, two) => doc! { "$or": [one.command(), two.command()] },
            Self::Both(one, two) => doc! { "$and": [one.command(), two.command()] },
        }
    }

    /// The documents that are meant, if the filter names several.
    pub(crate) fn ids(&self) -> Option<&[i32]> {
        match self {
            Self::In("_id", ids) => Some(ids),
            _ => None,
        }
    }

    /// The document that is meant, if the filter names one.
    pub(crate) fn id(&self) -> Option<i32> {
        match self {
            Self::Id(id) | Self::IdAnd(id, _) => Some(*id),
            _ => None,
        }
    }
}

/// What becomes of a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Set(&'static str, Bson),
    /// The same as a pipeline.
    SetByPipeline(&'static str, i32),
    Add(&'static str, i32),
    Unset(&'static str),
    Push(i32),
    /// The item of `b` that the query has matched becomes this.
    SetMatched(i32),
    /// All items of `b` become this.
    SetItems(i32),
    /// Those of at least so much do.
    SetLarge {
        least: i32,
        value: i32,
    },
    Replace(Document),
}

impl Change {
    pub(crate) fn command(&self) -> Bson {
        match self {
            Self::Set(field, value) => doc! { "$set": { *field: value.clone() } }.into(),
            Self::SetByPipeline(field, value) => bson::bson!([{ "$set": { *field: *value } }]),
            Self::Add(field, value) => doc! { "$inc": { *field: *value } }.into(),
            Self::Unset(field) => doc! { "$unset": { *field: "" } }.into(),
            Self::Push(value) => doc! { "$push": { "b": *value } }.into(),
            Self::SetMatched(value) => doc! { "$set": { "b.$": *value } }.into(),
            Self::SetItems(value) => doc! { "$set": { "b.$[]": *value } }.into(),
            Self::SetLarge { value, .. } => doc! { "$set": { "b.$[large]": *value } }.into(),
            Self::Replace(document) => document.clone().into(),
        }
    }

    /// The `arrayFilters` that belong to it.
    fn array_filters(&self) -> Option<Bson> {
        match self {
            Self::SetLarge { least, .. } => Some(bson::bson!([{ "large": { "$gte": *least } }])),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Update {
    pub(crate) filter: Filter,
    pub(crate) change: Change,
    pub(crate) upsert: bool,
    pub(crate) multi: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delete {
    pub(crate) filter: Filter,
    pub(crate) multi: bool,
}

/// An order in which every document has its place: by `a` if wanted, then by `_id`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sort {
    pub(crate) by_a: Option<i32>,
    pub(crate) by_id: i32,
}

impl Sort {
    fn command(self) -> Document {
        let mut sort = Document::new();
        if let Some(direction) = self.by_a {
            sort.insert("a", direction);
        }
        sort.insert("_id", self.by_id);
        sort
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    Insert {
        documents: Vec<Document>,
        ordered: bool,
    },
    Update {
        statements: Vec<Update>,
        ordered: bool,
    },
    Delete {
        statements: Vec<Delete>,
        ordered: bool,
    },
    /// Without a change it removes.
    FindAndModify {
        filter: Filter,
        sort: Sort,
        change: Option<Change>,
        upsert: bool,
        new: bool,
    },
}

impl Write {
    pub(crate) fn command(&self, collection: usize) -> Document {
        on(collection, self.command_on(&name_of(collection)))
    }

    fn command_on(&self, name: &str) -> Document {
        match self {
            Self::Insert { documents, ordered } => {
                doc! { "insert": name, "documents": documents.clone(), "ordered": *ordered }
            }
            Self::Update { statements, ordered } => {
                let updates: Vec<Document> = statements
                    .iter()
                    .map(|statement| {
                        let Update { filter, change, upsert, multi } = statement;
                        let mut update = doc! {
                            "q": filter.command(), "u": change.command(), "upsert": *upsert, "multi": *multi,
                        };
                        update.extend(change.array_filters().map(|it| ("arrayFilters".to_owned(), it)));
                        update
                    })
                    .collect();
                doc! { "update": name, "updates": updates, "ordered": *ordered }
            }
            Self::Delete { statements, ordered } => {
                let deletes: Vec<Document> = statements
                    .iter()
                    .map(|Delete { filter, multi }| {
                        doc! { "q": filter.command(), "limit": i32::from(!multi) }
                    })
                    .collect();
                doc! { "delete": name, "deletes": deletes, "ordered": *ordered }
            }
            Self::FindAndModify { filter, sort, change, upsert, new } => {
                let mut command = doc! { "findAndModify": name, "query": filter.command(), "sort": sort.command() };
                match change {
                    None => command.insert("remove", true),
                    Some(change) => {
                        command.insert("update", change.command());
                        command.extend(
                            change.array_filters().map(|it| ("arrayFilters".to_owned(), it)),
                        );
                        command.insert("upsert", *upsert);
                        command.insert("new", *new)
                    }
                };
                command
            }
        }
    }

    /// Whether it changes documents in an order that is not said.
    pub(crate) fn changes_many(&self) -> bool {
        matches!(self, Self::Update { statements, .. } if statements.iter().any(|update| update.multi))
    }

    /// The documents that it names, if it is one statement for several.
    pub(crate) fn named(&self) -> Option<&[i32]> {
        match self {
            Self::Update { statements, .. } => match statements.as_slice() {
                [Update { filter, multi: true, .. }] => filter.ids(),
                _ => None,
            },
            Self::Delete { statements, .. } => match statements.as_slice() {
                [Delete { filter, multi: true }] => filter.ids(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether it is about one document, which it names.
    pub(crate) fn is_about_one(&self) -> bool {
        match self {
            Self::Insert { documents, .. } => documents.len() == 1,
            Self::Update { statements, .. } => {
                statements.len() == 1
                    && statements.iter().all(|update| update.filter.id().is_some())
            }
            Self::Delete { statements, .. } => {
                statements.len() == 1
                    && statements.iter().all(|delete| delete.filter.id().is_some())
            }
            Self::FindAndModify { filter, .. } => filter.id().is_some(),
        }
    }

    /// Whether a client may repeat it: it changes one document with each statement.
    pub(crate) fn may_be_repeated(&self) -> bool {
        match self {
            Self::Insert { .. } | Self::FindAndModify { .. } => true,
            Self::Update { statements, .. } => statements.iter().all(|statement| !statement.multi),
            Self::Delete { statements, .. } => statements.iter().all(|statement| !statement.multi),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Read {
    Find {
        filter: Filter,
        sort: Option<Sort>,
        skip: i64,
        limit: i64,
    },
    Count {
        filter: Filter,
    },
    Distinct {
        field: &'static str,
        filter: Filter,
    },
    /// How many documents have which `a`.
    Group {
        filter: Filter,
    },
}

impl Read {
    pub(crate) fn command(&self, collection: usize) -> Document {
        on(collection, self.command_on(&name_of(collection)))
    }

    pub(crate) fn command_on(&self, name: &str) -> Document {
        match self {
            Self::Find { filter, sort, skip, limit } => {
                let mut command = doc! { "find": name, "filter": filter.command() };
                if let Some(sort) = sort {
                    command.extend(doc! { "sort": sort.command(), "skip": *skip, "limit": *limit });
                }
                command
            }
            Self::Count { filter } => doc! { "count": name, "query": filter.command() },
            Self::Distinct { field, filter } => {
                doc! { "distinct": name, "key": *field, "query": filter.command() }
            }
            Self::Group { filter } => doc! { "aggregate": name, "cursor": {}, "pipeline": [
                { "$match": filter.command() },
                { "$group": { "_id": "$a", "n": { "$sum": 1 } } },
            ] },
        }
    }
}

/// An index, by its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Index {
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [(&'static str, i32)],
    pub(crate) unique: bool,
    /// Documents go so many seconds after the date in its field.
    pub(crate) expires: Option<i64>,
}

pub(crate) const INDEXES: [Index; 6] = [
    Index { name: "u", fields: &[("u", 1)], unique: true, expires: None },
    Index { name: "au", fields: &[("a", 1), ("u", -1)], unique: true, expires: None },
    Index { name: "a", fields: &[("a", 1)], unique: false, expires: None },
    Index { name: "b", fields: &[("b", 1)], unique: false, expires: None },
    Index { name: "t", fields: &[("t", 1)], unique: false, expires: Some(LIFE) },
    Index { name: "ab", fields: &[("a", -1), ("b", 1)], unique: false, expires: None },
];

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Catalog {
    /// With a limit it is capped: it holds the newest so many documents.
    Create {
        most: Option<i64>,
    },
    Drop,
    Rename {
        to: usize,
        drop_target: bool,
    },
    CreateIndex(Index),
    DropIndex(Index),
    /// Whether documents are kept as they were before a change.
    KeepImages(bool),
    /// Documents that are written must have an `a` of at least this.
    Validate {
        least: Option<i32>,
    },
    /// Whether queries pass an index over.
    Hide {
        index: Index,
        hidden: bool,
    },
    /// The documents that match take the place of those of another collection.
    Out {
        filter: Filter,
        to: usize,
    },
    /// All collections of its database go.
    DropDatabase,
}

impl Catalog {
    pub(crate) fn command(&self, collection: usize) -> Document {
        let name = name_of(collection);
        if let Self::Rename { to, drop_target } = self {
            return doc! {
                "renameCollection": full_name(collection), "to": full_name(*to),
                "dropTarget": *drop_target, "$db": "admin",
            };
        }
        on(collection, self.command_on(name))
    }

    fn command_on(&self, name: String) -> Document {
        match self {
            Self::Create { most: None } => doc! { "create": name },
            Self::Create { most: Some(most) } => {
                doc! { "create": name, "capped": true, "size": CAPPED_BYTES, "max": *most }
            }
            Self::Drop | Self::Rename { .. } => doc! { "drop": name },
            Self::CreateIndex(index) => {
                let fields = index.fields.iter();
                let key: Document =
                    fields.map(|(field, way)| ((*field).to_owned(), Bson::Int32(*way))).collect();
                let mut spec = doc! { "key": key, "name": index.name, "unique": index.unique };
                spec.extend(
                    index
                        .expires
                        .map(|seconds| doc! { "expireAfterSeconds": seconds })
                        .unwrap_or_default(),
                );
                doc! { "createIndexes": name, "indexes": [spec] }
            }
            Self::DropIndex(index) => doc! { "dropIndexes": name, "index": index.name },
            Self::Validate { least } => {
                let validator = least.map(|least| doc! { "a": { "$gte": least } });
                doc! { "collMod": name, "validator": validator.unwrap_or_default() }
            }
            Self::Hide { index, hidden } => doc! {
                "collMod": name, "index": { "name": index.name, "hidden": *hidden },
            },
            Self::Out { filter, to } => doc! { "aggregate": name, "cursor": {}, "pipeline": [
                { "$match": filter.command() },
                { "$out": { "db": database_of(*to), "coll": name_of(*to) } },
            ] },
            Self::DropDatabase => doc! { "dropDatabase": 1 },
            Self::KeepImages(enabled) => {
                doc! { "collMod": name, "changeStreamPreAndPostImages": { "enabled": *enabled } }
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Write {
        collection: usize,
        write: Write,
        session: Option<usize>,
    },
    /// The last write of a session is sent again.
    Repeat {
        session: usize,
    },
    Read {
        collection: usize,
        read: Read,
    },
    Catalog {
        collection: usize,
        change: Catalog,
    },
    /// A statement of a session's transaction, which it begins if none is open.
    WriteWithin {
        session: usize,
        collection: usize,
        write: Write,
    },
    ReadWithin {
        session: usize,
        collection: usize,
        read: Read,
    },
    /// A transaction creates a collection, or an index.
    CreateWithin {
        session: usize,
        collection: usize,
        index: Option<Index>,
    },
    /// A transaction drops an index, which is refused and does not end it.
    DropWithin {
        session: usize,
        collection: usize,
        index: Index,
    },
    /// A view is made, changed, dropped or written to.
    View {
        view: usize,
        change: ViewChange,
    },
    /// A cursor over a collection shows so many documents more, or is opened.
    ReadOn {
        collection: usize,
        batch: u64,
    },
    ReadView {
        view: usize,
        read: Read,
    },
    ReadViewWithin {
        session: usize,
        view: usize,
        read: Read,
    },
    /// If no transaction is open, the commit of the last one is repeated.
    Commit {
        session: usize,
    },
    Abort {
        session: usize,
    },
    /// Everything that is written so far survives the next crash.
    Sync,
    /// The documents that match are merged into another collection.
    Merge {
        collection: usize,
        filter: Filter,
        to: usize,
        /// What becomes of those that are there.
        matched: &'static str,
    },
    /// Another member applies the log, so many entries at once, takes some of it back if less than all is kept, and
    /// becomes primary.
    TakeOver {
        batch: u64,
        kept: u64,
    },
    /// The member steps down and takes its last commands back. So many thousandths of those since the last crash or
    /// take-over stay.
    RollBack {
        kept: u64,
    },
    /// A member that copies everything goes on with so many collections.
    Copy {
        collections: u64,
    },
    /// A reader of the database's change stream goes on, with so many events at once. Another one watches a
    /// collection, and a third begins after so many thousandths of the events.
    Watch {
        batch: u64,
        collection: usize,
        skipped: u64,
    },
    /// Documents go that have lived so many lives.
    Expire {
        lives: i64,
    },
    /// The process ends; so many thousandths of the commits that were not synced survive.
    Crash {
        kept: u64,
    },
}
