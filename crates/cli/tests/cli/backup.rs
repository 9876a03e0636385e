//! Backups of running members: of one moment, whole or not there, and opened as they are.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use quorate_client::Client;
use quorate_testing::ReplicaSet;
use serde_json::Value;

use crate::live::Living;
use crate::support::quorate;

const PATIENCE: Duration = Duration::from_secs(120);

fn set(members: u8, data: Option<&Path>) -> ReplicaSet {
    let builder = ReplicaSet::builder().members(members).program(env!("CARGO_BIN_EXE_quorate"));
    match data {
        Some(data) => builder.data(data).start().unwrap(),
        None => builder.start().unwrap(),
    }
}

fn with_client<T>(uri: &str, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::with_uri(uri).unwrap();
        let done = work(&client).await;
        client.close().await;
        done
    })
}

/// Runs it, which must be well, and gives its event.
fn fine(arguments: &[&str]) -> Value {
    let run = quorate(arguments);
    assert_eq!(run.code(), 0, "{arguments:?} {}{}", run.stdout(), run.stderr());
    run.events().pop().unwrap()
}

/// The member of a backup, at the address of the one that was copied.
fn serve(directory: &Path, host: &str) -> Living {
    let port = host.rsplit(':').next().unwrap();
    let data = directory.to_str().unwrap();
    let mut member =
        Living::start(&["serve", "--json", "--replset", "rs0", "--port", port, "--data", data]);
    member.wait_for("ready", |_| true);
    member
}

/// The numbers in `shop.many`, whose documents and indexes must fit each other.
fn numbers(uri: &str) -> Vec<i32> {
    with_client(uri, async |client| {
        let validate = doc! { "validate": "many", "full": true };
        let checked = client.database("shop").run_command(validate).await.unwrap();
        assert!(checked.get_bool("valid").unwrap(), "{checked:?}");
        let many = client.collection("shop", "many");
        let found =
            many.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap().collect().await.unwrap();
        found.iter().map(|document| document.get_i32("_id").unwrap()).collect()
    })
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never saw that {what}");
        // What is waited for needs the processor more.
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn fill(uri: &str, numbers: std::ops::Range<i32>) {
    with_client(uri, async |client| {
        let many = client.collection("shop", "many");
        many.create_index(doc! { "pad": 1 }).await.unwrap();
        let documents =
            numbers.map(|n| doc! { "_id": n, "pad": format!("{n}{}", "x".repeat(2000)) });
        many.insert_many(documents).await.unwrap();
    });
}

/// A writer is at work all the time. The backup has what it wrote up to some moment and nothing else,
/// and goes forward to the end, or to before an accident.
#[test]
fn a_backup_is_of_one_moment_and_goes_forward_to_any_later_one() {
    const BASE: i32 = 600;
    let mut set = set(1, None);
    let uri = set.uri().to_owned();
    fill(&uri, 0..BASE);
    let directory = tempfile::tempdir().unwrap();
    let (place, early) = (directory.path().join("backup"), directory.path().join("early"));
    let (stop, written) = (AtomicBool::new(false), AtomicI32::new(BASE));
    let made = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            with_client(&uri, async |client| {
                let many = client.collection("shop", "many");
                while !stop.load(Ordering::SeqCst) {
                    let next = written.load(Ordering::SeqCst);
                    let pad = format!("{next}");
                    many.insert_one(doc! { "_id": next, "pad": pad }).await.unwrap();
                    written.store(next + 1, Ordering::SeqCst);
                }
            });
        });
        let before = written.load(Ordering::SeqCst);
        until("the writer is at work", || written.load(Ordering::SeqCst) > before + 5);
        let made = fine(&["backup", "--json", &uri, place.to_str().unwrap()]);
        let done = written.load(Ordering::SeqCst);
        until("the writer has gone on", || written.load(Ordering::SeqCst) > done + 5);
        stop.store(true, Ordering::SeqCst);
        writer.join().unwrap();
        made
    });
    assert!(made["bytes"].as_u64().unwrap() > 100_000, "{made}");
    assert!(!directory.path().join("backup.partial").exists());
    copy(&place, &early);

    // An accident, and the moment before it.
    let accident = with_client(&uri, async |client| {
        let oplog = client.collection("local", "oplog.rs");
        let newest = oplog.find_one(doc! {}).sort(doc! { "$natural": -1 }).await.unwrap().unwrap();
        client.collection("shop", "many").delete_many(doc! {}).await.unwrap();
        newest.get_timestamp("ts").unwrap()
    });
    let limit = format!("{}:{}", accident.time, accident.increment + 1);
    let went =
        fine(&["backup", "--json", "--forward", "--until", &limit, &uri, place.to_str().unwrap()]);
    assert!(went["entries"].as_u64().unwrap() > 5, "{went}");
    let last = written.load(Ordering::SeqCst);
    let host = set.members()[0].host().to_owned();
    set.stop();

    let member = serve(&place, &host);
    assert_eq!(numbers(&uri), (0..last).collect::<Vec<_>>(), "all before the accident");
    assert_eq!(member.terminate(), Some(0));
    let member = serve(&early, &host);
    let found = numbers(&uri);
    assert!(found.len() as i32 >= BASE && (found.len() as i32) < last, "{}", found.len());
    assert_eq!(found, (0..found.len() as i32).collect::<Vec<_>>(), "a moment, without holes");
    assert_eq!(member.terminate(), Some(0));
}

