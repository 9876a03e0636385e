//! Documents as relaxed Extended JSON, for log messages.
//!
//! Follows the Extended JSON specification, version 2, in its relaxed form. Only writes: nothing
//! here reads JSON.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::raw::{RawBsonRef, RawDocument};

/// The latest date that the relaxed form writes as text: the end of the year 9999.
const LATEST_WRITTEN_DATE: i64 = 253_402_300_799_999;

/// A document in the relaxed form. What cannot be read is named in its place.
pub(crate) fn relaxed(document: &RawDocument) -> String {
    let mut text = String::new();
    write_document(&mut text, document);
    text
}

fn write_document(out: &mut String, document: &RawDocument) {
    out.push('{');
    for (position, element) in document.iter().enumerate() {
        if position > 0 {
            out.push_str(", ");
        }
        let Ok((name, value)) = element else {
            out.push_str("\"$unreadable\": true");
            break;
        };
        write_text(out, name.as_str());
        out.push_str(": ");
        write_value(out, value);
    }
    out.push('}');
}

fn write_value(out: &mut String, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::Document(document) => write_document(out, document),
        RawBsonRef::Array(array) => {
            out.push('[');
            for (position, item) in array.into_iter().enumerate() {
                if position > 0 {
                    out.push_str(", ");
                }
                match item {
                    Ok(item) => write_value(out, item),
                    Err(_) => return out.push_str("\"$unreadable\"]"),
                }
            }
            out.push(']');
        }
        RawBsonRef::String(text) => write_text(out, text),
        RawBsonRef::Boolean(truth) => out.push_str(if truth { "true" } else { "false" }),
        RawBsonRef::Null => out.push_str("null"),
        RawBsonRef::Int32(number) => append(out, format_args!("{number}")),
        RawBsonRef::Int64(number) => append(out, format_args!("{number}")),
        RawBsonRef::Double(number) => write_double(out, number),
        RawBsonRef::DateTime(date) => match date.try_to_rfc3339_string() {
            Ok(text) if (0..=LATEST_WRITTEN_DATE).contains(&date.timestamp_millis()) => {
                append(out, format_args!("{{\"$date\": \"{text}\"}}"));
            }
            _ => append(
                out,
                format_args!("{{\"$date\": {{\"$numberLong\": \"{}\"}}}}", date.timestamp_millis()),
            ),
        },
        other => write_rare(out, other),
    }
}

fn write_rare(out: &mut String, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::ObjectId(id) => append(out, format_args!("{{\"$oid\": \"{id}\"}}")),
        RawBsonRef::Binary(binary) => append(
            out,
            format_args!(
                "{{\"$binary\": {{\"base64\": \"{}\", \"subType\": \"{:02x}\"}}}}",
                STANDARD.encode(binary.bytes),
                u8::from(binary.subtype)
            ),
        ),
        RawBsonRef::Timestamp(time) => append(
            out,
            format_args!("{{\"$timestamp\": {{\"t\": {}, \"i\": {}}}}}", time.time, time.increment),
        ),
        RawBsonRef::Decimal128(number) => {
            append(out, format_args!("{{\"$numberDecimal\": \"{number}\"}}"));
        }
        RawBsonRef::RegularExpression(regex) => {
            out.push_str("{\"$regularExpression\": {\"pattern\": ");
            write_text(out, regex.pattern.as_str());
            out.push_str(", \"options\": ");
            write_text(out, regex.options.as_str());
            out.push_str("}}");
        }
        RawBsonRef::JavaScriptCode(code) => write_keyed(out, "$code", code),
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            out.push_str("{\"$code\": ");
            write_text(out, code.code);
            out.push_str(", \"$scope\": ");
            write_document(out, code.scope);
            out.push('}');
        }
        RawBsonRef::Symbol(symbol) => write_keyed(out, "$symbol", symbol),
        RawBsonRef::Undefined => out.push_str("{\"$undefined\": true}"),
        RawBsonRef::MaxKey => out.push_str("{\"$maxKey\": 1}"),
        RawBsonRef::MinKey => out.push_str("{\"$minKey\": 1}"),
        // Nothing that a server or an application of this century sends.
        _ => out.push_str("{\"$dbPointer\": {}}"),
    }
}

fn write_keyed(out: &mut String, key: &str, text: &str) {
    append(out, format_args!("{{\"{key}\": "));
    write_text(out, text);
    out.push('}');
}

fn write_double(out: &mut String, number: f64) {
    if number.is_nan() {
        out.push_str("{\"$numberDouble\": \"NaN\"}");
    } else if number.is_infinite() {
        let sign = if number < 0.0 { "-" } else { "" };
        append(out, format_args!("{{\"$numberDouble\": \"{sign}Infinity\"}}"));
    } else {
        append(out, format_args!("{number:?}"));
    }
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => append(out, format_args!("\\u{:04x}", control as u32)),
            character => out.push(character),
        }
    }
    out.push('"');
}

fn append(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(arguments);
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
            "{\"text\": \"a \\\"quoted\\\"\\nline\\u0001\", \
             \"numbers\": [1, 2, 2.5, 1e300, {\"$numberDouble\": \"NaN\"}, \
             {\"$numberDouble\": \"-Infinity\"}], \
             \"id\": {\"$oid\": \"507f191e810c19729de860ea\"}, \
             \"date\": {\"$date\": \"1970-01-01T00:00:00Z\"}, \
             \"early\": {\"$date\": {\"$numberLong\": \"-1\"}}, \
             \"time\": {\"$timestamp\": {\"t\": 4, \"i\": 2}}, \
             \"bytes\": {\"$binary\": {\"base64\": \"AQI=\", \"subType\": \"04\"}}, \
             \"nothing\": null, \"truth\": true}"
        );
    }

    #[test]
    fn damage_is_named_instead_of_hidden() {
        let mut bytes = rawdoc! { "a": 1, "b": "text" }.into_bytes();
        let kind = bytes.iter().position(|&byte| byte == b'b').unwrap() - 1;
        bytes[kind] = 0x33;
        let document = RawDocument::from_bytes(&bytes).unwrap();
        assert_eq!(relaxed(document), "{\"a\": 1, \"$unreadable\": true}");
    }
}
