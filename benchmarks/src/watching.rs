//! What it costs to watch and do nothing else: processor time, memory, tasks, threads and sockets.
//!
//! Each client watches from a process of its own, so that memory is its own as well.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{FakeSet, cpu_ns, official, ours};

/// How long one is watched: two heartbeats of ten seconds fit.
const WATCH_TIME: Duration = Duration::from_secs(21);

/// What watching costs.
struct Cost {
    cpu_seconds_a_minute: f64,
    memory_mib: f64,
    tasks: f64,
    threads: f64,
    sockets: f64,
}

/// Prints the costs of ours and of the official driver.
pub fn compare(servers: usize, heartbeat: Duration) {
    let set = FakeSet::start_routers(servers);
    let uri = format!(
        "mongodb://{}/?heartbeatFrequencyMS={}",
        set.hosts.join(","),
        heartbeat.as_millis()
    );
    let count = servers.to_string();
    let cost = |who| cost_of(&["watch", who, &uri, &count]);
    let what = format!("watching {servers}, heartbeat {} s", heartbeat.as_secs_f64());
    tell(&what, &cost("ours"), &cost("official"));
}

/// Prints the costs of watching so many sets of three from one process, with heartbeats of ten seconds.
pub fn compare_fleet(sets: usize) {
    let fleet = FakeSet::start_fleet(sets);
    let file = std::env::temp_dir().join(format!("quorate-fleet-{}", std::process::id()));
    let uri = |hosts: &String| format!("mongodb://{hosts}/?replicaSet=rs0\n");
    std::fs::write(&file, fleet.hosts.iter().map(uri).collect::<String>()).unwrap();
    let path = file.to_string_lossy();
    let cost = |who| cost_of(&["watch-fleet", who, &path]);
    tell(&format!("{sets} sets of three"), &cost("ours"), &cost("official"));
    std::fs::remove_file(&file).unwrap();
}

fn tell(what: &str, own: &Cost, peer: &Cost) {
    for (name, figure) in [
        ("CPU s/min", (|cost: &Cost| cost.cpu_seconds_a_minute) as fn(&Cost) -> f64),
        ("memory, MiB", |cost: &Cost| cost.memory_mib),
        ("tasks", |cost: &Cost| cost.tasks),
        ("threads", |cost: &Cost| cost.threads),
        ("sockets", |cost: &Cost| cost.sockets),
    ] {
        let (own, peer) = (figure(own), figure(peer));
        let label = format!("{what}: {name}");
        println!("{label:<44} {:>12} {own:>12.3} {peer:>12.3} {:>12} {:>12.2}", "", "", peer / own);
    }
}

fn cost_of(arguments: &[&str]) -> Cost {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut figures = text.split_whitespace().map(|figure| figure.parse().unwrap());
    let mut next = || figures.next().unwrap();
    Cost {
        cpu_seconds_a_minute: next(),
        memory_mib: next(),
        tasks: next(),
        threads: next(),
        sockets: next(),
    }
}

/// Watches, in a process of its own, and prints what that cost.
pub fn watch(who: &str, uri: &str, servers: usize) {
    watch_all(who, &[uri], servers);
}

/// Watches every set of three of a file, in a process of its own, and prints what that cost.
pub fn watch_fleet(who: &str, file: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    watch_all(who, &text.lines().collect::<Vec<_>>(), 3);
}

fn watch_all(who: &str, uris: &[&str], servers: usize) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (memory, sockets) = (memory_mib(), open_sockets());
    runtime.block_on(async {
        // Held until the end, whichever it is.
        let (mut own, mut peers) = (Vec::new(), Vec::new());
        for uri in uris {
            match who {
                "ours" => own.push(ours::knowing_all(uri, servers).await),
                _ => peers.push(official::knowing_all(uri, servers).await),
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, started) = (cpu_ns(), Instant::now());
        tokio::time::sleep(WATCH_TIME).await;
        let cpu = (cpu_ns() - before) as f64 / 1e9 * 60.0 / started.elapsed().as_secs_f64();
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        println!("{cpu} {} {tasks} {threads} {}", memory_mib() - memory, open_sockets() - sockets);
        // A client that does not close promptly does not hold the rest up.
        std::process::exit(0);
    });
}

fn memory_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as f64 / f64::from(1 << 20)
}

fn open_sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}
