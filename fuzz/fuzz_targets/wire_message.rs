//! Any bytes as a stream of messages, in pieces: decoded or refused, never more than the limit in
//! memory; and what is decoded encodes to something that decodes the same.
#![no_main]

use bson::raw::CStr;
use libfuzzer_sys::fuzz_target;
use quorate_wire::{
    Compressor, CompressorId, Decoder, HEADER_LENGTH, MsgFlags, MsgWriter, OpMsg, Payload,
    RequestId, command_error, parse_handshake,
};

const LIMIT: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, stream)) = bytes.split_first() else { return };
    let mut decoder = Decoder::with_limit(LIMIT);
    for chunk in stream.chunks(usize::from(piece).max(1)) {
        if decoder.missing().is_err() {
            return;
        }
        decoder.feed(chunk);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => match message.payload {
                    Payload::Msg(msg) => look_at(msg),
                    Payload::Query(query) => {
                        let _ = (query.is_command(), query.database(), query.command_name());
                    }
                    Payload::Reply(reply) => {
                        assert_eq!(reply.documents().count(), reply.document_count());
                    }
                },
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    assert_eq!(decoder.next_message().unwrap_err(), error);
                    return;
                }
            }
        }
        let missing = decoder.missing().unwrap_or(1);
        assert!(missing > 0 && missing <= LIMIT);
    }
});

fn look_at(msg: OpMsg<'_>) {
    let _ = command_error(msg.body());
    let _ = parse_handshake(msg.body());
    assert_eq!(msg.sequences().count(), msg.sequence_count());
    let flags = msg.flags().without(MsgFlags::CHECKSUM_PRESENT);
    for compressor in [None, Some(CompressorId::Snappy), Some(CompressorId::Zstd)] {
        let mut compressor = compressor.and_then(|id| Compressor::new(id).ok());
        let mut out = Vec::new();
        let mut writer = MsgWriter::new(&mut out, RequestId(1), RequestId(2), flags, msg.body());
        for sequence in msg.sequences() {
            // A name read up to a zero byte holds none.
            let Ok(name) = <&CStr>::try_from(sequence.identifier()) else { return };
            writer = writer.sequence(name, sequence.documents());
        }
        let length = writer.finish(compressor.as_mut()).expect("it came in one message");
        assert!(length >= HEADER_LENGTH && length == out.len());
        let mut again = Decoder::new();
        again.feed(&out);
        let message = again.next_message().expect("we wrote it").expect("all of it");
        let Payload::Msg(read) = message.payload else { panic!("another opcode") };
        assert_eq!((read.flags(), read.body()), (flags, msg.body()));
        assert_eq!(read.sequence_count(), msg.sequence_count());
        for (one, other) in read.sequences().zip(msg.sequences()) {
            assert_eq!(one.identifier(), other.identifier());
            assert!(one.documents().eq(other.documents()));
        }
    }
}
