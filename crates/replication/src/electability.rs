//! Whether a set can have a primary, and why not: one pure function of what is known of its members.
//!
//! A member explains itself with it (`explain`), from its heartbeats; a client explains any deployment
//! with it, from `replSetGetStatus`, `replSetGetConfig` and hello. Follows the manual's pages on replica
//! set elections: a majority of all votes of the configuration, and a candidate that holds data, has a
//! priority above zero, is a secondary and is not kept from standing.

use std::fmt;

use quorate_protocol::{ElectionReason, MemberState, Priority, ServerAddress};

/// What is known of one member, however it became known.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Where it listens.
    pub host: ServerAddress,
    /// Its votes.
    pub votes: u32,
    /// Its priority.
    pub priority: Priority,
    /// Whether it only votes.
    pub arbiter_only: bool,
    /// Whether it was added lately, and takes no part until it is a secondary.
    pub newly_added: bool,
    /// Whether it answers.
    pub contact: Reach,
    /// Its state; none if it is not told.
    pub state: Option<MemberState>,
    /// Whether it is the primary.
    pub leads: bool,
    /// Why it does not stand, as it says itself.
    pub refusal: Option<String>,
}

/// Whether a member answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It answers.
    Up,
    /// It was never heard of.
    Unheard,
    /// It does not answer; why, if that is known.
    Down(Option<String>),
}

/// Why a member cannot be elected now. Shown as what is said of it: `has priority 0`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It holds no data.
    Arbiter,
    /// It was added lately.
    NewlyAdded,
    /// Its priority is 0.
    NoPriority,
    /// It was never heard of.
    Unheard,
    /// It does not answer.
    Down(Option<String>),
    /// It is neither primary nor secondary.
    State(MemberState),
    /// It says that it does not stand.
    Refuses(String),
}

impl Obstacle {
    /// Whether it would be gone if the member answered.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Unheard | Self::Down(_))
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arbiter => f.write_str("is an arbiter"),
            Self::NewlyAdded => f.write_str("was added lately and is not a secondary yet"),
            Self::NoPriority => f.write_str("has priority 0"),
            Self::Unheard => f.write_str("was never heard of"),
            Self::Down(None) => f.write_str("does not answer"),
            Self::Down(Some(cause)) => write!(f, "does not answer: {cause}"),
            Self::State(state) => write!(f, "is {state}"),
            Self::Refuses(why) => write!(f, "does not stand: {why}"),
        }
    }
}

/// Whether and why a set has a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// This member leads.
    Led(ServerAddress),
    /// Too few votes are up.
    NoMajority,
    /// A majority is up, and every member that could be elected is down.
    ElectableDown(Vec<ServerAddress>),
    /// A majority is up, and none of its members may be elected.
    NoneElectable,
    /// A majority and a candidate are up.
    UnderWay,
}

/// The votes and the candidates of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Every vote of the configuration.
    pub votes: u32,
    /// The votes of members that answer.
    pub visible: u32,
    /// The votes that elect.
    pub needed: u32,
    /// Members that could be elected now, and the one that leads.
    pub candidates: Vec<ServerAddress>,
    /// The others, each with its reason.
    pub obstacles: Vec<(ServerAddress, Obstacle)>,
    /// Members that do not answer, arbiters among them.
    pub down: Vec<ServerAddress>,
    /// Who leads, or why no member does.
    pub reason: Reason,
}

/// Why this member cannot be elected now; none if it can be, or leads.
pub fn obstacle(member: &Standing) -> Option<Obstacle> {
    if member.leads {
        return None;
    }
    if member.arbiter_only || member.state == Some(MemberState::Arbiter) {
        return Some(Obstacle::Arbiter);
    }
    if member.newly_added {
        return Some(Obstacle::NewlyAdded);
    }
    if member.priority.0 <= 0.0 {
        return Some(Obstacle::NoPriority);
    }
    match (&member.contact, member.state, &member.refusal) {
        (Reach::Unheard, ..) => Some(Obstacle::Unheard),
        (Reach::Down(cause), ..) => Some(Obstacle::Down(cause.clone())),
        (Reach::Up, Some(state), _) if state != MemberState::Secondary => {
            Some(Obstacle::State(state))
        }
        (Reach::Up, _, Some(why)) => Some(Obstacle::Refuses(why.clone())),
        (Reach::Up, ..) => None,
    }
}

/// Whether the set of these members has a primary, and why not. `needed` are the votes that elect, where
/// a member says so; more than half of all otherwise.
pub fn judge(members: &[Standing], needed: Option<u32>) -> Election {
    let up = || members.iter().filter(|member| member.contact == Reach::Up);
    let votes = members.iter().map(|member| member.votes).sum::<u32>();
    let visible = up().map(|member| member.votes).sum::<u32>();
    let needed = needed.unwrap_or(votes / 2 + 1);
    let (mut candidates, mut obstacles) = (Vec::new(), Vec::new());
    for member in members {
        match obstacle(member) {
            None => candidates.push(member.host.clone()),
            Some(obstacle) => obstacles.push((member.host.clone(), obstacle)),
        }
    }
    let leader = members.iter().find(|member| member.leads).map(|member| member.host.clone());
    let absent = obstacles.iter().filter(|(_, obstacle)| obstacle.is_absence());
    let absent: Vec<ServerAddress> = absent.map(|(host, _)| host.clone()).collect();
    let reason = match leader {
        Some(leader) => Reason::Led(leader),
        None if visible < needed => Reason::NoMajority,
        None if !candidates.is_empty() => Reason::UnderWay,
        None if !absent.is_empty() => Reason::ElectableDown(absent),
        None => Reason::NoneElectable,
    };
    let down = members.iter().filter(|member| member.contact != Reach::Up);
    let down = down.map(|member| member.host.clone()).collect();
    Election { votes, visible, needed, candidates, obstacles, down, reason }
}

