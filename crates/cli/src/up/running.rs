//! The sets that this user runs, each in a file: how other commands know a set as ours.
//!
//! The files are below `$XDG_RUNTIME_DIR`, or below the directory for temporary files, in a directory
//! that only this user may enter. They are written by `up` and removed when the set ends; what a
//! crash leaves behind is recognised by the birth of its processes and removed by the next reader.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::process::ProcessId;
use crate::remedy;
use crate::screen::{Failure, Result};
use crate::whole_file::{self, PUBLIC};

/// The version of the files. Files of other versions are left alone.
const VERSION: u64 = 1;

/// How the name of the socket of a set ends, which is otherwise that of its file.
const CONTROL: &str = "sock";

/// How much of the name of a set the names of its files have. Its first port tells sets apart.
const NAME_LENGTH: usize = 24;

/// How many files are read.
pub(super) const MAX_FILES: usize = 1000;

/// A member of a running set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningMember {
    /// Its number in the set.
    pub(crate) id: u8,
    /// Where it listens.
    pub(crate) host: String,
    pub(crate) process: ProcessId,
}

/// A set that this user runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningSet {
    pub(crate) name: String,
    /// The connection string.
    pub(crate) uri: String,
    /// Where its data is; in memory otherwise.
    pub(crate) data: Option<PathBuf>,
    /// The `quorate up` that looks after the members.
    pub(crate) keeper: ProcessId,
    /// Where a keeper in the background tells what happens.
    pub(crate) log: Option<PathBuf>,
    pub(crate) members: Vec<RunningMember>,
}

impl RunningSet {
    /// Writes the file of this set anew.
    pub(super) fn save(&self) -> Result<()> {
        let path = self.path(&directory()?);
        let text = format!("{:#}\n", self.to_json());
        whole_file::replace(&path, &text, PUBLIC).map_err(|error| {
            problem!(
                "cannot write {}: {error}; make room, or set XDG_RUNTIME_DIR to another directory",
                path.display()
            )
        })
    }

    /// Removes the file of this set. One that is gone already is no problem.
    pub(crate) fn forget(&self) {
        if let Ok(directory) = directory() {
            let _ = fs::remove_file(self.path(&directory));
        }
    }

    /// Every set that runs. Files of sets that do not run any more are removed.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let directory = directory()?;
        let files = fs::read_dir(&directory).map_err(|error| unusable(&directory, &error))?;
        let mut sets = Vec::new();
        for file in files.take(MAX_FILES).filter_map(Result::ok) {
            let path = file.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Some(set) = fs::read_to_string(&path).ok().and_then(|text| Self::parse(&text))
            else {
                continue;
            };
            match set.is_alive() {
                true => sets.push(set),
                false => {
                    let _ = fs::remove_file(&path);
                    let _ = fs::remove_file(path.with_extension(CONTROL));
                }
            }
        }
        sets.sort_by(|left, right| (&left.name, &left.uri).cmp(&(&right.name, &right.uri)));
        Ok(sets)
    }

    /// Where its members listen.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.host.as_str())
    }

    /// The port of its first member, which no other set has.
    pub(crate) fn port(&self) -> Option<u16> {
        self.members.first()?.host.rsplit(':').next()?.parse().ok()
    }

    /// The socket on which its keeper takes orders.
    pub(crate) fn control_path(&self) -> Result<PathBuf> {
        Ok(self.path(&directory()?).with_extension(CONTROL))
    }

    /// The command that stops this set and no other.
    pub(crate) fn stop_command(&self) -> String {
        match (&self.data, self.port()) {
            (Some(data), _) => remedy::stop_set(data),
            (None, Some(port)) => format!("quorate down --port {port}"),
            (None, None) => format!("quorate down --name {}", self.name),
        }
    }

    /// The connection string of one member alone, with the login and the certificates of the set.
    pub(crate) fn member_uri(&self, host: &str) -> String {
        remedy::member_uri(&self.uri, host)
    }

    /// The set that has a member here which runs.
    pub(crate) fn with_member(host: &str) -> Result<Option<Self>> {
        Ok(Self::all()?.into_iter().find(|set| set.member(host).is_some()))
    }

    /// The member here, if its process runs.
    pub(crate) fn member(&self, host: &str) -> Option<&RunningMember> {
        self.members.iter().find(|member| member.host == host && member.process.is_alive())
    }

    /// Whether anything of it runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.keeper.is_alive() || self.members.iter().any(|member| member.process.is_alive())
    }

    fn path(&self, directory: &Path) -> PathBuf {
        let safe = |character: char| match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
            _ => '_',
        };
        // A longer name would be no name of a file, and the path of a socket is shorter still.
        let name: String = self.name.chars().take(NAME_LENGTH).map(safe).collect();
        let first = self.members.first().and_then(|member| member.host.rsplit(':').next());
        directory.join(format!("{name}-{}.json", first.unwrap_or_default()))
    }

    fn to_json(&self) -> Value {
        let members = self.members.iter().map(|member| {
            let mut fields = process_to_json(&member.process);
            fields["id"] = member.id.into();
            fields["host"] = member.host.as_str().into();
            fields
        });
        json!({
            "version": VERSION,
            "name": self.name,
            "uri": self.uri,
            "data": self.data.as_ref().map(|data| data.display().to_string()),
            "keeper": process_to_json(&self.keeper),
            "log": self.log.as_ref().map(|log| log.display().to_string()),
            "members": members.collect::<Value>(),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        if value["version"] != VERSION {
            return None;
        }
        let members = value["members"].as_array()?.iter().map(|member| {
            Some(RunningMember {
                id: u8::try_from(member["id"].as_u64()?).ok()?,
                host: member["host"].as_str()?.to_owned(),
                process: parse_process(member)?,
            })
        });
        Some(Self {
            name: value["name"].as_str()?.to_owned(),
            uri: value["uri"].as_str()?.to_owned(),
            data: value["data"].as_str().map(PathBuf::from),
            keeper: parse_process(&value["keeper"])?,
            log: value["log"].as_str().map(PathBuf::from),
            members: members.collect::<Option<_>>()?,
        })
    }
}

/// The port of the first host of a connection string.
pub(super) fn first_port(uri: &str) -> Option<u16> {
    let hosts = uri.strip_prefix("mongodb://")?.split('/').next()?;
    let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
    hosts.split(',').next()?.rsplit(':').next()?.parse().ok()
}

fn process_to_json(process: &ProcessId) -> Value {
    json!({"pid": process.pid(), "birth": process.birth()})
}

fn parse_process(value: &Value) -> Option<ProcessId> {
    let pid = u32::try_from(value["pid"].as_u64()?).ok()?;
    Some(ProcessId::born(pid, value["birth"].as_str()?.to_owned()))
}

/// The directory of the files, made if it is not there. Other users must not be able to write into
/// it: the files name the processes that are signalled.
pub(super) fn directory() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(run) if !run.is_empty() => PathBuf::from(run).join("quorate"),
        _ => std::env::temp_dir().join(format!("quorate-{user}")),
    };
    match DirBuilder::new().mode(0o700).recursive(true).create(&directory) {
        Ok(()) => {}
        Err(error) => return Err(unusable(&directory, &error)),
    }
    let found = fs::symlink_metadata(&directory).map_err(|error| unusable(&directory, &error))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        let why = io::Error::other("other users can write there");
        return Err(unusable(&directory, &why));
    }
    Ok(directory)
}

