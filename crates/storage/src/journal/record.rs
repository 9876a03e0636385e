//! How a batch is written as one record of the journal, and read back.
//!
//! The layout is in `docs/storage-format.md`, "Segments".

use xxhash_rust::xxh3::xxh3_64;

use crate::store::{Batch, Bytes, Change};

/// The bytes of a record before its body.
pub(crate) const RECORD_HEADER: usize = 20;

/// Records begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;

/// The longest body. Lengths have four bytes, and offsets in a segment too.
pub(crate) const MAX_BODY: usize = 1 << 30;

/// Zeros behind a record, in place of the length of the next one.
const END_MARK: usize = ALIGNMENT;

const PUT: u8 = 1;
const PUT_PART: u8 = 2;
const REMOVE: u8 = 3;
const APPEND: u8 = 4;
const TRIM: u8 = 5;
const CUT: u8 = 6;

/// An operation as it is read from a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'r> {
    Put { keyspace: u32, key: &'r [u8], value: &'r [u8] },
    Remove { keyspace: u32, key: &'r [u8] },
    Append { log: u32, position: u64, entry: &'r [u8] },
    Trim { log: u32, below: u64 },
    Cut { log: u32, from: u64 },
}

/// What the checksums of a segment's records cover besides the records. A client does not know it, so no document can hold
/// bytes that count as a record of a segment to come. Records of format 2 have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(Option<u32>);

impl Salt {
    pub(crate) const NONE: Self = Self(None);

    /// That of a segment. The secret is the store's.
    pub(crate) fn of(secret: u64, segment: u64) -> Self {
        let mut fields = [0; 16];
        fields[..8].copy_from_slice(&secret.to_le_bytes());
        fields[8..].copy_from_slice(&segment.to_le_bytes());
        Self(Some(xxh3_64(&fields) as u32))
    }
}

/// A record that is ready but for what the order of commits decides.
pub(crate) struct Encoded {
    /// The header, still empty, the body, padded, and the mark of the end.
    bytes: Vec<u8>,
    body_length: usize,
    body_checksum: u32,
}

impl Encoded {
    /// The record of a batch. `None` if it would be too long.
    pub(crate) fn new(batch: &Batch) -> Option<Self> {
        let mut bytes = Vec::with_capacity(
            RECORD_HEADER + ALIGNMENT + END_MARK + batch.byte_size() + batch.len() * MOST_AROUND,
        );
        bytes.resize(RECORD_HEADER, 0);
        let mut last_entry: Option<&Bytes> = None;
        for operation in &batch.operations {
            let keyspace = operation.keyspace.0;
            match &operation.change {
                Change::Put(key, value) => match part_of(last_entry, value) {
                    Some(offset) => {
                        start(&mut bytes, PUT_PART, keyspace);
                        put_bytes(&mut bytes, key);
                        put_number(&mut bytes, offset as u64);
                        put_number(&mut bytes, value.len() as u64);
                    }
                    None => {
                        start(&mut bytes, PUT, keyspace);
                        put_bytes(&mut bytes, key);
                        put_bytes(&mut bytes, value);
                    }
                },
                Change::Remove(key) => {
                    start(&mut bytes, REMOVE, keyspace);
                    put_bytes(&mut bytes, key);
                }
                Change::Append(position, entry) => {
                    start(&mut bytes, APPEND, keyspace);
                    bytes.extend(position.to_be_bytes());
                    put_bytes(&mut bytes, entry);
                    last_entry = Some(entry);
                }
                Change::Trim(below) => {
                    start(&mut bytes, TRIM, keyspace);
                    bytes.extend(below.to_be_bytes());
                }
                Change::Cut(from) => {
                    start(&mut bytes, CUT, keyspace);
                    bytes.extend(from.to_be_bytes());
                }
            }
        }
        let body_length = bytes.len() - RECORD_HEADER;
        if body_length > MAX_BODY {
            return None;
        }
        // A length of zero would be the end of the journal.
        if body_length == 0 {
            bytes.push(0);
        }
        let body_length = body_length.max(1);
        let body_checksum = crc32c::crc32c(&bytes[RECORD_HEADER..]);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT) + END_MARK, 0);
        Some(Self { bytes, body_length, body_checksum })
    }

    /// How many bytes it takes in a segment.
    pub(crate) fn length(&self) -> usize {
        self.bytes.len() - END_MARK
    }

    /// The whole record, and the mark of the end behind it if there is room for that.
    pub(crate) fn finish(&mut self, sequence: u64, synced: u32, salt: Salt, room: usize) -> &[u8] {
        let checksum = checksum(self.body_checksum, sequence, synced, salt);
        self.bytes[..4].copy_from_slice(&(self.body_length as u32).to_le_bytes());
        self.bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        self.bytes[16..20].copy_from_slice(&synced.to_le_bytes());
        &self.bytes[..self.bytes.len().min(room)]
    }
}

/// The most bytes an operation takes besides its key and value.
const MOST_AROUND: usize = 1 + 5 + 8 + 5 + 5;

