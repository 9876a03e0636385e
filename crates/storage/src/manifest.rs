//! The manifest: which keyspaces there are, and where recovery begins.
//!
//! The layout is in `docs/storage-format.md`, "The manifest".

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::files::{Files, read_all, replace};

const MAGIC: &[u8; 8] = b"QRTMAN\0\x03";
/// Of format 2, which had no secret.
const OLD_MAGIC: &[u8; 8] = b"QRTMAN\0\x02";
pub(crate) const MANIFEST: &str = "MANIFEST";
const DRAFT: &str = "MANIFEST.new";

const TREE: u8 = 0;
const LOG: u8 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) next_keyspace: u32,
    /// Segments below this are not needed.
    pub(crate) first_segment: u64,
    /// Segments below this hold nothing that a tree may miss.
    pub(crate) replay_from: u64,
    /// A sequence that no record of an earlier opening is above, unless it is in the journal.
    pub(crate) sequence: u64,
    /// What makes the checksums of records this store's own. None in a manifest of format 2.
    pub(crate) secret: Option<u64>,
    pub(crate) keyspaces: BTreeMap<u32, Described>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tree,
    Log { trimmed: u64 },
}

impl Manifest {
    /// Reads the manifest of a directory. `None` if there is none.
    pub(crate) fn read(files: &dyn Files, directory: &Path) -> io::Result<Option<Self>> {
        let file = match files.open(&directory.join(MANIFEST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let bytes = read_all(&*file)?;
        Self::decode(&bytes)
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the manifest is damaged"))
    }

    pub(crate) fn write(&self, files: &dyn Files, directory: &Path) -> io::Result<()> {
        replace(files, directory, (DRAFT, MANIFEST), &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.next_keyspace.to_le_bytes());
        body.extend(self.first_segment.to_le_bytes());
        body.extend(self.replay_from.to_le_bytes());
        body.extend(self.sequence.to_le_bytes());
        if let Some(secret) = self.secret {
            body.extend(secret.to_le_bytes());
        }
        body.extend((self.keyspaces.len() as u32).to_le_bytes());
        for (number, described) in &self.keyspaces {
            body.extend(number.to_le_bytes());
            match described.kind {
                Kind::Tree => body.push(TREE),
                Kind::Log { trimmed } => {
                    body.push(LOG);
                    body.extend(trimmed.to_le_bytes());
                }
            }
            body.push(described.name.len() as u8);
            body.extend(described.name.as_bytes());
        }
        let mut bytes = if self.secret.is_some() { MAGIC } else { OLD_MAGIC }.to_vec();
        bytes.extend(crc32c::crc32c(&body).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (checksum, body) = rest.split_first_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let mut body = body;
        let next_keyspace = u32::from_le_bytes(take(&mut body)?);
        let first_segment = u64::from_le_bytes(take(&mut body)?);
        let replay_from = u64::from_le_bytes(take(&mut body)?);
        let sequence = u64::from_le_bytes(take(&mut body)?);
        let secret = match magic {
            MAGIC => Some(u64::from_le_bytes(take(&mut body)?)),
            OLD_MAGIC => None,
            _ => return None,
        };
        let count = u32::from_le_bytes(take(&mut body)?);
        let mut keyspaces = BTreeMap::new();
        for _ in 0..count {
            let number = u32::from_le_bytes(take(&mut body)?);
            let kind = match take::<1>(&mut body)? {
                [TREE] => Kind::Tree,
                [LOG] => Kind::Log { trimmed: u64::from_le_bytes(take(&mut body)?) },
                _ => return None,
            };
            let [length] = take::<1>(&mut body)?;
            let (name, rest) = body.split_at_checked(usize::from(length))?;
            body = rest;
            let name = String::from_utf8(name.to_vec()).ok()?;
            keyspaces.insert(number, Described { name, kind });
        }
        let manifest =
            Self { next_keyspace, first_segment, replay_from, sequence, secret, keyspaces };
        body.is_empty().then_some(manifest)
    }
}

/// Takes a number of bytes off the front.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_damage_is_noticed() {
        let described = |name: &str, kind| Described { name: name.to_owned(), kind };
        let mut manifest = Manifest {
            next_keyspace: 9,
            first_segment: 3,
            replay_from: 7,
            sequence: 1 << 40,
            secret: None,
            keyspaces: BTreeMap::from([
                (1, described("records", Kind::Tree)),
                (8, described("oplog", Kind::Log { trimmed: 77 })),
            ]),
        };
        assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Some(&manifest), "of format 2");
        manifest.secret = Some(77);
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Some(manifest));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::decode(&damaged), None, "bit {bit}");
        }
    }
}
