//! Names of databases and collections.
//!
//! Owns which names are allowed. The rules are those of the server on a case-sensitive file system;
//! the characters it refuses for the sake of Windows paths are refused too.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

use crate::error::{CommandError, ErrorCode, Result};

/// The longest name of a database.
pub const MAX_DATABASE_NAME_LENGTH: usize = 63;

/// The longest full name, database and collection with the dot between them.
pub const MAX_NAMESPACE_LENGTH: usize = 255;

/// Where the profiler of a database writes.
pub(crate) const PROFILE_COLLECTION: &str = "system.profile";

/// A database and a collection in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    /// The name of the database.
    pub database: String,
    /// The name of the collection, dots and all.
    pub collection: String,
}

impl Namespace {
    /// The namespace of these names, if both are allowed.
    pub fn new(database: &str, collection: &str) -> Result<Self> {
        check_names(database, collection)?;
        Ok(Self { database: database.to_owned(), collection: collection.to_owned() })
    }

    /// Splits `database.collection` at the first dot.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('.') {
            Some((database, collection)) => Self::new(database, collection),
            None => Err(invalid(format!("Invalid namespace specified '{text}'"))),
        }
    }

    /// Both names with the dot between them.
    pub fn full_name(&self) -> String {
        self.parts().concat()
    }

    /// What the full name is made of.
    pub(crate) fn parts(&self) -> [&str; 3] {
        [&self.database, ".", &self.collection]
    }

    /// Whether it is its member's own business, which no other member sees.
    pub fn is_unreplicated(&self) -> bool {
        self.database == "local" || self.collection == PROFILE_COLLECTION
    }

    /// Whether clients may not write to it.
    pub(crate) fn is_system(&self) -> bool {
        self.collection.starts_with("system.")
    }
}

/// The names of a database and of a collection in it, wherever they are kept: a map is searched with them without a copy.
pub(crate) trait Names {
    fn names(&self) -> (&str, &str);
}

impl Names for Namespace {
    fn names(&self) -> (&str, &str) {
        (&self.database, &self.collection)
    }
}

impl Names for (&str, &str) {
    fn names(&self) -> (&str, &str) {
        *self
    }
}

// The order of a `Namespace`, which a search in a map relies on.
impl Ord for dyn Names + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(&other.names())
    }
}

impl PartialOrd for dyn Names + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Names + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.names() == other.names()
    }
}

impl Eq for dyn Names + '_ {}

impl<'a> Borrow<dyn Names + 'a> for Namespace {
    fn borrow(&self) -> &(dyn Names + 'a) {
        self
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// Refuses names that cannot be a database and a collection in it.
pub(crate) fn check_names(database: &str, collection: &str) -> Result<()> {
    check_database_name(database)?;
    if collection.is_empty() {
        return Err(invalid(format!("Invalid namespace specified '{database}.'")));
    }
    let is_special = collection.bytes().any(|byte| matches!(byte, b'$' | 0));
    let is_refused = is_special && (!collection.starts_with("$cmd") || collection.contains('\0'));
    if is_refused || collection.starts_with('.') {
        return Err(invalid(format!("Invalid collection name: {collection}")));
    }
    if database.len() + 1 + collection.len() > MAX_NAMESPACE_LENGTH {
        return Err(invalid(format!(
            "Fully qualified namespace is too long. Namespace: {database}.{collection} Max: \
             {MAX_NAMESPACE_LENGTH}"
        )));
    }
    Ok(())
}

/// The bytes that no name of a database has.
const FORBIDDEN: [bool; 256] = {
    let bytes = b"/\\. \"$*<>:|?\0";
    let (mut forbidden, mut place) = ([false; 256], 0);
    while place < bytes.len() {
        forbidden[bytes[place] as usize] = true;
        place += 1;
    }
    forbidden
};

/// Refuses names that cannot be a database.
pub fn check_database_name(name: &str) -> Result<()> {
    let forbidden = |byte: u8| FORBIDDEN[usize::from(byte)];
    if name.is_empty() || name.len() > MAX_DATABASE_NAME_LENGTH || name.bytes().any(forbidden) {
        return Err(invalid(format!("Invalid database name: '{name}'")));
    }
    Ok(())
}

fn invalid(message: String) -> CommandError {
    CommandError::new(ErrorCode::INVALID_NAMESPACE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_may_have_dots_and_databases_may_not() {
        let namespace = Namespace::parse("db.a.b").unwrap();
        assert_eq!((namespace.database.as_str(), namespace.collection.as_str()), ("db", "a.b"));
        assert!(Namespace::new("d.b", "c").is_err());
    }

    #[test]
    fn names_that_the_server_refuses_are_refused() {
        for (database, collection) in
            [("", "c"), ("db", ""), ("d b", "c"), ("db", ".c"), ("db", "a$b"), ("db", "a\0b")]
        {
            let error = Namespace::new(database, collection).unwrap_err();
            assert_eq!(error.code, ErrorCode::INVALID_NAMESPACE, "{database}.{collection}");
        }
        assert!(Namespace::new(&"d".repeat(64), "c").is_err());
        assert!(Namespace::new("db", &"c".repeat(253)).is_err());
    }
}
