//! Where a dump goes: a directory, a file, or stdout.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bson::Timestamp;
use flate2::Compression;
use flate2::write::GzEncoder;

use quorate_protocol::Lock;

use super::progress::{Left, Progress, Whole};
use super::{DumpArguments, Source};
use crate::screen::{Failure, Result};
use crate::transfer;
use crate::transfer::archive::{Part, Writer};
use crate::transfer::bson_file::Growing;
use crate::transfer::layout::{self, OPLOG, Place};
use crate::whole_file::put_in_place;

/// Where the files grow until all are whole.
const PARTIAL: &str = "partial";

/// Where a dump goes.
pub(crate) enum Target {
    Directory { growing: PathBuf, wanted: PathBuf, gzip: bool, progress: Progress },
    Archive { writer: Arc<Lock<Writer>>, file: Option<(PathBuf, PathBuf)> },
}

impl Target {
    /// Makes the directory or the file, or goes on with the directory of an earlier run.
    pub(crate) fn open(
        arguments: &DumpArguments,
        sources: &[Source],
        left: Option<&Left>,
        start: Option<Timestamp>,
    ) -> Result<Self> {
        match (&arguments.directory, &arguments.archive) {
            (Some(directory), _) => {
                directory_target(directory, arguments.gzip, sources, left, start)
            }
            (None, Some(path)) => archive_target(path, arguments, sources),
            (None, None) => Err(misuse!("give a directory, or --archive FILE")),
        }
    }

    /// Whether stdout is taken by the data.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Self::Archive { file: None, .. })
    }

    /// The collection, if an earlier run has finished its file.
    pub(crate) fn whole<'a>(&self, left: &'a Left, source: &Source) -> Option<&'a Whole> {
        let Self::Directory { growing, gzip, .. } = self else { return None };
        left.of(source, &documents_of(growing, *gzip, source))
    }

    /// The collection's file is whole and on disk.
    pub(crate) fn finished(&self, source: &Source, counts: (usize, usize)) -> Result<()> {
        let Self::Directory { growing, gzip, progress, .. } = self else { return Ok(()) };
        let file = documents_of(growing, *gzip, source);
        progress.finished(source, &file, counts).map_err(unwritable)
    }

    /// The written files cannot become one dump: the next run begins anew.
    pub(crate) fn forget(&self) {
        if let Self::Directory { progress, .. } = self {
            // Ignore errors: the next run finds the same fault and tells it.
            let _ = progress.end();
        }
    }

    /// The place for the documents of a collection, whose metadata is written at once.
    pub(crate) fn sink(&self, source: &Source) -> Result<Sink> {
        self.metadata(source)?;
        match self {
            Self::Directory { growing, gzip, .. } => {
                file_sink(&documents_of(growing, *gzip, source), *gzip)
            }
            Self::Archive { writer, .. } => {
                Ok(Sink::Archive(Part::new(writer, source.place.clone())))
            }
        }
    }

    /// The place for the changes during the dump.
    pub(crate) fn oplog(&self) -> Result<Sink> {
        match self {
            Self::Directory { growing, gzip, .. } => {
                file_sink(&growing.join(named(OPLOG, "", *gzip)), *gzip)
            }
            Self::Archive { writer, .. } => {
                Ok(Sink::Archive(Part::new(writer, Place::new("", "oplog"))))
            }
        }
    }

    /// Takes a view, which has no documents. An archive says of it too that it is whole.
    pub(crate) fn view(&self, source: &Source) -> Result<()> {
        match self {
            Self::Directory { .. } => self.metadata(source),
            Self::Archive { writer, .. } => {
                let part = Part::new(writer, source.place.clone());
                part.finish().map_err(unwritable)
            }
        }
    }

    /// Writes the metadata of a collection. An archive has all metadata at its beginning.
    fn metadata(&self, source: &Source) -> Result<()> {
        let Self::Directory { growing, gzip, .. } = self else { return Ok(()) };
        let write = || {
            fs::create_dir_all(growing.join(&source.place.database))?;
            let mut file = Growing::create(&metadata_of(growing, *gzip, source), *gzip)?;
            file.write(source.metadata.to_json().as_bytes())?;
            file.finish()
        };
        write().map_err(unwritable)
    }

    /// Everything is there: gives the dump its name. Returns where it is.
    pub(crate) fn finish(self) -> Result<String> {
        let finish = || match &self {
            Self::Directory { growing, wanted, progress, .. } => {
                progress.end()?;
                for folder in fs::read_dir(growing)? {
                    let folder = folder?.path();
                    if folder.is_dir() {
                        File::open(&folder)?.sync_all()?;
                    }
                }
                put_in_place(growing, wanted)?;
                Ok(wanted.display().to_string())
            }
            Self::Archive { writer, file } => {
                writer.lock().finish()?;
                let Some((growing, wanted)) = file else { return Ok("stdout".to_owned()) };
                put_in_place(growing, wanted)?;
                Ok(wanted.display().to_string())
            }
        };
        finish().map_err(unwritable)
    }
}

fn file_sink(path: &Path, gzip: bool) -> Result<Sink> {
    Growing::create(path, gzip).map(Sink::File).map_err(unwritable)
}

