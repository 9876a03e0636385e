//! How far an initial sync is: for `replSetGetStatus`, for the log, and for going on after a blip.
//!
//! Written by the copying side, read by status commands. Decides nothing but which collections need
//! not be copied again within one attempt. docs/replication-rules.md#initial-sync.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{Binary, Document, doc};
use quorate_node::{Namespace, Now};
use quorate_protocol::Lock;
use quorate_replication::InitialSyncStage;

const MEGABYTE: f64 = 1024.0 * 1024.0;

/// The progress of the attempt under way, shared.
#[derive(Clone, Debug, Default)]
pub struct CloneProgress(Arc<Lock<Figures>>);

#[derive(Debug, Default)]
struct Figures {
    attempt: u32,
    started: Option<Now>,
    collections: u64,
    bytes: u64,
    copied_documents: u64,
    copied_bytes: u64,
    /// By name and identifier: a name may have passed to another collection meanwhile.
    copied: BTreeSet<(String, Vec<u8>)>,
    current: String,
    /// What the collection that is being copied has brought so far: lost if it is begun again.
    current_documents: u64,
    current_bytes: u64,
    applied_entries: u64,
    /// The process of the source from which the attempt began.
    source_process: Option<ObjectId>,
}

impl CloneProgress {
    /// An attempt begins, or goes on after an interruption.
    pub fn begin(&self, attempt: u32, now: Now) {
        let mut figures = self.0.lock();
        if figures.attempt != attempt || figures.started.is_none() {
            let source_process = figures.source_process;
            *figures =
                Figures { attempt, started: Some(now), source_process, ..Figures::default() };
        }
    }

    /// The attempt copies from this process.
    pub fn begin_from(&self, process: Option<ObjectId>) {
        self.0.lock().source_process = process;
    }

    /// Whether it is still the process that the attempt began with.
    pub fn is_from(&self, process: Option<ObjectId>) -> bool {
        self.0.lock().source_process == process
    }

    /// How much there is to copy.
    pub fn expect(&self, collections: u64, bytes: u64) {
        let mut figures = self.0.lock();
        (figures.collections, figures.bytes) = (collections, bytes);
    }

    /// Whether a collection was copied whole in this attempt.
    pub fn is_copied(&self, namespace: &Namespace, uuid: &Binary) -> bool {
        self.0.lock().copied.contains(&(namespace.to_string(), uuid.bytes.clone()))
    }

    /// A collection is copied from its start.
    pub fn enter(&self, namespace: &Namespace) {
        let mut figures = self.0.lock();
        figures.copied_documents -= figures.current_documents;
        figures.copied_bytes -= figures.current_bytes;
        (figures.current_documents, figures.current_bytes) = (0, 0);
        figures.current = namespace.to_string();
    }

    /// Documents of it have arrived.
    pub fn add(&self, documents: u64, bytes: u64) {
        let mut figures = self.0.lock();
        figures.copied_documents += documents;
        figures.copied_bytes += bytes;
        figures.current_documents += documents;
        figures.current_bytes += bytes;
    }

    /// It is copied whole, its indexes too.
    pub fn leave(&self, namespace: &Namespace, uuid: &Binary) {
        let mut figures = self.0.lock();
        figures.copied.insert((namespace.to_string(), uuid.bytes.clone()));
        (figures.current_documents, figures.current_bytes) = (0, 0);
        figures.current.clear();
    }

    /// Entries that were written meanwhile have been applied.
    pub fn apply(&self, entries: u64) {
        self.0.lock().applied_entries += entries;
    }

