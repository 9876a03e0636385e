//! A replica set of real processes, and what tests do to it.
//!
//! Owns the processes and the ways to reach them; what happens between the members is the business of
//! `FaultNetwork` and of `namespaces`.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use quorate_test_support::FaultNetwork;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::client::{Client, TIMEOUT};
use quorate_test_support::Namespaces;

/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a member may take to answer a client that asks again.
const GLANCE: Duration = Duration::from_secs(1);

/// Between two looks at something that is waited for.
const BREATH: Duration = Duration::from_millis(3);

/// Settings for tests that silence a member: the others notice sooner than by default.
pub(crate) fn impatient() -> Document {
    doc! { "electionTimeoutMillis": 1500, "heartbeatIntervalMillis": 300 }
}

pub(crate) struct Member {
    /// Where its process listens.
    pub(crate) address: SocketAddr,
    process: Option<Child>,
}

/// How members reach each other.
pub(crate) enum Network {
    Direct,
    Proxied(FaultNetwork),
    Separate(Namespaces),
}

pub(crate) struct Set {
    pub(crate) members: Vec<Member>,
    pub(crate) network: Network,
    directory: TempDir,
    /// What every process is started with, besides the usual.
    arguments: Vec<String>,
    /// What a shell does before it becomes the process.
    pub(crate) before: Option<String>,
    /// Connections that are not in use, so that asking over and over does not wear out ports.
    idle: Mutex<Vec<(usize, Client)>>,
}

impl Set {
    /// Starts members without a configuration.
    pub(crate) fn start(count: usize) -> Self {
        Self::start_on(Network::Direct, count)
    }

