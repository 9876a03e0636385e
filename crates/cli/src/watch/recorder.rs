//! A recording, line by line to a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes a recording. Each line is written unbuffered, so a crash loses no earlier line.
#[derive(Debug)]
pub(super) struct Recorder {
    file: File,
}

impl Recorder {
    /// A new file. An existing one is not overwritten: it may be the only account of an incident.
    /// Fails if the file exists or cannot be made.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        File::create_new(path).map(|file| Self { file })
    }

    /// Writes one line. Fails if the disk is full or gone.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        // One call, so that a line is there as a whole or not at all.
        self.file.write_all(format!("{line}\n").as_bytes())
    }
}
