//! The measures, each printed as a line with the figures and the ratios.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_client::Client;
use quorate_wire::MsgFlags;
use tokio::task::JoinHandle;

use crate::floor::{self, Raw};
use crate::{FakeSet, cpu_ns, now_ns, official, ours, pings, watching};

const ROUNDS: usize = 21;
const OPERATION_TIME: Duration = Duration::from_secs(1);
const OPERATION_ROUNDS: usize = 7;
/// Each takes a quarter of a second, or more.
const POLLED_ROUNDS: usize = 9;

/// How often many servers are discovered.
const MANY_ROUNDS: usize = 7;

pub async fn run(wanted: Option<&str>) {
    println!(
        "{:<44} {:>12} {:>12} {:>12}   ours/floor  official/ours",
        "", "floor", "ours", "official"
    );
    let is = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    if is("discovery") {
        for members in [3, 7, 50] {
            discovery(members).await;
        }
        for members in [200, 1000] {
            discovery_of_many(members).await;
        }
    }
    if is("moved") {
        for members in [3, 50] {
            moved(members).await;
        }
        for members in [3, 50] {
            moved_polling(members).await;
        }
    }
    if is("operations") {
        for callers in [1, 64] {
            operations(callers).await;
        }
    }
    if is("gap") {
        gap().await;
    }
    if is("fleet") {
        watching::compare_fleet(1_000);
    }
    if is("watching") {
        for servers in [50, 1000] {
            for heartbeat in [Duration::from_secs(10), Duration::from_millis(500)] {
                watching::compare(servers, heartbeat);
            }
        }
    }
}

fn median(mut figures: Vec<u64>) -> f64 {
    figures.sort_unstable();
    figures[figures.len() / 2] as f64
}

fn line(what: &str, unit: f64, floor: Vec<u64>, ours: Vec<u64>, official: Vec<u64>) {
    let (floor, ours, official) =
        (median(floor) / unit, median(ours) / unit, median(official) / unit);
    println!(
        "{what:<44} {floor:>12.3} {ours:>12.3} {official:>12.3} {:>12.2} {:>12.2}",
        ours / floor,
        official / ours
    );
}

/// How long the floor and our client take from one seed to knowing every member, in nanoseconds.
async fn discover_once(set: &FakeSet, members: usize) -> (u64, u64) {
    let started = now_ns();
    assert_eq!(floor::discover(&set.hosts[0]).await, members);
    let floor = now_ns() - started;
    let started = now_ns();
    let client = ours::connected(&set.uri(""), members).await;
    let ours = now_ns() - started;
    client.close().await;
    (floor, ours)
}

/// One discovery in a process of its own, for tools that count.
pub fn discover_alone(who: &str, uri: &str, members: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match who {
            "floor" => assert_eq!(floor::discover(uri).await, members),
            _ => drop(ours::connected(uri, members).await),
        }
    });
}

/// From making a client with one seed to knowing every member.
async fn discovery(members: usize) {
    let set = FakeSet::start(members);
    let (mut floors, mut own, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (floor, ours) = discover_once(&set, members).await;
        floors.push(floor);
        own.push(ours);

        let started = now_ns();
        let watched = official::connected(&set.uri(""), members).await;
        peers.push(now_ns() - started);
        watched.client.shutdown().await;
    }
    line(&format!("discovery of {members} from one seed, ms"), 1e6, floors, own, peers);
}

/// The same of more members than any set has, without the peer, which would take minutes.
async fn discovery_of_many(members: usize) {
    let set = FakeSet::start(members);
    let (mut floors, mut own) = (Vec::new(), Vec::new());
    for _ in 0..MANY_ROUNDS {
        let (floor, ours) = discover_once(&set, members).await;
        floors.push(floor);
        own.push(ours);
    }
    let (floor, own) = (median(floors) / 1e6, median(own) / 1e6);
    let what = format!("discovery of {members} from one seed, ms");
    println!("{what:<44} {floor:>12.3} {own:>12.3} {:>12} {:>12.2}", "", own / floor);
}

