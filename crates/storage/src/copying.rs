//! A store as a stream of bytes: all keyspaces at one moment, out of one store and into another.
//!
//! ```text
//!   header   QRTCOPY 01
//!   'K'      a keyspace begins:  kind (1; 0 a tree, 1 a log), name with length
//!   'P'      a pair of it:       key with length, value with length
//!   'E'      the end:            pairs (8), CRC-32C of all before the 'E' (4)
//! ```
//!
//! Lengths are four bytes, least significant first. The stream may be cut into pieces anywhere. Without
//! its end it is not a copy, and [`CopyWriter::finish`] says so.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::store::{
    Batch, CommitError, Direction, KeyRange, KeyspaceError, KeyspaceId, ReadError, Scan, Snapshot,
    Store, SyncError,
};

const HEADER: &[u8; 8] = b"QRTCOPY\x01";
const KEYSPACE: u8 = b'K';
const PAIR: u8 = b'P';
const END: u8 = b'E';

const TREE: u8 = 0;
const LOG: u8 = 1;

/// A batch of the copy is committed when it holds this much.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The longest value of a stream: above that of any store.
const MAX_LENGTH: usize = 256 * 1024 * 1024;

/// Often enough for the newest keyspaces to be seen; they are made when a member starts, and seldom later.
const MAX_LISTINGS: usize = 100;

/// All keyspaces of a store at one moment, as bytes. Never blocks writers.
pub struct CopyReader {
    snapshot: Arc<dyn Snapshot>,
    keyspaces: VecDeque<(String, KeyspaceId)>,
    scan: Option<Scan>,
    pairs: u64,
    checksum: u32,
    ready: Vec<u8>,
    /// How much of `ready` was handed out.
    handed: usize,
    ended: bool,
}

impl CopyReader {
    /// The store as it is now.
    pub fn new(store: &dyn Store) -> Self {
        // A keyspace that is made between the list and the snapshot would be missing.
        let mut keyspaces = store.keyspaces();
        let mut snapshot = store.snapshot();
        for _ in 0..MAX_LISTINGS {
            let again = store.keyspaces();
            if again == keyspaces {
                break;
            }
            keyspaces = again;
            snapshot = store.snapshot();
        }
        Self {
            snapshot,
            keyspaces: keyspaces.into(),
            scan: None,
            pairs: 0,
            checksum: 0,
            ready: HEADER.to_vec(),
            handed: 0,
            ended: false,
        }
    }

    /// The next bytes: `size` of them, and fewer only at the end. None after the end.
    ///
    /// # Errors
    ///
    /// If the store cannot be read. The copy is to be begun anew then.
    pub fn next_piece(&mut self, size: usize) -> Result<Option<Vec<u8>>, ReadError> {
        if self.ready.len() - self.handed < size {
            self.ready.drain(..std::mem::take(&mut self.handed));
        }
        while self.ready.len() - self.handed < size && !self.ended {
            self.advance()?;
        }
        let rest = &self.ready[self.handed..];
        if rest.is_empty() {
            return Ok(None);
        }
        let piece = rest[..size.min(rest.len())].to_vec();
        self.handed += piece.len();
        Ok(Some(piece))
    }

