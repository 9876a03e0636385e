#![doc = include_str!("../README.md")]
//!
//! [`events`] turns one entry into the events of a stream; the caller supplies images of documents through [`Images`]. A
//! [`ResumeToken`] says where an event stands; its bytes sort as the events do.

mod description;
mod entry;
mod error;
mod event;
mod keystring;
mod split;
mod token;
mod transaction_part;

pub use description::update_description;
pub use error::{EventError, Result};
pub use event::{
    Event, FullDocument, FullDocumentBeforeChange, Images, NoImages, Options, Scope, events,
    transaction_events,
};
pub use split::{MAX_EVENT_BYTES, split};
pub use token::{Explained, ResumeToken, TokenKind};
pub use transaction_part::TransactionPart;
