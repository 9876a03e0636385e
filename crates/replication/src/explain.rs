//! Why there is or is not a primary: `quorateExplainElection`.
//!
//! What one member knows of each member: its votes, whether it may lead, answers and is up to date, and
//! what the last objections were. Decides nothing; the rules are in `campaign` and `election`, and who
//! can be elected is judged in `electability`, as clients judge any set. The shape of the command's
//! reply is in `docs/replication.md`.

use std::collections::BTreeMap;
use std::fmt;

use quorate_protocol::{
    ElectionReason, MemberId, MemberState, MonotonicTime, OpTimeAndWallTime, Priority,
    ServerAddress, Term, remedy,
};

use crate::candidacy::VetoRecord;
use crate::electability::{self, Election, Obstacle, Reach, Reason, Standing};
use crate::peer::Contact;
use crate::role::Role;
use crate::status::Status;

/// How a member's last try to be elected ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CampaignRecord {
    /// Why it stood.
    pub reason: ElectionReason,
    /// In which term the try ended.
    pub term: Term,
    /// How it ended, in words.
    pub outcome: String,
    /// The time.
    pub at: MonotonicTime,
}

/// Why there is or is not a primary, as far as one member can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionExplanation {
    /// The member that explains.
    pub me: Option<MemberId>,
    /// The present term.
    pub term: Term,
    /// Its primary, if known.
    pub primary: Option<MemberId>,
    /// Members that vote.
    pub voters: usize,
    /// Votes of reachable members, this one among them.
    pub votes_visible: usize,
    /// Votes that elect.
    pub votes_needed: usize,
    /// Vetoed dry runs of this member since there was a primary.
    pub vetoed_dry_runs: u32,
    /// Whether this member stands for election right now.
    pub campaigning: bool,
    /// How this member's last try ended.
    pub last_campaign: Option<CampaignRecord>,
    /// The primary, or why there is none.
    pub election: Election,
    /// Each member.
    pub members: Vec<MemberExplanation>,
}

/// What speaks for and against one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberExplanation {
    /// The member.
    pub id: MemberId,
    /// Where it listens.
    pub host: ServerAddress,
    /// Whether it is the one that tells.
    pub is_self: bool,
    /// Its votes that count.
    pub votes: u32,
    /// Its priority that counts.
    pub priority: Priority,
    /// Its state.
    pub state: MemberState,
    /// Whether it answers, and if not, why and since when.
    pub contact: Contact,
    /// When it was heard of last.
    pub last_heard: Option<MonotonicTime>,
    /// How far it is.
    pub applied: OpTimeAndWallTime,
    /// Seconds between its last entry and the newest that is known.
    pub seconds_behind: u32,
    /// Why it cannot be elected now; none if it can be, or is the primary.
    pub obstacle: Option<Obstacle>,
    /// The last veto against it that this member gave or, about itself, received.
    pub last_veto: Option<VetoRecord>,
}

impl MemberExplanation {
    /// Whether it answers.
    pub fn is_reachable(&self) -> bool {
        self.contact == Contact::Up
    }
}

