//! A real terminal for tests: tmux runs a program, types, and tells what is shown.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long anything may take to show on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const BREATH: Duration = Duration::from_millis(50);

/// A terminal with a shell in it. It has a server of its own, so that no other sessions are
/// touched; everything ends when this is dropped.
#[derive(Debug)]
pub struct Tmux {
    directory: tempfile::TempDir,
    socket: PathBuf,
}

impl Tmux {
    /// A shell in a terminal of this size, whose prompt is `ready$ `. Installs tmux if it is missing.
    ///
    /// # Panics
    ///
    /// If there is no terminal to be had.
    pub fn start(width: u16, height: u16) -> Self {
        quorate_provision::debian(&["tmux"]).expect("tmux can be installed");
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let tmux = Self { directory, socket };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = "env PS1='ready$ ' sh";
        tmux.run(&["new-session", "-d", "-x", &width, "-y", &height, shell]);
        tmux.run(&["set-option", "-s", "set-clipboard", "on"]);
        tmux.wait_for("prompt", |shown| shown.contains("ready$"));
        tmux
    }

    /// A directory that ends with the terminal.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What is on the screen.
    pub fn shown(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Presses a key, by tmux's name for it.
    pub fn press(&self, key: &str) {
        self.run(&["send-keys", key]);
    }

    /// Types a line, and Enter.
    pub fn enter(&self, line: &str) {
        self.run(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    /// What a program put into the clipboard last.
    ///
    /// # Panics
    ///
    /// If no program did.
    pub fn clipboard(&self) -> String {
        self.run(&["show-buffer"])
    }

    /// Waits until the screen satisfies a condition, and returns it.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    #[track_caller]
    pub fn wait_for(&self, what: &str, accepts: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.shown();
            if accepts(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "no {what}:\n{shown}");
            std::thread::sleep(BREATH);
        }
    }

    /// Whether the terminal is a shell's again: no alternate screen, the cursor is seen, and lines
    /// are read as lines.
    pub fn is_restored(&self) -> bool {
        let flags = self.run(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        self.enter("echo raw $(stty -a | grep -c -e -icanon)");
        let told = |shown: &str, line: &str| shown.lines().any(|shown| shown == line);
        let shown = self.wait_for("mode", |s| told(s, "raw 0") || told(s, "raw 1"));
        flags.trim() == "0 1" && told(&shown, "raw 0")
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(arguments);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("tmux runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}
