//! Who leads the present term.
//!
//! A primary is one of a term: this member while it leads, otherwise the member that said in this term that it leads
//! and was not lost since. A new term therefore begins without a primary.

use quorate_protocol::{MemberId, Term};

use crate::event::Event;
use crate::member::Member;
use crate::role::Role;

/// Another member that said that it leads a term.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherPrimary {
    id: MemberId,
    term: Term,
}

impl Member {
    /// The primary of the present term.
    pub(crate) fn primary(&self) -> Option<MemberId> {
        match &self.role {
            Role::Leader(_) => self.me(),
            _ => self.other_primary.filter(|known| known.term == self.term()).map(|known| known.id),
        }
    }

    /// Another member leads the present term. Says whether that is news.
    pub(crate) fn hear_of_primary(&mut self, id: MemberId) -> bool {
        let is_news = self.primary() != Some(id);
        if is_news {
            let term = self.term();
            self.other_primary = Some(OtherPrimary { id, term });
            self.emit(Event::PrimaryKnown { primary: id, term });
        }
        self.hear_from_primary();
        is_news
    }

    /// The other member no longer leads, or can no longer be heard.
    pub(crate) fn forget_primary(&mut self) {
        self.other_primary = None;
    }
}
