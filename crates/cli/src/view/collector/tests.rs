//! The collector against scripted servers, for what a real set does not show.

use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use quorate_client::Client;
use quorate_connection_string::ConnectionString;
use quorate_protocol::{MemberState, ServerAddress};
use quorate_test_support::{FakeServer, primary_hello};
use tokio::time::timeout;

use super::*;
use crate::view::summary::Health;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn watch(uri: &str) -> Live {
    let string = ConnectionString::parse(uri).unwrap();
    let options = ClientOptions::from_connection_string(&string);
    let client = Client::with_options(options.clone()).unwrap();
    Live::start(client, &options, uri.to_owned()).unwrap()
}

/// Waits until the view satisfies a condition.
async fn wait_for(live: &Live, what: &str, accepts: impl Fn(&View) -> bool) {
    let mut revision = live.revision();
    let waiting = async {
        while !live.read(&accepts) {
            revision.changed().await.unwrap();
        }
    };
    let shown = || live.read(|view| view.to_json(clock::now()).to_string());
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "no {what}: {}", shown());
}

fn status(state: i32, members: &[(&ServerAddress, i32, i64)]) -> RawDocumentBuf {
    let mut list = bson::raw::RawArrayBuf::new();
    for (address, state, millis) in members {
        list.push(rawdoc! {
            "name": address.as_str(), "state": *state, "health": 1,
            "optimeDate": bson::DateTime::from_millis(*millis),
        });
    }
    rawdoc! { "myState": state, "term": 3_i64, "members": list, "ok": 1 }
}

fn settings(members: &[&ServerAddress]) -> RawDocumentBuf {
    let mut list = bson::raw::RawArrayBuf::new();
    for address in members {
        list.push(rawdoc! { "host": address.as_str(), "votes": 1, "priority": 2.5 });
    }
    rawdoc! { "config": { "version": 1, "members": list }, "ok": 1 }
}

#[tokio::test]
async fn a_member_tells_its_state_its_lag_and_its_votes() {
    let (a, b) = (FakeServer::start().await.unwrap(), FakeServer::start().await.unwrap());
    let (first, second) = (a.address().clone(), b.address().clone());
    let members = [first.clone(), second.clone()];
    a.set_hello(primary_hello("rs0", &first, &members, 1));
    // Neither primary nor secondary: a member that recovers.
    b.set_hello(rawdoc! {
        "ok": 1, "setName": "rs0", "hosts": [first.as_str(), second.as_str()],
        "me": second.as_str(), "primary": first.as_str(), "maxWireVersion": 21,
    });
    a.set_reply("replSetGetStatus", status(1, &[(&first, 1, 9_000), (&second, 3, 2_000)]));
    b.set_reply("replSetGetStatus", status(3, &[(&first, 1, 2_000), (&second, 3, 2_000)]));
    a.set_reply("replSetGetConfig", settings(&[&first, &second]));
    let live = watch(&format!("mongodb://{first}/?replicaSet=rs0"));
    wait_for(&live, "recovering member", |view| {
        view.members().iter().any(|member| {
            *member.address == second
                && member.state == Some(MemberState::Recovering)
                && member.lag == Some(Duration::from_secs(7))
                && member.votes == Some(1)
                && member.priority == Some(2.5)
        })
    })
    .await;
    let facts = live.read(|view| (view.facts(clock::now()).votes, view.facts(clock::now()).term));
    assert_eq!(facts, (Some(2), Some(3)));
}

#[tokio::test]
async fn a_server_that_refuses_questions_is_asked_for_hello_alone() {
    let server = FakeServer::start().await.unwrap();
    let me = server.address().clone();
    server.set_hello(primary_hello("rs0", &me, std::slice::from_ref(&me), 1));
    for command in ["replSetGetStatus", "replSetGetConfig", "serverStatus"] {
        let refusal = rawdoc! { "ok": 0, "code": 13, "errmsg": "not authorized" };
        server.set_reply(command, refusal);
    }
    let live = watch(&format!("mongodb://{me}/?replicaSet=rs0"));
    wait_for(&live, "round trips", |view| {
        view.members().iter().any(|member| member.round_trips.len() >= 3)
    })
    .await;
    let asked = server.command_names();
    let times = asked.iter().filter(|name| *name == "replSetGetStatus").count();
    assert_eq!(times, 1, "{asked:?}");
}

#[tokio::test]
async fn silence_has_a_reason_and_ends() {
    let server = FakeServer::start().await.unwrap();
    let me = server.address().clone();
    server.set_hello(primary_hello("rs0", &me, std::slice::from_ref(&me), 1));
    let live = watch(&format!("mongodb://{me}/?replicaSet=rs0&heartbeatFrequencyMS=500"));
    let health = |wanted| move |view: &View| view.members().iter().all(|m| m.health == wanted);
    wait_for(&live, "answer", health(Health::Up)).await;
    server.stop();
    wait_for(&live, "silence", |view| {
        let members = view.members();
        members.iter().all(|member| member.health == Health::Down && member.trouble.is_some())
            && view.facts(clock::now()).primary.is_none()
    })
    .await;
}
