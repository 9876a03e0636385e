//! The floor: three processes that append, sync and acknowledge, and do nothing else.
//!
//! The leader collects what its clients send, appends it to a file, sends it to both followers and
//! syncs; a follower appends, syncs and answers. A record counts when two of the three have it on
//! disk. No terms, no elections, no documents: what a replicated log cannot do without.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::dialects::RECORD_BYTES;
use crate::members::Process;

/// The three processes, ended when dropped.
pub struct FloorLog {
    pub address: SocketAddr,
    _processes: Vec<Process>,
    _directory: tempfile::TempDir,
}

impl FloorLog {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let mut processes = Vec::new();
        let mut followers = Vec::new();
        for name in ["a", "b"] {
            let (process, port) = Process::of_this_program(&["floor-follower", &file(name)]);
            processes.push(process);
            followers.push(port.to_string());
        }
        let leader = ["floor-leader", &file("leader"), &followers[0], &followers[1]];
        let (process, port) = Process::of_this_program(&leader);
        processes.push(process);
        let address = (Ipv4Addr::LOCALHOST, port).into();
        Self { address, _processes: processes, _directory: directory }
    }
}

fn listen() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    listener
}

fn log_file(path: &str) -> File {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

/// Appends what comes, and answers each batch with the number of its last record.
pub fn follow(arguments: &[&str]) {
    let mut file = log_file(arguments[0]);
    let (mut stream, _) = listen().accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut head = [0; 16];
    let mut records = Vec::new();
    while stream.read_exact(&mut head).is_ok() {
        let (last, length) = head.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        records.resize(length, 0);
        stream.read_exact(&mut records).unwrap();
        file.write_all(&records).unwrap();
        file.sync_data().unwrap();
        stream.write_all(last).unwrap();
    }
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    appended: u64,
    /// What each of the three has on disk.
    durable: [u64; 3],
}

impl State {
    /// What two of the three have.
    fn committed(&self) -> u64 {
        let mut durable = self.durable;
        durable.sort_unstable();
        durable[1]
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    appended: Condvar,
    committed: Condvar,
}

impl Shared {
    fn synced(&self, who: usize, last: u64) {
        self.state.lock().unwrap().durable[who] = last;
        self.committed.notify_all();
    }
}

pub fn lead(arguments: &[&str]) {
    let file = log_file(arguments[0]);
    let shared = Arc::new(Shared::default());
    let mut followers = Vec::new();
    for (place, port) in arguments[1..].iter().enumerate() {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut answers = stream.try_clone().unwrap();
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let mut last = [0; 8];
            while answers.read_exact(&mut last).is_ok() {
                shared.synced(place + 1, u64::from_le_bytes(last));
            }
        });
        followers.push(stream);
    }
    let flushing = Arc::clone(&shared);
    thread::spawn(move || flush(&flushing, file, followers));
    for stream in listen().incoming() {
        let (stream, shared) = (stream.unwrap(), Arc::clone(&shared));
        thread::spawn(move || serve(&shared, stream));
    }
}

fn flush(shared: &Shared, mut file: File, mut followers: Vec<TcpStream>) {
    loop {
        let (records, last) = {
            let mut state = shared.state.lock().unwrap();
            while state.waiting.is_empty() {
                state = shared.appended.wait(state).unwrap();
            }
            (std::mem::take(&mut state.waiting), state.appended)
        };
        let mut head = last.to_le_bytes().to_vec();
        head.extend((records.len() as u64).to_le_bytes());
        for follower in &mut followers {
            follower.write_all(&head).unwrap();
            follower.write_all(&records).unwrap();
        }
        file.write_all(&records).unwrap();
        file.sync_data().unwrap();
        shared.synced(0, last);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut record = [0; RECORD_BYTES];
    while stream.read_exact(&mut record).is_ok() {
        let mut state = shared.state.lock().unwrap();
        state.waiting.extend(record);
        state.appended += 1;
        let own = state.appended;
        shared.appended.notify_one();
        while state.committed() < own {
            state = shared.committed.wait(state).unwrap();
        }
        drop(state);
        if stream.write_all(&own.to_le_bytes()).is_err() {
            return;
        }
    }
}
