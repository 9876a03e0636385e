//! The signals that ask a process to end, or to mend what was broken.

use std::future::Future;
use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Ready when SIGINT (Ctrl-C) or SIGTERM has come. From this call on they no longer kill.
///
/// # Errors
///
/// If the handlers cannot be installed.
pub(crate) fn stop() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// SIGUSR2, again and again: somebody asks for what was broken to be mended.
///
/// # Errors
///
/// If the handler cannot be installed.
pub(crate) fn mend() -> io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::user_defined2())
}