impl Status<'_> {
    /// Why there is or is not a primary, as far as this member can tell.
    pub fn explain(&self) -> ElectionExplanation {
        let views = self.members();
        let seconds = |at: OpTimeAndWallTime| at.op_time.timestamp.seconds;
        let newest = views.iter().map(|view| view.applied).max().map_or(0, seconds);
        let standings: BTreeMap<MemberId, Standing> = views
            .iter()
            .filter_map(|view| Some((view.id, self.standing(view.id, view.contact, view.state)?)))
            .collect();
        let members = views.into_iter().filter_map(|view| {
            let listed = self.config()?.member(view.id)?;
            Some(MemberExplanation {
                id: view.id,
                is_self: view.is_self,
                votes: u32::from(listed.is_voter()),
                priority: listed.effective_priority(),
                state: view.state,
                contact: view.contact,
                last_heard: view.last_heard,
                applied: view.applied,
                seconds_behind: match seconds(view.applied) {
                    // Arbiters and members that were never heard of show no entry to compare.
                    0 => 0,
                    own => newest.saturating_sub(own),
                },
                obstacle: standings.get(&view.id).and_then(electability::obstacle),
                last_veto: self.member.candidacy.last_veto(view.id),
                host: view.address,
            })
        });
        let members: Vec<MemberExplanation> = members.collect();
        let counts = self.counts();
        let needed = counts.map_or(0, |counts| counts.majority_vote);
        let standings: Vec<Standing> = standings.into_values().collect();
        let election = electability::judge(&standings, u32::try_from(needed).ok());
        ElectionExplanation {
            me: self.me(),
            term: self.term(),
            primary: self.primary(),
            voters: counts.map_or(0, |counts| counts.voters),
            votes_visible: election.visible as usize,
            votes_needed: needed,
            election,
            vetoed_dry_runs: self.member.candidacy.vetoed_dry_runs(),
            campaigning: self.member.is_campaigning(),
            last_campaign: self.member.candidacy.last_campaign().cloned(),
            members,
        }
    }

    /// What this member knows of one, as the rules take it.
    fn standing(&self, id: MemberId, contact: Contact, state: MemberState) -> Option<Standing> {
        let listed = self.config()?.member(id)?;
        let is_self = self.me() == Some(id);
        let leads =
            self.primary() == Some(id) || is_self && matches!(self.member.role, Role::Leader(_));
        let refusal = match self.member.peers.get(&id) {
            _ if is_self => self.member.why_not_standing(),
            Some(peer) if !peer.electable => {
                Some("it says so; it may be frozen or newly stepped down")
            }
            _ => None,
        };
        Some(Standing {
            host: listed.host.clone(),
            votes: u32::from(listed.is_voter()),
            priority: listed.effective_priority(),
            arbiter_only: listed.arbiter_only,
            newly_added: listed.newly_added,
            contact: match contact {
                Contact::Up => Reach::Up,
                Contact::Unheard => Reach::Unheard,
                Contact::Down { cause, .. } => Reach::Down(Some(cause.to_string())),
            },
            state: Some(state),
            leads,
            refusal: refusal.map(str::to_owned),
        })
    }
}

impl ElectionExplanation {
    /// The answer in one or two sentences, with what to do.
    pub fn summary(&self) -> String {
        let Self { term, votes_visible, votes_needed, voters, .. } = self;
        if self.members.is_empty() {
            return "No primary: this member has no configuration that lists it. Run rs.initiate() \
                    on one member, or add this one with rs.add()."
                .to_owned();
        }
        if let Some(primary) = self.primary.and_then(|id| self.member(id)) {
            return format!(
                "{} ({}) is primary of term {}: {votes_visible} of {voters} votes are in sight, \
                 {votes_needed} are needed to keep it.",
                primary.host, primary.id, term.0
            );
        }
        match &self.election.reason {
            Reason::NoMajority => {
                return format!(
                    "No primary: {votes_visible} of {voters} votes are in sight, {votes_needed} are \
                     needed; {}.",
                    remedy::reconnect(
                        &self.listed(|member| !member.is_reachable() && member.votes > 0)
                    )
                );
            }
            _ if self.campaigning => {
                return format!(
                    "No primary yet: this member stands for election in term {}.",
                    term.0
                );
            }
            Reason::ElectableDown(_) | Reason::NoneElectable => {
                let reasons = self.election.obstacles.iter();
                let reasons: Vec<String> =
                    reasons.map(|(host, obstacle)| format!("{host} {obstacle}")).collect();
                return format!(
                    "No primary: no member in sight can lead ({}).",
                    reasons.join("; ")
                );
            }
            Reason::Led(_) | Reason::UnderWay => {}
        }
        let candidates = self.listed(|member| member.obstacle.is_none());
        let tried = match &self.last_campaign {
            Some(last) => format!(" Its own last try was {}.", last.outcome),
            None => String::new(),
        };
        format!(
            "No primary in term {} although {votes_visible} of {voters} votes are in sight: \
             {candidates} may lead, and an election is due within the election timeout.{tried}",
            term.0
        )
    }

