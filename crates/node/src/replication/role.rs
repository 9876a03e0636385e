//! Which commands a member runs in its present state, and what `hello` says of it.
//!
//! docs/replication-rules.md#hello and #errors.

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use quorate_protocol::{HelloReply, MemberState, ServerAddress};
use quorate_replication::MemberHello;
use quorate_transactions::{Place, labels};
use quorate_wire::replica_set::optime_document;
use quorate_wire::{
    RawField, find_field, find_fields, to_bson_date_time, to_bson_object_id,
    to_bson_topology_version,
};

use super::{Replication, Standing};
use crate::body::CommandBody;
use crate::command_table::Effect;
use crate::context::{Client, Command};
use crate::error::{CommandError, ErrorCode, Result};
use crate::node::Node;

/// Refuses a command that this state does not allow.
pub(crate) fn check_role(
    node: &Node,
    effect: Effect,
    database: &str,
    command: &Command,
) -> Result<()> {
    let Some(replication) = node.replication() else { return Ok(()) };
    let published = replication.published();
    let published = published.as_deref();
    if effect == Effect::Inspects || database == "local" || published.is_some_and(|p| p.writable) {
        return Ok(());
    }
    let refused = match effect {
        Effect::Writes => Some((ErrorCode::NOT_WRITABLE_PRIMARY, "not primary")),
        _ if !published.is_some_and(|known| known.state.is_readable()) => Some((
            ErrorCode::NOT_PRIMARY_OR_SECONDARY,
            "node is not in primary or recovering state",
        )),
        // A `getMore` follows the read preference of its find.
        _ if command.name() == "getMore" || allows_secondary(&command.body) => None,
        _ => Some((ErrorCode::NOT_PRIMARY_NO_SECONDARY_OK, "not primary and secondaryOk=false")),
    };
    match refused {
        Some((code, message)) => Err(CommandError::new(code, message)),
        None => Ok(()),
    }
}

fn allows_secondary(body: &CommandBody) -> bool {
    let preference = body.get_document("$readPreference").ok();
    let mode = preference.and_then(|preference| preference.get_str("mode").ok());
    mode.is_some_and(|mode| mode != "primary")
}

impl Replication {
    /// Whether another member could take over.
    fn has_others(&self) -> bool {
        self.published().is_some_and(|published| {
            let HelloReply { hosts, passives, .. } = &published.hello.reply;
            hosts.len() + passives.len() > 1
        })
    }

    /// Gives an error of the disk the code that sends clients to the next primary.
    pub(crate) fn complete(&self, error: &mut CommandError) {
        // A primary whose disk fails is about to be none: its clients go to the next.
        if error.code.is_of_disk() && self.has_others() {
            error.code = ErrorCode::PRIMARY_STEPPED_DOWN;
        }
    }
}

impl Node {
    /// An error as clients of this member need it: with the code and the label that send them to the
    /// next primary, if the disk failed or the state changed.
    pub fn completed(&self, mut error: CommandError, retryable: bool) -> CommandError {
        if let Some(replication) = self.replication() {
            replication.complete(&mut error);
        }
        // The commands that end a transaction are retried like retryable writes; its statements are
        // not, and come here as not retryable.
        let place = if retryable { Place::RetryableWrite } else { Place::Outside };
        let labels = labels(error.code.0, place).into_iter().map(|label| label.name().to_owned());
        error.labels.extend(labels);
        error
    }
}

impl Node {
    /// Adds the topology version to a reply that tells of a change of state, so that clients can tell
    /// old news: to errors, and to replies whose `writeConcernError` is one, inside of it as well. This
    /// is the one place that does.
    pub fn tell_topology_version(&self, reply: &mut RawDocumentBuf) {
        const FIELD: &str = "topologyVersion";
        let [concern, code] = find_fields(reply, ["writeConcernError", "code"]);
        let concern = concern.and_then(|error| error.document());
        let in_concern = concern.is_some_and(tells_of_state_change);
        let in_reply = code.is_some_and(is_state_change);
        if !in_concern && !in_reply {
            return;
        }
        let Ok(mut changed) = Document::try_from(&**reply) else { return };
        let version = to_bson_topology_version(self.topology_version());
        if let (true, Ok(concern)) = (in_concern, changed.get_document_mut("writeConcernError")) {
            concern.insert(FIELD, version.clone());
        }
        changed.insert(FIELD, version);
        if let Ok(changed) = RawDocumentBuf::try_from(&changed) {
            *reply = changed;
        }
    }
}

