//! `quorateBackup`: everything that this member has stored, at one moment, as a stream of bytes.
//!
//! Each document of the cursor is one piece of [`quorate_storage::CopyReader`]'s stream. Writers are not
//! stopped: the cursor keeps a snapshot of the store.

use bson::spec::BinarySubtype;
use bson::{Binary, rawdoc};
use quorate_storage::CopyReader;

use super::common::{CursorOptions, open_cursor};
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::records::DocumentBytes;

/// The bytes of one piece.
const PIECE: usize = 1024 * 1024;

pub(super) fn backup(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let state = request.node.replication().and_then(|replication| replication.published());
    if let Some(published) = state
        && !published.state.is_readable()
    {
        refuse!(
            NOT_PRIMARY_OR_SECONDARY,
            "this member has no complete data to back up; wait until it is SECONDARY, or ask another"
        );
    }
    let mut reader = CopyReader::new(request.node.store());
    let pieces = std::iter::from_fn(move || reader.next_piece(PIECE).transpose());
    let stream = pieces.map(|piece| {
        let bytes = Binary { subtype: BinarySubtype::Generic, bytes: piece? };
        Ok(DocumentBytes::from(rawdoc! { "piece": bytes }))
    });
    let namespace = Namespace::new(request.database, "$cmd.quorateBackup")?;
    // The first reply comes at once; the pieces follow.
    let options = CursorOptions { batch_size: Some(0), ..CursorOptions::new(request) };
    open_cursor(request, namespace, Box::new(stream), options)
}
