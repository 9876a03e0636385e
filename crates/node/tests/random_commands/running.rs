//! A member and the model take the same steps, and must say and hold the same.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_protocol::{MemberState, OpTimeAndWallTime, Term};
use quorate_replication::NoopReason;
use quorate_storage::{ModelStore, Store};

use crate::members::Copying;
use crate::model::{Claim, Collection, Effects, Model, Place, Told};
use crate::reading_on::ReadingOn;
use crate::steps::{
    COLLECTIONS, DATABASES, INDEXES, Index, Read, SESSIONS, Step, VIEWS, Write, full_name, name_of,
    name_of_view, on,
};
use crate::support::set::{OPLOG_BYTES, position, show};
use crate::support::{Member, now};
use crate::watching::Watching;

pub(crate) const WRITE_CONFLICT: i32 = 112;
const NO_SUCH_TRANSACTION: i32 = 251;
/// More than all documents.
pub(crate) const ONE_BATCH: i32 = 1_000;
/// A collection that the model knows nothing of.
pub(crate) const BESIDE: &str = "beside";
/// In place of a commit of the store, for a transaction that changed nothing: only its process knows of it.
pub(crate) const UNLOGGED: u64 = u64::MAX;
/// The bytes of a transaction's operations in one entry: two or three of them.
const TRANSACTION_ENTRY_BYTES: usize = 300;
/// Between two looks at everything.
const LOOK: usize = 25;

/// What was done, for a report that says more than "nothing failed".
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) steps: u64,
    pub(crate) skipped: u64,
    pub(crate) errors: u64,
    pub(crate) repeated: u64,
    pub(crate) committed: u64,
    pub(crate) conflicts: u64,
    pub(crate) crashes: u64,
    pub(crate) crashes_within: u64,
    pub(crate) resumed: u64,
    pub(crate) taken_over: u64,
    pub(crate) rolled_back: u64,
    pub(crate) copied: u64,
    pub(crate) events: u64,
    pub(crate) waited: u64,
    pub(crate) created: u64,
}

impl Figures {
    pub(crate) fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.errors += other.errors;
        self.repeated += other.repeated;
        self.committed += other.committed;
        self.conflicts += other.conflicts;
        self.crashes += other.crashes;
        self.crashes_within += other.crashes_within;
        self.resumed += other.resumed;
        self.taken_over += other.taken_over;
        self.rolled_back += other.rolled_back;
        self.copied += other.copied;
        self.events += other.events;
        self.waited += other.waited;
        self.created += other.created;
    }
}

/// A transaction that is open.
#[derive(Clone)]
pub(crate) struct Open {
    view: Model,
    began: u64,
    modified: BTreeSet<Place>,
    claims: BTreeSet<Claim>,
    used: BTreeSet<usize>,
    /// The collections that it creates.
    pub(crate) created: BTreeSet<usize>,
}

impl Open {
    /// What it sees.
    pub(crate) fn view(&self) -> &Model {
        &self.view
    }

    pub(crate) fn view_mut(&mut self) -> &mut Model {
        &mut self.view
    }

    pub(crate) fn began(&self) -> u64 {
        self.began
    }
}

#[derive(Clone)]
pub(crate) struct LastWrite {
    collection: usize,
    write: Write,
    pub(crate) command: Document,
    told: Told,
}

/// What a session may send again.
#[derive(Clone)]
pub(crate) enum Last {
    Write(Box<LastWrite>),
    Commit,
}

#[derive(Clone, Default)]
pub(crate) struct Session {
    pub(crate) number: i64,
    pub(crate) open: Option<Open>,
    pub(crate) last: Option<Last>,
    /// The commit of the store with which the last one is there; none if a crash took it.
    pub(crate) lasts: Option<u64>,
    /// All numbers that are in the log: their commits of the store, and what may be sent again.
    pub(crate) logged: Vec<(u64, i64, Option<Last>)>,
    /// The number that it had when this process began.
    pub(crate) began_with: i64,
}

