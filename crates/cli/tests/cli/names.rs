//! Members under the names that people give them: not the address that a process is bound to.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::live::Living;
use crate::support::quorate;

const PATIENCE: Duration = Duration::from_secs(90);

/// A member on every address of this machine.
fn member(data: &std::path::Path, port: &str) -> (Living, String) {
    let mut member = Living::start(&[
        "serve",
        "--json",
        "--insecure",
        "--replset",
        "rs0",
        "--bind",
        "0.0.0.0",
        "--port",
        port,
        "--data",
        data.to_str().unwrap(),
    ]);
    let ready = member.wait_for("ready", |_| true);
    let port = ready["uri"].as_str().unwrap().rsplit(':').next().unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    (member, port)
}

fn status(uri: &str) -> Value {
    quorate(&["status", "--json", uri]).events().remove(0)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never saw that {what}");
    }
}

/// Bound to every address, and listed by ones that no process was told of. Each finds itself by
/// calling the names, when the set is made, when another tells it of the set, and after a restart.
#[test]
fn members_find_themselves_by_calling_the_names_of_the_set() {
    let data = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, first) = member(data[0].path(), "0");
    let (other, second) = member(data[1].path(), "0");
    let names = [format!("127.0.0.2:{first}"), format!("127.0.0.3:{second}")];
    let direct = format!("mongodb://127.0.0.1:{first}/?directConnection=true");
    let initiate = format!(
        "{{replSetInitiate: {{_id: 'rs0', members: [{{_id: 0, host: '{}'}}, {{_id: 1, host: '{}'}}]}}}}",
        names[0], names[1]
    );
    let made = quorate(&["run", &direct, &initiate]);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    let uri = format!("mongodb://{},{}/?replicaSet=rs0", names[0], names[1]);
    until("both members are well", || status(&uri)["healthy"] == true);
    let insert = "{insert: 'c', documents: [{_id: 1}], writeConcern: {w: 2, wtimeout: 60000}}";
    let written = quorate(&["run", "--database", "shop", &uri, insert]);
    assert_eq!(written.code(), 0, "{}", written.stderr());
    assert_eq!((one.terminate(), other.terminate()), (Some(0), Some(0)));
    let (one, _) = member(data[0].path(), &first);
    let (other, _) = member(data[1].path(), &second);
    until("both members are well again", || status(&uri)["healthy"] == true);
    let found = quorate(&["run", "--database", "shop", &uri, "{count: 'c'}"]);
    assert!(found.stdout().contains("\"n\": 1"), "{}", found.stdout());
    assert_eq!((one.terminate(), other.terminate()), (Some(0), Some(0)));
}

/// A set of others is told from a set of one's own.
#[test]
fn a_set_that_does_not_list_the_member_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let (one, first) = member(data.path(), "0");
    let other = Living::start(&["serve", "--json", "--memory", "--port", "0"]);
    let mut other = other;
    let ready = other.wait_for("ready", |_| true);
    let foreign = ready["uri"].as_str().unwrap().trim_start_matches("mongodb://").to_owned();
    let foreign: String = foreign.chars().take_while(|c| !"/?".contains(*c)).collect();
    let direct = format!("mongodb://127.0.0.1:{first}/?directConnection=true");
    let initiate =
        format!("{{replSetInitiate: {{_id: 'rs0', members: [{{_id: 0, host: '{foreign}'}}]}}}}");
    let made = quorate(&["run", &direct, &initiate]);
    assert_eq!(made.code(), 1);
    assert!(made.stderr().contains("none of the members is this one"), "{}", made.stderr());
    drop((one, other));
}

/// The file that people have keeps working, and what it says in vain is listed.
#[test]
fn a_file_of_mongod_is_served_from() {
    let directory = tempfile::tempdir().unwrap();
    let (file, data) = (directory.path().join("mongod.conf"), directory.path().join("data"));
    let text = format!(
        "storage:\n  dbPath: {}\nnet:\n  port: 0\nreplication:\n  replSetName: rs7\nsystemLog:\n  path: {}\n",
        data.display(),
        directory.path().join("mongod.log").display()
    );
    std::fs::write(&file, text).unwrap();
    let mut member = Living::start(&["serve", "--json", "--config", file.to_str().unwrap()]);
    let ready = member.wait_for("ready", |_| true);
    assert!(ready["uri"].as_str().unwrap().contains("replicaSet=rs7"), "{ready}");
    assert!(data.is_dir() && directory.path().join("mongod.log").is_file());
    assert_eq!(member.terminate(), Some(0));
    std::fs::write(&file, "security:\n  enableEncryption: true\n").unwrap();
    let refused = quorate(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr().contains("protects the data"), "{}", refused.stderr());
    std::fs::write(&file, "systemLog:\n  quiet: true\n").unwrap();
    let told = quorate(&["serve", "--config", file.to_str().unwrap()]);
    assert!(told.stderr().contains("left out: systemLog.quiet"), "{}", told.stderr());
}
