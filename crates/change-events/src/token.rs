//! Resume tokens: where an event stands, as bytes that sort as the events do.
//!
//! The layout is the one that tokens printed in MongoDB's manual have, so that tools which decode them
//! go on working: the time, the version, the kind, the place within a transaction, whether it follows
//! an invalidate, the collection's UUID, what the event is about, the fragment of a split event, and
//! an end mark. Shown as `{_data: "<hexadecimal>"}`.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, Timestamp};

use crate::error::{EventError, Result};
use crate::keystring::{Reader, write, write_number};

/// The version that is written.
const VERSION: i64 = 2;

/// What the last byte of a token is.
const END: u8 = 0x04;

/// The number that marks an event's token; a high-water mark has 0 and sorts before.
const EVENT: i64 = 128;

/// The longest token, in hexadecimal digits: an `_id` is below 16 MiB.
const MAX_DIGITS: usize = 40 * 1024 * 1024;

/// What a token stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenKind {
    /// A time that was scanned, before every event of that time.
    HighWaterMark,
    /// An event.
    Event,
}

/// A place in a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeToken {
    /// The time of the entry.
    pub cluster_time: Timestamp,
    /// The version of the layout: 1 or 2.
    pub version: i32,
    /// What it stands for.
    pub kind: TokenKind,
    /// The place of the operation within its transaction; 0 otherwise.
    pub transaction_index: i64,
    /// Whether it is that of an invalidate, which comes after the event that caused it.
    pub after_invalidate: bool,
    /// The collection.
    pub uuid: Option<[u8; 16]>,
    /// What the event is about: its type and the document's key.
    pub identifier: Option<Document>,
    /// Which fragment of a split event it is, from 0.
    pub fragment: Option<i64>,
}

impl ResumeToken {
    /// Everything before this time has been seen.
    pub fn high_water_mark(cluster_time: Timestamp) -> Self {
        Self {
            cluster_time,
            version: VERSION as i32,
            kind: TokenKind::HighWaterMark,
            transaction_index: 0,
            after_invalidate: false,
            uuid: None,
            identifier: None,
            fragment: None,
        }
    }

    /// The token of an event.
    pub fn event(
        cluster_time: Timestamp,
        transaction_index: i64,
        uuid: Option<[u8; 16]>,
        identifier: Document,
    ) -> Self {
        Self {
            kind: TokenKind::Event,
            transaction_index,
            uuid,
            identifier: Some(identifier),
            ..Self::high_water_mark(cluster_time)
        }
    }

    /// The token of the invalidate that follows this event.
    #[must_use]
    pub fn invalidating(&self) -> Self {
        Self { after_invalidate: true, ..self.clone() }
    }