    pub(crate) fn start_on(network: Network, count: usize) -> Self {
        Self::launch(network, count, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(count: usize, arguments: &[&str]) -> Self {
        Self::launch(Network::Direct, count, arguments)
    }

    /// The same, on a network.
    pub(crate) fn launch(network: Network, count: usize, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut set = Self {
            members: Vec::new(),
            network,
            directory,
            arguments,
            before: None,
            idle: Mutex::default(),
        };
        for _ in 0..count {
            set.add();
        }
        set
    }

    /// Starts members and makes a set of them.
    pub(crate) fn initiated(count: usize) -> Self {
        Self::start(count).initiate(doc! {})
    }

    /// A set whose members reach each other through proxies, and soon elect when one is silent.
    pub(crate) fn proxied(count: usize) -> Self {
        let set = Self::start_on(Network::Proxied(FaultNetwork::new()), count);
        set.initiate(impatient())
    }

    /// Makes a set of the members that run, and waits until it has a primary that all follow.
    pub(crate) fn initiate(self, settings: Document) -> Self {
        let mut config = self.config();
        config.insert("settings", settings);
        self.ok(0, doc! { "replSetInitiate": config });
        let primary = self.primary();
        for place in (0..self.members.len()).filter(|place| *place != primary) {
            self.wait_for_state(place, "SECONDARY");
        }
        self
    }

    /// The faults between the members.
    pub(crate) fn faults(&self) -> &FaultNetwork {
        match &self.network {
            Network::Proxied(faults) => faults,
            Network::Direct | Network::Separate(_) => panic!("this set has no proxies"),
        }
    }

    pub(crate) fn config(&self) -> Document {
        let member = |place| Bson::from(doc! { "_id": place as i32, "host": self.host(place) });
        let members: Vec<Bson> = (0..self.members.len()).map(member).collect();
        doc! { "_id": "rs0", "version": 1, "members": members }
    }

    /// The address by which the others know a member.
    pub(crate) fn host(&self, place: usize) -> String {
        match &self.network {
            Network::Proxied(faults) => format!("127.0.0.1:{}", faults.port(place)),
            Network::Direct | Network::Separate(_) => self.members[place].address.to_string(),
        }
    }

    /// A connection string that names every member.
    pub(crate) fn uri(&self) -> String {
        let hosts: Vec<String> = (0..self.members.len()).map(|place| self.host(place)).collect();
        format!("mongodb://{}/?replicaSet=rs0", hosts.join(","))
    }

    /// Starts one more process and gives its place.
    pub(crate) fn add(&mut self) -> usize {
        let place = self.members.len();
        let address = match &mut self.network {
            Network::Direct => (Ipv4Addr::LOCALHOST, 0).into(),
            Network::Proxied(faults) => {
                assert_eq!(faults.add().unwrap(), place);
                (Ipv4Addr::LOCALHOST, 0).into()
            }
            Network::Separate(namespaces) => namespaces.add(),
        };
        self.members.push(Member { address, process: None });
        self.restart(place);
        place
    }

    pub(crate) fn data(&self, place: usize) -> PathBuf {
        self.directory.path().join(place.to_string())
    }

    fn command(&self, place: usize) -> Command {
        let program = env!("CARGO_BIN_EXE_quorate-member");
        let address = self.members[place].address;
        let mut command = match &self.network {
            Network::Separate(namespaces) => namespaces.command(place, program),
            Network::Direct | Network::Proxied(_) => match &self.before {
                None => Command::new(program),
                Some(before) => {
                    let mut shell = Command::new("sh");
                    shell.args(["-c", &format!("{before} && exec \"$0\" \"$@\""), program]);
                    shell
                }
            },
        };
        command
            .args(["--replset", "rs0", "--leash", "--bind", &address.ip().to_string()])
            .args(["--port", &address.port().to_string(), "--data"])
            .arg(self.data(place))
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Network::Proxied(faults) = &self.network {
            command.args(["--own", &format!("127.0.0.1:{}", faults.port(place))]);
        }
        command
    }

    pub(crate) fn restart(&mut self, place: usize) {
        let mut command = self.command(place);
        let mut process = match &self.network {
            Network::Proxied(faults) => faults.start(place, || {
                let process = command.spawn()?;
                Ok((process.id(), process))
            }),
            Network::Direct | Network::Separate(_) => command.spawn(),
        }
        .unwrap();
        let mut line = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let port = line.trim().parse().expect("the member prints its port");
        self.members[place].address.set_port(port);
        self.members[place].process = Some(process);
        if let Network::Proxied(faults) = &self.network {
            faults.listens(place, port);
        }
    }

    /// Ends a process without warning.
    pub(crate) fn kill(&mut self, place: usize) {
        let mut process = self.take_process(place);
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Removes what a member that does not run has in its directory, which may be a disk of its own.
    pub(crate) fn wipe(&self, place: usize) {
        for entry in std::fs::read_dir(self.data(place)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    /// Ends a process as an operator does, and waits until it has.
    pub(crate) fn terminate(&mut self, place: usize) {
        self.signal(place, Signal::TERM);
        let mut process = self.take_process(place);
        // Its standard input stays open: the leash must not be what ends it.
        let input = process.stdin.take();
        assert!(process.wait().unwrap().success());
        drop(input);
    }

    pub(crate) fn take_process(&mut self, place: usize) -> Child {
        self.idle.lock().unwrap().retain(|(whose, _)| *whose != place);
        self.members[place].process.take().unwrap()
    }

    /// Stops the process in its tracks, as a host that hangs, and waits until every thread of it has
    /// stopped: the signal alone leaves a running thread time to copy one more entry.
    pub(crate) fn freeze(&self, place: usize) {
        self.signal(place, Signal::STOP);
        let process = self.members[place].process.as_ref().unwrap().id();
        self.wait("every thread to stop", || {
            let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
            let mut states = threads.map(|thread| {
                let path = thread.unwrap().path().join("stat");
                std::fs::read_to_string(path).unwrap_or_default()
            });
            states
                .all(|stat| stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T')))
                .then_some(())
        });
    }

    pub(crate) fn thaw(&self, place: usize) {
        self.signal(place, Signal::CONT);
    }

    fn signal(&self, place: usize, signal: Signal) {
        kill_process(self.pid(place), signal).unwrap();
    }

    pub(crate) fn pid(&self, place: usize) -> Pid {
        let process = self.members[place].process.as_ref().unwrap();
        Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap()
    }

    pub(crate) fn is_running(&self, place: usize) -> bool {
        self.members[place].process.is_some()
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|place| self.is_running(*place)).collect()
    }

    /// Every place but this one.
    pub(crate) fn others(&self, than: usize) -> Vec<usize> {
        (0..self.members.len()).filter(|place| *place != than).collect()
    }

    /// Runs a command on `admin`, or the database it names.
    pub(crate) fn run(&self, place: usize, command: Document) -> std::io::Result<Document> {
        self.run_within(place, command, TIMEOUT)
    }

    fn run_within(
        &self,
        place: usize,
        mut command: Document,
        timeout: Duration,
    ) -> std::io::Result<Document> {
        if !command.contains_key("$db") {
            command.insert("$db", "admin");
        }
        let mut idle = self.idle.lock().unwrap();
        let known = idle.iter().position(|(whose, _)| *whose == place);
        let known = known.map(|index| idle.swap_remove(index).1);
        drop(idle);
        let mut client = match known {
            Some(client) => client,
            None => Client::connect(self.members[place].address, timeout)?,
        };
        let reply = client.run(&command, timeout)?;
        self.idle.lock().unwrap().push((place, client));
        Ok(reply)
    }

    /// Runs a command that must succeed.
    pub(crate) fn ok(&self, place: usize, command: Document) -> Document {
        let reply = self.run(place, command.clone()).unwrap();
        assert!(reply.get_f64("ok").is_ok_and(|ok| ok == 1.0), "{command} answered {reply}");
        reply
    }

    /// Waits until something is true, and fails the test if it never is.
    pub(crate) fn wait<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        wait(what, look)
    }

    /// The member that takes writes.
    pub(crate) fn primary(&self) -> usize {
        self.primary_among(&self.running())
    }

    /// The one of these members that takes writes.
    pub(crate) fn primary_among(&self, places: &[usize]) -> usize {
        self.wait("a primary", || places.iter().copied().find(|place| self.is_primary(*place)))
    }

    fn is_primary(&self, place: usize) -> bool {
        self.run_within(place, doc! { "hello": 1 }, GLANCE)
            .is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
    }

    /// What a member says of itself in `replSetGetStatus`.
    pub(crate) fn own_status(&self, place: usize) -> Option<Document> {
        let status = self.run_within(place, doc! { "replSetGetStatus": 1 }, GLANCE).ok()?;
        let members = status.get_array("members").ok()?;
        members.iter().filter_map(Bson::as_document).find(|m| m.contains_key("self")).cloned()
    }

    /// Waits until a member is in a state.
    pub(crate) fn wait_for_state(&self, place: usize, state: &str) {
        self.wait(state, || {
            (self.own_status(place)?.get_str("stateStr").ok()? == state).then_some(())
        });
    }

    /// Has the primary hand over, and waits until another one leads.
    pub(crate) fn step_down(&self) {
        let primary = self.primary();
        self.ok(primary, doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 20 });
        self.primary_among(&self.others(primary));
        // It may stand again: a few step-downs in a row would leave no member that may.
        self.ok(primary, doc! { "replSetFreeze": 0 });
    }

    /// Changes the configuration through the primary, as often as it takes to be heard.
    pub(crate) fn reconfigure(&self, change: impl Fn(&mut Document)) {
        self.wait("a reconfiguration", || {
            let primary = self.primary();
            let mut reply = self.run(primary, doc! { "replSetGetConfig": 1 }).ok()?;
            let config = reply.get_document_mut("config").ok()?;
            let version = config.get_i32("version").unwrap();
            config.insert("version", version + 1);
            change(config);
            let reply = self.run(primary, doc! { "replSetReconfig": config.clone() }).ok()?;
            // The one before must have spread first; or there is another primary by now.
            let again = [308, 10107, 189, 109];
            let code = reply.get_i32("code").ok();
            assert!(code.is_none_or(|code| again.contains(&code)), "{reply}");
            code.is_none().then_some(())
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
        self.wait_until_alike(&self.running())
    }

    /// The same, of some members.
    pub(crate) fn wait_until_alike(&self, places: &[usize]) -> i64 {
        self.wait("identical members", || {
            let mut hashes = Vec::new();
            for place in places {
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

    /// The documents that a member's rollbacks removed from `db.c`.
    pub(crate) fn rolled_back(&self, place: usize) -> Vec<Document> {
        let Ok(files) = std::fs::read_dir(self.data(place).join("rollback/db.c")) else {
            return Vec::new();
        };
        let mut documents = Vec::new();
        for file in files {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                documents.push(Document::from_reader(&mut rest).unwrap());
            }
        }
        documents
    }
}

/// Waits until something is true, and fails the test if it never is.
pub(crate) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(BREATH);
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        for place in self.running() {
            self.kill(place);
        }
    }
}
