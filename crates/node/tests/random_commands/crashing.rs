//! Processes that end, and what the next one finds.

use std::collections::BTreeMap;

use bson::{Document, doc};
use quorate_storage::Store;

use crate::model::{Effects, Place, Told};
use crate::running::{
    BESIDE, Last, Record, Run, Session, Verdict, expect_ok, lead, lsid, open, sync,
};
use crate::steps::{COLLECTIONS, SESSIONS, full_name, name_of};

impl Run {
    pub(crate) fn crash(&mut self, kept: u64) -> Verdict {
        self.figures.crashes += 1;
        self.reading_on = None;
        let (synced, last) = self.member.store.unsynced();
        let (synced, last) = (synced.as_u64(), last.as_u64());
        let survivor = synced + (last - synced) * kept / 1_000;
        self.member = open(self.member.store.crash_after(survivor), &self.opened)?.into();
        lead(&self.member)?;
        self.sessions.iter_mut().for_each(|session| session.move_on(survivor));
        let mut records = std::mem::take(&mut self.records);
        let later = records.iter().position(|record| record.sequence > survivor);
        let later = later.map(|place| records.split_off(place)).unwrap_or_default();
        let Some(before) = records.pop() else { return Err("nothing is that old".to_owned()) };
        self.model = before.model;
        match later.into_iter().next() {
            // Everything before it is there, and a part of it.
            Some(within) if before.sequence < survivor => self.adopt(within)?,
            _ => {}
        }
        self.record(Effects::default(), None);
        self.look()
    }

    /// The process ended within a command: each document is as it was before, after it, or in between.
    fn adopt(&mut self, within: Record) -> Verdict {
        self.figures.crashes_within += 1;
        let mut allowed: BTreeMap<Place, Vec<Option<Document>>> = BTreeMap::new();
        for (place, document) in &within.effects.trail {
            allowed.entry(*place).or_default().push(document.clone());
        }
        let mut adopted = self.model.clone();
        adopted.collections.clear();
        for collection in 0..COLLECTIONS as usize {
            let was = self.model.collections.get(&collection);
            let becomes = within.model.collections.get(&collection);
            let Some(mut found) = self.held(collection)? else {
                if was.is_some() && becomes.is_some() {
                    return Err(format!("a crash took {}", full_name(collection)));
                }
                continue;
            };
            found.described = adopted.clock + 1;
            for id in 0..=i32::from(u8::MAX) {
                let document = found.documents.get(&id);
                let known = [was, becomes].map(|known| known.and_then(|c| c.documents.get(&id)));
                let between = allowed.get(&(collection, id));
                if !known.contains(&document)
                    && !between.is_some_and(|all| all.iter().any(|one| one.as_ref() == document))
                {
                    return Err(format!(
                        "after a crash within a command {} has {document:?} as {id}",
                        name_of(collection)
                    ));
                }
            }
            let known =
                |index| [was, becomes].into_iter().flatten().any(|c| c.indexes.contains(index));
            if !found.indexes.iter().all(known) {
                return Err(format!("after a crash within a command {found:?} has other indexes"));
            }
            adopted.collections.insert(collection, found);
        }
        adopted.clock += 1;
        let clock = adopted.clock;
        adopted.named = (0..COLLECTIONS as usize).map(|known| (known, clock)).collect();
        self.model = adopted;
        self.adopt_views(&within.model)?;
        if let Some((command, told)) = within.repeatable {
            self.figures.resumed += 1;
            // Another session's entry stands between those of the two tries.
            let beside = doc! { "_id": self.figures.resumed as i64 };
            let lsid = lsid(SESSIONS as usize);
            let number = self.figures.resumed as i64;
            expect_ok(&self.member.run(
                doc! { "insert": BESIDE, "documents": [beside], "lsid": lsid, "txnNumber": number },
            ))?;
            let again = Told::of(&self.member.run(command.clone()));
            if again != told {
                return Err(format!("{command}\n  resumed {again:?}\n  at first {told:?}"));
            }
            self.model = within.model;
            let sequence = self.member.store.last_committed().as_u64();
            let is_resumed = |known: &&mut Session| match &known.last {
                Some(Last::Write(last)) => last.command == command,
                _ => false,
            };
            if let Some(known) = self.sessions.iter_mut().find(is_resumed) {
                known.lasts = Some(sequence);
                known.logged.push((sequence, known.number, known.last.clone()));
            }
        }
        // The next crash does not reach back into this.
        sync(&self.member)
    }
}
