//! Files of BSON documents, one after the other, plain or compressed.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bson::raw::RawDocumentBuf;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::tally::{Counting, Tally};
use crate::screen::Result;

/// The longest document that is read; no server makes a longer one.
pub(crate) const MAX_DOCUMENT: usize = 48_000_000;

/// The shortest document: its length and its end.
const MIN_DOCUMENT: usize = 5;

/// The most bytes of a text file.
const MAX_TEXT: u64 = 64 << 20;

/// A file of a dump while it is written.
pub(crate) struct Growing {
    writer: Writer,
}

enum Writer {
    Plain(BufWriter<File>),
    Packed(Box<GzEncoder<BufWriter<File>>>),
}

impl Growing {
    /// Creates the file.
    pub(crate) fn create(path: &Path, gzip: bool) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let writer = match gzip {
            false => Writer::Plain(file),
            true => Writer::Packed(Box::new(GzEncoder::new(file, Compression::default()))),
        };
        Ok(Self { writer })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.writer {
            Writer::Plain(file) => file.write_all(bytes),
            Writer::Packed(packed) => packed.write_all(bytes),
        }
    }

    /// Brings everything to the disk.
    pub(crate) fn finish(self) -> io::Result<()> {
        let file = match self.writer {
            Writer::Plain(file) => file,
            Writer::Packed(packed) => packed.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }
}

/// Opens a file, and unpacks it if its name ends in `.gz`.
pub(crate) fn open(path: &Path, tally: &Arc<Tally>) -> io::Result<Box<dyn Read + Send>> {
    let file = Counting { inner: File::open(path)?, tally: Arc::clone(tally) };
    let file = BufReader::with_capacity(1 << 16, file);
    Ok(match path.extension().is_some_and(|ending| ending == "gz") {
        true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
        false => Box::new(file),
    })
}

/// A text file, unpacked if its name ends in `.gz`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let read = || {
        let mut text = String::new();
        open(path, &Arc::default())?.take(MAX_TEXT).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error: io::Error| {
        problem!("{} cannot be read: {error}; dump again", path.display())
    })
}

/// Reads documents from a file.
pub(crate) struct Documents {
    source: Box<dyn Read + Send>,
    path: PathBuf,
    place: u64,
}

impl Documents {
    /// Opens a file.
    pub(crate) fn open(path: &Path, tally: &Arc<Tally>) -> Result<Self> {
        let source = open(path, tally).map_err(|error| {
            problem!("{} cannot be opened: {error}; check its rights", path.display())
        })?;
        Ok(Self { source, path: path.to_owned(), place: 0 })
    }

    /// The next document; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<RawDocumentBuf>> {
        match read_document(&mut self.source) {
            Ok(None) => Ok(None),
            Ok(Some(document)) => {
                self.place += document.as_bytes().len() as u64;
                Ok(Some(document))
            }
            Err(error) => Err(problem!(
                "{} is damaged at byte {}: {error}; dump again",
                self.path.display(),
                self.place
            )),
        }
    }
}

/// The next document; `None` if there is nothing more.
pub(crate) fn read_document(source: &mut dyn Read) -> io::Result<Option<RawDocumentBuf>> {
    let mut length = [0; 4];
    if !fill_or_end(source, &mut length)? {
        return Ok(None);
    }
    read_rest(source, length).map(Some)
}

/// The document whose length was read already.
pub(crate) fn read_rest(source: &mut dyn Read, length: [u8; 4]) -> io::Result<RawDocumentBuf> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let size = usize::try_from(i32::from_le_bytes(length)).unwrap_or(0);
    if !(MIN_DOCUMENT..=MAX_DOCUMENT).contains(&size) {
        return Err(wrong(format!("a document of {} bytes", i32::from_le_bytes(length))));
    }
    let mut bytes = vec![0; size];
    bytes[..4].copy_from_slice(&length);
    source.read_exact(&mut bytes[4..]).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => wrong("it is cut off within a document".to_owned()),
        _ => error,
    })?;
    RawDocumentBuf::from_bytes(bytes).map_err(|error| wrong(error.to_string()))
}

/// Fills the buffer. False at the end of the file; an error if the file ends within the buffer.
pub(crate) fn fill_or_end(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => {
                let what = "it is cut off within a document";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn documents_are_read_as_they_were_written_packed_or_not() {
        let directory = tempfile::tempdir().unwrap();
        for (name, gzip) in [("a.bson", false), ("a.bson.gz", true)] {
            let path = directory.path().join(name);
            let mut file = Growing::create(&path, gzip).unwrap();
            for number in 0..100 {
                file.write(rawdoc! { "_id": number }.as_bytes()).unwrap();
            }
            file.finish().unwrap();
            let mut documents = Documents::open(&path, &Arc::default()).unwrap();
            for number in 0..100 {
                assert_eq!(documents.next().unwrap(), Some(rawdoc! { "_id": number }));
            }
            assert_eq!(documents.next().unwrap(), None);
        }
    }

    #[test]
    fn a_file_that_is_cut_off_or_no_bson_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.bson");
        let document = rawdoc! { "_id": 1 };
        let bytes = document.as_bytes();
        for end in [1, 4, 5, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let mut documents = Documents::open(&path, &Arc::default()).unwrap();
            let told = documents.next().unwrap_err().to_string();
            assert!(told.contains("damaged at byte 0") && told.contains("cut off"), "{told}");
        }
        for wrong in [&b"{\"a\": 1}"[..], &[0, 0, 0, 0], &[255; 9], &[4, 0, 0, 0]] {
            std::fs::write(&path, wrong).unwrap();
            let mut documents = Documents::open(&path, &Arc::default()).unwrap();
            assert!(documents.next().is_err(), "{wrong:?}");
        }
    }
}
