//! Many futures of one situation, summed up.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_protocol::ServerAddress;
use serde_json::{Value, json};

use super::world::{Fate, Future, Situation, play};
use crate::words::Span;

/// The summary of many futures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forecast {
    pub(crate) futures: usize,
    /// In which share of the futures each member leads.
    pub(crate) leaders: BTreeMap<ServerAddress, usize>,
    /// How long writes stop, sorted; futures in which they never go on are missing.
    pub(crate) gaps: Vec<Duration>,
    /// Why the slowest futures are slow.
    pub(crate) tail: Option<String>,
}

/// Plays so many futures.
pub(super) fn forecast(
    situation: &Situation,
    down: &[ServerAddress],
    fate: Fate,
    futures: usize,
) -> Forecast {
    let played: Vec<Future> =
        (0..futures).map(|seed| play(situation, down, fate, seed as u64 + 1)).collect();
    let mut leaders = BTreeMap::new();
    for winner in played.iter().filter_map(|future| future.winner.as_ref()) {
        *leaders.entry(winner.clone()).or_insert(0) += 1;
    }
    let mut gaps: Vec<Duration> =
        played.iter().filter_map(|future| future.without_writes).collect();
    gaps.sort_unstable();
    let tail = tail(&played, &gaps, situation, fate);
    Forecast { futures, leaders, gaps, tail }
}

impl Forecast {
    /// The gap that this share of the futures does not exceed; none if so many have no end.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let index = (share * self.futures as f64).ceil().max(1.0) as usize - 1;
        self.gaps.get(index.min(self.futures.saturating_sub(1))).copied()
    }

    /// The share of the futures in which this many end so.
    pub(crate) fn share(&self, count: usize) -> f64 {
        count as f64 / self.futures.max(1) as f64
    }

    /// How many futures end without writes.
    pub(crate) fn stuck(&self) -> usize {
        self.futures - self.gaps.len()
    }

    /// The gap in words: half, most, and all of the futures.
    pub(crate) fn gap_line(&self) -> String {
        match (self.quantile(0.5), self.quantile(0.95), self.quantile(1.0)) {
            (Some(half), Some(most), Some(worst)) => format!(
                "writes stop for {} (half of the futures), {} (95 %), {} (worst)",
                Span(half),
                Span(most),
                Span(worst)
            ),
            (Some(half), ..) => format!(
                "writes stop for {} (half of the futures), and do not go on in {:.0} %",
                Span(half),
                self.share(self.stuck()) * 100.0
            ),
            _ => "writes do not go on".to_owned(),
        }
    }

    /// The forecast as an object.
    pub(crate) fn to_json(&self) -> Value {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        let leaders = self
            .leaders
            .iter()
            .map(|(host, count)| json!({"host": host.as_str(), "share": self.share(*count)}));
        json!({
            "futures": self.futures,
            "leaders": leaders.collect::<Value>(),
            "stuck_share": self.share(self.stuck()),
            "gap_ms": {
                "p50": self.quantile(0.5).map(millis),
                "p95": self.quantile(0.95).map(millis),
                "p99": self.quantile(0.99).map(millis),
                "max": self.quantile(1.0).map(millis),
            },
            "tail": self.tail,
        })
    }
}

