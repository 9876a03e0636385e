//! Users as tools move and show them: dumps, roles, privileges.

#![allow(clippy::unwrap_used)]

mod support;

use bson::{Bson, Document, doc};
use quorate_node::Context;
use support::{Member, context};

const UNAUTHORIZED: i32 = 13;

fn on_admin(mut command: Document) -> Document {
    command.insert("$db", "admin");
    command
}

/// The users as a dump has them.
fn dumped(member: &Member) -> Vec<Document> {
    member.find(doc! {"find": "system.users", "sort": {"_id": 1}, "$db": "admin"})
}

/// Loads users where mongorestore does before it names the collection.
fn load(member: &Member, users: Vec<Document>) {
    member.ok(on_admin(doc! {"drop": "tempusers"}));
    if !users.is_empty() {
        member.ok(on_admin(doc! {"insert": "tempusers", "documents": users}));
    }
}

fn merge(more: Document) -> Document {
    let mut command =
        doc! {"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.tempusers", "db": ""};
    command.extend(more);
    on_admin(command)
}

/// mongorestore compares the parameter with the dump's `admin.system.version` before it restores users.
#[test]
fn the_form_of_the_users_is_told_and_dumped_with_them() {
    let member = Member::new();
    let asked = on_admin(doc! {"getParameter": 1, "authSchemaVersion": 1});
    assert_eq!(member.ok(asked).get_i32("authSchemaVersion").unwrap(), 5);
    let versions = || member.find(doc! {"find": "system.version", "$db": "admin"});
    assert!(versions().is_empty(), "there are no users");
    for name in ["u", "v"] {
        member.ok(doc! {"createUser": name, "pwd": "p", "roles": ["read"]});
    }
    assert_eq!(versions(), [doc! {"_id": "authSchema", "currentVersion": 5}]);
    let change = doc! {"delete": "system.version", "deletes": [{"q": {}, "limit": 0}]};
    assert_eq!(member.code(on_admin(change)), 20);
}

#[test]
fn the_users_of_a_dump_are_put_in_place() {
    let source = Member::new();
    source.ok(doc! {"createUser": "u", "pwd": "p", "roles": ["read"], "customData": {"n": 1}});
    source.ok(on_admin(doc! {"createUser": "a", "pwd": "p", "roles": ["root"]}));
    source.ok(doc! {"createUser": "CN=x", "roles": [], "$db": "$external"});
    let users = dumped(&source);
    let target = Member::new();
    target.ok(doc! {"createUser": "u", "pwd": "other", "roles": ["readWrite"]});
    target.ok(doc! {"createUser": "stays", "pwd": "p", "roles": []});
    let stays = dumped(&target).into_iter().find(|user| user.get_str("user").unwrap() == "stays");
    load(&target, users.clone());
    target.ok(merge(doc! {"drop": false}));
    let mut expected = users.clone();
    expected.extend(stays);
    expected.sort_by_key(|user| user.get_str("_id").unwrap().to_owned());
    assert_eq!(dumped(&target), expected, "the same credentials, identifiers and roles");
    // Those of one database, and there no others.
    load(&target, Vec::new());
    target.ok(merge(doc! {"drop": true, "db": "db"}));
    let left: Vec<_> =
        users.iter().filter(|user| user.get_str("db").unwrap() != "db").cloned().collect();
    assert_eq!(dumped(&target), left);
    let versions = target.find(doc! {"find": "system.version", "$db": "admin"});
    assert_eq!(versions.len(), 1);
}

