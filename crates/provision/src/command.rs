//! Runs one program to its end within a bounded time and keeps what it wrote.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{COMMAND_PATIENCE, ProvisionError};

/// How often a running program is asked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How much of the output is kept: a program gone wild must not fill memory.
const MAX_OUTPUT_LENGTH: usize = 1 << 20;

/// Runs it; anything but success is an error that names the command, its output and `next_step`.
/// Returns what it wrote, both streams together.
pub(crate) fn run(
    command: &mut Command,
    next_step: &'static str,
) -> Result<String, ProvisionError> {
    run_within(command, COMMAND_PATIENCE, next_step)
}

fn run_within(
    command: &mut Command,
    patience: Duration,
    next_step: &'static str,
) -> Result<String, ProvisionError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let not_started = |command: &Command, source| ProvisionError::NotStarted {
        command: command_line(command),
        source,
        next_step,
    };
    let mut child = command.spawn().map_err(|error| not_started(command, error))?;
    let output = Arc::new(Mutex::new(Vec::new()));
    let readers = [
        child.stdout.take().map(|stream| collect(stream, &output)),
        child.stderr.take().map(|stream| collect(stream, &output)),
    ];
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| not_started(command, error))? {
            break status;
        }
        if Instant::now() >= deadline {
            // It may have ended by itself in this moment; either way it is over.
            let _ = child.kill();
            let _ = child.wait();
            // Its children may hold the streams open, so the readers are not waited for.
            return Err(ProvisionError::TimedOut {
                command: command_line(command),
                output: text(&output),
            });
        }
        thread::sleep(POLL_INTERVAL);
    };
    for reader in readers.into_iter().flatten() {
        let _ = reader.join();
    }
    if status.success() {
        Ok(text(&output))
    } else {
        Err(ProvisionError::Failed {
            command: command_line(command),
            output: text(&output),
            next_step,
        })
    }
}

fn collect(
    mut stream: impl Read + Send + 'static,
    output: &Arc<Mutex<Vec<u8>>>,
) -> thread::JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            let room = MAX_OUTPUT_LENGTH - output.len();
            output.extend_from_slice(&buffer[..length.min(room)]);
        }
    })
}

fn text(output: &Mutex<Vec<u8>>) -> String {
    let output = output.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&output).into_owned()
}

/// The words of a command, as one would type them.
pub fn command_line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report")]

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_output_of_both_streams_is_returned() {
        let said = run(&mut shell("echo one; echo two >&2"), "").unwrap();
        assert!(said.contains("one\n") && said.contains("two\n"), "{said}");
    }

    #[test]
    fn a_failure_names_the_command_its_output_and_the_next_step() {
        let error = run(&mut shell("echo broken; exit 3"), "mend it").unwrap_err().to_string();
        assert_eq!(error, "`sh -c echo broken; exit 3` failed; mend it; it said:\nbroken");
    }

    #[test]
    fn a_missing_program_is_named_with_the_next_step() {
        let error = run(&mut Command::new("no-such-program"), "install it").unwrap_err();
        assert!(matches!(error, ProvisionError::NotStarted { .. }));
        assert!(error.to_string().ends_with("; install it"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let patience = Duration::from_millis(50);
        let error = run_within(&mut shell("exec sleep 600"), patience, "").unwrap_err();
        assert!(matches!(error, ProvisionError::TimedOut { .. }), "{error}");
    }
}
