//! Whole messages through the encoder and the decoder, and what the decoder refuses.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use proptest::prelude::*;
use quorate_wire::{
    Compressor, CompressorId, DecodeError, Decoder, EncodeError, HEADER_LENGTH,
    MAX_SEQUENCE_DOCUMENTS, MsgFlags, MsgWriter, OpCode, OpMsg, OpQuery, OpReply, Payload,
    QueryFlags, ReplyFlags, RequestId,
};

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1, "$db": "admin" }
}

fn encode(flags: MsgFlags, body: &RawDocument, documents: &[RawDocumentBuf]) -> Vec<u8> {
    let mut out = Vec::new();
    let writer = MsgWriter::new(&mut out, RequestId(3), RequestId(9), flags, body);
    let writer = if documents.is_empty() {
        writer
    } else {
        writer.sequence(cstr!("documents"), documents.iter().map(AsRef::as_ref))
    };
    let length = writer.finish(None).unwrap();
    assert_eq!(length, out.len());
    out
}

fn with_msg<T>(bytes: &[u8], check: impl FnOnce(OpMsg<'_>) -> T) -> Result<T, DecodeError> {
    let mut decoder = Decoder::new();
    decoder.feed(bytes);
    let message = decoder.next_message()?.expect("the whole message was fed");
    assert_eq!(message.header.request_id, RequestId(3));
    assert_eq!(message.header.response_to, RequestId(9));
    match message.payload {
        Payload::Msg(msg) => Ok(check(msg)),
        other => panic!("expected an OP_MSG, got {other:?}"),
    }
}

fn error_of(bytes: &[u8]) -> DecodeError {
    with_msg(bytes, |_| ()).unwrap_err()
}

/// A message with these flags and section bytes.
fn raw_msg(flags: u32, sections: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let length = HEADER_LENGTH + 4 + sections.iter().map(|section| section.len()).sum::<usize>();
    for number in [i32::try_from(length).unwrap(), 3, 9, 2013] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&flags.to_le_bytes());
    sections.iter().for_each(|section| out.extend_from_slice(section));
    out
}

fn body_section(body: &RawDocument) -> Vec<u8> {
    [&[0], body.as_bytes()].concat()
}

fn sequence_section(name: &str, documents: &[u8]) -> Vec<u8> {
    let length = i32::try_from(4 + name.len() + 1 + documents.len()).unwrap();
    [&[1], &length.to_le_bytes()[..], name.as_bytes(), &[0], documents].concat()
}

#[test]
fn body_and_sequences_come_back_as_sent() {
    let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2, "a": "b" }];
    let body = rawdoc! { "insert": "c", "$db": "d" };
    let bytes = encode(MsgFlags::EXHAUST_ALLOWED, &body, &documents);
    with_msg(&bytes, |msg| {
        assert_eq!(msg.flags(), MsgFlags::EXHAUST_ALLOWED);
        assert_eq!(msg.body(), &*body);
        assert_eq!(msg.command_name(), Some("insert"));
        let sequence = msg.sequence("documents").unwrap();
        assert!(sequence.documents().eq(documents.iter().map(AsRef::as_ref)));
        assert!(msg.sequence("updates").is_none());
        assert_eq!(msg.sequence_count(), 1);
    })
    .unwrap();
}

#[test]
fn a_sequence_may_come_before_the_body() {
    let document = rawdoc! { "_id": 1 };
    let bytes =
        raw_msg(0, &[&sequence_section("documents", document.as_bytes()), &body_section(&ping())]);
    let found = with_msg(&bytes, |msg| {
        (msg.command_name() == Some("ping"), msg.sequence("documents").unwrap().documents().count())
    });
    assert_eq!(found, Ok((true, 1)));
}

#[test]
fn checksums_are_written_and_verified() {
    let flags = MsgFlags::CHECKSUM_PRESENT;
    let mut bytes = encode(flags, &ping(), &[rawdoc! { "_id": 1 }]);
    assert!(with_msg(&bytes, |msg| msg.flags().contains(flags)).unwrap());
    for position in [HEADER_LENGTH + 12, bytes.len() - 1] {
        bytes[position] ^= 1;
        assert!(matches!(error_of(&bytes), DecodeError::ChecksumMismatch { .. }), "{position}");
        bytes[position] ^= 1;
    }
    assert!(with_msg(&bytes, |_| ()).is_ok());
}

