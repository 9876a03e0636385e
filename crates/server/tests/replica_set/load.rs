//! Clients that write all the time, what they were promised, and who led meanwhile.
//!
//! Each writer follows every member that says it takes writes, also an isolated primary. What a majority
//! acknowledged is a promise; everything else may be there or not. A witness asks every member over
//! and over who it is, so that two primaries of one term are seen.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};

use crate::client::Client;
use crate::set::{Set, wait};

const WRITERS: usize = 3;

/// How long a writer waits for one answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the witness does: a frozen member must not blind it for the others.
const GLANCE: Duration = Duration::from_millis(500);

/// Writes to a set until it is told to stop.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    members: Mutex<Vec<SocketAddr>>,
    next: AtomicI64,
    acknowledged: Mutex<BTreeSet<i64>>,
    primaries: Mutex<BTreeMap<ObjectId, SocketAddr>>,
    stop: AtomicBool,
}

impl Load {
    pub(crate) fn start(set: &Set) -> Self {
        let shared = Arc::new(Shared {
            members: Mutex::new(addresses(set)),
            next: AtomicI64::new(0),
            acknowledged: Mutex::default(),
            primaries: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let spawn = |work: fn(&Shared, usize), number| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || work(&shared, number))
        };
        let mut threads: Vec<_> = (0..WRITERS).map(|writer| spawn(write, writer)).collect();
        threads.push(spawn(witness, 0));
        Self { shared, threads }
    }

    /// Tells the clients of members that came since.
    pub(crate) fn knows(&self, set: &Set) {
        *self.shared.members.lock().unwrap() = addresses(set);
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().unwrap().len()
    }

    /// Waits until this many more writes are acknowledged by a majority.
    pub(crate) fn wait_for(&self, more: usize) {
        let goal = self.acknowledged() + more;
        wait("acknowledged writes", || (self.acknowledged() >= goal).then_some(()));
    }

    /// Stops writing. Every running member must become identical, and have all that was promised;
    /// no term may have had two primaries.
    pub(crate) fn judge(self, set: &Set) {
        self.judge_among(set, &set.running());
    }

    /// The same, if not all of the processes are members any more.
    pub(crate) fn judge_among(mut self, set: &Set, places: &[usize]) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("neither a writer nor the witness fails");
        }
        // A write of the set as it is now commits whatever came before it.
        let primary = wait("a last write", || {
            let primary = set.primary_among(places);
            set.insert(primary, doc! { "_id": -1 }, Bson::from("majority")).ok().map(|()| primary)
        });
        let count = set.wait_until_alike(places);
        let found = ids(set, primary);
        assert_eq!(found.len() as i64, count);
        let promised = self.shared.acknowledged.lock().unwrap();
        let lost: Vec<_> = promised.difference(&found).collect();
        assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), promised.len());
        assert!(!promised.is_empty(), "nothing was ever acknowledged");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn addresses(set: &Set) -> Vec<SocketAddr> {
    set.members.iter().map(|member| member.address).collect()
}

fn write(shared: &Shared, writer: usize) {
    let mut place = writer;
    while !shared.stop.load(Ordering::Relaxed) {
        let members = shared.members.lock().unwrap().clone();
        place = (place + 1) % members.len();
        if let Ok(client) = Client::connect(members[place], PATIENCE)
            && write_until_refused(shared, client).is_err()
        {
            // A member that was asked in vain is asked again after a pause.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn write_until_refused(shared: &Shared, mut client: Client) -> std::io::Result<()> {
    let hello = client.run(&doc! { "hello": 1, "$db": "admin" }, PATIENCE)?;
    if !hello.get_bool("isWritablePrimary").unwrap_or(false) {
        return Err(std::io::ErrorKind::NotConnected.into());
    }
    while !shared.stop.load(Ordering::Relaxed) {
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let command = doc! {
            "insert": "c", "documents": [{ "_id": id, "text": "x".repeat(100) }], "$db": "db",
            "writeConcern": { "w": "majority", "wtimeout": 2000 },
        };
        let reply = client.run(&command, PATIENCE)?;
        let refused = reply.contains_key("writeErrors") || reply.get_f64("ok").ok() != Some(1.0);
        if refused || reply.contains_key("writeConcernError") {
            return Err(std::io::ErrorKind::Other.into());
        }
        shared.acknowledged.lock().unwrap().insert(id);
    }
    Ok(())
}

/// Looks who is primary of which term: an election id is the term's.
fn witness(shared: &Shared, _number: usize) {
    let mut clients: BTreeMap<SocketAddr, Client> = BTreeMap::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let members = shared.members.lock().unwrap().clone();
        for address in members {
            let Some(hello) = ask(&mut clients, address) else {
                clients.remove(&address);
                continue;
            };
            let election = hello.get_object_id("electionId");
            if let (Ok(true), Ok(election)) = (hello.get_bool("isWritablePrimary"), election) {
                let first = *shared.primaries.lock().unwrap().entry(election).or_insert(address);
                assert_eq!(first, address, "two primaries of term {election}");
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(clients: &mut BTreeMap<SocketAddr, Client>, address: SocketAddr) -> Option<Document> {
    let client = match clients.entry(address) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => unknown.insert(Client::connect(address, GLANCE).ok()?),
    };
    client.run(&doc! { "hello": 1, "$db": "admin" }, GLANCE).ok()
}

/// The identifiers of everything in `db.c`.
fn ids(set: &Set, place: usize) -> BTreeSet<i64> {
    let projection = doc! { "_id": 1 };
    let find = doc! { "find": "c", "$db": "db", "projection": projection, "batchSize": 10_000 };
    let mut reply = set.ok(place, find);
    let mut ids = BTreeSet::new();
    loop {
        let cursor = reply.get_document("cursor").unwrap();
        let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
        for found in batch.unwrap() {
            let id = found.as_document().unwrap().get("_id").unwrap();
            ids.insert(id.as_i64().or(id.as_i32().map(i64::from)).expect("numbers"));
        }
        let id = cursor.get_i64("id").unwrap();
        if id == 0 {
            return ids;
        }
        let more = doc! { "getMore": id, "collection": "c", "$db": "db", "batchSize": 10_000 };
        reply = set.ok(place, more);
    }
}
