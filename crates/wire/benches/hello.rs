//! How long it takes to read the hello reply of a member of three, and to frame it.

use bson::raw::RawDocumentBuf;
use bson::rawdoc;
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId, parse_hello};

fn main() {
    divan::main();
}

fn reply() -> RawDocumentBuf {
    let process = bson::oid::ObjectId::from_bytes([1; 12]);
    let timestamp = bson::Timestamp { time: 1_700_000_000, increment: 3 };
    rawdoc! {
        "topologyVersion": { "processId": process, "counter": 6_i64 },
        "hosts": ["db0.example.com:27017", "db1.example.com:27017", "db2.example.com:27017"],
        "setName": "rs0",
        "setVersion": 1,
        "isWritablePrimary": true,
        "secondary": false,
        "primary": "db0.example.com:27017",
        "me": "db0.example.com:27017",
        "electionId": process,
        "lastWrite": {
            "opTime": { "ts": timestamp, "t": 4_i64 },
            "lastWriteDate": bson::DateTime::from_millis(1_700_000_000_000),
            "majorityOpTime": { "ts": timestamp, "t": 4_i64 },
            "majorityWriteDate": bson::DateTime::from_millis(1_700_000_000_000),
        },
        "maxBsonObjectSize": 16_777_216,
        "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": 100_000,
        "localTime": bson::DateTime::from_millis(1_700_000_000_000),
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": 12,
        "minWireVersion": 0,
        "maxWireVersion": 21,
        "readOnly": false,
        "ok": 1.0,
    }
}

#[divan::bench]
fn parse(bencher: divan::Bencher<'_, '_>) {
    let reply = reply();
    bencher.bench(|| parse_hello(divan::black_box(&reply)));
}

#[divan::bench]
fn decode_and_parse(bencher: divan::Bencher<'_, '_>) {
    let mut bytes = Vec::new();
    MsgWriter::new(&mut bytes, RequestId(1), RequestId(2), MsgFlags::NONE, &reply())
        .finish(None)
        .expect("the reply is short");
    let mut decoder = Decoder::new();
    bencher.bench_local(|| {
        decoder.feed(&bytes);
        match decoder.next_message() {
            Ok(Some(message)) => match message.payload {
                Payload::Msg(msg) => parse_hello(msg.body()).is_ok(),
                _ => false,
            },
            _ => false,
        }
    });
}

#[divan::bench]
fn encode(bencher: divan::Bencher<'_, '_>) {
    let reply = reply();
    let mut out = Vec::new();
    bencher.bench_local(|| {
        out.clear();
        MsgWriter::new(&mut out, RequestId(1), RequestId(2), MsgFlags::NONE, &reply)
            .finish(None)
            .is_ok()
    });
}
