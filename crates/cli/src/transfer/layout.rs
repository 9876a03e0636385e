//! The files of a dump, as mongodump names them.
//!
//! ```text
//!   DIR/oplog.bson                       changes during the dump
//!   DIR/<database>/<collection>.bson     the documents, one after the other
//!   DIR/<database>/<collection>.metadata.json   options and indexes, as extended JSON
//! ```
//!
//! With `--gzip` every name ends in `.gz`. A view has metadata alone.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::{Bson, Document};
use serde_json::Value;
use sha1::{Digest, Sha1};

use super::bson_file;
use crate::screen::Result;
use crate::words::percent_encoded;

/// The file of the changes during the dump.
pub(crate) const OPLOG: &str = "oplog.bson";

/// The most bytes of a file's name without its ending, so that the longest ending fits 255 bytes.
const MAX_STEM: usize = 238;

/// How much of a name that is too long is kept; a delimiter and a digest follow.
const KEPT_OF_LONG_NAME: usize = 208;

/// The most collections of a dump.
const MAX_PIECES: usize = 1_000_000;

/// A database and a collection in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) database: String,
    pub(crate) collection: String,
}

impl Place {
    pub(crate) fn new(database: &str, collection: &str) -> Self {
        Self { database: database.to_owned(), collection: collection.to_owned() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// The metadata of a collection in a dump.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metadata {
    pub(crate) options: Document,
    pub(crate) indexes: Vec<Document>,
    /// The identifier of the collection where it came from, as hexadecimal digits.
    pub(crate) uuid: Option<String>,
    /// The name of the collection, which its file may only begin with.
    pub(crate) collection: Option<String>,
    /// `collection` or `view`.
    pub(crate) kind: Option<String>,
}

impl Metadata {
    /// As extended JSON on one line.
    pub(crate) fn to_json(&self) -> String {
        let mut document = Document::new();
        if !self.options.is_empty() {
            document.insert("options", self.options.clone());
        }
        document.insert("indexes", self.indexes.clone());
        if let Some(uuid) = &self.uuid {
            document.insert("uuid", uuid);
        }
        if let Some(collection) = &self.collection {
            document.insert("collectionName", collection);
        }
        if let Some(kind) = &self.kind {
            document.insert("type", kind);
        }
        Bson::Document(document).into_canonical_extjson().to_string()
    }

    /// Reads it back. Fails if the text is no such document; the error says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let document = match Bson::try_from(value).map_err(|error| error.to_string())? {
            Bson::Document(document) => document,
            _ => return Err("it is no document".to_owned()),
        };
        let text = |key| document.get_str(key).ok().map(str::to_owned);
        let indexes = match document.get("indexes") {
            None | Some(Bson::Null) => Vec::new(),
            Some(Bson::Array(indexes)) => indexes
                .iter()
                .map(|index| index.as_document().cloned().ok_or("an index is no document"))
                .collect::<Result<_, _>>()?,
            Some(_) => return Err("indexes is no array".to_owned()),
        };
        Ok(Self {
            options: document.get_document("options").cloned().unwrap_or_default(),
            indexes,
            uuid: text("uuid"),
            collection: text("collectionName"),
            kind: text("type"),
        })
    }

    /// Whether it is a view, which has no documents of its own.
    pub(crate) fn is_view(&self) -> bool {
        self.kind.as_deref() == Some("view") || self.options.contains_key("viewOn")
    }
}

/// The name of a collection's files, without their endings.
pub(crate) fn stem(collection: &str) -> String {
    let escaped = escape(collection);
    if escaped.len() <= MAX_STEM {
        return escaped;
    }
    let digest = URL_SAFE_NO_PAD.encode(Sha1::digest(collection.as_bytes()));
    format!("{}%24{digest}", &escaped[..KEPT_OF_LONG_NAME])
}

/// As in the query of a web address: letters, digits and `-_.~` as they are, a blank as `+`.
fn escape(name: &str) -> String {
    percent_encoded(name).replace("%20", "+")
}

fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A collection as a dump in a directory holds it.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) place: Place,
    pub(crate) metadata: Metadata,
    /// The file of the documents; a view has none.
    pub(crate) documents: Option<PathBuf>,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) oplog: Option<PathBuf>,
}

