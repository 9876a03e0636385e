//! What `dump`, `restore`, `export` and `import` share: which collections are meant, the files of a
//! dump, archives, and the line that tells how far the work is.

pub(crate) mod archive;
pub(crate) mod bson_file;
pub(crate) mod csv;
pub(crate) mod layout;
pub(crate) mod reading;
pub(crate) mod tally;

use std::path::{Path, PathBuf};

use quorate_client::ClientOptions;

use crate::connect;
use crate::screen::Result;

/// How many collections are read or written at once unless told otherwise.
pub(crate) const DEFAULT_JOBS: u8 = 4;

/// The most documents of one insert.
pub(crate) const BATCH_DOCUMENTS: usize = 1000;

/// The most bytes of one insert, unless a single document has more.
pub(crate) const BATCH_BYTES: usize = 4 << 20;

/// Whether a path is `-`, which is stdin or stdout.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// The file that is meant; none is stdin or stdout.
pub(crate) fn file(given: Option<&PathBuf>) -> Option<&Path> {
    given.map(PathBuf::as_path).filter(|path| !is_standard(path))
}

/// Which collections are meant: all, or those of some databases and some by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    names: Vec<Name>,
}

/// A database, or a collection in one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    database: String,
    collection: Option<String>,
}

impl Selection {
    /// Reads `shop` and `shop.orders`.
    pub(crate) fn parse(texts: &[String]) -> Result<Self> {
        let names = texts.iter().map(|text| {
            let (database, collection) = match text.split_once('.') {
                Some((database, collection)) => (database, Some(collection)),
                None => (text.as_str(), None),
            };
            refuse_if!(database.is_empty() || collection.is_some_and(str::is_empty) => misuse,
                "{text:?} names no database and no collection; write shop or shop.orders");
            Ok(Name { database: database.to_owned(), collection: collection.map(str::to_owned) })
        });
        Ok(Self { names: names.collect::<Result<_, _>>()? })
    }

    /// Whether everything is meant.
    pub(crate) fn is_everything(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether a collection of the database may be meant.
    pub(crate) fn has_database(&self, database: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name.database == database)
    }

    /// Whether the collection is meant.
    pub(crate) fn has(&self, database: &str, collection: &str) -> bool {
        self.names.is_empty()
            || self.names.iter().any(|name| {
                name.database == database
                    && name.collection.as_deref().is_none_or(|named| named == collection)
            })
    }
}

/// Lets writes wait for a majority, unless the connection string says what they wait for.
pub(crate) fn wait_for_majority(options: &mut ClientOptions) {
    if options.write_concern.w.is_none() {
        options.write_concern.w = Some(quorate_connection_string::WriteAcknowledgement::Majority);
    }
}

/// A runtime whose threads share the collections.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(connect::not_started)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Failure;

    fn selection(texts: &[&str]) -> Result<Selection> {
        Selection::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_selection_names_databases_and_collections() {
        let all = selection(&[]).unwrap();
        assert!(all.is_everything() && all.has("shop", "orders"));
        let some = selection(&["shop", "log.access.eu"]).unwrap();
        assert!(some.has("shop", "orders") && some.has("log", "access.eu"));
        assert!(!some.has("log", "access") && !some.has("other", "orders"));
        assert!(some.has_database("log") && !some.has_database("other"));
        for wrong in ["", ".a", "a."] {
            assert!(matches!(selection(&[wrong]), Err(Failure::Misuse(_))), "{wrong}");
        }
    }
}
