//! A process by its number and the moment of its birth.
//!
//! The system gives numbers of dead processes to new ones, so a number from a file is never enough to
//! send a signal to: the birth must be the same as well.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

/// One process of this machine, told from every later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pid: u32,
    birth: String,
}

impl ProcessId {
    /// The process that has this number now; none if there is no such process.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        birth_of(pid).map(|birth| Self { pid, birth })
    }

    /// The process with this number that was born then, whether it lives or not.
    pub(super) fn born(pid: u32, birth: String) -> Self {
        Self { pid, birth }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// When it was born, in words that only the same system understands.
    pub(super) fn birth(&self) -> &str {
        &self.birth
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        birth_of(self.pid).as_deref() == Some(&self.birth)
    }

    /// Sends a signal. False if the process is gone or not ours to signal.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        self.is_alive() && pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

/// When the process was born; none if it does not run.
fn birth_of(pid: u32) -> Option<String> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => linux_birth(&stat),
        Err(_) if cfg!(target_os = "linux") => None,
        Err(_) => {
            // `-o lstart=` is POSIX enough for every other system that this runs on.
            let told = Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output();
            let text = String::from_utf8(told.ok()?.stdout).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        }
    }
}

/// The boot and the ticks since then. A process that ended and waits for its parent is dead.
fn linux_birth(stat: &str) -> Option<String> {
    // The name stands in brackets and may hold anything, brackets and spaces included.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // Field 22 of proc(5); the state is field 3.
    let ticks = fields.nth(18)?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{}:{ticks}", boot.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_again_is_another_process() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        let earlier = ProcessId::born(me.pid(), "another birth".to_owned());
        assert!(!earlier.is_alive());
        assert!(!earlier.signal(Signal::TERM), "or this test would have ended");
    }

    #[test]
    fn the_dead_are_dead_before_their_parent_asks() {
        let mut child = Command::new("true").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while ProcessId::of(child.id()).is_some() {
            assert!(std::time::Instant::now() < deadline, "true runs for ever");
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_name_with_brackets_is_no_trap() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert!(linux_birth(stat).unwrap().ends_with(":4242"));
        assert_eq!(linux_birth(&stat.replace(") S", ") Z")), None);
        assert_eq!(linux_birth("7 (cut) S 1"), None);
    }
}
