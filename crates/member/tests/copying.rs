//! A copy of everything, driven by hand between two members.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use quorate_member::{
    Ask, CloneProgress, CommonPointSearch, CopyWork, Copying, EntrySource, SearchAsk, SetView,
};
use quorate_node::{
    Client, Command, Context, Decided, ErrorCode, Horizons, Interrupt, Node, NodeOptions, Now,
    Outcome, Published,
};
use quorate_protocol::{
    HelloReply, MemberState, MonotonicTime, ObjectId, OpTime, OpTimeAndWallTime, ServerAddress,
    Term, TopologyVersion, WallTime,
};
use quorate_replication::{
    FetchId, InitialSyncOutcome, InitialSyncStep, Input, MemberHello, NoopReason,
};
use quorate_storage::ModelStore;

fn now() -> Now {
    Now { wall: WallTime(1_700_000_000_000), monotonic: MonotonicTime::from_millis(1000) }
}

fn member() -> Node {
    let options = NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() };
    let node = Node::open(Arc::new(ModelStore::new()), options, now()).unwrap();
    node.join_replica_set(now()).unwrap();
    show(&node, MemberState::Secondary);
    node
}

fn primary() -> Node {
    let node = member();
    lead(&node);
    node
}

fn lead(node: &Node) {
    show(node, MemberState::Primary);
    node.set_writable(Some(Term(1)), now());
    node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
}

fn show(node: &Node, state: MemberState) {
    let reply = HelloReply { set_name: Some("rs0".into()), ..HelloReply::default() };
    node.publish(Published {
        hello: MemberHello {
            reply,
            secondary_delay_secs: None,
            builds_no_indexes: false,
            majority: None,
            info: None,
        },
        topology_version: TopologyVersion { process_id: ObjectId::from_bytes([1; 12]), counter: 3 },
        state,
        writable: state == MemberState::Primary,
        majority_by_default: true,
        horizons: Horizons::default(),
    });
}

fn answer(node: &Node, mut command: Document) -> Document {
    if !command.contains_key("$db") {
        command.insert("$db", "db");
    }
    command.entry("$readPreference".to_owned()).or_insert(doc! { "mode": "nearest" }.into());
    let context = Context {
        now: now(),
        client: Arc::new(Client { connection_id: 1, ..Client::default() }),
        may_wait: false,
        may_look_at: None,
        interrupt: Arc::new(Interrupt::default()),
    };
    match node.run(&context, Command::new(command.clone())) {
        Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
        other => panic!("{command} did not answer: {other:?}"),
    }
}

fn run(node: &Node, command: Document) -> Document {
    let reply = answer(node, command.clone());
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command} answered {reply}");
    reply
}

fn view(node: &Node) -> SetView {
    SetView {
        term: Term(1),
        state: MemberState::Primary,
        is_primary: true,
        commit_point: OpTimeAndWallTime::default(),
        rollback_id: node.standing().rollback_id,
        knows_primary: true,
        majority_by_default: true,
    }
}

fn step(source: &Node, copy: &Node, step: InitialSyncStep, begin: OpTime) -> InitialSyncOutcome {
    step_while(source, copy, step, begin, &mut |_| ())
}

/// The same; `before` happens before each command that the source is sent.
fn step_while(
    source: &Node,
    copy: &Node,
    step: InitialSyncStep,
    begin: OpTime,
    before: &mut dyn FnMut(&Document),
) -> InitialSyncOutcome {
    let progress = CloneProgress::default();
    let address: ServerAddress = "a:1".parse().unwrap();
    let work = CopyWork { attempt: 1, step, source: address, begin, progress };
    let mut copying = Copying::new(work, copy, now());
    let mut stream = None;
    loop {
        match copying.ask() {
            Ask::Command(command) if command.contains_key("replSetGetRBID") => {
                let reply = bson::rawdoc! { "rbid": 1, "ok": 1.0 };
                copying.take_reply(&reply, copy, now()).unwrap();
            }
            Ask::Command(command) => {
                before(&command);
                let reply = answer(source, command.clone());
                if reply.get_f64("ok").unwrap() == 1.0 {
                    let reply = bson::RawDocumentBuf::try_from(&reply).unwrap();
                    copying.take_reply(&reply, copy, now()).unwrap();
                } else {
                    let goes_on = copying.take_refusal(reply.get_i32("code").unwrap());
                    assert!(goes_on, "{command} answered {reply}");
                }
            }
            Ask::Entries(from) => {
                let opened = EntrySource::open(&view(source), source, from).unwrap();
                let batch = stream.insert(opened).next_batch(source, view(source), true).unwrap();
                copying.take_entries(batch.unwrap(), copy, now()).unwrap();
            }
            Ask::MoreEntries => {
                let stream = stream.as_mut().unwrap();
                let batch = stream.next_batch(source, view(source), true).unwrap();
                copying.take_entries(batch.unwrap(), copy, now()).unwrap();
            }
            Ask::Done(outcome) => return outcome,
        }
    }
}