impl Session {
    /// What it has done since this commit of the store is undone. It may send again what it did before.
    pub(crate) fn go_back(&mut self, sequence: u64) {
        self.open = None;
        self.logged.retain(|(at, _, _)| *at <= sequence);
        let (at, number, last) = self.logged.last().cloned().unwrap_or_default();
        // A number that this process never saw may be in the log.
        self.number = number.max(self.began_with);
        self.last = last.filter(|_| number == self.number);
        self.lasts = self.last.as_ref().map(|_| at);
    }

    /// Another process goes on, which numbers its commits anew. Of a transaction that changed nothing it knows nothing.
    pub(crate) fn move_on(&mut self, survivor: u64) {
        self.open = None;
        self.lasts = self.lasts.filter(|sequence| *sequence <= survivor).map(|_| 0);
        self.logged.retain(|(at, _, _)| *at <= survivor);
        self.logged.iter_mut().for_each(|(at, _, _)| *at = 0);
        self.began_with = self.number;
    }
}

/// The state after a step.
pub(crate) struct Record {
    pub(crate) sequence: u64,
    pub(crate) position: OpTimeAndWallTime,
    pub(crate) model: Model,
    pub(crate) effects: Effects,
    /// The command, if it may be repeated after a crash within it.
    pub(crate) repeatable: Option<(Document, Told)>,
}

pub(crate) struct Run {
    pub(crate) member: Arc<Member>,
    /// How many processes there were.
    pub(crate) opened: Cell<u64>,
    /// A copy that goes on.
    pub(crate) copying: Option<Copying>,
    pub(crate) watching: Option<Watching>,
    /// A cursor that is open.
    pub(crate) reading_on: Option<ReadingOn>,
    pub(crate) model: Model,
    pub(crate) sessions: Vec<Session>,
    pub(crate) records: Vec<Record>,
    pub(crate) figures: Figures,
}

pub(crate) type Verdict = Result<(), String>;

/// A secondary. Each process has its own source of identifiers.
pub(crate) fn open(store: ModelStore, opened: &Cell<u64>) -> Result<Member, String> {
    opened.set(opened.get() + 1);
    let member = Member::with_history_and_seed(store, OPLOG_BYTES, opened.get());
    member.node.join_replica_set(now()).map_err(|error| error.to_string())?;
    // Transactions have several entries.
    member.node.split_transactions_at(TRANSACTION_ENTRY_BYTES);
    show(&member.node, MemberState::Secondary, false);
    Ok(member)
}

/// The member becomes primary.
pub(crate) fn lead(member: &Member) -> Verdict {
    show(&member.node, MemberState::Primary, true);
    let noop = member.node.append_noop(NoopReason::NewPrimary, Term(1), now());
    noop.map_err(|error| error.to_string())?;
    sync(member)
}

pub(crate) fn sync(member: &Member) -> Verdict {
    let last = member.store.last_committed();
    member.store.sync_through(last).map_err(|error| error.to_string())
}

pub(crate) fn lsid(session: usize) -> Document {
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![1 + session as u8; 16] } }
}

/// Runs the steps one after another. The error says which of them the member and the model disagree about.
pub(crate) fn run(steps: &[Step]) -> Result<Figures, String> {
    let opened = Cell::default();
    let mut run = Run {
        member: open(ModelStore::new(), &opened)?.into(),
        opened,
        copying: None,
        watching: None,
        reading_on: None,
        model: Model::default(),
        sessions: vec![Session::default(); SESSIONS as usize],
        records: Vec::new(),
        figures: Figures::default(),
    };
    lead(&run.member)?;
    expect_ok(&run.member.run(doc! { "create": BESIDE }))?;
    sync(&run.member)?;
    run.record(Effects::default(), None);
    for (number, step) in steps.iter().enumerate() {
        let at = |why: String| format!("step {number}: {why}");
        run.figures.steps += 1;
        run.step(step).map_err(at)?;
        if number % LOOK == LOOK - 1 {
            run.look().map_err(at)?;
        }
    }
    run.look()?;
    run.follower(usize::MAX)?;
    Ok(run.figures)
}

