//! Servers that do not keep to the protocol: a clear error about that server, and nothing else.

use std::time::Instant;

use bson::rawdoc;
use quorate_blocking_client::{Client, OperationError};
use quorate_protocol::{ReadPreference, ReadPreferenceMode};
use quorate_server_discovery::ServerType;
use quorate_wire::{MsgFlags, MsgWriter, RequestId};

use crate::Bench;
use crate::fake::{FakeSet, PATIENCE, Reaction};

/// Sixteen bytes that announce a message, and no more.
fn header(length: i32) -> Vec<u8> {
    [length, 1, 1, 2013].iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Everything that a server may send instead of a reply, and what is said about it.
fn misdeeds() -> Vec<(Reaction, &'static str)> {
    let ok = || rawdoc! { "ok": 1, "padding": "something to cut in two" };
    vec![
        (
            Reaction::Bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
            "does not keep to the protocol",
        ),
        (Reaction::Bytes(header(i32::MAX)), "announced a message of 2147483647 bytes"),
        (Reaction::Bytes(header(-1)), "announced a message of -1 bytes"),
        (Reaction::Bytes(header(16)), "ends inside"),
        (Reaction::Half(ok()), "in the middle of a message"),
        (Reaction::HangUp, "the server closed the connection"),
        (Reaction::WrongResponseTo(ok()), "it answered request"),
        (Reaction::MoreToCome(ok()), "further replies unasked"),
        (Reaction::OldReply(ok()), "OP_REPLY instead of OP_MSG"),
        (Reaction::Reply(rawdoc! { "ok": "yes" }), "the field ok should be"),
    ]
}

#[test]
fn an_operation_ends_in_a_clear_error_and_others_go_on() {
    let set = FakeSet::start(2);
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    for (misdeed, words) in misdeeds() {
        let mut bench = Bench::new(&set.uri(&[0], ""));
        bench.client.ping(None).unwrap();
        set.members[0].next("count", misdeed.clone());
        let command = rawdoc! { "count": "c" };
        let error = bench.client.run_command("d", &command, None).unwrap_err();
        assert!(matches!(error, OperationError::Connection { .. }), "{misdeed:?}: {error}");
        assert!(error.to_string().contains(words), "{misdeed:?}: {error}");
        assert_eq!(error.server(), Some(set.members[0].address()));
        assert_eq!(bench.client.connection_count(), 1, "{misdeed:?}: the connection is closed");

        bench.client.ping(Some(&secondary)).unwrap();
        // And it is given another chance.
        bench.client.ping(None).unwrap();
    }
}

#[test]
fn a_check_ends_in_a_clear_error_and_others_go_on() {
    let set = FakeSet::start(2);
    let nearest = ReadPreference::new(ReadPreferenceMode::Nearest);
    for (misdeed, words) in misdeeds() {
        set.members[1].always("hello", misdeed.clone());
        let mut bench = Bench::new(&set.uri(&[0], ""));
        bench.client.ping(Some(&nearest)).unwrap();
        let server = bench.client.topology().server(set.members[1].address()).unwrap();
        assert_eq!(server.server_type(), ServerType::Unknown, "{misdeed:?}");
        let error = server.error().unwrap().to_string();
        assert!(error.contains(words), "{misdeed:?}: {error}");
        assert_eq!(bench.client.connection_count(), 1);
    }
}

#[test]
fn a_hello_that_is_no_hello_is_told() {
    let set = FakeSet::start(2);
    for (reply, words) in [
        (rawdoc! { "ok": 1, "setName": 5 }, "the field setName should be"),
        (rawdoc! { "ok": 1, "hosts": ["a:0"], "setName": "rs" }, "an address in the field hosts"),
        (rawdoc! { "ok": 0, "code": 13, "errmsg": "not allowed" }, "not allowed (code 13)"),
    ] {
        set.members[1].always("hello", Reaction::Reply(reply));
        let mut bench = Bench::new(&set.uri(&[0], ""));
        bench.client.ping(None).unwrap();
        let server = bench.client.topology().server(set.members[1].address()).unwrap();
        let error = server.error().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_stalled_handshake_ends_with_the_connect_timeout() {
    let set = FakeSet::start(2);
    set.members[1].always("hello", Reaction::Stall);
    let mut bench = Bench::new(&set.uri(&[0], "connectTimeoutMS=50"));
    bench.client.ping(None).unwrap();
    let server = bench.client.topology().server(set.members[1].address()).unwrap();
    assert_eq!(server.error().unwrap().to_string(), "no reply within 50 ms");
    set.members[1].wait_for_ended_connections(1);
}

/// A limit for each read would never end here: some byte always comes in time.
#[test]
fn a_reply_that_drips_ends_with_the_timeout_too() {
    let set = FakeSet::start(1);
    let long = rawdoc! { "ok": 1, "padding": "x".repeat(100_000) };
    set.members[0].next("count", Reaction::Drip(long));
    let mut client = Client::for_uri(&set.uri(&[0], "socketTimeoutMS=100")).unwrap();
    let started = Instant::now();
    let error = client.run_command("d", &rawdoc! { "count": "c" }, None).unwrap_err();
    assert!(error.to_string().contains("no reply within 100 ms"), "{error}");
    assert!(started.elapsed() < PATIENCE);
}

/// What follows a reply would be taken for the reply to the next request.
#[test]
fn bytes_after_a_reply_are_an_error() {
    let set = FakeSet::start(1);
    let mut bench = Bench::new(&set.uri(&[0], ""));
    bench.client.ping(None).unwrap();
    // The third request on this connection, after the handshake and the ping.
    let mut bytes = Vec::new();
    for _ in 0..2 {
        let (flags, id) = (MsgFlags::NONE, RequestId(3));
        MsgWriter::new(&mut bytes, id, id, flags, &rawdoc! { "ok": 1 }).finish(None).unwrap();
    }
    set.members[0].next("count", Reaction::Bytes(bytes));
    let error = bench.client.run_command("d", &rawdoc! { "count": "c" }, None).unwrap_err();
    assert!(error.to_string().contains("further replies unasked"), "{error}");
    bench.client.ping(None).unwrap();
    assert_eq!(set.members[0].accepted(), 2);
}
