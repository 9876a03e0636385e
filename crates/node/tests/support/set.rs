//! Members of a set, driven by hand in place of a host.

use std::ops::Bound;

use bson::{Document, RawDocumentBuf, doc};
use quorate_node::{Decided, Node, Published};
use quorate_protocol::{
    HelloReply, MemberState, ObjectId, OpTimeAndWallTime, Term, TopologyVersion,
};
use quorate_replication::{MemberHello, NoopReason};
use quorate_storage::ModelStore;

use super::{Member, now};

pub(crate) const OPLOG_BYTES: u64 = 1 << 30;

pub(crate) fn show(node: &Node, state: MemberState, writable: bool) {
    show_as(node, state, writable, false);
}

/// A secondary with `buildIndexes: false`.
#[allow(dead_code, reason = "not every test program has such a member")]
pub(crate) fn show_without_indexes(node: &Node) {
    show_as(node, MemberState::Secondary, false, true);
}

fn show_as(node: &Node, state: MemberState, writable: bool, builds_no_indexes: bool) {
    let hello = MemberHello {
        reply: HelloReply { set_name: Some("rs0".into()), ..HelloReply::default() },
        secondary_delay_secs: None,
        builds_no_indexes,
        majority: None,
        info: None,
    };
    let topology_version =
        TopologyVersion { process_id: ObjectId::from_bytes([1; 12]), counter: 3 };
    let horizons = quorate_node::Horizons::default();
    let majority_by_default = true;
    node.publish(Published {
        hello,
        topology_version,
        state,
        writable,
        majority_by_default,
        horizons,
    });
    node.set_writable(writable.then_some(Term(1)), now());
}

pub(crate) fn primary() -> Member {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    member
}

/// A primary whose clients must log in.
pub(crate) fn guarded_primary() -> Member {
    let member = Member::guarded_with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    member
}

pub(crate) fn secondary() -> Member {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Secondary, false);
    member
}

pub(crate) fn position(member: &Member) -> OpTimeAndWallTime {
    member.node.log_positions().written
}

/// A majority has the log up to here.
pub(crate) fn commit(member: &Member, commit_point: OpTimeAndWallTime) {
    member.node.decide(Decided { term: Term(1), rollback_id: 1, commit_point, can_commit: true });
}

pub(crate) fn entries(member: &Member) -> Vec<RawDocumentBuf> {
    member.node.read_oplog(Bound::Unbounded, usize::MAX, usize::MAX).unwrap().entries
}

pub(crate) fn hash(member: &Member) -> Document {
    hash_in(member, "db")
}

pub(crate) fn hash_in(member: &Member, database: &str) -> Document {
    let mut reply = member.ok(doc! {
        "dbHash": 1, "$readPreference": {"mode": "nearest"}, "$db": database,
    });
    reply.remove("timeMillis");
    reply
}

/// The documents that a member keeps as they were before a change: the rows of `config.system.preimages`.
pub(crate) fn images(member: &Member) -> Vec<Document> {
    let reply = member.ok(doc! {
        "find": "system.preimages", "batchSize": 1_000, "$db": "config",
        "$readPreference": {"mode": "nearest"},
    });
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|row| row.as_document().unwrap().clone()).collect()
}

/// Runs these statements as a transaction and commits it.
pub(crate) fn transact(member: &Member, number: i64, statements: Vec<Document>) {
    let id = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![5; 16] };
    let fields = doc! { "lsid": { "id": id }, "txnNumber": number, "autocommit": false };
    for (place, mut statement) in statements.into_iter().enumerate() {
        statement.extend(fields.clone());
        if place == 0 {
            statement.insert("startTransaction", true);
        }
        let reply = member.ok(statement);
        assert!(!reply.contains_key("writeErrors"), "{reply}");
    }
    let mut commit = doc! { "commitTransaction": 1, "$db": "admin" };
    commit.extend(fields);
    member.ok(commit);
}

/// One of everything that is logged.
pub(crate) fn write_everything(member: &Member) {
    let long = "x".repeat(100);
    member.insert("a", (0..5).map(|i| doc! {"_id": i, "n": 1, "l": &long}).collect());
    member.ok(doc! {"update": "a", "updates": [
        {"q": {"_id": 1}, "u": {"$inc": {"n": 5}, "$set": {"sub": {"x": 1}}}},
        {"q": {"_id": 2}, "u": {"other": true}},
        {"q": {"_id": 9}, "u": {"$set": {"born": "by upsert"}}, "upsert": true},
    ]});
    member.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 0}, "limit": 1}]});
    member.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    member.ok(doc! {"createIndexes": "a", "indexes": [{"key": {"l": 1}, "name": "l_1"}]});
    member.ok(doc! {"dropIndexes": "a", "index": "l_1"});
    member.ok(doc! {"collMod": "a", "validator": {"n": {"$exists": true}}});
    member.ok(doc! {"create": "c", "capped": true, "size": 4096, "max": 2});
    member.insert("c", (0..4).map(|i| doc! {"_id": i}).collect());
    member.insert("doomed", vec![doc! {"_id": 1}]);
    member.ok(doc! {"drop": "doomed"});
    member.insert("old", vec![doc! {"_id": 1}]);
    member.ok(doc! {"renameCollection": "db.old", "to": "db.new", "$db": "admin"});
}

pub(crate) fn uuid_of(member: &Member, name: &str) -> bson::Binary {
    let listed = member.ok(doc! {"listCollections": 1, "filter": {"name": name}});
    let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    uuid_in(listed[0].as_document().unwrap()).unwrap()
}

/// The UUID of a collection as `listCollections` shows it.
pub(crate) fn uuid_in(listed: &Document) -> Option<bson::Binary> {
    match listed.get_document("info").ok()?.get("uuid")? {
        bson::Bson::Binary(uuid) => Some(uuid.clone()),
        _ => None,
    }
}