impl Run {
    pub(crate) fn skip(&mut self) -> Verdict {
        self.figures.skipped += 1;
        Ok(())
    }

    pub(crate) fn record(&mut self, effects: Effects, repeatable: Option<(Document, Told)>) {
        let sequence = self.member.store.last_committed().as_u64();
        let (position, model) = (position(&self.member), self.model.clone());
        self.records.push(Record { sequence, position, model, effects, repeatable });
    }

    fn step(&mut self, step: &Step) -> Verdict {
        match step {
            Step::Write { collection, write, session } => self.write(*collection, write, *session),
            Step::Repeat { session } => self.repeat(*session),
            Step::Read { collection, read } => {
                let wanted = self.model.read(*collection, read);
                let reply = self.member.run(read.command(*collection));
                self.compare_read(read, wanted, &reply, true)
            }
            Step::Catalog { collection, change } => self.describe(*collection, change),
            Step::Merge { collection, filter, to, matched } => {
                self.merge(*collection, filter, *to, matched)
            }
            Step::WriteWithin { session, collection, write } => {
                self.write_within(*session, *collection, write)
            }
            Step::ReadWithin { session, collection, read } => {
                self.read_within(*session, *collection, read)
            }
            Step::CreateWithin { session, collection, index } => {
                self.create_within(*session, *collection, *index)
            }
            Step::DropWithin { session, collection, index } => {
                self.drop_within(*session, *collection, *index)
            }
            Step::View { view, change } => self.change_view(*view, change),
            Step::ReadOn { collection, batch } => self.read_on(*collection, *batch as i32),
            Step::ReadView { view, read } => self.read_view(*view, read),
            Step::ReadViewWithin { session, view, read } => {
                self.read_view_within(*session, *view, read)
            }
            Step::Commit { session } => self.commit(*session),
            Step::Abort { session } => match self.sessions[*session].open.take() {
                None => self.skip(),
                Some(_) => {
                    self.end(*session, "abortTransaction").and_then(|reply| expect_ok(&reply))
                }
            },
            Step::Sync => sync(&self.member),
            Step::Expire { lives } => self.expire(*lives),
            Step::Crash { kept } => {
                self.copying = None;
                self.crash(*kept)
            }
            Step::TakeOver { batch, kept } => self.take_over(*batch as usize, *kept),
            Step::RollBack { kept } => self.roll_back(*kept),
            Step::Copy { collections } => self.copy(*collections),
            Step::Watch { batch, collection, skipped } => {
                self.watch(*batch as i32, *collection, *skipped)
            }
        }
    }

    /// Whether an open transaction holds something of this.
    fn is_held(&self, effects: &Effects, but: Option<usize>) -> bool {
        let others = self.sessions.iter().enumerate().filter(|(index, _)| Some(*index) != but);
        let mut open = others.filter_map(|(_, session)| session.open.as_ref());
        open.any(|open| !open.claims.is_disjoint(&effects.claims))
    }

    /// Whether it depends on the order of documents which of them are changed.
    fn is_unclear(&self, collection: usize, write: &Write) -> bool {
        let known = self.model.collections.get(&collection);
        write.changes_many() && known.is_some_and(|known| known.least.is_some())
    }

    /// Whether a write names its documents and changes each of them that an open transaction holds: it does not wait for
    /// one that it leaves as it is, and passes over one that the transaction has made.
    fn waits_for_all(&self, collection: usize, write: &Write, effects: &Effects) -> bool {
        let Some(named) = write.named() else { return false };
        let is_held = |id: &i32| {
            let mut open = self.sessions.iter().filter_map(|session| session.open.as_ref());
            open.any(|open| open.modified.contains(&(collection, *id)))
        };
        let is_changed = |id: &i32| effects.modified.contains(&(collection, *id));
        named.iter().filter(|id| is_held(id)).all(is_changed)
    }

