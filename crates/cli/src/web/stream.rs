//! The view as server-sent events.
//!
//! One task puts the view into words whenever it has changed, at most every [`LEAST_PAUSE`], and only
//! while a page is open. Each page gets the newest one: a slow page misses those in between, and
//! nothing piles up for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;

use crate::clock;
use crate::task::Task;
use crate::view::collector::Live;

/// How many pages may listen at once.
const MAX_LISTENERS: usize = 32;

/// The least time between two events.
const LEAST_PAUSE: Duration = Duration::from_millis(150);

/// How often something is sent while nothing happens, so that an end is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The newest view in words; empty before the first.
type Words = Arc<str>;

/// Makes events and hands them out. Ends when it is dropped.
pub(super) struct Stream {
    words: watch::Sender<Words>,
    listeners: Arc<Semaphore>,
    _task: Task,
}

impl Stream {
    /// Begins to follow a view.
    pub(super) fn start(live: Live) -> Self {
        let words = watch::Sender::new(Words::from(""));
        let task = Task::spawn(follow(live, words.clone()));
        Self { words, listeners: Arc::new(Semaphore::new(MAX_LISTENERS)), _task: task }
    }

    /// The events for one more page; none if there are too many.
    pub(super) fn subscribe(&self) -> Option<Response> {
        let permit = Arc::clone(&self.listeners).try_acquire_owned().ok()?;
        let mut words = self.words.subscribe();
        // A new page gets the present view at once.
        words.mark_changed();
        let events = unfold((words, permit), next);
        let alive = KeepAlive::new().interval(KEEP_ALIVE);
        Some(Sse::new(events).keep_alive(alive).into_response())
    }
}

type Listener = (watch::Receiver<Words>, OwnedSemaphorePermit);

async fn next((mut words, permit): Listener) -> Option<(Result<Event, Infallible>, Listener)> {
    let newest = loop {
        words.changed().await.ok()?;
        let newest = Arc::clone(&words.borrow_and_update());
        if !newest.is_empty() {
            break newest;
        }
    };
    let event = Event::default().event("view").data(&*newest);
    Some((Ok(event), (words, permit)))
}

async fn follow(live: Live, words: watch::Sender<Words>) {
    let mut revision = live.revision();
    loop {
        let now = clock::now();
        let newest = live.read(|view| view.to_json(now)).to_string();
        words.send_replace(newest.into());
        sleep(LEAST_PAUSE).await;
        // Without an open page, the words would be old before a page shows them.
        if words.receiver_count() == 0 {
            words.send_replace(Words::from(""));
            while words.receiver_count() == 0 {
                sleep(LEAST_PAUSE).await;
            }
        } else if revision.changed().await.is_err() {
            return;
        }
    }
}