/// Copies everything; `meanwhile` happens at the source between the copy and its stop point.
fn copy_everything(source: &Node, copy: &Node, meanwhile: impl FnOnce()) {
    copy_while(source, copy, &mut |_| (), meanwhile);
}

/// The same; `before` happens before each command of the copy.
fn copy_while(
    source: &Node,
    copy: &Node,
    before: &mut dyn FnMut(&Document),
    meanwhile: impl FnOnce(),
) {
    let address: ServerAddress = "a:1".parse().unwrap();
    let at = || address.clone();
    let read = step(source, copy, InitialSyncStep::ReadSource { source: at() }, OpTime::NULL);
    let InitialSyncOutcome::SourceRead { begin_fetching, begin_applying, .. } = read else {
        panic!("{read:?}");
    };
    copy.wipe(now()).unwrap();
    let clone = InitialSyncStep::Clone { source: at(), begin_fetching, begin_applying };
    let cloned = step_while(source, copy, clone, begin_applying, before);
    assert_eq!(cloned, InitialSyncOutcome::Cloned);
    meanwhile();
    let read = step(source, copy, InitialSyncStep::ReadStopPoint { source: at() }, begin_applying);
    let InitialSyncOutcome::StopPointRead(stop) = read else { panic!("{read:?}") };
    let apply = InitialSyncStep::ApplyThrough(stop);
    let applied = step(source, copy, apply, begin_applying);
    assert_eq!(applied, InitialSyncOutcome::AppliedThrough(stop));
}

fn hash(node: &Node) -> Document {
    let mut hash = run(node, doc! { "dbHash": 1 });
    hash.remove("timeMillis");
    hash
}

fn counted(node: &Node) -> i64 {
    let found = run(node, doc! { "find": "counters" });
    let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().get_i64("n").unwrap()
}

fn count(node: &Node, session: u8, number: i64) {
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![session; 16] };
    run(
        node,
        doc! {
            "update": "counters",
            "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1_i64 } }, "upsert": true }],
            "lsid": { "id": id }, "txnNumber": number,
        },
    );
}

#[test]
fn a_copy_holds_what_its_source_holds_and_what_was_written_meanwhile() {
    let (source, copy) = (primary(), member());
    let documents: Vec<Document> = (0..250).map(|id| doc! { "_id": id, "u": id }).collect();
    run(&source, doc! { "insert": "many", "documents": documents });
    let unique = doc! { "key": { "u": 1 }, "name": "u_1", "unique": true };
    run(&source, doc! { "createIndexes": "many", "indexes": [unique] });
    run(&source, doc! { "insert": "other", "documents": [{ "_id": 1 }], "$db": "db2" });
    copy_everything(&source, &copy, || {
        run(&source, doc! { "delete": "many", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] });
        run(&source, doc! { "insert": "many", "documents": [{ "_id": 999, "u": 3 }] });
    });
    assert_eq!(hash(&copy), hash(&source));
    let valid = run(&copy, doc! { "validate": "many", "full": true });
    assert!(valid.get_bool("valid").unwrap(), "{valid}");
    assert_eq!(copy.log_positions().durable, source.log_positions().written);
}

fn rename(node: &Node, from: &str, to: &str) {
    let (from, to) = (format!("db.{from}"), format!("db.{to}"));
    run(node, doc! { "renameCollection": from, "to": to, "dropTarget": true, "$db": "admin" });
}

