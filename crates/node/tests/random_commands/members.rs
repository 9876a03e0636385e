//! Other members: they follow, take over, roll back, and copy everything.

use std::collections::BTreeMap;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocumentBuf, doc};
use quorate_node::{CommandError, Namespace, entry_position};
use quorate_protocol::{MemberState, OpTimeAndWallTime};
use quorate_storage::ModelStore;

use crate::model::Effects;
use crate::running::{Last, ONE_BATCH, Record, Run, UNLOGGED, Verdict, first_batch, lead, open};
use crate::steps::DATABASES;
use crate::support::set::{entries, hash_in, images, position, show, uuid_in};
use crate::support::{Member, now};

/// A member that copies everything.
pub(crate) struct Copying {
    member: Member,
    /// The last entry when it began.
    begun: OpTimeAndWallTime,
    /// The collections that are left of the database that was listed last, as they were then.
    listed: Vec<Document>,
    /// How many databases were listed.
    databases: usize,
}

impl Copying {
    /// The database that was listed last.
    fn database(&self) -> &'static str {
        DATABASES[self.databases - 1]
    }

    /// Lists the next database, if this one is copied.
    fn list_next(&mut self, source: &Member) {
        while self.listed.is_empty() && self.databases < DATABASES.len() {
            self.databases += 1;
            self.listed = listed(source, self.database());
        }
    }
}

fn listed(member: &Member, database: &str) -> Vec<Document> {
    first_batch(&member.run(doc! { "listCollections": 1, "$db": database }))
}

impl Run {
    /// A member that applied the log, and may have taken a part of it back, is the primary and knows what the sessions
    /// did.
    pub(crate) fn take_over(&mut self, batch: usize, kept: u64) -> Verdict {
        self.figures.taken_over += 1;
        self.reading_on = None;
        self.copying = None;
        self.member = self.follower(batch)?.into();
        self.undo(kept)?;
        lead(&self.member)?;
        self.sessions.iter_mut().for_each(|session| session.move_on(UNLOGGED - 1));
        self.begin_anew()
    }

    /// Goes on with a copy: the first step lists the collections, and each copies some. Once all are there, the next
    /// step applies the log since the first. The copy holds the same then, and knows what the sessions did.
    pub(crate) fn copy(&mut self, collections: u64) -> Verdict {
        let mut copying = match self.copying.take() {
            Some(copying) => copying,
            None => {
                let member = open(ModelStore::new(), &self.opened)?;
                member.node.wipe(now()).map_err(failed)?;
                Copying { member, begun: position(&self.member), listed: Vec::new(), databases: 0 }
            }
        };
        copying.list_next(&self.member);
        if !copying.listed.is_empty() {
            for _ in 0..collections {
                let Some(listed) = copying.listed.pop() else { break };
                self.copy_collection(&copying, &listed)?;
            }
            self.copying = Some(copying);
            return Ok(());
        }
        let Some(copy) = self.copied(copying)? else { return self.skip() };
        self.figures.copied += 1;
        lead(&copy)?;
        let original = std::mem::replace(&mut self.member, copy.into());
        let records = self.records.len();
        let outcome = self.repeat_all().and_then(|()| self.look());
        self.records.truncate(records);
        self.member = original;
        outcome.map_err(|error| format!("after a copy: {error}"))
    }

