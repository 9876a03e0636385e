//! The lines that were typed, in a file of the user's own.

use std::fs;
use std::path::PathBuf;

use super::input::is_secret;
use crate::whole_file::{self, PRIVATE};

/// How many lines are kept.
const MAX_LINES: usize = 1000;

/// The lines, oldest first. Without a home they are kept until the end of the shell.
pub(super) struct History {
    lines: Vec<String>,
    file: Option<PathBuf>,
}

impl History {
    /// Reads the file of this user.
    pub(super) fn open() -> Self {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        Self::at(state.or_else(home).map(|folder| folder.join("quorate/history")))
    }

    fn at(file: Option<PathBuf>) -> Self {
        let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.drain(..lines.len().saturating_sub(MAX_LINES));
        Self { lines, file }
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Keeps a line, unless it is the last one again or holds a secret.
    pub(super) fn add(&mut self, line: &str) {
        let line = line.trim();
        if line.is_empty() || is_secret(line) || self.lines.last().is_some_and(|last| last == line)
        {
            return;
        }
        self.lines.push(line.to_owned());
        if self.lines.len() > MAX_LINES {
            self.lines.remove(0);
        }
        // A history that cannot be kept is no reason to stop.
        let _ = self.store();
    }

    fn store(&self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        whole_file::replace(file, &(self.lines.join("\n") + "\n"), PRIVATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_are_kept_without_secrets_and_for_their_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quorate/history");
        let mut history = History::at(Some(file.clone()));
        for line in ["{ping: 1}", "{ping: 1}", "", "{createUser: 'a', pwd: 'b'}", "use shop"] {
            history.add(line);
        }
        assert_eq!(History::at(Some(file.clone())).lines(), ["{ping: 1}", "use shop"]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for number in 0..2 * MAX_LINES {
            history.lines.push(number.to_string());
        }
        history.store().unwrap();
        assert_eq!(History::at(Some(file)).lines().len(), MAX_LINES);
    }
}
