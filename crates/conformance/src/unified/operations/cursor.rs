//! Operations of cursors.

use quorate_client::Cursor;
use tokio::sync::Mutex;

use super::super::arguments::Arguments;
use super::super::outcome::{Attempt, Outcome, plain_document};
use super::client::TransposeWith;
use crate::Result;

pub(super) async fn run(
    cursor: &Mutex<Option<Cursor>>,
    name: &str,
    arguments: Arguments,
) -> Result<Attempt> {
    arguments.finish()?;
    let mut guard = cursor.lock().await;
    if name == "close" {
        if let Some(cursor) = guard.take() {
            cursor.close().await;
        }
        return Ok(Ok(Outcome::Nothing));
    }
    let cursor = guard.as_mut().ok_or("the cursor is closed")?;
    let document = match name {
        "iterateUntilDocumentOrError" => cursor.next().await,
        "iterateOnce" => cursor.try_next().await,
        _ => bail!("a cursor has no operation {name}"),
    };
    document.map(plain_document).transpose_with(Outcome::Value)
}