/// At every command of a copy in turn, two collections change their names and another is made and dropped.
#[test]
fn a_collection_that_is_renamed_while_it_is_read_is_copied_whole() {
    let mut renamed_while_read = 0;
    for at in 0..40 {
        let (source, copy) = (primary(), member());
        for (name, first) in [("a", 0), ("b", 1000)] {
            let documents: Vec<Document> =
                (first..first + 250).map(|id| doc! { "_id": id, "n": id }).collect();
            run(&source, doc! { "insert": name, "documents": documents });
            let index = doc! { "key": { "n": 1 }, "name": format!("of_{name}") };
            run(&source, doc! { "createIndexes": name, "indexes": [index] });
        }
        run(&source, doc! { "insert": "gone", "documents": [{ "_id": 1 }] });
        let mut commands = 0;
        copy_while(
            &source,
            &copy,
            &mut |command| {
                if commands == at {
                    renamed_while_read += i32::from(command.contains_key("getMore"));
                    rename(&source, "a", "other");
                    rename(&source, "b", "a");
                    rename(&source, "other", "b");
                    rename(&source, "gone", "went");
                    run(&source, doc! { "drop": "went" });
                    run(&source, doc! { "insert": "fresh", "documents": [{ "_id": 1 }] });
                    run(&source, doc! { "insert": "a", "documents": [{ "_id": "late" }] });
                    // As `$out` does.
                    rename(&source, "fresh", "latest");
                }
                commands += 1;
            },
            || (),
        );
        assert_eq!(hash(&copy), hash(&source), "renamed before command {at}");
        for name in ["a", "b"] {
            let listed = |node| {
                let listed = run(node, doc! { "listIndexes": name });
                listed.get_document("cursor").unwrap().clone()
            };
            assert_eq!(listed(&copy), listed(&source), "{name}, renamed before command {at}");
            let valid = run(&copy, doc! { "validate": name, "full": true });
            assert!(valid.get_bool("valid").unwrap(), "{valid}");
        }
    }
    assert!(renamed_while_read >= 2, "both were read in several batches");
}

/// A transaction builds indexes of empty collections only; over a copy the collection may hold what came later.
#[test]
fn an_index_that_a_transaction_built_and_that_is_gone_is_no_obstacle_to_a_copy() {
    let (source, copy) = (primary(), member());
    run(&source, doc! { "insert": "first", "documents": [{ "_id": 1 }] });
    let index = doc! { "key": { "n": 1 }, "name": "n" };
    let make = || {
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![9; 16] };
        let statements = [
            doc! { "create": "made", "startTransaction": true },
            doc! { "createIndexes": "made", "indexes": [index.clone()] },
            doc! { "insert": "made", "documents": [{ "_id": 1, "n": 1 }] },
            doc! { "commitTransaction": 1, "$db": "admin" },
        ];
        for mut statement in statements {
            statement.extend(doc! {
                "lsid": { "id": id.clone() }, "txnNumber": 1_i64, "autocommit": false,
                "$readPreference": { "mode": "primary" },
            });
            run(&source, statement);
        }
    };
    let mut listings = 0;
    copy_while(
        &source,
        &copy,
        &mut |command| {
            if command.contains_key("listCollections") && listings == 0 {
                make();
            }
            if command.get_str("listIndexes").is_ok_and(|name| name == "made") {
                run(&source, doc! { "dropIndexes": "made", "index": "n" });
            }
            listings += i32::from(command.contains_key("listCollections"));
        },
        || {
            run(&source, doc! { "createIndexes": "made", "indexes": [index.clone()] });
        },
    );
    assert_eq!(hash(&copy), hash(&source));
    let listed = |node| {
        let listed = run(node, doc! { "listIndexes": "made" });
        listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len()
    };
    assert_eq!((listed(&copy), listed(&source)), (2, 2));
    let valid = run(&copy, doc! { "validate": "made", "full": true });
    assert!(valid.get_bool("valid").unwrap(), "{valid}");
}

/// Found by a world: after a failover to a member that was copied, a client's repeated write was done
/// a second time.
#[test]
fn a_copy_knows_what_sessions_did_before_it() {
    let (source, copy) = (primary(), member());
    count(&source, 7, 1);
    run(&source, doc! { "insert": "other", "documents": [{ "_id": 1 }] });
    copy_everything(&source, &copy, || ());
    lead(&copy);
    count(&copy, 7, 1);
    assert_eq!(counted(&copy), 1, "the repeated write was done again");
    count(&copy, 7, 2);
    assert_eq!(counted(&copy), 2);
}

