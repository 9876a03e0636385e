//! Feeds a [`View`] from a client and from a connection to each member.
//!
//! The client tells what it believes; the `asker` of each member tells what the member says. Askers
//! need no primary and no majority: each has one connection, one question at a time, a bound on each
//! answer, and tries again for ever. When the client changes its mind about anything, all members
//! are asked at once, so that both columns of a comparison are of one age.

mod asker;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_client::{Client, ClientError, ClientEvent, ClientOptions};
use quorate_protocol::{Lock, ServerAddress};
use quorate_server_discovery::DiscoveryEvent;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use super::{Input, View};
use crate::clock;
use crate::task::Task;
use asker::{Asker, Manner};

/// How often pools are counted and ages move on.
const TICK: Duration = Duration::from_millis(250);

/// A view that is kept up to date. Everything ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Live {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// The view, and the channel that announces its changes.
pub(super) struct Shared {
    view: Lock<View>,
    revision: watch::Sender<u64>,
}

impl Shared {
    pub(super) fn tell(&self, input: Input) {
        self.view.lock().handle(clock::now(), input);
        self.revision.send_modify(|revision| *revision += 1);
    }
}

impl Live {
    /// Begins to collect. The options are those that the client was made with; the connection
    /// string is shown, and must hold no secret. Fails if the options name certificates or
    /// mechanisms that cannot be used.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(crate) fn start(
        client: Client,
        options: &ClientOptions,
        shown_uri: String,
    ) -> Result<Self, ClientError> {
        let manner = Arc::new(Manner::new(options)?);
        let shared = Arc::new(Shared {
            view: Lock::new(View::new(clock::now(), shown_uri)),
            revision: watch::Sender::new(0),
        });
        // Before anything else happens, so that no event is missed.
        let events = client.events();
        let collector = Collector {
            client,
            shared: Arc::clone(&shared),
            manner,
            askers: JoinSet::new(),
            asked: BTreeMap::new(),
            nudge: watch::Sender::new(()),
        };
        Ok(Self { shared, _task: Arc::new(Task::spawn(collector.run(events))) })
    }

    /// Looks at the view. Nothing is collected meanwhile, so the look must be short.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&View) -> R) -> R {
        look(&self.shared.view.lock())
    }

    /// Adds something that no client can know: processes and actions.
    pub(crate) fn tell(&self, input: Input) {
        self.shared.tell(input);
    }

    /// Changes whenever the view does.
    pub(crate) fn revision(&self) -> watch::Receiver<u64> {
        self.shared.revision.subscribe()
    }
}

struct Collector {
    client: Client,
    shared: Arc<Shared>,
    manner: Arc<Manner>,
    /// One for each member that is shown: [`super::MAX_MEMBERS`] at most.
    askers: JoinSet<()>,
    asked: BTreeMap<ServerAddress, AbortHandle>,
    nudge: watch::Sender<()>,
}

impl Collector {
    async fn run(mut self, mut events: broadcast::Receiver<ClientEvent>) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        self.look_anew();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(event) => self.on_event(event),
                    Err(RecvError::Lagged(_)) => self.look_anew(),
                    Err(RecvError::Closed) => return,
                },
                _ = tick.tick() => {
                    self.shared.tell(Input::Pools(self.client.pools()));
                    self.ask_members();
                }
            }
        }
    }

    /// The client's present view, even if events were missed.
    fn look_anew(&mut self) {
        let new = self.client.topology();
        let previous = Arc::clone(&new);
        let changed = DiscoveryEvent::TopologyDescriptionChanged { previous, new };
        self.on_event(ClientEvent::Discovery(changed));
    }

    fn on_event(&mut self, event: ClientEvent) {
        let changed = matches!(
            event,
            ClientEvent::Discovery(
                DiscoveryEvent::TopologyDescriptionChanged { .. }
                    | DiscoveryEvent::ServerDescriptionChanged { .. }
            )
        );
        self.shared.tell(Input::Client(Box::new(event)));
        if changed {
            self.ask_members();
            self.nudge.send_replace(());
        }
    }

    /// Sees to it that every member is asked.
    fn ask_members(&mut self) {
        let wanted = self.shared.view.lock().addresses_to_ask();
        self.asked.retain(|address, asker| {
            let keep = wanted.contains(address);
            if !keep {
                asker.abort();
            }
            keep
        });
        for address in wanted {
            let (manner, shared, nudge) = (&self.manner, &self.shared, self.nudge.subscribe());
            self.asked.entry(address).or_insert_with_key(|address| {
                let (manner, shared) = (Arc::clone(manner), Arc::clone(shared));
                let asker = Asker::new(address.clone(), manner, shared);
                self.askers.spawn(asker.run(nudge))
            });
        }
    }
}
