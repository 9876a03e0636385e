//! Tags of a member, and tag sets of a read preference: the same map, compared both ways.

use std::collections::BTreeMap;
use std::fmt;

/// Names and values that mark a member, or that a read preference asks for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TagSet(BTreeMap<String, String>);

impl TagSet {
    /// No tags at all.
    pub const EMPTY: Self = Self(BTreeMap::new());

    /// Whether there is no tag.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value under a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a name to a value.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// The tags, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether every tag asked for here is on the member; an empty set is on every member.
    pub fn is_subset_of(&self, member: &Self) -> bool {
        self.iter().all(|(name, value)| member.get(name) == Some(value))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for TagSet {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(tags: I) -> Self {
        Self(tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Display for TagSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (position, (name, value)) in self.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{name}: {value}")?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_asked_for_must_be_on_the_member() {
        let member: TagSet = [("dc", "ny"), ("rack", "2")].into_iter().collect();
        let asked = |tags: &[(&str, &str)]| tags.iter().copied().collect::<TagSet>();
        assert!(asked(&[]).is_subset_of(&member));
        assert!(asked(&[("dc", "ny")]).is_subset_of(&member));
        assert!(!asked(&[("dc", "sf")]).is_subset_of(&member));
        assert!(!asked(&[("dc", "ny"), ("ssd", "yes")]).is_subset_of(&member));
        assert_eq!(member.to_string(), "{dc: ny, rack: 2}");
    }
}