fn unusable(directory: &Path, error: &io::Error) -> Failure {
    problem!(
        "cannot use {}: {error}; set XDG_RUNTIME_DIR to a directory of your own",
        directory.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> RunningSet {
        let me = ProcessId::of(std::process::id()).unwrap();
        let gone = ProcessId::born(me.pid(), "long ago".to_owned());
        let member = |id, process: &ProcessId| RunningMember {
            id,
            host: format!("127.0.0.1:{}", 27017 + u16::from(id)),
            process: process.clone(),
        };
        RunningSet {
            name: "a/b".to_owned(),
            uri: "mongodb://127.0.0.1:27017/?replicaSet=a%2Fb".to_owned(),
            data: Some(PathBuf::from("/data")),
            keeper: gone.clone(),
            log: None,
            members: vec![member(0, &gone), member(1, &me)],
        }
    }

    #[test]
    fn a_set_is_read_as_it_was_written() {
        let set = set();
        assert_eq!(RunningSet::parse(&set.to_json().to_string()), Some(set.clone()));
        let mut newer = set.to_json();
        newer["version"] = (VERSION + 1).into();
        assert_eq!(RunningSet::parse(&newer.to_string()), None);
        assert_eq!(set.path(Path::new("/run")), Path::new("/run/a_b-27017.json"));
    }

    #[test]
    fn a_member_alone_has_the_login_and_the_certificates_of_its_set() {
        let mut set = set();
        assert_eq!(set.member_uri("h:1"), "mongodb://h:1/?directConnection=true");
        assert_eq!(set.port(), Some(27017));
        set.uri = "mongodb://admin:pw@a:1,b:2/?replicaSet=r&authSource=admin&tls=true".to_owned();
        assert_eq!(
            set.member_uri("b:2"),
            "mongodb://admin:pw@b:2/?directConnection=true&authSource=admin&tls=true"
        );
        assert_eq!(first_port(&set.uri), Some(1));
        assert_eq!(set.stop_command(), "quorate down --data /data");
        let spaced = RunningSet { data: Some("/my data".into()), ..set.clone() };
        assert_eq!(spaced.stop_command(), "quorate down --data '/my data'");
        set.data = None;
        assert_eq!(set.stop_command(), "quorate down --port 27017");
    }

    #[test]
    fn a_member_is_ours_only_while_its_process_runs() {
        let mut set = set();
        assert!(set.is_alive());
        assert_eq!(set.member("127.0.0.1:27017"), None, "that process is gone");
        assert_eq!(set.member("127.0.0.1:27018").map(|member| member.id), Some(1));
        set.members.pop();
        assert!(!set.is_alive());
    }
}
