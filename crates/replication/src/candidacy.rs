//! What a member keeps between its tries to be elected: whether it may stand, the objections, quick tries.
//!
//! Owns the counting; `campaign` decides when to stand, and each try is a [`Campaign`](crate::campaign::Campaign).
//! docs/replication-rules.md#elections.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_protocol::{MemberId, MonotonicTime, Veto};

use crate::election::MAX_VETOED_DRY_RUNS;
use crate::explain::CampaignRecord;

/// Quick tries after a crash; then the election timeout counts again.
const MAX_CRASH_TRIES: u32 = 10;

/// A veto, given or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VetoRecord {
    /// The voter that objected.
    pub by: MemberId,
    /// The objection.
    pub veto: Veto,
    /// The time.
    pub at: MonotonicTime,
}

/// What outlives one try to be elected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidacy {
    /// The member does not stand before this time: it was frozen, or stepped down.
    barred_until: Option<MonotonicTime>,
    vetoed_dry_runs: u32,
    veto_counted_at: Option<MonotonicTime>,
    /// The last veto against each candidate, given or received.
    vetoes: BTreeMap<MemberId, VetoRecord>,
    last_campaign: Option<CampaignRecord>,
    /// The primary's process is known to be gone; how often this member stood at once since.
    crash_tries: Option<u32>,
    /// Whether another candidate was given time since this member last stood.
    gave_way: bool,
}

impl Candidacy {
    // -- Frozen and stepped down -----------------------------------------------------------------

    pub(crate) fn bar_until(&mut self, until: MonotonicTime) {
        self.barred_until = Some(until);
    }

    pub(crate) fn is_barred(&self, now: MonotonicTime) -> bool {
        self.barred_until.is_some_and(|until| until > now)
    }

    /// Ends a freeze before or at its time, and says whether there was one.
    pub(crate) fn admit(&mut self) -> bool {
        self.barred_until.take().is_some()
    }

    // -- Objections ------------------------------------------------------------------------------

    pub(crate) fn note_veto(&mut self, candidate: MemberId, record: VetoRecord) {
        self.vetoes.insert(candidate, record);
    }

    pub(crate) fn last_veto(&self, candidate: MemberId) -> Option<VetoRecord> {
        self.vetoes.get(&candidate).copied()
    }

    pub(crate) fn forget_member(&mut self, id: MemberId) {
        self.vetoes.remove(&id);
    }

    /// A dry run failed by a veto. Tries in quick succession count once: what the objector has must have
    /// had its time to be copied before its objection is heard no more.
    pub(crate) fn count_veto(&mut self, now: MonotonicTime, interval: Duration) {
        let counted_lately =
            self.veto_counted_at.is_some_and(|counted| now.since(counted) < interval);
        if !counted_lately {
            self.vetoed_dry_runs += 1;
            self.veto_counted_at = Some(now);
        }
    }

    pub(crate) fn vetoed_dry_runs(&self) -> u32 {
        self.vetoed_dry_runs
    }

    /// Whether objections have kept it from office for as long as they may.
    pub(crate) fn is_vetoed_too_often(&self) -> bool {
        self.vetoed_dry_runs >= MAX_VETOED_DRY_RUNS
    }

    /// There is a primary: objections block nothing.
    pub(crate) fn forget_vetoed_dry_runs(&mut self) {
        self.vetoed_dry_runs = 0;
    }

    // -- The last try ----------------------------------------------------------------------------

    pub(crate) fn note_campaign(&mut self, record: CampaignRecord) {
        self.last_campaign = Some(record);
    }

    pub(crate) fn last_campaign(&self) -> Option<&CampaignRecord> {
        self.last_campaign.as_ref()
    }

    // -- Quick tries and giving way --------------------------------------------------------------

    /// The election timeout is waited for from the start.
    pub(crate) fn await_silence(&mut self) {
        self.crash_tries = None;
        self.gave_way = false;
    }

    /// The primary's process is gone: silence need not be waited for.
    pub(crate) fn begin_quick_tries(&mut self) {
        self.crash_tries = Some(0);
        self.gave_way = false;
    }

    pub(crate) fn tries_quickly(&self) -> bool {
        self.crash_tries.is_some()
    }

    /// Uses up one of the quick tries, if any is left.
    pub(crate) fn take_quick_try(&mut self) -> bool {
        match &mut self.crash_tries {
            Some(tries) if *tries < MAX_CRASH_TRIES => {
                *tries += 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn begin_try(&mut self) {
        self.gave_way = false;
    }

    /// Gives another candidate time: once before each try.
    pub(crate) fn give_way(&mut self) -> bool {
        !std::mem::replace(&mut self.gave_way, true)
    }

    /// What decides what happens next, for the comparison of states in the model check.
    #[cfg(test)]
    pub(crate) fn decisive(&self) -> impl std::fmt::Debug {
        (self.vetoed_dry_runs, self.barred_until, self.crash_tries, self.gave_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn vetoes_in_quick_succession_count_once() {
        let mut candidacy = Candidacy::default();
        let interval = Duration::from_secs(2);
        for now in [0, 100, 1999] {
            candidacy.count_veto(at(now), interval);
        }
        assert_eq!(candidacy.vetoed_dry_runs(), 1);
        candidacy.count_veto(at(2000), interval);
        assert_eq!(candidacy.vetoed_dry_runs(), 2);
        candidacy.forget_vetoed_dry_runs();
        assert_eq!(candidacy.vetoed_dry_runs(), 0);
    }

    #[test]
    fn quick_tries_end() {
        let mut candidacy = Candidacy::default();
        assert!(!candidacy.take_quick_try(), "silence is waited for at first");
        candidacy.begin_quick_tries();
        let tries = (0..100).filter(|_| candidacy.take_quick_try()).count();
        assert_eq!(tries, MAX_CRASH_TRIES as usize);
        candidacy.await_silence();
        assert!(!candidacy.tries_quickly());
    }

    #[test]
    fn another_candidate_is_given_way_once_before_each_try() {
        let mut candidacy = Candidacy::default();
        assert!(candidacy.give_way());
        assert!(!candidacy.give_way());
        candidacy.begin_try();
        assert!(candidacy.give_way());
    }

    #[test]
    fn a_freeze_ends_at_its_time_or_by_command() {
        let mut candidacy = Candidacy::default();
        candidacy.bar_until(at(10));
        assert!(candidacy.is_barred(at(9)));
        assert!(!candidacy.is_barred(at(10)));
        assert!(candidacy.admit());
        assert!(!candidacy.admit() && !candidacy.is_barred(at(0)));
    }
}