/// From the change of the primary to the event in the client, at the moment its callback is called.
///
/// The floor listens to every member, as a client must, and reads what each says: the set sends as
/// many messages to it as to the clients.
async fn moved(members: usize) {
    let mut set = FakeSet::start(members);
    let mut floors = Vec::new();
    let mut raws = Vec::new();
    for host in &set.hosts {
        raws.push(Raw::connect(host).await);
    }
    for _ in 0..ROUNDS {
        let waiting: Vec<_> =
            raws.drain(..).map(|raw| tokio::spawn(floor::hear_change(raw))).collect();
        settle().await;
        let (address, at) = set.move_primary();
        for (host, heard) in set.hosts.iter().zip(waiting) {
            let (raw, heard_at) = heard.await.unwrap();
            raws.push(raw);
            if *host == address {
                floors.push(heard_at.saturating_sub(at));
            }
        }
    }
    drop(raws);
    let (own, own_cpu) = moves_seen_by_us(&mut set, members, "", ROUNDS).await;
    let (peers, peer_cpu) = moves_seen_by_peer(&mut set, members, "", ROUNDS).await;
    line(&format!("primary moved, {members} members, ms"), 1e6, floors, own, peers);
    cpu_line(&format!("  CPU of one move, {members} members, ms"), own_cpu, peer_cpu);
}

/// The same where clients ask every half second. The floor is half of that.
async fn moved_polling(members: usize) {
    let mut set = FakeSet::start(members);
    let options = "&serverMonitoringMode=poll&heartbeatFrequencyMS=500";
    let (own, own_cpu) = moves_seen_by_us(&mut set, members, options, POLLED_ROUNDS).await;
    let (peers, peer_cpu) = moves_seen_by_peer(&mut set, members, options, POLLED_ROUNDS).await;
    let floor = vec![250_000_000];
    line(&format!("primary moved, {members} members, polling, ms"), 1e6, floor, own, peers);
    cpu_line(&format!("  CPU of one move, {members} members, polling, ms"), own_cpu, peer_cpu);
}

async fn moves_seen_by_us(
    set: &mut FakeSet,
    members: usize,
    options: &str,
    rounds: usize,
) -> (Vec<u64>, f64) {
    let mut watched = ours::watched(&set.uri(options), members).await;
    let before = cpu_ns();
    let mut seen = Vec::new();
    for _ in 0..rounds {
        settle().await;
        let (address, at) = set.move_primary();
        seen.push(watched.primary_is(&address).await.saturating_sub(at));
    }
    settle().await;
    let cpu = (cpu_ns() - before) as f64 / 1e6 / rounds as f64;
    watched.client.close().await;
    (seen, cpu)
}

async fn moves_seen_by_peer(
    set: &mut FakeSet,
    members: usize,
    options: &str,
    rounds: usize,
) -> (Vec<u64>, f64) {
    let mut watched = official::connected(&set.uri(options), members).await;
    let before = cpu_ns();
    let mut seen = Vec::new();
    for _ in 0..rounds {
        settle().await;
        let (address, at) = set.move_primary();
        seen.push(official::primary_is(&mut watched, &address).await.saturating_sub(at));
    }
    settle().await;
    let cpu = (cpu_ns() - before) as f64 / 1e6 / rounds as f64;
    watched.client.shutdown().await;
    (seen, cpu)
}

/// Figures that have no floor, and that a loaded machine does not spoil.
fn cpu_line(what: &str, ours: f64, official: f64) {
    println!(
        "{what:<44} {:>12} {ours:>12.3} {official:>12.3} {:>12} {:>12.2}",
        "",
        "",
        official / ours
    );
}

/// Lets all clients finish what they were doing, so that rounds do not overlap.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(30)).await;
}

/// How many operations were done, and whether to go on.
#[derive(Clone)]
pub struct Tally {
    done: Arc<AtomicU64>,
    enough: Arc<AtomicU64>,
}

impl Tally {
    /// Goes on until so many are done.
    pub fn until(enough: u64) -> Self {
        Self { done: Arc::default(), enough: Arc::new(AtomicU64::new(enough)) }
    }

    pub fn another(&self) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed) < self.enough.load(Ordering::Relaxed)
    }
}

/// Operations a second of callers that ask the tally whether to go on; `start` starts them.
async fn rate(start: impl AsyncFnOnce(&Tally) -> Vec<JoinHandle<()>>) -> u64 {
    let tally = Tally::until(u64::MAX);
    let tasks = start(&tally).await;
    // Connections are made and pools filled before the clock starts.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, started) = (tally.done.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(OPERATION_TIME).await;
    let done = tally.done.load(Ordering::Relaxed) - before;
    let elapsed = started.elapsed();
    tally.enough.store(0, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    (done as f64 / elapsed.as_secs_f64()) as u64
}

/// So many tasks of the same kind.
fn spawned<F: Future<Output = ()> + Send + 'static>(
    callers: usize,
    caller: impl Fn() -> F,
) -> Vec<JoinHandle<()>> {
    (0..callers).map(|_| tokio::spawn(caller())).collect()
}

