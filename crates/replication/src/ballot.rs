//! The term and the vote that was given in it: what a member has promised in elections.
//!
//! Owns two rules: the term never falls, and there is one vote in a term. The caller stores what
//! changes here before anything that depends on it is said. docs/replication-rules.md#elections.

use quorate_protocol::{MemberId, Term};

use crate::election::LastVote;

/// The present term and the last vote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ballot {
    term: Term,
    last_vote: Option<LastVote>,
}

impl Ballot {
    /// What the disk shows: the term is no lower than that of anything which is stored there.
    pub(crate) fn recovered(term: Term, last_vote: Option<LastVote>) -> Self {
        let voted = last_vote.map_or(Term::default(), |vote| vote.term);
        Self { term: term.max(voted), last_vote }
    }

    pub(crate) fn term(&self) -> Term {
        self.term
    }

    pub(crate) fn last_vote(&self) -> Option<LastVote> {
        self.last_vote
    }

    /// Goes to a higher term, and says whether it was higher.
    pub(crate) fn raise(&mut self, term: Term) -> bool {
        let higher = term > self.term;
        self.term = self.term.max(term);
        higher
    }

    /// Begins the next term with a vote for oneself.
    pub(crate) fn stand(&mut self, me: MemberId) -> LastVote {
        self.term = self.term.next();
        self.vote_for(me)
    }

    /// Gives the vote of the present term.
    pub(crate) fn vote_for(&mut self, candidate: MemberId) -> LastVote {
        let vote = LastVote { term: self.term, candidate };
        assert!(
            self.last_vote.is_none_or(|last| last.term < vote.term || last == vote),
            "one vote in a term"
        );
        self.last_vote = Some(vote);
        vote
    }

    /// Whether the vote of this term was given to this member.
    pub(crate) fn elects(&self, term: Term, member: Option<MemberId>) -> bool {
        self.last_vote.is_some_and(|vote| vote.term == term && Some(vote.candidate) == member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_never_falls_and_a_stored_vote_raises_it() {
        let vote = LastVote { term: Term(7), candidate: MemberId(1) };
        let mut ballot = Ballot::recovered(Term(3), Some(vote));
        assert_eq!(ballot.term(), Term(7));
        assert!(!ballot.raise(Term(5)) && !ballot.raise(Term(7)));
        assert_eq!(ballot.term(), Term(7));
        assert!(ballot.raise(Term(8)));
        assert_eq!((ballot.term(), ballot.last_vote()), (Term(8), Some(vote)));
    }

    #[test]
    fn standing_begins_a_term_with_the_own_vote() {
        let mut ballot = Ballot::recovered(Term(3), None);
        let vote = ballot.stand(MemberId(2));
        assert_eq!(vote, LastVote { term: Term(4), candidate: MemberId(2) });
        assert!(ballot.elects(Term(4), Some(MemberId(2))));
        assert!(!ballot.elects(Term(4), Some(MemberId(1))) && !ballot.elects(Term(3), None));
    }

    #[test]
    #[should_panic(expected = "one vote in a term")]
    fn a_second_vote_in_a_term_is_our_fault() {
        let mut ballot = Ballot::recovered(Term(3), None);
        ballot.vote_for(MemberId(0));
        ballot.vote_for(MemberId(1));
    }
}