/// The file of a collection's documents.
fn documents_of(growing: &Path, gzip: bool, source: &Source) -> PathBuf {
    let stem = layout::stem(&source.place.collection);
    growing.join(&source.place.database).join(named(&stem, ".bson", gzip))
}

/// The metadata file of a collection.
fn metadata_of(growing: &Path, gzip: bool, source: &Source) -> PathBuf {
    let stem = layout::stem(&source.place.collection);
    growing.join(&source.place.database).join(named(&stem, ".metadata.json", gzip))
}

/// Removes what an earlier run has left of collections that are not whole, are others now, or are gone.
fn tidy(growing: &Path, gzip: bool, left: &Left, sources: &[Source]) -> io::Result<()> {
    let mut kept = BTreeSet::new();
    for source in sources {
        let documents = documents_of(growing, gzip, source);
        if left.of(source, &documents).is_some() {
            kept.extend([documents, metadata_of(growing, gzip, source)]);
        }
    }
    for folder in fs::read_dir(growing)? {
        let folder = folder?.path();
        if !folder.is_dir() {
            continue;
        }
        let mut is_empty = true;
        for file in fs::read_dir(&folder)? {
            let file = file?.path();
            if kept.contains(&file) { is_empty = false } else { fs::remove_file(file)? }
        }
        if is_empty {
            fs::remove_dir(folder)?;
        }
    }
    Ok(())
}

fn named(stem: &str, ending: &str, gzip: bool) -> String {
    format!("{stem}{ending}{}", if gzip { ".gz" } else { "" })
}

/// The name under which it grows.
fn partial(path: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| misuse!("{} has no name; give a directory to make", path.display()))?;
    let mut name = name.to_owned();
    name.push(".");
    name.push(PARTIAL);
    Ok(path.with_file_name(name))
}

/// The finished part of an earlier run in this place; none if this dump begins anew.
pub(super) fn left(arguments: &DumpArguments) -> Result<Option<Left>> {
    let Some(directory) = &arguments.directory else { return Ok(None) };
    Ok(Left::read(&partial(directory)?, arguments.gzip, arguments.oplog))
}

fn directory_target(
    directory: &Path,
    gzip: bool,
    sources: &[Source],
    left: Option<&Left>,
    start: Option<Timestamp>,
) -> Result<Target> {
    let growing = partial(directory)?;
    let is_taken = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    refuse_if!(is_taken => problem,
        "{} is there already and not an empty directory; give another, or remove it",
        directory.display());
    let begin = || {
        let running = Progress::go_on(&growing)?;
        if let (Some(progress), Some(left)) = (running, left) {
            tidy(&growing, gzip, left, sources)?;
            return Ok(progress);
        }
        match fs::remove_dir_all(&growing) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(&growing)?;
        Progress::begin(&growing, gzip, start)
    };
    let progress = begin().map_err(|error| {
        problem!(
            "{} cannot be made: {error}; give another directory that you may write to",
            growing.display()
        )
    })?;
    Ok(Target::Directory { growing, wanted: directory.to_owned(), gzip, progress })
}

fn archive_target(path: &Path, arguments: &DumpArguments, sources: &[Source]) -> Result<Target> {
    let is_stdout = transfer::is_standard(path);
    let file = if is_stdout { None } else { Some((partial(path)?, path.to_owned())) };
    let begin = || {
        let out: Box<dyn Write + Send> = match &file {
            None => Box::new(io::stdout()),
            Some((growing, _)) => Box::new(BufWriter::new(File::create(growing)?)),
        };
        let out: Box<dyn Write + Send> = match arguments.gzip {
            true => Box::new(Packed(Some(GzEncoder::new(out, Compression::default())))),
            false => out,
        };
        let mut pieces: Vec<_> = sources
            .iter()
            .map(|source| {
                let kind = source.metadata.kind.clone().unwrap_or_default();
                (source.place.clone(), source.metadata.to_json(), kind)
            })
            .collect();
        if arguments.oplog {
            pieces.push((Place::new("", "oplog"), String::new(), String::new()));
        }
        Writer::begin(out, arguments.jobs, env!("CARGO_PKG_VERSION"), &pieces)
    };
    let writer = begin().map_err(unwritable)?;
    Ok(Target::Archive { writer, file })
}

/// A compressed stream, whose end is written by its flush.
struct Packed(Option<GzEncoder<Box<dyn Write + Send>>>);

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Some(packed) => packed.write(bytes),
            None => Err(io::Error::other("the stream is over")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.take() {
            Some(packed) => packed.finish()?.flush(),
            None => Ok(()),
        }
    }
}

/// Where the documents of one collection go.
pub(crate) enum Sink {
    File(Growing),
    Archive(Part),
}

impl Sink {
    /// Takes a document.
    pub(crate) fn write(&mut self, document: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write(document),
            Self::Archive(part) => part.write(document),
        }
    }

    /// The collection is whole.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::File(file) => file.finish(),
            Self::Archive(part) => part.finish(),
        }
    }
}

/// The disk is at fault, or what reads the stream is gone.
pub(crate) fn unwritable(error: io::Error) -> Failure {
    problem!(
        "the dump cannot be written: {error}; make room, or give another place, and dump again"
    )
}
