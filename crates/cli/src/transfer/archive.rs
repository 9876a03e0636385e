//! Dumps in one stream, in the format of `mongodump --archive`.
//!
//! ```text
//!   magic   header  metadata…  END   block  block  …
//!   block = {db, collection, EOF, CRC}  document…  END
//! ```
//!
//! Blocks of several collections alternate. A block with `EOF` has no documents: it says that the
//! collection is whole, and the checksum of all its bytes.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::rawdoc;

use quorate_protocol::Lock;

use super::bson_file::{fill_or_end, read_rest};
use super::layout::{Metadata, Place};

/// The first four bytes.
const MAGIC: [u8; 4] = 0x8199_e26d_u32.to_le_bytes();

/// The end of the metadata, and of a block.
const END: [u8; 4] = [0xff; 4];

/// The version of the format.
const VERSION: &str = "0.1";

/// How many bytes of a collection make a block.
const BLOCK: usize = 1 << 20;

/// The most collections that an archive may name.
const MAX_COLLECTIONS: usize = 1_000_000;

/// The stream that all collections of a dump share.
pub(crate) struct Writer {
    out: Box<dyn Write + Send>,
}

impl Writer {
    /// Writes the header before the blocks.
    pub(crate) fn begin(
        mut out: Box<dyn Write + Send>,
        jobs: u8,
        server: &str,
        pieces: &[(Place, String, String)],
    ) -> io::Result<Arc<Lock<Self>>> {
        out.write_all(&MAGIC)?;
        let header = rawdoc! {
            "concurrent_collections": i32::from(jobs),
            "version": VERSION,
            "server_version": server,
            "tool_version": concat!("quorate ", env!("CARGO_PKG_VERSION")),
        };
        out.write_all(header.as_bytes())?;
        for (place, metadata, kind) in pieces {
            let entry = rawdoc! {
                "db": place.database.as_str(),
                "collection": place.collection.as_str(),
                "metadata": metadata.as_str(),
                "size": 0,
                "type": kind.as_str(),
            };
            out.write_all(entry.as_bytes())?;
        }
        out.write_all(&END)?;
        Ok(Arc::new(Lock::new(Self { out })))
    }

    fn block(&mut self, place: &Place, end: Option<u64>, documents: &[u8]) -> io::Result<()> {
        let header = rawdoc! {
            "db": place.database.as_str(),
            "collection": place.collection.as_str(),
            "EOF": end.is_some(),
            "CRC": end.unwrap_or(0).cast_signed(),
        };
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(documents)?;
        self.out.write_all(&END)
    }

    /// Brings everything to where it goes.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// One collection of the stream.
pub(crate) struct Part {
    writer: Arc<Lock<Writer>>,
    place: Place,
    block: Vec<u8>,
    sum: Checksum,
}

impl Part {
    pub(crate) fn new(writer: &Arc<Lock<Writer>>, place: Place) -> Self {
        Self { writer: Arc::clone(writer), place, block: Vec::new(), sum: Checksum::default() }
    }

    pub(crate) fn write(&mut self, document: &[u8]) -> io::Result<()> {
        self.block.extend_from_slice(document);
        if self.block.len() < BLOCK { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.sum.add(&self.block);
        let mut writer = self.writer.lock();
        writer.block(&self.place, None, &self.block)?;
        self.block.clear();
        Ok(())
    }

    /// The collection is whole.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.send()?;
        let mut writer = self.writer.lock();
        writer.block(&self.place, Some(self.sum.value()), &[])
    }
}

/// An archive that is read.
pub(crate) struct Reader {
    source: Box<dyn Read + Send>,
    /// What it names at its beginning.
    pub(crate) collections: Vec<(Place, Metadata)>,
}

/// The next item of an archive.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// The following documents are of this collection.
    Block(Place),
    Document(RawDocumentBuf),
    /// The collection is whole, and this is its checksum.
    Whole(Place, u64),
    /// There is no more.
    End,
}

impl Reader {
    /// Reads the header before the blocks. Fails if the input is no archive.
    pub(crate) fn open(mut source: Box<dyn Read + Send>) -> io::Result<Self> {
        let mut magic = [0; 4];
        if !fill_or_end(&mut source, &mut magic)? || magic != MAGIC {
            return Err(wrong("it does not begin as an archive of mongodump"));
        }
        let mut collections = Vec::new();
        let mut is_header = true;
        while let Some(document) = document_or_end(&mut source)? {
            if is_header {
                let version = document.get_str("version").unwrap_or_default();
                if version != VERSION {
                    return Err(wrong(&format!("version {version:?} of the format is not known")));
                }
                is_header = false;
                continue;
            }
            let text = document.get_str("metadata").unwrap_or_default();
            let mut metadata = Metadata::parse(text).map_err(|error| wrong(&error))?;
            if metadata.kind.is_none() {
                metadata.kind = document.get_str("type").ok().map(str::to_owned);
            }
            collections.push((place(&document)?, metadata));
            if collections.len() > MAX_COLLECTIONS {
                return Err(wrong(&format!("it has more than {MAX_COLLECTIONS} collections")));
            }
        }
        Ok(Self { source, collections })
    }