/// The one reason behind the slowest futures.
fn tail(played: &[Future], gaps: &[Duration], situation: &Situation, fate: Fate) -> Option<String> {
    let half = gaps.get(gaps.len() / 2).copied()?;
    let most = gaps.get(gaps.len() * 95 / 100).copied()?;
    let timeout = situation.config.settings.election_timeout();
    if half >= timeout.mul_f64(0.8) {
        let silent = if fate == Fate::Silence { "silence is noticed" } else { "it is noticed" };
        return Some(format!(
            "the election timeout of {}: {silent} only when it is over",
            Span(timeout)
        ));
    }
    if most < half * 2 {
        return None;
    }
    let slow: Vec<&Future> = played
        .iter()
        .filter(|future| future.without_writes.is_none_or(|gap| gap >= most))
        .collect();
    let share = |has: fn(&Future) -> bool| {
        slow.iter().filter(|future| has(future)).count() * 2 > slow.len()
    };
    if share(|future| future.elections > 1) {
        return Some(
            "two members stand at once and share the votes: the next election waits a random time"
                .to_owned(),
        );
    }
    if share(|future| future.dry_runs_lost > 0) {
        return Some(
            "a member stands before the others have noticed, and is refused in the dry run"
                .to_owned(),
        );
    }
    if share(|future| future.caught_up) {
        return Some("the new primary first copies entries that others have".to_owned());
    }
    Some("busy machines and slow disks on the way of the votes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::what_if::world::Pace;
    use quorate_protocol::{MemberConfig, MemberId, OpTime, ReplicaSetConfig, Term, Timestamp};

    fn situation(members: i32) -> Situation {
        let host = |id: i32| -> ServerAddress { format!("m{id}:1").parse().unwrap() };
        let configured = (0..members).map(|id| MemberConfig::new(MemberId(id), host(id))).collect();
        let last = OpTime::new(3, Timestamp::new(100, 1));
        Situation {
            config: ReplicaSetConfig::new("rs0".to_owned(), configured),
            term: Term(3),
            primary: Some(host(0)),
            up: (0..members).map(|id| (host(id), last)).collect(),
            pace: Pace { round_trips: vec![Duration::from_micros(500)], syncs: Vec::new() },
            client: None,
        }
    }

    fn hosts(ids: &[i32]) -> Vec<ServerAddress> {
        ids.iter().map(|id| format!("m{id}:1").parse().unwrap()).collect()
    }

    #[test]
    fn a_crash_of_the_primary_elects_one_of_the_others_soon() {
        let forecast = forecast(&situation(3), &hosts(&[0]), Fate::Crash, 30);
        assert_eq!(forecast.stuck(), 0, "{forecast:?}");
        assert!(forecast.leaders.keys().all(|leader| leader.as_str() != "m0:1"), "{forecast:?}");
        assert!(forecast.quantile(0.5).unwrap() < Duration::from_secs(2), "{forecast:?}");
    }

    #[test]
    fn silence_takes_the_election_timeout() {
        let forecast = forecast(&situation(3), &hosts(&[0]), Fate::Silence, 20);
        assert_eq!(forecast.stuck(), 0, "{forecast:?}");
        let half = forecast.quantile(0.5).unwrap();
        assert!(half > Duration::from_secs(7) && half < Duration::from_secs(20), "{half:?}");
        assert!(forecast.tail.unwrap().contains("election timeout"));
    }

    #[test]
    fn a_minority_never_goes_on() {
        let forecast = forecast(&situation(3), &hosts(&[0, 1]), Fate::Crash, 5);
        assert_eq!(forecast.stuck(), 5, "{forecast:?}");
        assert_eq!(forecast.gap_line(), "writes do not go on");
    }

    /// Every future would go on for six election timeouts, in which nothing can change.
    #[test]
    fn a_minority_is_not_played_to_the_end() {
        for fate in [Fate::Crash, Fate::Silence] {
            let future = play(&situation(3), &hosts(&[0, 1]), fate, 1);
            assert_eq!((future.elections, future.dry_runs_lost), (0, 0), "{future:?}");
        }
    }

    #[test]
    fn losing_a_secondary_of_three_changes_nothing() {
        let forecast = forecast(&situation(3), &hosts(&[2]), Fate::Crash, 5);
        assert_eq!(forecast.quantile(1.0), Some(Duration::ZERO), "{forecast:?}");
        assert_eq!(forecast.leaders.len(), 1, "{forecast:?}");
    }

    #[test]
    fn a_primary_that_loses_its_majority_steps_down() {
        let forecast = forecast(&situation(3), &hosts(&[1, 2]), Fate::Crash, 3);
        assert_eq!(forecast.stuck(), 3, "{forecast:?}");
        assert!(forecast.leaders.is_empty(), "{forecast:?}");
    }

    #[test]
    fn a_step_down_hands_over() {
        let forecast = forecast(&situation(3), &[], Fate::StepDown, 20);
        assert_eq!(forecast.stuck(), 0, "{forecast:?}");
        assert!(forecast.quantile(0.5).unwrap() < Duration::from_secs(2), "{forecast:?}");
    }

    #[test]
    fn the_same_situation_has_the_same_forecast() {
        let play = || forecast(&situation(5), &hosts(&[0]), Fate::Crash, 5);
        assert_eq!(play(), play());
    }
}