    /// The bytes, in whose order events come.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        write(&mut bytes, &Bson::Timestamp(self.cluster_time));
        write_number(&mut bytes, self.version.into());
        write_number(
            &mut bytes,
            match self.kind {
                TokenKind::HighWaterMark => 0,
                TokenKind::Event => EVENT,
            },
        );
        write_number(&mut bytes, self.transaction_index);
        write(&mut bytes, &Bson::Boolean(self.after_invalidate));
        match self.uuid {
            Some(uuid) => write(
                &mut bytes,
                &Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: uuid.to_vec() }),
            ),
            None => write(&mut bytes, &Bson::Null),
        }
        if let Some(identifier) = &self.identifier {
            write(&mut bytes, &Bson::Document(identifier.clone()));
        }
        if let Some(fragment) = self.fragment {
            write_number(&mut bytes, fragment);
        }
        bytes.push(END);
        bytes
    }

    /// The hexadecimal digits of the bytes, which sort as the bytes do.
    pub fn to_hex(&self) -> String {
        hex::encode_upper(self.to_bytes())
    }

    /// As clients see it: `{_data: "…"}`.
    pub fn to_document(&self) -> Document {
        bson::doc! { "_data": self.to_hex() }
    }

    /// Reads what a client passes as `resumeAfter` or `startAfter`.
    ///
    /// # Errors
    ///
    /// 260 if it is no token of a known layout.
    pub fn from_document(document: &Document) -> Result<Self> {
        match document.get("_data") {
            Some(Bson::String(digits)) => Self::from_hex(digits),
            Some(_) => Err(EventError::token("its field _data is no string")),
            None => Err(EventError::token("it has no field _data")),
        }
    }

    /// Reads hexadecimal digits.
    ///
    /// # Errors
    ///
    /// 260 if it is no token of a known layout.
    pub fn from_hex(digits: &str) -> Result<Self> {
        if digits.len() % 2 == 1 || digits.is_empty() || digits.len() > MAX_DIGITS {
            return Err(EventError::token("it is no hexadecimal string of whole bytes"));
        }
        let bytes = hex::decode(digits);
        let bytes = bytes.map_err(|_| EventError::token("it is no hexadecimal string"))?;
        Self::from_bytes(&bytes)
    }

    /// Reads the bytes.
    ///
    /// # Errors
    ///
    /// 260 if it is no token of a known layout.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let unknown = |what: &str| EventError::token(format!("{what} is of another maker"));
        let mut reader = Reader::new(bytes);
        let Bson::Timestamp(cluster_time) = reader.value()? else {
            return Err(EventError::token("it does not begin with a time"));
        };
        let version = match reader.value()? {
            Bson::Int32(version @ 1..=2) => version,
            _ => return Err(unknown("its version")),
        };
        let kind = match reader.value()? {
            Bson::Int32(0) => TokenKind::HighWaterMark,
            Bson::Int32(128) => TokenKind::Event,
            _ => return Err(unknown("its kind")),
        };
        let transaction_index = match reader.value()? {
            Bson::Int32(index) if index >= 0 => index.into(),
            Bson::Int64(index) if index >= 0 => index,
            _ => return Err(unknown("its place in a transaction")),
        };
        let Bson::Boolean(after_invalidate) = reader.value()? else {
            return Err(unknown("its mark of an invalidate"));
        };
        let uuid = match reader.value()? {
            Bson::Null => None,
            Bson::Binary(binary) => {
                Some(binary.bytes.try_into().map_err(|_| unknown("its collection"))?)
            }
            _ => return Err(unknown("its collection")),
        };
        let identifier = match reader.rest() {
            [END] => None,
            _ => match reader.value()? {
                Bson::Document(identifier) => Some(identifier),
                _ => return Err(unknown("its event")),
            },
        };
        let fragment = match reader.rest() {
            [END] => None,
            _ => match reader.value()? {
                Bson::Int32(fragment) => Some(fragment.into()),
                _ => return Err(unknown("its fragment")),
            },
        };
        if reader.rest() != [END] {
            return Err(EventError::token("something follows its end"));
        }
        Ok(Self {
            cluster_time,
            version,
            kind,
            transaction_index,
            after_invalidate,
            uuid,
            identifier,
            fragment,
        })
    }

    /// What the token says, in words and values.
    pub fn explain(&self) -> Explained {
        let identifier = self.identifier.as_ref();
        let operation = match (identifier, self.version) {
            (Some(identifier), 2) => identifier.get_str("operationType").ok().map(str::to_owned),
            _ => None,
        };
        let document_key = match (identifier, self.version) {
            (Some(identifier), 2) => identifier.get_document("documentKey").ok().cloned(),
            (identifier, _) => identifier.cloned(),
        };
        Explained { token: self.clone(), operation, document_key }
    }
}

/// A token for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The token.
    pub token: ResumeToken,
    /// The type of the event, if the token says so.
    pub operation: Option<String>,
    /// The key of the document, if the event is about one.
    pub document_key: Option<Document>,
}

