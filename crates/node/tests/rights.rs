//! Rights are checked on every namespace that a command touches, and on what belongs to others.

#![allow(clippy::unwrap_used)]

mod support;

use bson::{Bson, Document, doc};
use quorate_node::Context;
use support::{Member, context};

const BAD_VALUE: i32 = 2;
const UNAUTHORIZED: i32 = 13;

fn code(member: &Member, context: &Context, command: Document) -> Option<i32> {
    member.run_as(context, command).get_i32("code").ok()
}

fn names(reply: &Document) -> Vec<String> {
    let listed = reply.get_array("databases").unwrap().iter();
    listed.map(|item| item.as_document().unwrap().get_str("name").unwrap().to_owned()).collect()
}

#[test]
fn users_are_shown_to_those_who_administer_their_database() {
    let member = Member::guarded();
    let admin = member.log_in("root", &[("root", "admin")]);
    for database in ["a", "b"] {
        member.expect(&admin, doc! {"createUser": "u", "pwd": "p", "roles": [], "$db": database});
    }
    let of_a = member.log_in("of-a", &[("userAdmin", "a")]);
    let of_all = member.log_in("of-all", &[("userAdminAnyDatabase", "admin")]);
    let shown = |whom: Bson| doc! {"usersInfo": whom, "showCredentials": true, "$db": "a"};
    let other = doc! {"user": "u", "db": "b"};
    member.expect(&of_a, shown("u".into()));
    for whom in [
        Bson::from(other.clone()),
        Bson::from(vec![Bson::from("u"), Bson::from(other)]),
        Bson::from(doc! {"forAllDBs": true}),
    ] {
        assert_eq!(code(&member, &of_a, shown(whom.clone())), Some(UNAUTHORIZED), "{whom}");
        member.expect(&of_all, shown(whom));
    }
}

/// The manual, `usersInfo`: users can always see what they are themselves.
#[test]
fn users_see_themselves_without_a_right() {
    let member = Member::guarded();
    member.log_in("other", &[]);
    let user = member.log_in("user", &[("read", "db")]);
    let asked = |whom: Bson| doc! {"usersInfo": whom, "$db": "$external"};
    for whom in ["CN=user".into(), Bson::from(doc! {"user": "CN=user", "db": "$external"})] {
        let reply = member.expect(&user, asked(whom.clone()));
        assert_eq!(reply.get_array("users").unwrap().len(), 1);
        let mut credentials = asked(whom);
        credentials.insert("showCredentials", true);
        assert_eq!(code(&member, &user, credentials), Some(UNAUTHORIZED));
    }
    let others = ["CN=other".into(), 1.into(), Bson::from(vec![Bson::from("CN=user")])];
    for whom in others {
        assert_eq!(code(&member, &user, asked(whom.clone())), Some(UNAUTHORIZED), "{whom}");
    }
}

/// A request of several meanings is refused: the right to one of them does not open the others.
#[test]
fn a_user_that_asks_about_itself_is_shown_no_other_user() {
    let member = Member::guarded();
    let admin = member.log_in("admin", &[("root", "admin")]);
    let user = member.log_in("user", &[]);
    let own = doc! {"user": "CN=user", "db": "$external"};
    for more in [
        doc! {"forAllDBs": false},
        doc! {"forAllDBs": true},
        doc! {"forAllDBs": Bson::Null},
        doc! {"role": "read"},
    ] {
        let mut whom = own.clone();
        whom.extend(more);
        let asked = doc! {"usersInfo": whom, "$db": "$external"};
        assert_eq!(code(&member, &user, asked.clone()), Some(UNAUTHORIZED), "{asked}");
        assert_eq!(code(&member, &admin, asked.clone()), Some(BAD_VALUE), "{asked}");
    }
    let none = doc! {"usersInfo": {"forAllDBs": false}, "$db": "$external"};
    assert_eq!(code(&member, &admin, none), Some(BAD_VALUE));
    let role = |asked: Document| doc! {"rolesInfo": asked, "$db": "db"};
    let more = doc! {"role": "read", "db": "db", "forAllDBs": true};
    let reader = member.log_in("reader", &[("read", "db")]);
    assert_eq!(code(&member, &reader, role(doc! {"role": "read", "db": "db"})), None);
    assert_eq!(code(&member, &reader, role(more.clone())), Some(UNAUTHORIZED));
    assert_eq!(code(&member, &admin, role(more)), Some(BAD_VALUE));
}

