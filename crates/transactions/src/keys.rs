//! Which open transaction holds which key, and which keys were changed lately.

use std::collections::BTreeMap;

use crate::table::TransactionId;

/// What a key costs besides its bytes.
const KEY_OVERHEAD: usize = 64;

/// A place in the order of commits and snapshots of this member.
pub(crate) type Mark = u64;

/// Why a transaction may not change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Conflict {
    /// This open transaction has changed it.
    HeldBy(TransactionId),
    /// It was changed after the snapshot.
    ChangedSince,
}

/// Keys: the ident of a collection or index with a record number or the key of a unique index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Keys {
    intents: BTreeMap<Vec<u8>, TransactionId>,
    /// When each key was changed last, if that was after the oldest open snapshot.
    recent: BTreeMap<Vec<u8>, Mark>,
    by_mark: BTreeMap<Mark, Vec<u8>>,
    recent_bytes: usize,
    now: Mark,
}

impl Keys {
    /// The place of a snapshot that is taken now.
    pub(crate) fn now(&self) -> Mark {
        self.now
    }

    pub(crate) fn holder(&self, key: &[u8]) -> Option<TransactionId> {
        self.intents.get(key).copied()
    }

    /// Whether a transaction with this snapshot may change the key.
    pub(crate) fn check(
        &self,
        transaction: TransactionId,
        snapshot: Mark,
        key: &[u8],
    ) -> Result<(), Conflict> {
        match self.intents.get(key) {
            Some(&holder) if holder == transaction => return Ok(()),
            Some(&holder) => return Err(Conflict::HeldBy(holder)),
            None => {}
        }
        match self.recent.get(key) {
            Some(&changed) if changed > snapshot => Err(Conflict::ChangedSince),
            _ => Ok(()),
        }
    }

    pub(crate) fn hold(&mut self, transaction: TransactionId, key: &[u8]) {
        self.intents.insert(key.to_vec(), transaction);
    }

    /// Notes a committed change.
    pub(crate) fn changed(&mut self, key: &[u8]) {
        self.now += 1;
        match self.recent.insert(key.to_vec(), self.now) {
            Some(before) => {
                self.by_mark.remove(&before);
            }
            None => self.recent_bytes += cost(key),
        }
        self.by_mark.insert(self.now, key.to_vec());
    }

    /// Gives up the keys of a transaction that has ended.
    pub(crate) fn release<'k>(&mut self, keys: impl IntoIterator<Item = &'k Vec<u8>>) {
        for key in keys {
            self.intents.remove(key);
        }
    }

    /// Forgets changes that every open snapshot shows.
    pub(crate) fn forget_through(&mut self, oldest: Option<Mark>) {
        let Some(oldest) = oldest else {
            self.recent.clear();
            self.by_mark.clear();
            self.recent_bytes = 0;
            return;
        };
        while let Some((&mark, _)) = self.by_mark.first_key_value()
            && mark <= oldest
        {
            if let Some((_, key)) = self.by_mark.pop_first() {
                self.recent_bytes -= cost(&key);
                self.recent.remove(&key);
            }
        }
    }

    pub(crate) fn recent_bytes(&self) -> usize {
        self.recent_bytes
    }
}

pub(crate) fn cost(key: &[u8]) -> usize {
    key.len() + KEY_OVERHEAD
}