impl std::fmt::Display for Explained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Timestamp { time, increment } = self.token.cluster_time;
        let date = bson::DateTime::from_millis(i64::from(time) * 1000);
        let date = date.try_to_rfc3339_string().unwrap_or_else(|_| format!("second {time}"));
        match self.token.kind {
            TokenKind::HighWaterMark => {
                return write!(
                    f,
                    "a high-water mark of {date}, entry {increment}: everything before it was seen"
                );
            }
            TokenKind::Event if self.token.after_invalidate => {
                write!(f, "the invalidate after an event of {date}, entry {increment}")?;
            }
            TokenKind::Event => write!(f, "an event of {date}, entry {increment}")?,
        }
        if let Some(operation) = &self.operation {
            write!(f, ", {operation}")?;
        }
        if self.token.transaction_index > 0 {
            write!(f, ", operation {} of its transaction", self.token.transaction_index + 1)?;
        }
        if let Some(fragment) = self.token.fragment {
            write!(f, ", fragment {}", fragment + 1)?;
        }
        if let Some(key) = &self.document_key {
            write!(f, ", document {key}")?;
        }
        if let Some(uuid) = self.token.uuid {
            write!(f, ", collection {}", bson::Uuid::from_bytes(uuid))?;
        }
        if self.token.after_invalidate {
            write!(f, "; go on with startAfter, not with resumeAfter")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn a_printed_high_water_mark_is_read_and_written_alike() {
        let printed = "8263515EAC000000022B0429296E1404";
        let token = ResumeToken::from_hex(printed).unwrap();
        let time = Timestamp { time: 0x6351_5EAC, increment: 2 };
        assert_eq!(token, ResumeToken::high_water_mark(time));
        assert_eq!(token.to_hex(), printed);
        let words = "a high-water mark of 2022-10-20T14:43:56Z, entry 2";
        assert!(token.explain().to_string().starts_with(words), "{}", token.explain());
    }

    #[test]
    fn an_event_token_has_the_layout_of_printed_ones() {
        let id = bson::oid::ObjectId::parse_str("635160000000000000000001").unwrap();
        let identifier = doc! { "operationType": "insert", "documentKey": { "_id": id } };
        let time = Timestamp { time: 0x6351_5EAC, increment: 1 };
        let token = ResumeToken::event(time, 0, Some([0xAB; 16]), identifier);
        let expected = [
            "8263515EAC00000001",
            "2B04",
            "2C0100",
            "29",
            "6E",
            "5A1004ABABABABABABABABABABABABABABABAB",
            "463C6F7065726174696F6E54797065003C696E7365727400",
            "46646F63756D656E744B65790046645F6964006463516000000000000000000100",
            "0004",
        ];
        assert_eq!(token.to_hex(), expected.concat());
        assert_eq!(ResumeToken::from_hex(&token.to_hex()), Ok(token.clone()));
        let words = token.explain().to_string();
        assert!(words.contains("insert") && words.contains("abababab-abab"), "{words}");
    }

    #[test]
    fn foreign_and_damaged_tokens_are_refused() {
        let good = ResumeToken::high_water_mark(Timestamp { time: 1, increment: 1 }).to_hex();
        for bad in ["", "82", "zz", "8", "00", &good[..good.len() - 2], &format!("{good}04")] {
            assert_eq!(ResumeToken::from_hex(bad).unwrap_err().code, 260, "{bad}");
        }
        let other_version = good.replacen("2B04", "2B06", 1);
        assert_eq!(ResumeToken::from_hex(&other_version).unwrap_err().code, 260);
        assert_eq!(ResumeToken::from_document(&doc! { "_data": 1 }).unwrap_err().code, 260);
        assert_eq!(ResumeToken::from_document(&doc! {}).unwrap_err().code, 260);
    }

    /// BSON of documents in each other, each in a field of this type.
    fn nested(kind: u8, depth: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        // From the outside in: a length, a type and an empty name; from the inside out: an end for each.
        for level in (1..=depth).rev() {
            bytes.extend((5 + 7 * level as u32).to_le_bytes());
            bytes.extend([kind, 0]);
        }
        bytes.extend(5_u32.to_le_bytes());
        bytes.extend(vec![0; depth + 1]);
        bytes
    }

    fn holding(bytes: &[u8]) -> String {
        let digits = hex::encode_upper(bytes);
        format!("E6{:08X}{digits}", bytes.len())
    }

    /// A client may send any bytes as a token.
    #[test]
    fn a_token_that_holds_documents_in_each_other_is_refused() {
        for kind in [0x03, 0x04] {
            for depth in [1, 20_000] {
                let digits = holding(&nested(kind, depth));
                assert_eq!(ResumeToken::from_hex(&digits).unwrap_err().code, 260);
            }
        }
        // Code with a scope: its length, the code, and documents in each other.
        let scope = nested(0x03, 20_000);
        let mut bytes = Vec::from((scope.len() as u32 + 16).to_le_bytes());
        bytes.extend([0x0F, 0]);
        bytes.extend((scope.len() as u32 + 9).to_le_bytes());
        bytes.extend([1, 0, 0, 0, 0]);
        bytes.extend(scope);
        bytes.push(0);
        let refused = ResumeToken::from_hex(&holding(&bytes)).unwrap_err();
        assert_eq!(refused.code, 260);
        assert!(refused.message.contains("deeply"), "{refused}");
    }

    /// Whatever an `_id` may be, a stream goes on after its event.
    #[test]
    fn values_without_a_layout_of_their_own_are_read_back() {
        let scope = doc! { "x": { "y": [1, 2] } };
        let values = [
            Bson::Double(1.5),
            Bson::JavaScriptCode("f()".to_owned()),
            Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope {
                code: "f()".to_owned(),
                scope,
            }),
            Bson::Symbol("s".to_owned()),
            Bson::MinKey,
            Bson::MaxKey,
            Bson::Decimal128("1.25".parse().unwrap()),
            Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: vec![1; 300] }),
        ];
        for value in values {
            let identifier = doc! { "documentKey": { "_id": value } };
            let time = Timestamp { time: 1, increment: 1 };
            let token = ResumeToken::event(time, 0, None, identifier);
            assert_eq!(ResumeToken::from_hex(&token.to_hex()), Ok(token));
        }
    }

    #[test]
    fn a_mark_sorts_before_the_events_of_its_time_and_they_by_their_place() {
        let time = |increment| Timestamp { time: 9, increment };
        let event = |increment, index| {
            let identifier = doc! { "operationType": "insert", "documentKey": { "_id": 5 } };
            ResumeToken::event(time(increment), index, Some([1; 16]), identifier)
        };
        let ordered = [
            ResumeToken::high_water_mark(time(1)),
            event(1, 0),
            event(1, 1),
            event(1, 200),
            event(1, 70_000),
            event(1, 70_000).invalidating(),
            ResumeToken::high_water_mark(time(2)),
            event(2, 0),
        ];
        assert!(ordered.windows(2).all(|pair| pair[0].to_hex() < pair[1].to_hex()));
    }
}