/// The manual, `listCollections`: `nameOnly` with `authorizedCollections` needs no right, and shows what the rights
/// allow.
#[test]
fn names_of_collections_are_shown_to_those_who_may_see_them() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    member.expect(&root, doc! {"insert": "c", "documents": [{}]});
    let outsider = member.log_in("outsider", &[("read", "elsewhere")]);
    let reader = member.log_in("reader", &[("read", "db")]);
    let list =
        |own: bool| doc! {"listCollections": 1, "nameOnly": true, "authorizedCollections": own};
    let shown = |reply: Document| {
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len()
    };
    assert_eq!(shown(member.expect(&outsider, list(true))), 0);
    assert_eq!(shown(member.expect(&reader, list(true))), 1);
    assert_eq!(code(&member, &outsider, list(false)), Some(UNAUTHORIZED));
    let whole = doc! {"listCollections": 1, "authorizedCollections": true};
    assert_eq!(code(&member, &outsider, whole), Some(UNAUTHORIZED));
}

/// The manual, `$currentOp` and `killOp`: users see and stop what they run themselves, over any of their connections.
#[test]
fn users_see_and_stop_what_they_run_over_all_connections() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    let worker = member.log_in("worker", &[("read", "db")]);
    let other = member.log_in("other", &[]);
    let client = quorate_node::Client { connection_id: 9, ..(*worker.client).clone() };
    let interrupt = std::sync::Arc::default();
    let running = Context { client: client.into(), interrupt, ..worker.clone() };
    let command = doc! {"count": "c", "comment": "slow", "$db": "db"};
    let registered = member.node.register(&running, &quorate_node::Command::new(command));
    let id = registered.id().0;
    let seen = |reply: Document| {
        let listed = match reply.get_array("inprog") {
            Ok(listed) => listed.clone(),
            Err(_) => {
                reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone()
            }
        };
        let ours = |it: &&Bson| it.as_document().unwrap().get_i32("opid").ok() == Some(id as i32);
        listed.iter().find(ours).map(|found| found.as_document().unwrap().clone())
    };
    let stage = |options: Document| {
        let stages = [doc! {"$currentOp": options}];
        doc! {"aggregate": 1, "pipeline": stages.to_vec(), "cursor": {}, "$db": "admin"}
    };
    let own = doc! {"currentOp": 1, "$ownOps": true, "$db": "admin"};
    for command in [stage(doc! {}), own] {
        let found = seen(member.expect(&worker, command.clone())).unwrap();
        let user = doc! {"user": "CN=worker", "db": "$external"};
        assert_eq!(found.get_array("effectiveUsers").unwrap(), &[Bson::from(user)]);
        assert_eq!(seen(member.expect(&other, command.clone())), None, "{command}");
        assert_eq!(seen(member.expect(&root, command.clone())), None, "{command}");
    }
    assert!(seen(member.expect(&root, stage(doc! {"allUsers": true}))).is_some());
    let kill = |id: i64| doc! {"killOp": 1, "op": id, "$db": "admin"};
    assert_eq!(code(&member, &other, kill(id)), Some(UNAUTHORIZED));
    assert!(running.interrupt.check().is_ok());
    member.expect(&other, kill(id + 1_000));
    member.expect(&worker, kill(id));
    assert!(running.interrupt.check().is_err());
}