    /// `initialSyncStatus` of `replSetGetStatus`.
    pub fn document(&self, stage: InitialSyncStage, attempt: u32, now: Now) -> Document {
        let figures = self.0.lock();
        let elapsed = figures
            .started
            .map_or(0.0, |started| now.monotonic.since(started.monotonic).as_secs_f64());
        let speed = if elapsed > 0.0 { figures.copied_bytes as f64 / elapsed } else { 0.0 };
        let left = figures.bytes.saturating_sub(figures.copied_bytes);
        let percent = match figures.bytes {
            0 => 0.0,
            all => (figures.copied_bytes as f64 / all as f64 * 100.0).min(100.0),
        };
        let mut document = doc! {
            "stage": format!("{stage:?}"),
            "attempt": attempt as i32,
            "failedInitialSyncAttempts": attempt.saturating_sub(1) as i32,
            "percent": (percent * 10.0).round() / 10.0,
            "approxTotalDataSize": figures.bytes as i64,
            "approxTotalBytesCopied": figures.copied_bytes as i64,
            "documentsCopied": figures.copied_documents as i64,
            "collections": figures.collections as i64,
            "collectionsCopied": figures.copied.len() as i64,
            "megabytesPerSecond": (speed / MEGABYTE * 100.0).round() / 100.0,
            "totalInitialSyncElapsedMillis": (elapsed * 1000.0) as i64,
            "appliedOps": figures.applied_entries as i64,
        };
        if speed > 0.0 {
            let millis = left as f64 / speed * 1000.0;
            document.insert("remainingInitialSyncEstimatedMillis", millis as i64);
        }
        if !figures.current.is_empty() {
            document.insert("currentCollection", &figures.current);
        }
        if let Some(started) = figures.started {
            let start = bson::DateTime::from_millis(started.wall.as_millis());
            document.insert("initialSyncStart", start);
        }
        document
    }

    /// One line for the log.
    pub fn line(&self, now: Now) -> String {
        let document = self.document(InitialSyncStage::Cloning, self.figures_attempt(), now);
        let number = |name: &str| document.get_f64(name).unwrap_or(0.0);
        let left = document.get_i64("remainingInitialSyncEstimatedMillis").unwrap_or(0);
        format!(
            "initial sync: {:.1} %, {:.2} MB/s, {} s left, {} of {} collections",
            number("percent"),
            number("megabytesPerSecond"),
            left / 1000,
            document.get_i64("collectionsCopied").unwrap_or(0),
            document.get_i64("collections").unwrap_or(0),
        )
    }

    fn figures_attempt(&self) -> u32 {
        self.0.lock().attempt
    }
}

#[cfg(test)]
mod tests {
    use bson::spec::BinarySubtype;

    use quorate_protocol::{MonotonicTime, WallTime};

    use super::*;

    fn at(seconds: u64) -> Now {
        let millis = seconds * 1000;
        Now { wall: WallTime(millis as i64), monotonic: MonotonicTime::from_millis(millis) }
    }

    #[test]
    fn percent_speed_and_time_left_come_from_what_was_copied() {
        let progress = CloneProgress::default();
        let namespace = Namespace::new("db", "c").unwrap();
        progress.begin(2, at(0));
        progress.expect(4, 8 * 1024 * 1024);
        progress.enter(&namespace);
        progress.add(10, 2 * 1024 * 1024);
        let shown = progress.document(InitialSyncStage::Cloning, 2, at(2));
        assert_eq!(shown.get_f64("percent").unwrap(), 25.0);
        assert_eq!(shown.get_f64("megabytesPerSecond").unwrap(), 1.0);
        assert_eq!(shown.get_i64("remainingInitialSyncEstimatedMillis").unwrap(), 6000);
        assert_eq!(shown.get_i32("failedInitialSyncAttempts").unwrap(), 1);
        assert_eq!(shown.get_str("currentCollection").unwrap(), "db.c");
        assert!(progress.line(at(2)).starts_with("initial sync: 25.0 %, 1.00 MB/s, 6 s left"));
    }

    #[test]
    fn a_collection_that_is_begun_again_is_not_counted_twice() {
        let progress = CloneProgress::default();
        let (first, second) =
            (Namespace::new("db", "a").unwrap(), Namespace::new("db", "b").unwrap());
        progress.begin(1, at(0));
        progress.enter(&first);
        progress.add(5, 50);
        let uuid = |byte| Binary { subtype: BinarySubtype::Uuid, bytes: vec![byte; 16] };
        progress.leave(&first, &uuid(1));
        progress.enter(&second);
        progress.add(7, 70);
        // The connection broke: the same attempt goes on.
        progress.begin(1, at(9));
        assert!(progress.is_copied(&first, &uuid(1)) && !progress.is_copied(&second, &uuid(2)));
        assert!(!progress.is_copied(&first, &uuid(2)), "another collection has the name by now");
        progress.enter(&second);
        progress.add(8, 80);
        let shown = progress.document(InitialSyncStage::Cloning, 1, at(10));
        assert_eq!(shown.get_i64("documentsCopied").unwrap(), 13);
        // Another attempt starts from nothing.
        progress.begin(2, at(11));
        assert!(!progress.is_copied(&first, &uuid(1)));
    }
}
