//! The subscribers to the events of a client: the callback of its options, and the receivers of
//! [`Client::events`](crate::Client::events).
//!
//! Operations ask first whether there is any of them: most clients have none, and an event without a
//! listener is not built. The channel itself can only be asked under a lock, which all operations share.

use std::sync::atomic::{AtomicBool, Ordering};

use quorate_protocol::Lock;
use tokio::sync::broadcast;

use crate::discovery::{ClientEvent, EventListener};

/// Calls what the application has given, where the client's own work must go on: one monitor, timer or pool
/// serves the whole client. A panic is reported by the panic hook, and ends nothing but the call.
pub(crate) fn call_out(callback: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback));
}

pub(crate) struct Listeners {
    own: Option<EventListener>,
    /// There from a subscription until an event finds no receiver: its room for events takes more memory than
    /// all else in a client.
    events: Lock<Option<broadcast::Sender<ClientEvent>>>,
    /// How many events a receiver may lag behind.
    buffer: usize,
    /// Whether there may be a receiver. Changes under the lock.
    subscribed: AtomicBool,
}

impl Listeners {
    /// The callback, and room for so many events that a receiver may lag behind.
    pub(crate) fn new(own: Option<EventListener>, buffer: usize) -> Self {
        Self { own, events: Lock::new(None), buffer, subscribed: AtomicBool::new(false) }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ClientEvent> {
        let mut events = self.events.lock();
        let events = events.get_or_insert_with(|| broadcast::Sender::new(self.buffer));
        self.subscribed.store(true, Ordering::SeqCst);
        events.subscribe()
    }

    /// Whether an event may be heard. Takes no lock.
    pub(crate) fn any(&self) -> bool {
        self.own.is_some() || self.subscribed.load(Ordering::SeqCst)
    }

    pub(crate) fn tell(&self, event: ClientEvent) {
        let subscribed = self.subscribed.load(Ordering::SeqCst);
        match &self.own {
            Some(own) if subscribed => {
                own(event.clone());
                self.publish(event);
            }
            Some(own) => own(event),
            None if subscribed => self.publish(event),
            None => {}
        }
    }

    fn publish(&self, event: ClientEvent) {
        let mut events = self.events.lock();
        if events.as_ref().is_none_or(|events| events.send(event).is_err()) {
            *events = None;
            self.subscribed.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use quorate_server_discovery::DiscoveryEvent;

    use super::*;

    fn event() -> ClientEvent {
        ClientEvent::Discovery(DiscoveryEvent::TopologyOpening)
    }

    #[test]
    fn receivers_that_come_and_go_are_noticed() {
        let listeners = Listeners::new(None, 4);
        assert!(!listeners.any());
        assert!(listeners.events.lock().is_none(), "no memory without a subscriber");
        let mut first = listeners.subscribe();
        listeners.tell(event());
        assert!(first.try_recv().is_ok());
        drop(first);
        assert!(listeners.any(), "the next event finds out");
        listeners.tell(event());
        assert!(!listeners.any());
        assert!(listeners.events.lock().is_none(), "the memory is given back");
        let mut second = listeners.subscribe();
        assert!(listeners.any());
        listeners.tell(event());
        assert!(second.try_recv().is_ok());
    }

    #[test]
    fn the_callback_hears_every_event_once() {
        let heard = Arc::new(AtomicUsize::new(0));
        let own: EventListener = {
            let heard = Arc::clone(&heard);
            Arc::new(move |_| {
                heard.fetch_add(1, Ordering::Relaxed);
            })
        };
        let listeners = Listeners::new(Some(own), 4);
        assert!(listeners.any());
        listeners.tell(event());
        let mut receiver = listeners.subscribe();
        listeners.tell(event());
        assert!(receiver.try_recv().is_ok());
        assert!(receiver.try_recv().is_err(), "it subscribed after the first");
        assert_eq!(heard.load(Ordering::Relaxed), 2);
    }
}
