//! Pipelines that write, sent on from a secondary to the primary.
//!
//! Since MongoDB 5.0 clients send `$out` and `$merge` to whichever member their read preference
//! admits. A secondary cannot write, so the primary runs the whole pipeline.

use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use quorate_node::{CommandBody, CommandError, ErrorCode};
use quorate_protocol::ServerAddress;
use quorate_wire::MsgFlags;

use super::client::{Client, ClientError};
use crate::dialer::Dialer;

/// How long the primary may take unless `maxTimeMS` says so.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a command is a pipeline that writes, from a client that takes a secondary.
pub(super) fn is_wanted(command: &CommandBody) -> bool {
    if command.name() != "aggregate" {
        return false;
    }
    let last = command.get_array("pipeline").ok().and_then(|stages| stages.last()?.as_document());
    let writes = last.and_then(|stage| stage.keys().next());
    let preference = command.get_document("$readPreference");
    let mode = preference.ok().and_then(|preference| preference.get_str("mode").ok());
    writes.is_some_and(|name| name == "$out" || name == "$merge")
        && mode.is_some_and(|mode| mode != "primary")
}

/// The primary's reply, whatever it says.
pub(super) async fn forward(
    dialer: &Dialer,
    primary: &ServerAddress,
    mut command: Document,
    limit: Duration,
) -> RawDocumentBuf {
    command.remove("$readPreference");
    let sent = async {
        let mut client = Client::connect(dialer, primary, limit).await?;
        client.send(&command, MsgFlags::NONE).await?;
        Ok::<_, ClientError>(client.next().await?.body)
    };
    let failure = match tokio::time::timeout(limit, sent).await {
        Ok(Ok(body)) => return body,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it did not answer in time".to_owned(),
    };
    let message = format!("the primary {primary} could not be asked: {failure}");
    let error = CommandError::new(ErrorCode::HOST_UNREACHABLE, message);
    RawDocumentBuf::try_from(&error.reply()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn only_writing_pipelines_for_secondaries_are_sent_on() {
        let secondary = doc! { "mode": "secondaryPreferred" };
        let command = |stage: Document, preference: &Document| -> CommandBody {
            let preference = preference.clone();
            doc! { "aggregate": "c", "pipeline": [stage], "$readPreference": preference }.into()
        };
        assert!(is_wanted(&command(doc! { "$out": "d" }, &secondary)));
        assert!(is_wanted(&command(doc! { "$merge": "d" }, &secondary)));
        assert!(!is_wanted(&command(doc! { "$match": {} }, &secondary)));
        assert!(!is_wanted(&command(doc! { "$out": "d" }, &doc! { "mode": "primary" })));
        assert!(!is_wanted(&doc! { "aggregate": "c", "pipeline": [{ "$out": "d" }] }.into()));
    }
}