#[test]
fn one_user_that_cannot_be_kept_as_it_is_keeps_all_from_being_put_in_place() {
    let member = Member::new();
    member.ok(doc! {"createUser": "u", "pwd": "p", "roles": ["read"]});
    let user = dumped(&member).remove(0);
    member.ok(doc! {"dropUser": "u"});
    let changed = |name: &str, value: Bson| {
        let mut changed = user.clone();
        changed.insert(name, value);
        changed
    };
    let restriction = doc! {"clientSource": ["127.0.0.1"]};
    let wrong = [
        changed("db", "admin".into()),
        changed("user", "".into()),
        changed("credentials", doc! {"SCRAM-SHA-1": {"iterationCount": 1}}.into()),
        changed("roles", Bson::Array(vec![doc! {"role": "mine", "db": "db"}.into()])),
        changed("roles", Bson::Null),
        changed("authenticationRestrictions", Bson::Array(vec![restriction.into()])),
        changed("surprise", 1.into()),
    ];
    let mut good = changed("user", "good".into());
    good.insert("_id", "db.good");
    for wrong in wrong {
        load(&member, vec![good.clone(), wrong.clone()]);
        member.code(merge(doc! {"drop": true}));
        assert!(dumped(&member).is_empty(), "{wrong}");
    }
    load(&member, vec![good, changed("authenticationRestrictions", Bson::Array(Vec::new()))]);
    member.ok(merge(doc! {}));
    assert_eq!(dumped(&member).len(), 2);
    // Roles of one's own are not offered; an empty list of them is.
    let roles = |more: Document| {
        let mut command = doc! {"_mergeAuthzCollections": 1, "drop": false, "db": ""};
        command.extend(more);
        on_admin(command)
    };
    member.ok(roles(doc! {"tempRolesCollection": "admin.temproles"}));
    member.ok(on_admin(doc! {"insert": "temproles", "documents": [{"role": "mine", "db": "db"}]}));
    assert_eq!(member.code(roles(doc! {"tempRolesCollection": "admin.temproles"})), 115);
    assert_eq!(member.code(roles(doc! {"tempUsersCollection": "db.tempusers"})), 2);
    assert_eq!(member.code(roles(doc! {})), 2);
}

/// The manual, "restore" and "backup": both read parameters, and `restore` puts users in place.
#[test]
fn a_restorer_needs_no_other_role() {
    let member = Member::guarded();
    let restorer = member.log_in("restorer", &[("restore", "admin")]);
    let parameter = on_admin(doc! {"getParameter": 1, "authSchemaVersion": 1});
    let run = |context: &Context, command: &Document| member.run_as(context, command.clone());
    let code = |context: &Context, command: &Document| run(context, command).get_i32("code").ok();
    assert_eq!(code(&restorer, &parameter), None);
    assert_eq!(code(&restorer, &merge(doc! {})), None);
    let others = [
        member.log_in("reader", &[("readWriteAnyDatabase", "admin")]),
        member.log_in("of-one", &[("userAdmin", "admin")]),
        member.log_in("of-db", &[("dbOwner", "db")]),
    ];
    for other in &others {
        assert_eq!(code(other, &merge(doc! {})), Some(UNAUTHORIZED));
        assert_eq!(code(other, &parameter), Some(UNAUTHORIZED));
    }
    let backup = member.log_in("backup", &[("backup", "admin")]);
    assert_eq!(code(&backup, &parameter), None);
    assert_eq!(code(&backup, &merge(doc! {})), Some(UNAUTHORIZED));
    assert_eq!(code(&context(), &merge(doc! {})), Some(UNAUTHORIZED));
}

fn roles(reply: &Document) -> Vec<Document> {
    let roles = reply.get_array("roles").unwrap().iter();
    roles.map(|role| role.as_document().unwrap().clone()).collect()
}

/// The actions on a resource.
fn actions(privileges: &[Bson], resource: &Document) -> Vec<String> {
    let privileges = privileges.iter().map(|privilege| privilege.as_document().unwrap());
    let mut found = privileges.filter(|it| it.get_document("resource").unwrap() == resource);
    let Some(privilege) = found.next() else { return Vec::new() };
    assert!(found.next().is_none(), "a resource is there once");
    let actions = privilege.get_array("actions").unwrap().iter();
    actions.map(|action| action.as_str().unwrap().to_owned()).collect()
}

