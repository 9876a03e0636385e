//! Choosing a sync source, leaving it, and judging its first batch.
//!
//! Pure: facts about the members in, a choice out. docs/replication-rules.md#sync-source.

use std::time::Duration;

use quorate_protocol::{MemberId, MemberState, OpTime};

/// How far behind the primary a source may be in the first pass, and behind another member before it
/// is left.
pub(crate) const MAX_SOURCE_LAG_SECS: u32 = 30;
/// A source this much closer is worth changing to; a primary this near is preferred.
pub(crate) const PING_MARGIN: Duration = Duration::from_millis(5);
/// Pings of each peer before a choice by ping means anything.
pub(crate) const PINGS_BEFORE_CHOOSING: u32 = 2;
/// Changes to a closer source, in any hour.
pub(crate) const MAX_CHANGES_PER_HOUR: usize = 3;

/// What is known of a member that might be the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The member.
    pub id: MemberId,
    /// Whether it answers.
    pub up: bool,
    /// Its state.
    pub state: MemberState,
    /// How far it is.
    pub applied: OpTime,
    /// The average ping.
    pub ping: Option<Duration>,
    /// How many pings that is the average of.
    pub pings: u32,
    /// Whether it votes.
    pub voter: bool,
    /// Whether it is hidden.
    pub hidden: bool,
    /// Whether it builds indexes.
    pub build_indexes: bool,
    /// Its `secondaryDelaySecs`.
    pub delay: Duration,
    /// Whether it failed us lately.
    pub denied: bool,
    /// Whether it is the primary, as far as we know.
    pub primary: bool,
    /// Whether it has a source of its own.
    pub has_source: bool,
}

/// What the chooser knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chooser {
    /// The last entry it fetched.
    pub last_fetched: OpTime,
    /// Whether it votes.
    pub voter: bool,
    /// Whether it builds indexes.
    pub build_indexes: bool,
    /// Its own delay.
    pub delay: Duration,
    /// `chainingAllowed`; true while a new primary catches up.
    pub chaining_allowed: bool,
    /// The member named by `replSetSyncFrom`, for one choice.
    pub forced: Option<MemberId>,
    /// The set may have no primary because this member, which could be it or whose vote is needed, is behind
    /// others. Then it may copy from any member that holds entries: chaining, hiding and indexes are
    /// preferences of a set that works, and this one does not.
    pub rescue: bool,
    /// Whether it has no data and copies all of it. A log tells of every index, the documents of a member that
    /// builds none do not: such a copy would lack them for ever, unique ones too.
    pub copies_everything: bool,
}

/// The result of choosing a sync source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This member.
    Source(MemberId),
    /// Wait: some peers have not been pinged often enough to compare.
    WaitForPings,
    /// No member is suitable.
    NoSource,
}

/// Chooses a source.
pub(crate) fn choose(me: Chooser, members: &[Candidate]) -> Choice {
    if let Some(forced) = me.forced {
        let suits = members.iter().any(|m| m.id == forced && m.up && m.state.is_readable());
        if suits {
            return Choice::Source(forced);
        }
    }
    let primary = members.iter().find(|m| m.primary && m.up);
    let only_primary = !me.chaining_allowed && !me.rescue;
    if only_primary {
        let primary = primary.filter(|m| is_possible(me, m));
        return primary.map_or(Choice::NoSource, |primary| Choice::Source(primary.id));
    }
    if !members.iter().any(|m| is_possible(me, m)) {
        return Choice::NoSource;
    }
    if members.iter().any(|m| m.up && m.pings < PINGS_BEFORE_CHOOSING) {
        // Where only the primary can be a source there is nothing to compare. Without this the first
        // write to a fresh set would wait for heartbeats.
        let suits = |m: &Candidate| is_possible(me, m) && is_preferred(me, m, None);
        let choice = members.iter().any(|m| !m.primary && suits(m));
        return match primary.filter(|m| suits(m) && !choice) {
            Some(primary) => Choice::Source(primary.id),
            None => Choice::WaitForPings,
        };
    }
    let newest = primary.map(|m| m.applied.timestamp.seconds);
    let first = |m: &&Candidate| is_possible(me, m) && is_preferred(me, m, newest);
    nearest(members.iter().filter(first))
        .or_else(|| nearest(members.iter().filter(|m| is_possible(me, m))))
        .map_or(Choice::NoSource, |m| Choice::Source(m.id))
}

/// Whether a member may be the source once it is no longer denied. One that may never be is no hope.
pub(crate) fn may_serve(me: Chooser, member: &Candidate) -> bool {
    let chained = me.chaining_allowed || me.rescue || member.primary;
    chained && is_possible(me, &Candidate { denied: false, ..member.clone() })
}

fn is_possible(me: Chooser, member: &Candidate) -> bool {
    // Being strictly ahead keeps two members from copying from each other. A primary copies from
    // no member, so it may be level: its next write then finds us listening.
    let ahead = if member.primary {
        member.applied >= me.last_fetched
    } else {
        member.applied > me.last_fetched
    };
    member.up
        && member.state.is_readable()
        && ahead
        && !member.denied
        && (!member.hidden || me.rescue)
        && (member.build_indexes || !me.build_indexes || (me.rescue && !me.copies_everything))
}

