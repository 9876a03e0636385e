//! When a connection ends although its client would stay: the server ends, or the member has stepped down.
//!
//! Both can happen at any time and nearly never do, while a connection waits for its next command all the time. So
//! the connection's task is put on the lists of waiting tasks once, and not for each command.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::task::unconstrained;

use crate::server::Shared;

/// Tells a connection to end.
pub(crate) struct Leaving {
    ending: watch::Receiver<bool>,
    farewells: watch::Receiver<u64>,
    /// Done when there is news.
    news: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The task that the news wakes.
    woken: Option<Waker>,
}

impl Leaving {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self::of(shared.ending.subscribe(), shared.farewells.subscribe())
    }

    fn of(ending: watch::Receiver<bool>, farewells: watch::Receiver<u64>) -> Self {
        // A task that has used up its budget is told to come again, and would never be put on the lists.
        let news = Box::pin(unconstrained(news(ending.clone(), farewells.clone())));
        Self { ending, farewells, news, woken: None }
    }

    /// Whether the member has stepped down since the connection was opened.
    pub(crate) fn has_farewell(&self) -> bool {
        self.farewells.has_changed().unwrap_or(false)
    }

    /// Whether it is time. The task is woken when it is.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // An error means that the sender is gone, which the news tell as well.
        let changed = |changed: Result<bool, _>| changed.unwrap_or(true);
        let has_news = changed(self.ending.has_changed()) || changed(self.farewells.has_changed());
        let is_woken = self.woken.as_ref().is_some_and(|task| task.will_wake(context.waker()));
        if is_woken && !has_news {
            return Poll::Pending;
        }
        self.woken = Some(context.waker().clone());
        self.news.as_mut().poll(context)
    }
}

async fn news(mut ending: watch::Receiver<bool>, mut farewells: watch::Receiver<u64>) {
    tokio::select! {
        _ = ending.wait_for(|ending| *ending) => {}
        _ = farewells.changed() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(leaving: &mut Leaving, task: &Arc<Task>) -> Poll<()> {
        leaving.poll(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
    }

    #[test]
    fn either_news_wakes_the_task_that_asked_last() {
        for ends in [false, true] {
            let (ending, farewells) = (watch::Sender::new(false), watch::Sender::new(0));
            let mut leaving = Leaving::of(ending.subscribe(), farewells.subscribe());
            let (former, task) = (Arc::<Task>::default(), Arc::<Task>::default());
            assert_eq!(poll(&mut leaving, &former), Poll::Pending);
            for _ in 0..3 {
                assert_eq!(poll(&mut leaving, &task), Poll::Pending);
            }
            match ends {
                true => drop(ending.send_replace(true)),
                false => farewells.send_modify(|count| *count += 1),
            }
            let woken = [&former, &task].map(|task| task.0.load(Ordering::Relaxed));
            assert_eq!(woken, [0, 1]);
            assert_eq!(poll(&mut leaving, &task), Poll::Ready(()));
            assert_eq!(leaving.has_farewell(), !ends);
        }
    }

    /// A connection that has just read and written much must hear of the end all the same.
    #[tokio::test]
    async fn a_task_without_budget_is_woken_as_well() {
        let (ending, farewells) = (watch::Sender::new(false), watch::Sender::new(0));
        let mut leaving = Leaving::of(ending.subscribe(), farewells.subscribe());
        let task = Arc::<Task>::default();
        std::future::poll_fn(|context| {
            while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
            assert_eq!(poll(&mut leaving, &task), Poll::Pending);
            Poll::Ready(())
        })
        .await;
        assert_eq!(poll(&mut leaving, &task), Poll::Pending);
        let before = task.0.load(Ordering::Relaxed);
        ending.send_replace(true);
        assert_eq!(task.0.load(Ordering::Relaxed), before + 1);
    }

    #[test]
    fn a_connection_that_comes_after_the_end_leaves() {
        let (ending, farewells) = (watch::Sender::new(true), watch::Sender::new(0));
        let mut leaving = Leaving::of(ending.subscribe(), farewells.subscribe());
        assert_eq!(poll(&mut leaving, &Arc::default()), Poll::Ready(()));
    }
}
