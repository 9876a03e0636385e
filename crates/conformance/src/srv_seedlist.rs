//! The suite of the specification "Initial DNS Seedlist Discovery", against a zone of our own making.
//!
//! The published cases assume records in a real zone, which their README lists. Those records are
//! below, so that no name server is asked. What a case says about the servers behind the seeds
//! (`hosts`, `numHosts`, `ping`) takes a deployment under those names and is not judged here; seeds,
//! options, credentials and refusals are.

use std::collections::BTreeSet;

use quorate_connection_string::{ConnectionString, Seeds, SrvTarget};
use serde_json::{Value, json};

use crate::uri::{check_option, require};
use crate::{Result, ScenarioFile};

const ZONE: &str = "test.build.10gen.cc";

/// Service, name below the zone, port, target. The second record of `test22` is not in the README, but
/// its case expects it.
const SRV: &[(&str, &str, u16, &str)] = &[
    ("mongodb", "test1", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test1", 27018, "localhost.test.build.10gen.cc."),
    ("mongodb", "test2", 27018, "localhost.test.build.10gen.cc."),
    ("mongodb", "test2", 27019, "localhost.test.build.10gen.cc."),
    ("mongodb", "test3", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test5", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test6", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test7", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test8", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test10", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test11", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test12", 27017, "localhost.build.10gen.cc."),
    ("mongodb", "test13", 27017, "test.build.10gen.cc."),
    ("mongodb", "test14", 27017, "localhost.not-test.build.10gen.cc."),
    ("mongodb", "test15", 27017, "localhost.test.not-build.10gen.cc."),
    ("mongodb", "test16", 27017, "localhost.test.build.not-10gen.cc."),
    ("mongodb", "test17", 27017, "localhost.test.build.10gen.not-cc."),
    ("mongodb", "test18", 27017, "localhost.sub.test.build.10gen.cc."),
    ("mongodb", "test19", 27017, "localhost.evil.build.10gen.cc."),
    ("mongodb", "test19", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test20", 27017, "localhost.test.build.10gen.cc."),
    ("mongodb", "test21", 27017, "localhost.test.build.10gen.cc."),
    ("customname", "test22", 27017, "localhost.test.build.10gen.cc."),
    ("customname", "test22", 27018, "localhost.test.build.10gen.cc."),
    ("mongodb", "test23", 8000, "localhost.test.build.10gen.cc."),
    ("mongodb", "test24", 8000, "localhost.test.build.10gen.cc."),
];

/// Name below the zone, and the strings of one record.
const TXT: &[(&str, &[&str])] = &[
    ("test5", &["replicaSet=repl0&authSource=thisDB"]),
    ("test6", &["replicaSet=repl0"]),
    ("test6", &["authSource=otherDB"]),
    ("test7", &["ssl=false"]),
    ("test8", &["authSource"]),
    ("test10", &["socketTimeoutMS=500"]),
    ("test11", &["replicaS", "et=rep", "l0"]),
    ("test20", &["loadBalanced=true"]),
    ("test21", &["loadBalanced=false"]),
    ("test24", &["loadBalanced=true"]),
];

/// Judges one file, which is one case.
pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    let case = &file.json;
    let uri = case["uri"].as_str().ok_or("the case has no uri")?;
    let error_expected = case["error"].as_bool().unwrap_or(false);
    let (connection, seeds) = match (resolve(uri), error_expected) {
        (Err(_), true) => return Ok(()),
        (Ok((_, seeds)), true) => bail!("accepted with the seeds {seeds:?}"),
        (Err(error), false) => bail!("refused: {error}"),
        (Ok(resolved), false) => resolved,
    };
    if let Some(expected) = case["seeds"].as_array() {
        let expected: BTreeSet<&str> = expected.iter().filter_map(Value::as_str).collect();
        let actual: BTreeSet<&str> = seeds.iter().map(String::as_str).collect();
        if expected != actual {
            bail!("the seeds should be {expected:?}, are {actual:?}");
        }
    }
    require("numSeeds", &case["numSeeds"], &json!(seeds.len()))?;
    for (name, expected) in case["options"].as_object().into_iter().flatten() {
        match name.as_str() {
            // Said as it takes effect: implied by the scheme unless the string says otherwise.
            "ssl" | "tls" => require(name, expected, &json!(connection.tls_enabled()))?,
            _ => check_option(&connection, name, expected)?,
        }
    }
    for (name, expected) in case["parsed_options"].as_object().into_iter().flatten() {
        let credential = connection.credential();
        let actual = match name.as_str() {
            "user" => json!(credential.and_then(|credential| credential.user_name.as_deref())),
            "password" => json!(
                credential
                    .and_then(|credential| credential.password.as_ref())
                    .map(|password| password.expose())
            ),
            "auth_database" | "db" | "defaultDatabase" => json!(connection.default_database()),
            unknown => bail!("the case asks for {unknown:?}, which we do not know"),
        };
        require(name, expected, &actual)?;
    }
    Ok(())
}

fn resolve(uri: &str) -> Result<(ConnectionString, Vec<String>)> {
    let mut connection = ConnectionString::parse(uri)?;
    let Seeds::Srv(hostname) = connection.seeds().clone() else {
        bail!("the case is no mongodb+srv:// string");
    };
    let query = connection.srv_query_name().ok_or("there is nothing to ask DNS")?;
    let targets: Vec<SrvTarget> = SRV
        .iter()
        .filter(|(service, name, ..)| query == format!("_{service}._tcp.{name}.{ZONE}"))
        .map(|(_, _, port, target)| SrvTarget { host: (*target).to_owned(), port: *port })
        .collect();
    let records: Vec<Vec<&str>> = TXT
        .iter()
        .filter(|(name, _)| hostname == format!("{name}.{ZONE}"))
        .map(|(_, strings)| strings.to_vec())
        .collect();
    connection.apply_txt_records(&records)?;
    let seeds = connection.seed_list(&targets, 0)?;
    Ok((connection, seeds.iter().map(ToString::to_string).collect()))
}