impl Dump {
    /// Looks at every name in the directory and reads the metadata. Fails if it cannot be read, or
    /// holds what no dump holds.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let mut dump = Self::default();
        for entry in listed(directory)? {
            let name = name_of(&entry)?;
            if entry.is_dir() {
                dump.read_database(&name, &entry)?;
            } else if without_gz(&name) == OPLOG {
                dump.oplog = Some(entry);
            }
        }
        refuse_if!(dump.pieces.is_empty() => problem,
            "{} holds no dump: there is no DATABASE/COLLECTION.bson; give the directory that \
             quorate dump or mongodump has written", directory.display());
        Ok(dump)
    }

    fn read_database(&mut self, database: &str, directory: &Path) -> Result<()> {
        let files = listed(directory)?;
        let mut stems = Vec::new();
        for file in &files {
            let name = name_of(file)?;
            let name = without_gz(&name);
            let stem = name.strip_suffix(".metadata.json").or_else(|| name.strip_suffix(".bson"));
            match stem {
                Some(stem) if !stems.contains(&stem.to_owned()) => stems.push(stem.to_owned()),
                _ => {}
            }
        }
        let find = |stem: &str, ending: &str| {
            let plain = directory.join(format!("{stem}{ending}"));
            let packed = directory.join(format!("{stem}{ending}.gz"));
            files.iter().find(|file| **file == plain || **file == packed).cloned()
        };
        for stem in stems {
            let metadata = match find(&stem, ".metadata.json") {
                Some(path) => read_metadata(&path)?,
                None => Metadata::default(),
            };
            let collection = metadata.collection.clone().or_else(|| unescape(&stem));
            let collection = collection.ok_or_else(|| {
                problem!(
                    "{}/{stem} is no name of a dump's file; remove the file, or dump again",
                    directory.display()
                )
            })?;
            let place = Place::new(database, &collection);
            self.pieces.push(Piece { place, metadata, documents: find(&stem, ".bson") });
            refuse_if!(self.pieces.len() > MAX_PIECES => problem,
                "the dump has more than {MAX_PIECES} collections; restore parts with --only");
        }
        Ok(())
    }
}

fn read_metadata(path: &Path) -> Result<Metadata> {
    let text = bson_file::read_text(path)?;
    Metadata::parse(&text).map_err(|error| {
        problem!("{} is not the metadata of a collection: {error}; dump again", path.display())
    })
}

fn without_gz(name: &str) -> &str {
    name.strip_suffix(".gz").unwrap_or(name)
}

fn name_of(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| problem!("{} has a name that is no text; remove it", path.display()))
}

/// The paths in a directory, in order.
fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| {
        problem!("{} cannot be read: {error}; give the directory of a dump", directory.display())
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn names_of_files_are_those_of_mongodump() {
        for (collection, file) in [
            ("orders", "orders"),
            ("a/b c$d", "a%2Fb+c%24d"),
            ("grün", "gr%C3%BCn"),
            ("a.b-c_d~e", "a.b-c_d~e"),
        ] {
            assert_eq!(stem(collection), file);
            assert_eq!(unescape(file).as_deref(), Some(collection));
        }
        let long = "x".repeat(239);
        assert_eq!(stem(&long).len(), MAX_STEM);
        assert!(stem(&long).starts_with(&format!("{}%24", "x".repeat(208))));
        assert_eq!(stem(&"x".repeat(238)), "x".repeat(238));
        for wrong in ["%", "%2", "%zz", "%FF"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn metadata_is_extended_json_with_the_types_kept() {
        let metadata = Metadata {
            options: doc! { "capped": true, "size": 4096_i64 },
            indexes: vec![doc! { "v": 2, "key": { "b": 1, "a": -1.0 }, "name": "b_1_a_-1" }],
            uuid: Some("00112233445566778899aabbccddeeff".to_owned()),
            collection: Some("log".to_owned()),
            kind: Some("collection".to_owned()),
        };
        let text = metadata.to_json();
        assert_eq!(Metadata::parse(&text).unwrap(), metadata);
        assert!(text.contains(r#""size":{"$numberLong":"4096"}"#), "{text}");
        assert!(text.contains(r#""key":{"b":{"$numberInt":"1"},"a""#), "{text}");
        assert!(Metadata::parse("").unwrap().indexes.is_empty());
        assert!(Metadata::parse("[]").is_err() && Metadata::parse("{").is_err());
        assert!(Metadata::parse(r#"{"indexes": 5}"#).is_err());
    }
}