/// What a member answered in a history that was given up is no answer in another one.
#[test]
fn a_copy_forgets_what_sessions_did_in_the_history_before_it() {
    let (source, copy) = (primary(), primary());
    count(&copy, 7, 1);
    count(&source, 8, 1);
    show(&copy, MemberState::Secondary);
    copy.set_writable(None, now());
    copy_everything(&source, &copy, || ());
    lead(&copy);
    count(&copy, 7, 1);
    assert_eq!(counted(&copy), 2, "a write of another history was taken for this one");
}

/// Lets a search run to its end. Returns what the member is told, and how often the source was asked.
fn search(source: &Node, member: &Node, at_once: usize) -> (Input, usize) {
    let mut search = CommonPointSearch::new(FetchId(1), at_once);
    let mut asked = 0;
    loop {
        match search.ask() {
            SearchAsk::Command(command) => {
                asked += 1;
                let reply = bson::RawDocumentBuf::try_from(&run(source, command)).unwrap();
                search.take_reply(&reply, member).unwrap();
            }
            SearchAsk::Done(input) => return (input, asked),
        }
    }
}

/// The entries of a log, given to another member.
fn follow(source: &Node, member: &Node) {
    let last = member.standing().last.op_time;
    let after = match last == OpTime::NULL {
        true => std::ops::Bound::Unbounded,
        false => std::ops::Bound::Excluded(last.timestamp),
    };
    let found = source.read_oplog(after, usize::MAX, usize::MAX).unwrap();
    member.apply(last, found.entries, now()).unwrap();
}

#[test]
fn the_newest_entry_that_two_logs_share_is_found_in_batches_of_any_size() {
    let (source, other) = (primary(), member());
    for id in 0..30 {
        run(&source, doc! { "insert": "many", "documents": [{ "_id": id }] });
    }
    follow(&source, &other);
    let common_point = other.standing().last;
    // Each goes on alone; the source has more entries than the member has to undo.
    for id in 100..150 {
        run(&source, doc! { "insert": "many", "documents": [{ "_id": id }] });
    }
    show(&other, MemberState::Primary);
    other.set_writable(Some(Term(2)), now());
    for id in 200..220 {
        run(&other, doc! { "insert": "many", "documents": [{ "_id": id }] });
    }
    let found = Input::CommonPointFound { fetch: FetchId(1), common_point };
    for at_once in [1, 7, 50, 51, 1000] {
        let (input, asked) = search(&source, &other, at_once);
        assert_eq!(input, found, "{at_once} at once");
        assert!(at_once > 50 || asked > 1, "{at_once} at once were one batch");
    }
    // The other way round the searcher's log is the longer one.
    assert_eq!(search(&other, &source, 7).0, found);
}

#[test]
fn two_logs_without_a_common_entry_are_told_to_have_none() {
    let (source, other) = (primary(), member());
    show(&other, MemberState::Primary);
    other.set_writable(Some(Term(2)), now());
    for id in 0..5 {
        run(&source, doc! { "insert": "many", "documents": [{ "_id": id }] });
        run(&other, doc! { "insert": "many", "documents": [{ "_id": id }] });
    }
    let source_oldest = other.oldest_entry().unwrap();
    for at_once in [1, 3, 1000] {
        // The source's log ends first, or that of the member.
        let told = search(&other, &source, at_once).0;
        assert_eq!(told, Input::NoCommonPoint { fetch: FetchId(1), source_oldest });
        let told = search(&source, &other, at_once).0;
        assert!(matches!(told, Input::NoCommonPoint { .. }), "{told:?}");
    }
}