/// Either side is killed at any moment: there is a whole backup, or none.
/// A name that was mistyped is told, and no directory is made of it.
#[test]
fn a_backup_that_is_not_there_does_not_go_forward() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().to_owned();
    for place in [directory.path().join("mondya"), empty.clone()] {
        let place = place.to_str().unwrap();
        let forward = quorate(&["backup", "--forward", "mongodb://127.0.0.1:1", place]);
        assert_eq!(forward.code(), 1);
        assert!(forward.stderr().contains("there is no backup in"), "{}", forward.stderr());
        assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "nothing is made");
    }
}

#[test]
fn a_backup_that_is_killed_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let (place, partial) =
        (directory.path().join("backup"), directory.path().join("backup.partial"));
    let arguments = |uri: &str| ["backup".to_owned(), uri.to_owned(), place.display().to_string()];
    let set = set(1, None);
    fill(set.uri(), 0..1500);
    let uri = set.uri().to_owned();
    for _ in 0..3 {
        let arguments = arguments(&uri);
        let mut backup = start(&arguments.each_ref().map(String::as_str));
        until("the backup has begun", || partial.join("MANIFEST").exists() || place.exists());
        backup.kill().unwrap();
        backup.wait().unwrap();
        if place.exists() {
            assert!(!partial.exists());
            std::fs::remove_dir_all(&place).unwrap();
        }
    }
    // What was left is no obstacle.
    let run = arguments(&uri);
    assert_eq!(quorate(&run.each_ref().map(String::as_str)).code(), 0);
    assert!(place.exists() && !partial.exists());
    let again = quorate(&run.each_ref().map(String::as_str));
    assert_eq!(again.code(), 1);
    assert!(again.stderr().contains("is there already"), "{}", again.stderr());
    std::fs::remove_dir_all(&place).unwrap();

    let backup = start(&run.each_ref().map(String::as_str));
    until("the backup has begun", || partial.join("MANIFEST").exists() || place.exists());
    set.members()[0].kill().unwrap();
    let ended = backup.wait_with_output().unwrap();
    assert_eq!(ended.status.success(), place.exists(), "{ended:?}");
    if place.exists() {
        let member = serve(&place, set.members()[0].host());
        assert_eq!(numbers(&uri).len(), 1500);
        drop(member);
    }
}

