//! The screen on a real terminal: tmux runs the program, types, and tells what is shown.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use quorate_protocol::ServerAddress;
use quorate_test_support::{FakeServer, primary_hello};

/// How long anything may take to show on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of its own server, so that nobody else's sessions are touched; ended when dropped.
struct Tmux {
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Tmux {
    /// A shell in a terminal of this size. Its prompt is `ready$ `.
    fn start(width: u16, height: u16) -> Self {
        quorate_provision::debian(&["tmux"]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let tmux = Self { socket: directory.path().join("socket"), _directory: directory };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = "env PS1='ready$ ' sh";
        tmux.run(&["new-session", "-d", "-x", &width, "-y", &height, shell]);
        tmux.wait_for("the prompt", |shown| shown.contains("ready$"));
        tmux
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(["-f", "/dev/null"])
            .args(arguments)
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn shown(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.run(&["send-keys", key]);
    }

    /// Types a command line and Enter.
    fn enter(&self, line: &str) {
        self.run(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    #[track_caller]
    fn wait_for(&self, what: &str, accepts: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.shown();
            if accepts(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "no {what}:\n{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the terminal is a shell's again: no alternate screen, and the cursor is seen.
    fn is_restored(&self) -> bool {
        let flags = "#{alternate_on} #{cursor_flag}";
        self.run(&["display-message", "-p", flags]).trim() == "0 1"
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

/// The primary on the second line of the screen.
fn primary(shown: &str) -> Option<String> {
    let line = shown.lines().find(|line| line.starts_with("primary "))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

fn program(arguments: &str) -> String {
    format!("{} {arguments}", env!("CARGO_BIN_EXE_quorate"))
}

#[test]
fn a_set_is_shown_steps_down_on_a_key_and_gives_the_terminal_back() {
    let run = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(100, 30);
    // Other sets may have the usual ports; this one moves past them.
    let environment = format!("XDG_RUNTIME_DIR={}", run.path().display());
    tmux.enter(&format!("{environment} {}; echo code $?", program("")));
    let shown = tmux.wait_for("primary", |shown| primary(shown).is_some());
    let first = primary(&shown).unwrap();
    tmux.wait_for("three members", |shown| shown.contains("3 of 3 up"));
    tmux.wait_for("page", |shown| shown.contains("see this on a page: http://127.0.0.1:"));
    tmux.press("D");
    let another = |shown: &str| primary(shown).is_some_and(|second| second != first);
    tmux.wait_for("other primary", another);
    tmux.wait_for("measured gap", |shown| shown.contains("write gap"));
    // A broken member is seen, and mended.
    tmux.press("K");
    tmux.wait_for("question", |shown| shown.contains("Sure?"));
    tmux.press("y");
    tmux.wait_for("member that is gone", |shown| shown.contains("GONE"));
    tmux.press("R");
    tmux.wait_for("member that is back", |shown| !shown.contains("GONE"));
    tmux.press("q");
    tmux.wait_for("end", |shown| shown.contains("code 0"));
    assert!(tmux.is_restored());
    assert!(tmux.shown().contains("every member has stopped"), "{}", tmux.shown());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_shows_what_our_own_set_never_would() {
    let (a, b) = (FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap());
    let (first, second) = (a.address().clone(), b.address().clone());
    let members = [first.clone(), second.clone()];
    a.set_hello(primary_hello("rs0", &first, &members, 1));
    b.set_hello(crate::doctor_uri::secondary_hello("rs0", &second, &members, Some(&first)));
    let uri = format!("mongodb://{first}/?replicaSet=rs0&heartbeatFrequencyMS=500");
    tokio::task::spawn_blocking(move || {
        let tmux = Tmux::start(80, 24);
        tmux.enter(&format!("{}; echo code $?", program(&format!("watch '{uri}'"))));
        let expected = format!("primary {first}");
        tmux.wait_for("primary", |shown| shown.contains(&expected));
        tmux.wait_for("both members", |shown| shown.contains("2 of 2 up"));
        // Two members call themselves primary: the client believes the newer one.
        b.set_hello(primary_hello("rs0", &second, &members, 2));
        let expected = format!("primary {second}");
        tmux.wait_for("newer primary", |shown| shown.contains(&expected));
        let stale = |shown: &str| shown.lines().any(|line| line.starts_with("≠ ? "));
        tmux.wait_for("stale primary", stale);
        // Nobody answers any more.
        a.stop();
        b.stop();
        tmux.wait_for("silence", |shown| shown.contains("nobody answers"));
        tmux.press("?");
        tmux.wait_for("help", |shown| shown.contains("Help"));
        tmux.press("q");
        tmux.press("q");
        tmux.wait_for("end", |shown| shown.contains("code 0"));
        assert!(tmux.is_restored());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_the_terminal_back_as_well() {
    let server = FakeServer::start().await.unwrap();
    let me: ServerAddress = server.address().clone();
    server.set_hello(primary_hello("rs0", &me, std::slice::from_ref(&me), 1));
    let uri = format!("mongodb://{me}/?replicaSet=rs0");
    tokio::task::spawn_blocking(move || {
        let tmux = Tmux::start(80, 24);
        let pid = tmux.socket.with_file_name("pid");
        let line = program(&format!("watch {uri:?}"));
        tmux.enter(&format!("sh -c 'echo $$ > {}; exec {line}'; echo code $?", pid.display()));
        tmux.wait_for("primary", |shown| shown.contains("primary "));
        let pid = std::fs::read_to_string(pid).unwrap();
        assert!(Command::new("kill").args(["-TERM", pid.trim()]).status().unwrap().success());
        tmux.wait_for("end", |shown| shown.contains("code 0"));
        assert!(tmux.is_restored());
    })
    .await
    .unwrap();
}
