//! Messages to the host, and the threads that run it.
//!
//! No task waits for them. If the host is idle, the posting thread runs it: for its own message, and
//! for those that other threads post meanwhile. A write that
//! waits for other members thus changes threads only where a socket or a disk makes it.
//!
//! ```text
//!            post                    queue empty
//!   idle ───────────▶ turn (poster) ─────────────▶ idle
//!                       │  ▲
//!        MAX_MESSAGES   ▼  │
//!                     turn (the host's own task)
//! ```
//!
//! The host's own task sleeps until the member's next deadline, goes on with a turn that became too
//! long for its poster, and learns when the host has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use quorate_protocol::Lock;

use super::Message;
use super::cut::Cut;
use super::host::Host;

/// Messages to the host that wait. Each connection has at most one, each peer and thread a few, and
/// fetched batches are bounded by their buffer: together they never fill it.
const MAX_INBOX: usize = 262_144;

/// The most messages that a posting thread processes before it hands over to the host's own task.
const MAX_MESSAGES: usize = 256;

/// How often the member is run if it sets no deadline.
const IDLE: Duration = Duration::from_secs(1);

/// The way to the host.
#[derive(Clone)]
pub(super) struct Inbox {
    shared: Arc<Shared>,
    /// Cuts the connections to other members off.
    pub(super) cut: Cut,
    /// Cuts off those that copy data.
    pub(super) copying: Cut,
}

struct Shared {
    queue: Lock<Queue>,
    /// Locked by the thread that set `busy`, and by no other until the end.
    host: Lock<Option<Host>>,
    /// Wakes the host's own task.
    wake: Notify,
}

struct Queue {
    messages: VecDeque<Message>,
    /// A thread runs the host, or the host does not exist yet.
    busy: bool,
    /// The turn belongs to the host's own task.
    handed_over: bool,
    /// When that task is to look at the member.
    armed: Option<Instant>,
    end: Option<Result<(), String>>,
}

/// Which thread makes the data changes of a turn, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applying {
    /// The applying thread: the poster may not wait for a disk.
    Elsewhere,
    /// The poster, when its message is carried out.
    Here,
    /// The poster, with its next message.
    Later,
}

impl Inbox {
    /// An inbox whose messages wait until there is a host.
    pub(super) fn new() -> Self {
        let queue = Queue {
            messages: VecDeque::new(),
            busy: true,
            handed_over: false,
            armed: None,
            end: None,
        };
        let (queue, host) = (Lock::new(queue), Lock::new(None));
        let shared = Arc::new(Shared { queue, host, wake: Notify::new() });
        Self { shared, cut: Cut::default(), copying: Cut::default() }
    }

    /// Leaves a message. The inbox has room for one of each connection, peer and thread.
    pub(super) fn post(&self, message: Message) {
        self.post_from(Applying::Elsewhere, message);
    }

    /// Leaves a message, perhaps from a thread that may wait for the disk.
    pub(super) fn post_from(&self, applying: Applying, message: Message) {
        if self.leave(message) {
            self.turn(applying);
        }
    }

    /// Gives the host its messages until it ends. Ends it, if this is dropped before.
    pub(super) async fn run(&self, host: Host) -> Result<(), String> {
        let _closing = Closing(self);
        *self.shared.host.lock() = Some(host);
        self.turn(Applying::Elsewhere);
        loop {
            let (goes_on, armed) = {
                let mut queue = self.shared.queue.lock();
                if let Some(end) = queue.end.take() {
                    return end;
                }
                (std::mem::take(&mut queue.handed_over), queue.armed)
            };
            if goes_on {
                self.turn(Applying::Elsewhere);
            }
            tokio::select! {
                biased;
                () = self.shared.wake.notified() => {}
                () = tokio::time::sleep_until(armed.unwrap_or_else(|| Instant::now() + IDLE)) => {
                    self.shared.queue.lock().armed = None;
                    self.post(Message::Tick);
                }
            }
        }
    }

    /// Whether a thread has said that it cannot go on.
    #[cfg(test)]
    pub(super) fn is_broken(&self) -> bool {
        self.shared
            .queue
            .lock()
            .messages
            .iter()
            .any(|message| matches!(message, Message::Broken(_)))
    }

    /// Whether the turn is the caller's.
    fn leave(&self, message: Message) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.messages.len() >= MAX_INBOX {
            tracing::debug!("the replica set host is overloaded");
            return false;
        }
        queue.messages.push_back(message);
        !std::mem::replace(&mut queue.busy, true)
    }

    /// Processes messages until the queue is empty or the limit of a turn is reached.
    fn turn(&self, applying: Applying) {
        let mut slot = self.shared.host.lock();
        let Some(host) = slot.as_mut() else { return self.discard() };
        let unfinished = Unfinished(self);
        let runtime = host.runtime.clone();
        let entered = runtime.enter();
        let mut messages = std::mem::take(&mut host.messages);
        let mut taken = 0;
        std::mem::swap(&mut self.shared.queue.lock().messages, &mut messages);
        loop {
            // One look at the clocks for all messages that were there.
            let now = host.now();
            taken += messages.len();
            for message in messages.drain(..) {
                host.take(message, now);
            }
            let end = host.settle(now);
            let mut queue = self.shared.queue.lock();
            if let Some(at) = host.rearm() {
                queue.armed = Some(at);
                self.shared.wake.notify_one();
            }
            if end.is_some() {
                queue.end = end;
                self.shared.wake.notify_one();
            }
            if queue.messages.is_empty() {
                queue.busy = false;
                break;
            }
            if taken >= MAX_MESSAGES {
                queue.handed_over = true;
                self.shared.wake.notify_one();
                break;
            }
            std::mem::swap(&mut queue.messages, &mut messages);
        }
        host.messages = messages;
        drop(entered);
        std::mem::forget(unfinished);
        let (applier, news) = (host.applier.clone(), host.take_news());
        drop(slot);
        if let Some(news) = news {
            news.push();
        }
        match applying {
            Applying::Elsewhere => applier.wake(),
            Applying::Here => applier.help(),
            Applying::Later => {}
        }
    }

    /// There is no host any more: requests that wait end without an answer.
    fn discard(&self) {
        let mut queue = self.shared.queue.lock();
        queue.busy = false;
        let messages = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(messages);
    }
}

/// Takes the host out at the end, and with it all that knows the inbox.
struct Closing<'a>(&'a Inbox);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let host = self.0.shared.host.lock().take();
        drop(host);
        self.0.discard();
    }
}

/// Tells of a panic of a thread, when dropped: a follower that copies or applies no more must not look as if it did.
pub(super) struct Failing<'a> {
    pub(super) inbox: &'a Inbox,
    pub(super) thread: &'static str,
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = format!("the {} thread panicked", self.thread);
            self.inbox.post(Message::Broken(why));
        }
    }
}

/// A turn that did not come to its end, because of a panic: the member must not go on.
struct Unfinished<'a>(&'a Inbox);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.shared.queue.lock().end =
            Some(Err("a turn of the replica set host panicked".to_owned()));
        self.0.shared.wake.notify_one();
    }
}
