//! The operations of entities, carried out by our client.
//!
//! Every argument is taken by name, and one that is left over is an error; so is a name that is not
//! known. Options are set on the client's actions one by one (`perform!`).

mod change_stream;
mod client;
mod collection;
mod cursor;
mod database;
mod session;

use bson::Document;

use super::arguments::{Arguments, set_options};
use super::entities::{Entities, Entity};
use super::outcome::Attempt;
use crate::Result;

/// Runs an operation of an entity. `Err` outside says that the test is at fault, or the runner.
pub(super) async fn run(
    entities: &Entities,
    object: &str,
    name: &str,
    arguments: Document,
) -> Result<Attempt> {
    let arguments = Arguments::new(arguments);
    match entities.get(object)? {
        Entity::Client(entity) => client::run(entities, &entity, name, arguments).await,
        Entity::Database(database) => database::run(entities, &database, name, arguments).await,
        Entity::Collection(collection) => {
            collection::run(entities, &collection, name, arguments).await
        }
        Entity::Cursor(cursor) => cursor::run(&cursor, name, arguments).await,
        Entity::ChangeStream(stream) => change_stream::run(&stream, name, arguments).await,
        Entity::Session(entity) => session::run(&entity, name, arguments).await,
        _ => Err(format!("{object} has no operation {name}").into()),
    }
}

/// Sets the session and the options that are given, checks that none is left, and runs the action.
/// Gives the client's result.
macro_rules! perform {
    ($entities:expr, $arguments:expr, $action:expr;
        $($kind:ident $method:ident = $name:literal),* $(,)?) => {{
        let entity = match $arguments.text("session")? {
            Some(name) => Some($entities.session(&name)?),
            None => None,
        };
        let mut guard = match &entity {
            Some(entity) => Some(entity.session.lock().await),
            None => None,
        };
        let mut action = $action;
        if let Some(guard) = &mut guard {
            let session = guard.as_mut().ok_or("the session has ended")?;
            action = action.session(session);
        }
        $crate::unified::arguments::set_options!($arguments, action; $($kind $method = $name),*);
        $arguments.finish()?;
        let result = action.await;
        if let (Some(entity), Some(guard)) = (&entity, &guard)
            && let Some(session) = guard.as_ref()
        {
            entity.remember(session);
        }
        result
    }};
}

use perform;
