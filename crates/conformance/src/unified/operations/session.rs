//! Operations of sessions, apart from `withTransaction`, which runs other operations and is the
//! runner's.

use bson::Bson;

use super::super::arguments::Arguments;
use super::super::entities::{SessionEntity, transaction_options};
use super::super::outcome::{Attempt, Outcome};
use crate::Result;

pub(super) async fn run(
    entity: &SessionEntity,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    let mut guard = entity.session.lock().await;
    if name == "endSession" {
        arguments.finish()?;
        if let Some(session) = guard.take() {
            session.end().await;
        }
        return Ok(Ok(Outcome::Nothing));
    }
    let session = guard.as_mut().ok_or("the session has ended")?;
    let limit = match name {
        "commitTransaction" | "abortTransaction" => arguments.millis("timeoutMS")?,
        _ => None,
    };
    let done = match name {
        "startTransaction" => {
            let options = transaction_options(&mut arguments)?;
            arguments.finish()?;
            session.start_transaction_with(options)
        }
        "commitTransaction" => {
            arguments.finish()?;
            match limit {
                Some(limit) => session.commit_transaction_within(limit).await,
                None => session.commit_transaction().await,
            }
        }
        "abortTransaction" => {
            arguments.finish()?;
            match limit {
                Some(limit) => session.abort_transaction_within(limit).await,
                None => session.abort_transaction().await,
            }
        }
        "getSnapshotTime" => {
            arguments.finish()?;
            let time = session.snapshot_time().ok_or("the session has no snapshot time")?;
            return Ok(Ok(Outcome::Value(Bson::Timestamp(time))));
        }
        _ => bail!("a session has no operation {name}"),
    };
    entity.remember(session);
    Ok(done.map(|()| Outcome::Nothing))
}