/// The manual, "rolesInfo".
#[test]
fn roles_are_shown_with_what_they_allow() {
    let member = Member::new();
    assert!(roles(&member.ok(doc! {"rolesInfo": 1})).is_empty(), "none is user-defined");
    let of_db = roles(&member.ok(doc! {"rolesInfo": 1, "showBuiltinRoles": true}));
    let of_admin = roles(&member.ok(on_admin(doc! {"rolesInfo": 1, "showBuiltinRoles": true})));
    assert_eq!((of_db.len(), of_admin.len()), (5, 16));
    let read = doc! {
        "role": "read", "db": "db", "isBuiltin": true, "roles": [], "inheritedRoles": [],
    };
    assert_eq!(of_db[0], read);
    for named in [Bson::from("read"), doc! {"role": "read", "db": "db"}.into()] {
        let several = Bson::Array(vec![named.clone(), "nonesuch".into(), "root".into()]);
        for asked in [named, several] {
            assert_eq!(roles(&member.ok(doc! {"rolesInfo": asked})), std::slice::from_ref(&read));
        }
    }
    assert_eq!(member.code(doc! {"rolesInfo": 2}), 2);
    let asked = doc! {
        "rolesInfo": "readWrite", "showPrivileges": true, "showAuthenticationRestrictions": true,
    };
    let shown = roles(&member.ok(asked)).remove(0);
    let privileges = shown.get_array("privileges").unwrap();
    assert_eq!(shown.get_array("inheritedPrivileges").unwrap(), privileges);
    assert!(shown.get_array("authenticationRestrictions").unwrap().is_empty());
    let on_db = actions(privileges, &doc! {"db": "db", "collection": ""});
    let expected = [
        "changeStream", "collStats", "createCollection", "createIndex", "dbHash", "dbStats",
        "dropCollection", "dropIndex", "find", "indexStats", "insert", "killCursors",
        "listCollections", "listIndexes", "remove", "renameCollectionSameDB", "update",
    ];
    assert_eq!(on_db, expected);
    assert_eq!(privileges.len(), 1, "{shown}");
}

/// What is shown is what is allowed: the privileges of every role and what [`docs/security.md`] says of it come from
/// the same rules.
#[test]
fn privileges_name_any_database_the_server_and_what_is_apart() {
    let member = Member::new();
    let of = |role: &str| {
        let asked = on_admin(doc! {"rolesInfo": role, "showPrivileges": true});
        roles(&member.ok(asked)).remove(0).get_array("privileges").unwrap().clone()
    };
    let any = doc! {"db": "", "collection": ""};
    let users = doc! {"db": "admin", "collection": "system.users"};
    let cluster = doc! {"cluster": true};
    let local = doc! {"db": "local", "collection": ""};
    let has = |role: &str, resource: &Document, action: &str| {
        actions(&of(role), resource).iter().any(|known| known == action)
    };
    assert!(has("readAnyDatabase", &any, "find") && !has("readAnyDatabase", &local, "find"));
    assert!(has("backup", &local, "find") && has("backup", &users, "find"));
    assert!(!has("readAnyDatabase", &users, "find") && !has("backup", &any, "insert"));
    let images = doc! {"db": "config", "collection": "system.preimages"};
    let config = doc! {"db": "config", "collection": ""};
    assert!(has("backup", &images, "find") && has("clusterMonitor", &config, "find"));
    assert!(!has("clusterMonitor", &images, "find"));
    assert!(has("clusterMonitor", &cluster, "serverStatus"));
    assert!(!has("clusterMonitor", &cluster, "shutdown") && !has("clusterMonitor", &any, "find"));
    assert!(has("hostManager", &cluster, "shutdown") && has("restore", &cluster, "getParameter"));
    assert!(has("userAdminAnyDatabase", &any, "createUser"));
    assert!(has("root", &cluster, "quorateBackup") && has("root", &local, "insert"));
}

