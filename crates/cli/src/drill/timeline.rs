//! The moments of a failover, as the client saw them.

use std::sync::Arc;

use quorate_client::{Client, ClientEvent};
use quorate_protocol::{ElectionId, MonotonicTime, ServerAddress};
use quorate_server_discovery::{DiscoveryEvent, ServerDescription, TopologyDescription};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::fault::Fault;
use crate::view::term_of;

quorate_protocol::named! {
    /// A moment, in the order of a failover.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Moment {
        /// The fault was done.
        Fault = "fault",
        /// The client knew no primary any more.
        PrimaryLost = "primary_lost",
        /// The client knew another one, or the same in another term.
        Elected = "elected",
        /// A write was acknowledged after the election.
        FirstWrite = "first_write",
    }
}

/// A moment for telling.
pub(super) struct Told {
    pub(super) at: MonotonicTime,
    pub(super) after_fault_ms: f64,
    pub(super) text: String,
    pub(super) fields: Value,
}

/// When what happened.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    before: (ServerAddress, Option<ElectionId>),
    fault: MonotonicTime,
    primary_lost: Option<MonotonicTime>,
    elected: Option<(MonotonicTime, ServerAddress, Option<i64>)>,
    first_write: Option<MonotonicTime>,
}

impl Timeline {
    /// Begins just before the fault.
    pub(super) fn new(primary: &ServerDescription, fault: MonotonicTime) -> Self {
        Self {
            before: (primary.address().clone(), primary.election_id()),
            fault,
            primary_lost: None,
            elected: None,
            first_write: None,
        }
    }

    /// When the fault was ordered.
    pub(super) fn fault_at(&self) -> MonotonicTime {
        self.fault
    }

    pub(super) fn first_write(&mut self, at: MonotonicTime) {
        self.first_write = Some(at);
    }

    pub(super) fn is_elected(&self) -> bool {
        self.elected.is_some()
    }

    pub(super) fn elected_at(&self) -> Option<MonotonicTime> {
        self.elected.as_ref().map(|(at, ..)| *at)
    }

    pub(super) fn new_primary(&self) -> Option<&ServerAddress> {
        self.elected.as_ref().map(|(_, address, _)| address)
    }

    /// Whether a write went through after the election.
    pub(super) fn is_recovered(&self) -> bool {
        self.first_write.is_some()
    }

    /// Records the client's current view. Returns the new events.
    pub(super) fn observe(
        &mut self,
        now: MonotonicTime,
        topology: &TopologyDescription,
    ) -> Vec<Moment> {
        let mut moments = Vec::new();
        match topology.primary() {
            None if self.primary_lost.is_none() => {
                self.primary_lost = Some(now);
                moments.push(Moment::PrimaryLost);
            }
            Some(primary) if self.elected.is_none() && self.is_another(primary) => {
                let term = primary.election_id().and_then(term_of);
                self.elected = Some((now, primary.address().clone(), term));
                moments.push(Moment::Elected);
            }
            _ => {}
        }
        moments
    }

    /// Whether this is another primary than before, or the same one after another election.
    fn is_another(&self, primary: &ServerDescription) -> bool {
        let (address, election) = &self.before;
        // Servers that tell no election ids: back after it was gone is all there is to see.
        let again = match (election, primary.election_id()) {
            (Some(before), Some(now)) => *before != now,
            _ => self.primary_lost.is_some(),
        };
        primary.address() != address || again
    }

    /// A moment for telling; none if it has not come.
    pub(super) fn told(&self, moment: Moment, fault: &Fault) -> Option<Told> {
        let (at, text, mut fields) = match moment {
            Moment::Fault => {
                let fields = json!({"target": self.before.0.as_str()});
                (self.fault, fault.text(), fields)
            }
            Moment::PrimaryLost => {
                (self.primary_lost?, "the client knows no primary".to_owned(), json!({}))
            }
            Moment::Elected => {
                let (at, address, term) = self.elected.as_ref()?;
                let in_term = term.map(|term| format!(" in term {term}")).unwrap_or_default();
                let fields = json!({"primary": address.as_str(), "term": term});
                (*at, format!("{address} is primary{in_term}"), fields)
            }
            Moment::FirstWrite => {
                (self.first_write?, "a write is acknowledged".to_owned(), json!({}))
            }
        };
        let after_fault_ms = at.since(self.fault).as_secs_f64() * 1e3;
        fields["after_fault_ms"] = after_fault_ms.into();
        Some(Told { at, after_fault_ms, text, fields })
    }

    /// Every moment that has come, for programs.
    pub(super) fn to_json(&self) -> Value {
        let mut moments = Vec::new();
        for moment in Moment::ALL {
            let at = match moment {
                Moment::Fault => Some(self.fault),
                Moment::PrimaryLost => self.primary_lost,
                Moment::Elected => self.elected_at(),
                Moment::FirstWrite => self.first_write,
            };
            let Some(at) = at else { continue };
            moments.push(json!({
                "event": moment.name(),
                "t_ns": at.as_nanos(),
                "after_fault_ms": at.since(self.fault).as_secs_f64() * 1e3,
            }));
        }
        moments.into()
    }
}

/// Returns when the client describes the deployment as wanted.
pub(super) async fn until(client: &Client, wanted: impl Fn(&TopologyDescription) -> bool) {
    let mut events = client.events();
    while !wanted(&client.topology()) {
        if next_topology(&mut events).await.is_none() {
            // Events were missed; the description is not.
            tokio::task::yield_now().await;
        }
    }
}

/// The next description of the topology; none if events were missed.
pub(super) async fn next_topology(
    events: &mut Receiver<ClientEvent>,
) -> Option<Arc<TopologyDescription>> {
    loop {
        match events.recv().await {
            Ok(ClientEvent::Discovery(DiscoveryEvent::TopologyDescriptionChanged {
                new, ..
            })) => return Some(new),
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return None,
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}
