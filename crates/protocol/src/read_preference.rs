//! Which members a read may go to.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::TagSet;

crate::named! {
    /// The modes of a read preference.
    ///
    /// [`name`](Self::name) is the name on the wire and in connection strings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub enum ReadPreferenceMode {
        /// Only the primary.
        #[default]
        Primary = "primary",
        /// The primary if it is known, otherwise a secondary.
        PrimaryPreferred = "primaryPreferred",
        /// Only secondaries.
        Secondary = "secondary",
        /// A secondary if there is one, otherwise the primary.
        SecondaryPreferred = "secondaryPreferred",
        /// Whichever is near, primary or secondary.
        Nearest = "nearest",
    }
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no read preference; use primary, primaryPreferred, secondary, secondaryPreferred or \
     nearest"
)]
pub struct UnknownReadPreferenceMode(pub String);

impl FromStr for ReadPreferenceMode {
    type Err = UnknownReadPreferenceMode;

    /// Upper and lower case do not matter.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownReadPreferenceMode(name.to_owned()))
    }
}

/// Which members a read may go to: a mode, and restrictions on the secondaries among them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ReadPreference {
    /// The mode.
    pub mode: ReadPreferenceMode,
    /// Tried in order until one matches a member. Empty means any member.
    pub tag_sets: Vec<TagSet>,
    /// How far behind a secondary may be.
    pub max_staleness: Option<Duration>,
    /// The deprecated `hedge: {enabled: …}`.
    pub hedge: Option<bool>,
}

impl ReadPreference {
    /// Only the primary.
    pub const PRIMARY: Self = Self::new(ReadPreferenceMode::Primary);

    /// A mode without restrictions.
    pub const fn new(mode: ReadPreferenceMode) -> Self {
        Self { mode, tag_sets: Vec::new(), max_staleness: None, hedge: None }
    }
}

impl fmt::Display for ReadPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode.name())?;
        if !self.tag_sets.is_empty() {
            f.write_str(" with tags ")?;
            for (position, tags) in self.tag_sets.iter().enumerate() {
                let or = if position == 0 { "" } else { " or " };
                write!(f, "{or}{tags}")?;
            }
        }
        match self.max_staleness {
            Some(staleness) => write!(f, ", at most {} s stale", staleness.as_secs()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_back_in_any_case() {
        for mode in ReadPreferenceMode::ALL {
            assert_eq!(mode.name().to_uppercase().parse(), Ok(mode));
        }
        assert!("master".parse::<ReadPreferenceMode>().is_err());
    }

    #[test]
    fn all_its_parts_are_told() {
        let preference = ReadPreference {
            tag_sets: vec![[("dc", "ny")].into_iter().collect(), TagSet::EMPTY],
            max_staleness: Some(Duration::from_secs(120)),
            ..ReadPreference::new(ReadPreferenceMode::Nearest)
        };
        let told = "nearest with tags {dc: ny} or {}, at most 120 s stale";
        assert_eq!(preference.to_string(), told);
    }
}
