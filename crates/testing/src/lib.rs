#![doc = include_str!("../README.md")]

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a set may take to become ready.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// How long a set may take to end before it is killed.
pub const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How much of the program's talk an error quotes, in bytes.
const QUOTED_TALK: usize = 4096;

/// How often the end of the set is looked for while it stops.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A set that could not be started, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// The program is not there.
    #[error(
        "the program {program} cannot be run: {source}; build it with `cargo install --path crates/cli` and put it on the \
         PATH, or name it in QUORATE_BIN"
    )]
    Program {
        /// What was tried.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// The set did not become ready.
    #[error("the set did not become ready within {} s:\n{talk}", READY_LIMIT.as_secs())]
    NotReady {
        /// The end of what the program said.
        talk: String,
    },
    /// A command failed.
    #[error("{command} failed: {reason}")]
    Command {
        /// The command.
        command: String,
        /// What the program says.
        reason: String,
    },
    /// A member could not be given a signal.
    #[error("process {pid} of {host} cannot be signalled: {source}; was it killed before?")]
    Signal {
        /// The member's process.
        pid: u32,
        /// The member's address.
        host: String,
        /// What the system says.
        source: io::Error,
    },
}

/// How a set is to be.
#[derive(Clone, Debug)]
pub struct Builder {
    members: u8,
    arbiters: u8,
    name: Option<String>,
    data: Option<PathBuf>,
    program: Option<PathBuf>,
    arguments: Vec<String>,
}

impl Builder {
    /// How many members hold data; three unless given. One is enough for transactions and change streams.
    #[must_use]
    pub fn members(mut self, members: u8) -> Self {
        self.members = members;
        self
    }

    /// How many members only vote.
    #[must_use]
    pub fn arbiters(mut self, arbiters: u8) -> Self {
        self.arbiters = arbiters;
        self
    }

    /// The name of the set; `rs0` unless given.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Keeps the data below this directory instead of in memory.
    #[must_use]
    pub fn data(mut self, directory: impl Into<PathBuf>) -> Self {
        self.data = Some(directory.into());
        self
    }

    /// The program to run, in place of `QUORATE_BIN` and the `PATH`.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// One more argument for `quorate up`, such as `--auth`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Starts the set and waits until a majority has acknowledged a write.
    ///
    /// # Errors
    ///
    /// If the program is not there, or the set does not become ready in time.
    pub fn start(self) -> Result<ReplicaSet, SetError> {
        let program = self.program.or_else(|| env::var_os("QUORATE_BIN").map(PathBuf::from));
        let program = program.unwrap_or_else(|| PathBuf::from("quorate"));
        let mut command = Command::new(&program);
        command.args(["up", "--json", "--port", "0", "--members", &self.members.to_string()]);
        command.args(["--arbiters", &self.arbiters.to_string()]);
        if let Some(name) = &self.name {
            command.args(["--name", name]);
        }
        match &self.data {
            Some(directory) => command.arg("--data").arg(directory),
            None => command.arg("--memory"),
        };
        // `cat` ends when this process does, however it ends, because its input ends; and the set ends with it.
        command.args(&self.arguments).args(["--", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let cannot = |source| SetError::Program { program: program.display().to_string(), source };
        let mut child = command.spawn().map_err(cannot)?;
        let lines = read_lines(child.stdout.take());
        let talk = read_talk(child.stderr.take());
        let lifeline = child.stdin.take();
        let mut set = ReplicaSet {
            child,
            lifeline,
            program: program.clone(),
            uri: String::new(),
            members: Vec::new(),
        };
        let deadline = Instant::now() + READY_LIMIT;
        while let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            match event["event"].as_str() {
                Some("member") => set.members.extend(Member::of(&event)),
                Some("ready") => {
                    set.uri = event["uri"].as_str().unwrap_or_default().to_owned();
                    return Ok(set);
                }
                _ => {}
            }
        }
        set.stop();
        Err(SetError::NotReady { talk: talk.recv_timeout(STOP_LIMIT).unwrap_or_default() })
    }
}

/// Sends lines on until the pipe ends. Lines without a receiver are read all the same, so that the program never
/// waits for this process.
fn read_lines(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in
            pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(Result::ok)
        {
            // Ignore send errors: the set is ready, and later events are not read.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Sends the end of what a pipe brought, when it ends.
fn read_talk(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut kept = String::new();
        for line in
            pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(Result::ok)
        {
            kept.push_str(&line);
            kept.push('\n');
            if kept.len() > 2 * QUOTED_TALK {
                let mut cut = kept.len() - QUOTED_TALK;
                while !kept.is_char_boundary(cut) {
                    cut += 1;
                }
                kept.drain(..cut);
            }
        }
        // Ignore send errors: the set became ready and no error quotes it.
        let _ = sender.send(kept);
    });
    receiver
}

/// One process of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    id: i64,
    host: String,
    pid: u32,
}

