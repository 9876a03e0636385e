//! Asking a member to hand over.

use std::time::Duration;

use bson::rawdoc;
use quorate_client::Client;
use quorate_protocol::ServerAddress;
use tokio::time::timeout;

use crate::view::actions::ActionError;

/// How long the member then does not stand for election.
const PERIOD_SECONDS: i32 = 10;

/// How long it waits for a secondary to have everything.
const CATCH_UP_SECONDS: i32 = 5;

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Sends `replSetStepDown` to a member.
pub(super) async fn step_down(member: &ServerAddress) -> Result<String, ActionError> {
    let refused = |why: String| ActionError::Refused { member: member.clone(), why };
    let uri = format!("mongodb://{member}/?directConnection=true&serverSelectionTimeoutMS=2000");
    let client = Client::with_uri(&uri).map_err(|error| refused(error.to_string()))?;
    let command = rawdoc! {
        "replSetStepDown": PERIOD_SECONDS,
        "secondaryCatchUpPeriodSecs": CATCH_UP_SECONDS,
    };
    let outcome = timeout(LIMIT, client.run_command("admin", &command)).await;
    client.close().await;
    match outcome {
        Ok(Ok(_)) => Ok("stepped down".to_owned()),
        Ok(Err(error)) => Err(refused(error.to_string())),
        Err(_) => Err(refused(format!("no answer within {} s; try again", LIMIT.as_secs()))),
    }
}
