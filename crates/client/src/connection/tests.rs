use std::time::Duration;

use bson::rawdoc;
use quorate_wire::{CompressorId, OpReply, ReplyFlags};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use super::*;

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1, "$db": "admin" }
}

fn reply(id: i32, to: RequestId, flags: MsgFlags, body: &RawDocument) -> Vec<u8> {
    let mut out = Vec::new();
    MsgWriter::new(&mut out, RequestId(id), to, flags, body).finish(None).unwrap();
    out
}

/// The server's end of a connection.
struct Peer {
    stream: DuplexStream,
    decoder: Decoder,
}

impl Peer {
    async fn request(&mut self) -> (RequestId, RawDocumentBuf, bool) {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let Payload::Msg(msg) = message.payload else { panic!("{message:?}") };
                return (message.header.request_id, msg.body().to_owned(), message.compressed);
            }
            assert_ne!(self.stream.read_buf(self.decoder.input()).await.unwrap(), 0);
        }
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }
}

fn pair() -> (Connection<DuplexStream>, Peer) {
    let (client, server) = tokio::io::duplex(1 << 16);
    (Connection::new(client), Peer { stream: server, decoder: Decoder::new() })
}

/// Runs one ping against a server that answers with whatever `answer` makes of the request's id.
async fn ping_answered(
    answer: impl FnOnce(RequestId) -> Vec<u8>,
) -> (Connection<DuplexStream>, Result<RawDocumentBuf, ConnectionError>) {
    let (mut connection, mut peer) = pair();
    let command = ping();
    let serve = async {
        let (id, _, _) = peer.request().await;
        peer.write(&answer(id)).await;
        drop(peer);
    };
    let (result, ()) = tokio::join!(connection.round_trip(Request::new(&command)), serve);
    let result = result.map(|reply| reply.body().to_owned());
    (connection, result)
}

#[tokio::test]
async fn a_reply_leaves_the_connection_usable() {
    let ok = rawdoc! { "ok": 1 };
    let (connection, result) = ping_answered(|id| reply(9, id, MsgFlags::NONE, &ok)).await;
    assert_eq!(result.unwrap(), ok);
    assert!(connection.is_usable());
}

#[tokio::test]
async fn what_breaks_the_protocol_breaks_the_connection() {
    let ok = rawdoc! { "ok": 1 };
    let (connection, result) =
        ping_answered(|id| reply(9, RequestId(id.0 + 1), MsgFlags::NONE, &ok)).await;
    assert!(matches!(result, Err(ConnectionError::WrongResponse { .. })), "{result:?}");
    assert!(!connection.is_usable());

    let (connection, result) = ping_answered(|id| reply(9, id, MsgFlags::MORE_TO_COME, &ok)).await;
    assert!(matches!(result, Err(ConnectionError::UnaskedStream)), "{result:?}");
    assert!(!connection.is_usable());

    let (connection, result) = ping_answered(|_| vec![0xff; 16]).await;
    assert!(matches!(result, Err(ConnectionError::Decode(_))), "{result:?}");
    assert!(!connection.is_usable());

    let (connection, result) = ping_answered(|id| {
        let mut out = Vec::new();
        OpReply::append_one(&mut out, RequestId(9), id, ReplyFlags::NONE, &ok).unwrap();
        out
    })
    .await;
    assert!(matches!(result, Err(ConnectionError::NotAReply)), "{result:?}");
    assert!(!connection.is_usable());
}

#[tokio::test]
async fn a_closed_stream_is_a_network_error_that_says_where() {
    let (_, result) = ping_answered(|_| Vec::new()).await;
    let error = result.unwrap_err();
    assert!(error.is_network() && !error.to_string().contains("inside a message"), "{error}");

    let ok = rawdoc! { "ok": 1 };
    let (connection, result) =
        ping_answered(|id| reply(9, id, MsgFlags::NONE, &ok)[..20].to_vec()).await;
    assert!(result.unwrap_err().to_string().contains("inside a message"));
    assert!(!connection.is_usable());
}

