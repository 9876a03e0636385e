//! The floor: three processes that append, sync and acknowledge, and do nothing else.
//!
//! One thread of the leader reads records of a fixed size from all clients as they come, sends what
//! it has read to both followers at once, and hands it to a second thread that appends it to a file
//! and syncs; a follower appends whatever has arrived, syncs and answers with how much it has. A
//! record counts when two of the three have it on disk. Files are filled with zeros in advance, one
//! sync serves all that wait for it, and no message allocates. No terms, no elections, no documents:
//! what a replicated log cannot do without.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use mio::{Events, Interest, Poll, Token, Waker};

use crate::dialects::RECORD_BYTES;
use crate::programs::Process;

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

/// A file of zeros that is written from its start to its end, again and again.
struct LogFile {
    file: File,
    offset: u64,
}

/// The length of the file.
const FILE_BYTES: u64 = 64 << 20;

/// The most that is read, sent or written at once.
const MOST_BYTES: usize = 1 << 20;

impl LogFile {
    fn create(path: &str) -> Self {
        let file = OpenOptions::new().create_new(true).write(true).open(path).unwrap();
        let zeros = vec![0; MOST_BYTES];
        for offset in (0..FILE_BYTES).step_by(MOST_BYTES) {
            file.write_all_at(&zeros, offset).unwrap();
        }
        file.sync_all().unwrap();
        Self { file, offset: 0 }
    }

    fn append_and_sync(&mut self, bytes: &[u8]) {
        if self.offset + bytes.len() as u64 > FILE_BYTES {
            self.offset = 0;
        }
        self.file.write_all_at(bytes, self.offset).unwrap();
        self.file.sync_data().unwrap();
        self.offset += bytes.len() as u64;
    }
}

/// Appends what comes, and answers with the number of whole records that are on disk.
pub fn follow(arguments: &[&str]) {
    let mut log = LogFile::create(arguments[0]);
    let (mut stream, _) = listen().accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut records = vec![0; MOST_BYTES];
    let mut received = 0;
    loop {
        let length = stream.read(&mut records).unwrap_or(0);
        if length == 0 {
            return;
        }
        log.append_and_sync(&records[..length]);
        received += length as u64;
        stream.write_all(&(received / RECORD_BYTES as u64).to_le_bytes()).unwrap();
    }
}

const LISTENER: Token = Token(0);
const DISK: Token = Token(1);
const FOLLOWERS: Token = Token(2);
const FIRST_CLIENT: usize = 4;

/// A client: what has come of its next record.
struct Client {
    stream: mio::net::TcpStream,
    record: [u8; RECORD_BYTES],
    filled: usize,
}

struct Leader {
    poll: Poll,
    listener: mio::net::TcpListener,
    followers: Vec<mio::net::TcpStream>,
    /// What each follower has said of its next answer.
    answers: [([u8; 8], usize); 2],
    clients: Vec<Option<Client>>,
    /// What was read and is not sent yet.
    batch: Vec<u8>,
    /// What was sent and is not with the disk yet.
    waiting: Vec<u8>,
    /// A buffer that the disk has given back; none while it is at work.
    idle: Option<Vec<u8>>,
    disk: Sender<Vec<u8>>,
    written: Receiver<Vec<u8>>,
    appended: u64,
    /// What each of the three has on disk.
    durable: [u64; 3],
    /// Records that are not answered, with their clients, in order.
    unanswered: VecDeque<(u64, usize)>,
}

pub fn lead(arguments: &[&str]) {
    let mut log = LogFile::create(arguments[0]);
    let poll = Poll::new().unwrap();
    let connect = |(place, port): (usize, &&str)| {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = mio::net::TcpStream::from_std(stream);
        let token = Token(FOLLOWERS.0 + place);
        poll.registry().register(&mut stream, token, Interest::READABLE).unwrap();
        stream
    };
    let followers: Vec<_> = arguments[1..].iter().enumerate().map(connect).collect();
    let listener = listen();
    listener.set_nonblocking(true).unwrap();
    let mut listener = mio::net::TcpListener::from_std(listener);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).unwrap();
    let waker = Waker::new(poll.registry(), DISK).unwrap();
    let (disk, to_write) = channel::<Vec<u8>>();
    let (give_back, written) = channel();
    thread::spawn(move || {
        for records in to_write {
            log.append_and_sync(&records);
            if give_back.send(records).is_err() || waker.wake().is_err() {
                return;
            }
        }
    });
    let buffer = || Vec::with_capacity(MOST_BYTES);
    let leader = Leader {
        poll,
        listener,
        followers,
        answers: [([0; 8], 0); 2],
        clients: Vec::new(),
        batch: buffer(),
        waiting: buffer(),
        idle: Some(buffer()),
        disk,
        written,
        appended: 0,
        durable: [0; 3],
        unanswered: VecDeque::new(),
    };
    leader.run();
}

impl Leader {
    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.unwrap(),
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    DISK => self.take_written(),
                    Token(token) if token < FIRST_CLIENT => self.read_answer(token - FOLLOWERS.0),
                    Token(token) => self.read_client(token - FIRST_CLIENT),
                }
            }
            self.send();
            self.answer();
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            stream.set_nodelay(true).unwrap();
            let token = Token(FIRST_CLIENT + self.clients.len());
            self.poll.registry().register(&mut stream, token, Interest::READABLE).unwrap();
            self.clients.push(Some(Client { stream, record: [0; RECORD_BYTES], filled: 0 }));
        }
    }

    fn read_client(&mut self, place: usize) {
        let Some(client) = &mut self.clients[place] else { return };
        loop {
            match client.stream.read(&mut client.record[client.filled..]) {
                Ok(0) => break,
                Ok(length) => client.filled += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => break,
            }
            if client.filled == RECORD_BYTES {
                client.filled = 0;
                self.batch.extend_from_slice(&client.record);
                self.appended += 1;
                self.unanswered.push_back((self.appended, place));
            }
        }
        self.clients[place] = None;
    }

    fn read_answer(&mut self, follower: usize) {
        let (answer, filled) = &mut self.answers[follower];
        while let Ok(length @ 1..) = self.followers[follower].read(&mut answer[*filled..]) {
            *filled += length;
            if *filled == answer.len() {
                *filled = 0;
                self.durable[follower + 1] = u64::from_le_bytes(*answer);
            }
        }
    }

    fn take_written(&mut self) {
        while let Ok(mut records) = self.written.try_recv() {
            self.durable[0] += (records.len() / RECORD_BYTES) as u64;
            records.clear();
            self.idle = Some(records);
        }
    }

    /// Sends what was read to the followers, and to the disk if it is idle.
    fn send(&mut self) {
        if !self.batch.is_empty() {
            for follower in &mut self.followers {
                write_all(follower, &self.batch).unwrap();
            }
            self.waiting.extend_from_slice(&self.batch);
            self.batch.clear();
        }
        if !self.waiting.is_empty()
            && let Some(idle) = self.idle.take()
        {
            self.disk.send(std::mem::replace(&mut self.waiting, idle)).unwrap();
        }
    }

    /// Answers what two of the three have.
    fn answer(&mut self) {
        let mut durable = self.durable;
        durable.sort_unstable();
        while let Some(&(number, place)) = self.unanswered.front()
            && number <= durable[1]
        {
            self.unanswered.pop_front();
            if let Some(client) = &mut self.clients[place]
                && write_all(&mut client.stream, &number.to_le_bytes()).is_err()
            {
                self.clients[place] = None;
            }
        }
    }
}

/// Writes to a socket that is rarely full.
fn write_all(stream: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
