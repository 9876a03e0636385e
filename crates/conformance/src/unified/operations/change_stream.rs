//! Operations of change streams, and how they are opened.

use bson::RawDocumentBuf;
use quorate_client::{ChangeStream, Watch};
use tokio::sync::Mutex;

use super::super::arguments::Arguments;
use super::super::entities::Entities;
use super::super::outcome::{Attempt, Outcome, plain_document};
use super::client::TransposeWith;
use super::perform;
use crate::Result;

pub(super) async fn run(
    stream: &Mutex<Option<ChangeStream>>,
    name: &str,
    arguments: Arguments,
) -> Result<Attempt> {
    arguments.finish()?;
    let mut guard = stream.lock().await;
    if name == "close" {
        if let Some(stream) = guard.take() {
            stream.close().await;
        }
        return Ok(Ok(Outcome::Nothing));
    }
    let stream = guard.as_mut().ok_or("the change stream is closed")?;
    let change = match name {
        "iterateUntilDocumentOrError" => stream.next().await,
        "iterateOnce" => stream.next_if_any().await,
        _ => bail!("a change stream has no operation {name}"),
    };
    change.map(plain_document).transpose_with(Outcome::Value)
}

/// Opens a stream on whatever `watch` watches.
pub(super) async fn create<'a>(
    entities: &Entities,
    mut arguments: Arguments,
    watch: impl FnOnce(Vec<RawDocumentBuf>) -> Watch<'a>,
) -> Result<Attempt> {
    let mut stages = Vec::new();
    for stage in arguments.documents("pipeline")?.unwrap_or_default() {
        stages.push(RawDocumentBuf::try_from(&stage)?);
    }
    let mut action = watch(stages);
    if let Some(which) = arguments.text("fullDocument")? {
        action = action.full_document(&which);
    }
    if let Some(which) = arguments.text("fullDocumentBeforeChange")? {
        action = action.full_document_before_change(&which);
    }
    let opened = perform!(entities, arguments, action;
        document resume_after = "resumeAfter", document start_after = "startAfter",
        flag show_expanded_events = "showExpandedEvents", size batch_size = "batchSize",
        millis max_await_time = "maxAwaitTimeMS", value comment = "comment",
        document collation = "collation", millis timeout = "timeoutMS");
    Ok(opened.map(|stream| Outcome::ChangeStream(Box::new(stream))))
}