    fn write(&mut self, collection: usize, write: &Write, session: Option<usize>) -> Verdict {
        let mut after = self.model.clone();
        let effects = after.write(collection, write);
        // It would wait. A session has one thing under way; and a collection that a transaction has looked at in
        // vain is not made meanwhile.
        let is_made = !self.model.collections.contains_key(&collection);
        if session.is_some_and(|session| self.sessions[session].open.is_some())
            || (is_made && self.is_used(collection))
            || self.is_unclear(collection, write)
        {
            return self.skip();
        }
        let held = self.is_held(&effects, None);
        let is_clear = write.is_about_one() || self.waits_for_all(collection, write, &effects);
        if held && (!is_clear || self.holder().is_none()) {
            return self.skip();
        }
        let mut command = write.command(collection);
        if let Some(session) = session {
            let known = &mut self.sessions[session];
            known.number += 1;
            command.insert("lsid", lsid(session));
            command.insert("txnNumber", known.number);
        }
        if held {
            return self.write_that_waits(collection, write, session, command);
        }
        let told = Told::of(&self.member.run(command.clone()));
        if Some(&told) != effects.told.as_ref() {
            return Err(format!("{command}\n  answered {told:?}\n  expected {:?}", effects.told));
        }
        self.keep(collection, write, session, (command, told), (after, effects));
        Ok(())
    }

    /// A write was answered as expected.
    pub(crate) fn keep(
        &mut self,
        collection: usize,
        write: &Write,
        session: Option<usize>,
        (command, told): (Document, Told),
        (after, effects): (Model, Effects),
    ) {
        self.figures.errors += u64::from(told.error().is_some());
        self.model = after;
        let complete = effects.complete;
        let repeatable = session.filter(|_| complete).map(|_| (command.clone(), told.clone()));
        self.record(effects, repeatable);
        if let Some(session) = session {
            let last = LastWrite { collection, write: write.clone(), command, told };
            let sequence = self.records.last().map(|record| record.sequence);
            let known = &mut self.sessions[session];
            known.last = complete.then(|| Last::Write(Box::new(last)));
            known.lasts = sequence;
            known.logged.push((sequence.unwrap_or_default(), known.number, known.last.clone()));
        }
    }

    pub(crate) fn repeat(&mut self, session: usize) -> Verdict {
        let known = &self.sessions[session];
        let (None, Some(Last::Write(last))) = (&known.open, known.last.clone()) else {
            return self.skip();
        };
        let LastWrite { collection, write, command, told } = *last;
        if known.lasts.is_none() {
            // A crash took it: it is a new write.
            return self.write(collection, &write, Some(session));
        }
        self.figures.repeated += 1;
        let again = Told::of(&self.member.run(command.clone()));
        if again != told {
            return Err(format!("{command}\n  repeated {again:?}\n  at first {told:?}"));
        }
        self.record(Effects::default(), None);
        Ok(())
    }

    pub(crate) fn compare_read(
        &self,
        read: &Read,
        wanted: Vec<Document>,
        reply: &Document,
        may_drain: bool,
    ) -> Verdict {
        expect_ok(reply)?;
        let mut found = match read {
            Read::Count { .. } => vec![doc! { "n": reply.get_i32("n").unwrap_or(-1) }],
            Read::Distinct { .. } => {
                let values = reply.get_array("values").map_err(|error| error.to_string())?;
                values.iter().map(|value| doc! { "value": value.clone() }).collect()
            }
            Read::Find { .. } | Read::Group { .. } if may_drain => {
                self.member.drain(reply.clone(), &reply_collection(reply))
            }
            Read::Find { .. } | Read::Group { .. } => first_batch(reply),
        };
        if !matches!(read, Read::Find { sort: Some(_), .. }) {
            let key = |document: &Document| {
                let value = document.get("_id").or(document.get("value"));
                value.and_then(Bson::as_i32)
            };
            found.sort_by_key(key);
        }
        match found == wanted {
            true => Ok(()),
            false => Err(format!("{read:?}\n  answered {found:?}\n  expected {wanted:?}")),
        }
    }

    pub(crate) fn is_used(&self, collection: usize) -> bool {
        let mut open = self.sessions.iter().filter_map(|session| session.open.as_ref());
        open.any(|open| open.used.contains(&collection))
    }