async fn ping_raw(host: String, tally: Tally) {
    let mut raw = Raw::connect(&host).await;
    let ping = floor::command("ping");
    while tally.another() {
        raw.send(MsgFlags::NONE, &ping).await;
        raw.receive(|_| ()).await;
    }
}

pub async fn ping_with_ours(client: Client, tally: Tally) {
    let ping = ours::ping();
    while tally.another() {
        client.run_command("admin", &ping).await.unwrap();
    }
}

async fn ping_with_official(database: mongodb::Database, tally: Tally) {
    while tally.another() {
        database.run_command(mongodb::bson::doc! {"ping": 1}).await.unwrap();
    }
}

/// Pings a second, by this many callers. The second line has the bare loop of the other measures as its
/// floor: tasks of the same runtime, one connection each.
async fn operations(callers: usize) {
    let set = FakeSet::start(3);
    let (mut floors, mut bare, mut own, mut peers) = (vec![], vec![], vec![], vec![]);
    let client = ours::connected(&set.uri("&maxPoolSize=64"), 3).await;
    let watched = official::connected(&set.uri("&maxPoolSize=64"), 3).await;
    let database = watched.client.database("admin");
    for _ in 0..OPERATION_ROUNDS {
        let host = &set.hosts[0];
        floors.push(
            rate(async |tally: &Tally| {
                let thread = pings::floor(host, callers, tally.clone());
                vec![tokio::task::spawn_blocking(move || thread.join().unwrap())]
            })
            .await,
        );
        bare.push(
            rate(async |tally| spawned(callers, || ping_raw(host.clone(), tally.clone()))).await,
        );
        let ours = async |tally: &Tally| {
            spawned(callers, || ping_with_ours(client.clone(), tally.clone()))
        };
        own.push(rate(ours).await);
        let official = async |tally: &Tally| {
            spawned(callers, || ping_with_official(database.clone(), tally.clone()))
        };
        peers.push(rate(official).await);
    }
    client.close().await;
    watched.client.shutdown().await;
    let (ours, official) = (median(own), median(peers));
    for (what, floor) in [("", median(floors)), (", floor of tasks", median(bare))] {
        println!(
            "{:<44} {floor:>12.0} {ours:>12.0} {official:>12.0} {:>12.2} {:>12.2}",
            format!("operations a second, {callers} callers{what}"),
            ours / floor,
            ours / official
        );
    }
}

/// How long a writer that retries goes without an acknowledgement when the primary moves.
async fn gap() {
    let mut set = FakeSet::start(3);
    let client = ours::connected(&set.uri(""), 3).await;
    let collection = client.collection("test", "c");
    let mut own = Vec::new();
    for _ in 0..ROUNDS {
        settle().await;
        collection.insert_one(bson::rawdoc! {"x": 1}).await.unwrap();
        let (_, at) = set.move_primary();
        collection.insert_one(bson::rawdoc! {"x": 1}).await.unwrap();
        own.push(now_ns() - at);
    }
    client.close().await;
    let watched = official::connected(&set.uri(""), 3).await;
    let collection = watched.client.database("test").collection::<mongodb::bson::Document>("c");
    let mut peers = Vec::new();
    for _ in 0..ROUNDS {
        settle().await;
        collection.insert_one(mongodb::bson::doc! {"x": 1}).await.unwrap();
        let (_, at) = set.move_primary();
        collection.insert_one(mongodb::bson::doc! {"x": 1}).await.unwrap();
        peers.push(now_ns() - at);
    }
    watched.client.shutdown().await;
    // The floor: the old primary refuses, the new one accepts, on connections that exist.
    let mut floors = Vec::new();
    let mut members = Vec::new();
    for host in &set.hosts {
        members.push(Raw::connect(host).await);
    }
    for _ in 0..ROUNDS {
        settle().await;
        let (address, at) = set.move_primary();
        let new = set.hosts.iter().position(|host| *host == address).unwrap();
        for member in [(new + 2) % 3, new] {
            members[member].send(MsgFlags::NONE, &floor::insert()).await;
            members[member].receive(|_| ()).await;
        }
        floors.push(now_ns() - at);
    }
    line("gap of a retrying writer, primary moved, ms", 1e6, floors, own, peers);
}
