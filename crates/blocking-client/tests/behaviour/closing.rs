//! The end of a client: every socket closed, nothing sent, the closing events told.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bson::rawdoc;
use quorate_blocking_client::{Client, ClientOptions, DiscoveryEvent};

use crate::fake::FakeSet;
use crate::{Bench, TestClock};

#[test]
fn closing_says_nothing_to_servers_and_everything_to_the_listener() {
    let set = FakeSet::start(3);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.journal.take();
    bench.take_events();

    let events = bench.events;
    bench.client.close();
    for member in &set.members {
        member.wait_for_ended_connections(1);
    }
    assert!(set.journal.take().is_empty());
    let events = events.take();
    let closed = events.iter().filter(|event| event.starts_with("server closed")).count();
    assert_eq!(closed, 3, "{events:?}");
    assert_eq!(events.last().unwrap(), "topology closed");
}

#[test]
fn dropping_closes_every_socket() {
    let set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    drop(bench);
    for member in &set.members {
        member.wait_for_ended_connections(1);
    }
}

#[test]
fn a_member_that_leaves_the_set_loses_its_connection() {
    let set = FakeSet::start(2);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    set.members[0].set_hello(rawdoc! {
        "ok": 1, "helloOk": true, "isWritablePrimary": true, "setName": "rs", "setVersion": 2,
        "electionId": bson::oid::ObjectId::from_bytes([9; 12]),
        "hosts": [set.members[0].address().as_str()], "minWireVersion": 0, "maxWireVersion": 21,
    });
    bench.clock.advance(crate::seconds(60));
    bench.client.ping(None).unwrap();
    assert_eq!(bench.client.connection_count(), 1);
    set.members[1].wait_for_ended_connections(1);
}

/// An arbiter is watched but never used, so it has a connection and no pool.
#[test]
fn an_arbiter_that_leaves_the_set_loses_its_connection() {
    let set = FakeSet::start(2);
    let (primary, arbiter) = (&set.members[0], &set.members[1]);
    let hello = |with_arbiter: bool| {
        let mut hello = rawdoc! {
            "ok": 1, "helloOk": true, "isWritablePrimary": true, "setName": "rs", "setVersion": 1,
            "electionId": bson::oid::ObjectId::from_bytes([9; 12]),
            "hosts": [primary.address().as_str()], "minWireVersion": 0, "maxWireVersion": 21,
        };
        if with_arbiter {
            let mut arbiters = bson::raw::RawArrayBuf::new();
            arbiters.push(arbiter.address().as_str());
            hello.append(bson::raw::cstr!("arbiters"), arbiters);
        }
        hello
    };
    primary.set_hello(hello(true));
    arbiter.set_hello(rawdoc! {
        "ok": 1, "helloOk": true, "arbiterOnly": true, "setName": "rs", "setVersion": 1,
        "hosts": [primary.address().as_str()], "arbiters": [arbiter.address().as_str()],
        "minWireVersion": 0, "maxWireVersion": 21,
    });
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    assert_eq!(bench.client.connection_count(), 2);
    primary.set_hello(hello(false));
    bench.clock.advance(crate::seconds(60));
    bench.client.ping(None).unwrap();
    assert_eq!(bench.client.connection_count(), 1);
    arbiter.wait_for_ended_connections(1);
}

fn client_that_panics_once(uri: &str, at: &'static str) -> Client {
    let options = ClientOptions::from_connection_string(&uri.parse().unwrap()).unwrap();
    let mut panicked = false;
    let listener = Box::new(move |event: &DiscoveryEvent| {
        if !panicked && event.to_string().starts_with(at) {
            panicked = true;
            panic!("on purpose");
        }
    });
    Client::with(options, Box::new(TestClock::default()), listener).unwrap()
}

/// A listener that panics must not end the process, nor leave sockets open.
#[test]
fn sockets_are_closed_when_the_listener_panics() {
    let set = FakeSet::start(1);
    let uri = set.uri(&[0], "");
    let outcome = catch_unwind(|| {
        let mut client = client_that_panics_once(&uri, "heartbeat succeeded");
        let _ = client.ping(None);
    });
    assert!(outcome.is_err());
    set.members[0].wait_for_ended_connections(1);
}

/// Wherever it panics, nothing that the core wants done is lost.
#[test]
fn a_client_goes_on_after_its_listener_panicked() {
    for at in ["heartbeat started", "heartbeat succeeded", "server changed", "server opening"] {
        let set = FakeSet::start(2);
        let uri = set.uri(&[0], "");
        let Ok(mut client) = catch_unwind(|| client_that_panics_once(&uri, at)) else {
            assert_eq!(at, "server opening", "the seed's, in the constructor");
            continue;
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| client.ping(None)));
        assert!(outcome.is_err(), "{at}");
        client.ping(None).unwrap();
        assert_eq!(client.connection_count(), 2, "{at}");
        client.close();
        for member in &set.members {
            member.wait_for_ended_connections(1);
        }
    }
}

#[test]
fn a_client_can_be_dropped_after_its_listener_panicked() {
    let set = FakeSet::start(2);
    let uri = set.uri(&[0], "");
    let mut client = client_that_panics_once(&uri, "heartbeat succeeded");
    assert!(catch_unwind(AssertUnwindSafe(|| client.ping(None))).is_err());
    set.journal.take();
    drop(client);
    set.members[0].wait_for_ended_connections(1);
    assert!(set.journal.take().is_empty(), "the check of the other member is not made any more");
}

#[cfg(unix)]
#[test]
fn unix_sockets_are_spoken_to_as_well() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    let path = std::env::temp_dir().join(format!("quorate-{}-27017.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut decoder = quorate_wire::Decoder::new();
        let mut chunk = [0; 4096];
        let mut names = Vec::new();
        loop {
            match stream.read(&mut chunk).unwrap() {
                0 => return names,
                count => decoder.feed(&chunk[..count]),
            }
            while let Some(message) = decoder.next_message().unwrap() {
                let id = message.header.request_id;
                let quorate_wire::Payload::Msg(request) = message.payload else { panic!() };
                names.push(request.command_name().unwrap().to_owned());
                let reply = rawdoc! {
                    "ok": 1, "isWritablePrimary": true, "minWireVersion": 0, "maxWireVersion": 21,
                };
                let mut bytes = Vec::new();
                let flags = quorate_wire::MsgFlags::NONE;
                quorate_wire::MsgWriter::new(&mut bytes, id, id, flags, &reply)
                    .finish(None)
                    .unwrap();
                stream.write_all(&bytes).unwrap();
            }
        }
    });
    let host = path.to_str().unwrap().replace('/', "%2F");
    let mut bench = Bench::new(&format!("mongodb://{host}/"));
    bench.client.ping(None).unwrap();
    drop(bench);
    assert_eq!(server.join().unwrap(), ["isMaster", "ping"]);
    std::fs::remove_file(&path).unwrap();
}