/// Whether a reply, or the error in one, has a code that tells of a change of the member's state.
pub fn tells_of_state_change(reply: &RawDocument) -> bool {
    find_field(reply, "code").is_some_and(is_state_change)
}

fn is_state_change(code: RawField<'_>) -> bool {
    code.int32().is_some_and(|code| ErrorCode(code).is_state_change())
}

/// What a member of a set adds to the reply to `hello`.
pub(crate) fn append_hello(node: &Node, client: &Client, legacy: bool, reply: &mut Document) {
    let Some(replication) = node.replication() else { return };
    let writable_name = if legacy { "ismaster" } else { "isWritablePrimary" };
    let Some(published) = replication.published() else {
        reply.insert(writable_name, false);
        reply.insert("secondary", false);
        reply.insert("isreplicaset", true);
        return;
    };
    let MemberHello { reply: known, secondary_delay_secs, builds_no_indexes, info, .. } =
        &published.hello;
    reply.insert(writable_name, known.is_writable_primary);
    reply.insert("secondary", known.secondary);
    if let Some(info) = info {
        reply.insert("info", *info);
        reply.insert("isreplicaset", true);
        return;
    }
    let horizon = published.horizons.seen_by(client, known.me.as_ref());
    let name = |address: &ServerAddress| -> String {
        let seen = horizon.and_then(|horizon| horizon.get(address)).unwrap_or(address);
        seen.as_str().to_owned()
    };
    let names = |addresses: &[ServerAddress]| -> Vec<Bson> {
        addresses.iter().map(|address| Bson::from(name(address))).collect()
    };
    reply.insert("hosts", names(&known.hosts));
    for (name, listed) in [("passives", &known.passives), ("arbiters", &known.arbiters)] {
        if !listed.is_empty() {
            reply.insert(name, names(listed));
        }
    }
    reply.insert("setName", known.set_name.clone());
    if let Some(version) = known.set_version {
        reply.insert("setVersion", version.0 as i32);
    }
    if let Some(primary) = &known.primary {
        reply.insert("primary", name(primary));
    }
    for (name, flag) in
        [("arbiterOnly", known.arbiter_only), ("passive", known.passive), ("hidden", known.hidden)]
    {
        if flag {
            reply.insert(name, true);
        }
    }
    if *builds_no_indexes {
        reply.insert("buildIndexes", false);
    }
    if let Some(delay) = secondary_delay_secs {
        reply.insert("secondaryDelaySecs", *delay);
    }
    if !known.tags.is_empty() {
        let tags: Document = known.tags.iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
        reply.insert("tags", tags);
    }
    if let Some(me) = &known.me {
        reply.insert("me", name(me));
    }
    if let Some(id) = known.election_id {
        reply.insert("electionId", to_bson_object_id(id.0));
    }
    if published.state != MemberState::Arbiter {
        reply.insert("lastWrite", last_write(replication));
    }
}