/// A pipeline that begins with what belongs to the client may join nothing that the client may not read.
#[test]
fn a_pipeline_takes_the_right_to_read_what_it_joins() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    for database in ["db", "admin"] {
        member.expect(&root, doc! {"insert": "c", "documents": [{"_id": 1}], "$db": database});
    }
    let outsider = member.log_in("outsider", &[]);
    let monitor = member.log_in("monitor", &[("clusterMonitor", "admin")]);
    let joins = [
        doc! {"$lookup": {"from": "c", "pipeline": [], "as": "j"}},
        doc! {"$unionWith": "c"},
        doc! {"$unionWith": {"coll": "c", "pipeline": []}},
        doc! {"$facet": {"f": [{"$unionWith": "c"}]}},
        doc! {"$lookup": {"pipeline": [{"$documents": [{}]}, {"$unionWith": "c"}], "as": "j"}},
        doc! {
            "$graphLookup": {
                "from": "c", "startWith": 1, "connectFromField": "_id", "connectToField": "_id",
                "as": "j",
            },
        },
    ];
    for own in [doc! {"$currentOp": {}}, doc! {"$listLocalSessions": {}}] {
        for (join, database) in joins.iter().zip(["db", "admin"].into_iter().cycle()) {
            let stages = vec![own.clone(), join.clone()];
            let aggregate = doc! {"aggregate": 1, "pipeline": stages, "cursor": {}};
            let mut plain = aggregate.clone();
            plain.insert("$db", database);
            assert_eq!(code(&member, &outsider, plain.clone()), Some(UNAUTHORIZED), "{plain}");
            let explain = doc! {"explain": aggregate, "$db": database};
            assert_eq!(code(&member, &outsider, explain.clone()), Some(UNAUTHORIZED), "{explain}");
        }
    }
    // The configuration of the set tells less than its history.
    let history = doc! {
        "aggregate": "system.replset", "pipeline": [{"$unionWith": "oplog.rs"}], "cursor": {},
        "$db": "local",
    };
    assert_eq!(code(&member, &monitor, history), Some(UNAUTHORIZED));
    let own = doc! {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}, "$db": "admin"};
    member.expect(&outsider, own.clone());
    let mut elsewhere = own;
    elsewhere.insert("$db", "db");
    assert_eq!(code(&member, &outsider, elsewhere), Some(73));
}

