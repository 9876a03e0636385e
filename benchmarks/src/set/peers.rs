//! Other replicated stores, from Debian's packages: three processes each, on ports of their own.
//!
//! All of them sync every write to disk and acknowledge it when a second process has it: etcd by its
//! nature, Redis with `appendfsync always` and `WAIT 1`, PostgreSQL with synchronous replication to
//! any one of two standbys.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::dialects::Dialect;
use crate::load::Connection;
use crate::members::Process;

/// How long a peer may take until it stores a record.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running peer, ended when dropped.
pub struct Peer {
    pub name: &'static str,
    pub dialect: Dialect,
    pub address: SocketAddr,
    _processes: Vec<Process>,
    _directory: TempDir,
}

/// Every peer that can be installed and started here. Those that cannot are named.
pub async fn start() -> Vec<Peer> {
    start_those(|_| true).await
}

/// The peer of this package alone, if it can be installed and started here.
pub async fn start_only(package: &str) -> Option<Peer> {
    start_those(|name| name == package).await.pop()
}

async fn start_those(wanted: impl Fn(&str) -> bool) -> Vec<Peer> {
    let mut peers = Vec::new();
    let known: [(&str, &str, fn(&Path) -> Result<Started, String>); 3] = [
        ("etcd", "etcd-server", etcd),
        ("Redis, appendfsync always, WAIT 1", "redis-server", redis),
        ("PostgreSQL, synchronous", "postgresql", postgres),
    ];
    for (name, package, begin) in known.into_iter().filter(|(_, package, _)| wanted(package)) {
        match launch(name, package, begin).await {
            Ok(peer) => peers.push(peer),
            Err(why) => eprintln!("NOT MEASURED: {name}: {why}"),
        }
    }
    peers
}

type Started = (Dialect, u16, Vec<Process>);

async fn launch(
    name: &'static str,
    package: &str,
    begin: fn(&Path) -> Result<Started, String>,
) -> Result<Peer, String> {
    quorate_provision::debian(&[package]).map_err(|error| error.to_string())?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (dialect, port, processes) = begin(directory.path())?;
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let start = Instant::now();
    loop {
        let stored = store_one(dialect, address).await;
        match stored {
            Ok(()) => break,
            Err(why) if start.elapsed() > PATIENCE => return Err(why),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    Ok(Peer { name, dialect, address, _processes: processes, _directory: directory })
}

async fn store_one(dialect: Dialect, address: SocketAddr) -> Result<(), String> {
    let exchange = async {
        let mut connection = Connection::open(dialect, address).await?;
        let number = Instant::now();
        connection.exchange(&dialect.request(&format!("first-{number:?}"))).await
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), exchange).await;
    answer.unwrap_or_else(|_| Err("no answer".to_owned()))
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn quiet(command: &mut Command) -> Process {
    Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

fn etcd(directory: &Path) -> Result<Started, String> {
    let ports = free_ports(6);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let cluster: Vec<String> =
        (0..3).map(|place| format!("m{place}={}", url(ports[place]))).collect();
    let processes = (0..3).map(|place| {
        let (peer, client) = (url(ports[place]), url(ports[3 + place]));
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{place}"), "--data-dir"]);
        command.arg(directory.join(place.to_string()));
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
        quiet(&mut command)
    });
    // Whichever member is asked passes writes on to the leader; the first one usually leads.
    Ok((Dialect::Etcd, ports[3], processes.collect()))
}

fn redis(directory: &Path) -> Result<Started, String> {
    let ports = free_ports(3);
    let processes = (0..3).map(|place| {
        let data = directory.join(place.to_string());
        fs::create_dir(&data).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &ports[place].to_string(), "--dir"]);
        command.arg(data);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        if place > 0 {
            command.args(["--replicaof", "127.0.0.1", &ports[0].to_string()]);
        }
        quiet(&mut command)
    });
    Ok((Dialect::Redis, ports[0], processes.collect()))
}

fn postgres(directory: &Path) -> Result<Started, String> {
    let programs = postgres_programs()?;
    let program = |name: &str| programs.join(name).display().to_string();
    // It refuses to run as root.
    let owner = Command::new("chown").args(["postgres"]).arg(directory).status();
    if !owner.is_ok_and(|status| status.success()) {
        return Err("there is no user postgres".to_owned());
    }
    let ports = free_ports(3);
    let data = |place: usize| directory.join(place.to_string()).display().to_string();
    let mut processes = Vec::new();
    as_postgres(&[&program("initdb"), "--auth=trust", "--username=postgres", "-D", &data(0)])?;
    processes.push(serve_postgres(&program("postgres"), &data(0), ports[0], directory));
    for place in 1..3 {
        let source = format!(
            "host=127.0.0.1 port={} user=postgres application_name=standby{place}",
            ports[0]
        );
        let copy = [&program("pg_basebackup"), "-R", "-d", &source, "-D", &data(place)];
        retry(|| {
            // An attempt that failed half-way leaves a directory behind.
            let _ = fs::remove_dir_all(data(place));
            as_postgres(&copy)
        })?;
        processes.push(serve_postgres(&program("postgres"), &data(place), ports[place], directory));
    }
    let port = ports[0].to_string();
    let sql = "CREATE TABLE load (key text PRIMARY KEY, value text); \
               ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (standby1, standby2)';";
    for statement in sql.split_inclusive(';') {
        let psql = [&program("psql"), "-h", "127.0.0.1", "-p", &port, "-c", statement.trim()];
        retry(|| as_postgres(&psql))?;
    }
    let reload = "SELECT pg_reload_conf()";
    as_postgres(&[&program("psql"), "-h", "127.0.0.1", "-p", &port, "-c", reload])?;
    Ok((Dialect::Postgres, ports[0], processes))
}

/// The newest version that Debian has installed.
fn postgres_programs() -> Result<PathBuf, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|error| error.to_string())?;
    let newest = versions.flatten().map(|version| version.path().join("bin")).max();
    newest.ok_or_else(|| "no version is installed".to_owned())
}

fn serve_postgres(program: &str, data: &str, port: u16, sockets: &Path) -> Process {
    let mut command = runuser();
    command.args([program, "-D", data, "-p", &port.to_string(), "-h", "127.0.0.1", "-k"]);
    command.arg(sockets);
    command.args(["-c", "max_wal_senders=10", "-c", "max_connections=400"]);
    quiet(&mut command)
}

fn runuser() -> Command {
    // Without a shell in between, so that ending it ends the server.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    command
}

fn as_postgres(words: &[&str]) -> Result<(), String> {
    let output = runuser().args(words).current_dir("/").output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", words[0], String::from_utf8_lossy(&output.stderr).trim()))
}

/// A server needs a moment before it answers.
fn retry(mut attempt: impl FnMut() -> Result<(), String>) -> Result<(), String> {
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
