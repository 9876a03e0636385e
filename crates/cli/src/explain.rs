//! Why a set has no primary, or who leads it: computed from what members say.
//!
//! Works for every deployment: from `replSetGetStatus`, `replSetGetConfig` and what the members say of
//! themselves. The rules are `quorate_replication::electability`, by which our servers explain
//! themselves too (`quorateExplainElection`); those add what only a member can know.

use quorate_protocol::{Counted, MemberState, Priority, ServerAddress};
pub(crate) use quorate_replication::electability::{Election, Reason};
use quorate_replication::electability::{Reach, Standing, judge};

use crate::view::reply::{MemberSettings, MemberStatus, SetSettings, SetStatus};
use crate::words::listed;

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
    let standings: Vec<Standing> = status
        .members
        .iter()
        .map(|member| {
            let settings = settings.and_then(|settings| settings.members.get(&member.address));
            standing(member, settings, own_word(&member.address))
        })
        .collect();
    Some(judge(&standings, status.majority_votes))
}

fn standing(
    member: &MemberStatus,
    settings: Option<&MemberSettings>,
    claimed: Option<MemberState>,
) -> Standing {
    let usual = MemberSettings { votes: 1, priority: 1.0, arbiter_only: false, hidden: false };
    let settings = settings.unwrap_or(&usual);
    let state = claimed.or(member.state);
    let is_up = claimed.is_some()
        || (member.is_up || member.is_self)
            && !matches!(state, Some(MemberState::Down | MemberState::Unknown));
    Standing {
        host: member.address.clone(),
        votes: settings.votes,
        priority: Priority(settings.priority),
        arbiter_only: settings.arbiter_only,
        newly_added: false,
        contact: if is_up { Reach::Up } else { Reach::Down(None) },
        state,
        leads: is_up && state == Some(MemberState::Primary),
        refusal: None,
    }
}

/// The reason in one sentence, without a full stop.
pub(crate) fn sentence(election: &Election) -> String {
    let Election { votes, visible, needed, .. } = election;
    match &election.reason {
        Reason::Led(leader) => {
            format!("{leader} leads; votes visible {visible} of {votes}, need {needed}")
        }
        Reason::NoMajority => {
            let down = &election.down;
            let told = match down.len() {
                0 => String::new(),
                1 => format!("; {} is not up", down[0]),
                _ => format!("; {} are not up", listed(down)),
            };
            format!("no primary: votes visible {visible} of {votes}, need {needed}{told}")
        }
        Reason::ElectableDown(members) => format!(
            "no primary: {} up with a majority of the votes, but the only {} that may be \
             elected, {}, {} not answer",
            Counted(visible_count(election), "member"),
            if members.len() == 1 { "member" } else { "members" },
            listed(members),
            if members.len() == 1 { "does" } else { "do" },
        ),
        Reason::NoneElectable => format!(
            "no primary: a majority is up, but no member of it may be elected: {}",
            obstacles_listed(election)
        ),
        Reason::UnderWay => format!(
            "no primary yet: votes visible {visible} of {votes}, need {needed}, and {} may be \
             elected",
            listed(&election.candidates)
        ),
    }
}

/// `a:1 is an arbiter, b:1 has priority 0`.
pub(crate) fn obstacles_listed(election: &Election) -> String {
    listed(election.obstacles.iter().map(|(address, obstacle)| format!("{address} {obstacle}")))
}

fn visible_count(election: &Election) -> usize {
    election.candidates.len() + election.obstacles.len() - election.down.len()
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
    fn a_minority_elects_no_member() {
        let election = explain(&set(&[(2, true), (8, false), (8, false)]), None, nothing).unwrap();
        assert_eq!(election.reason, Reason::NoMajority);
        assert_eq!(
            sentence(&election),
            "no primary: votes visible 1 of 3, need 2; m2:1 and m3:1 are not up"
        );
    }

    /// An arbiter that is down is missed for its vote.
    #[test]
    fn an_arbiter_that_is_down_is_named() {
        let settings = settings(vec![
            doc! { "host": "m1:1" },
            doc! { "host": "m2:1" },
            doc! { "host": "m3:1", "arbiterOnly": true },
        ]);
        let status = set(&[(2, true), (8, false), (8, false)]);
        let election = explain(&status, Some(&settings), nothing).unwrap();
        let told = sentence(&election);
        assert!(told.ends_with("m2:1 and m3:1 are not up"), "{told}");
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
            sentence(&election).contains("the only member that may be elected, m1:1, does not")
        );
    }

    #[test]
    fn an_arbiter_and_a_member_that_recovers_elect_no_member() {
        let settings =
            settings(vec![doc! { "host": "m1:1" }, doc! { "host": "m2:1", "arbiterOnly": true }]);
        let election = explain(&set(&[(3, true), (7, true)]), Some(&settings), nothing).unwrap();
        assert_eq!(election.reason, Reason::NoneElectable);
        let sentence = sentence(&election);
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
