//! Cursors that stay open while other commands run.

use std::collections::BTreeMap;

use bson::{Document, doc};

use crate::running::{Run, Verdict, expect_ok};
use crate::steps::{Catalog, database_of, name_of, on};

const QUERY_PLAN_KILLED: i32 = 175;

/// An open cursor over all documents of a collection.
pub(crate) struct ReadingOn {
    collection: usize,
    id: i64,
    /// The documents that it has yet to show, as they were when it was opened.
    left: BTreeMap<i32, Document>,
    /// Whether its collection was dropped, renamed or replaced.
    ended: bool,
}

impl ReadingOn {
    /// Takes a batch: documents of the moment in which the cursor was opened, each once.
    fn take(&mut self, reply: &Document, name: &str) -> Verdict {
        expect_ok(reply)?;
        let cursor = reply.get_document("cursor").map_err(|error| error.to_string())?;
        self.id = cursor.get_i64("id").map_err(|error| error.to_string())?;
        let batch = cursor.get_array(name).map_err(|error| error.to_string())?;
        for shown in batch.iter().filter_map(|shown| shown.as_document()) {
            let id = shown.get_i32("_id").map_err(|error| error.to_string())?;
            let wanted = self.left.remove(&id);
            if wanted.as_ref() != Some(shown) {
                return Err(format!("a cursor shows {shown}\n  expected {wanted:?}"));
            }
        }
        match self.id == 0 && !self.left.is_empty() {
            true => Err(format!("a cursor ends without {:?}", self.left)),
            false => Ok(()),
        }
    }
}

impl Run {
    /// Goes on with the cursor, or opens one.
    pub(crate) fn read_on(&mut self, collection: usize, batch: i32) -> Verdict {
        let Some(mut reading) = self.reading_on.take() else {
            let Some(known) = self.model.collections.get(&collection) else { return self.skip() };
            let left = known.documents.clone();
            let mut reading = ReadingOn { collection, id: 0, left, ended: false };
            let find = doc! { "find": name_of(collection), "batchSize": batch };
            reading.take(&self.member.run(on(collection, find)), "firstBatch")?;
            self.reading_on = Some(reading).filter(|reading| reading.id != 0);
            return Ok(());
        };
        let more = doc! {
            "getMore": reading.id, "collection": name_of(reading.collection), "batchSize": batch,
        };
        let reply = self.member.run(on(reading.collection, more));
        if reading.ended {
            return match reply.get_i32("code") {
                Ok(QUERY_PLAN_KILLED) => Ok(()),
                _ => Err(format!("the collection of a cursor is gone, and it says {reply}")),
            };
        }
        reading.take(&reply, "nextBatch")?;
        self.reading_on = Some(reading).filter(|reading| reading.id != 0);
        Ok(())
    }

    /// Collections are dropped, renamed or replaced: their cursors end.
    pub(crate) fn end_reading(&mut self, collection: usize, change: &Catalog) {
        let Some(reading) = &mut self.reading_on else { return };
        reading.ended |= match change {
            Catalog::Drop => reading.collection == collection,
            Catalog::Rename { to, .. } => [collection, *to].contains(&reading.collection),
            Catalog::Out { to, .. } => reading.collection == *to,
            Catalog::DropDatabase => database_of(reading.collection) == database_of(collection),
            _ => false,
        };
    }
}
