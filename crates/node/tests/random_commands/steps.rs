//! Steps of a random run: what they are, how a seed draws them, and the command that each of them sends.
//!
//! A step holds all of its values, so a run of which some steps were taken out is a run as well. A single update
//! or delete names its document by `_id`, or by a sort: which of several documents is meant never depends on the
//! plan.

use bson::{Bson, Document, doc};
use quorate_replication::SeededRandom;

use crate::support::now;

/// Few of each, so that steps meet.
pub(crate) const COLLECTIONS: u64 = 3;
const IDS: u64 = 8;
const VALUES: u64 = 5;
const UNIQUE_VALUES: u64 = 8;
/// The sessions that run transactions and writes that are repeated.
pub(crate) const SESSIONS: u64 = 2;
/// The most statements of a command, and documents of an insert.
const MAX_STATEMENTS: u64 = 3;

/// How long documents with a date live, in seconds, and the dates that they have.
pub(crate) const LIFE: i64 = 100;
const DATES: u64 = 5;

/// The date so many lives after the members' present.
pub(crate) fn date(lives: i64) -> bson::DateTime {
    bson::DateTime::from_millis(now().wall.as_millis() + lives * LIFE * 1_000)
}

/// Limits of capped collections: the documents, and more bytes than those have.
const MAX_CAPPED: u64 = 4;
const CAPPED_BYTES: i32 = 1 << 20;