#[test]
fn an_explain_takes_the_rights_of_its_command() {
    let member = Member::guarded();
    member.log_in("first", &[]);
    let reader = member.log_in("reader", &[("read", "admin"), ("read", "db")]);
    let explain = |inner: Document, database: &str| doc! {"explain": inner, "$db": database};
    for inner in [
        doc! {"find": "system.users", "filter": {"credentials.SCRAM-SHA-256.storedKey": {"$gt": "M"}}},
        doc! {"count": "system.users", "query": {}},
        doc! {"aggregate": "system.users", "pipeline": [], "cursor": {}},
    ] {
        assert_eq!(code(&member, &reader, explain(inner, "admin")), Some(UNAUTHORIZED));
    }
    // Whether or not a document is there to be joined.
    for stage in [
        doc! {"$lookup": {"from": "system.users", "pipeline": [], "as": "j"}},
        doc! {"$unionWith": "system.users"},
        doc! {"$facet": {"f": [{"$unionWith": {"coll": "system.users", "pipeline": []}}]}},
    ] {
        let aggregate = doc! {"aggregate": "nothing", "pipeline": [stage], "cursor": {}};
        assert_eq!(code(&member, &reader, explain(aggregate.clone(), "admin")), Some(UNAUTHORIZED));
        let mut aggregate = aggregate;
        aggregate.insert("$db", "admin");
        assert_eq!(code(&member, &reader, aggregate), Some(UNAUTHORIZED));
    }
    member.expect(&reader, explain(doc! {"find": "c"}, "db"));
    let update = doc! {"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}}]};
    assert_eq!(code(&member, &reader, explain(update, "db")), Some(UNAUTHORIZED));
    // A view does not help.
    let owner = member.log_in("owner", &[("readWrite", "admin")]);
    let view = doc! {"create": "v", "viewOn": "system.users", "pipeline": [], "$db": "admin"};
    assert_eq!(code(&member, &owner, view.clone()), Some(UNAUTHORIZED));
    let root = member.log_in("root", &[("root", "admin")]);
    member.expect(&root, view);
    assert_eq!(code(&member, &owner, doc! {"find": "v", "$db": "admin"}), Some(UNAUTHORIZED));
    let inner = explain(doc! {"find": "v"}, "admin");
    assert_eq!(code(&member, &owner, inner), Some(UNAUTHORIZED));
}

#[test]
fn local_and_config_are_outside_the_roles_for_any_database() {
    let member = Member::guarded();
    for role in ["readAnyDatabase", "readWriteAnyDatabase", "dbAdminAnyDatabase", "restore"] {
        let user = member.log_in(role, &[(role, "admin")]);
        for database in ["local", "config"] {
            for command in [
                doc! {"find": "oplog.rs", "$db": database},
                doc! {"aggregate": "oplog.rs", "pipeline": [], "cursor": {}, "$db": database},
                doc! {"insert": "x", "documents": [{}], "$db": database},
                doc! {"listCollections": 1, "$db": database},
                doc! {"drop": "x", "$db": database},
            ] {
                let refused = code(&member, &user, command.clone());
                assert_eq!(refused, Some(UNAUTHORIZED), "{role}: {command}");
            }
        }
    }
    // A dump with the oplog reads it, and changes nothing.
    let backup = member.log_in("backup", &[("backup", "admin")]);
    member.expect(&backup, doc! {"find": "oplog.rs", "$db": "local"});
    let write = doc! {"insert": "x", "documents": [{}], "$db": "local"};
    assert_eq!(code(&member, &backup, write), Some(UNAUTHORIZED));
    let reader = member.log_in("local-reader", &[("read", "local")]);
    member.expect(&reader, doc! {"find": "oplog.rs", "$db": "local"});
    let monitor = member.log_in("monitor", &[("clusterMonitor", "admin")]);
    member.expect(&monitor, doc! {"find": "system.replset", "$db": "local"});
    let oplog = doc! {"find": "oplog.rs", "$db": "local"};
    assert_eq!(code(&member, &monitor, oplog), Some(UNAUTHORIZED));
}

/// The manual's page on built-in roles: those that watch or administer the server read the collections of `config`
/// but those of the system, and of `local` those about the set.
#[test]
fn roles_about_the_server_read_no_documents_of_users_in_config_and_local() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    let reads = |database: &str, collection: &str| {
        let join = doc! {"$unionWith": collection};
        let inside = doc! {"$lookup": {"from": "c", "pipeline": [join.clone()], "as": "j"}};
        let pipeline = |collection: &str, stages: Vec<Document>| {
            doc! {"aggregate": collection, "pipeline": stages, "cursor": {}}
        };
        let commands = [
            doc! {"find": collection},
            doc! {"count": collection},
            doc! {"distinct": collection, "key": "preImage"},
            doc! {"explain": {"find": collection}},
            pipeline(collection, Vec::new()),
            pipeline("system.replset", vec![join]),
            pipeline("settings", vec![inside]),
        ];
        commands.map(|mut command| {
            command.insert("$db", database);
            command
        })
    };
    for role in ["clusterMonitor", "clusterManager", "clusterAdmin", "hostManager"] {
        let user = member.log_in(role, &[(role, "admin")]);
        for (database, collection) in [
            ("config", "system.preimages"),
            ("config", "system.profile2"),
            ("local", "replset.sessions."),
            ("local", "replset.sessions.00ff"),
            ("local", "oplog.rs"),
        ] {
            for command in reads(database, collection) {
                let refused = code(&member, &user, command.clone());
                assert_eq!(refused, Some(UNAUTHORIZED), "{role}: {command}");
                assert_ne!(code(&member, &root, command.clone()), Some(UNAUTHORIZED), "{command}");
            }
        }
        for (database, collection) in [
            ("config", "settings"),
            ("config", "transactions"),
            ("local", "system.replset"),
            ("local", "replset.election"),
        ] {
            member.expect(&user, doc! {"find": collection, "$db": database});
        }
    }
}

