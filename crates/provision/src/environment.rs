//! A folder below the target directory that is made once, by one process, and complete if its mark
//! says so.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::{LOCK_PATIENCE, ProvisionError, target_directory};

/// How often a taken lock is tried again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The file that says what a folder was made from. Written last.
const MARK: &str = "provision-ready";

/// The folder for these contents. If it is not complete it is emptied and made by `make`, while
/// other processes wait.
///
/// `is_whole` is asked about a folder that claims to be complete: a target directory may have come
/// from another machine.
pub(crate) fn provide(
    kind: &str,
    contents: &[&str],
    is_whole: impl Fn(&Path) -> bool,
    make: impl FnOnce(&Path) -> Result<(), ProvisionError>,
) -> Result<PathBuf, ProvisionError> {
    let folder = target_directory().join("provision").join(folder_name(kind, contents));
    provide_at(&folder, contents, is_whole, make)?;
    Ok(folder)
}

fn provide_at(
    folder: &Path,
    contents: &[&str],
    is_whole: impl Fn(&Path) -> bool,
    make: impl FnOnce(&Path) -> Result<(), ProvisionError>,
) -> Result<(), ProvisionError> {
    let expected = contents.join("\n");
    let mark = folder.join(MARK);
    let is_ready = || fs::read_to_string(&mark).is_ok_and(|found| found == expected);
    if is_ready() && is_whole(folder) {
        return Ok(());
    }
    let _lock = lock(&folder.with_extension("lock"))?;
    if is_ready() && is_whole(folder) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed("removing", folder))?;
    }
    fs::create_dir_all(folder).map_err(failed("making", folder))?;
    make(folder)?;
    fs::write(&mark, expected).map_err(failed("writing", &mark))
}

/// Holds the lock on a file until it is dropped; ends with the process, however that ends.
pub(crate) fn lock(path: &Path) -> Result<File, ProvisionError> {
    lock_within(path, LOCK_PATIENCE)
}

fn lock_within(path: &Path, patience: Duration) -> Result<File, ProvisionError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed("making", parent))?;
    }
    let file = File::create(path).map_err(failed("making the lock file", path))?;
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(POLL_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(ProvisionError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(failed("locking", path)(error)),
        }
    }
}

/// Makes an error about a path.
pub(crate) fn failed(
    doing: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> ProvisionError {
    let path = path.to_owned();
    move |source| ProvisionError::Io { doing, path, source }
}

/// Readable and different for different contents: the first package, and a hash of all.
fn folder_name(kind: &str, contents: &[&str]) -> String {
    let first = contents.first().copied().unwrap_or("nothing");
    let readable: String = first
        .chars()
        .take_while(|character| !matches!(character, '=' | '['))
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .collect();
    let readable = readable.trim_matches('-');
    format!("{kind}-{readable}-{:016x}", fnv1a(contents.join("\n").as_bytes()))
}

/// FNV-1a, since the hashers of the standard library may change with the compiler.
fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = target_directory().join("provision-tests").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        folder
    }

    fn broken() -> ProvisionError {
        ProvisionError::NotPinned { package: String::new(), form: "" }
    }

    #[test]
    fn many_at_once_make_it_once() {
        let folder = scratch("many");
        let made = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    provide_at(
                        &folder,
                        &["a"],
                        |_| true,
                        |_| {
                            made.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        },
                    )
                    .unwrap();
                });
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_interrupted_installation_is_done_again_from_nothing() {
        let folder = scratch("interrupted");
        let half = folder.join("half");
        let interrupted = provide_at(
            &folder,
            &["a"],
            |_| true,
            |_| {
                fs::write(&half, "").unwrap();
                Err(broken())
            },
        );
        interrupted.unwrap_err();
        assert!(half.exists());
        provide_at(&folder, &["a"], |_| true, |_| Ok(())).unwrap();
        assert!(!half.exists());
    }

    #[test]
    fn a_complete_folder_that_is_not_whole_is_made_again() {
        let folder = scratch("not-whole");
        let program = folder.join("program");
        let make = |_: &Path| fs::write(&program, "").map_err(failed("writing", &program));
        provide_at(&folder, &["a"], |_| program.exists(), make).unwrap();
        fs::remove_file(&program).unwrap();
        provide_at(&folder, &["a"], |_| program.exists(), make).unwrap();
        assert!(program.exists());
    }

    #[test]
    fn the_wait_for_a_lock_is_bounded() {
        let path = scratch("lock").with_extension("lock");
        let _held = lock(&path).unwrap();
        let error = lock_within(&path, Duration::from_millis(10)).unwrap_err();
        assert!(matches!(error, ProvisionError::Locked { .. }), "{error}");
    }

    #[test]
    fn other_contents_have_another_folder() {
        let name = folder_name("python", &["pymongo[snappy]==4.19.0"]);
        assert!(name.starts_with("python-pymongo-"), "{name}");
        assert_ne!(name, folder_name("python", &["pymongo[snappy]==4.18.0"]));
        assert!(folder_name("npm", &["@types/node@20.0.0"]).starts_with("npm-types-node-20-0-0-"));
    }
}