pub(crate) fn name_of(collection: usize) -> String {
    format!("c{collection}")
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
            Self::Replace(document) => document.clone().into(),
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
        let name = name_of(collection);
        match self {
            Self::Insert { documents, ordered } => {
                doc! { "insert": name, "documents": documents.clone(), "ordered": *ordered }
            }
            Self::Update { statements, ordered } => {
                let updates: Vec<Document> = statements
                    .iter()
                    .map(|statement| {
                        let Update { filter, change, upsert, multi } = statement;
                        doc! {
                            "q": filter.command(), "u": change.command(), "upsert": *upsert, "multi": *multi,
                        }
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
        let name = name_of(collection);
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
    /// All collections go.
    DropDatabase,
}

impl Catalog {
    pub(crate) fn command(&self, collection: usize) -> Document {
        let name = name_of(collection);
        match self {
            Self::Create { most: None } => doc! { "create": name },
            Self::Create { most: Some(most) } => {
                doc! { "create": name, "capped": true, "size": CAPPED_BYTES, "max": *most }
            }
            Self::Drop => doc! { "drop": name },
            Self::Rename { to, drop_target } => doc! {
                "renameCollection": format!("db.{name}"), "to": format!("db.{}", name_of(*to)),
                "dropTarget": *drop_target, "$db": "admin",
            },
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
                { "$out": name_of(*to) },
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

/// Draws steps.
pub(crate) struct Generator {
    random: SeededRandom,
}

impl Generator {
    pub(crate) fn steps(seed: u64, count: usize) -> Vec<Step> {
        let mut generator = Self { random: SeededRandom::new(seed) };
        // Later most names are taken by collections without a limit.
        let first =
            Step::Catalog { collection: generator.collection(), change: generator.create() };
        std::iter::once(first).chain((1..count).map(|_| generator.step())).collect()
    }

    fn below(&mut self, bound: u64) -> i32 {
        self.random.below(bound) as i32
    }

    fn collection(&mut self) -> usize {
        self.random.below(COLLECTIONS) as usize
    }

    fn session(&mut self) -> usize {
        self.random.below(SESSIONS) as usize
    }

    fn step(&mut self) -> Step {
        let (collection, session) = (self.collection(), self.session());
        match self.random.below(109) {
            0..30 => {
                let write = self.write();
                let retryable = write.may_be_repeated() && self.random.chance(50);
                Step::Write { collection, write, session: retryable.then_some(session) }
            }
            30..36 => Step::Repeat { session },
            36..49 => Step::Read { collection, read: self.read() },
            56..64 => Step::Catalog { collection, change: self.catalog() },
            64..80 => Step::WriteWithin { session, collection, write: self.write() },
            80..84 => Step::ReadWithin { session, collection, read: self.read() },
            84..88 => Step::Commit { session },
            92 => Step::Abort { session },
            93..95 => Step::Sync,
            95 => {
                Step::TakeOver { batch: 1 + self.random.below(60), kept: self.random.below(2_000) }
            }
            49..56 | 88..92 => Step::Copy { collections: self.random.below(4) },
            96 => Step::RollBack { kept: self.random.below(1_000) },
            108.. => Step::Expire { lives: self.random.below(DATES + 2) as i64 },
            106 | 107 => {
                let matched = ["replace", "merge", "keepExisting"][self.random.below(3) as usize];
                Step::Merge { collection, filter: self.filter(), to: self.collection(), matched }
            }
            100..106 => {
                let (batch, skipped) = (1 + self.random.below(5), self.random.below(1_000));
                Step::Watch { batch, collection, skipped }
            }
            _ => Step::Crash { kept: self.random.below(1_001) },
        }
    }

    fn id(&mut self) -> i32 {
        self.below(IDS)
    }

    fn field(&mut self) -> &'static str {
        ["a", "b", "u"][self.random.below(3) as usize]
    }

    fn condition(&mut self) -> Filter {
        let (field, value) = (self.field(), self.below(VALUES));
        match self.random.below(8) {
            0..3 => Filter::Equal(field, value),
            3 => Filter::Null(field),
            4 | 5 => {
                let operator = ["$gt", "$gte", "$lt", "$lte"][self.random.below(4) as usize];
                Filter::Compare(field, operator, value)
            }
            6 => Filter::In(field, vec![value, self.below(VALUES)]),
            _ => Filter::Exists(field, self.random.chance(50)),
        }
    }

    fn filter(&mut self) -> Filter {
        match self.random.below(10) {
            0 => Filter::All,
            1..3 => Filter::Id(self.id()),
            3 => Filter::Compare("_id", "$gte", self.id()),
            4 => Filter::Either(self.condition().into(), self.condition().into()),
            5 => Filter::Both(self.condition().into(), self.condition().into()),
            _ => self.condition(),
        }
    }

    /// One document, or none.
    fn single(&mut self) -> Filter {
        let id = self.id();
        match self.random.below(10) {
            0 | 1 => Filter::IdAnd(id, Filter::Equal("a", self.below(VALUES)).into()),
            2 => Filter::IdAnd(id, Filter::Compare("a", "$gt", self.below(VALUES)).into()),
            _ => Filter::Id(id),
        }
    }

    fn value(&mut self, field: &str) -> Bson {
        match (field, self.random.below(10)) {
            ("u", _) => self.below(UNIQUE_VALUES).into(),
            ("a", 0) => Bson::Null,
            ("b", 0..6) => {
                let count = self.random.below(3);
                let items: Vec<Bson> = (0..count).map(|_| self.below(VALUES).into()).collect();
                items.into()
            }
            _ => self.below(VALUES).into(),
        }
    }

    /// A document without its `_id`.
    fn content(&mut self) -> Document {
        let mut content = Document::new();
        for (field, percent) in [("a", 80), ("b", 50), ("u", 90)] {
            if self.random.chance(percent) {
                let value = self.value(field);
                content.insert(field, value);
            }
        }
        if self.random.chance(30) {
            content.insert("t", date(self.random.below(DATES) as i64));
        }
        if content.is_empty() {
            doc! { "c": 1 }
        } else {
            content
        }
    }

    fn change(&mut self) -> Change {
        let field = self.field();
        match self.random.below(10) {
            0..3 => Change::Set(field, self.value(field)),
            3 => Change::SetByPipeline(field, self.below(VALUES)),
            4 | 5 => Change::Add("a", self.below(3) - 1),
            6 => Change::Unset(field),
            7 => Change::Push(self.below(VALUES)),
            _ => Change::Replace(self.content()),
        }
    }

    /// A change that fails for no document, in whatever order they come: no unique index has the field.
    fn change_of_many(&mut self) -> Change {
        match self.random.below(3) {
            0 => Change::Unset("b"),
            1 => Change::SetByPipeline("b", self.below(VALUES)),
            _ => Change::Set("b", self.value("b")),
        }
    }

    fn statements(&mut self) -> u64 {
        if self.random.chance(60) { 1 } else { 1 + self.random.below(MAX_STATEMENTS) }
    }

    fn write(&mut self) -> Write {
        let (count, ordered) = (self.statements(), self.random.chance(60));
        match self.random.below(10) {
            0..3 => {
                let documents = (0..count).map(|_| {
                    let mut document = doc! { "_id": self.id() };
                    document.extend(self.content());
                    document
                });
                Write::Insert { documents: documents.collect(), ordered }
            }
            3..6 => {
                let statements = (0..count).map(|_| self.update()).collect();
                Write::Update { statements, ordered }
            }
            6 | 7 => {
                let statements = (0..count).map(|_| match self.random.chance(25) {
                    true => Delete { filter: self.filter(), multi: true },
                    false => Delete { filter: self.single(), multi: false },
                });
                Write::Delete { statements: statements.collect(), ordered }
            }
            _ => {
                let change = self.random.chance(75).then(|| self.change());
                let upsert = change.is_some() && self.random.chance(40);
                let filter = if upsert { self.single() } else { self.filter() };
                let (sort, new) = (self.sort(), self.random.chance(50));
                Write::FindAndModify { filter, sort, change, upsert, new }
            }
        }
    }

    fn update(&mut self) -> Update {
        if self.random.chance(20) {
            let (filter, change) = (self.filter(), self.change_of_many());
            return Update { filter, change, upsert: false, multi: true };
        }
        let (filter, change) = (self.single(), self.change());
        Update { filter, change, upsert: self.random.chance(40), multi: false }
    }

    fn sort(&mut self) -> Sort {
        let way = |up: bool| if up { 1 } else { -1 };
        let by_a = self.random.chance(50).then(|| way(self.random.chance(50)));
        Sort { by_a, by_id: way(self.random.chance(50)) }
    }

    fn read(&mut self) -> Read {
        let filter = self.filter();
        match self.random.below(10) {
            0..2 => Read::Count { filter },
            2 => Read::Distinct { field: self.field(), filter },
            3 => Read::Group { filter },
            4..6 => Read::Find { filter, sort: None, skip: 0, limit: 0 },
            _ => {
                let sort = Some(self.sort());
                let (skip, limit) = (self.below(3).into(), self.below(4).into());
                Read::Find { filter, sort, skip, limit }
            }
        }
    }

    fn create(&mut self) -> Catalog {
        let most = 1 + self.random.below(MAX_CAPPED) as i64;
        Catalog::Create { most: self.random.chance(70).then_some(most) }
    }

    fn catalog(&mut self) -> Catalog {
        let index = INDEXES[self.random.below(INDEXES.len() as u64) as usize];
        match self.random.below(140) / 10 {
            0 => self.create(),
            1 => Catalog::Drop,
            9 => Catalog::KeepImages(self.random.chance(75)),
            10 => Catalog::Hide { index, hidden: self.random.chance(50) },
            11 => Catalog::Out { filter: self.filter(), to: self.collection() },
            12 if self.random.chance(15) => Catalog::DropDatabase,
            13 => Catalog::Validate { least: self.random.chance(50).then(|| self.below(3)) },
            2 | 3 => Catalog::Rename { to: self.collection(), drop_target: self.random.chance(50) },
            4..9 => Catalog::CreateIndex(index),
            _ => Catalog::DropIndex(index),
        }
    }
}