#[test]
fn unknown_required_flags_are_refused_and_optional_ones_ignored() {
    let body = body_section(&ping());
    assert_eq!(
        error_of(&raw_msg(1 << 5, &[&body])),
        DecodeError::UnknownRequiredFlags { bits: 1 << 5 }
    );
    assert!(with_msg(&raw_msg(1 << 20, &[&body]), |_| ()).is_ok());
}

#[test]
fn broken_sections_are_refused() {
    let body = body_section(&ping());
    let sequence = sequence_section("documents", rawdoc! { "a": 1 }.as_bytes());
    assert_eq!(error_of(&raw_msg(0, &[])), DecodeError::BodyCount(0));
    assert_eq!(error_of(&raw_msg(0, &[&sequence])), DecodeError::BodyCount(0));
    assert_eq!(error_of(&raw_msg(0, &[&body, &body])), DecodeError::BodyCount(2));
    assert_eq!(error_of(&raw_msg(0, &[&body, &[2]])), DecodeError::UnknownSectionKind(2));
    assert_eq!(
        error_of(&raw_msg(0, &[&body, &sequence, &sequence])),
        DecodeError::RepeatedSequence("documents".into())
    );
    assert!(matches!(error_of(&raw_msg(0, &[&body[..7]])), DecodeError::Truncated { .. }));
    assert!(matches!(
        error_of(&raw_msg(0, &[&body, &[1, 3, 0, 0, 0]])),
        DecodeError::BadLength { length: 3, .. }
    ));
    assert!(matches!(
        error_of(&raw_msg(0, &[&body, &[1, 255, 255, 255, 255]])),
        DecodeError::BadLength { length: -1, .. }
    ));
    let unnamed = [&[1][..], &8_i32.to_le_bytes(), b"abcd"].concat();
    assert!(matches!(error_of(&raw_msg(0, &[&body, &unnamed])), DecodeError::Truncated { .. }));
    let many: Vec<_> = (0..17).map(|number| sequence_section(&number.to_string(), &[])).collect();
    let mut sections = vec![&body[..]];
    sections.extend(many.iter().map(Vec::as_slice));
    assert_eq!(error_of(&raw_msg(0, &sections)), DecodeError::TooManySequences { limit: 16 });
    assert!(with_msg(&raw_msg(0, &sections[..17]), |_| ()).is_ok());
    // Too short for the checksum it announces.
    assert!(with_msg(&raw_msg(1, &[]), |_| ()).is_err());
}

#[test]
fn documents_of_sequences_are_counted_and_not_without_end() {
    let body = body_section(&ping());
    let of = |count: usize| sequence_section("documents", &rawdoc! {}.as_bytes().repeat(count));
    let (some, other) = (of(70_000), sequence_section("others", rawdoc! { "a": 1 }.as_bytes()));
    let message = raw_msg(0, &[&some, &body, &other]);
    assert_eq!(with_msg(&message, |msg| msg.document_count()), Ok(70_001));
    let limit = MAX_SEQUENCE_DOCUMENTS;
    assert_eq!(with_msg(&raw_msg(0, &[&body, &of(limit)]), |msg| msg.document_count()), Ok(limit));
    let refused = error_of(&raw_msg(0, &[&body, &of(limit + 1)]));
    assert_eq!(refused, DecodeError::TooManyDocuments { limit });
}

#[test]
fn lengths_are_refused_before_the_rest_arrives() {
    for (length, expected) in [
        (48_000_001, DecodeError::TooLong { length: 48_000_001, limit: 48_000_000 }),
        (15, DecodeError::TooShort { length: 15 }),
        (-1, DecodeError::TooShort { length: -1 }),
    ] {
        let mut decoder = Decoder::new();
        let mut header = raw_msg(0, &[]);
        header[..4].copy_from_slice(&i32::to_le_bytes(length));
        decoder.feed(&header[..HEADER_LENGTH]);
        assert_eq!(decoder.missing(), Err(expected.clone()));
        assert_eq!(decoder.next_message().unwrap_err(), expected);
    }
}

#[test]
fn an_error_is_final() {
    let mut decoder = Decoder::new();
    decoder.feed(&raw_msg(0, &[]));
    decoder.feed(&encode(MsgFlags::NONE, &ping(), &[]));
    for _ in 0..2 {
        assert_eq!(decoder.next_message().unwrap_err(), DecodeError::BodyCount(0));
    }
    assert_eq!(decoder.missing(), Err(DecodeError::BodyCount(0)));
}

