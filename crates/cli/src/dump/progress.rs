//! The list of finished collections of a dump into a directory, so that a dump that was killed goes on there.
//!
//! A file of JSON lines in the growing directory. The first line says what kind of dump it is, each other line names a
//! collection whose file is whole and on disk. The file goes before the directory gets its name.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bson::Timestamp;
use serde_json::{Value, json};

use quorate_protocol::Lock;

use super::Source;
use crate::transfer::layout::Place;

/// The file, in the growing directory.
const NAME: &str = "progress.jsonl";

/// Raised when the lines change their meaning.
const VERSION: u64 = 1;

/// A collection whose file is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) documents: usize,
    pub(crate) bytes: usize,
    /// The length of its file: a power failure may have taken the file and left the line.
    length: u64,
    /// The metadata of the collection in the dump. Its identifier tells whether the collection is still the same.
    metadata: String,
}

/// The finished part of an earlier run of the same dump.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// The entry of the oplog before the first read.
    pub(crate) start: Option<Timestamp>,
    whole: BTreeMap<Place, Whole>,
}

impl Left {
    /// Reads the progress file of a directory; none if the directory holds no resumable dump.
    pub(crate) fn read(growing: &Path, gzip: bool, oplog: bool) -> Option<Self> {
        let text = fs::read_to_string(growing.join(NAME)).ok()?;
        // A line that was cut by the end of a run is passed over.
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let first = lines.next()?;
        if first["version"] != VERSION || first["gzip"] != gzip {
            return None;
        }
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let start = match (number(&first["start"]["t"]), number(&first["start"]["i"])) {
            (Some(time), Some(increment)) => Some(Timestamp { time, increment }),
            _ => None,
        };
        // Collections that were read before a start are of no use for a dump of one moment.
        if start.is_some() != oplog {
            return None;
        }
        let whole = lines.filter_map(|line| whole(&line)).collect();
        Some(Self { start, whole })
    }

    /// The collection, if it was dumped already and is still the same, with its file at this path.
    pub(crate) fn of(&self, source: &Source, file: &Path) -> Option<&Whole> {
        let whole = self.whole.get(&source.place)?;
        let length = fs::metadata(file).ok()?.len();
        let same = source.metadata.uuid.is_some() && source.metadata.to_json() == whole.metadata;
        (same && length == whole.length).then_some(whole)
    }
}

fn whole(line: &Value) -> Option<(Place, Whole)> {
    let number = |name: &str| line[name].as_u64();
    let place = Place::new(line["database"].as_str()?, line["collection"].as_str()?);
    let whole = Whole {
        documents: usize::try_from(number("documents")?).ok()?,
        bytes: usize::try_from(number("bytes")?).ok()?,
        length: number("length")?,
        metadata: line["metadata"].as_str()?.to_owned(),
    };
    Some((place, whole))
}

/// Saves the finished collections.
pub(crate) struct Progress {
    path: PathBuf,
    file: Lock<File>,
}

impl Progress {
    /// Begins the file anew.
    pub(crate) fn begin(growing: &Path, gzip: bool, start: Option<Timestamp>) -> io::Result<Self> {
        let path = growing.join(NAME);
        let mut file = File::create(&path)?;
        lock(&file)?;
        let start = start.map(|start| json!({ "t": start.time, "i": start.increment }));
        writeln!(file, "{}", json!({ "version": VERSION, "gzip": gzip, "start": start }))?;
        file.sync_all()?;
        Ok(Self { path, file: Lock::new(file) })
    }

    /// Goes on with the file of an earlier run, if there is one. Fails if that run has not ended,
    /// or the file cannot be opened.
    pub(crate) fn go_on(growing: &Path) -> io::Result<Option<Self>> {
        let path = growing.join(NAME);
        let mut file = match OpenOptions::new().append(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        lock(&file)?;
        // A line that was cut by the end of the earlier run ends here.
        writeln!(file)?;
        Ok(Some(Self { path, file: Lock::new(file) }))
    }

    /// The file of a collection is whole and on disk.
    pub(crate) fn finished(
        &self,
        source: &Source,
        path: &Path,
        (documents, bytes): (usize, usize),
    ) -> io::Result<()> {
        let line = json!({
            "database": source.place.database, "collection": source.place.collection,
            "documents": documents, "bytes": bytes, "length": fs::metadata(path)?.len(),
            "metadata": source.metadata.to_json(),
        });
        let mut file = self.file.lock();
        writeln!(file, "{line}")?;
        file.sync_data()
    }

    /// The next run begins anew, or there is nothing left to do.
    pub(crate) fn end(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// Two dumps into one directory would write the same files.
fn lock(file: &File) -> io::Result<()> {
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(file, how)
        .map_err(|_| io::Error::other("another dump into the same directory is running"))
}
