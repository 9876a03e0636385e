//! The signals that ask a process to end, to break something, or to mend it.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that part a member from its set and join it again, for drills.
pub(crate) struct Cuts {
    cut: Signal,
    heal: Signal,
}

impl Cuts {
    /// From this call on, SIGUSR1 and SIGUSR2 no longer kill.
    ///
    /// # Errors
    ///
    /// If the handlers cannot be installed.
    pub(crate) fn listen() -> io::Result<Self> {
        let (cut, heal) = (SignalKind::user_defined1(), SignalKind::user_defined2());
        Ok(Self { cut: signal(cut)?, heal: signal(heal)? })
    }

    /// Whether the member is to be cut off: true for SIGUSR1, false for SIGUSR2.
    pub(crate) async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.cut.recv() => true,
            _ = self.heal.recv() => false,
        }
    }
}

/// SIGINT and SIGTERM as they come, for a process that passes them on.
pub(crate) struct Endings {
    interrupt: Signal,
    terminate: Signal,
}

impl Endings {
    /// From this call on, SIGINT and SIGTERM no longer kill.
    ///
    /// # Errors
    ///
    /// If the handlers cannot be installed.
    pub(crate) fn listen() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> rustix::process::Signal {
        tokio::select! {
            _ = self.interrupt.recv() => rustix::process::Signal::INT,
            _ = self.terminate.recv() => rustix::process::Signal::TERM,
        }
    }
}

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

/// SIGUSR2, again and again: the sender wants what was broken to be mended.
///
/// # Errors
///
/// If the handler cannot be installed.
pub(crate) fn mend() -> io::Result<Signal> {
    signal(SignalKind::user_defined2())
}