    fn advance(&mut self) -> Result<(), ReadError> {
        let start = self.ready.len();
        if let Some(scan) = &mut self.scan {
            match scan.next() {
                Some(pair) => {
                    let (key, value) = pair?;
                    self.ready.push(PAIR);
                    put(&mut self.ready, &key);
                    put(&mut self.ready, &value);
                    self.pairs += 1;
                }
                None => self.scan = None,
            }
        } else if let Some((name, keyspace)) = self.keyspaces.pop_front() {
            let kind = match self.snapshot.log_totals(keyspace) {
                Ok(_) => LOG,
                Err(ReadError::NotALog) => TREE,
                // It was removed before the snapshot was taken.
                Err(ReadError::UnknownKeyspace) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.ready.extend([KEYSPACE, kind]);
            put(&mut self.ready, name.as_bytes());
            let all = self.snapshot.scan(keyspace, KeyRange::all(), Direction::Forward)?;
            self.scan = Some(all);
        } else {
            let checksum = self.checksum;
            self.ready.push(END);
            self.ready.extend(self.pairs.to_le_bytes());
            self.ready.extend(checksum.to_le_bytes());
            self.ended = true;
        }
        self.checksum = crc32c::crc32c_append(self.checksum, &self.ready[start..]);
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

/// Fills an empty store from the bytes of a [`CopyReader`].
pub struct CopyWriter {
    store: Arc<dyn Store>,
    received: Vec<u8>,
    keyspace: Option<(KeyspaceId, bool)>,
    batch: Batch,
    batch_bytes: usize,
    pairs: u64,
    checksum: u32,
    begun: bool,
    ended: bool,
}

/// A copy that did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The bytes are not those of a copy.
    #[error("what arrived is not a copy of a store ({0}); begin the copy anew")]
    Malformed(&'static str),
    /// The stream ended too early.
    #[error("the copy broke off before its end; begin it anew")]
    Incomplete,
    /// A keyspace could not be made.
    #[error(transparent)]
    Keyspace(#[from] KeyspaceError),
    /// Pairs could not be stored.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The copy could not be forced to disk.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

impl CopyWriter {
    /// Writes into this store, which should be empty.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            received: Vec::new(),
            keyspace: None,
            batch: Batch::new(),
            batch_bytes: 0,
            pairs: 0,
            checksum: 0,
            begun: false,
            ended: false,
        }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    ///
    /// If they are not those of a copy, or the store fails.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        self.received.extend_from_slice(bytes);
        let mut used = 0;
        if !self.begun {
            let Some(header) = self.received.get(..HEADER.len()) else { return Ok(()) };
            if header != HEADER {
                return Err(CopyError::Malformed("its header is another one"));
            }
            self.begun = true;
            used = HEADER.len();
        }
        loop {
            let received = std::mem::take(&mut self.received);
            let taken = self.take_item(&received[used..]);
            self.received = received;
            match taken? {
                0 => break,
                length => used += length,
            }
        }
        self.received.drain(..used);
        Ok(())
    }

    /// Takes one item, if it is whole, and returns its length.
    fn take_item(&mut self, bytes: &[u8]) -> Result<usize, CopyError> {
        let Some(&kind) = bytes.first() else { return Ok(0) };
        if self.ended {
            return Err(CopyError::Malformed("it goes on after its end"));
        }
        let mut rest = &bytes[1..];
        match kind {
            KEYSPACE => {
                let Some((&is_log, after)) = rest.split_first() else { return Ok(0) };
                rest = after;
                let Some(name) = get(&mut rest)? else { return Ok(0) };
                self.begin_keyspace(name, is_log == LOG)?;
            }
            PAIR => {
                let Some(key) = get(&mut rest)? else { return Ok(0) };
                let Some(value) = get(&mut rest)? else { return Ok(0) };
                self.add(key, value)?;
            }
            END => {
                let Some((told, _)) = rest.split_at_checked(12) else { return Ok(0) };
                let mut own = self.pairs.to_le_bytes().to_vec();
                own.extend(self.checksum.to_le_bytes());
                if own != told {
                    return Err(CopyError::Malformed("its checksum differs"));
                }
                self.flush()?;
                self.ended = true;
                return Ok(13);
            }
            _ => return Err(CopyError::Malformed("an item is of no known kind")),
        }
        let length = bytes.len() - rest.len();
        self.checksum = crc32c::crc32c_append(self.checksum, &bytes[..length]);
        Ok(length)
    }

    fn begin_keyspace(&mut self, name: &[u8], is_log: bool) -> Result<(), CopyError> {
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(CopyError::Malformed("the name of a keyspace is not text"));
        };
        self.flush()?;
        let keyspace =
            if is_log { self.store.create_log(name)? } else { self.store.create_keyspace(name)? };
        self.keyspace = Some((keyspace, is_log));
        Ok(())
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), CopyError> {
        match self.keyspace {
            None => return Err(CopyError::Malformed("a pair is in no keyspace")),
            Some((keyspace, false)) => self.batch.insert(keyspace, key, value),
            Some((log, true)) => {
                let Ok(position) = key.try_into().map(u64::from_be_bytes) else {
                    return Err(CopyError::Malformed("a position is not of eight bytes"));
                };
                self.batch.append_to_log(log, position, value);
            }
        }
        self.pairs += 1;
        self.batch_bytes += key.len() + value.len();
        if self.batch_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), CopyError> {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.store.commit(batch)?;
        }
        Ok(())
    }

    /// Forces the whole copy to disk, and returns how many pairs it has.
    ///
    /// # Errors
    ///
    /// If the end of the stream was not seen, or the disk fails.
    pub fn finish(self) -> Result<u64, CopyError> {
        if !self.ended {
            return Err(CopyError::Incomplete);
        }
        self.store.sync_through(self.store.last_committed())?;
        Ok(self.pairs)
    }
}

/// The next run of bytes with its length; none if not all of it is there.
fn get<'b>(rest: &mut &'b [u8]) -> Result<Option<&'b [u8]>, CopyError> {
    let Some((length, after)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_LENGTH {
        return Err(CopyError::Malformed("a length is beyond all bounds"));
    }
    let Some((bytes, after)) = after.split_at_checked(length) else { return Ok(None) };
    *rest = after;
    Ok(Some(bytes))
}
