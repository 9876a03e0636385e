//! The packages of the program: an archive, a `.deb` and a container image.
//!
//! ```text
//!   quorate ──▶ Program: itself, its completions, its manual pages
//!                 ├─▶ archive.rs   quorate-0.1.0-x86_64-linux.tar.gz
//!                 ├─▶ deb.rs       quorate_0.1.0_amd64.deb, with a systemd unit
//!                 └─▶ image.rs     quorate-0.1.0-oci.tar, from nothing, without a daemon
//! ```
//!
//! Nothing is fetched and no other tool is run but the program itself. The same program gives the same
//! bytes: times are those of 1970, owners are root, and files are in the order of their names.

mod archive;
mod deb;
mod files;
mod image;
mod program;

use std::io;
use std::path::{Path, PathBuf};

pub use program::Program;

/// A package that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A file could not be read or written.
    #[error("{}: {source}; check its path and rights", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The program does not do what it is asked.
    #[error("{program} {arguments} failed: {reason}; give a quorate that runs on this machine")]
    Program {
        /// The program.
        program: String,
        /// What it was asked.
        arguments: String,
        /// What it said.
        reason: String,
    },
    /// What was given is no program for Linux.
    #[error("{} is no program for Linux on x86-64 or arm64", .0.display())]
    Foreign(PathBuf),
}

/// How much to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As small as can be.
    Best,
    /// As fast as can be, for tests.
    Least,
}

/// Makes every package in a directory, and returns their files: the archive, the `.deb`, the image.
/// Fails if the program does not run, or a file cannot be written.
pub fn make_all(
    program: &Program,
    directory: &Path,
    effort: Effort,
) -> Result<Vec<PathBuf>, PackageError> {
    let made = [
        (archive::name(program), archive::make(program, effort)),
        (deb::name(program), deb::make(program, effort)),
        (image::name(program), image::make(program, effort)?),
    ];
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PackageError::File { path, source }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let mut paths = Vec::new();
    for (name, bytes) in made {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(failed(&path))?;
        paths.push(path);
    }
    Ok(paths)
}