    fn member(&self, id: MemberId) -> Option<&MemberExplanation> {
        self.members.iter().find(|member| member.id == id)
    }

    fn listed(&self, which: impl Fn(&MemberExplanation) -> bool) -> String {
        let hosts: Vec<&str> = self
            .members
            .iter()
            .filter(|member| which(member))
            .map(|member| member.host.as_str())
            .collect();
        hosts.join(", ")
    }
}

impl fmt::Display for ElectionExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary())?;
        for member in &self.members {
            let reach = if member.is_reachable() { "reachable" } else { "unreachable" };
            write!(
                f,
                "{}: {}, {reach}, votes {}, priority {}, at {}",
                member.id, member.state, member.votes, member.priority, member.applied
            )?;
            if let Some(obstacle) = &member.obstacle {
                write!(f, ", cannot lead: it {obstacle}")?;
            }
            if let Some(record) = member.last_veto {
                write!(f, ", vetoed by {} at {:?}: {}", record.by, record.at, record.veto)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Unreachable;
    use crate::testing::{member, stamp};

    fn explained(id: i32, contact: Contact) -> MemberExplanation {
        let listed = member(id);
        MemberExplanation {
            id: listed.id,
            host: listed.host,
            is_self: id == 0,
            votes: 1,
            priority: Priority(1.0),
            state: MemberState::Secondary,
            contact,
            last_heard: None,
            applied: stamp(1, 5),
            seconds_behind: 0,
            obstacle: None,
            last_veto: None,
        }
    }

    fn standing(member: &MemberExplanation) -> Standing {
        Standing {
            host: member.host.clone(),
            votes: member.votes,
            priority: member.priority,
            arbiter_only: false,
            newly_added: false,
            contact: if member.is_reachable() { Reach::Up } else { Reach::Down(None) },
            state: Some(member.state),
            leads: false,
            refusal: None,
        }
    }

    fn explanation(members: Vec<MemberExplanation>) -> ElectionExplanation {
        let standings: Vec<Standing> = members.iter().map(standing).collect();
        ElectionExplanation {
            election: electability::judge(&standings, None),
            me: Some(MemberId(0)),
            term: Term(3),
            primary: None,
            voters: members.len(),
            votes_visible: members.iter().filter(|member| member.is_reachable()).count(),
            votes_needed: members.len() / 2 + 1,
            vetoed_dry_runs: 0,
            campaigning: false,
            last_campaign: None,
            members,
        }
    }

    fn down() -> Contact {
        Contact::Down { since: MonotonicTime::ZERO, cause: Unreachable::Refused }
    }

    #[test]
    fn the_summary_names_the_primary_or_what_is_missing() {
        let all = || (0..3).map(|id| explained(id, Contact::Up)).collect::<Vec<_>>();
        let led = ElectionExplanation { primary: Some(MemberId(1)), ..explanation(all()) };
        assert!(led.summary().contains("is primary of term 3: 3 of 3 votes"), "{}", led.summary());

        let mut cut = all();
        for member in &mut cut[1..] {
            member.contact = down();
        }
        let cut = explanation(cut);
        let hosts = format!("{}, {}", cut.members[1].host, cut.members[2].host);
        assert!(cut.summary().contains("1 of 3 votes are in sight, 2 are needed"));
        assert!(cut.summary().contains(&hosts), "{}", cut.summary());

        let mut none = all();
        for member in &mut none {
            member.priority = Priority(0.0);
        }
        let none = explanation(none).summary();
        assert!(none.contains("no member in sight can lead"), "{none}");
        assert!(none.contains("has priority 0"), "{none}");

        let mut tried = explanation(all());
        tried.last_campaign = Some(CampaignRecord {
            reason: ElectionReason::ElectionTimeout,
            term: Term(3),
            outcome: "lost: 1 of 2 votes".to_owned(),
            at: MonotonicTime::ZERO,
        });
        assert!(tried.summary().ends_with("Its own last try was lost: 1 of 2 votes."));
        assert!(explanation(Vec::new()).summary().contains("rs.initiate()"));
    }
}