#[test]
fn a_rename_takes_rights_on_both_sides() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    let rename = |from: &str, to: &str| doc! {"renameCollection": from, "to": to, "$db": "admin"};
    let of_a = member.log_in("of-a", &[("readWrite", "a"), ("readWrite", "admin")]);
    let of_b = member.log_in("of-b", &[("readWrite", "b"), ("readWrite", "admin")]);
    let of_both = member.log_in("of-both", &[("readWrite", "a"), ("readWrite", "b")]);
    member.expect(&root, doc! {"insert": "c", "documents": [{"_id": 1}], "$db": "a"});
    for user in [&of_a, &of_b] {
        assert_eq!(code(&member, user, rename("a.c", "b.c")), Some(UNAUTHORIZED));
    }
    member.expect(&of_both, rename("a.c", "b.c"));
}

#[test]
fn databases_are_listed_as_far_as_the_client_has_rights() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    for database in ["a", "b"] {
        member.expect(&root, doc! {"insert": "c", "documents": [{"_id": 1}], "$db": database});
    }
    let list = doc! {"listDatabases": 1, "nameOnly": true, "$db": "admin"};
    let with = |authorized: bool| {
        let mut list = list.clone();
        list.insert("authorizedDatabases", authorized);
        list
    };
    assert_eq!(names(&member.expect(&root, list.clone())), ["a", "admin", "b", "config", "local"]);
    let of_a = member.log_in("of-a", &[("read", "a")]);
    assert_eq!(names(&member.expect(&of_a, list.clone())), ["a"]);
    assert_eq!(names(&member.expect(&of_a, with(true))), ["a"]);
    assert_eq!(code(&member, &of_a, with(false)), Some(UNAUTHORIZED));
    let of_all = member.log_in("of-all", &[("readAnyDatabase", "admin")]);
    let all = ["a", "admin", "b", "config", "local"];
    assert_eq!(names(&member.expect(&of_all, list.clone())), all);
    assert_eq!(names(&member.expect(&of_all, with(true))), ["a", "admin", "b"]);
}

#[test]
fn a_cursor_belongs_to_its_user() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    let documents: Vec<_> = (0..5).map(|n| doc! {"_id": n}).collect();
    member.expect(&root, doc! {"insert": "c", "documents": documents});
    let [one, other] = ["one", "other"].map(|name| member.log_in(name, &[("read", "db")]));
    let open = || {
        let reply = member.expect(&one, doc! {"find": "c", "batchSize": 2});
        reply.get_document("cursor").unwrap().get_i64("id").unwrap()
    };
    let id = open();
    let more = doc! {"getMore": id, "collection": "c"};
    let kill = doc! {"killCursors": "c", "cursors": [id]};
    assert_eq!(code(&member, &other, more.clone()), Some(UNAUTHORIZED));
    assert_eq!(code(&member, &other, kill.clone()), Some(UNAUTHORIZED));
    member.expect(&one, more);
    let id = open();
    member.expect(&one, doc! {"killCursors": "c", "cursors": [id]});
    // Those who administer the server may close any.
    let id = open();
    let reply = member.expect(&root, doc! {"killCursors": "c", "cursors": [id]});
    assert_eq!(reply.get_array("cursorsKilled").unwrap().len(), 1);
}

/// The manual, "dropUser": a connection that is there loses the rights of its user. One of that name that comes later is
/// another user.
#[test]
fn a_connection_has_no_rights_of_a_user_that_came_after_its_own() {
    let member = Member::guarded();
    let admin = member.connect("CN=member", true);
    member.expect(&admin, doc! {"insert": "c", "documents": [{}]});
    let before = member.log_in("ada", &[("read", "db")]);
    let find = || doc! {"find": "c"};
    let roles = |of: &Context| {
        let status = member.expect(of, doc! {"connectionStatus": 1});
        let info = status.get_document("authInfo").unwrap();
        info.get_array("authenticatedUserRoles").unwrap().len()
    };
    member.expect(&before, find());
    let more = doc! {"grantRolesToUser": "CN=ada", "roles": [{"role": "readWrite", "db": "db"}]};
    let on_external = |mut command: Document| {
        command.insert("$db", "$external");
        member.expect(&admin, command);
    };
    on_external(more);
    member.expect(&before, doc! {"insert": "c", "documents": [{}]});
    on_external(doc! {"dropUser": "CN=ada"});
    assert_eq!(code(&member, &before, find()), Some(UNAUTHORIZED));
    let after = member.log_in("ada", &[("read", "db"), ("root", "admin")]);
    let seen = (code(&member, &before, find()), roles(&before));
    assert_eq!(seen, (Some(UNAUTHORIZED), 0));
    member.expect(&after, find());
    assert_eq!(roles(&after), 2);
}

