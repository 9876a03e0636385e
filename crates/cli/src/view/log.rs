//! The event log: what happened, to which server, and why.
//!
//! Entries keep the time and not the age, so that the age is right whenever they are shown. An entry
//! that says the same as the one before it is counted instead of repeated.

use std::fmt;
use std::time::Duration;

use quorate_protocol::{MonotonicTime, ServerAddress};

use super::ring::Ring;
use crate::words::Foreign;

/// How many entries are kept.
const MAX_ENTRIES: usize = 500;

quorate_protocol::named! {
    /// What an entry is about, for colours and filters.
    ///
    /// [`name`](Self::name) is its name for programs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Kind {
        /// A server was found.
        Found = "found",
        /// A server was dropped from the client's view.
        Dropped = "dropped",
        /// The client changed its mind about a server.
        Changed = "changed",
        /// The client lost a server: its reason is in the text.
        Lost = "lost",
        /// A new primary.
        Elected = "elected",
        /// The primary is gone.
        NoPrimary = "no_primary",
        /// Writes were not acknowledged for a while.
        WriteGap = "write_gap",
        PoolCleared = "pool_cleared",
        /// A member and the client disagree.
        Differs = "differs",
        /// An initial sync began or ended.
        Syncing = "syncing",
        /// The user broke or mended something here.
        Action = "action",
        /// Something that a person should look at.
        Warning = "warning",
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Counts from 1; the same entry keeps its number.
    pub(crate) number: u64,
    /// When it happened first.
    pub(crate) at: MonotonicTime,
    /// When it happened last.
    pub(crate) last_at: MonotonicTime,
    /// How often it happened in a row.
    pub(crate) times: u32,
    /// What it is about.
    pub(crate) kind: Kind,
    /// The server it is about.
    pub(crate) member: Option<ServerAddress>,
    /// What happened, with its reason. Safe to show.
    pub(crate) text: String,
}

impl Entry {
    /// How long ago it happened.
    pub(crate) fn age(&self, now: MonotonicTime) -> Duration {
        now.since(self.last_at)
    }
}

/// The latest entries.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    entries: Ring<Entry>,
    next: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { entries: Ring::new(MAX_ENTRIES), next: 1 }
    }
}

impl Log {
    /// Adds an entry, or counts the last one again.
    pub(crate) fn add(
        &mut self,
        at: MonotonicTime,
        kind: Kind,
        member: Option<&ServerAddress>,
        text: impl fmt::Display,
    ) {
        let text = Foreign(text).to_string();
        if let Some(last) = self.entries.last_mut()
            && (last.kind, last.member.as_ref(), &last.text) == (kind, member, &text)
        {
            last.times += 1;
            last.last_at = at;
            return;
        }
        let number = self.next;
        self.next += 1;
        let member = member.cloned();
        self.entries.push(Entry { number, at, last_at: at, times: 1, kind, member, text });
    }

    /// From the oldest to the newest.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }
}

/// How long ago, shortly: `0.2 s ago`, `3 min ago`.
pub(crate) struct Ago(pub(crate) Duration);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ago", Age(self.0))
    }
}

/// An age in a few characters: `0.2 s`, `41 s`, `3 min`, `2 h`.
pub(crate) struct Age(pub(crate) Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let text = match seconds {
            0..10 => format!("{:.1} s", (self.0.as_secs_f64() * 10.0).floor() / 10.0),
            10..60 => format!("{seconds} s"),
            60..3600 => format!("{} min", seconds / 60),
            _ => format!("{} h", seconds / 3600),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_counted_and_the_oldest_are_forgotten() {
        let mut log = Log::default();
        let at = MonotonicTime::from_millis;
        log.add(at(1), Kind::Lost, None, "refused");
        log.add(at(5), Kind::Lost, None, "refused");
        let only = log.entries().next().unwrap();
        assert_eq!((only.times, only.at, only.last_at), (2, at(1), at(5)));
        assert_eq!(only.age(at(205)), Duration::from_millis(200));
        for number in 0..MAX_ENTRIES {
            log.add(at(9), Kind::Found, None, number);
        }
        assert_eq!(log.entries().count(), MAX_ENTRIES);
        assert_eq!(log.entries().next().unwrap().number, 2);
    }

    #[test]
    fn what_a_server_sent_cannot_steer_the_terminal() {
        let mut log = Log::default();
        log.add(MonotonicTime::ZERO, Kind::Lost, None, "a\u{1b}[2J");
        assert_eq!(log.entries().next().unwrap().text, "a\\u{1b}[2J");
    }

    #[test]
    fn ages_stay_short() {
        for (millis, text) in [
            (210, "0.2 s"),
            (9_990, "9.9 s"),
            (41_500, "41 s"),
            (185_000, "3 min"),
            (7_200_000, "2 h"),
        ] {
            assert_eq!(Age(Duration::from_millis(millis)).to_string(), text);
        }
        assert_eq!(Ago(Duration::from_millis(210)).to_string(), "0.2 s ago");
    }
}
