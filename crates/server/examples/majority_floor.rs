//! The least that a majority write costs here: `majority_floor DIRECTORY CLIENTS SECONDS`.
//!
//! Three processes and a log each, nothing else. The leader appends what its clients send, passes it
//! to two followers, forces its file to disk, and answers when one follower has done the same. What
//! `majority_writes` measures is to be compared with this, in the same run on the same machine.

#![allow(clippy::print_stdout, reason = "the figures are what the example is for")]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

type Failure = Box<dyn Error + Send + Sync>;

/// What a client sends: about a document of `majority_writes` on the wire.
const REQUEST: usize = 300;

/// The room that a log reserves, so that syncing it never has to change its length.
const LOG_BYTES: u64 = 64 * 1024 * 1024;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [role, log] if role == "follower" => follow(Path::new(log)),
        [role, log, ports @ ..] if role == "leader" => lead(Path::new(log), ports),
        [directory, clients, seconds] => {
            measure(Path::new(directory), clients.parse()?, seconds.parse()?)
        }
        _ => Err("usage: majority_floor DIRECTORY CLIENTS SECONDS".into()),
    }
}

fn open_log(path: &Path) -> Result<File, Failure> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    file.set_len(LOG_BYTES)?;
    file.sync_all()?;
    Ok(file)
}

fn announce() -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    Ok(listener)
}

/// Appends, syncs, and says how many bytes that were.
fn follow(log: &Path) -> Result<(), Failure> {
    let mut log = open_log(log)?;
    let (mut leader, _) = announce()?.accept()?;
    leader.set_nodelay(true)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = leader.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        log.write_all(&buffer[..read])?;
        log.sync_data()?;
        leader.write_all(&(read as u64).to_le_bytes())?;
    }
}

struct Append {
    bytes: [u8; REQUEST],
    done: oneshot::Sender<()>,
}

fn lead(log: &Path, ports: &[String]) -> Result<(), Failure> {
    let mut followers = Vec::new();
    for port in ports {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse()?))?;
        stream.set_nodelay(true)?;
        followers.push(stream);
    }
    let log = open_log(log)?;
    let (appends, received) = channel();
    let (progress, moved) = channel();
    for (place, follower) in followers.iter().enumerate() {
        let (follower, progress) = (follower.try_clone()?, progress.clone());
        std::thread::spawn(move || listen(place, follower, &progress));
    }
    std::thread::spawn(move || append(log, followers, &received, &moved));
    let listener = announce()?;
    listener.set_nonblocking(true)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream, appends.clone()));
        }
    })
}

fn listen(place: usize, mut follower: TcpStream, progress: &Sender<(usize, u64)>) {
    let mut bytes = [0; 8];
    while follower.read_exact(&mut bytes).is_ok() {
        if progress.send((place, u64::from_le_bytes(bytes))).is_err() {
            return;
        }
    }
}

/// Takes all appends there are, and answers them together.
fn append(
    mut log: File,
    mut followers: Vec<TcpStream>,
    received: &Receiver<Append>,
    moved: &Receiver<(usize, u64)>,
) {
    let (mut sent, mut reached) = (0, vec![0; followers.len()]);
    while let Ok(first) = received.recv() {
        let group: Vec<Append> = std::iter::once(first).chain(received.try_iter()).collect();
        let bytes: Vec<u8> = group.iter().flat_map(|append| append.bytes).collect();
        sent += bytes.len() as u64;
        for follower in &mut followers {
            if follower.write_all(&bytes).is_err() {
                return;
            }
        }
        if log.write_all(&bytes).and_then(|()| log.sync_data()).is_err() {
            return;
        }
        while !reached.iter().any(|at| *at >= sent) {
            let Ok((place, more)) = moved.recv() else { return };
            reached[place] += more;
        }
        for append in group {
            // A client that has left does not care.
            let _ = append.done.send(());
        }
    }
}

async fn serve(mut stream: tokio::net::TcpStream, appends: Sender<Append>) -> Result<(), Failure> {
    let mut bytes = [0; REQUEST];
    loop {
        stream.read_exact(&mut bytes).await?;
        let (done, is_done) = oneshot::channel();
        appends.send(Append { bytes, done })?;
        is_done.await?;
        stream.write_all(&bytes[..100]).await?;
    }
}

fn measure(directory: &Path, clients: usize, seconds: u64) -> Result<(), Failure> {
    let mut processes = Vec::new();
    let mut start = |arguments: &[String]| -> Result<String, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = process.stdout.take().ok_or("no output")?;
        processes.push(process);
        let mut port = Vec::new();
        let mut byte = [0];
        while output.read(&mut byte)? == 1 && byte[0] != b'\n' {
            port.push(byte[0]);
        }
        Ok(String::from_utf8(port)?)
    };
    let log = |name: &str| directory.join(name).display().to_string();
    let first = start(&["follower".to_owned(), log("floor.1")])?;
    let second = start(&["follower".to_owned(), log("floor.2")])?;
    let leader = start(&["leader".to_owned(), log("floor.0"), first, second])?;
    let port: u16 = leader.parse()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let mut latencies = runtime.block_on(async {
        let tasks: Vec<_> = (0..clients).map(|_| tokio::spawn(write(port, end))).collect();
        let mut latencies = Vec::new();
        for task in tasks {
            latencies.extend(task.await??);
        }
        Ok::<_, Failure>(latencies)
    })?;
    let elapsed = begin.elapsed().as_secs_f64();
    for mut process in processes {
        process.kill()?;
        process.wait()?;
    }
    latencies.sort_unstable();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize].as_micros();
    println!(
        "floor, {clients} clients: {:.0} writes/s, p50 {} us, p99 {} us",
        latencies.len() as f64 / elapsed,
        at(0.5),
        at(0.99)
    );
    Ok(())
}

async fn write(port: u16, end: Instant) -> Result<Vec<Duration>, Failure> {
    let mut stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    let (request, mut reply) = ([7; REQUEST], [0; 100]);
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(&request).await?;
        stream.read_exact(&mut reply).await?;
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}
