//! Changes on top of a snapshot, readable like a snapshot.
//!
//! A view of an overlay shows the changes up to one version, so that a statement can go through
//! documents while it changes them. Records, index entries and unique keys are all keys of the store,
//! so one merge serves them all. Owns nothing of what the keys mean.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use quorate_storage::{
    Batch, Bytes, Direction, KeyRange, KeyspaceId, LogTotals, ReadError, Scan, Snapshot,
};

/// What is under a key from a version on; none if it is removed.
type Versions = Vec<(u64, Option<Bytes>)>;

/// Changes that are not in the store.
#[derive(Default)]
pub(crate) struct Overlay(RwLock<Changes>);

#[derive(Default)]
struct Changes {
    version: u64,
    keys: BTreeMap<KeyspaceId, BTreeMap<Vec<u8>, Versions>>,
    /// How many views there are of each version.
    views: BTreeMap<u64, usize>,
}

impl Overlay {
    fn read(&self) -> RwLockReadGuard<'_, Changes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Changes> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds changes. Views that exist do not show them.
    pub(super) fn apply(&self, batch: Batch) {
        let mut changes = self.write();
        let Changes { version, keys, views } = &mut *changes;
        *version += 1;
        for (keyspace, key, value) in batch.into_tree_changes() {
            let versions = keys.entry(keyspace).or_default().entry(key.to_vec()).or_default();
            forget_unseen(versions, *version, views);
            versions.push((*version, value));
        }
    }

    /// The snapshot with the changes so far.
    pub(super) fn view(self: &Arc<Self>, base: &Arc<dyn Snapshot>) -> Arc<dyn Snapshot> {
        let mut changes = self.write();
        let version = changes.version;
        *changes.views.entry(version).or_default() += 1;
        drop(changes);
        let shown = Shown { overlay: Arc::clone(self), version };
        Arc::new(Overlaid { base: Arc::clone(base), shown: Arc::new(shown) })
    }

    /// All changes as one batch, the last of each key.
    pub(super) fn to_batch(&self) -> Batch {
        let mut batch = Batch::new();
        for (keyspace, keys) in &self.read().keys {
            for (key, versions) in keys {
                match versions.last() {
                    Some((_, Some(value))) => batch.insert(*keyspace, key.clone(), value.clone()),
                    Some((_, None)) => batch.remove(*keyspace, key.clone()),
                    None => {}
                }
            }
        }
        batch
    }
}

/// Drops the versions of a key that no view shows, now that there is a newer one.
fn forget_unseen(versions: &mut Versions, newer: u64, views: &BTreeMap<u64, usize>) {
    let mut until = newer;
    for place in (0..versions.len()).rev() {
        let from = versions[place].0;
        if from == until || views.range(from..until).next().is_none() {
            versions.remove(place);
        } else {
            until = from;
        }
    }
}

/// One version of an overlay, until the last reader of it is gone.
struct Shown {
    overlay: Arc<Overlay>,
    version: u64,
}

impl Drop for Shown {
    fn drop(&mut self) {
        let mut changes = self.overlay.write();
        if let Some(count) = changes.views.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                changes.views.remove(&self.version);
            }
        }
    }
}

impl Shown {
    /// What the changes say about a key; none if they do not concern it.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Option<Bytes>> {
        let changes = self.overlay.read();
        shown_by(changes.keys.get(&keyspace)?.get(key)?, self.version)
    }

    /// The first changed key of a range, with what it holds.
    fn next(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        direction: Direction,
    ) -> Option<(Vec<u8>, Option<Bytes>)> {
        if is_empty(range) {
            return None;
        }
        let changes = self.overlay.read();
        let keys = changes.keys.get(&keyspace)?;
        let mut within = keys.range::<Vec<u8>, _>((range.start.as_ref(), range.end.as_ref()));
        loop {
            let (key, versions) = match direction {
                Direction::Forward => within.next()?,
                Direction::Backward => within.next_back()?,
            };
            if let Some(value) = shown_by(versions, self.version) {
                return Some((key.clone(), value));
            }
        }
    }
}

fn shown_by(versions: &Versions, version: u64) -> Option<Option<Bytes>> {
    let found = versions.iter().rev().find(|(written, _)| *written <= version);
    found.map(|(_, value)| value.clone())
}

/// A range of a map must not end before it starts.
fn is_empty(range: &KeyRange) -> bool {
    match (&range.start, &range.end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
        _ => false,
    }
}

struct Overlaid {
    base: Arc<dyn Snapshot>,
    shown: Arc<Shown>,
}

impl Snapshot for Overlaid {
    fn log_totals(&self, keyspace: KeyspaceId) -> Result<LogTotals, ReadError> {
        self.base.log_totals(keyspace)
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.shown.get(keyspace, key) {
            Some(changed) => Ok(changed),
            None => self.base.get(keyspace, key),
        }
    }

