//! Measures our client beside the official Rust driver and beside a bare loop, in one run, against
//! one fake replica set.
//!
//! ```text
//! cargo xtask bench            everything
//! cargo xtask bench discovery  one measure: discovery, moved, operations, gap, watching, fleet
//! ```
//!
//! The bare loop ("floor") does only the unavoidable: connect, say hello, read. Each figure is the
//! median of several rounds, in which the three take turns.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

mod fake_set;
mod floor;
mod measures;
mod official;
mod ours;
mod pings;
mod watching;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => fake_set::serve(arguments[1].parse().unwrap(), arguments.len() > 2),
        Some("serve-fleet") => fake_set::serve_fleet(arguments[1].parse().unwrap()),
        Some("operate") => {
            let (callers, operations) = (arguments[3].parse(), arguments[4].parse());
            pings::operate(&arguments[1], &arguments[2], callers.unwrap(), operations.unwrap());
        }
        Some("discover") => {
            measures::discover_alone(&arguments[1], &arguments[2], arguments[3].parse().unwrap());
        }
        Some("watch-fleet") => watching::watch_fleet(&arguments[1], &arguments[2]),
        Some("watch") => {
            watching::watch(&arguments[1], &arguments[2], arguments[3].parse().unwrap());
        }
        wanted => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(measures::run(wanted));
        }
    }
}

/// The monotonic clock that all processes of this machine share.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor time this process has used.
pub fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A fake set in a process of its own, ended when dropped.
pub struct FakeSet {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub hosts: Vec<String>,
    primary: usize,
}

impl FakeSet {
    pub fn start(members: usize) -> Self {
        Self::start_with(&["serve", &members.to_string()])
    }

    /// Routers of a sharded deployment instead, which do not name each other: as many as one likes.
    pub fn start_routers(routers: usize) -> Self {
        Self::start_with(&["serve", &routers.to_string(), "routers"])
    }

    /// So many sets of three; each of `hosts` is the hosts of one.
    pub fn start_fleet(sets: usize) -> Self {
        let mut fleet = Self::start_with(&["serve-fleet", &sets.to_string()]);
        fleet.hosts = fleet.hosts.join(",").split(' ').map(str::to_owned).collect();
        fleet
    }

    fn start_with(arguments: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let hosts = line.trim().split(',').map(str::to_owned).collect();
        Self { process, input, output, hosts, primary: 0 }
    }

    pub fn uri(&self, options: &str) -> String {
        format!("mongodb://{}/?replicaSet=rs0{options}", self.hosts[0])
    }

    /// Moves the primary to the next member; returns its address and when it moved.
    pub fn move_primary(&mut self) -> (String, u64) {
        self.primary = (self.primary + 1) % self.hosts.len();
        writeln!(self.input, "primary {}", self.primary).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        (self.hosts[self.primary].clone(), line.trim().parse().unwrap())
    }
}

impl Drop for FakeSet {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
