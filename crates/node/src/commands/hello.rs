//! `hello` and its older name `isMaster`.
//!
//! Specification: `mongodb-handshake/handshake.md`, and for waiting
//! `server-discovery-and-monitoring/server-monitoring.md` under "Streaming Protocol".

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf};
use quorate_protocol::TopologyVersion;
use quorate_wire::{
    MAX_BSON_OBJECT_SIZE, MAX_MESSAGE_SIZE, object_id_from, to_bson_date_time,
    to_bson_topology_version,
};

use super::authentication::append_to_hello;
use super::common::reply;
use crate::client_metadata::check_client_metadata;
use crate::command_table::CommandFacts;
use crate::context::{Client, Command, Context, Now, Outcome, WaitFor};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw};
use crate::hello_replies::Form;
use crate::node::Node;
use crate::replication::{Replication, append_hello};
use crate::sessions::SESSION_TIMEOUT_MINUTES;

/// The most statements that one write command may have.
pub(crate) const MAX_WRITE_BATCH_SIZE: usize = 100_000;

/// The wire versions spoken: from the first with OP_MSG handshakes to that of 7.0.
const MIN_WIRE_VERSION: i32 = 0;
const MAX_WIRE_VERSION: i32 = 21;

/// The longest time a client may ask a hello to wait.
const MAX_AWAIT: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn hello(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "hello");
    if let Some(metadata) = fields.document("client")? {
        check_client_metadata(metadata)?;
    }
    if let Some(wait) = wait_wanted(&fields)?
        && request.context.may_wait
    {
        let current = request.node.topology_version();
        if wait.known.process_id == current.process_id {
            refuse_if!(wait.known.counter > current.counter => 31382,
                "Received a topology version with counter greater than the current one");
            if wait.known.counter == current.counter {
                return Ok(Outcome::Wait { until: WaitFor::TopologyChange, at_most: wait.at_most });
            }
        }
    }
    answer(request, &fields)
}

/// Fields of a hello that the reply takes up.
const TAKEN_UP: [&str; 3] = ["compression", "saslSupportedMechs", "speculativeAuthenticate"];

/// The reply, encoded once for all clients that ask alike as long as nothing changes.
fn answer(request: &Request<'_>, fields: &Fields<'_>) -> Result<Outcome> {
    let Context { client, now, .. } = request.context;
    let told = request.node.replication().and_then(|replication| {
        let told = replication.told()?;
        let asks_alone =
            told.names_differ_for(client) || TAKEN_UP.iter().any(|name| fields.has(name));
        (!asks_alone).then_some((&replication.hello_replies, told))
    });
    let Some((replies, told)) = told else { return reply(&describe(request, fields)?) };
    let form = Form { legacy: is_legacy(request), hello_ok: fields.flag("helloOk")? };
    let (time, connection) = (to_bson_date_time(now.wall), client.connection_id as i32);
    if let Some(known) = replies.get(form, &told, time, connection) {
        return Ok(Outcome::Reply(known.into()));
    }
    let body = to_raw(&describe(request, fields)?)?;
    // What changed meanwhile may or may not be in it.
    if request.node.replication().and_then(Replication::told).is_some_and(|now| now.is_same(&told))
    {
        replies.keep(form, told, &body);
    }
    Ok(Outcome::Reply(body.into()))
}

fn is_legacy(request: &Request<'_>) -> bool {
    is_older_name(request.name)
}

fn is_older_name(name: &str) -> bool {
    !name.eq_ignore_ascii_case("hello")
}

/// Fields of a hello that have no part in what its replies are, once it has been found to be in order.
const STREAMED: [&str; 9] = [
    "$clusterTime", "$db", "$readPreference", "apiDeprecationErrors", "apiStrict", "apiVersion",
    "helloOk", "maxAwaitTimeMS", "topologyVersion",
];

/// A `hello` that is answered again, in the same form, whenever the state of the member changes.
#[derive(Debug)]
pub struct StreamedHello {
    form: Form,
    facts: &'static CommandFacts,
    wait: WaitWanted,
}

