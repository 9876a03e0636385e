//! What can go wrong: the machine lacks a program, the program fails, or the disk refuses.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::{COMMAND_PATIENCE, LOCK_PATIENCE};

/// Something could not be installed.
///
/// `Debug` prints the same as `Display`: tests unwrap, and the output of a failed installation is
/// only readable with its line ends.
pub enum ProvisionError {
    /// The caller asked for a package without an exact version.
    NotPinned {
        /// As it was asked for.
        package: String,
        /// How it should look.
        form: &'static str,
    },
    /// The program is missing or cannot be run.
    NotStarted {
        /// With its arguments.
        command: String,
        /// The error of the system.
        source: io::Error,
        /// What to do about it.
        next_step: &'static str,
    },
    /// The program ran and failed.
    Failed {
        /// With its arguments.
        command: String,
        /// Both streams, in full.
        output: String,
        /// What to do about it.
        next_step: &'static str,
    },
    /// The program did not end within [`COMMAND_PATIENCE`] and was killed.
    TimedOut {
        /// With its arguments.
        command: String,
        /// What it had written by then.
        output: String,
    },
    /// Another process has been installing the same for longer than [`LOCK_PATIENCE`].
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The disk refuses.
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for ProvisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPinned { package, form } => {
                write!(f, "the package {package:?} has no exact version; write it as {form}")
            }
            Self::NotStarted { command, source, next_step } => {
                write!(f, "`{command}` could not be run: {source}; {next_step}")
            }
            Self::Failed { command, output, next_step } => {
                write!(f, "`{command}` failed; {next_step}; it said:\n{}", output.trim_end())
            }
            Self::TimedOut { command, output } => write!(
                f,
                "`{command}` was ended after {} s; look whether the network is slow and run the \
                 tests again; it had said:\n{}",
                COMMAND_PATIENCE.as_secs(),
                output.trim_end()
            ),
            Self::Locked { path } => write!(
                f,
                "another process has held {} for {} s; wait for it or end it, and run the tests \
                 again",
                path.display(),
                LOCK_PATIENCE.as_secs()
            ),
            Self::Io { doing, path, source } => {
                write!(f, "{doing} {} failed: {source}; check the disk there", path.display())
            }
        }
    }
}

impl fmt::Debug for ProvisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ProvisionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotStarted { source, .. } | Self::Io { source, .. } => Some(source),
            Self::NotPinned { .. }
            | Self::Failed { .. }
            | Self::TimedOut { .. }
            | Self::Locked { .. } => None,
        }
    }
}
