//! Reading key files: the secrets that make a process a member of its set.
//!
//! What a key is and how it is proved belongs to `quorate-authentication`; here are the file, its
//! permissions, and files of several keys, by which a set changes its key one member at a time: each
//! member logs in with its first key and takes any.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_authentication::{KeyFile, KeyFileError};

/// The most keys of a file: the old one and the new one, and some to spare.
const MAX_KEYS: usize = 8;

/// The longest file that is read.
const MAX_FILE_LENGTH: u64 = 64 * 1024;

/// A key file is of no use. The operator who wrote or placed it is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFilesError {
    /// It cannot be read.
    #[error("the key file {} cannot be read: {source}; check the path and its owner", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Others on the machine could be members too.
    #[error(
        "the key file {} can be read by others (mode {mode:o}); run: chmod 600 {}",
        .path.display(), .path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error("the key file {} is of no use: {source}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: KeyFileError,
    },
    /// Too many keys, or too long.
    #[error(
        "the key file {} is too long; it may hold {MAX_KEYS} keys of 1024 characters",
        .path.display()
    )]
    Long {
        /// The file.
        path: PathBuf,
    },
}

/// The keys of a file: one, or a list with one behind each dash. Fails if the file cannot be read,
/// can be read by others, or holds something else.
pub(crate) fn read_key_file(path: &Path) -> Result<Vec<KeyFile>, KeyFilesError> {
    let unreadable = |source| KeyFilesError::Unreadable { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFilesError::Open { path: path.to_owned(), mode });
    }
    if metadata.len() > MAX_FILE_LENGTH {
        return Err(KeyFilesError::Long { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let wrong = |source| KeyFilesError::Key { path: path.to_owned(), source };
    let keys = split(&text).iter().map(|key| KeyFile::parse(key)).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(wrong)?;
    if keys.len() > MAX_KEYS {
        return Err(KeyFilesError::Long { path: path.to_owned() });
    }
    Ok(keys)
}

/// The texts of the keys. A dash is not of a key's alphabet, so it can only begin one of a list.
fn split(text: &str) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line.strip_prefix('-'), keys.last_mut()) {
            (Some(key), _) => keys.push(key.to_owned()),
            (None, Some(key)) => key.push_str(line),
            (None, None) => keys.push(line.to_owned()),
        }
    }
    if keys.is_empty() { vec![String::new()] } else { keys }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    #[test]
    fn one_key_may_fill_lines_and_several_stand_behind_dashes() {
        let (_kept, path) = file("abcd\nefgh\n", 0o600);
        assert_eq!(read_key_file(&path).unwrap(), [KeyFile::parse("abcdefgh").unwrap()]);
        let (_kept, path) = file("- newkey\n- oldkey\n", 0o400);
        let both = ["newkey", "oldkey"].map(|key| KeyFile::parse(key).unwrap());
        assert_eq!(read_key_file(&path).unwrap(), both);
    }

    #[test]
    fn files_that_others_can_read_or_that_hold_no_key_are_refused() {
        let (_kept, path) = file("abcdefgh", 0o644);
        let error = read_key_file(&path).unwrap_err().to_string();
        assert!(error.contains("mode 644") && error.contains("chmod 600"), "{error}");
        let (_kept, path) = file("", 0o600);
        assert!(read_key_file(&path).unwrap_err().to_string().contains("0 characters"));
        let error = read_key_file(Path::new("/nowhere/key")).unwrap_err();
        assert!(matches!(error, KeyFilesError::Unreadable { .. }));
    }
}
