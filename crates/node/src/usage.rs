//! How often commands ran and how long they took, of each collection and of all together.
//!
//! Owns the figures behind `top`, `latencyStats` of `$collStats` and `opLatencies` of `serverStatus`. The shell
//! around a member measures the time. Figures begin with the process, and go with their collection.
//!
//! Specification: the manual, "top" and "$collStats".

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bson::{Bson, Document, doc};

use crate::command_table::{Access, CommandFacts, Effect};
use crate::node::Node;
use crate::operations::Registered;

/// What a command does to a collection, as far as the figures tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Query,
    GetMore,
    Insert,
    Update,
    Remove,
    /// Another one that reads documents, as `aggregate` does.
    Reading,
    /// Another one that changes documents: `findAndModify`.
    Writing,
    /// Looks at a collection, as `collStats` does, or at the server.
    Looking,
    /// Changes a collection but no documents, as `createIndexes` does.
    Shaping,
}

/// All kinds, in the order of their numbers.
const KINDS: [Kind; 9] = [
    Kind::Query,
    Kind::GetMore,
    Kind::Insert,
    Kind::Update,
    Kind::Remove,
    Kind::Reading,
    Kind::Writing,
    Kind::Looking,
    Kind::Shaping,
];

/// The three sorts of requests whose latencies are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Reads,
    Writes,
    Commands,
}

impl Class {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Reads, "reads"), (Self::Writes, "writes"), (Self::Commands, "commands")];
}

impl Kind {
    fn of(facts: &CommandFacts) -> Self {
        match (facts.name, facts.effect) {
            ("find", _) => Self::Query,
            ("getMore", _) => Self::GetMore,
            ("insert", _) => Self::Insert,
            ("update", _) => Self::Update,
            ("delete", _) => Self::Remove,
            (_, Effect::Writes) if facts.access == Access::Write => Self::Writing,
            (_, Effect::Writes) => Self::Shaping,
            _ if facts.has_default_read_concern => Self::Reading,
            _ => Self::Looking,
        }
    }

    fn class(self) -> Class {
        match self {
            Self::Query | Self::GetMore | Self::Reading => Class::Reads,
            Self::Insert | Self::Update | Self::Remove | Self::Writing => Class::Writes,
            Self::Looking | Self::Shaping => Class::Commands,
        }
    }

    /// Whether it keeps other writers waiting.
    fn locks_writers_out(self) -> bool {
        self.class() == Class::Writes || self == Self::Shaping
    }
}

/// A number that only grows.
fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

#[derive(Debug, Default)]
struct Timed {
    micros: AtomicU64,
    count: AtomicU64,
}

impl Timed {
    fn get(&self) -> (u64, u64) {
        (self.micros.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed))
    }
}

/// How many latencies fell between two bounds; see [`bucket_of`].
#[derive(Debug)]
struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

/// Powers of two up to 2^40 microseconds, and between 2^11 and 2^21 the middles too.
const BUCKETS: usize = 51;

/// The first power of two behind which there is a middle, and the first behind which there is none again.
const SPLIT: (usize, usize) = (11, 21);

fn bucket_of(micros: u64) -> usize {
    if micros < 2 {
        return 0;
    }
    let power = micros.ilog2() as usize;
    let middle = power >= SPLIT.0 && power < SPLIT.1 && micros & 1 << (power - 1) != 0;
    let middles_before = power.clamp(SPLIT.0, SPLIT.1) - SPLIT.0;
    (power + middles_before + usize::from(middle)).min(BUCKETS - 1)
}

/// The least latency of a bucket.
fn least_of(bucket: usize) -> u64 {
    let (first, last) = (SPLIT.0, SPLIT.1 + SPLIT.1 - SPLIT.0);
    match bucket {
        0 => 0,
        _ if bucket < first => 1 << bucket,
        _ if bucket < last => {
            let (power, middle) = (first + (bucket - first) / 2, (bucket - first) % 2);
            (1 << power) + (middle as u64) * (1 << (power - 1))
        }
        _ => 1 << (bucket - (SPLIT.1 - SPLIT.0)),
    }
}

#[derive(Debug, Default)]
struct Figures {
    kinds: [Timed; KINDS.len()],
    histograms: [Histogram; Class::ALL.len()],
}

impl Figures {
    fn add(&self, kind: Kind, micros: u64) {
        let Timed { micros: sum, count } = &self.kinds[kind as usize];
        add(sum, micros);
        add(count, 1);
        add(&self.histograms[kind.class() as usize].0[bucket_of(micros)], 1);
    }

    /// Time and number of the kinds of which this holds.
    fn sum(&self, is_meant: impl Fn(Kind) -> bool) -> (i64, i64) {
        let meant = KINDS.into_iter().filter(|kind| is_meant(*kind));
        let sum = meant.fold((0, 0), |(micros, count), kind| {
            let more = self.kinds[kind as usize].get();
            (micros + more.0, count + more.1)
        });
        (sum.0 as i64, sum.1 as i64)
    }
}

