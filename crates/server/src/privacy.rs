//! Keeping data from other users of the machine, whatever their `umask` says.

use std::fs::{DirBuilder, Permissions, metadata, set_permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;

/// What a data directory allows: its owner everything, others nothing.
const PRIVATE_DIRECTORY: u32 = 0o700;

/// What others could do.
const OTHERS: u32 = 0o077;

/// From now on files and directories that this process makes are its owner's alone.
pub(crate) fn keep_files_private() {
    let others = Mode::from_bits_retain(OTHERS);
    let before = umask(others);
    // What the operator forbids besides stays forbidden.
    umask(before | others);
}

/// Makes a directory that its owner alone can enter, or takes one over and closes it to others.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    make_directory(path)?;
    close_to_others(path)
}

/// Makes a directory that its owner alone can enter. One that exists stays as it is.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(path)
}

/// Closes a directory to others. It is known to be ours: nothing else may be closed to its users.
pub(crate) fn close_to_others(path: &Path) -> io::Result<()> {
    let mode = metadata(path)?.permissions().mode();
    if mode & OTHERS != 0 {
        tracing::warn!(
            directory = %path.display(),
            mode = format!("{:o}", mode & 0o777),
            "other users could enter the data directory; its mode is now 700"
        );
        set_permissions(path, Permissions::from_mode(PRIVATE_DIRECTORY))?;
    }
    Ok(())
}