/// A follower that was stopped for long has lost its place in the source's oplog. Its stream ends, instead of going on
/// behind the gap.
#[test]
fn a_stream_whose_place_was_trimmed_ends() {
    let options = NodeOptions { oplog_bytes: Some(200_000), ..NodeOptions::default() };
    let node = Node::open(Arc::new(ModelStore::new()), options, now()).unwrap();
    node.join_replica_set(now()).unwrap();
    lead(&node);
    // More than the newest megabyte, which is kept in memory.
    let large = "x".repeat(40_000);
    let insert = |id: i32| {
        run(&node, doc! { "insert": "c", "documents": [{ "_id": id, "large": &large }] });
    };
    insert(0);
    let mut source = EntrySource::open(&view(&node), &node, node.oldest_entry().unwrap()).unwrap();
    assert!(!source.next_batch(&node, view(&node), false).unwrap().unwrap().entries.is_empty());
    let sent = source.sent().unwrap();
    (1..40).for_each(insert);
    let commit_point = node.log_positions().written;
    let rollback_id = node.standing().rollback_id;
    node.decide(Decided { term: Term(1), rollback_id, commit_point, can_commit: true });
    while node.maintain(now()).unwrap() {}
    assert!(node.oldest_entry().unwrap() > sent, "the oplog was trimmed");
    let error = source.next_batch(&node, view(&node), false).map(drop).unwrap_err();
    assert_eq!(error.code, ErrorCode::CAPPED_POSITION_LOST, "{error:?}");
}

/// A step that is interrupted is done again. Its source may have trimmed what was applied by then.
#[test]
fn a_copy_asks_for_no_entry_that_it_has_applied() {
    let options = NodeOptions { oplog_bytes: Some(200_000), ..NodeOptions::default() };
    let source = Node::open(Arc::new(ModelStore::new()), options, now()).unwrap();
    source.join_replica_set(now()).unwrap();
    lead(&source);
    let copy = member();
    // More than the newest megabyte, which is kept in memory.
    let large = "x".repeat(40_000);
    let insert = |id: i32| {
        run(&source, doc! { "insert": "c", "documents": [{ "_id": id, "large": &large }] });
    };
    insert(0);
    let at = || "a:1".parse::<ServerAddress>().unwrap();
    let begin = source.log_positions().written.op_time;
    copy.wipe(now()).unwrap();
    let clone =
        InitialSyncStep::Clone { source: at(), begin_fetching: begin, begin_applying: begin };
    assert_eq!(step(&source, &copy, clone, begin), InitialSyncOutcome::Cloned);
    (1..40).for_each(insert);
    // They were kept meanwhile.
    let from = std::ops::Bound::Included(begin.timestamp);
    let kept = source.read_oplog(from, usize::MAX, usize::MAX).unwrap().entries;
    copy.apply_cloned(kept, now()).unwrap();
    let commit_point = source.log_positions().written;
    let rollback_id = source.standing().rollback_id;
    source.decide(Decided { term: Term(1), rollback_id, commit_point, can_commit: true });
    while source.maintain(now()).unwrap() {}
    assert!(source.oldest_entry().unwrap() > begin, "the oplog was trimmed");
    insert(40);
    let stop = source.log_positions().written;
    let applied = step(&source, &copy, InitialSyncStep::ApplyThrough(stop), begin);
    assert_eq!(applied, InitialSyncOutcome::AppliedThrough(stop));
    assert_eq!(hash(&copy), hash(&source));
}

/// Views have no UUIDs that a source tells. At every command of a copy in turn, a view is changed, one is dropped, and
/// another one made.
#[test]
fn a_copy_has_all_views_of_all_databases() {
    for at in 0..14 {
        let (source, copy) = (primary(), member());
        let view = |least: i32| {
            doc! { "viewOn": "c", "pipeline": [{ "$match": { "_id": { "$gte": least } } }] }
        };
        let on = |command: &str, name: &str, database: &str, least: i32| {
            let mut whole = doc! { command: name, "$db": database };
            whole.extend(view(least));
            run(&source, whole);
        };
        for database in ["db", "db2"] {
            run(&source, doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": database });
            for name in ["a", "b", "kept"] {
                on("create", name, database, 1);
            }
        }
        let mut commands = 0;
        copy_while(
            &source,
            &copy,
            &mut |_| {
                if commands == at {
                    for database in ["db", "db2"] {
                        on("collMod", "a", database, 2);
                        run(&source, doc! { "drop": "b", "$db": database });
                        on("create", "late", database, 3);
                    }
                }
                commands += 1;
            },
            || (),
        );
        assert!(commands > at, "the copy takes {commands} commands");
        for database in ["db", "db2"] {
            let listed = |node| {
                let listed = run(node, doc! { "listCollections": 1, "$db": database });
                listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone()
            };
            assert_eq!(listed(&copy), listed(&source), "changed before command {at}");
        }
    }
}
