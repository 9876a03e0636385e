//! The terminal: taken over at the start, given back whatever happens.
//!
//! Raw mode and the alternate screen are undone when the guard is dropped, and by a panic before its
//! message is written, so that the message can be read. Signals end the loop that holds the guard.

use std::io::{self, Stdout, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use tokio::sync::mpsc;

/// How often the thread that reads keys looks whether it is still wanted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Keys that wait to be handled; faster typing has to wait.
const MAX_KEYS: usize = 64;

/// The terminal in our hands.
pub(crate) struct Taken {
    pub(crate) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Taken {
    /// Takes the terminal. Fails if it is none, or is gone.
    pub(crate) fn take() -> io::Result<Self> {
        give_back_on_panic();
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        // From here on dropping it gives the terminal back.
        let mut taken = Self { terminal: Terminal::new(CrosstermBackend::new(io::stdout()))? };
        execute!(taken.terminal.backend_mut(), EnterAlternateScreen, cursor::Hide)?;
        taken.terminal.clear()?;
        Ok(taken)
    }

    /// Puts a text into the clipboard of the user's terminal (OSC 52), also over SSH.
    pub(super) fn copy(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout();
        stdout.write_all(clipboard(text).as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

fn clipboard(text: &str) -> String {
    format!("\u{1b}]52;c;{}\u{7}", STANDARD.encode(text))
}

/// Whether there is anything to give back.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn give_back() {
    // Leaving twice would put the cursor back to where it was, over the words of a panic.
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // Nothing can be done about a terminal that is gone.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
}

fn give_back_on_panic() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::SeqCst) {
        return;
    }
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |information| {
        give_back();
        before(information);
    }));
}

/// Keys and resizes, read by a thread of their own until this is dropped.
pub(crate) struct Keys {
    events: mpsc::Receiver<io::Result<Event>>,
    wanted: Arc<AtomicBool>,
}

impl Keys {
    /// Begins to read.
    pub(crate) fn read() -> Self {
        let (sender, events) = mpsc::channel(MAX_KEYS);
        let wanted = Arc::new(AtomicBool::new(true));
        let still_wanted = Arc::clone(&wanted);
        thread::spawn(move || {
            while still_wanted.load(Ordering::Relaxed) {
                let event = match event::poll(LOOK_UP) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let failed = event.is_err();
                if sender.blocking_send(event).is_err() || failed {
                    return;
                }
            }
        });
        Self { events, wanted }
    }

    /// The next one; `None` if the terminal is gone.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Event>> {
        self.events.recv().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set where the test below runs again, in a terminal.
    const AGAIN: &str = "QUORATE_TEST_PANICS_ON_A_TERMINAL";

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_speaks() {
        if std::env::var_os(AGAIN).is_some() {
            let _taken = Taken::take().unwrap();
            panic!("the sky fell");
        }
        let tmux = quorate_test_support::Tmux::start(80, 24);
        let program = std::env::current_exe().unwrap();
        let name = "dashboard::terminal::tests::a_panic_gives_the_terminal_back_before_it_speaks";
        let line =
            format!("RUST_BACKTRACE=0 {AGAIN}=1 {} --exact {name} --nocapture", program.display());
        tmux.enter(&format!("{line}; echo code $?"));
        let shown = tmux.wait_for("end", |shown| shown.contains("code 101"));
        assert!(shown.contains("the sky fell"), "{shown}");
        assert!(tmux.is_restored());
    }

    #[test]
    fn a_copy_is_osc_52() {
        assert_eq!(clipboard("mongodb://a"), "\u{1b}]52;c;bW9uZ29kYjovL2E=\u{7}");
    }
}
