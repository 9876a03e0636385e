//! Which users `usersInfo` asks for, read once for the rights and for the command.
//!
//! A name is a user and a database and nothing else, so that what takes no right is what is shown.
//! Specification: the manual, "usersInfo".

use bson::{Bson, Document};

use crate::error::Result;
use crate::fields::whole_number;

/// Which users are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AskedUsers<'a> {
    One(UserName<'a>),
    Several(Vec<UserName<'a>>),
    /// Those of the database that the command is for.
    OfDatabase,
    OfAllDatabases,
}

/// The full name of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserName<'a> {
    pub(crate) name: &'a str,
    pub(crate) database: &'a str,
}

impl<'a> AskedUsers<'a> {
    /// Reads the value of `usersInfo` in a command for this database.
    pub(crate) fn parse(asked: Option<&'a Bson>, database: &'a str) -> Result<Self> {
        let one = |value| UserName::parse(value, database);
        let parsed = match asked {
            Some(Bson::Document(whom)) if means_all_databases(whom) => Some(Self::OfAllDatabases),
            Some(Bson::Array(several)) => {
                several.iter().map(one).collect::<Option<_>>().map(Self::Several)
            }
            Some(number) if whole_number(number) == Some(1) => Some(Self::OfDatabase),
            Some(single) => one(single).map(Self::One),
            None => None,
        };
        parsed.ok_or_else(|| {
            fail!(
                BAD_VALUE,
                "usersInfo takes a name, {{user, db}} without other fields, a list of them, 1, or \
                 {{forAllDBs: true}}"
            )
        })
    }
}

/// Whether it is `{forAllDBs: true}` alone.
fn means_all_databases(whom: &Document) -> bool {
    let is_set = match whom.get("forAllDBs") {
        Some(Bson::Boolean(set)) => *set,
        Some(number) => whole_number(number).is_some_and(|number| number != 0),
        None => false,
    };
    is_set && whom.len() == 1
}

impl<'a> UserName<'a> {
    /// Reads a user as commands give it: a name, or `{user, db}`.
    fn parse(value: &'a Bson, database: &'a str) -> Option<Self> {
        match value {
            Bson::String(name) => Some(Self { name, database }),
            Bson::Document(user) if user.len() == 2 => {
                Some(Self { name: user.get_str("user").ok()?, database: user.get_str("db").ok()? })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{bson, doc};

    use super::*;

    #[test]
    fn a_user_is_asked_for_by_user_and_database_alone() {
        let parse = |asked: Bson| {
            let parsed = AskedUsers::parse(Some(&asked), "db");
            parsed.map(|asked| format!("{asked:?}")).map_err(|error| error.code.0)
        };
        let name = |name, database| UserName { name, database };
        let named = |name| Ok(format!("{:?}", AskedUsers::One(name)));
        let own = doc! { "user": "u", "db": "other" };
        assert_eq!(parse(bson!("u")), named(name("u", "db")));
        assert_eq!(parse(own.clone().into()), named(name("u", "other")));
        let several = AskedUsers::Several(vec![name("u", "db"), name("u", "other")]);
        assert_eq!(parse(bson!(["u", own])), Ok(format!("{several:?}")));
        assert_eq!(parse(bson!(1.0)), Ok("OfDatabase".to_owned()));
        for all in [bson!(true), bson!(1), bson!(2.0)] {
            assert_eq!(parse(bson!({ "forAllDBs": all })), Ok("OfAllDatabases".to_owned()));
        }
        let others = [
            bson!({ "forAllDBs": false }),
            bson!({ "forAllDBs": 0 }),
            bson!({ "forAllDBs": null }),
            bson!({ "forAllDBs": true, "db": "db" }),
            bson!({ "user": "u", "db": "db", "forAllDBs": false }),
            bson!({ "user": "u", "db": "db", "forAllDBs": true }),
            bson!({ "user": "u", "db": "db", "userId": 1 }),
            bson!({ "user": "u" }),
            bson!({ "user": "u", "database": "db" }),
            bson!([{ "forAllDBs": true }]),
            bson!([["u"]]),
            bson!(2),
            Bson::Null,
        ];
        for other in others {
            assert_eq!(parse(other.clone()), Err(2), "{other}");
        }
    }
}
