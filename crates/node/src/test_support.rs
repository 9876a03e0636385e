//! What unit tests of this crate share: a time, and commands that are run to their reply.

use std::sync::Arc;

use bson::Document;
use quorate_protocol::{MonotonicTime, WallTime};

use crate::context::{Client, Command, Context, Now, Outcome};
use crate::node::Node;

pub(crate) fn now() -> Now {
    Now { wall: WallTime(1), monotonic: MonotonicTime::ZERO }
}

/// The reply to a command on the database `db`.
pub(crate) fn run(node: &Node, command: Document) -> Document {
    run_on(node, "db", command)
}

/// The reply to a command on the database `admin`.
pub(crate) fn run_on_admin(node: &Node, command: Document) -> Document {
    run_on(node, "admin", command)
}

fn run_on(node: &Node, database: &str, mut command: Document) -> Document {
    command.insert("$db", database);
    let context = Context {
        now: now(),
        client: Arc::new(Client::default()),
        may_wait: false,
        may_look_at: None,
        interrupt: Arc::default(),
    };
    match node.run(&context, Command::new(command)) {
        Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
        other => panic!("{other:?}"),
    }
}
