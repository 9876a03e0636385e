//! Moments that reads can come back to: what read concern `snapshot` shows.
//!
//! The first such read begins a moment and returns its time; later ones name that time and see the
//! same data, whatever was written or dropped since. A moment is a snapshot of the store with the
//! catalog of the same instant, and lives on the member that began it. Owns how many are kept and
//! for how long, since each keeps old versions of documents from being cleaned up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{MonotonicTime, Timestamp};

use crate::catalog::{Catalog, Collection};
use crate::error::{CommandError, Result};
use crate::generic_arguments::ReadsAt;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::View;

/// The most moments kept at once. The oldest goes first.
const MAX_MOMENTS: usize = 64;

/// How long a moment can be read, whether it is used or not.
const LIFETIME: Duration = Duration::from_secs(300);

/// All data as it was at one time.
pub(crate) struct Moment {
    /// When the last entry of the oplog was written that it shows.
    pub(crate) time: Timestamp,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) view: View,
}

impl Moment {
    pub(crate) fn read(&self, namespace: &Namespace) -> (Option<Arc<Collection>>, View) {
        (self.catalog.get(namespace).cloned(), self.view.clone())
    }
}

/// The moments that are kept, by their time.
#[derive(Default)]
pub(crate) struct Moments(BTreeMap<Timestamp, Kept>);

struct Kept {
    moment: Arc<Moment>,
    since: MonotonicTime,
}

impl Moments {
    /// Keeps the present. A known moment of the same time is kept for longer.
    pub(crate) fn keep(&mut self, moment: Arc<Moment>, now: MonotonicTime) -> Arc<Moment> {
        if let Some(known) = self.0.get_mut(&moment.time) {
            known.since = now;
            return Arc::clone(&known.moment);
        }
        while self.0.len() >= MAX_MOMENTS {
            self.0.pop_first();
        }
        self.0.insert(moment.time, Kept { moment: Arc::clone(&moment), since: now });
        moment
    }

    /// The moment of this time, if it can still be read.
    pub(crate) fn at(&self, time: Timestamp, now: MonotonicTime) -> Option<Arc<Moment>> {
        let kept = self.0.get(&time).filter(|kept| now.since(kept.since) < LIFETIME);
        kept.map(|kept| Arc::clone(&kept.moment))
    }

    /// Lets go of what is too old.
    pub(crate) fn expire(&mut self, now: MonotonicTime) {
        self.0.retain(|_, kept| now.since(kept.since) < LIFETIME);
    }

    /// Lets go of everything: the past has changed.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Refuses a read that came after entries which are not in the log any more, or not yet.
fn cut_off() -> CommandError {
    fail!(
        INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
        "the log of this member was cut while the read waited; read again"
    )
}

impl Node {
    /// The data that a read sees, if it is to see one moment; none if it may look at the newest
    /// whenever it wants. Without a set there is one copy of the data, and every read sees it.
    pub(crate) fn pin(&self, reads_at: ReadsAt, now: MonotonicTime) -> Result<Option<Arc<Moment>>> {
        match (reads_at, self.replication()) {
            (ReadsAt::Newest, _) | (ReadsAt::NewestAfter(_) | ReadsAt::Majority(_), None) => {
                Ok(None)
            }
            (ReadsAt::Snapshot(at), _) => self.moment(at, now).map(Some),
            (ReadsAt::Majority(after), Some(replication)) => {
                let view = replication.majority_view().ok_or_else(not_committed)?;
                match after {
                    Some(after) if view.time < after => Err(cut_off()),
                    _ => Ok(Some(view)),
                }
            }
            (ReadsAt::NewestAfter(after), Some(replication)) => {
                let before = replication.standing();
                if before.last.op_time.timestamp < after {
                    return Err(cut_off());
                }
                let present = self.present(before.last.op_time.timestamp);
                // No entry was undone before the view was taken: it shows all that was there.
                match replication.standing().cuts == before.cuts {
                    true => Ok(Some(Arc::new(present))),
                    false => Err(cut_off()),
                }
            }
        }
    }

    /// The newest data, under this time.
    fn present(&self, time: Timestamp) -> Moment {
        let (catalog, view) = self.present_view();
        Moment { time, catalog, view }
    }
}

/// Refuses a majority read before anything is known to be committed.
pub(crate) fn not_committed() -> CommandError {
    fail!(
        READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET,
        "this member does not know yet what a majority has; read again soon, or ask another member"
    )
}

/// Refuses to read at a time that is not kept.
pub(crate) fn not_kept(time: Timestamp) -> CommandError {
    fail!(
        SNAPSHOT_TOO_OLD,
        "this member does not keep what it held at Timestamp({}, {}): snapshots are readable for \
             {} seconds on the member that began them; start a new snapshot session",
        time.seconds,
        time.increment,
        LIFETIME.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use quorate_storage::{ModelStore, Store};

    use super::*;
    use crate::records::Keyspaces;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_millis(seconds * 1000)
    }

    fn moment(seconds: u32) -> Arc<Moment> {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("all").unwrap();
        let keyspaces = Keyspaces {
            catalog: keyspace,
            records: keyspace,
            indexes: keyspace,
            oplog: store.create_log("oplog").unwrap(),
            history: None,
            sessions: keyspace,
        };
        Arc::new(Moment {
            time: Timestamp::new(seconds, 1),
            catalog: Arc::default(),
            view: View { snapshot: store.snapshot(), keyspaces, places: Arc::default() },
        })
    }

    #[test]
    fn moments_are_found_by_their_time_until_they_are_old() {
        let mut moments = Moments::default();
        let first = moments.keep(moment(1), at(0));
        assert!(Arc::ptr_eq(&first, &moments.keep(moment(1), at(200))), "the same time");
        moments.keep(moment(2), at(200));
        let found = moments.at(Timestamp::new(1, 1), at(499)).unwrap();
        assert!(Arc::ptr_eq(&first, &found));
        assert!(moments.at(Timestamp::new(1, 1), at(500)).is_none());
        assert!(moments.at(Timestamp::new(1, 2), at(200)).is_none());
        moments.expire(at(500));
        assert!(moments.0.is_empty());
    }

    #[test]
    fn the_oldest_make_room_and_a_changed_past_leaves_none() {
        let mut moments = Moments::default();
        for seconds in 0..=MAX_MOMENTS as u32 {
            moments.keep(moment(seconds), at(0));
        }
        assert_eq!(moments.0.len(), MAX_MOMENTS);
        assert!(moments.at(Timestamp::new(0, 1), at(0)).is_none());
        assert!(moments.at(Timestamp::new(1, 1), at(0)).is_some());
        moments.clear();
        assert!(moments.at(Timestamp::new(1, 1), at(0)).is_none());
    }
}
