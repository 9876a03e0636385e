//! Where a dump goes: a directory, a file, or stdout.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{DumpArguments, Source};
use crate::screen::Failure;
use crate::transfer::archive::{Part, Writer};
use crate::transfer::bson_file::Growing;
use crate::transfer::layout::{self, OPLOG, Place};

/// Where the files grow until all are whole.
const PARTIAL: &str = "partial";

/// Where a dump goes.
pub(crate) enum Target {
    Directory { growing: PathBuf, wanted: PathBuf, gzip: bool },
    Archive { writer: Arc<Mutex<Writer>>, file: Option<(PathBuf, PathBuf)> },
}

impl Target {
    /// Makes the directory or the file.
    pub(crate) async fn open(
        arguments: &DumpArguments,
        sources: &[Source],
    ) -> Result<Self, Failure> {
        match (&arguments.directory, &arguments.archive) {
            (Some(directory), _) => directory_target(directory, arguments.gzip),
            (None, Some(path)) => archive_target(path, arguments, sources),
            (None, None) => Err(Failure::Misuse("give a directory, or --archive FILE".to_owned())),
        }
    }

    /// Whether stdout is taken by the data.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Self::Archive { file: None, .. })
    }

    /// The place for the documents of a collection, whose metadata is written at once.
    pub(crate) fn sink(&self, source: &Source) -> Result<Sink, Failure> {
        self.metadata(source)?;
        match self {
            Self::Directory { growing, gzip, .. } => {
                let stem = layout::stem(&source.place.collection);
                let path = growing.join(&source.place.database).join(named(&stem, ".bson", *gzip));
                let file = Growing::create(&path, *gzip).map_err(|error| unwritable(&error))?;
                Ok(Sink::File(file))
            }
            Self::Archive { writer, .. } => {
                Ok(Sink::Archive(Part::new(writer, source.place.clone())))
            }
        }
    }

    /// The place for the changes during the dump.
    pub(crate) fn oplog(&self) -> Result<Sink, Failure> {
        match self {
            Self::Directory { growing, gzip, .. } => {
                let path = growing.join(named(OPLOG, "", *gzip));
                let file = Growing::create(&path, *gzip).map_err(|error| unwritable(&error))?;
                Ok(Sink::File(file))
            }
            Self::Archive { writer, .. } => {
                Ok(Sink::Archive(Part::new(writer, Place::new("", "oplog"))))
            }
        }
    }

    /// Takes a view, which has no documents. An archive says of it too that it is whole.
    pub(crate) fn view(&self, source: &Source) -> Result<(), Failure> {
        match self {
            Self::Directory { .. } => self.metadata(source),
            Self::Archive { writer, .. } => {
                let part = Part::new(writer, source.place.clone());
                part.finish().map_err(|error| unwritable(&error))
            }
        }
    }

    /// Writes what is known of a collection besides its documents. An archive has it at its beginning.
    fn metadata(&self, source: &Source) -> Result<(), Failure> {
        let Self::Directory { growing, gzip, .. } = self else { return Ok(()) };
        let write = || {
            let folder = growing.join(&source.place.database);
            fs::create_dir_all(&folder)?;
            let stem = layout::stem(&source.place.collection);
            let mut file =
                Growing::create(&folder.join(named(&stem, ".metadata.json", *gzip)), *gzip)?;
            file.write(source.metadata.to_json().as_bytes())?;
            file.finish()
        };
        write().map_err(|error| unwritable(&error))
    }

    /// Everything is there: gives the dump its name. Returns where it is.
    pub(crate) fn finish(self) -> Result<String, Failure> {
        let finish = || match &self {
            Self::Directory { growing, wanted, .. } => {
                for folder in fs::read_dir(growing)? {
                    let folder = folder?.path();
                    if folder.is_dir() {
                        File::open(&folder)?.sync_all()?;
                    }
                }
                File::open(growing)?.sync_all()?;
                fs::rename(growing, wanted)?;
                sync_parent(wanted)?;
                Ok(wanted.display().to_string())
            }
            Self::Archive { writer, file } => {
                writer.lock().unwrap_or_else(PoisonError::into_inner).finish()?;
                let Some((growing, wanted)) = file else { return Ok("stdout".to_owned()) };
                File::open(growing)?.sync_all()?;
                fs::rename(growing, wanted)?;
                sync_parent(wanted)?;
                Ok(wanted.display().to_string())
            }
        };
        finish().map_err(|error| unwritable(&error))
    }
}

/// A file or a folder is there after a power failure only if its folder is on disk too.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn named(stem: &str, ending: &str, gzip: bool) -> String {
    format!("{stem}{ending}{}", if gzip { ".gz" } else { "" })
}

/// The name under which it grows.
fn partial(path: &Path) -> Result<PathBuf, Failure> {
    let name = path.file_name().ok_or_else(|| {
        Failure::Misuse(format!("{} has no name; give a directory to make", path.display()))
    })?;
    let mut name = name.to_owned();
    name.push(".");
    name.push(PARTIAL);
    Ok(path.with_file_name(name))
}

fn directory_target(directory: &Path, gzip: bool) -> Result<Target, Failure> {
    let growing = partial(directory)?;
    let is_taken = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    if is_taken {
        return Err(Failure::Problem(format!(
            "{} is there already and not an empty directory; give another, or remove it",
            directory.display()
        )));
    }
    // What is left of a dump that was killed is of no use: it begins anew.
    let begin = || {
        match fs::remove_dir_all(&growing) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(&growing)
    };
    begin().map_err(|error| {
        Failure::Problem(format!(
            "{} cannot be made: {error}; give a directory that you may write to",
            growing.display()
        ))
    })?;
    Ok(Target::Directory { growing, wanted: directory.to_owned(), gzip })
}

fn archive_target(
    path: &Path,
    arguments: &DumpArguments,
    sources: &[Source],
) -> Result<Target, Failure> {
    let is_stdout = path == Path::new("-");
    let file = match is_stdout {
        true => None,
        false => Some((partial(path)?, path.to_owned())),
    };
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
    let writer = begin().map_err(|error| unwritable(&error))?;
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
pub(crate) fn unwritable(error: &io::Error) -> Failure {
    Failure::Problem(format!(
        "the dump cannot be written: {error}; make room, or give another place, and dump again"
    ))
}
