//! Documents as relaxed Extended JSON, for log messages.

use bson::raw::RawDocument;
use bson::{Bson, Document};

/// A document in the relaxed form of Extended JSON. A part that cannot be read ends it and is named in its place.
pub(crate) fn relaxed(document: &RawDocument) -> String {
    let mut read = Document::new();
    for element in document {
        let element = element.and_then(|(name, value)| Ok((name, Bson::try_from(value)?)));
        let Ok((name, value)) = element else {
            read.insert("$unreadable", true);
            break;
        };
        read.insert(name.as_str(), value);
    }
    Bson::Document(read).into_relaxed_extjson().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::oid::ObjectId;
    use bson::spec::BinarySubtype;
    use bson::{Binary, DateTime, Timestamp, rawdoc};

    #[test]
    fn values_are_written_in_the_relaxed_form() {
        let document = rawdoc! {
            "text": "a \"quoted\"\nline\u{1}",
            "numbers": [1, 2_i64, 2.5, 1e300, f64::NAN, f64::NEG_INFINITY],
            "id": ObjectId::parse_str("507f191e810c19729de860ea").unwrap(),
            "date": DateTime::from_millis(0),
            "early": DateTime::from_millis(-1),
            "time": Timestamp { time: 4, increment: 2 },
            "bytes": Binary { subtype: BinarySubtype::Uuid, bytes: vec![1, 2] },
            "nothing": null,
            "truth": true,
        };
        assert_eq!(
            relaxed(&document),
            "{\"text\":\"a \\\"quoted\\\"\\nline\\u0001\",\
             \"numbers\":[1,2,2.5,1e+300,{\"$numberDouble\":\"NaN\"},\
             {\"$numberDouble\":\"-Infinity\"}],\
             \"id\":{\"$oid\":\"507f191e810c19729de860ea\"},\
             \"date\":{\"$date\":\"1970-01-01T00:00:00Z\"},\
             \"early\":{\"$date\":{\"$numberLong\":\"-1\"}},\
             \"time\":{\"$timestamp\":{\"t\":4,\"i\":2}},\
             \"bytes\":{\"$binary\":{\"base64\":\"AQI=\",\"subType\":\"04\"}},\
             \"nothing\":null,\"truth\":true}"
        );
    }

    #[test]
    fn damage_is_named_instead_of_hidden() {
        let mut bytes = rawdoc! { "a": 1, "b": "text" }.into_bytes();
        let kind = bytes.iter().position(|&byte| byte == b'b').unwrap() - 1;
        bytes[kind] = 0x33;
        let document = RawDocument::from_bytes(&bytes).unwrap();
        assert_eq!(relaxed(document), "{\"a\":1,\"$unreadable\":true}");
    }
}
