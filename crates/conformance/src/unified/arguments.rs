//! The arguments of an operation, taken one by one, so that none is passed over.

use std::time::Duration;

use bson::{Bson, Document};
use quorate_client::WriteConcern;
use quorate_connection_string::WriteAcknowledgement;
use quorate_protocol::{ReadPreference, ReadPreferenceMode, TagSet};

use crate::Result;

/// Named values of which every one must be taken.
#[derive(Debug)]
pub(super) struct Arguments {
    left: Document,
}

impl Arguments {
    pub(super) fn new(left: Document) -> Self {
        Self { left }
    }

    /// Fails if something was not taken.
    pub(super) fn finish(&self) -> Result<()> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("unknown argument {name}").into()),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    pub(super) fn value(&mut self, name: &str) -> Result<Option<Bson>> {
        Ok(self.left.remove(name))
    }

    fn typed<T>(&mut self, name: &str, read: impl FnOnce(Bson) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.left.remove(name) else { return Ok(None) };
        let text = value.to_string();
        read(value).map(Some).ok_or_else(|| format!("{name} cannot be {text}").into())
    }

    pub(super) fn document(&mut self, name: &str) -> Result<Option<Document>> {
        self.typed(name, into_document)
    }

    pub(super) fn documents(&mut self, name: &str) -> Result<Option<Vec<Document>>> {
        self.typed(name, |value| match value {
            Bson::Array(items) => items.into_iter().map(into_document).collect(),
            _ => None,
        })
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.typed(name, |value| value.as_bool())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.typed(name, |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn signed(&mut self, name: &str) -> Result<Option<i64>> {
        self.typed(name, |value| integer(&value))
    }

    pub(super) fn count(&mut self, name: &str) -> Result<Option<u64>> {
        self.typed(name, |value| integer(&value).and_then(|number| u64::try_from(number).ok()))
    }

    pub(super) fn size(&mut self, name: &str) -> Result<Option<u32>> {
        self.typed(name, |value| integer(&value).and_then(|number| u32::try_from(number).ok()))
    }

    pub(super) fn millis(&mut self, name: &str) -> Result<Option<Duration>> {
        Ok(self.count(name)?.map(Duration::from_millis))
    }

    pub(super) fn preference(&mut self, name: &str) -> Result<Option<ReadPreference>> {
        self.within(name, read_preference)
    }

    pub(super) fn concern(&mut self, name: &str) -> Result<Option<WriteConcern>> {
        self.within(name, write_concern)
    }

    /// A document whose values are all taken by `read`.
    pub(super) fn within<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(document) = self.document(name)? else { return Ok(None) };
        let mut inner = Self::new(document);
        let value = read(&mut inner)?;
        inner.finish()?;
        Ok(Some(value))
    }

    /// An argument that must be there.
    pub(super) fn required<T>(
        &mut self,
        name: &str,
        take: impl FnOnce(&mut Self, &str) -> Result<Option<T>>,
    ) -> Result<T> {
        take(self, name)?.ok_or_else(|| format!("{name} is missing").into())
    }
}

fn into_document(value: Bson) -> Option<Document> {
    match value {
        Bson::Document(document) => Some(document),
        _ => None,
    }
}

/// A whole number, however it is written.
pub(super) fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 => Some(*number as i64),
        _ => None,
    }
}

fn read_preference(given: &mut Arguments) -> Result<ReadPreference> {
    let mode: ReadPreferenceMode = given.required("mode", Arguments::text)?.parse()?;
    let mut preference = ReadPreference::new(mode);
    for tags in given.documents("tagSets")?.unwrap_or_default() {
        let pairs = tags.iter().map(|(name, value)| {
            value.as_str().map(|value| (name.clone(), value.to_owned())).ok_or("a bad tag")
        });
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        preference.tag_sets.push(TagSet::from_iter(pairs));
    }
    preference.max_staleness = given.count("maxStalenessSeconds")?.map(Duration::from_secs);
    if let Some(hedge) = given.document("hedge")? {
        preference.hedge = hedge.get_bool("enabled").ok();
    }
    Ok(preference)
}

fn write_concern(given: &mut Arguments) -> Result<WriteConcern> {
    let w = match given.value("w")? {
        None => None,
        Some(Bson::String(word)) if word == "majority" => Some(WriteAcknowledgement::Majority),
        Some(Bson::String(word)) => Some(WriteAcknowledgement::Custom(word)),
        Some(number) => {
            let members = integer(&number).and_then(|number| u32::try_from(number).ok());
            Some(WriteAcknowledgement::Members(members.ok_or("a bad w")?))
        }
    };
    Ok(WriteConcern { w, journal: given.flag("journal")?, w_timeout: given.millis("wtimeoutMS")? })
}

/// Sets the options that are given, each read as its kind.
macro_rules! set_options {
    ($arguments:expr, $action:ident; $($kind:ident $method:ident = $name:literal),* $(,)?) => {
        $(if let Some(value) = $arguments.$kind($name)? {
            $action = $action.$method(value);
        })*
    };
}

pub(super) use set_options;