#[test]
fn clients_see_their_own_operations_without_a_role() {
    let member = Member::guarded();
    let outsider = member.log_in("outsider", &[]);
    member.expect(&outsider, doc! {"currentOp": 1, "$ownOps": true, "$db": "admin"});
    let all = doc! {"currentOp": 1, "$db": "admin"};
    assert_eq!(code(&member, &outsider, all), Some(UNAUTHORIZED));
}

/// What a client that is not logged in is told about a user.
fn asked(member: &Member, name: &str, mechanism: &str) -> (Document, Document) {
    let hello = member.run_as(
        &context(),
        doc! {"hello": 1, "saslSupportedMechs": format!("db.{name}"), "$db": "admin"},
    );
    let payload = format!("n,,n={name},r=abcdefghijklmnopqrstuvwx");
    let payload =
        bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: payload.into() };
    let start = member.run_as(
        &context(),
        doc! {"saslStart": 1, "mechanism": mechanism, "payload": payload, "$db": "db"},
    );
    (hello, start)
}

#[test]
fn unknown_users_cannot_be_told_from_known_ones() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    member.expect(&root, doc! {"createUser": "known", "pwd": "p", "roles": []});
    let salt = |start: &Document| {
        let payload = start.get_binary_generic("payload").unwrap();
        let text = String::from_utf8(payload.clone()).unwrap();
        let parts: Vec<_> = text.split(',').map(str::to_owned).collect();
        (parts[1].clone(), parts[2].clone())
    };
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-1"] {
        let (known_hello, known) = asked(&member, "known", mechanism);
        let (unknown_hello, unknown) = asked(&member, "unknown", mechanism);
        let mechanisms = |hello: &Document| hello.get_array("saslSupportedMechs").cloned().ok();
        assert!(mechanisms(&known_hello).is_some());
        assert_eq!(mechanisms(&known_hello), mechanisms(&unknown_hello));
        let fields = |reply: &Document| reply.keys().cloned().collect::<Vec<_>>();
        assert_eq!(fields(&known), fields(&unknown), "{unknown}");
        let ((known_salt, known_count), (salt_once, count)) = (salt(&known), salt(&unknown));
        assert_eq!(known_salt.len(), salt_once.len());
        assert_eq!(known_count, count);
        // A salt that changed would tell that there is no such user, and so would a common one.
        let (_, again) = asked(&member, "unknown", mechanism);
        assert_eq!(salt(&again).0, salt_once);
        let (_, another) = asked(&member, "another", mechanism);
        assert_ne!(salt(&another).0, salt_once);
    }
}

#[test]
fn a_user_without_the_mechanism_looks_like_an_unknown_one() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    let create = doc! {"createUser": "u", "pwd": "p", "roles": [], "mechanisms": ["SCRAM-SHA-256"]};
    member.expect(&root, create);
    let (_, start) = asked(&member, "u", "SCRAM-SHA-1");
    assert_eq!(start.get_f64("ok").unwrap(), 1.0, "{start}");
}

/// Drivers guess SCRAM-SHA-256 with their first hello, and go on with the guess if it is answered.
#[test]
fn a_guess_at_a_mechanism_that_the_user_lacks_is_not_answered() {
    let member = Member::guarded();
    let root = member.log_in("root", &[("root", "admin")]);
    let create = doc! {"createUser": "u", "pwd": "p", "roles": [], "mechanisms": ["SCRAM-SHA-1"]};
    member.expect(&root, create);
    let guessed = |mechanism: &str| {
        let payload = bson::Binary {
            subtype: bson::spec::BinarySubtype::Generic,
            bytes: b"n,,n=u,r=abcdefghijklmnopqrstuvwx".to_vec(),
        };
        let guess = doc! {"saslStart": 1, "mechanism": mechanism, "payload": payload, "db": "db"};
        let hello = doc! {"hello": 1, "speculativeAuthenticate": guess, "$db": "admin"};
        member.run_as(&context(), hello).contains_key("speculativeAuthenticate")
    };
    assert!(guessed("SCRAM-SHA-1"));
    assert!(!guessed("SCRAM-SHA-256"));
}