impl StreamedHello {
    /// None if the command does not wait, or its replies are its own.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        let fields = Fields::new(&command.body, "hello");
        let wait = wait_wanted(&fields).ok()??;
        let hello_ok = fields.flag("helloOk").ok()?;
        let form = Form { legacy: is_older_name(command.name()), hello_ok };
        let is_plain = command.body.keys().skip(1).all(|name| STREAMED.contains(&name));
        is_plain.then_some(Self { form, facts: command.facts()?, wait })
    }

    /// How long a reply waits for a change.
    pub fn at_most(&self) -> Duration {
        self.wait.at_most
    }

    /// The version that the client knew when it asked.
    pub fn known(&self) -> TopologyVersion {
        self.wait.known
    }

    /// The reply as another client has got it in the present state, with the version that it tells.
    pub(crate) fn reply(
        &self,
        node: &Node,
        client: &Client,
        now: Now,
    ) -> Option<(RawDocumentBuf, TopologyVersion)> {
        let replication = node.replication()?;
        let told = replication.told()?;
        if told.names_differ_for(client) {
            return None;
        }
        let (time, connection) = (to_bson_date_time(now.wall), client.connection_id as i32);
        let reply = replication.hello_replies.get(self.form, &told, time, connection)?;
        node.counters().repeated(self.facts);
        Some((reply, told.published.topology_version))
    }
}

#[derive(Debug)]
struct WaitWanted {
    known: TopologyVersion,
    at_most: Duration,
}

/// Both `topologyVersion` and `maxAwaitTimeMS`, or neither.
fn wait_wanted(fields: &Fields<'_>) -> Result<Option<WaitWanted>> {
    let version = fields.document("topologyVersion")?;
    let max_await = fields.integer("maxAwaitTimeMS")?;
    let (version, millis) = match (version, max_await) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            refuse!(31368, "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'");
        }
        (None, Some(_)) => {
            refuse!(51759, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'");
        }
        (Some(version), Some(millis)) => (version, millis),
    };
    let millis = u64::try_from(millis)
        .map_err(|_| fail!(31373, "maxAwaitTimeMS must be a non-negative integer"))?;
    let (Some(Bson::ObjectId(process_id)), Some(Bson::Int64(counter))) =
        (version.get("processId"), version.get("counter"))
    else {
        refuse!(
            TYPE_MISMATCH,
            "topologyVersion must have an ObjectId processId and a long counter"
        );
    };
    refuse_if!(*counter < 0 => 31372, "topologyVersion must have a non-negative counter");
    let known = TopologyVersion { process_id: object_id_from(*process_id), counter: *counter };
    Ok(Some(WaitWanted { known, at_most: Duration::from_millis(millis).min(MAX_AWAIT) }))
}

fn describe(request: &Request<'_>, fields: &Fields<'_>) -> Result<Document> {
    let version = request.node.topology_version();
    let mut reply = Document::new();
    // Clients that ask with helloOk, or with hello, learn that hello is understood.
    if fields.flag("helloOk")? {
        reply.insert("helloOk", true);
    }
    let legacy = is_legacy(request);
    reply.insert(if legacy { "ismaster" } else { "isWritablePrimary" }, true);
    reply.insert("topologyVersion", to_bson_topology_version(version));
    reply.insert("maxBsonObjectSize", MAX_BSON_OBJECT_SIZE as i32);
    reply.insert("maxMessageSizeBytes", MAX_MESSAGE_SIZE as i32);
    reply.insert("maxWriteBatchSize", MAX_WRITE_BATCH_SIZE as i32);
    reply.insert("localTime", to_bson_date_time(request.context.now.wall));
    reply.insert("logicalSessionTimeoutMinutes", SESSION_TIMEOUT_MINUTES as i32);
    reply.insert("connectionId", request.context.client.connection_id as i32);
    reply.insert("minWireVersion", MIN_WIRE_VERSION);
    reply.insert("maxWireVersion", MAX_WIRE_VERSION);
    reply.insert("readOnly", false);
    append_hello(request.node, &request.context.client, legacy, &mut reply);
    if let Some(wanted) = fields.array("compression")? {
        let offered = &request.node.options().compressors;
        let both = wanted.iter().filter(|name| {
            name.as_str().is_some_and(|name| offered.iter().any(|offer| offer == name))
        });
        let both: Vec<_> = both.cloned().collect();
        if !both.is_empty() {
            reply.insert("compression", both);
        }
    }
    append_to_hello(request, fields, &mut reply)?;
    reply.insert("ok", 1.0);
    Ok(reply)
}
