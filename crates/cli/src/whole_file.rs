//! Files that are there whole or not at all: written beside their place, then renamed into it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The mode of a file that others may read, as far as the umask allows.
pub(crate) const PUBLIC: u32 = 0o666;

/// The mode of a file that only its owner may read.
pub(crate) const PRIVATE: u32 = 0o600;

/// The file that grows until it is whole: in the same folder, so that it can be renamed.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Replaces a file by one with this text; no reader sees half of it.
pub(crate) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let growing = beside(path, ".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&growing)?;
    file.write_all(text.as_bytes())?;
    drop(file);
    fs::rename(&growing, path)
}

/// Gives a file or a folder that is whole its name. Both are there after a power failure, too: a name is on disk once
/// its folder is.
pub(crate) fn put_in_place(growing: &Path, wanted: &Path) -> io::Result<()> {
    File::open(growing)?.sync_all()?;
    fs::rename(growing, wanted)?;
    let parent = wanted.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("place");
        for text in ["first, and longer\n", "second\n"] {
            replace(&path, text, PRIVATE).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_is_given_to_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let (file, growing) = (folder.path().join("a"), folder.path().join("a.partial"));
        assert_eq!(beside(&file, ".partial"), growing);
        fs::write(&growing, "x").unwrap();
        put_in_place(&growing, &file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
        fs::create_dir(&growing).unwrap();
        put_in_place(&growing, &folder.path().join("b")).unwrap();
        assert!(folder.path().join("b").is_dir() && !growing.exists());
    }
}