#[test]
fn other_opcodes_are_refused_by_name() {
    let mut bytes = raw_msg(0, &[&body_section(&ping())]);
    bytes[12..16].copy_from_slice(&2001_i32.to_le_bytes());
    assert_eq!(error_of(&bytes), DecodeError::UnsupportedOpCode(OpCode(2001)));
    assert!(error_of(&bytes).to_string().contains("opcode 2001"));
}

/// A client that begins with TLS sends one record and waits: read as a header, it announces a length
/// that is allowed. It is refused before the rest of that length comes, which never does.
#[test]
fn a_client_that_begins_with_tls_is_refused_at_once() {
    let mut hello = vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    hello.resize(517, 0xa5);
    let mut decoder = Decoder::new();
    decoder.feed(&hello);
    assert!(matches!(decoder.missing(), Err(DecodeError::UnsupportedOpCode(_))));
    assert!(matches!(decoder.next_message(), Err(DecodeError::UnsupportedOpCode(_))));
}

#[test]
fn the_legacy_handshake_goes_both_ways() {
    let mut bytes = Vec::new();
    let command = rawdoc! { "isMaster": 1, "helloOk": true };
    OpQuery::append_command(
        &mut bytes,
        RequestId(1),
        QueryFlags::SECONDARY_OK,
        cstr!("admin.$cmd"),
        &command,
    )
    .unwrap();
    let reply = rawdoc! { "ismaster": true, "ok": 1.0 };
    OpReply::append_one(&mut bytes, RequestId(2), RequestId(1), ReplyFlags::AWAIT_CAPABLE, &reply)
        .unwrap();

    let mut decoder = Decoder::new();
    decoder.feed(&bytes);
    let message = decoder.next_message().unwrap().unwrap();
    let Payload::Query(query) = message.payload else { panic!("{message:?}") };
    assert!(query.is_command() && query.flags.contains(QueryFlags::SECONDARY_OK));
    assert_eq!((query.database(), query.command_name()), ("admin", Some("isMaster")));
    assert_eq!((query.number_to_skip, query.number_to_return), (0, -1));
    assert_eq!(query.query, &*command);

    let message = decoder.next_message().unwrap().unwrap();
    assert_eq!(message.header.response_to, RequestId(1));
    let Payload::Reply(found) = message.payload else { panic!("{message:?}") };
    assert!(!found.flags.contains(ReplyFlags::QUERY_FAILURE));
    assert_eq!((found.cursor_id, found.document_count()), (0, 1));
    assert_eq!(found.documents().next(), Some(&*reply));
    assert!(decoder.next_message().unwrap().is_none());
}

#[test]
fn a_miscounted_reply_is_refused() {
    let mut bytes = Vec::new();
    let document = rawdoc! { "ok": 1 };
    OpReply::append_one(&mut bytes, RequestId(2), RequestId(1), ReplyFlags::NONE, &document)
        .unwrap();
    bytes[32..36].copy_from_slice(&2_i32.to_le_bytes());
    let mut decoder = Decoder::new();
    decoder.feed(&bytes);
    assert_eq!(
        decoder.next_message().unwrap_err(),
        DecodeError::DocumentCount { announced: 2, found: 1 }
    );
}

#[test]
fn secrets_go_uncompressed_and_the_rest_compressed() {
    let mut compressor = Compressor::new(CompressorId::Snappy).unwrap();
    for (command, compressed) in [
        (rawdoc! { "saslStart": 1, "payload": "p".repeat(100) }, false),
        (rawdoc! { "hello": 1 }, false),
        (rawdoc! { "find": "c", "comment": "p".repeat(100) }, true),
    ] {
        for flags in [MsgFlags::NONE, MsgFlags::CHECKSUM_PRESENT] {
            let mut out = Vec::new();
            MsgWriter::new(&mut out, RequestId(3), RequestId(9), flags, &command)
                .finish(Some(&mut compressor))
                .unwrap();
            let mut decoder = Decoder::new();
            decoder.feed(&out);
            let message = decoder.next_message().unwrap().unwrap();
            assert_eq!(message.compressed, compressed);
            assert_eq!(message.header.op_code, OpCode::MSG);
            let Payload::Msg(msg) = message.payload else { panic!("{message:?}") };
            assert_eq!(msg.body(), &*command);
        }
    }
}