    /// Copies a collection, whatever its name is by now. One that is gone stays as it is.
    fn copy_collection(&self, copying: &Copying, listing: &Document) -> Verdict {
        let (copy, database) = (&copying.member, copying.database());
        let name = listing.get_str("name").map_err(|error| error.to_string())?;
        let namespace = Namespace::new(database, name).map_err(failed)?;
        let options = listing.get_document("options").cloned().unwrap_or_default();
        let is_view = listing.get_str("type").is_ok_and(|kind| kind == "view");
        let nil = Binary { subtype: BinarySubtype::Uuid, bytes: vec![0; 16] };
        let uuid = uuid_in(listing).or(is_view.then_some(nil));
        let uuid = uuid.ok_or("a collection without a uuid")?;
        copy.node.clone_collection(&namespace, uuid.clone(), options, now()).map_err(failed)?;
        if is_view {
            copy.node.copied_whole(&uuid);
            return Ok(());
        }
        let current = listed(&self.member, database);
        let current = current.iter().find(|entry| uuid_in(entry).as_ref() == Some(&uuid));
        let Some(Ok(name)) = current.map(|entry| entry.get_str("name")) else { return Ok(()) };
        let documents = self.member.find(doc! { "find": name, "$db": database });
        let documents = documents.iter().map(RawDocumentBuf::try_from);
        let documents = documents.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        copy.node.clone_documents(&namespace, documents, now()).map_err(failed)?;
        for spec in first_batch(&self.member.run(doc! { "listIndexes": name, "$db": database })) {
            copy.node.clone_index(&namespace, spec, now()).map_err(failed)?;
        }
        copy.node.copied_whole(&uuid);
        Ok(())
    }

    /// The finished copy. None if it has to begin again: a collection has moved from one database to another meanwhile.
    fn copied(&self, copying: Copying) -> Result<Option<Member>, String> {
        let Copying { member: copy, begun, .. } = copying;
        copy.node.clone_sessions(&session_rows(&self.member), now()).map_err(failed)?;
        let mut log = entries(&self.member);
        let is_later = |entry: &RawDocumentBuf| {
            entry_position(entry).is_ok_and(|at| at.op_time >= begun.op_time)
        };
        let mut first = log.iter().position(is_later).unwrap_or(log.len());
        // A transaction is applied whole, with its last entry.
        while log.get(first).is_some_and(goes_on) {
            first -= 1;
        }
        let log = log.split_off(first);
        let has_moved = log.iter().any(moves);
        copy.node.apply_cloned(log, now()).map_err(failed)?;
        match copy.node.finish_clone(position(&self.member), now()) {
            Err(error) if has_moved && error.message.contains("begins again") => return Ok(None),
            finished => finished.map_err(failed)?,
        }
        let known = images(&self.member);
        match images(&copy).into_iter().find(|image| !known.contains(image)) {
            Some(wrong) => Err(format!("a copy keeps {wrong}\n  the primary {known:?}")),
            None => self.same(copy, "a copy").map(Some),
        }
    }

    /// The member takes commands back, and what their sessions knew with them.
    pub(crate) fn roll_back(&mut self, kept: u64) -> Verdict {
        (self.copying, self.reading_on) = (None, None);
        show(&self.member.node, MemberState::Secondary, false);
        for session in &mut self.sessions {
            session.open = None;
            session.lasts = session.lasts.filter(|sequence| *sequence < UNLOGGED);
        }
        self.undo(kept)?;
        lead(&self.member)?;
        self.begin_anew()
    }

    /// Undoes all but so many thousandths of the commands since the last crash or take-over.
    fn undo(&mut self, kept: u64) -> Verdict {
        let place = (self.records.len() as u64 * kept / 1_000) as usize;
        let is_new = |record: &Record| record.position != position(&self.member);
        if !self.records.get(place).is_some_and(is_new) {
            return Ok(());
        }
        self.figures.rolled_back += 1;
        let common = self.records.swap_remove(place);
        let undone = self.member.node.roll_back_to(common.position, now(), &mut |_| Ok(()));
        undone.map_err(|error| format!("cannot roll back to {:?}: {error}", common.position))?;
        self.model = common.model;
        self.sessions.iter_mut().for_each(|session| session.go_back(common.sequence));
        Ok(())
    }

    /// What came before is not reached by later crashes and rollbacks.
    pub(crate) fn settle(&mut self) {
        self.records.clear();
        self.record(Effects::default(), None);
    }

    fn begin_anew(&mut self) -> Verdict {
        self.settle();
        self.repeat_all()?;
        self.look()
    }