fn is_preferred(me: Chooser, member: &Candidate, newest: Option<u32>) -> bool {
    (member.voter || !me.voter)
        && member.delay <= me.delay
        && member.build_indexes == me.build_indexes
        && newest.is_none_or(|newest| {
            newest.saturating_sub(member.applied.timestamp.seconds) <= MAX_SOURCE_LAG_SECS
        })
}

fn nearest<'a>(members: impl Iterator<Item = &'a Candidate>) -> Option<&'a Candidate> {
    let members: Vec<&Candidate> = members.collect();
    let ping = |member: &Candidate| member.ping.unwrap_or(Duration::MAX);
    let nearest = members.iter().copied().min_by_key(|m| (m.delay, ping(m), m.id))?;
    let primary = members.iter().copied().find(|m| m.primary && m.delay <= nearest.delay);
    let within = |m: &&Candidate| ping(m) <= ping(nearest).saturating_add(PING_MARGIN);
    Some(primary.filter(within).unwrap_or(nearest))
}

/// Why a source is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leave {
    /// It is not in the configuration any more, or cannot serve reads.
    NotUsable,
    /// Only the primary may be a source now, and it is not the primary.
    ChainingForbidden,
    /// It is not primary, has no sync source, and has nothing we lack.
    DeadEnd,
    /// Another member is more than 30 seconds ahead of it.
    FarBehind(MemberId),
    /// Another suitable member is closer by more than the margin.
    CloserSource(MemberId),
}

/// What decides whether to stay with a source after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    /// The chooser.
    pub me: Chooser,
    /// Its source.
    pub source: MemberId,
    /// Whether the source was named by `replSetSyncFrom`.
    pub source_was_forced: bool,
    /// How often it changed to a closer source within the hour.
    pub changes_within_hour: usize,
}

/// Whether to leave the source after a batch.
pub(crate) fn should_leave(stay: Stay, members: &[Candidate]) -> Option<Leave> {
    let Some(source) = members.iter().find(|m| m.id == stay.source) else {
        return Some(Leave::NotUsable);
    };
    if !source.up || !source.state.is_readable() {
        return Some(Leave::NotUsable);
    }
    if !stay.me.chaining_allowed && !stay.me.rescue && !source.primary {
        return Some(Leave::ChainingForbidden);
    }
    if !source.primary && !source.has_source && source.applied <= stay.me.last_fetched {
        return Some(Leave::DeadEnd);
    }
    let others = || members.iter().filter(|m| m.id != stay.source && is_possible(stay.me, m));
    let lag = |m: &Candidate| {
        m.applied.timestamp.seconds.saturating_sub(source.applied.timestamp.seconds)
    };
    if let Some(ahead) = others()
        .filter(|m| m.delay <= stay.me.delay && lag(m) > MAX_SOURCE_LAG_SECS)
        .max_by_key(|m| m.applied)
    {
        return Some(Leave::FarBehind(ahead.id));
    }
    let may_prefer = !stay.source_was_forced
        && stay.me.delay.is_zero()
        && stay.me.chaining_allowed
        && stay.changes_within_hour < MAX_CHANGES_PER_HOUR;
    let source_ping = source.ping?;
    others()
        .filter(|m| {
            may_prefer && m.pings >= PINGS_BEFORE_CHOOSING && is_preferred(stay.me, m, None)
        })
        .filter(|m| m.ping.is_some_and(|ping| ping.saturating_add(PING_MARGIN) < source_ping))
        .min_by_key(|m| m.ping)
        .map(|m| Leave::CloserSource(m.id))
}

/// What the first batch of a fetch shows of the source's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstBatch {
    /// The entry we asked from: our last one.
    pub asked: OpTime,
    /// The first entry that came, if any.
    pub first: Option<OpTime>,
    /// The source's oldest entry.
    pub source_oldest: OpTime,
    /// The source's newest entry.
    pub source_last: OpTime,
}

/// What to do after a first batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchVerdict {
    /// The source's log continues ours.
    Continue,
    /// Our last entries are not the set's: undo them.
    RollBack,
    /// The source has thrown away what we need next.
    TooStale,
    /// The source lacks our last entry, but nothing shows that the set has moved on without it.
    SourceBehind,
}

/// Judges a first batch. Entries are only ever undone against a log of a higher last term: that is
/// what the proof of the commit point rests on.
pub(crate) fn judge_first_batch(batch: FirstBatch) -> FetchVerdict {
    if batch.first == Some(batch.asked) {
        return FetchVerdict::Continue;
    }
    if batch.source_oldest > batch.asked {
        return FetchVerdict::TooStale;
    }
    if batch.source_last.term > batch.asked.term {
        FetchVerdict::RollBack
    } else {
        FetchVerdict::SourceBehind
    }
}

#[cfg(test)]
#[path = "sync_source_tests.rs"]
mod tests;
