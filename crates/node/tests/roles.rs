//! Who may run which command: the tables of `docs/security.md` say it, and every command keeps to them.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bson::{Document, doc};
use quorate_node::Context;
use support::{Member, context};

const UNAUTHORIZED: i32 = 13;

/// Commands whose first field names a collection.
const ON_COLLECTIONS: [&str; 14] = [
    "find", "count", "distinct", "aggregate", "insert", "update", "delete", "findAndModify",
    "create", "drop", "collMod", "createIndexes", "listIndexes", "collStats",
];

/// What the page says.
struct Page {
    /// The right that each command takes.
    commands: BTreeMap<String, String>,
    /// The rights of each role on each namespace.
    roles: Vec<(String, Vec<Allowed>)>,
}

/// A namespace and the rights on it.
type Allowed = (String, BTreeSet<String>);

impl Page {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
        let page = std::fs::read_to_string(path).unwrap();
        let made = page.split("<!-- The next two tables").nth(1).unwrap();
        let made = made.split("<!-- End of the made tables").next().unwrap();
        let cells = |line: &str| -> Vec<String> {
            let inner = line.trim().trim_matches('|');
            inner.split('|').map(|cell| cell.trim().replace('`', "")).collect()
        };
        let tables: Vec<Vec<Vec<String>>> = made
            .split("\n\n")
            .filter(|block| block.starts_with('|'))
            .map(|block| block.lines().map(cells).collect())
            .collect();
        let [rights, roles] = &tables[..] else { panic!("two tables, not {}", tables.len()) };
        let commands = rights[2..].iter().flat_map(|row| {
            row[1].split(' ').map(|name| (name.to_owned(), row[0].clone())).collect::<Vec<_>>()
        });
        let of_role = |row: &Vec<String>| {
            let places = roles[0][1..].iter().zip(&row[1..]);
            let rights = places.map(|(place, rights)| {
                (place.clone(), rights.split(", ").map(str::to_owned).collect())
            });
            (row[0].clone(), rights.collect())
        };
        Self { commands: commands.collect(), roles: roles[2..].iter().map(of_role).collect() }
    }
}

/// The code with which the command is refused, or fails for want of arguments.
fn code(member: &Member, context: &Context, command: Document) -> Option<i32> {
    member.run_as(context, command).get_i32("code").ok()
}

#[test]
fn the_page_lists_every_command() {
    let listed = Member::for_tests().ok(doc! {"listCommands": 1});
    let listed: BTreeSet<_> = listed.get_document("commands").unwrap().keys().cloned().collect();
    assert_eq!(Page::read().commands.keys().cloned().collect::<BTreeSet<_>>(), listed);
}

#[test]
fn without_a_login_only_what_a_login_takes_can_be_run() {
    let member = Member::guarded();
    member.log_in("first", &[]);
    let page = Page::read();
    let public: Vec<_> =
        page.commands.iter().filter(|(_, right)| *right == "none").map(|(name, _)| name).collect();
    assert_eq!(
        public,
        [
            "authenticate", "buildInfo", "connectionStatus", "hello", "listCommands", "logout",
            "ping", "saslContinue", "saslStart", "whatsmyuri",
        ]
    );
    for (name, right) in &page.commands {
        let refused = code(&member, &context(), doc! {name: 1, "$db": "admin"});
        assert_eq!(refused == Some(UNAUTHORIZED), right != "none", "{name}");
    }
}

#[test]
fn every_role_allows_on_every_namespace_what_the_page_says() {
    let member = Member::guarded();
    let page = Page::read();
    let listed = member.ok(doc! {"listCommands": 1});
    let listed = listed.get_document("commands").unwrap();
    let mut tried = 0;
    for (place, (role, rights)) in page.roles.iter().enumerate() {
        let database = if place < 5 { "db" } else { "admin" };
        let user = member.log_in(role, &[(role, database)]);
        for (namespace, allowed) in rights {
            let (database, collection) = match namespace.split_once('.') {
                Some((database, collection)) => (database, Some(collection)),
                None => (&namespace[..], None),
            };
            for (name, right) in page.commands.iter().filter(|(name, _)| *name != "logout") {
                let admin_only = listed.get_document(name).unwrap().get_bool("adminOnly").unwrap();
                let on_collection = ON_COLLECTIONS.contains(&&name[..]);
                if admin_only && database != "admin" || collection.is_some() && !on_collection {
                    continue;
                }
                let command = match collection {
                    Some(collection) => doc! {name: collection, "$db": database},
                    None => doc! {name: 1, "$db": database},
                };
                let expected = right == "none" || right == "login" || allowed.contains(right);
                let refused = code(&member, &user, command) == Some(UNAUTHORIZED);
                assert_eq!(!refused, expected, "{name} ({right}) on {namespace} by {role}");
                tried += 1;
            }
        }
    }
    assert!(tried > 4000, "{tried}");
}

#[test]
fn a_user_without_roles_may_do_nothing_that_takes_one() {
    let member = Member::guarded();
    let powerless = member.log_in("powerless", &[]);
    // After a logout nothing could be tried.
    for (name, right) in Page::read().commands.iter().filter(|(name, _)| *name != "logout") {
        let refused =
            code(&member, &powerless, doc! {name: 1, "$db": "admin"}) == Some(UNAUTHORIZED);
        assert_eq!(refused, right != "none" && right != "login", "{name}");
    }
}
