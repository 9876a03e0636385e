//! Why a set has no primary, or who leads it: computed from what members say.
//!
//! A pure function of `replSetGetStatus`, `replSetGetConfig` and what the members say of themselves,
//! so that it works for every deployment. Servers of ours explain more with `quorateExplainElection`.
//! Follows the manual's pages on replica set elections: a majority of all votes of the configuration,
//! and a candidate that holds data, has a priority above zero and is a secondary.

use quorate_protocol::{MemberState, ServerAddress};

use crate::view::reply::{MemberSettings, SetSettings, SetStatus};
use crate::words::{Counted, listed};

/// Why a member cannot be elected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It does not answer the other members.
    Down,
    /// It holds no data.
    Arbiter,
    /// Its priority is 0.
    NoPriority,
    /// It is neither primary nor secondary.
    State(MemberState),
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Down => f.write_str("does not answer"),
            Self::Arbiter => f.write_str("is an arbiter"),
            Self::NoPriority => f.write_str("has priority 0"),
            Self::State(state) => write!(f, "is {state}"),
        }
    }
}

/// Whether and why a set has a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This member leads.
    Led(ServerAddress),
    /// Too few votes are up.
    NoMajority,
    /// A majority is up, and every member that could be elected is down.
    ElectableDown(Vec<ServerAddress>),
    /// A majority is up, and none of its members may be elected.
    NobodyElectable,
    /// A majority and a candidate are up.
    UnderWay,
}

/// The votes and the candidates of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Election {
    /// Every vote of the configuration.
    pub(crate) votes: u32,
    /// The votes of members that answer.
    pub(crate) visible: u32,
    /// The votes that elect.
    pub(crate) needed: u32,
    /// Members that could be elected now.
    pub(crate) candidates: Vec<ServerAddress>,
    /// Everybody else.
    pub(crate) obstacles: Vec<(ServerAddress, Obstacle)>,
    /// Who leads, or why nobody does.
    pub(crate) reason: Reason,
}

/// Explains the election of a set. `own_word` is the state that a member claims itself, which is
/// newer than what its peers heard.
pub(crate) fn explain(
    status: &SetStatus,
    settings: Option<&SetSettings>,
    own_word: impl Fn(&ServerAddress) -> Option<MemberState>,
) -> Option<Election> {
    if status.members.is_empty() {
        return None;
    }
    let usual = MemberSettings { votes: 1, priority: 1.0, arbiter_only: false, hidden: false };
    let mut election = Election {
        votes: 0,
        visible: 0,
        needed: 0,
        candidates: Vec::new(),
        obstacles: Vec::new(),
        reason: Reason::UnderWay,
    };
    let (mut leader, mut electable_down) = (None, Vec::new());
    for member in &status.members {
        let address = &member.address;
        let settings =
            settings.and_then(|settings| settings.members.get(address)).unwrap_or(&usual);
        let claimed = own_word(address);
        let state = claimed.or(member.state);
        let is_up = claimed.is_some()
            || (member.is_up || member.is_self)
                && !matches!(state, Some(MemberState::Down | MemberState::Unknown));
        election.votes += settings.votes;
        if is_up {
            election.visible += settings.votes;
        }
        let may_lead = !settings.arbiter_only && settings.priority > 0.0;
        let is_arbiter = settings.arbiter_only || state == Some(MemberState::Arbiter);
        let obstacle = match state {
            _ if is_arbiter => Some(Obstacle::Arbiter),
            _ if !is_up => Some(Obstacle::Down),
            Some(MemberState::Primary) => {
                leader = Some(address.clone());
                None
            }
            _ if !may_lead => Some(Obstacle::NoPriority),
            Some(MemberState::Secondary) | None => None,
            Some(other) => Some(Obstacle::State(other)),
        };
        if obstacle == Some(Obstacle::Down) && may_lead {
            electable_down.push(address.clone());
        }
        match obstacle {
            None => election.candidates.push(address.clone()),
            Some(obstacle) => election.obstacles.push((address.clone(), obstacle)),
        }
    }
    election.needed = status.majority_votes.unwrap_or(election.votes / 2 + 1);
    election.reason = match leader {
        Some(leader) => Reason::Led(leader),
        None if election.visible < election.needed => Reason::NoMajority,
        None if !election.candidates.is_empty() => Reason::UnderWay,
        None if !electable_down.is_empty() => Reason::ElectableDown(electable_down),
        None => Reason::NobodyElectable,
    };
    Some(election)
}

impl Election {
    /// The members that do not answer.
    pub(crate) fn down(&self) -> impl Iterator<Item = &ServerAddress> {
        let down = self.obstacles.iter().filter(|(_, obstacle)| *obstacle == Obstacle::Down);
        down.map(|(address, _)| address)
    }

