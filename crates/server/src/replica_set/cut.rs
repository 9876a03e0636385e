//! A simulated network partition between this member and the others, for drills and tests.
//!
//! Members on one machine cannot be parted by the network without an administrator's rights, so a
//! member parts itself: conversations with other members stand still, in both directions and with
//! their sockets open, as they do when a cable is pulled. The replication core does not know of the
//! cut: its requests time out. Clients are not affected. A cut of copying alone is what the
//! fail point `stopReplProducer` makes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use quorate_node::{Command, CommandFacts};
use tokio::sync::watch;

/// Whether this member is cut off. All clones are the same cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut(Arc<watch::Sender<bool>>);

impl Cut {
    /// Cuts the member off, or heals the cut.
    pub(crate) fn set(&self, is_cut: bool) {
        self.0.send_replace(is_cut);
    }

    /// Whether the member is cut off.
    pub(crate) fn is_cut(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once a command may be answered: at once, unless another member sent it.
    pub(super) async fn admit(&self, command: &Command) {
        if command.facts().is_some_and(CommandFacts::is_between_members) {
            // The sender lives as long as this cut.
            let _ = self.0.subscribe().wait_for(|is_cut| !is_cut).await;
        }
    }

    /// Carries on a conversation with other members, which stands still during a cut.
    pub(crate) async fn guard<T>(self, conversation: impl Future<Output = T>) -> T {
        let mut state = self.0.subscribe();
        let mut conversation = pin!(conversation);
        loop {
            tokio::select! {
                biased;
                _ = state.wait_for(|is_cut| *is_cut) => {}
                end = &mut conversation => return end,
            }
            let _ = state.wait_for(|is_cut| !is_cut).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn a_conversation_stands_still_during_a_cut_and_goes_on_after_it() {
        let cut = Cut::default();
        cut.set(true);
        let mut talk = pin!(cut.clone().guard(async { 7 }));
        let frozen = tokio::select! {
            biased;
            _ = &mut talk => false,
            () = yield_now() => true,
        };
        assert!(frozen && cut.is_cut());
        cut.set(false);
        assert_eq!(talk.await, 7);
    }

    #[tokio::test]
    async fn only_other_members_are_not_answered() {
        let cut = Cut::default();
        let command = |name: &str| Command::new(doc! { name: 1 });
        cut.admit(&command("replSetHeartbeat")).await;
        cut.set(true);
        cut.admit(&command("hello")).await;
        cut.admit(&command("replSetGetStatus")).await;
        let heartbeat = command("replSetHeartbeat");
        let held = tokio::select! {
            biased;
            () = cut.admit(&heartbeat) => false,
            () = yield_now() => true,
        };
        assert!(held);
    }
}