    // -- Transactions --------------------------------------------------------------------------------

    /// Begins a session's transaction unless one is open. False if this collection is none of its business.
    pub(crate) fn enter(&mut self, session: usize, collection: usize) -> bool {
        let (committed, known) = (&self.model, &self.sessions[session]);
        if known.open.as_ref().is_some_and(|open| open.created.contains(&collection)) {
            return true;
        }
        let view = known.open.as_ref().map_or(committed, |open| &open.view);
        let described = |model: &Model| model.collections.get(&collection).map(|c| c.described);
        described(view).is_some() && described(view) == described(committed)
    }

    pub(crate) fn run_within(
        &mut self,
        session: usize,
        collection: Option<usize>,
        mut command: Document,
    ) -> Document {
        let (view, began) = (self.model.clone(), self.model.clock);
        let known = &mut self.sessions[session];
        if known.open.is_none() {
            known.number += 1;
            known.last = None;
            let (modified, claims, used, created) = Default::default();
            known.open = Some(Open { view, began, modified, claims, used, created });
            command.insert("startTransaction", true);
        }
        if let Some(open) = &mut known.open {
            open.used.extend(collection);
        }
        command
            .extend(doc! { "lsid": lsid(session), "txnNumber": known.number, "autocommit": false });
        self.member.run(command)
    }

    fn read_within(&mut self, session: usize, collection: usize, read: &Read) -> Verdict {
        if matches!(read, Read::Count { .. }) || !self.enter(session, collection) {
            return self.skip();
        }
        let mut command = read.command(collection);
        if command.contains_key("find") {
            command.insert("batchSize", ONE_BATCH);
        }
        let reply = self.run_within(session, Some(collection), command);
        let Some(open) = &self.sessions[session].open else { return Ok(()) };
        self.compare_read(read, open.view.read(collection, read), &reply, false)
    }

    /// Whether this meets what another transaction holds, or what has changed since this one began: in documents
    /// that it changes, and in anything else that it looks at.
    fn conflicts(&self, session: usize, began: u64, effects: &Effects) -> (bool, bool) {
        let is_newer = |claim: &Claim| self.model.changed.get(claim).is_some_and(|at| *at > began);
        let others = self.sessions.iter().enumerate().filter(|(index, _)| *index != session);
        let others: Vec<&Open> = others.filter_map(|(_, session)| session.open.as_ref()).collect();
        let mut modified = effects.modified.iter();
        let strong = modified.any(|place| {
            is_newer(&Claim::Document(*place))
                || others.iter().any(|other| other.modified.contains(place))
        });
        let weak = effects.claims.iter().any(is_newer) || self.is_held(effects, Some(session));
        (strong, weak)
    }

    fn write_within(&mut self, session: usize, collection: usize, write: &Write) -> Verdict {
        let is_capped = |known: &Collection| known.capped.is_some();
        // What finds nothing creates nothing.
        let is_insert = matches!(write, Write::Insert { .. });
        let creates = is_insert && self.may_create(session, collection);
        if !(creates || self.enter(session, collection))
            || self.is_unclear(collection, write)
            || self.model.collections.get(&collection).is_some_and(is_capped)
        {
            return self.skip();
        }
        let command = write.command(collection);
        let reply = self.run_within(session, Some(collection), command.clone());
        let Some(open) = self.sessions[session].open.clone() else { return Ok(()) };
        let mut after = open.view.clone();
        let effects = after.write(collection, write);
        let (mut strong, mut weak) = self.conflicts(session, open.began, &effects);
        if creates {
            let (must, may) = self.creation_conflicts(session, collection);
            // Documents of an earlier collection of the name are not in the way.
            (strong, weak) = (must, weak || may);
        }
        let told = Told::of(&reply);
        let expected = effects.told.as_ref().and_then(Told::error);
        match told.error() {
            Some(WRITE_CONFLICT) if strong || weak => {
                self.figures.conflicts += 1;
                self.sessions[session].open = None;
                Ok(())
            }
            Some(code) if expected == Some(code) => {
                self.figures.errors += 1;
                self.sessions[session].open = None;
                Ok(())
            }
            None if !strong && Some(&told) == effects.told.as_ref() => {
                if let Some(open) = &mut self.sessions[session].open {
                    // What is remembered of changes is the business of what is committed.
                    open.view = after;
                    open.modified.extend(effects.modified);
                    open.claims.extend(effects.claims);
                    if creates {
                        open.created.insert(collection);
                    }
                }
                self.figures.created += u64::from(creates);
                Ok(())
            }
            _ => Err(format!(
                "{command}\n  answered {reply}\n  expected {:?}{}",
                effects.told,
                if strong { " or a conflict" } else { "" }
            )),
        }
    }