    /// Every session sends its last write or commit again, if it is there.
    fn repeat_all(&mut self) -> Verdict {
        for session in 0..self.sessions.len() {
            let known = &self.sessions[session];
            match known.last {
                Some(_) if known.lasts.is_none_or(|sequence| sequence == UNLOGGED) => {}
                Some(Last::Write(_)) => self.repeat(session)?,
                Some(Last::Commit) => self.commit_again(session)?,
                None => {}
            }
        }
        Ok(())
    }

    /// A member that applies the log, so many entries at once, and holds the same.
    pub(crate) fn follower(&self, batch: usize) -> Result<Member, String> {
        let follower = open(ModelStore::new(), &self.opened)?;
        // Threads prepare larger batches.
        follower.node.prepare_from(batch.max(2) / 2 + 20);
        for entries in entries(&self.member).chunks(batch) {
            let previous = position(&follower).op_time;
            let applied = follower.node.apply(previous, entries, now());
            applied.map_err(|error| format!("a follower cannot apply the log: {error}"))?;
        }
        match (images(&follower), images(&self.member)) {
            (follows, leads) if follows == leads => self.same(follower, "a follower"),
            (follows, leads) => {
                Err(format!("a follower keeps {follows:?}\n  the primary {leads:?}"))
            }
        }
    }

    /// The other member, if it holds the same documents and rows of sessions.
    fn same(&self, other: Member, what: &str) -> Result<Member, String> {
        for database in DATABASES {
            let (follows, leads) = (hash_in(&other, database), hash_in(&self.member, database));
            if follows != leads {
                return Err(format!("{what} holds {follows}\n  the primary {leads}"));
            }
        }
        match (valid_rows(&other), valid_rows(&self.member)) {
            (follows, leads) if follows == leads => Ok(other),
            (follows, leads) => Err(format!("{what} has {follows:?}\n  the primary {leads:?}")),
        }
    }
}

/// Whether an entry belongs to a transaction of which another one comes before it.
fn goes_on(entry: &RawDocumentBuf) -> bool {
    let is_part = entry.get_document("o").is_ok_and(|o| o.get_array("applyOps").is_ok());
    let previous = entry.get_document("prevOpTime").and_then(|at| at.get_timestamp("ts"));
    is_part && previous.is_ok_and(|at| at.time > 0)
}

/// Whether an entry moves a collection to another database.
fn moves(entry: &RawDocumentBuf) -> bool {
    let Ok(command) = entry.get_document("o") else { return false };
    let database = |name: &str| {
        let name = command.get_str(name).ok()?;
        name.split('.').next().map(str::to_owned)
    };
    database("renameCollection").is_some_and(|from| database("to") != Some(from))
}

/// What a member knows of sessions, as it is stored.
fn session_rows(member: &Member) -> Vec<Document> {
    first_batch(&member.run(doc! {
        "find": "replset.sessions.", "batchSize": ONE_BATCH, "$db": "local",
        "$readPreference": { "mode": "nearest" },
    }))
}

/// The rows of the sessions' newest numbers. Results of an earlier number may still be there, or not.
fn valid_rows(member: &Member) -> Vec<(Vec<u8>, Vec<u8>)> {
    /// A session, and that the row is about its number.
    const SESSION: usize = 16 + 1;
    let bytes =
        |row: &Document, name: &str| row.get_binary_generic(name).cloned().unwrap_or_default();
    let rows = session_rows(member);
    let rows: BTreeMap<_, _> =
        rows.iter().map(|row| (bytes(row, "_id"), bytes(row, "row"))).collect();
    let is_valid = |key: &[u8]| {
        let mut session = key[..SESSION].to_vec();
        session[SESSION - 1] = 0;
        let number = rows.get(&session).map(|row| &row[..8]);
        key.len() == SESSION || Some(&key[SESSION..SESSION + 8]) == number
    };
    let valid = rows.iter().filter(|(key, _)| is_valid(key));
    valid.map(|(key, row)| (key.clone(), row.clone())).collect()
}

fn failed(error: CommandError) -> String {
    format!("cannot copy: {error}")
}