/// The body's checksum comes first, so that only sixteen bytes are left for the moment of the commit.
fn checksum(body: u32, sequence: u64, synced: u32, salt: Salt) -> u32 {
    let mut fields = [0; 16];
    fields[..8].copy_from_slice(&sequence.to_le_bytes());
    fields[8..12].copy_from_slice(&synced.to_le_bytes());
    fields[12..].copy_from_slice(&salt.0.unwrap_or(0).to_le_bytes());
    let covered = if salt == Salt::NONE { 12 } else { 16 };
    crc32c::crc32c_append(body, &fields[..covered])
}

/// Where a value lies within an entry whose memory it shares.
fn part_of(entry: Option<&Bytes>, value: &[u8]) -> Option<usize> {
    let entry = entry?.as_ptr_range();
    let value = value.as_ptr_range();
    let within = !value.is_empty() && entry.start <= value.start && value.end <= entry.end;
    within.then(|| value.start as usize - entry.start as usize)
}

fn start(bytes: &mut Vec<u8>, kind: u8, keyspace: u64) {
    bytes.push(kind);
    put_number(bytes, keyspace);
}

pub(crate) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number of seven bits a byte, the lowest first.
#[inline]
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    // Most are short.
    if *first < 0x80 {
        *bytes = rest;
        return Some((*first).into());
    }
    let (mut number, mut shift) = (0, 0);
    for (place, byte) in bytes.iter().enumerate().take(LONGEST_NUMBER) {
        number |= u64::from(byte & 0x7F) << shift;
        shift += 7;
        if *byte < 0x80 {
            *bytes = &bytes[place + 1..];
            return Some(number);
        }
    }
    None
}

/// How many bytes a number takes; none if it has no end here.
#[inline]
pub(crate) fn length_of_number(bytes: &[u8]) -> Option<usize> {
    const ENDS: u64 = 0x8080_8080_8080_8080;
    let found = match bytes.first_chunk().map(|eight| !u64::from_le_bytes(*eight) & ENDS) {
        Some(ends) if ends != 0 => Some(ends.trailing_zeros() as usize / 8),
        _ => bytes.iter().take(LONGEST_NUMBER).position(|byte| *byte < 0x80),
    };
    found.map(|last| last + 1)
}

/// The bytes of a number at most: seven bits of 64 in each.
const LONGEST_NUMBER: usize = 10;

fn put_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    put_number(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

/// A whole record, read from bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'r> {
    pub(crate) sequence: u64,
    pub(crate) synced: u32,
    body: &'r [u8],
    /// The bytes it takes, with what pads it.
    pub(crate) length: usize,
}

/// What begins at a place of a segment.
#[derive(Debug)]
pub(crate) enum Found<'r> {
    Whole(Record<'r>),
    /// A zero length, or too few bytes for a record.
    End,
    /// Something that is no whole record.
    Torn,
}

impl<'r> Record<'r> {
    /// Reads the record at the beginning of these bytes of a segment.
    pub(crate) fn read(bytes: &'r [u8], salt: Salt) -> Found<'r> {
        Self::read_with(bytes, salt, crc32c::crc32c)
    }

    /// The same. `checksum_of` gives the CRC-32C of the body.
    pub(crate) fn read_with(
        bytes: &'r [u8],
        salt: Salt,
        checksum_of: impl FnOnce(&'r [u8]) -> u32,
    ) -> Found<'r> {
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD_HEADER>() else {
            let zero = bytes.iter().all(|&byte| byte == 0);
            return if zero { Found::End } else { Found::Torn };
        };
        let field = |place: usize| {
            u32::from_le_bytes([
                header[place],
                header[place + 1],
                header[place + 2],
                header[place + 3],
            ])
        };
        let length = field(0) as usize;
        if length == 0 {
            return Found::End;
        }
        let Some(body) = rest.get(..length) else { return Found::Torn };
        let sequence = u64::from(field(8)) | u64::from(field(12)) << 32;
        let synced = field(16);
        if length > MAX_BODY || checksum(checksum_of(body), sequence, synced, salt) != field(4) {
            return Found::Torn;
        }
        let length = (RECORD_HEADER + length).next_multiple_of(ALIGNMENT);
        Found::Whole(Self { sequence, synced, body, length })
    }

    /// Its operations. `None` marks a body that its checksum covers and that still makes no sense.
    pub(crate) fn operations(&self) -> Operations<'r> {
        // A body of one zero byte is that of an empty batch.
        let rest = if self.body == [0] { &[] } else { self.body };
        Operations { rest, last_entry: None }
    }
}

/// The operations of a record, in order. After `None` as an item there is no more.
pub(crate) struct Operations<'r> {
    rest: &'r [u8],
    last_entry: Option<&'r [u8]>,
}