    pub(crate) fn end(&mut self, session: usize, name: &str) -> Result<Document, String> {
        let number = self.sessions[session].number;
        Ok(self.member.run(doc! {
            name: 1, "lsid": lsid(session), "txnNumber": number, "autocommit": false, "$db": "admin",
        }))
    }

    pub(crate) fn commit(&mut self, session: usize) -> Verdict {
        let Some(open) = self.sessions[session].open.take() else {
            return self.commit_again(session);
        };
        let reply = self.end(session, "commitTransaction")?;
        expect_ok(&reply)?;
        self.figures.committed += 1;
        self.model.clock += 1;
        self.make_created(&open);
        let mut effects = Effects { modified: open.modified.clone(), ..Effects::default() };
        for (collection, id) in open.modified.iter().copied() {
            let view = open.view.collections.get(&collection);
            let document = view.and_then(|known| known.documents.get(&id)).cloned();
            effects.trail.push(((collection, id), document.clone()));
            let Some(known) = self.model.collections.get_mut(&collection) else { continue };
            match document {
                Some(document) => known.documents.insert(id, document),
                None => known.documents.remove(&id),
            };
        }
        let clock = self.model.clock;
        let documents = open.modified.iter().map(|place| Claim::Document(*place));
        let uniques = open.claims.into_iter().filter(|claim| matches!(claim, Claim::Unique(..)));
        self.model.changed.extend(documents.chain(uniques).map(|claim| (claim, clock)));
        if let Some(known) = self.model.collections.values().find(|known| !known.is_sound()) {
            return Err(format!(
                "two transactions made a unique index hold a value twice: {known:?}"
            ));
        }
        self.record(effects, None);
        let wrote = !open.modified.is_empty() || !open.created.is_empty();
        let sequence = self.records.last().map(|record| record.sequence);
        let known = &mut self.sessions[session];
        known.last = Some(Last::Commit);
        // Of one that changed nothing no trace is left after a crash.
        known.lasts = if wrote { sequence } else { Some(UNLOGGED) };
        if wrote {
            known.logged.push((sequence.unwrap_or_default(), known.number, Some(Last::Commit)));
        }
        Ok(())
    }

    pub(crate) fn commit_again(&mut self, session: usize) -> Verdict {
        let known = &self.sessions[session];
        let Some(Last::Commit) = known.last else { return self.skip() };
        let lasts = known.lasts.is_some();
        self.figures.repeated += 1;
        let reply = self.end(session, "commitTransaction")?;
        self.record(Effects::default(), None);
        match reply.get_i32("code") {
            Ok(NO_SUCH_TRANSACTION) if !lasts => Ok(()),
            Err(_) if lasts => expect_ok(&reply),
            _ => Err(format!("the commit is repeated and answered {reply}; it lasts: {lasts}")),
        }
    }

    // -- Everything ----------------------------------------------------------------------------------