/// The bytes in the files of a directory.
fn size(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let sizes = files.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        // A file that is removed meanwhile.
        found => found.map_or(0, |found| found.len()),
    });
    sizes.sum()
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
}

/// Either side is killed while a backup goes forward: what is there is of one moment, no earlier than
/// before, and the next try goes on from it.
#[test]
fn a_backup_whose_way_forward_is_killed_stays_whole() {
    const BASE: i32 = 300;
    const LAST: i32 = 3000;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (data, place) = (at("data"), at("backup"));
    let set = set(1, Some(&data));
    let uri = set.uri().to_owned();
    fill(&uri, 0..BASE);
    fine(&["backup", "--json", &uri, place.to_str().unwrap()]);
    fill(&uri, BASE..LAST);
    let forward = ["backup", "--forward", "--json", &uri, place.to_str().unwrap()];
    let mut kept = Vec::new();
    // Ours is killed, each time a little later.
    for round in 0..3 {
        let before = size(&place);
        let mut going = start(&forward);
        until("it goes forward", || {
            size(&place) > before + round * 500_000 || going.try_wait().unwrap().is_some()
        });
        let _ = going.kill();
        going.wait().unwrap();
        kept.push(at(&format!("kept-{round}")));
        copy(&place, &kept[kept.len() - 1]);
    }
    // The member is killed.
    let before = size(&place);
    let mut going = start(&forward);
    until("it goes forward", || {
        size(&place) > before + 100_000 || going.try_wait().unwrap().is_some()
    });
    let host = set.members()[0].host().to_owned();
    set.members()[0].kill().unwrap();
    going.wait().unwrap();
    kept.push(at("kept-last"));
    copy(&place, &kept[kept.len() - 1]);
    drop(set);

    let mut least = BASE as usize;
    for kept in &kept {
        let member = serve(kept, &host);
        let found = numbers(&uri);
        assert!(found.len() >= least, "{} after {least}", found.len());
        assert_eq!(found, (0..found.len() as i32).collect::<Vec<_>>(), "a moment, without holes");
        least = found.len();
        assert_eq!(member.terminate(), Some(0));
    }
    // The member comes back with its oplog, and the rest of the way is gone.
    let member = serve(&member_data(&data), &host);
    fine(&forward);
    assert_eq!(member.terminate(), Some(0));
    let member = serve(&place, &host);
    assert_eq!(numbers(&uri), (0..LAST).collect::<Vec<_>>());
    assert_eq!(member.terminate(), Some(0));
}

/// The directory of the only member below that of its set.
fn member_data(set: &Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(set).unwrap().map(|entry| entry.unwrap().path());
    let mut directories: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert_eq!(directories.len(), 1, "{directories:?}");
    directories.remove(0)
}

/// All members of a set start from one backup; each asks the others before it votes.
#[test]
fn a_whole_set_starts_from_one_backup() {
    let directory = tempfile::tempdir().unwrap();
    let mut set = set(3, None);
    let uri = set.uri().to_owned();
    fill(&uri, 0..500);
    with_client(&format!("{uri}&w=3"), async |client| {
        let last = doc! { "_id": 500, "pad": "x" };
        client.collection("shop", "many").insert_one(last).await.unwrap();
    });
    let hosts: Vec<String> = set.members().iter().map(|member| member.host().to_owned()).collect();
    let places: Vec<_> = (0..3).map(|n| directory.path().join(n.to_string())).collect();
    fine(&["backup", "--json", &uri, places[0].to_str().unwrap()]);
    set.stop();
    for other in &places[1..] {
        copy(&places[0], other);
    }
    let members: Vec<Living> =
        places.iter().zip(&hosts).map(|(place, host)| serve(place, host)).collect();
    assert_eq!(numbers(&uri).len(), 501);
    fill(&uri, 1000..1010);
    assert_eq!(numbers(&uri).len(), 511);
    drop(members);
}
