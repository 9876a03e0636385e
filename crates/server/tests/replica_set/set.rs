//! A replica set of real processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use tempfile::TempDir;

use crate::client::Client;

/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Member {
    pub(crate) port: u16,
    process: Option<Child>,
}

pub(crate) struct Set {
    pub(crate) members: Vec<Member>,
    directory: TempDir,
}

fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    target.join("examples/member")
}

impl Set {
    /// Starts members without a configuration.
    pub(crate) fn start(count: usize) -> Self {
        let mut set = Self { members: Vec::new(), directory: tempfile::tempdir().unwrap() };
        for _ in 0..count {
            set.add();
        }
        set
    }

    /// Starts members and makes a set of them.
    pub(crate) fn initiated(count: usize) -> Self {
        let set = Self::start(count);
        let config = set.config();
        set.ok(0, doc! { "replSetInitiate": config });
        set
    }

    pub(crate) fn config(&self) -> Document {
        let member = |(id, member): (usize, &Member)| {
            Bson::from(doc! { "_id": id as i32, "host": format!("127.0.0.1:{}", member.port) })
        };
        let members: Vec<Bson> = self.members.iter().enumerate().map(member).collect();
        doc! { "_id": "rs0", "version": 1, "members": members }
    }

    /// Starts one more process and gives its place.
    pub(crate) fn add(&mut self) -> usize {
        self.members.push(Member { port: 0, process: None });
        let place = self.members.len() - 1;
        self.restart(place);
        place
    }

    pub(crate) fn data(&self, place: usize) -> PathBuf {
        self.directory.path().join(place.to_string())
    }

    pub(crate) fn restart(&mut self, place: usize) {
        let data = self.data(place);
        let member = &mut self.members[place];
        let mut process = Command::new(program())
            .args(["--replset", "rs0", "--port", &member.port.to_string(), "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .expect("cargo builds the example `member` for tests");
        let mut line = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        member.port = line.trim().parse().expect("the member prints its port");
        member.process = Some(process);
    }

    /// Ends a process without warning.
    pub(crate) fn kill(&mut self, place: usize) {
        let mut process = self.members[place].process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    pub(crate) fn is_running(&self, place: usize) -> bool {
        self.members[place].process.is_some()
    }

    /// Runs a command on `admin`, or the database it names.
    pub(crate) fn run(&self, place: usize, mut command: Document) -> std::io::Result<Document> {
        if !command.contains_key("$db") {
            command.insert("$db", "admin");
        }
        Client::connect(self.members[place].port)?.run(&command)
    }

    /// Runs a command that must succeed.
    pub(crate) fn ok(&self, place: usize, command: Document) -> Document {
        let reply = self.run(place, command.clone()).unwrap();
        assert!(reply.get_f64("ok").is_ok_and(|ok| ok == 1.0), "{command} answered {reply}");
        reply
    }

    /// Waits until something is true, and fails the test if it never is.
    pub(crate) fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
            std::thread::yield_now();
        }
    }

    /// The member that takes writes.
    pub(crate) fn primary(&self) -> usize {
        self.wait("a primary", || {
            (0..self.members.len()).filter(|place| self.is_running(*place)).find(|place| {
                self.run(*place, doc! { "hello": 1 })
                    .is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
            })
        })
    }

    /// Waits until a member is in a state.
    pub(crate) fn wait_for_state(&self, place: usize, state: &str) {
        self.wait(state, || {
            let status = self.run(place, doc! { "replSetGetStatus": 1 }).ok()?;
            let members = status.get_array("members").ok()?;
            let own = members.iter().filter_map(Bson::as_document).find(|m| m.contains_key("self"));
            (own?.get_str("stateStr").ok()? == state).then_some(())
        });
    }

    /// Inserts a document with a write concern; gives the error of either kind.
    pub(crate) fn insert(&self, place: usize, document: Document, w: Bson) -> Result<(), String> {
        let command = doc! {
            "insert": "c", "documents": [document], "$db": "db",
            "writeConcern": { "w": w, "wtimeout": 10_000 },
        };
        let reply = self.run(place, command).map_err(|error| error.to_string())?;
        let fine = reply.get_f64("ok").ok() == Some(1.0)
            && !reply.contains_key("writeErrors")
            && !reply.contains_key("writeConcernError");
        if fine { Ok(()) } else { Err(reply.to_string()) }
    }

    /// Waits until every running member holds the same data, and gives how many documents.
    pub(crate) fn wait_until_identical(&self) -> i64 {
        let places: Vec<usize> =
            (0..self.members.len()).filter(|place| self.is_running(*place)).collect();
        self.wait("identical members", || {
            let mut hashes = Vec::new();
            for place in &places {
                let nearest = doc! { "mode": "nearest" };
                let command = doc! { "dbHash": 1, "$db": "db", "$readPreference": nearest.clone() };
                let hash = self.run(*place, command).ok()?.get_str("md5").ok()?.to_owned();
                let count = doc! { "count": "c", "$db": "db", "$readPreference": nearest };
                let count = self.run(*place, count).ok()?.get_i32("n").ok()?;
                hashes.push((hash, count));
            }
            hashes.iter().all(|hash| *hash == hashes[0]).then(|| i64::from(hashes[0].1))
        })
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        for place in 0..self.members.len() {
            if self.is_running(place) {
                self.kill(place);
            }
        }
    }
}