impl<'r> Operations<'r> {
    fn read(&mut self) -> Option<Operation<'r>> {
        let kind = self.byte()?;
        let keyspace = u32::try_from(self.number()?).ok()?;
        Some(match kind {
            PUT => Operation::Put { keyspace, key: self.bytes()?, value: self.bytes()? },
            PUT_PART => {
                let key = self.bytes()?;
                let offset = usize::try_from(self.number()?).ok()?;
                let length = usize::try_from(self.number()?).ok()?;
                let value = self.last_entry?.get(offset..offset.checked_add(length)?)?;
                Operation::Put { keyspace, key, value }
            }
            REMOVE => Operation::Remove { keyspace, key: self.bytes()? },
            APPEND => {
                let position = self.position()?;
                let entry = self.bytes()?;
                self.last_entry = Some(entry);
                Operation::Append { log: keyspace, position, entry }
            }
            TRIM => Operation::Trim { log: keyspace, below: self.position()? },
            CUT => Operation::Cut { log: keyspace, from: self.position()? },
            _ => return None,
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u64> {
        take_number(&mut self.rest)
    }

    fn position(&mut self) -> Option<u64> {
        let (position, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        Some(u64::from_be_bytes(*position))
    }

    fn bytes(&mut self) -> Option<&'r [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}

impl<'r> Iterator for Operations<'r> {
    type Item = Option<Operation<'r>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let operation = self.read();
        if operation.is_none() {
            self.rest = &[];
        }
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KeyspaceId;

    const TREE: KeyspaceId = KeyspaceId(1);
    const LOG: KeyspaceId = KeyspaceId(300);
    const SALT: Salt = Salt(Some(0xB00C));

    fn read(bytes: &[u8]) -> (Record<'_>, Vec<Operation<'_>>) {
        let Found::Whole(record) = Record::read(bytes, SALT) else { panic!("a whole record") };
        (record, record.operations().map(Option::unwrap).collect())
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let entry = Bytes::from(b"head the document tail");
        let mut batch = Batch::new();
        batch.trim_log(LOG, 3);
        batch.append_to_log(LOG, 9, entry.clone());
        batch.insert(TREE, b"key", entry.slice(5..17));
        batch.insert(TREE, b"other", b"the document");
        batch.remove(TREE, b"gone");
        batch.cut_log(LOG, 7);
        let mut encoded = Encoded::new(&batch).unwrap();
        let room = encoded.length();
        let bytes = encoded.finish(u64::MAX - 5, 4096, SALT, room).to_vec();
        let (record, operations) = read(&bytes);
        assert_eq!((record.sequence, record.synced), (u64::MAX - 5, 4096));
        assert_eq!(record.length, bytes.len());
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let (keyspace, log) = (1, 300);
        assert_eq!(
            operations,
            [
                Operation::Trim { log, below: 3 },
                Operation::Append { log, position: 9, entry: b"head the document tail" },
                Operation::Put { keyspace, key: b"key", value: b"the document" },
                Operation::Put { keyspace, key: b"other", value: b"the document" },
                Operation::Remove { keyspace, key: b"gone" },
                Operation::Cut { log, from: 7 },
            ]
        );
    }

    #[test]
    fn a_document_inside_its_entry_is_written_once() {
        let entry = Bytes::from(vec![7; 1000]);
        let mut batch = Batch::new();
        batch.append_to_log(LOG, 9, entry.clone());
        batch.insert(TREE, b"key", entry.slice(100..900));
        let length = Encoded::new(&batch).unwrap().length();
        assert!(length < 1060, "{length} bytes for an entry of 1000");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut batch = Batch::new();
        batch.append_to_log(LOG, 9, b"entry");
        let mut encoded = Encoded::new(&batch).unwrap();
        let bytes = encoded.finish(77, 40, SALT, usize::MAX).to_vec();
        let body = RECORD_HEADER + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        for bit in 0..body * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(Record::read(&damaged, SALT), Found::Whole(_)), "bit {bit}");
        }
    }

    #[test]
    fn a_record_counts_in_its_segment_alone() {
        let mut encoded = Encoded::new(&Batch::new()).unwrap();
        let bytes = encoded.finish(1, 0, Salt::of(7, 1), usize::MAX).to_vec();
        let is_whole = |salt| matches!(Record::read(&bytes, salt), Found::Whole(_));
        assert!(is_whole(Salt::of(7, 1)));
        assert!(!is_whole(Salt::of(7, 2)), "another segment of the store");
        assert!(!is_whole(Salt::of(8, 1)), "another store");
        assert!(!is_whole(Salt::NONE), "a segment of format 2");
        let bytes = encoded.finish(1, 0, Salt::NONE, usize::MAX).to_vec();
        assert!(matches!(Record::read(&bytes, Salt::NONE), Found::Whole(_)));
    }

    #[test]
    fn the_end_follows_a_record_where_there_is_room_for_it() {
        let mut encoded = Encoded::new(&Batch::new()).unwrap();
        let length = encoded.length();
        let bytes = encoded.finish(1, 0, SALT, length + ALIGNMENT).to_vec();
        assert!(matches!(Record::read(&bytes[length..], SALT), Found::End));
        assert_eq!(encoded.finish(1, 0, SALT, length).len(), length);
    }

    #[test]
    fn an_empty_batch_has_a_record_too() {
        let mut encoded = Encoded::new(&Batch::new()).unwrap();
        let bytes = encoded.finish(1, 0, SALT, usize::MAX).to_vec();
        assert_eq!(read(&bytes).1, []);
    }
}
