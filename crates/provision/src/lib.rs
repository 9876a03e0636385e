//! Installs what tests need, so that a fresh machine passes: Debian packages, Python packages in a
//! virtual environment, npm packages, and source archives whose hash is known.
//!
//! Everything but Debian's packages goes below `provision` in the target directory. Each function
//! may be called at any time and by many processes at once: one installs while the others wait (at
//! most [`LOCK_PATIENCE`]), what is installed is left alone, and what was interrupted is done again,
//! because the mark that says "ready" is written last.
//!
//! It knows no package by name: which ones a test needs, and in which version, the test says.
//!
//! [`snapshot`] compares files with what tests see, or writes them anew.

mod command;
mod debian;
mod environment;
mod error;
mod node;
mod python;
mod snapshot;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use command::command_line;
pub use debian::debian;
pub use error::ProvisionError;
pub use node::npm;
pub use python::{python, source_package};
pub use snapshot::snapshot;

/// How long one program may take, such as `apt-get install`. Slow mirrors are common, endless
/// downloads help in no case.
pub const COMMAND_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// How long to wait for another process that is installing the same.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Where everything that is built goes: `CARGO_TARGET_DIR`, or `target` at the root of the
/// workspace.
#[must_use]
pub fn target_directory() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = crates.and_then(Path::parent).unwrap_or(Path::new("."));
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