    fn get_known(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.shown.get(keyspace, key) {
            Some(changed) => Ok(changed),
            None => self.base.get_known(keyspace, key),
        }
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError> {
        let base = self.base.scan(keyspace, range.clone(), direction)?.peekable();
        let shown = Arc::clone(&self.shown);
        Ok(Box::new(Merged { base, shown, keyspace, rest: range, direction, changed: None }))
    }
}

/// The pairs of a snapshot and those of the changes, in order; where both have a key, the change.
struct Merged {
    base: Peekable<Scan>,
    shown: Arc<Shown>,
    keyspace: KeyspaceId,
    /// Where the next change is looked for.
    rest: KeyRange,
    direction: Direction,
    /// The next change, if it was looked for.
    changed: Option<Option<(Vec<u8>, Option<Bytes>)>>,
}

impl Merged {
    fn peek_changed(&mut self) -> Option<&(Vec<u8>, Option<Bytes>)> {
        if self.changed.is_none() {
            self.changed = Some(self.shown.next(self.keyspace, &self.rest, self.direction));
        }
        self.changed.as_ref()?.as_ref()
    }

    fn take_changed(&mut self) -> Option<(Vec<u8>, Option<Bytes>)> {
        let (key, value) = self.changed.take()??;
        match self.direction {
            Direction::Forward => self.rest.start = Bound::Excluded(key.clone()),
            Direction::Backward => self.rest.end = Bound::Excluded(key.clone()),
        }
        Some((key, value))
    }
}

impl Iterator for Merged {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let changed = self.peek_changed().map(|(key, _)| key.clone());
            let order = match (self.base.peek(), &changed) {
                (Some(Err(_)), _) | (_, None) => return self.base.next(),
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(Ok((stored, _))), Some(changed)) => match self.direction {
                    Direction::Forward => stored[..].cmp(changed),
                    Direction::Backward => changed[..].cmp(stored),
                },
            };
            if order.is_lt() {
                return self.base.next();
            }
            if order.is_eq() {
                self.base.next();
            }
            if let (key, Some(value)) = self.take_changed()? {
                return Some(Ok((key.into(), value)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_storage::{ModelStore, Store};

    use super::*;

    fn pairs(
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        direction: Direction,
    ) -> Vec<(String, String)> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let scan = snapshot.scan(keyspace, KeyRange::all(), direction).unwrap();
        scan.map(|pair| pair.unwrap()).map(|(key, value)| (text(&key), text(&value))).collect()
    }

    fn shown(snapshot: &dyn Snapshot, keyspace: KeyspaceId) -> String {
        let forward = pairs(snapshot, keyspace, Direction::Forward);
        let mut backward = pairs(snapshot, keyspace, Direction::Backward);
        backward.reverse();
        assert_eq!(forward, backward, "both directions show the same");
        for (key, value) in &forward {
            let found = snapshot.get(keyspace, key.as_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(value.as_bytes()));
        }
        forward.into_iter().map(|(key, value)| format!("{key}={value} ")).collect()
    }

    fn change(keyspace: KeyspaceId, changes: &[(&str, Option<&str>)]) -> Batch {
        let mut batch = Batch::new();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(keyspace, key.as_bytes(), value.as_bytes()),
                None => batch.remove(keyspace, key.as_bytes()),
            }
        }
        batch
    }

    #[test]
    fn a_view_shows_the_snapshot_with_the_changes_up_to_it() {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("all").unwrap();
        let pairs = [("a", Some("1")), ("c", Some("1")), ("e", Some("1"))];
        store.commit(change(keyspace, &pairs)).unwrap();
        let base = store.snapshot();
        let overlay = Arc::new(Overlay::default());
        let before = overlay.view(&base);
        overlay.apply(change(keyspace, &[("b", Some("2")), ("c", Some("2")), ("e", None)]));
        let between = overlay.view(&base);
        overlay.apply(change(keyspace, &[("a", None), ("b", Some("3")), ("f", Some("3"))]));
        let last = overlay.view(&base);
        store.commit(change(keyspace, &[("a", Some("9")), ("z", Some("9"))])).unwrap();
        assert_eq!(shown(&*before, keyspace), "a=1 c=1 e=1 ");
        assert_eq!(shown(&*between, keyspace), "a=1 b=2 c=2 ");
        assert_eq!(shown(&*last, keyspace), "b=3 c=2 f=3 ");
        store.commit(overlay.to_batch()).unwrap();
        assert_eq!(shown(&*store.snapshot(), keyspace), "b=3 c=2 f=3 z=9 ");
    }

    #[test]
    fn versions_that_no_view_shows_are_not_kept() {
        let store = ModelStore::new();
        let keyspace = store.create_keyspace("all").unwrap();
        let overlay = Arc::new(Overlay::default());
        let held = overlay.view(&store.snapshot());
        for number in 0..100_u32 {
            let value = number.to_string();
            let view = overlay.view(&store.snapshot());
            overlay.apply(change(keyspace, &[("a", Some(&value))]));
            drop(view);
        }
        let kept = |overlay: &Overlay| overlay.read().keys[&keyspace][&b"a"[..]].len();
        assert_eq!(kept(&overlay), 2, "the newest, and the one that was shown when it was written");
        drop(held);
        overlay.apply(change(keyspace, &[("a", Some("x"))]));
        let held = overlay.view(&store.snapshot());
        overlay.apply(change(keyspace, &[("a", Some("y"))]));
        overlay.apply(change(keyspace, &[("a", Some("z"))]));
        assert_eq!(kept(&overlay), 2, "the one that is shown, and the newest");
        assert_eq!(shown(&*held, keyspace), "a=x ");
    }
}