/// The manual, "usersInfo" and "connectionStatus".
#[test]
fn users_are_shown_with_their_privileges() {
    let member = Member::guarded();
    let admin = member.log_in("admin", &[("userAdminAnyDatabase", "admin")]);
    let user = member.log_in("u", &[("read", "db"), ("readWrite", "other")]);
    let named = doc! {
        "usersInfo": "CN=u", "showPrivileges": true, "showCustomData": false, "$db": "$external",
    };
    for asking in [&admin, &user] {
        let reply = member.expect(asking, named.clone());
        let shown = reply.get_array("users").unwrap()[0].as_document().unwrap().clone();
        assert_eq!(shown.get_array("inheritedRoles").unwrap().len(), 2);
        let privileges = shown.get_array("inheritedPrivileges").unwrap();
        let on = |database: &str| actions(privileges, &doc! {"db": database, "collection": ""});
        assert!(on("db").contains(&"find".to_owned()) && !on("db").contains(&"insert".to_owned()));
        assert!(on("other").contains(&"insert".to_owned()) && on("").is_empty());
        assert!(shown.get_array("inheritedAuthenticationRestrictions").unwrap().is_empty());
    }
    for all in [Bson::from(1), doc! {"forAllDBs": true}.into()] {
        let asked = doc! {"usersInfo": all, "showPrivileges": true, "$db": "$external"};
        assert_eq!(member.run_as(&admin, asked).get_i32("code").unwrap(), 20);
    }
    let status = |more: Document| {
        let mut asked = doc! {"connectionStatus": 1};
        asked.extend(more);
        member.expect(&user, asked).get_document("authInfo").unwrap().clone()
    };
    assert!(!status(doc! {}).contains_key("authenticatedUserPrivileges"));
    let own = status(doc! {"showPrivileges": true});
    assert_eq!(own.get_array("authenticatedUserPrivileges").unwrap().len(), 2);
}

#[test]
fn custom_data_is_left_out_on_request() {
    let member = Member::new();
    member.ok(doc! {"createUser": "u", "pwd": "p", "roles": [], "customData": {"n": 1}});
    let has = |asked: Document| {
        let reply = member.ok(asked);
        reply.get_array("users").unwrap()[0].as_document().unwrap().contains_key("customData")
    };
    assert!(has(doc! {"usersInfo": "u"}) && has(doc! {"usersInfo": 1, "showCustomData": true}));
    assert!(!has(doc! {"usersInfo": 1, "showCustomData": false}));
}

/// The manual, "rolesInfo": it takes the role itself, or the right to see the roles of its database.
#[test]
fn roles_are_shown_to_those_who_have_them_or_administer_users() {
    let member = Member::guarded();
    let reader = member.log_in("reader", &[("read", "db")]);
    let owner = member.log_in("owner", &[("userAdmin", "db")]);
    let code = |context: &Context, asked: Bson, database: &str| {
        let asked = doc! {"rolesInfo": asked, "showPrivileges": true, "$db": database};
        member.run_as(context, asked).get_i32("code").ok()
    };
    let own = doc! {"role": "read", "db": "db"};
    assert_eq!(code(&reader, "read".into(), "db"), None);
    assert_eq!(code(&reader, own.clone().into(), "other"), None);
    assert_eq!(code(&reader, Bson::Array(vec![own.clone().into()]), "other"), None);
    let others = Bson::Array(vec![own.into(), "readWrite".into()]);
    for (asked, database) in [
        ("read".into(), "other"),
        ("readWrite".into(), "db"),
        (1.into(), "db"),
        (Bson::Array(Vec::new()), "db"),
        (others, "db"),
    ] {
        assert_eq!(code(&reader, asked, database), Some(UNAUTHORIZED));
    }
    assert_eq!(code(&owner, "readWrite".into(), "db"), None);
    assert_eq!(code(&owner, 1.into(), "db"), None);
    assert_eq!(code(&owner, "read".into(), "admin"), Some(UNAUTHORIZED));
}
