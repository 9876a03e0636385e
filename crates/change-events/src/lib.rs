//! What a change stream shows: entries of the oplog as events, and the tokens that resume a stream.
//!
//! Everything here is a pure function of its arguments. [`events`] turns one entry into the events of
//! a stream; the caller supplies images of documents through [`Images`], and reads the oplog, waits and
//! sends. A [`ResumeToken`] says where an event stands; its bytes sort as the events do.
//!
//! ```
//! use bson::{Timestamp, doc};
//! use quorate_change_events::{NoImages, Options, Scope, events};
//!
//! let entry = doc! {
//!     "op": "i", "ns": "shop.carts", "o": { "_id": 1, "items": [] }, "o2": { "_id": 1 },
//!     "ts": Timestamp { time: 7, increment: 1 }, "wall": bson::DateTime::from_millis(0),
//! };
//! let options = Options { scope: Scope::Database("shop".into()), ..Options::default() };
//! let found = events(&entry, &NoImages, &options)?;
//! assert_eq!(found[0].document.get_str("operationType").ok(), Some("insert"));
//! # Ok::<(), quorate_change_events::EventError>(())
//! ```

mod description;
mod entry;
mod error;
mod event;
mod keystring;
mod split;
mod token;

pub use description::update_description;
pub use error::EventError;
pub use event::{
    Event, FullDocument, FullDocumentBeforeChange, Images, NoImages, Options, Scope, events,
    transaction_events,
};
pub use split::{MAX_EVENT_BYTES, split};
pub use token::{Explained, ResumeToken, TokenKind};