/// The figures of a collection, or of all commands. Made when the first command is counted: most collections of a
/// large catalog are idle.
#[derive(Debug, Default)]
pub(crate) struct Usage(OnceLock<Box<Figures>>);

impl Usage {
    fn count(&self, kind: Kind, micros: u64) {
        self.0.get_or_init(Box::default).add(kind, micros);
    }

    /// What `top` tells of a collection; none of one that no command has used.
    pub(crate) fn top(&self) -> Option<Document> {
        let figures = self.0.get()?;
        let timed = |is_meant: &dyn Fn(Kind) -> bool| {
            let (time, count) = figures.sum(is_meant);
            doc! { "time": time, "count": count }
        };
        let of = |kind: Kind| timed(&move |other| other == kind);
        let is_other =
            |kind| matches!(kind, Kind::Reading | Kind::Writing | Kind::Looking | Kind::Shaping);
        Some(doc! {
            "total": timed(&|_| true),
            "readLock": timed(&|kind| !kind.locks_writers_out()),
            "writeLock": timed(&Kind::locks_writers_out),
            "queries": of(Kind::Query),
            "getmore": of(Kind::GetMore),
            "insert": of(Kind::Insert),
            "update": of(Kind::Update),
            "remove": of(Kind::Remove),
            "commands": timed(&is_other),
        })
    }

    /// Reads, writes and other commands: how long they took together, how many there were, and how they are
    /// distributed if that is asked for.
    pub(crate) fn latencies(&self, histograms: bool) -> Document {
        let mut told = Document::new();
        for (class, name) in Class::ALL {
            let figures = self.0.get().map(|figures| &**figures);
            let sum = |figures: &Figures| figures.sum(|kind| kind.class() == class);
            let (latency, operations) = figures.map_or((0, 0), sum);
            let mut of_class = doc! { "latency": latency, "ops": operations };
            if histograms {
                let buckets = figures.map_or(&[][..], |it| &it.histograms[class as usize].0[..]);
                let counts = buckets.iter().map(|count| count.load(Ordering::Relaxed) as i64);
                let known =
                    counts.enumerate().filter(|(_, count)| *count > 0).map(|(place, count)| {
                        Bson::from(doc! { "micros": least_of(place) as i64, "count": count })
                    });
                of_class.insert("histogram", known.collect::<Vec<_>>());
            }
            told.insert(name, of_class);
        }
        told
    }
}

impl Node {
    /// Counts a command that took so long, for its collection and for all. A cursor that waited for documents is not
    /// counted: its client chose the time.
    pub fn count_time(
        &self,
        registered: &Registered,
        facts: Option<&'static CommandFacts>,
        took: Duration,
    ) {
        let Some(facts) = facts else { return };
        let kind = Kind::of(facts);
        if kind == Kind::GetMore && registered.has_waited() {
            return;
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.usage().count(kind, micros);
        let Some(namespace) = collection_of(registered, facts) else { return };
        self.with_collection(&namespace, |collection| collection.usage.count(kind, micros));
    }
}

/// The collection that a command is about.
fn collection_of<'r>(
    registered: &'r Registered,
    facts: &CommandFacts,
) -> Option<(&'r str, &'r str)> {
    // The first field of these names a user or a role, or nothing that has figures.
    if facts.effect == Effect::Inspects || facts.access == Access::UserAdmin {
        return None;
    }
    let command = registered.operation().command();
    let collection = match facts.name {
        "getMore" => command.get_str("collection").ok(),
        _ => command.first_text(),
    };
    Some((command.database(), collection?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manual, "$collStats": each range is twice the one before, with half-steps between 2048 microseconds and
    /// roughly a second.
    #[test]
    fn a_latency_is_in_the_bucket_that_its_bounds_say() {
        let bounds: Vec<_> = (0..BUCKETS).map(least_of).collect();
        assert_eq!(bounds[..4], [0, 2, 4, 8]);
        assert_eq!(bounds[10..17], [1024, 2048, 3072, 4096, 6144, 8192, 12288]);
        assert_eq!(bounds[27..33], [524_288, 786_432, 1_048_576, 1_572_864, 2_097_152, 4_194_304]);
        assert_eq!(bounds[BUCKETS - 1], 1 << 40);
        assert!(bounds.is_sorted());
        for (place, least) in bounds.iter().enumerate() {
            assert_eq!(bucket_of(*least), place, "{least}");
            assert_eq!(bucket_of(least.saturating_sub(1)), place.saturating_sub(1), "{least}");
        }
        assert_eq!((bucket_of(1), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn kinds_are_numbered_in_their_order() {
        for (place, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
        for (place, (class, _)) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, place);
        }
    }
}
