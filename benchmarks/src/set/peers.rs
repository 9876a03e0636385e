//! Other replicated stores, from Debian's packages: three processes each, on ports of their own.
//!
//! All of them sync every write to disk and acknowledge it when a second process has it: etcd by its
//! nature, Redis with `appendfsync always` and `WAIT 1`, PostgreSQL with synchronous replication to
//! any one of two standbys.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::dialects::Dialect;
use crate::load::Connection;
use crate::programs::{PATIENCE, Postgres, Process, free_ports, redis, retry};

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
    let known: [(&str, &str, Begin); 3] = [
        ("etcd", "etcd-server", etcd),
        ("Redis, appendfsync always, WAIT 1", "redis-server", redises),
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

type Begin = fn(&Path) -> Result<Started, String>;

async fn launch(name: &'static str, package: &str, begin: Begin) -> Result<Peer, String> {
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
        Process::start_quietly(&mut command)
    });
    // Whichever member is asked passes writes on to the leader; the first one usually leads.
    Ok((Dialect::Etcd, ports[3], processes.collect::<Result<_, _>>()?))
}

fn redises(directory: &Path) -> Result<Started, String> {
    let ports = free_ports(3);
    let processes = (0..3).map(|place| {
        let data = directory.join(place.to_string());
        fs::create_dir(&data).unwrap();
        let mut command = redis(&data, ports[place]);
        if place > 0 {
            command.args(["--replicaof", "127.0.0.1", &ports[0].to_string()]);
        }
        Process::start_quietly(&mut command)
    });
    Ok((Dialect::Redis, ports[0], processes.collect::<Result<_, _>>()?))
}

fn postgres(directory: &Path) -> Result<Started, String> {
    let postgres = Postgres::in_directory(directory)?;
    let ports = free_ports(3);
    let mut processes = Vec::new();
    postgres.create("0")?;
    processes.push(postgres.serve("0", ports[0])?);
    for place in 1..3 {
        let source = format!(
            "host=127.0.0.1 port={} user=postgres application_name=standby{place}",
            ports[0]
        );
        let name = place.to_string();
        let data = postgres.data(&name);
        retry(|| {
            // An attempt that failed half-way leaves a directory behind.
            let _ = fs::remove_dir_all(&data);
            postgres.run("pg_basebackup", &["-R", "-d", &source, "-D", &data])
        })?;
        processes.push(postgres.serve(&name, ports[place])?);
    }
    let port = ports[0].to_string();
    let psql = |statement| postgres.run("psql", &["-h", "127.0.0.1", "-p", &port, "-c", statement]);
    retry(|| psql("CREATE TABLE load (key text PRIMARY KEY, value text)"))?;
    psql("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (standby1, standby2)'")?;
    psql("SELECT pg_reload_conf()")?;
    Ok((Dialect::Postgres, ports[0], processes))
}
