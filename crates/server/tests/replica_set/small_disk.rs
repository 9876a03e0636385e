//! A disk that is soon full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_test_support::leave_out;
use rustix::io::Errno;

/// A small disk in memory, mounted for one test.
pub(crate) struct SmallDisk(PathBuf);

/// Set to `without` on a machine where nothing can be mounted, to have the test say so and pass.
const WITHOUT: &str = "QUORATE_MOUNTS";

/// How often the filling is tried.
const MAX_FILLS: usize = 1000;

impl SmallDisk {
    /// Mounts one of a GiB; none if the machine cannot and the test run may leave it out.
    pub(crate) fn mount(at: &Path) -> Option<Self> {
        Self::mount_of(1024, at)
    }

    /// Mounts one of this many MiB.
    pub(crate) fn mount_of(size: u32, at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}m"), "quorate"]).arg(at);
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(at.to_owned()));
        }
        leave_out(WITHOUT, "nothing can be mounted here");
        None
    }

    /// Leaves this many bytes free.
    pub(crate) fn fill(&self, left: u64) {
        let file = fs::File::create(self.filler()).unwrap();
        let fill = || {
            let free = rustix::fs::statvfs(&self.0).unwrap();
            let bytes = (free.f_bavail * free.f_frsize).saturating_sub(left);
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
        };
        // A member that writes may take the room between the question and the filling.
        let filled = (0..MAX_FILLS).map(|_| fill()).find(|filled| *filled != Err(Errno::NOSPC));
        filled.unwrap().unwrap();
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The member may hold it a moment longer than its process is there.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