fn last_write(replication: &Replication) -> Document {
    let Standing { last, commit_point: committed, .. } = replication.standing();
    doc! {
        "opTime": optime_document(last.op_time),
        "lastWriteDate": to_bson_date_time(last.wall_time),
        "majorityOpTime": optime_document(committed.op_time),
        "majorityWriteDate": to_bson_date_time(committed.wall_time),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bson::RawDocumentBuf;
    use quorate_protocol::{
        ElectionId, MemberConfig, MemberId, MonotonicTime, ObjectId, ReplicaSetConfig, SetVersion,
        TagSet, TopologyVersion, WallTime,
    };
    use quorate_storage::ModelStore;
    use quorate_wire::parse_hello;

    use super::*;
    use crate::context::{Context, Now, Outcome};
    use crate::node::NodeOptions;
    use crate::replication::Horizons;
    use crate::replication::Published;

    fn member() -> Node {
        let now = Now { wall: WallTime(1), monotonic: MonotonicTime::ZERO };
        let options = NodeOptions {
            seed: 1,
            host: "a:1".into(),
            compressors: Vec::new(),
            oplog_bytes: Some(1 << 20),
            authentication: false,
            max_connections: 1,
            ..NodeOptions::default()
        };
        let node = Node::open(Arc::new(ModelStore::new()), options, now).unwrap();
        node.join_replica_set(now).unwrap();
        node
    }

    fn shown(node: &Node, hello: HelloReply, info: Option<&'static str>) -> HelloReply {
        publish(node, hello, info, Horizons::default());
        seen(node, &Client::default())
    }

    fn seen(node: &Node, client: &Client) -> HelloReply {
        let mut reply = doc! { "ok": 1.0 };
        append_hello(node, client, false, &mut reply);
        parse_hello(&RawDocumentBuf::try_from(&reply).unwrap()).unwrap()
    }

    fn publish(node: &Node, hello: HelloReply, info: Option<&'static str>, horizons: Horizons) {
        let topology_version =
            TopologyVersion { process_id: ObjectId::from_bytes([1; 12]), counter: 1 };
        let hello = MemberHello {
            reply: hello,
            secondary_delay_secs: None,
            builds_no_indexes: false,
            majority: None,
            info,
        };
        let state = MemberState::Secondary;
        node.publish(Published {
            hello,
            topology_version,
            state,
            writable: false,
            majority_by_default: true,
            horizons,
        });
    }

    #[test]
    fn clients_of_a_horizon_see_its_addresses_and_others_the_usual_ones() {
        let node = member();
        let address = |text: &str| text.parse::<ServerAddress>().unwrap();
        let mut config = ReplicaSetConfig::new("rs0", Vec::new());
        for (id, host, outside) in [(0, "a:1", "a.example:11"), (1, "b:2", "b.example:12")] {
            let mut member = MemberConfig::new(MemberId(id), address(host));
            member.horizons.insert("outside".to_owned(), address(outside));
            config.members.push(member);
        }
        let hello = HelloReply {
            ok: true,
            secondary: true,
            set_name: Some("rs0".into()),
            hosts: vec![address("a:1"), address("b:2")].into(),
            primary: Some(address("b:2")),
            me: Some(address("a:1")),
            ..HelloReply::default()
        };
        publish(&node, hello, None, Horizons::of(&config));
        let usual = seen(&node, &Client::default());
        assert_eq!(usual.me, Some(address("a:1")));
        let by_port = Client { horizon: Some("outside".to_owned()), ..Client::default() };
        let by_name = Client { server_name: Some("a.example".to_owned()), ..Client::default() };
        for client in [by_port, by_name] {
            let seen = seen(&node, &client);
            assert_eq!(seen.hosts, [address("a.example:11"), address("b.example:12")]);
            assert_eq!(seen.primary, Some(address("b.example:12")));
            assert_eq!(seen.me, Some(address("a.example:11")));
        }
        let elsewhere = Client { server_name: Some("c.example".to_owned()), ..Client::default() };
        assert_eq!(seen(&node, &elsewhere).me, Some(address("a:1")));
    }

    #[test]
    fn every_reply_that_tells_of_a_change_of_state_has_the_topology_version() {
        let node = member();
        let told = |reply: Document| {
            let mut raw = RawDocumentBuf::try_from(&reply).unwrap();
            node.tell_topology_version(&mut raw);
            Document::try_from(&*raw).unwrap()
        };
        for code in [10107, 13435, 13436, 11600, 11602, 91, 189] {
            let error = told(doc! { "ok": 0.0, "code": code });
            assert!(error.get_document("topologyVersion").is_ok(), "{error}");
            let done = told(doc! { "n": 1, "writeConcernError": { "code": code }, "ok": 1.0 });
            let concern = done.get_document("writeConcernError").unwrap();
            for place in [&done, concern] {
                assert!(place.get_document("topologyVersion").is_ok(), "{done}");
            }
        }
        for other in [
            doc! { "ok": 1.0 },
            doc! { "ok": 0.0, "code": 11000 },
            doc! { "writeConcernError": { "code": 64 }, "ok": 1.0 },
        ] {
            assert_eq!(told(other.clone()), other);
        }
    }

    #[test]
    fn clients_of_a_member_whose_disk_fails_go_to_another_if_there_is_one() {
        let node = member();
        let address = |text: &str| text.parse::<ServerAddress>().unwrap();
        for (hosts, code) in [(vec!["a:1"], 14031), (vec!["a:1", "b:2"], 189)] {
            let hosts = hosts.into_iter().map(address).collect();
            shown(&node, HelloReply { ok: true, hosts, ..HelloReply::default() }, None);
            let error = fail!(OUT_OF_DISK_SPACE, "full");
            let error = node.completed(error, true);
            assert_eq!(error.code.0, code);
            let retryable = error.labels.iter().any(|label| label == "RetryableWriteError");
            assert_eq!(retryable, code == 189);
            let mut reply = RawDocumentBuf::try_from(&error.reply()).unwrap();
            node.tell_topology_version(&mut reply);
            assert_eq!(reply.get_document("topologyVersion").is_ok(), code == 189);
        }
    }

    /// docs/replication-rules.md#hello: what a client reads is what the member said, for every kind.
    #[test]
    fn clients_read_back_what_each_kind_of_member_says() {
        let node = member();
        let address = |text: &str| text.parse::<ServerAddress>().unwrap();
        let listed = HelloReply {
            ok: true,
            set_name: Some("rs0".into()),
            set_version: Some(SetVersion(3)),
            hosts: vec![address("a:1"), address("b:2")].into(),
            passives: vec![address("c:3")].into(),
            arbiters: vec![address("d:4")].into(),
            primary: Some(address("a:1")),
            me: Some(address("a:1")),
            ..HelloReply::default()
        };
        let tags: TagSet = [("dc", "east")].into_iter().collect();
        let kinds = [
            HelloReply {
                is_writable_primary: true,
                election_id: Some(ElectionId::from_term(7)),
                ..listed.clone()
            },
            HelloReply { secondary: true, ..listed.clone() },
            HelloReply { secondary: true, passive: true, tags, ..listed.clone() },
            HelloReply { secondary: true, passive: true, hidden: true, ..listed.clone() },
            HelloReply { arbiter_only: true, ..listed.clone() },
            // STARTUP2, RECOVERING and ROLLBACK: a member that is neither.
            HelloReply { primary: None, ..listed },
        ];
        for kind in kinds {
            let mut read = shown(&node, kind.clone(), None);
            assert!(read.last_write.take().is_some());
            assert_eq!(read, kind);
        }
        let ghost = shown(&node, HelloReply::default(), Some("not initiated"));
        assert!(ghost.is_replica_set && ghost.set_name.is_none() && ghost.hosts.is_empty());
    }

    /// A reply that was encoded for another client tells what this client would be told: the present
    /// state, the time, and its own connection.
    #[test]
    fn replies_that_are_encoded_once_tell_each_client_the_present_state() {
        let node = member();
        let address = |text: &str| text.parse::<ServerAddress>().unwrap();
        let ask = |command: &Document, connection: i64, wall: i64| {
            let client = Client { connection_id: connection, ..Client::default() };
            let context = Context {
                now: Now { wall: WallTime(wall), monotonic: MonotonicTime::ZERO },
                client: Arc::new(client),
                may_wait: false,
                may_look_at: None,
                interrupt: Arc::default(),
            };
            match node.run(&context, Command::new(command.clone())) {
                Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let mut told = Vec::new();
        for hosts in [&["a:1"][..], &["a:1", "b:2"], &["a:1"]] {
            let hosts = hosts.iter().map(|host| address(host)).collect();
            let secondary =
                HelloReply { ok: true, secondary: true, hosts, ..HelloReply::default() };
            shown(&node, secondary, None);
            for asked in [
                doc! { "hello": 1, "$db": "admin" },
                doc! { "isMaster": 1, "$db": "admin" },
                doc! { "hello": 1, "helloOk": true, "$db": "admin" },
            ] {
                // No compressor is offered, so that the reply is the same and made for this client.
                let mut alone = asked.clone();
                alone.insert("compression", vec!["zlib"]);
                for connection in 1..4 {
                    let time = 1000 * told.len() as i64;
                    let reply = ask(&asked, connection, time);
                    assert_eq!(reply, ask(&alone, connection, time));
                    assert_eq!(reply.get_datetime("localTime").unwrap().timestamp_millis(), time);
                    assert_eq!(reply.get_i32("connectionId").unwrap(), connection as i32);
                    told.push(reply);
                }
            }
        }
        let shapes = |reply: &Document| (reply.get_array("hosts").unwrap().len(), reply.len());
        assert_eq!(told.iter().map(shapes).collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
