//! `$changeStreamSplitLargeEvent`: an event larger than a document may be, as several.

use bson::{Bson, Document, doc};

use crate::error::{EventError, Result};
use crate::token::ResumeToken;

/// The most bytes of one event or fragment: the largest document.
pub const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// What `splitEvent` and the token of a fragment may take.
const ROOM: usize = 16 * 1024;

/// Splits an event that is larger than `limit` by its top-level fields: as many as fit into each
/// fragment, in their order. Smaller events stay as they are.
///
/// # Errors
///
/// 280 if a single field is larger than a fragment.
pub fn split(event: Document, token: &ResumeToken, limit: usize) -> Result<Vec<Document>> {
    if size(&event) <= limit {
        return Ok(vec![event]);
    }
    let mut fragments: Vec<Document> = Vec::new();
    let (mut fragment, mut bytes) = (Document::new(), ROOM);
    for (name, value) in event {
        if name == "_id" {
            continue;
        }
        let cost = field_size(&name, &value);
        if cost + ROOM > limit {
            return Err(EventError::new(
                EventError::CHANGE_STREAM_FATAL,
                format!(
                    "Splitting the event failed: its field '{name}' alone is {cost} bytes large"
                ),
            ));
        }
        if bytes + cost > limit && !fragment.is_empty() {
            fragments.push(std::mem::take(&mut fragment));
            bytes = ROOM;
        }
        bytes += cost;
        fragment.insert(name, value);
    }
    fragments.push(fragment);
    let of = fragments.len() as i32;
    let told = fragments.into_iter().enumerate().map(|(place, fields)| {
        let token = ResumeToken { fragment: Some(place as i64), ..token.clone() };
        let mut told = doc! {
            "_id": token.to_document(),
            "splitEvent": { "fragment": place as i32 + 1, "of": of },
        };
        told.extend(fields);
        told
    });
    Ok(told.collect())
}

fn size(document: &Document) -> usize {
    document.iter().map(|(name, value)| field_size(name, value)).sum::<usize>() + 5
}

fn field_size(name: &str, value: &Bson) -> usize {
    let payload = match value {
        Bson::Document(inner) => size(inner),
        Bson::Array(elements) => {
            let each = |(place, element): (usize, &Bson)| field_size(&place.to_string(), element);
            elements.iter().enumerate().map(each).sum::<usize>() + 5
        }
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => text.len() + 5,
        Bson::Binary(binary) => binary.bytes.len() + 9,
        Bson::RegularExpression(regex) => {
            regex.pattern.as_str().len() + regex.options.as_str().len() + 2
        }
        Bson::JavaScriptCodeWithScope(code) => code.code.len() + size(&code.scope) + 9,
        _ => 16,
    };
    name.len() + 2 + payload
}

#[cfg(test)]
mod tests {
    use bson::Timestamp;

    use super::*;

    #[test]
    fn large_events_come_in_fragments_with_tokens_in_order() {
        let token = ResumeToken::event(Timestamp { time: 1, increment: 1 }, 0, None, doc! {});
        let text = |letters: usize| "x".repeat(letters);
        let event =
            doc! { "_id": token.to_document(), "a": text(30_000), "b": text(30_000), "c": 1 };
        let small = split(event.clone(), &token, 100_000).unwrap();
        assert_eq!(small, std::slice::from_ref(&event));
        let fragments = split(event.clone(), &token, 50_000).unwrap();
        assert_eq!(fragments.len(), 2);
        assert_eq!(
            fragments[0].get_document("splitEvent").unwrap(),
            &doc! { "fragment": 1, "of": 2 }
        );
        assert!(fragments[0].contains_key("a") && fragments[1].contains_key("c"));
        let data = |fragment: &Document| {
            fragment.get_document("_id").unwrap().get_str("_data").unwrap().to_owned()
        };
        assert!(data(&fragments[0]) < data(&fragments[1]));
        let read = ResumeToken::from_hex(&data(&fragments[1])).unwrap();
        assert_eq!(read.fragment, Some(1));
        assert_eq!(split(event, &token, 40_000).unwrap_err().code, 280);
    }
}