impl Member {
    fn of(event: &Value) -> Option<Self> {
        let pid = u32::try_from(event["pid"].as_u64()?).ok()?;
        Some(Self { id: event["id"].as_i64()?, host: event["host"].as_str()?.to_owned(), pid })
    }

    /// Its `_id` in the configuration.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Its address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the process at once, as a crash would.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn kill(&self) -> Result<(), SetError> {
        self.signal(Signal::KILL)
    }

    /// Stops the process without closing its sockets, as a frozen host would.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn pause(&self) -> Result<(), SetError> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn resume(&self) -> Result<(), SetError> {
        self.signal(Signal::CONT)
    }

    /// Cuts the member off from the others. Clients still reach it.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn part(&self) -> Result<(), SetError> {
        self.signal(Signal::USR1)
    }

    /// Ends the cut.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn heal(&self) -> Result<(), SetError> {
        self.signal(Signal::USR2)
    }

    fn signal(&self, signal: Signal) -> Result<(), SetError> {
        let sent = match i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            Some(pid) => kill_process(pid, signal).map_err(io::Error::from),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        sent.map_err(|source| SetError::Signal { pid: self.pid, host: self.host.clone(), source })
    }
}

/// A replica set that lives until it is dropped or this process ends.
#[derive(Debug)]
pub struct ReplicaSet {
    child: Child,
    lifeline: Option<ChildStdin>,
    program: PathBuf,
    uri: String,
    members: Vec<Member>,
}

impl ReplicaSet {
    /// Three members in memory.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub fn start() -> Result<Self, SetError> {
        Self::builder().start()
    }

    /// Three members in memory that all tests of this process share. The first call starts them; they end with the
    /// process.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`]; the next call tries again.
    pub fn shared() -> Result<&'static Self, SetError> {
        static STARTING: Mutex<()> = Mutex::new(());
        static SHARED: OnceLock<ReplicaSet> = OnceLock::new();
        // One thread starts it; the others wait here. A thread that panicked meanwhile leaves no half set.
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        match SHARED.get() {
            Some(set) => Ok(set),
            None => {
                let set = Self::start()?;
                Ok(SHARED.get_or_init(|| set))
            }
        }
    }

    /// A set of another size or kind.
    pub fn builder() -> Builder {
        Builder {
            members: 3,
            arbiters: 0,
            name: None,
            data: None,
            program: None,
            arguments: Vec::new(),
        }
    }

    /// The connection string.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The members, by their `_id`.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Runs one command, given as extended JSON, through server selection. Gives its reply.
    ///
    /// # Errors
    ///
    /// If the command fails.
    pub fn run(&self, command: &str) -> Result<Value, SetError> {
        let ended = Command::new(&self.program)
            .args(["run", &self.uri, command])
            .stdin(Stdio::null())
            .output();
        let failed = |reason: String| SetError::Command { command: command.to_owned(), reason };
        let ended = ended.map_err(|error| failed(error.to_string()))?;
        if !ended.status.success() {
            return Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
        }
        serde_json::from_slice(&ended.stdout).map_err(|error| failed(error.to_string()))
    }

    /// The member that leads now.
    ///
    /// # Errors
    ///
    /// If the set has no primary.
    pub fn primary(&self) -> Result<&Member, SetError> {
        let reply = self.run("{hello: 1}")?;
        let leads = |member: &&Member| reply["primary"] == member.host.as_str();
        self.members.iter().find(leads).ok_or_else(|| SetError::Command {
            command: "{hello: 1}".to_owned(),
            reason: format!("the primary {} is no member of this set", reply["primary"]),
        })
    }

    /// Has the primary make way for another for some seconds, more than one.
    ///
    /// # Errors
    ///
    /// If no other member can lead.
    pub fn step_down(&self, seconds: u32) -> Result<(), SetError> {
        let catch_up = seconds.saturating_sub(1).min(10);
        self.run(&format!("{{replSetStepDown: {seconds}, secondaryCatchUpPeriodSecs: {catch_up}}}"))
            .map(drop)
    }

    /// Ends every member and waits until they have ended.
    pub fn stop(&mut self) {
        for member in &self.members {
            // Ignore errors: a killed member needs no resuming.
            let _ = member.resume();
        }
        drop(self.lifeline.take());
        let deadline = Instant::now() + STOP_LIMIT;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(POLL_INTERVAL),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // Ignore errors: it has ended by itself then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ReplicaSet {
    fn drop(&mut self) {
        self.stop();
    }
}
