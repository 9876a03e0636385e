//! The signals that ask a process to end, to break something, or to mend it.

use std::future::Future;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::remedy::CHECK_LIMITS;
use crate::screen::Result;

/// The signals that part a member from its set and join it again, for drills.
pub(crate) struct Cuts {
    cut: Signal,
    heal: Signal,
}

impl Cuts {
    /// From this call on, SIGUSR1 and SIGUSR2 no longer kill. Fails if the handlers cannot be
    /// installed.
    pub(crate) fn listen() -> Result<Self> {
        let (cut, heal) = (SignalKind::user_defined1(), SignalKind::user_defined2());
        Ok(Self { cut: listen(cut)?, heal: listen(heal)? })
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
    /// From this call on, SIGINT and SIGTERM no longer kill. Fails if the handlers cannot be
    /// installed.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: listen(SignalKind::terminate())? })
    }

    pub(crate) async fn next(&mut self) -> rustix::process::Signal {
        tokio::select! {
            _ = self.interrupt.recv() => rustix::process::Signal::INT,
            _ = self.terminate.recv() => rustix::process::Signal::TERM,
        }
    }
}

/// Ready when SIGINT (Ctrl-C) or SIGTERM has come. From this call on they no longer kill. Fails if
/// the handlers cannot be installed.
pub(crate) fn stop() -> Result<impl Future<Output = ()>> {
    let mut endings = Endings::listen()?;
    Ok(async move {
        endings.next().await;
    })
}

/// Ready when the reader of stdout has gone, as behind `| head -1`. A command that writes only now and then would learn of it with
/// its next line.
pub(crate) async fn reader_gone() {
    match watched_stdout() {
        Some(stdout) => drop(stdout.ready(Interest::ERROR).await),
        None => std::future::pending().await,
    }
}

/// None if stdout has no other end, such as a file. A terminal that goes sends SIGHUP.
fn watched_stdout() -> Option<Sender> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        return None;
    }
    let copy = stdout.as_fd().try_clone_to_owned().ok()?;
    // Nothing is written by it, so that it may block.
    Sender::from_owned_fd_unchecked(copy).ok()
}

/// Every SIGUSR2: the sender asks for all faults to be undone. Fails if the handler
/// cannot be installed.
pub(crate) fn mend() -> Result<Signal> {
    listen(SignalKind::user_defined2())
}

fn listen(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| problem!("cannot listen for signals: {error}; {CHECK_LIMITS}"))
}
