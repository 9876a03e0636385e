//! How a seed draws the steps of a random run.

use bson::{Bson, Document, doc};
use quorate_replication::SeededRandom;

use crate::steps::{
    COLLECTIONS, Catalog, Change, Delete, Filter, INDEXES, Index, Read, SESSIONS, Sort, Step,
    Update, VIEWS, ViewChange, ViewOn, Write, date,
};

/// Few of each, so that steps meet.
const IDS: u64 = 8;
const VALUES: u64 = 5;
const UNIQUE_VALUES: u64 = 8;
const DATES: u64 = 5;
/// The most statements of a command, and documents of an insert.
const MAX_STATEMENTS: u64 = 3;
/// The greatest limit of a capped collection.
const MAX_CAPPED: u64 = 4;

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

    fn view(&mut self) -> usize {
        self.random.below(VIEWS) as usize
    }

    fn step(&mut self) -> Step {
        let (collection, session) = (self.collection(), self.session());
        match self.random.below(127) {
            121.. => Step::ReadOn { collection, batch: 1 + self.random.below(2) },
            109..112 => {
                let view = self.view();
                Step::View { view, change: self.view_change(view) }
            }
            112..115 => Step::ReadView { view: self.view(), read: self.read() },
            115 | 116 => Step::ReadViewWithin { session, view: self.view(), read: self.read() },
            117..120 => {
                let index = self.random.chance(60).then(|| self.index());
                Step::CreateWithin { session, collection, index }
            }
            120 => Step::DropWithin { session, collection, index: self.index() },
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
            108 => Step::Expire { lives: self.random.below(DATES + 2) as i64 },
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

    fn index(&mut self) -> Index {
        INDEXES[self.random.below(INDEXES.len() as u64) as usize]
    }

    /// The second view may show documents of the first, never the other way round.
    fn view_change(&mut self, view: usize) -> ViewChange {
        // Of the first database.
        let collection = ViewOn::Collection(self.random.below(COLLECTIONS - 1) as usize);
        let on = if view > 0 && self.random.chance(40) { ViewOn::View(0) } else { collection };
        match self.random.below(8) {
            0..4 => ViewChange::Create { on, filter: self.filter() },
            4 | 5 => ViewChange::Modify { on, filter: self.filter() },
            6 => ViewChange::Drop,
            _ => ViewChange::Write(self.write()),
        }
    }

    /// Several documents.
    fn several(&mut self) -> Filter {
        let count = 2 + self.random.below(3);
        Filter::In("_id", (0..count).map(|_| self.id()).collect())
    }

    /// A change of items of `b`, and the filter that it needs.
    fn change_of_items(&mut self) -> (Filter, Change) {
        let (id, value) = (self.id(), self.below(VALUES));
        match self.random.below(3) {
            0 => {
                let matched = Filter::Equal("b", self.below(VALUES));
                (Filter::IdAnd(id, matched.into()), Change::SetMatched(value))
            }
            1 => (Filter::Id(id), Change::SetItems(value)),
            _ => (Filter::Id(id), Change::SetLarge { least: self.below(VALUES), value }),
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
                    true => Delete { filter: self.filter_of_many(), multi: true },
                    false => Delete { filter: self.single(), multi: false },
                });
                Write::Delete { statements: statements.collect(), ordered }
            }
            _ if self.random.chance(15) => {
                let (filter, change) = self.change_of_items();
                let (sort, new, change) = (self.sort(), self.random.chance(50), Some(change));
                Write::FindAndModify { filter, sort, change, upsert: false, new }
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

    fn filter_of_many(&mut self) -> Filter {
        if self.random.chance(50) { self.several() } else { self.filter() }
    }

    fn update(&mut self) -> Update {
        if self.random.chance(25) {
            let (filter, change) = (self.filter_of_many(), self.change_of_many());
            return Update { filter, change, upsert: false, multi: true };
        }
        if self.random.chance(15) {
            let (filter, change) = self.change_of_items();
            return Update { filter, change, upsert: false, multi: false };
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
        let index = self.index();
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
