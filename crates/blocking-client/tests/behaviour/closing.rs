//! The end of a client: every socket closed, nothing sent, the closing events told.

use bson::rawdoc;

use crate::Bench;
use crate::fake::{FakeSet, Reaction};

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

/// A listener that panics must not turn into an abort, nor leave sockets open.
#[test]
fn sockets_are_closed_when_the_application_panics() {
    let set = FakeSet::start(1);
    let uri = set.uri(&[0], "");
    set.members[0].always("count", Reaction::HangUp);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let options =
            quorate_blocking_client::ClientOptions::from_connection_string(&uri.parse().unwrap());
        let clock = Box::new(crate::TestClock::default());
        let listener = Box::new(|event: &quorate_blocking_client::DiscoveryEvent| {
            assert!(!event.to_string().starts_with("heartbeat succeeded"), "on purpose");
        });
        let mut client =
            quorate_blocking_client::Client::with(options.unwrap(), clock, listener).unwrap();
        let _ = client.ping(None);
    }));
    assert!(outcome.is_err());
    set.members[0].wait_for_ended_connections(1);
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