    /// The next item. `within` says whether a block has begun and not ended.
    pub(crate) fn next(&mut self, within: &mut bool) -> io::Result<Next> {
        loop {
            let mut length = [0; 4];
            if !fill_or_end(&mut self.source, &mut length)? {
                return match within {
                    true => Err(wrong("it is cut off within a block")),
                    false => Ok(Next::End),
                };
            }
            if length == END {
                *within = false;
                continue;
            }
            let document = read_rest(&mut self.source, length)?;
            if *within {
                return Ok(Next::Document(document));
            }
            *within = true;
            let place = place(&document)?;
            return Ok(match document.get_bool("EOF").unwrap_or(false) {
                true => {
                    Next::Whole(place, document.get_i64("CRC").unwrap_or_default().cast_unsigned())
                }
                false => Next::Block(place),
            });
        }
    }
}

fn document_or_end(source: &mut dyn Read) -> io::Result<Option<RawDocumentBuf>> {
    let mut length = [0; 4];
    if !fill_or_end(source, &mut length)? {
        return Err(wrong("it is cut off before the first block"));
    }
    if length == END { Ok(None) } else { read_rest(source, length).map(Some) }
}

fn place(document: &RawDocument) -> io::Result<Place> {
    let text = |key| document.get_str(key).map_err(|_| wrong("a block names no collection"));
    Ok(Place::new(text("db")?, text("collection")?))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// The checksum of a collection: CRC-64 with the polynomial of ECMA-182, bits reflected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checksum {
    inverse: u64,
}

const TABLE: [u64; 256] = {
    const POLYNOMIAL: u64 = 0xC96C_5795_D787_0F42;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

impl Checksum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut value = !self.inverse;
        for byte in bytes {
            value = TABLE[usize::from(value as u8 ^ byte)] ^ (value >> 8);
        }
        self.inverse = !value;
    }

    pub(crate) fn value(&self) -> u64 {
        self.inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_checksum_is_the_published_one() {
        let mut sum = Checksum::default();
        assert_eq!(sum.value(), 0);
        sum.add(b"12345");
        sum.add(b"6789");
        assert_eq!(sum.value(), 0x995D_C9BB_DF19_39FA);
    }

    fn archive() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("archive");
        let (one, two) = (Place::new("shop", "a"), Place::new("shop", "b"));
        let metadata = |place: &Place| {
            let metadata =
                Metadata { collection: Some(place.collection.clone()), ..Metadata::default() };
            (place.clone(), metadata.to_json(), "collection".to_owned())
        };
        let out = Box::new(File::create(&path).unwrap());
        let pieces = [metadata(&one), metadata(&two)];
        let writer = Writer::begin(out, 2, "7.0.0", &pieces).unwrap();
        let mut first = Part::new(&writer, one);
        first.write(rawdoc! { "_id": 1 }.as_bytes()).unwrap();
        first.finish().unwrap();
        Part::new(&writer, two).finish().unwrap();
        writer.lock().finish().unwrap();
        std::fs::read(&path).unwrap()
    }

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let mut reader = Reader::open(Box::new(io::Cursor::new(archive()))).unwrap();
        assert_eq!(reader.collections.len(), 2);
        let mut within = false;
        let mut next = || reader.next(&mut within).unwrap();
        let document = rawdoc! { "_id": 1 };
        let mut sum = Checksum::default();
        sum.add(document.as_bytes());
        assert_eq!(next(), Next::Block(Place::new("shop", "a")));
        assert_eq!(next(), Next::Document(document));
        assert_eq!(next(), Next::Whole(Place::new("shop", "a"), sum.value()));
        assert_eq!(next(), Next::Whole(Place::new("shop", "b"), 0));
        assert_eq!(next(), Next::End);
    }

    /// Wherever an archive is cut, that is an error or a collection that never becomes whole.
    #[test]
    fn an_archive_that_is_cut_off_is_never_taken_for_whole() {
        let whole = archive();
        for end in 0..whole.len() {
            let Ok(mut reader) = Reader::open(Box::new(io::Cursor::new(whole[..end].to_vec())))
            else {
                continue;
            };
            let (mut within, mut finished) = (false, 0);
            loop {
                match reader.next(&mut within) {
                    Ok(Next::End) | Err(_) => break,
                    Ok(Next::Whole(..)) => finished += 1,
                    Ok(_) => {}
                }
            }
            assert!(finished < 2 || end >= whole.len() - END.len(), "{end}");
        }
    }
}
