//! Who may run which command: the table says it, and every command keeps to it.

#![allow(clippy::unwrap_used)]

mod support;

use bson::{Document, doc};
use quorate_node::Context;
use support::{Member, context};

const UNAUTHORIZED: i32 = 13;

/// What the table says of a command.
struct Listed {
    name: String,
    role: String,
    database: &'static str,
}

impl Listed {
    fn all(member: &Member) -> Vec<Self> {
        let reply = member.ok(doc! {"listCommands": 1});
        let commands = reply.get_document("commands").unwrap();
        let listed = |(name, facts): (&String, &bson::Bson)| {
            let facts = facts.as_document().unwrap();
            let admin_only = facts.get_bool("adminOnly").unwrap();
            let role = facts.get_str("role").unwrap().to_owned();
            let anybody = role == "none" && !facts.get_bool("requiresAuth").unwrap();
            Self {
                name: name.clone(),
                role: if anybody { "anybody".to_owned() } else { role },
                database: if admin_only { "admin" } else { "db" },
            }
        };
        commands.iter().map(listed).collect()
    }

    fn needs_a_role(&self) -> bool {
        !matches!(self.role.as_str(), "anybody" | "none")
    }

    /// The code with which the command is refused, or fails for want of arguments.
    fn code(&self, member: &Member, context: &Context) -> Option<i32> {
        let command: Document = doc! {&self.name: 1, "$db": self.database};
        member.run_as(context, command).get_i32("code").ok()
    }
}

#[test]
fn without_a_login_only_what_a_login_takes_can_be_run() {
    let member = Member::guarded();
    member.log_in("first", &[]);
    let all = Listed::all(&member);
    let anybody: Vec<_> =
        all.iter().filter(|known| known.role == "anybody").map(|known| &known.name[..]).collect();
    assert_eq!(
        anybody,
        [
            "hello",
            "ping",
            "buildInfo",
            "whatsmyuri",
            "connectionStatus",
            "saslStart",
            "saslContinue",
            "authenticate",
            "logout",
            "listCommands",
        ]
    );
    for command in all {
        let refused = command.code(&member, &context()) == Some(UNAUTHORIZED);
        assert_eq!(refused, command.role != "anybody", "{}", command.name);
    }
}

#[test]
fn every_command_takes_its_role_and_no_role_gives_more() {
    let member = Member::guarded();
    let nobody = member.log_in("nobody", &[]);
    let root = member.log_in("root", &[("root", "admin")]);
    let user = |role: &'static str| {
        let database = if role.starts_with("cluster") { "admin" } else { "db" };
        let admin = [(role, database), (role, "admin")];
        member.log_in(role, &admin[..if database == "db" { 2 } else { 1 }])
    };
    let roles = ["read", "readWrite", "dbAdmin", "userAdmin", "clusterMonitor", "clusterAdmin"];
    let users: Vec<_> = roles.iter().map(|role| (*role, user(role))).collect();
    // What else a role includes.
    let includes = |role: &str, other: &str| {
        role == other
            || matches!((role, other), ("readWrite", "read") | ("clusterAdmin", "clusterMonitor"))
    };
    let mut checked = 0;
    for command in Listed::all(&member) {
        if !command.needs_a_role() {
            continue;
        }
        checked += 1;
        let name = &command.name;
        assert_eq!(command.code(&member, &nobody), Some(UNAUTHORIZED), "{name} without a role");
        let is_internal = command.role == "__system";
        let by_root = command.code(&member, &root) == Some(UNAUTHORIZED);
        assert_eq!(by_root, is_internal, "{name} by root");
        for (role, user) in &users {
            let refused = command.code(&member, user) == Some(UNAUTHORIZED);
            assert_eq!(!refused, includes(role, &command.role), "{name} by {role}");
        }
        assert!(is_internal || roles.contains(&command.role.as_str()), "{name}: {}", command.role);
    }
    assert!(checked > 60, "{checked}");
}
