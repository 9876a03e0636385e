//! Sets in the background: `up --detach`, `down`, and the files between them.

use std::process::Command;

use serde_json::Value;

use crate::live::Living;
use crate::support::{Run, quorate_with};

/// A directory for the files of running sets. Whatever still runs is stopped when it is dropped.
pub(crate) struct RunDirectory(tempfile::TempDir);

impl RunDirectory {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn variables(&self) -> [(&str, &str); 1] {
        [("XDG_RUNTIME_DIR", self.0.path().to_str().unwrap())]
    }

    pub(crate) fn quorate(&self, arguments: &[&str]) -> Run {
        quorate_with(arguments, &self.variables())
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Living {
        Living::start_with(arguments, &self.variables())
    }

    /// The files of sets, by name.
    pub(crate) fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.0.path().join("quorate")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        self.quorate(&["down", "--all"]);
    }
}

fn event<'a>(events: &'a [Value], name: &str) -> &'a Value {
    events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("{events:?}"))
}

fn is_alive(pid: &Value) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_detached_set_goes_on_until_it_is_stopped() {
    let run = RunDirectory::new();
    let up = run.quorate(&["up", "--detach", "--port", "0", "--json"]);
    assert_eq!(up.code(), 0, "{}", up.stderr());
    let events = up.events();
    let pids: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "member").map(|m| &m["pid"]).collect();
    assert_eq!(pids.len(), 3, "{events:?}");
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let uri = event(&events, "ready")["uri"].as_str().unwrap();
    assert_eq!(
        event(&events, "detached")["stop"],
        format!("quorate down --port {}", uri.split(&[':', ','][..]).nth(2).unwrap())
    );
    assert_eq!(run.quorate(&["run", uri, "{ping: 1}"]).code(), 0);

    let down = run.quorate(&["down", "--json"]);
    assert_eq!(down.code(), 0, "{}", down.stderr());
    let stopped = down.events();
    let members: Vec<_> = stopped.iter().filter(|e| e["event"] == "member_stopped").collect();
    assert_eq!(members.len(), 3, "{stopped:?}");
    assert!(members.iter().all(|member| member["how"] == "stopped"), "{stopped:?}");
    assert!(!pids.iter().any(|pid| is_alive(pid)));
    assert_eq!(run.files(), Vec::<String>::new(), "nothing is left behind");

    let again = run.quorate(&["down"]);
    assert_eq!((again.code(), again.stderr().as_str()), (0, "no set of yours is running\n"));
    assert_eq!(run.quorate(&["down", "--name", "rs0"]).code(), 1, "that one was asked for");
}

#[test]
fn one_of_several_sets_is_stopped_by_its_name_or_its_data() {
    let run = RunDirectory::new();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let one = ["up", "--detach", "--members", "1", "--port", "0", "--json"];
    let first = run.quorate(&[&one[..], &["--name", "first"]].concat());
    assert_eq!(first.code(), 0, "{}", first.stderr());
    let second = run.quorate(&[&one[..], &["--data", data]].concat());
    assert_eq!(second.code(), 0, "{}", second.stderr());
    let uri = event(&second.events(), "ready")["uri"].clone();

    let unclear = run.quorate(&["down"]);
    assert_eq!(unclear.code(), 2);
    assert!(unclear.stderr().contains("first") && unclear.stderr().contains("--all"));
    let wrong = run.quorate(&["down", "--name", "third"]);
    assert_eq!(wrong.code(), 1);
    assert!(wrong.stderr().contains("these are:\n  first"), "{}", wrong.stderr());
    assert_eq!(run.quorate(&["down", "--data", data]).code(), 0);
    assert_eq!(run.quorate(&["down", "--name", "first"]).code(), 0);

    // The directory can be opened again, under the same addresses.
    let again = run.quorate(&[&one[..], &["--data", data]].concat());
    assert_eq!(again.code(), 0, "{}", again.stderr());
    assert_eq!(event(&again.events(), "ready")["uri"], uri);
}

/// A crash leaves the file behind; its processes are gone, or their numbers are those of others.
#[test]
fn a_file_that_a_crash_left_behind_does_no_harm() {
    let run = RunDirectory::new();
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let folder = run.0.path().join("quorate");
    assert_eq!(run.quorate(&["down"]).code(), 0, "which makes the directory");
    let process = serde_json::json!({"pid": bystander.id(), "birth": "before the last boot"});
    let mut member = process.clone();
    member["id"] = 0.into();
    member["host"] = "127.0.0.1:27017".into();
    let stale = serde_json::json!({
        "version": 1, "name": "rs0", "uri": "mongodb://127.0.0.1:27017/?replicaSet=rs0",
        "data": null, "keeper": process, "log": null, "members": [member],
    });
    std::fs::write(folder.join("rs0-27017.json"), stale.to_string()).unwrap();
    std::fs::write(folder.join("broken.json"), "{").unwrap();
    let down = run.quorate(&["down"]);
    assert_eq!((down.code(), down.stderr().as_str()), (0, "no set of yours is running\n"));
    assert_eq!(run.files(), ["broken.json"], "what is not understood is left alone");
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander lives");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn members_do_not_outlive_a_keeper_that_is_killed() {
    let run = RunDirectory::new();
    let up = run.quorate(&["up", "--detach", "--members", "1", "--port", "0", "--json"]);
    let events = up.events();
    let keeper = event(&events, "detached")["pid"].to_string();
    let member = &event(&events, "member")["pid"];
    assert!(Command::new("kill").args(["-9", &keeper]).status().unwrap().success());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while is_alive(member) {
        assert!(std::time::Instant::now() < deadline, "member {member} lives on");
        std::thread::yield_now();
    }
}

#[test]
fn a_set_that_cannot_start_in_the_background_says_why() {
    let run = RunDirectory::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let data = file.path().to_str().unwrap();
    let up = run.quorate(&["up", "--detach", "--members", "1", "--port", "0", "--data", data]);
    assert_eq!(up.code(), 1);
    assert!(up.stderr().contains("did not start"), "{}", up.stderr());
    // The reason is the member's own, and what the keeper says comes once.
    assert!(up.stderr().contains("cannot open the data: cannot use"), "{}", up.stderr());
    assert_eq!(up.stderr().matches("did not start").count(), 1, "{}", up.stderr());
    assert_eq!(run.files(), Vec::<String>::new());
}

/// A directory that others can write to could name a process of another user.
#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let run = RunDirectory::new();
    let folder = run.0.path().join("quorate");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let down = run.quorate(&["down"]);
    assert_eq!(down.code(), 1);
    assert!(down.stderr().contains("other users can write there"), "{}", down.stderr());
}