/// Why this member was elected, by the name of the reason that it gave when it stood; none if the name
/// is of no server that is known.
pub fn why_elected(reason: &str) -> Option<&'static str> {
    // Names of other servers first, where ours has another one for the same.
    match reason {
        "singleNodePromptElection" => Some("it is the only member that can be elected"),
        _ => ElectionReason::from_name(reason).map(why),
    }
}

fn why(reason: ElectionReason) -> &'static str {
    match reason {
        ElectionReason::ElectionTimeout => "it heard of no primary for the election timeout",
        ElectionReason::PrimaryCrashed => "the process of the primary before it ended",
        ElectionReason::Initiated => "the set was initiated on it",
        ElectionReason::SingleNode => "it is the only member that can be elected",
        ElectionReason::PriorityTakeover => "its priority is higher than that of the one before it",
        ElectionReason::CatchUpTakeover => "it had newer entries than the primary before it",
        ElectionReason::StepUpRequest => "an administrator asked it to stand (replSetStepUp)",
        ElectionReason::Handoff => "the primary before it stepped down and handed over",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::member;

    /// A secondary that answers.
    fn secondary(id: i32) -> Standing {
        Standing {
            host: member(id).host,
            votes: 1,
            priority: Priority(1.0),
            arbiter_only: false,
            newly_added: false,
            contact: Reach::Up,
            state: Some(MemberState::Secondary),
            leads: false,
            refusal: None,
        }
    }

    fn down(id: i32) -> Standing {
        Standing { contact: Reach::Down(None), state: Some(MemberState::Down), ..secondary(id) }
    }

    fn arbiter(id: i32) -> Standing {
        Standing { arbiter_only: true, state: Some(MemberState::Arbiter), ..secondary(id) }
    }

    fn passive(id: i32) -> Standing {
        Standing { priority: Priority(0.0), ..secondary(id) }
    }

    #[test]
    fn one_reason_is_given() {
        let led = Standing { leads: true, state: Some(MemberState::Primary), ..secondary(0) };
        let recovers = Standing { state: Some(MemberState::Recovering), ..secondary(0) };
        let frozen = Standing { refusal: Some("frozen".to_owned()), ..secondary(0) };
        let host = |id: i32| member(id).host;
        let cases = [
            (vec![led, secondary(1), down(2)], Reason::Led(host(0))),
            (vec![secondary(0), down(1), down(2)], Reason::NoMajority),
            (vec![secondary(0), secondary(1), down(2)], Reason::UnderWay),
            (vec![down(0), passive(1), passive(2)], Reason::ElectableDown(vec![host(0)])),
            (vec![down(0), passive(1), arbiter(2)], Reason::ElectableDown(vec![host(0)])),
            (vec![recovers, arbiter(1), passive(2)], Reason::NoneElectable),
            (vec![frozen, arbiter(1), passive(2)], Reason::NoneElectable),
            // A member that is down and could not lead is not the one that is missed.
            (
                vec![passive(0), passive(1), Standing { contact: Reach::Unheard, ..passive(2) }],
                Reason::NoneElectable,
            ),
        ];
        for (members, reason) in cases {
            let election = judge(&members, None);
            assert_eq!(election.reason, reason, "{members:?}");
            assert_eq!(election.candidates.len() + election.obstacles.len(), 3);
        }
    }

    /// The configuration says it before the member is heard, and the member before the configuration is known.
    #[test]
    fn an_arbiter_is_known_by_its_configuration_or_by_its_state() {
        let unheard = Standing { contact: Reach::Unheard, state: None, ..arbiter(0) };
        let by_state = Standing { arbiter_only: false, ..arbiter(0) };
        for arbiter in [unheard, by_state] {
            assert_eq!(obstacle(&arbiter), Some(Obstacle::Arbiter), "{arbiter:?}");
        }
    }

    #[test]
    fn more_than_half_of_the_votes_elect_unless_a_member_knows_better() {
        for (members, needed) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)] {
            let members: Vec<Standing> = (0..members).map(secondary).collect();
            assert_eq!(judge(&members, None).needed, needed, "{}", members.len());
            assert_eq!(judge(&members, Some(1)).needed, 1);
        }
    }

    #[test]
    fn every_reason_for_an_election_is_told_in_words_of_its_own() {
        let told: BTreeSet<_> =
            ElectionReason::ALL.iter().filter_map(|reason| why_elected(reason.name())).collect();
        assert_eq!(told.len(), ElectionReason::ALL.len());
        assert!(told.iter().all(|words| words.contains(' ')), "{told:?}");
        let alone = why_elected(ElectionReason::SingleNode.name());
        assert_eq!(why_elected("singleNodePromptElection"), alone);
        let handed_over = why_elected("stepUpRequestSkipDryRun").unwrap();
        assert!(handed_over.ends_with("handed over"), "{handed_over}");
        assert_eq!(why_elected("aReasonOfNoServer"), None);
    }

    /// An arbiter that is down is missed for its vote, though it could not lead.
    #[test]
    fn members_that_are_down_are_named_whatever_they_are() {
        let gone = Standing { contact: Reach::Down(None), ..arbiter(2) };
        let election = judge(&[secondary(0), down(1), gone], None);
        assert_eq!(election.down, [member(1).host, member(2).host]);
        assert_eq!((election.visible, election.votes, election.needed), (1, 3, 2));
    }
}
