//! The end of the journal of format 1 after a power failure.
//!
//! The engine replays whole records and forgets a last one that ends too early. A record whose end
//! reached the disk and whose middle did not is damage to it, and it refuses to open. No client was
//! promised such a record: it was not synced. So before the engine looks, its newest journal is
//! read through here, and a last record that is not whole is cut off. If a whole record follows the
//! damage, the damage is not at the end: something that was synced may be lost, and the store does
//! not open.
//!
//! ```text
//!   record   01  number of items (4)  sequence (8)  item…  03  checksum (8)  "FJL" 03
//!   item     02  kind (1)  compression (1)  keyspace (8)  key (2)  value (4)  stored (4)  key  value
//!            04  keyspace (8)
//! ```
//!
//! Numbers are least significant byte first; the checksum is XXH3 over the items. A zero byte where
//! a record would begin is the end: journals are reserved in advance.

use std::fs::OpenOptions;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::format::OpenError;
use crate::journal::recovery::TornTail;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: [u8; 4] = *b"FJL\x03";

/// Sequences go up by small steps. The checksum does not cover them, so this is what tells.
const MAX_SEQUENCE_STEP: u64 = 1 << 32;

/// How much of a value is looked at together.
const CHUNK: usize = 4096;

/// What begins at a place of a journal.
enum Found {
    /// A record, and how long it is.
    Whole { length: u64, sequence: u64 },
    /// Something that is no whole record.
    Torn,
    /// Nothing more.
    Nothing,
}

/// Cuts the last record off the newest journal if it is not whole.
pub(crate) fn cut_torn_tail(
    engine_directory: &Path,
    number: u64,
) -> Result<Option<TornTail>, OpenError> {
    let journal = engine_directory.join(format!("{number}.jnl"));
    let failed = |source| OpenError::Io { path: journal.clone(), source };
    let Some(offset) = end_of_whole_records(&journal).map_err(failed)? else { return Ok(None) };
    if whole_record_follows(&journal, offset).map_err(failed)? {
        return Err(OpenError::DamagedJournal { journal, offset });
    }
    let file = OpenOptions::new().write(true).open(&journal).map_err(failed)?;
    file.set_len(offset).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(Some(TornTail { journal, offset }))
}

/// Where the whole records end, if something else than nothing follows them.
fn end_of_whole_records(journal: &Path) -> io::Result<Option<u64>> {
    let mut input = BufReader::new(OpenOptions::new().read(true).open(journal)?);
    let (mut offset, mut previous) = (0, None);
    loop {
        match read_record(&mut input, previous)? {
            Found::Whole { length, sequence } => {
                offset += length;
                previous = Some(sequence);
            }
            Found::Torn => return Ok(Some(offset)),
            Found::Nothing => return Ok(None),
        }
    }
}

/// Whether a whole record begins somewhere after the damage.
fn whole_record_follows(journal: &Path, damage: u64) -> io::Result<bool> {
    let mut file = OpenOptions::new().read(true).open(journal)?;
    file.seek(SeekFrom::Start(damage))?;
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    // What only looks like a beginning gives itself away within a few bytes.
    let beginnings = (1..rest.len()).filter(|&place| rest[place] == START);
    for place in beginnings {
        if let Found::Whole { .. } = read_record(&mut &rest[place..], None)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads one record.
fn read_record(input: &mut impl Read, previous: Option<u64>) -> io::Result<Found> {
    let mut first = [0];
    match input.read_exact(&mut first) {
        Ok(()) if first == [0] => return Ok(Found::Nothing),
        Ok(()) if first == [START] => {}
        Ok(()) => return Ok(Found::Torn),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    }
    match read_rest(input, previous) {
        Ok(Some((length, sequence))) => Ok(Found::Whole { length: length + 1, sequence }),
        Ok(None) => Ok(Found::Torn),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Found::Torn),
        Err(error) => Err(error),
    }
}

/// Reads a record behind its first byte: its length without it, and its sequence. `None` if it is
/// not whole.
fn read_rest(input: &mut impl Read, previous: Option<u64>) -> io::Result<Option<(u64, u64)>> {
    let items = u32::from_le_bytes(take(input)?);
    let sequence = u64::from_le_bytes(take(input)?);
    let rises = previous
        .is_none_or(|previous| sequence > previous && sequence - previous < MAX_SEQUENCE_STEP);
    if !rises {
        return Ok(None);
    }
    let read = Items { input, checksum: Xxh3::new(), length: 4 + 8 }.read(items)?;
    let Some((expected, length)) = read else { return Ok(None) };
    let stored = u64::from_le_bytes(take(input)?);
    let trailer: [u8; 4] = take(input)?;
    let whole = stored == expected && trailer == TRAILER;
    Ok(whole.then_some((length + 8 + 4, sequence)))
}

/// The items of a record, as they are read.
struct Items<'r, R> {
    input: &'r mut R,
    checksum: Xxh3,
    length: u64,
}

impl<R: Read> Items<'_, R> {
    /// Reads this many items and the byte that ends them: the checksum, and the length of all that.
    /// `None` if there is something else.
    fn read(mut self, count: u32) -> io::Result<Option<(u64, u64)>> {
        for _ in 0..count {
            match self.note::<1>()? {
                [ITEM] => {
                    let [_kind, compression] = self.note()?;
                    let _keyspace: [u8; 8] = self.note()?;
                    let key = u16::from_le_bytes(self.note()?);
                    let value = u32::from_le_bytes(self.note()?);
                    let stored = u32::from_le_bytes(self.note()?);
                    if compression == 0 && value != stored {
                        return Ok(None);
                    }
                    self.pass(u64::from(key) + u64::from(stored))?;
                }
                [CLEAR] => {
                    let _keyspace: [u8; 8] = self.note()?;
                }
                _ => return Ok(None),
            }
        }
        let ends = take(self.input)? == [END];
        Ok(ends.then(|| (self.checksum.digest(), self.length + 1)))
    }

    fn note<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = take(self.input)?;
        self.checksum.update(&bytes);
        self.length += N as u64;
        Ok(bytes)
    }

    fn pass(&mut self, mut length: u64) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        self.length += length;
        while length > 0 {
            let part = &mut chunk[..length.min(CHUNK as u64) as usize];
            self.input.read_exact(part)?;
            self.checksum.update(part);
            length -= part.len() as u64;
        }
        Ok(())
    }
}

fn take<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}