#[tokio::test]
async fn something_unasked_after_a_reply_makes_the_connection_unusable() {
    let ok = rawdoc! { "ok": 1 };
    let (connection, result) = ping_answered(|id| {
        [reply(9, id, MsgFlags::NONE, &ok), reply(10, id, MsgFlags::NONE, &ok)].concat()
    })
    .await;
    assert!(result.is_ok() && !connection.is_usable());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_never_leaves_a_usable_connection() {
    let (mut connection, mut peer) = pair();
    let command = ping();
    let waiting = timeout(Duration::from_secs(1), connection.round_trip(Request::new(&command)));
    assert!(waiting.await.is_err());
    assert!(!connection.is_usable());
    // Even after the late reply has arrived.
    let (id, _, _) = peer.request().await;
    peer.write(&reply(9, id, MsgFlags::NONE, &rawdoc! { "ok": 1 })).await;
    let again = connection.round_trip(Request::new(&command)).await;
    assert!(matches!(again, Err(ConnectionError::Unusable)));
}

#[tokio::test]
async fn exhaust_replies_chain_by_their_ids() {
    let (mut connection, mut peer) = pair();
    let command = rawdoc! { "hello": 1, "$db": "admin" };
    let request = Request { flags: MsgFlags::EXHAUST_ALLOWED, ..Request::new(&command) };
    let serve = async {
        let (id, _, _) = peer.request().await;
        let more = MsgFlags::MORE_TO_COME;
        peer.write(&reply(10, id, more, &rawdoc! { "n": 1 })).await;
        peer.write(&reply(11, RequestId(10), more, &rawdoc! { "n": 2 })).await;
        peer.write(&reply(12, RequestId(11), MsgFlags::NONE, &rawdoc! { "n": 3 })).await;
    };
    let follow = async {
        let first = connection.round_trip(request).await.unwrap();
        assert_eq!(first.body().get_i32("n").unwrap(), 1);
        assert!(connection.is_streaming() && !connection.is_usable());
        for number in 2..=3 {
            let next = connection.next_reply().await.unwrap();
            assert_eq!(next.body().get_i32("n").unwrap(), number);
        }
        assert!(connection.is_usable());
        let none = connection.next_reply().await;
        assert!(matches!(none, Err(ConnectionError::NotStreaming)));
        assert!(connection.is_usable());
    };
    tokio::join!(serve, follow);
}

#[tokio::test]
async fn a_stream_that_answers_the_wrong_reply_is_refused() {
    let (mut connection, mut peer) = pair();
    let command = rawdoc! { "hello": 1, "$db": "admin" };
    let request = Request { flags: MsgFlags::EXHAUST_ALLOWED, ..Request::new(&command) };
    let serve = async {
        let (id, _, _) = peer.request().await;
        peer.write(&reply(10, id, MsgFlags::MORE_TO_COME, &rawdoc! { "n": 1 })).await;
        // The chain goes on from 10, not from the request.
        peer.write(&reply(11, id, MsgFlags::MORE_TO_COME, &rawdoc! { "n": 2 })).await;
    };
    let follow = async {
        connection.round_trip(request).await.unwrap();
        let next = connection.next_reply().await;
        assert!(matches!(next, Err(ConnectionError::WrongResponse { .. })));
        assert!(!connection.is_usable());
    };
    tokio::join!(serve, follow);
}

#[tokio::test]
async fn an_unacknowledged_request_waits_for_nothing() {
    let (mut connection, mut peer) = pair();
    connection.send_unacknowledged(Request::new(&ping())).await.unwrap();
    assert!(connection.is_usable());
    assert_eq!(peer.request().await.1, ping());
}

#[tokio::test]
async fn a_request_that_is_too_long_leaves_the_connection_usable() {
    let (mut connection, _peer) = pair();
    connection.set_max_message_size(100);
    let long = rawdoc! { "ping": "x".repeat(200), "$db": "admin" };
    let refused = connection.round_trip(Request::new(&long)).await;
    assert!(matches!(refused, Err(ConnectionError::Encode(EncodeError::TooLong { .. }))));
    assert!(connection.is_usable());
}

/// Most connections are idle most of the time.
#[tokio::test]
async fn the_memory_of_a_large_request_is_kept_no_longer_than_the_request() {
    let (mut connection, mut peer) = pair();
    let large = rawdoc! { "ping": "x".repeat(2 * RETAINED_OUTPUT), "$db": "admin" };
    let serve = async {
        let (id, _, _) = peer.request().await;
        peer.write(&reply(1, id, MsgFlags::NONE, &rawdoc! { "ok": 1 })).await;
        assert_eq!(peer.request().await.1, large);
    };
    let send = async {
        connection.round_trip(Request::new(&large)).await.unwrap();
        assert!(connection.output.capacity() <= RETAINED_OUTPUT);
        connection.send_unacknowledged(Request::new(&large)).await.unwrap();
        assert!(connection.output.capacity() <= RETAINED_OUTPUT);
    };
    tokio::join!(serve, send);
}

/// A client that watches many servers has two such connections to each.
#[tokio::test]
async fn a_connection_that_waits_keeps_no_more_memory_than_its_replies_took() {
    let small = rawdoc! { "ok": 1 };
    let answer = |id| reply(1, id, MsgFlags::NONE, &small);
    let (mut connection, result) = ping_answered(answer).await;
    result.unwrap();
    let kept = connection.decoder.input().capacity() + connection.output.capacity();
    assert!(kept <= 1024, "{kept} bytes");
}

/// A reply is read whole, whatever its length is to the room on the stack.
#[tokio::test]
async fn replies_of_all_lengths_are_read() {
    for length in [0, READ_CHUNK - 100, READ_CHUNK, 3 * READ_CHUNK, MAX_READ_CHUNK + 1] {
        let long = rawdoc! { "ok": 1, "text": "x".repeat(length) };
        let (connection, result) = ping_answered(|id| reply(1, id, MsgFlags::NONE, &long)).await;
        assert_eq!(result.unwrap(), long);
        assert!(connection.is_usable());
    }
}

#[tokio::test]
async fn compression_spares_handshakes() {
    let (mut connection, mut peer) = pair();
    connection.set_compressor(Some(Compressor::new(CompressorId::Zstd).unwrap()));
    let hello = rawdoc! { "hello": 1, "$db": "admin" };
    connection.send_unacknowledged(Request::new(&ping())).await.unwrap();
    connection.send_unacknowledged(Request::new(&hello)).await.unwrap();
    assert!(peer.request().await.2);
    assert!(!peer.request().await.2);
}
