//! Gets the scenarios: downloads the source package with pip (which knows the mirrors that a machine
//! is configured for), checks its hash, and unpacks the JSON files in it, once per target directory.
//!
//! Several test processes may want them at the same time. A file lock lets one of them work while
//! the rest wait, and the finished folder appears by one rename.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

/// The package that holds the scenarios.
pub const PACKAGE: &str = "pymongo-4.19.0";

/// The SHA-256 of its source archive.
pub const PACKAGE_SHA256: &str = "3c510dd3c5d9b392d3b33bb5d2a594758acfe8f026fca654253f947ce0af9d40";

/// Names the archive on disk, for machines that cannot download it. Its hash is checked all the
/// same.
pub const SDIST_VARIABLE: &str = "QUORATE_PYMONGO_SDIST";

const REQUIREMENT: &str = "pymongo==4.19.0";

/// The largest archive we read. The real one has 2.7 MB.
const MAX_ARCHIVE_LENGTH: u64 = 32 << 20;
/// The largest file we unpack.
const MAX_FILE_LENGTH: u64 = 8 << 20;
/// The most files we unpack.
const MAX_FILES: usize = 10_000;

/// The scenarios could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// pip is missing or refuses.
    #[error(
        "python3 -m pip could not download {REQUIREMENT} ({0}); get online, or put its source \
         archive on disk and name it in {SDIST_VARIABLE}"
    )]
    Download(String),
    /// The archive is not the one we know.
    #[error("the archive {path} has the SHA-256 {found}, not {PACKAGE_SHA256}; fetch it anew")]
    WrongHash {
        /// The file.
        path: PathBuf,
        /// Its hash.
        found: String,
    },
    /// A bound was passed, or a path leads out of the folder.
    #[error("the archive holds {0}, which is refused")]
    Unsafe(String),
    /// The disk refuses.
    #[error("{doing} failed; check the target directory: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// The folder with all scenarios. Fetches them if they are not there. Fails if they cannot be
/// fetched, checked or unpacked.
pub fn scenario_root() -> Result<PathBuf, FetchError> {
    let parent = target_directory().join("conformance");
    let finished = parent.join(PACKAGE);
    let root = finished.join("test");
    if root.is_dir() {
        return Ok(root);
    }
    fs::create_dir_all(&parent).map_err(failed("making the conformance folder"))?;
    let lock = File::create(parent.join("lock")).map_err(failed("making the lock file"))?;
    lock.lock().map_err(failed("locking"))?;
    if root.is_dir() {
        return Ok(root);
    }
    // Left behind by a process that was killed: the lock says that no other process is at work.
    let work = parent.join("unfinished");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(failed("removing an unfinished download"))?;
    }
    fs::create_dir_all(&work).map_err(failed("making a work folder"))?;
    let archive = match env::var_os(SDIST_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => download(&work)?,
    };
    let bytes = read_bounded(&archive)?;
    let found = hex::encode(Sha256::digest(&bytes));
    if found != PACKAGE_SHA256 {
        return Err(FetchError::WrongHash { path: archive, found });
    }
    unpack(&bytes, &work)?;
    if finished.exists() {
        fs::remove_dir_all(&finished).map_err(failed("removing an incomplete folder"))?;
    }
    fs::rename(work.join(PACKAGE), &finished).map_err(failed("putting the folder in place"))?;
    fs::remove_dir_all(&work).map_err(failed("removing the work folder"))?;
    Ok(root)
}

/// `CARGO_TARGET_DIR`, or `target` at the root of the workspace.
fn target_directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn download(folder: &Path) -> Result<PathBuf, FetchError> {
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--dest"])
        .arg(folder)
        .arg(REQUIREMENT)
        .output()
        .map_err(|error| FetchError::Download(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
        return Err(FetchError::Download(last.to_owned()));
    }
    Ok(folder.join(format!("{PACKAGE}.tar.gz")))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, FetchError> {
    let file = File::open(path).map_err(failed("opening the archive"))?;
    let mut bytes = Vec::new();
    file.take(MAX_ARCHIVE_LENGTH + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("reading the archive"))?;
    if bytes.len() as u64 > MAX_ARCHIVE_LENGTH {
        return Err(FetchError::Unsafe(format!("more than {MAX_ARCHIVE_LENGTH} bytes")));
    }
    Ok(bytes)
}

/// Writes the `.json` files below `test/`, and nothing else, below `folder`.
fn unpack(archive: &[u8], folder: &Path) -> Result<(), FetchError> {
    let wanted = Path::new(PACKAGE).join("test");
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let mut files = 0;
    for entry in archive.entries().map_err(failed("unpacking"))? {
        let mut entry = entry.map_err(failed("unpacking"))?;
        let path = entry.path().map_err(failed("unpacking"))?.into_owned();
        let is_scenario = entry.header().entry_type().is_file()
            && path.starts_with(&wanted)
            && path.extension().is_some_and(|extension| extension == "json");
        if !is_scenario {
            continue;
        }
        files += 1;
        let leads_out = !path.components().all(|part| matches!(part, Component::Normal(_)));
        if leads_out || entry.size() > MAX_FILE_LENGTH || files > MAX_FILES {
            return Err(FetchError::Unsafe(path.display().to_string()));
        }
        let target = folder.join(&path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(failed("making a folder"))?;
        }
        let mut bytes = Vec::new();
        entry
            .by_ref()
            .take(MAX_FILE_LENGTH)
            .read_to_end(&mut bytes)
            .map_err(failed("unpacking"))?;
        let mut file = File::create(&target).map_err(failed("making a file"))?;
        file.write_all(&bytes).map_err(failed("writing a file"))?;
    }
    Ok(())
}

fn failed(doing: &str) -> impl FnOnce(io::Error) -> FetchError {
    move |source| FetchError::Io { doing: doing.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};

    /// An archive with one file. `tar::Builder` refuses bad paths itself, so the name goes straight
    /// into the header.
    fn archive(name: &str, contents: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(contents.len() as u64);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        builder.append(&header, contents).unwrap();
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn scratch(name: &str) -> PathBuf {
        let folder = target_directory().join("conformance-tests").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn scenarios_are_unpacked_and_everything_else_is_left() {
        let folder = scratch("scenarios");
        unpack(&archive("pymongo-4.19.0/test/a/b.json", b"{}"), &folder).unwrap();
        assert_eq!(fs::read(folder.join("pymongo-4.19.0/test/a/b.json")).unwrap(), b"{}");
        unpack(&archive("pymongo-4.19.0/setup.json", b"{}"), &folder).unwrap();
        assert!(!folder.join("pymongo-4.19.0/setup.json").exists());
    }

    #[test]
    fn paths_that_lead_out_of_the_folder_are_refused() {
        let folder = scratch("leading-out");
        let bytes = archive("pymongo-4.19.0/test/../../../out.json", b"{}");
        assert!(matches!(unpack(&bytes, &folder), Err(FetchError::Unsafe(_))));
        assert!(!folder.join("../out.json").exists());
    }
}