#[test]
fn commands_for_tests_are_off_unless_the_server_is_started_with_them() {
    let fail = doc! {"configureFailPoint": "failCommand", "mode": "off", "$db": "admin"};
    let member = Member::new();
    let reply = member.run(fail.clone());
    assert_eq!(reply.get_i32("code").unwrap(), 59, "{reply}");
    assert!(reply.get_str("errmsg").unwrap().contains("--enable-test-commands"), "{reply}");
    let listed = member.ok(doc! {"listCommands": 1});
    assert!(!listed.get_document("commands").unwrap().contains_key("configureFailPoint"));
    let parameter = doc! {"getParameter": 1, "enableTestCommands": 1, "$db": "admin"};
    assert!(!member.ok(parameter.clone()).get_bool("enableTestCommands").unwrap());
    let member = Member::for_tests();
    member.ok(fail);
    assert!(member.ok(parameter).get_bool("enableTestCommands").unwrap());
}

/// Specification: the manual's page on the variables of expressions. A view shows each user what the user may see.
#[test]
fn expressions_see_the_roles_of_the_user() {
    let member = Member::guarded();
    let owner = member.log_in("owner", &[("root", "admin")]);
    let reader = member.log_in("reader", &[("read", "db")]);
    let show = doc! {"$project": {"mine": "$$USER_ROLES"}};
    let view = doc! {"create": "v", "viewOn": "c", "pipeline": [show]};
    member.expect(&owner, doc! {"insert": "c", "documents": [{"_id": 1}]});
    member.expect(&owner, view);
    let first = |context, command| {
        let reply = member.expect(context, command);
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        batch[0].as_document().unwrap().clone()
    };
    let role = |role: &str, db: &str| doc! {"_id": format!("{db}.{role}"), "role": role, "db": db};
    let seen = first(&reader, doc! {"find": "v"});
    assert_eq!(seen, doc! {"_id": 1, "mine": [role("read", "db")]});
    let seen = first(&owner, doc! {"find": "v"});
    assert_eq!(seen, doc! {"_id": 1, "mine": [role("root", "admin")]});
    let names = doc! {"$project": {"_id": 0, "names": "$$USER_ROLES.role"}};
    let named = first(&reader, doc! {"aggregate": "c", "pipeline": [names], "cursor": {}});
    assert_eq!(named, doc! {"names": ["read"]});
}

/// Specification: the manual's page on built-in roles, "clusterMonitor". Tools that watch a deployment have it alone.
#[test]
fn a_monitor_measures_collections_and_reads_no_document() {
    let member = Member::guarded();
    let owner = member.log_in("owner", &[("root", "admin")]);
    let monitor = member.log_in("monitor", &[("clusterMonitor", "admin")]);
    member.expect(&owner, doc! {"insert": "c", "documents": [{"_id": 1}]});
    let pipeline =
        |stages: Vec<Document>| doc! {"aggregate": "c", "pipeline": stages, "cursor": {}};
    let join = doc! {"$lookup": {"from": "c", "pipeline": [], "as": "all"}};
    let stats = doc! {"$collStats": {"count": {}}};
    member.expect(&monitor, pipeline(vec![stats.clone()]));
    member.expect(&monitor, pipeline(vec![doc! {"$indexStats": {}}]));
    member.expect(&monitor, doc! {"collStats": "c"});
    let refused = [
        pipeline(vec![stats, join]),
        pipeline(vec![doc! {"$match": {}}]),
        doc! {"find": "c"},
        doc! {"listCollections": 1},
    ];
    for command in refused {
        assert_eq!(code(&member, &monitor, command.clone()), Some(UNAUTHORIZED), "{command}");
    }
}
