//! The plan of a set: the options, together with the file of the set in the data directory.
//!
//! Contradictions are errors here, before any process is started.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::access::{Access, write_secret};
use super::detach;
use super::running::RunningSet;
use crate::arguments::UpArguments;
use crate::remedy;
use crate::screen::{Failure, Result, Screen};
use crate::words::{Foreign, listed};

/// The name of a set that was given none.
const DEFAULT_NAME: &str = "rs0";

/// The most voting members of a set.
const MAX_VOTES: usize = 7;

/// How many ports are tried for one member.
const PORTS_TRIED: usize = 200;

/// Where a data directory keeps what the set must have again: its name and its ports are part of its
/// configuration.
const SET_FILE: &str = "set.json";

/// Where earlier versions kept the ports.
const PORTS_FILE: &str = "ports";

/// A set that can be started.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    /// How many members hold data; the others are arbiters.
    pub(super) members: u8,
    /// A port for each member; 0 for any.
    pub(super) ports: Vec<u16>,
    pub(super) data: Option<PathBuf>,
    pub(super) election_timeout: Option<Duration>,
    /// How many bytes of history each member keeps, if not the usual.
    pub(super) oplog_size: Option<u64>,
    pub(super) access: Access,
}

/// The file of the set in a data directory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remembered {
    /// Unknown if an earlier version wrote the directory.
    name: Option<String>,
    ports: Vec<u16>,
    password: Option<String>,
    tls: bool,
}

impl Plan {
    /// Decides what to start. Fails if the options contradict each other, the data, or what runs
    /// already.
    pub(super) fn make(arguments: &UpArguments, screen: &mut Screen) -> Result<Self> {
        check_votes(arguments)?;
        if let Some(data) = &arguments.data {
            check_unused(data)?;
        }
        let remembered = match &arguments.data {
            Some(data) => Remembered::read(data)?,
            None => None,
        };
        let ports = match (&remembered, &arguments.data) {
            (Some(remembered), Some(data)) => {
                remembered.check(arguments, data)?;
                check_free(&remembered.ports, data)?;
                remembered.ports.clone()
            }
            _ => free_ports(arguments, screen)?,
        };
        let remembered = remembered.unwrap_or_default();
        // A set that asked for logins, or was encrypted, stays so.
        let access = Access::prepare(
            arguments.data.as_deref(),
            arguments.auth || remembered.password.is_some(),
            arguments.tls || remembered.tls,
            remembered.password,
        )?;
        let named = arguments.name.clone().or(remembered.name);
        Ok(Self {
            name: named.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            members: arguments.members,
            ports,
            data: arguments.data.clone(),
            election_timeout: arguments.election_timeout,
            oplog_size: arguments.oplog_size,
            access,
        })
    }

    /// Writes down what the set must have again, once its members listen on these ports.
    pub(super) fn remember(&self, ports: Vec<u16>) -> Result<()> {
        let Some(directory) = &self.data else { return Ok(()) };
        let remembered = Remembered {
            name: Some(self.name.clone()),
            ports,
            password: self.access.password().map(str::to_owned),
            tls: self.access.is_encrypted(),
        };
        let path = directory.join(SET_FILE);
        write_secret(&path, &format!("{:#}\n", remembered.to_json())).map_err(|error| {
            problem!("cannot write into {}: {error}; give another --data", directory.display())
        })?;
        let _ = std::fs::remove_file(directory.join(PORTS_FILE));
        Ok(())
    }
}

impl Remembered {
    fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(SET_FILE);
        if let Ok(text) = std::fs::read_to_string(&path) {
            return match Self::parse(&text) {
                Some(remembered) => Ok(Some(remembered)),
                None => Err(damaged(&path)),
            };
        }
        let path = directory.join(PORTS_FILE);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        let ports: Option<Vec<u16>> =
            text.split_whitespace().map(|port| port.parse().ok()).collect();
        let ports = ports.ok_or_else(|| damaged(&path))?;
        Ok(Some(Self { ports, ..Self::default() }))
    }

    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let ports = value["ports"].as_array()?.iter();
        Some(Self {
            name: Some(value["name"].as_str()?.to_owned()),
            ports: ports.map(|port| u16::try_from(port.as_u64()?).ok()).collect::<Option<_>>()?,
            password: value["password"].as_str().map(str::to_owned),
            tls: value["tls"].as_bool().unwrap_or_default(),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "ports": self.ports,
            "password": self.password,
            "tls": self.tls,
        })
    }

    /// Refuses options that are not those of the set in the directory.
    fn check(&self, arguments: &UpArguments, directory: &Path) -> Result<()> {
        let shown = directory.display();
        if let (Some(name), Some(wanted)) = (&self.name, &arguments.name)
            && name != wanted
        {
            return Err(misuse!(
                "{shown} holds the set {}, not {}; leave out --name, or give another --data",
                Foreign(name),
                Foreign(wanted)
            ));
        }
        let count = arguments.processes();
        refuse_if!(self.ports.len() != count => misuse,
            "{shown} holds a set of {} members, not of {count}; give the same --members and \
             --arbiters, or another --data", self.ports.len());
        let first = self.ports.first().copied().unwrap_or_default();
        match arguments.port {
            Some(port) if port != 0 && port != first => Err(misuse!(
                "{shown} holds a set whose members listen on {}, and know each other by that, not \
                 on {port}; leave out --port, or give another --data",
                listed(&self.ports)
            )),
            _ => Ok(()),
        }
    }
}

