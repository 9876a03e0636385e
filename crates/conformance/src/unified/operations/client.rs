//! Operations of clients.

use super::super::arguments::Arguments;
use super::super::entities::{ClientEntity, Entities};
use super::super::outcome::{Attempt, Outcome, plain_documents};
use super::{change_stream, perform, set_options};
use crate::Result;

pub(super) async fn run(
    entities: &Entities,
    entity: &ClientEntity,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    let client = &entity.client;
    match name {
        "createChangeStream" => {
            change_stream::create(entities, arguments, |pipeline| client.watch(pipeline)).await
        }
        "close" => {
            arguments.finish()?;
            client.close().await;
            Ok(Ok(Outcome::Nothing))
        }
        "dropDatabase" => {
            let database = client.database(&arguments.required("database", Arguments::text)?);
            let dropped = perform!(entities, arguments, database.drop_database(););
            Ok(dropped.map(|()| Outcome::Nothing))
        }
        "listDatabases" => {
            let listed = perform!(entities, arguments, client.list_databases();
                document filter = "filter", value comment = "comment", millis timeout = "timeoutMS");
            listed.map(plain_documents).transpose_with(Outcome::Documents)
        }
        "listDatabaseNames" => {
            let mut action = client.list_databases();
            set_options!(arguments, action; millis timeout = "timeoutMS");
            arguments.finish()?;
            Ok(action.names().await.map(Outcome::names))
        }
        _ => Err(format!("a client has no operation {name}").into()),
    }
}

/// Swaps the two layers of a result whose success may be unreadable.
pub(super) trait TransposeWith<T> {
    /// The unreadable case comes outside; the rest is made an outcome.
    fn transpose_with(self, make: impl FnOnce(T) -> Outcome) -> Result<Attempt>;
}

impl<T> TransposeWith<T> for Result<Result<T>, quorate_client::Error> {
    fn transpose_with(self, make: impl FnOnce(T) -> Outcome) -> Result<Attempt> {
        match self {
            Ok(Ok(value)) => Ok(Ok(make(value))),
            Ok(Err(reason)) => Err(reason),
            Err(error) => Ok(Err(error)),
        }
    }
}