#[test]
fn a_refused_message_leaves_the_buffer_alone() {
    let mut out = b"before".to_vec();
    let document = rawdoc! { "a": "x".repeat(100) };
    let error = MsgWriter::new(&mut out, RequestId(1), RequestId(0), MsgFlags::NONE, &ping())
        .limit(500)
        .sequence(cstr!("documents"), std::iter::repeat_n(&*document, 1000))
        .finish(None)
        .unwrap_err();
    assert!(matches!(error, EncodeError::TooLong { limit: 500, .. }), "{error}");
    assert_eq!(out, b"before");

    let error = MsgWriter::new(&mut out, RequestId(1), RequestId(0), MsgFlags::NONE, &ping())
        .sequence(cstr!("documents"), [&*document])
        .sequence(cstr!("documents"), [&*document])
        .finish(None)
        .unwrap_err();
    assert_eq!(error, EncodeError::RepeatedSequence("documents".into()));
    assert_eq!(out, b"before");

    drop(MsgWriter::new(&mut out, RequestId(1), RequestId(0), MsgFlags::NONE, &ping()));
    assert_eq!(out, b"before");
}

fn any_document() -> impl Strategy<Value = RawDocumentBuf> {
    proptest::collection::vec(("[a-z]{1,8}", any::<i64>(), ".{0,20}"), 0..5).prop_map(|fields| {
        let mut document = RawDocumentBuf::new();
        for (key, number, text) in fields {
            let key = bson::raw::CString::try_from(key).unwrap();
            document.append(&key, number);
            document.append(&key, text);
        }
        document
    })
}

proptest! {
    #[test]
    fn messages_round_trip_in_pieces_of_any_size(
        bodies in proptest::collection::vec(any_document(), 1..4),
        documents in proptest::collection::vec(any_document(), 0..4),
        checksum in any::<bool>(),
        compressor in 0_usize..5,
        piece in 1_usize..64,
    ) {
        let flags = if checksum { MsgFlags::CHECKSUM_PRESENT } else { MsgFlags::NONE };
        let ids =
            [CompressorId::Noop, CompressorId::Snappy, CompressorId::Zlib, CompressorId::Zstd];
        let mut compressor = ids.get(compressor).map(|id| Compressor::new(*id).unwrap());
        let mut bytes = Vec::new();
        for body in &bodies {
            MsgWriter::new(&mut bytes, RequestId(3), RequestId(9), flags, body)
                .sequence(cstr!("documents"), documents.iter().map(AsRef::as_ref))
                .finish(compressor.as_mut())
                .unwrap();
        }
        let mut decoder = Decoder::new();
        let mut received = 0;
        for piece in bytes.chunks(piece) {
            prop_assert!(decoder.missing().unwrap() > 0);
            decoder.feed(piece);
            while let Some(message) = decoder.next_message().unwrap() {
                let Payload::Msg(msg) = message.payload else { panic!("{message:?}") };
                prop_assert_eq!(msg.body(), &*bodies[received]);
                let sequence = msg.sequence("documents").unwrap();
                prop_assert!(sequence.documents().eq(documents.iter().map(AsRef::as_ref)));
                received += 1;
            }
        }
        prop_assert_eq!(received, bodies.len());
        prop_assert!(!decoder.has_input());
    }

    #[test]
    fn any_bytes_give_messages_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut decoder = Decoder::new();
        decoder.feed(&bytes);
        while let Ok(Some(_)) = decoder.next_message() {}
    }

    /// Random bytes seldom have a plausible length; damaged messages do.
    #[test]
    fn damaged_messages_give_messages_or_an_error(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        op_code in prop::sample::select(vec![1, 2004, 2012, 2013]),
        compressor in 0_u8..5,
    ) {
        let mut bytes = encode(MsgFlags::NONE, &ping(), &[rawdoc! { "a": 1 }, rawdoc! {}]);
        if op_code == 2012 {
            bytes[16..20].copy_from_slice(&2013_i32.to_le_bytes());
            bytes[20..24].copy_from_slice(&50_i32.to_le_bytes());
            bytes[24] = compressor;
        }
        bytes[12..16].copy_from_slice(&i32::to_le_bytes(op_code));
        for (position, value) in damage {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        let mut decoder = Decoder::with_limit(10_000);
        decoder.feed(&bytes);
        while let Ok(Some(message)) = decoder.next_message() {
            if let Payload::Msg(msg) = message.payload {
                msg.sequences().for_each(|sequence| sequence.documents().for_each(drop));
            }
        }
    }
}