fn damaged(path: &Path) -> Failure {
    problem!("{} is damaged; restore it from a copy, or give another --data", path.display())
}

fn check_votes(arguments: &UpArguments) -> Result<()> {
    match arguments.processes() {
        count if count > MAX_VOTES => Err(misuse!(
            "a set has at most {MAX_VOTES} votes, and this one would have {count}; give fewer \
             --members, or no --arbiters"
        )),
        _ => Ok(()),
    }
}

/// Refuses a directory whose set runs already.
fn check_unused(directory: &Path) -> Result<()> {
    let here = detach::absolute(&Some(directory.to_owned()));
    let running = RunningSet::all()?.into_iter().find(|set| set.data == here);
    match running {
        None => Ok(()),
        Some(set) => Err(problem!(
            "{} is in use: its set {} runs already, at {}; use that one, or stop it with: {}",
            directory.display(),
            set.name,
            listed(set.hosts()),
            remedy::stop_set(directory)
        )),
    }
}

/// Refuses to start a set whose ports another process took: its members know each other by them.
fn check_free(ports: &[u16], directory: &Path) -> Result<()> {
    let taken = ports.iter().find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, **port)).is_err());
    match taken {
        None => Ok(()),
        Some(port) => Err(problem!(
            "port {port} is taken, and the set in {} needs it, because its members know each other \
             by their ports; see which process has it: ss -ltnp | grep :{port}",
            directory.display()
        )),
    }
}

/// The ports of the members: the wanted ones, or the next that are free.
fn free_ports(arguments: &UpArguments, screen: &mut Screen) -> Result<Vec<u16>> {
    let wanted = arguments.processes();
    let first = arguments.port.unwrap_or(quorate_protocol::DEFAULT_PORT);
    if first == 0 {
        // Any port: the system chooses, and the member says which.
        return Ok(vec![0; wanted]);
    }
    let mut ports = Vec::with_capacity(wanted);
    let mut taken = Vec::new();
    let mut next = first;
    while ports.len() < wanted {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, next)) {
            Ok(_) => ports.push(next),
            Err(_) => taken.push(next),
        }
        if ports.len() == wanted {
            break;
        }
        next = next.checked_add(1).filter(|_| taken.len() < PORTS_TRIED).ok_or_else(|| {
            problem!("no {wanted} free ports from {first} on; give another --port, 0 for any")
        })?;
    }
    if let (Some(first), Some(last)) = (taken.first(), taken.last()) {
        let range = if first == last { format!("{first}") } else { format!("{first} to {last}") };
        super::tell_taken(&range, screen)?;
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered() -> Remembered {
        Remembered {
            name: Some("rs0".to_owned()),
            ports: vec![30001, 30002, 30003],
            password: Some("secret".to_owned()),
            tls: true,
        }
    }

    #[test]
    fn a_set_is_remembered_as_it_was() {
        let remembered = remembered();
        let text = remembered.to_json().to_string();
        assert_eq!(Remembered::parse(&text), Some(remembered));
        assert_eq!(Remembered::parse("{}"), None);
        assert_eq!(Remembered::parse("30001 30002"), None);
    }

    #[test]
    fn the_ports_of_an_earlier_version_are_read() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Remembered::read(directory.path()).unwrap(), None);
        std::fs::write(directory.path().join(PORTS_FILE), "30001 30002").unwrap();
        let found = Remembered::read(directory.path()).unwrap().unwrap();
        assert_eq!((found.name, found.ports), (None, vec![30001, 30002]));
        std::fs::write(directory.path().join(PORTS_FILE), "30001 x").unwrap();
        assert!(Remembered::read(directory.path()).is_err());
    }

    #[test]
    fn other_options_than_those_of_the_data_are_refused() {
        let given = |change: fn(&mut UpArguments)| {
            let mut arguments = UpArguments { port: None, ..UpArguments::default() };
            change(&mut arguments);
            remembered().check(&arguments, Path::new("set")).map_err(|e| e.to_string())
        };
        assert_eq!(given(|_| {}), Ok(()));
        assert_eq!(given(|arguments| arguments.port = Some(30001)), Ok(()));
        assert_eq!(given(|arguments| arguments.port = Some(0)), Ok(()));
        let name = given(|arguments| arguments.name = Some("other".to_owned())).unwrap_err();
        assert!(name.contains("holds the set rs0, not other"), "{name}");
        let port = given(|arguments| arguments.port = Some(27017)).unwrap_err();
        assert!(port.contains("30001, 30002 and 30003") && port.contains("--port"), "{port}");
        let members = given(|arguments| arguments.members = 5).unwrap_err();
        assert!(members.contains("3 members, not of 5"), "{members}");
    }

    #[test]
    fn a_set_has_at_most_seven_votes() {
        let with = |members, arbiters| {
            check_votes(&UpArguments { members, arbiters, ..UpArguments::default() })
        };
        assert!(with(7, 0).is_ok() && with(6, 1).is_ok());
        assert!(with(7, 1).is_err());
    }
}
