//! `quorate up … -- COMMAND…`: a program that has the set for as long as it runs.
//!
//! The program gets stdin, stdout and stderr as they are, and the connection string in its
//! environment. SIGINT and SIGTERM are passed on, and the program has time to end by itself.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::screen::{Outcome, Result};
use crate::signals::Endings;
use crate::words::Foreign;

/// How long the program may take to end after a signal before it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The exit code for a program that is not there, as shells have it.
const NOT_FOUND: u8 = 127;

/// The exit code for a program that cannot be run, as shells have it.
const NOT_RUNNABLE: u8 = 126;

/// The number that shells add to the signal that ended a program.
const SIGNALLED: i32 = 128;

/// A program that runs.
pub(super) struct Running {
    child: Child,
    endings: Endings,
}

/// Why a program could not be started: what to tell, and the exit code.
pub(super) struct NotStarted {
    pub(super) text: String,
    pub(super) code: u8,
}

impl Running {
    /// Starts the program with the connection string in its environment.
    pub(super) fn start(
        command: &[OsString],
        uri: &str,
        endings: Endings,
    ) -> Result<Self, NotStarted> {
        let (program, arguments) =
            command.split_first().map_or((None, command), |(p, a)| (Some(p.clone()), a));
        let program = program.unwrap_or_default();
        let started = Command::new(&program)
            .args(arguments)
            .env("QUORATE_URI", uri)
            .env("MONGODB_URI", uri)
            .kill_on_drop(true)
            .spawn();
        match started {
            Ok(child) => Ok(Self { child, endings }),
            Err(error) => {
                let code = match error.kind() {
                    ErrorKind::NotFound => NOT_FOUND,
                    _ => NOT_RUNNABLE,
                };
                let program = program.to_string_lossy().into_owned();
                let text = format!(
                    "{} cannot be run: {error}; check the words after --",
                    Foreign(program)
                );
                Err(NotStarted { text, code })
            }
        }
    }

    /// Waits until the program has ended, and passes signals on meanwhile. Returns the exit code to
    /// end with.
    pub(super) async fn finish(mut self) -> Result<Outcome> {
        let signal = tokio::select! {
            status = self.child.wait() => return told(status),
            signal = self.endings.next() => signal,
        };
        // A terminal sends Ctrl-C to the program as well.
        if signal == Signal::TERM || !std::io::stdin().is_terminal() {
            self.pass_on(signal);
        }
        tokio::select! {
            ended = timeout(END_WITHIN, self.child.wait()) => {
                if let Ok(status) = ended {
                    return told(status);
                }
            }
            // The second signal means at once.
            _ = self.endings.next() => {}
        }
        self.pass_on(Signal::KILL);
        told(self.child.wait().await)
    }

    fn pass_on(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // A program that ended in this moment needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

fn told(status: std::io::Result<ExitStatus>) -> Result<Outcome> {
    let status = status
        .map_err(|error| problem!("the end of the command cannot be seen: {error}; try again"))?;
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(if code == 0 { Outcome::Fine } else { Outcome::Code(code) })
}