    /// The reason in one sentence, without a full stop.
    pub(crate) fn sentence(&self) -> String {
        let Self { votes, visible, needed, .. } = self;
        match &self.reason {
            Reason::Led(leader) => {
                format!("{leader} leads; votes visible {visible} of {votes}, need {needed}")
            }
            Reason::NoMajority => {
                let down: Vec<_> = self.down().collect();
                let told = match down.len() {
                    0 => String::new(),
                    1 => format!("; {} is not up", down[0]),
                    _ => format!("; {} are not up", listed(&down)),
                };
                format!("no primary: votes visible {visible} of {votes}, need {needed}{told}")
            }
            Reason::ElectableDown(members) => format!(
                "no primary: {} up with a majority of the votes, but the only {} that may be \
                 elected, {}, {} not answer",
                Counted(visible_count(self), "member"),
                if members.len() == 1 { "member" } else { "members" },
                listed(members),
                if members.len() == 1 { "does" } else { "do" },
            ),
            Reason::NobodyElectable => format!(
                "no primary: a majority is up, but no member of it may be elected: {}",
                self.obstacles_listed()
            ),
            Reason::UnderWay => format!(
                "no primary yet: votes visible {visible} of {votes}, need {needed}, and {} may be \
                 elected",
                listed(&self.candidates)
            ),
        }
    }

    /// `a:1 is an arbiter, b:1 has priority 0`.
    pub(crate) fn obstacles_listed(&self) -> String {
        listed(self.obstacles.iter().map(|(address, obstacle)| format!("{address} {obstacle}")))
    }
}

fn visible_count(election: &Election) -> usize {
    let down = election.down().count();
    election.candidates.len() + election.obstacles.len() - down
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::reply::{set_settings, set_status};
    use bson::{Document, doc};

    fn set(states: &[(i32, bool)]) -> SetStatus {
        let members: Vec<Document> = (1..)
            .zip(states)
            .map(|(number, (state, up))| {
                doc! { "name": format!("m{number}:1"), "state": *state, "health": i32::from(*up) }
            })
            .collect();
        set_status(&doc! { "members": members })
    }

    fn settings(members: Vec<Document>) -> SetSettings {
        set_settings(&doc! { "config": { "version": 1, "members": members } }).unwrap()
    }

    fn nothing(_: &ServerAddress) -> Option<MemberState> {
        None
    }

    #[test]
    fn a_minority_elects_nobody() {
        let election = explain(&set(&[(2, true), (8, false), (8, false)]), None, nothing).unwrap();
        assert_eq!(election.reason, Reason::NoMajority);
        assert_eq!(
            election.sentence(),
            "no primary: votes visible 1 of 3, need 2; m2:1 and m3:1 are not up"
        );
    }

    #[test]
    fn the_only_electable_member_may_be_the_one_that_is_down() {
        let settings = settings(vec![
            doc! { "host": "m1:1" },
            doc! { "host": "m2:1", "priority": 0 },
            doc! { "host": "m3:1", "priority": 0 },
        ]);
        let status = set(&[(8, false), (2, true), (2, true)]);
        let election = explain(&status, Some(&settings), nothing).unwrap();
        assert!(matches!(&election.reason, Reason::ElectableDown(down) if down.len() == 1));
        assert!(
            election.sentence().contains("the only member that may be elected, m1:1, does not")
        );
    }

    #[test]
    fn an_arbiter_and_a_member_that_recovers_elect_nobody() {
        let settings =
            settings(vec![doc! { "host": "m1:1" }, doc! { "host": "m2:1", "arbiterOnly": true }]);
        let election = explain(&set(&[(3, true), (7, true)]), Some(&settings), nothing).unwrap();
        assert_eq!(election.reason, Reason::NobodyElectable);
        let sentence = election.sentence();
        assert!(sentence.contains("m1:1 is RECOVERING and m2:1 is an arbiter"), "{sentence}");
    }

    #[test]
    fn a_members_own_word_is_newer_than_what_its_peers_heard() {
        let stale = set(&[(1, true), (5, true), (6, false)]);
        let own = |_: &ServerAddress| Some(MemberState::Secondary);
        let election = explain(&stale, None, own).unwrap();
        assert!(election.obstacles.is_empty(), "{election:?}");
        assert_eq!(election.reason, Reason::UnderWay, "the first says that it leads no more");
    }

    #[test]
    fn votes_are_those_of_the_configuration() {
        let settings = settings(vec![
            doc! { "host": "m1:1" },
            doc! { "host": "m2:1", "votes": 0, "priority": 0 },
        ]);
        let election = explain(&set(&[(1, true), (2, true)]), Some(&settings), nothing).unwrap();
        assert_eq!((election.votes, election.visible, election.needed), (1, 1, 1));
        assert_eq!(election.reason, Reason::Led("m1:1".parse().unwrap()));
    }

    #[test]
    fn who_says_nothing_explains_nothing() {
        assert_eq!(explain(&SetStatus::default(), None, nothing), None);
    }
}