    /// What the member holds of a collection.
    pub(crate) fn held(&self, collection: usize) -> Result<Option<Collection>, String> {
        let name = name_of(collection);
        let listed = doc! { "listCollections": 1, "filter": { "name": &name } };
        let listed = self.member.run(on(collection, listed));
        let Some(described) = first_batch(&listed).into_iter().next() else { return Ok(None) };
        let documents = self.member.find(on(collection, doc! { "find": &name }));
        let documents = documents.into_iter().map(|document| {
            let id = document.get_i32("_id").map_err(|error| format!("{document}: {error}"))?;
            Ok((id, document))
        });
        let documents = documents.collect::<Result<_, String>>()?;
        let listed = on(collection, doc! { "listIndexes": &name });
        let listed = first_batch(&self.member.run(listed));
        let names: Vec<&str> =
            listed.iter().filter_map(|index| index.get_str("name").ok()).collect();
        let indexes = INDEXES.into_iter().filter(|index| names.contains(&index.name)).collect();
        let is_hidden = |index: &Index| {
            let mut listed = listed.iter();
            let known =
                listed.find(|known| known.get_str("name").is_ok_and(|name| name == index.name));
            known.is_some_and(|known| known.get_bool("hidden").unwrap_or(false))
        };
        let hidden = INDEXES.into_iter().filter(is_hidden).collect();
        let options = described.get_document("options").cloned().unwrap_or_default();
        let images = options.get_document("changeStreamPreAndPostImages");
        let images =
            images.is_ok_and(|images| images.get_bool("enabled").is_ok_and(|enabled| enabled));
        let capped = options.get_bool("capped").is_ok_and(|capped| capped);
        let most = options.get_i64("max").ok().map(|most| most as usize).filter(|_| capped);
        let order = match most {
            Some(_) => {
                let find = doc! { "find": &name, "sort": { "$natural": 1 } };
                self.member.ids(on(collection, find))
            }
            None => Vec::new(),
        };
        let validator = options.get_document("validator").and_then(|it| it.get_document("a"));
        let least = validator.ok().and_then(|it| it.get_i32("$gte").ok());
        let (capped, described) = (most, 0);
        Ok(Some(Collection { documents, indexes, hidden, images, least, capped, order, described }))
    }

    /// The member holds what the model holds, and its indexes and counts agree with its documents.
    pub(crate) fn look(&self) -> Verdict {
        for database in DATABASES {
            let list = doc! { "listCollections": 1, "$db": database };
            for listed in first_batch(&self.member.run(list)) {
                let name = format!("{database}.{}", listed.get_str("name").unwrap_or_default());
                let is_known = (0..COLLECTIONS as usize).any(|known| full_name(known) == name);
                let is_view =
                    (0..VIEWS as usize).any(|view| name == format!("db.{}", name_of_view(view)));
                if !is_known && !is_view && name != format!("db.{BESIDE}") {
                    return Err(format!("no step made {listed}"));
                }
            }
        }
        self.look_at_views()?;
        for collection in 0..COLLECTIONS as usize {
            let mut wanted = self.model.collections.get(&collection).cloned();
            if let Some(wanted) = &mut wanted {
                wanted.described = 0;
            }
            let found = self.held(collection)?;
            let (name, on) = (name_of(collection), |command| on(collection, command));
            if found != wanted {
                return Err(format!("{name} holds {found:?}\n  expected {wanted:?}"));
            }
            let Some(found) = found else { continue };
            let counted = self.member.run(on(doc! { "count": &name }));
            if counted.get_i32("n").ok() != Some(found.documents.len() as i32) {
                return Err(format!("{name} is counted {counted}, and holds {found:?}"));
            }
            let validated = self.member.run(on(doc! { "validate": &name }));
            if validated.get_bool("valid").ok() != Some(true) {
                return Err(format!("{name}: {validated}"));
            }
        }
        Ok(())
    }
}

pub(crate) fn expect_ok(reply: &Document) -> Verdict {
    match reply.get_f64("ok").ok() == Some(1.0) {
        true => Ok(()),
        false => Err(format!("answered {reply}")),
    }
}

pub(crate) fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map(Vec::as_slice).unwrap_or_default();
    batch.iter().filter_map(|item| item.as_document().cloned()).collect()
}

/// The collection of a cursor.
fn reply_collection(reply: &Document) -> String {
    let namespace = reply.get_document("cursor").and_then(|cursor| cursor.get_str("ns"));
    namespace.unwrap_or_default().split_once('.').map_or("", |(_, name)| name).to_owned()
}
