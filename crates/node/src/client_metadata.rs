//! What a client says of itself in the `client` field of its first hello.
//!
//! A connection keeps the document as long as it lives, and a client needs no login to send it: it has a bound.
//! Specification: `mongodb-handshake/handshake.md`, "Client Metadata" and "Limitations".

use bson::Document;

use crate::error::{CommandError, Result};
use crate::fields::{Fields, to_raw};

/// The most bytes of the document.
const MAX_METADATA_BYTES: usize = 512;

/// The longest name that an application may give itself.
const MAX_APPLICATION_NAME_BYTES: usize = 128;

/// Refuses a document that is too large, or does not say which driver on which system asks.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_client_metadata(metadata: &Document) -> Result<()> {
    let size = to_raw(metadata)?.as_bytes().len();
    refuse_if!(size > MAX_METADATA_BYTES => CLIENT_METADATA_DOCUMENT_TOO_LARGE,
        "The client metadata document must be at most {MAX_METADATA_BYTES} bytes, not {size}");
    let fields = Fields::new(metadata, "client");
    if let Some(application) = fields.document("application")? {
        let name = Fields::new(application, "client.application").string("name")?;
        if name.is_some_and(|name| name.len() > MAX_APPLICATION_NAME_BYTES) {
            refuse!(
                CLIENT_METADATA_APP_NAME_TOO_LARGE,
                "The 'client.application.name' field must be at most \
                     {MAX_APPLICATION_NAME_BYTES} bytes"
            );
        }
    }
    for (part, required) in [("driver", &["name", "version"][..]), ("os", &["type"])] {
        let Some(part_fields) = fields.document(part)? else { return Err(missing(part)) };
        let path = format!("client.{part}");
        let part_fields = Fields::new(part_fields, &path);
        for name in required {
            if part_fields.string(name)?.is_none() {
                return Err(missing(&format!("{part}.{name}")));
            }
        }
    }
    Ok(())
}

fn missing(field: &str) -> CommandError {
    fail!(
        CLIENT_METADATA_MISSING_FIELD,
        "Missing required field '{field}' in the client metadata document"
    )
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn metadata() -> Document {
        doc! {
            "application": { "name": "shop" },
            "driver": { "name": "tests", "version": "1" },
            "os": { "type": "Linux" },
        }
    }

    fn code(metadata: Document) -> Option<i32> {
        check_client_metadata(&metadata).err().map(|error| error.code.0)
    }

    fn with(field: &str, value: impl Into<bson::Bson>) -> Document {
        let mut changed = metadata();
        changed.insert(field, value);
        changed
    }

    #[test]
    fn a_client_says_which_driver_on_which_system_it_is() {
        assert_eq!(code(metadata()), None);
        assert_eq!(code(doc! {}), Some(183));
        assert_eq!(code(with("driver", doc! { "name": "tests" })), Some(183));
        assert_eq!(code(with("os", doc! { "name": "Linux" })), Some(183));
        assert_eq!(code(with("os", "Linux")), Some(14));
        assert_eq!(code(with("application", doc! { "name": 1 })), Some(14));
    }

    #[test]
    fn what_a_client_says_of_itself_is_bounded() {
        assert_eq!(code(with("application", doc! { "name": "x".repeat(128) })), None);
        assert_eq!(code(with("application", doc! { "name": "x".repeat(129) })), Some(184));
        assert_eq!(code(with("platform", "x".repeat(512))), Some(185));
    }
}
