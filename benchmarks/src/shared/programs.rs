//! Processes that a benchmark starts and ends: this program itself, Redis and PostgreSQL.
//!
//! How many of them there are, what they replicate and what they store is left to each benchmark.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// How long a peer may take until it answers.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process may take to end by itself.
const ENDING: Duration = Duration::from_secs(10);

/// A machine that does less than this share of what it could is quiet.
const QUIET: f64 = 0.05;

/// How long the machine is watched for that, and how often at the most.
const WATCHED: Duration = Duration::from_millis(200);
const MOST_WATCHES: usize = 50;

/// Open files that the largest measure needs.
const MANY_FILES: u64 = 60_000;

/// Lets this process and those it starts open many files, as far as the system allows.
pub fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(MANY_FILES, |most| most.min(MANY_FILES));
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Waits until what the last contestant left to be done in the background is done, for ten seconds at the most: its turn is
/// over, and the next contestant has the machine for its own.
pub fn await_quiet() {
    for _ in 0..MOST_WATCHES {
        let before = busy_and_all();
        std::thread::sleep(WATCHED);
        let after = busy_and_all();
        if (after.0 - before.0) <= (after.1 - before.1) * QUIET {
            return;
        }
    }
}

/// Processor time of all processes since the machine began, and all there was, in ticks.
fn busy_and_all() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.lines().next().unwrap().split_whitespace().skip(1).take(8);
    let ticks: Vec<f64> = ticks.map(|ticks| ticks.parse().unwrap()).collect();
    let all: f64 = ticks.iter().sum();
    // The fourth is idle time, the fifth idle time in which a disk is waited for.
    (all - ticks[3] - ticks[4], all)
}

/// A process that ends with this value.
pub struct Process {
    child: Child,
    /// What asks it to end, where a plain kill would leave something behind.
    farewell: Option<Signal>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self, String> {
        let child = command.spawn();
        let child = child.map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        Ok(Self { child, farewell: None })
    }

    /// A peer's process, whose output is of no interest. Fails if there is no such program.
    pub fn start_quietly(command: &mut Command) -> Result<Self, String> {
        Self::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// This program with other arguments, and the port that it prints.
    pub fn of_this_program(arguments: &[&str]) -> (Self, u16) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut process = Self::start(command.args(arguments).stdout(Stdio::piped())).unwrap();
        let mut line = String::new();
        BufReader::new(process.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (process, line.trim().parse().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let ticks = after_name.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Resident memory in MiB.
    pub fn resident(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let is_over = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
        if let Some(farewell) = self.farewell
            && !is_over(&mut self.child)
        {
            self.signal(farewell);
            let asked = Instant::now();
            while asked.elapsed() < ENDING && !is_over(&mut self.child) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports that were free a moment ago.
pub fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// A Redis that syncs every write to its log in this directory.
pub fn redis(directory: &Path, port: u16) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(directory);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
    command
}

/// The newest PostgreSQL that Debian has installed, run by the user `postgres`: it refuses to run as root.
pub struct Postgres {
    programs: PathBuf,
    directory: PathBuf,
}

impl Postgres {
    /// Gives the directory to the user `postgres`. Fails if no version or no such user is there.
    pub fn in_directory(directory: &Path) -> Result<Self, String> {
        let versions = fs::read_dir("/usr/lib/postgresql").map_err(|error| error.to_string())?;
        let newest = versions.flatten().map(|version| version.path().join("bin")).max();
        let programs = newest.ok_or_else(|| "no version is installed".to_owned())?;
        let owner = Command::new("chown").args(["postgres"]).arg(directory).status();
        if !owner.is_ok_and(|status| status.success()) {
            return Err("there is no user postgres".to_owned());
        }
        Ok(Self { programs, directory: directory.to_owned() })
    }

    /// Makes an empty database in a folder of the directory, which every user of this machine may
    /// use. The error is what `initdb` says.
    pub fn create(&self, name: &str) -> Result<(), String> {
        self.run("initdb", &["--auth=trust", "--username=postgres", "-D", &self.data(name)])
    }

    /// Serves what is in a folder of the directory. Fails if it cannot be started.
    pub fn serve(&self, name: &str, port: u16) -> Result<Process, String> {
        let mut command = self.command("postgres");
        command.args(["-D", &self.data(name), "-p", &port.to_string(), "-h", "127.0.0.1", "-k"]);
        command.arg(&self.directory);
        command.args(["-c", "max_wal_senders=10", "-c", "max_connections=400"]);
        let mut process = Process::start_quietly(&mut command)?;
        // Killed, it would leave a segment of shared memory behind.
        process.farewell = Some(Signal::QUIT);
        Ok(process)
    }

    /// Where a folder of the directory is.
    pub fn data(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Runs one of its programs to its end. The error is what the program says if it fails.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let output = self.command(program).args(arguments).current_dir("/").output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn command(&self, program: &str) -> Command {
        // Without a shell in between, so that ending it ends the server.
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
        command.arg(self.programs.join(program));
        command
    }
}

/// Tries again for a while: a server needs a moment before it answers. The error is that of the
/// last attempt.
pub fn retry<T>(mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(100));
            }
            outcome => return outcome,
        }
    }
}
