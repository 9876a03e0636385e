use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::*;

/// A connection that does nothing but say whether it is usable.
#[derive(Debug)]
struct Fake {
    usable: bool,
    /// Counts the connections that are open.
    _open: Arc<()>,
}

impl Pooled for Fake {
    fn is_usable(&self) -> bool {
        self.usable
    }
}

/// Establishes when the test lets it.
struct Gate {
    permits: Arc<Semaphore>,
    fails: AtomicBool,
    failures: Mutex<Vec<PoolGeneration>>,
    open: Arc<()>,
}

impl Establish for Arc<Gate> {
    type Connection = Fake;
    type Error = String;

    async fn establish(
        &self,
        _: ConnectionId,
        _: PoolGeneration,
    ) -> Result<Established<Fake>, String> {
        self.permits.acquire().await.unwrap().forget();
        if self.fails.load(Ordering::SeqCst) {
            return Err("refused".to_owned());
        }
        let connection = Fake { usable: true, _open: Arc::clone(&self.open) };
        Ok(Established { connection, service_id: None })
    }

    fn on_failure(&self, _: &String, generation: PoolGeneration) {
        self.failures.lock().unwrap().push(generation);
    }
}

fn pool(permits: usize, options: PoolOptions) -> (Pool<Arc<Gate>>, Arc<Gate>) {
    let gate = Arc::new(Gate {
        permits: Arc::new(Semaphore::new(permits)),
        fails: AtomicBool::new(false),
        failures: Mutex::new(Vec::new()),
        open: Arc::new(()),
    });
    let address = "a:1".parse().unwrap();
    let listener: PoolEventListener = Arc::new(|_| ());
    let pool = Pool::new(address, options, Clock::start(), Arc::clone(&gate), listener);
    pool.ready();
    (pool, gate)
}

fn open_count(gate: &Gate) -> usize {
    Arc::strong_count(&gate.open) - 1
}

#[tokio::test]
async fn a_dropped_connection_is_checked_in_and_used_again() {
    let (pool, _gate) = pool(9, PoolOptions::default());
    let first = pool.check_out().await.unwrap();
    assert_eq!(first.id(), ConnectionId(1));
    drop(first);
    assert_eq!(pool.counts().available, 1);
    assert_eq!(pool.check_out().await.unwrap().id(), ConnectionId(1));
}

#[tokio::test]
async fn a_connection_left_in_the_middle_is_closed() {
    let (pool, gate) = pool(9, PoolOptions::default());
    let mut connection = pool.check_out().await.unwrap();
    connection.usable = false;
    drop(connection);
    assert_eq!((pool.counts().total, open_count(&gate)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_loses_nothing() {
    let (pool, gate) = pool(0, PoolOptions { max_connecting: 1, ..PoolOptions::default() });
    let gone = timeout(Duration::from_millis(5), pool.check_out()).await;
    assert!(gone.is_err());
    assert_eq!(pool.counts(), PoolCounts { total: 1, pending: 1, ..PoolCounts::default() });
    gate.permits.add_permits(1);
    assert_eq!(pool.check_out().await.unwrap().id(), ConnectionId(1));
}

#[tokio::test(start_paused = true)]
async fn the_wait_queue_times_out_while_all_are_in_use() {
    let limit = Some(Duration::from_millis(50));
    let options =
        PoolOptions { max_pool_size: Some(1), wait_queue_timeout: limit, ..PoolOptions::default() };
    let (pool, _gate) = pool(9, options);
    let held = pool.check_out().await.unwrap();
    let error = pool.check_out().await.unwrap_err();
    assert!(matches!(error, CheckOutError::TimedOut { .. }));
    let text = error.to_string();
    assert!(text.starts_with("Timed out while checking out a connection from connection pool"));
    assert_eq!(pool.counts().waiting, 0);
    drop(held);
    assert!(pool.check_out().await.is_ok());
}

#[tokio::test]
async fn a_failure_is_handled_before_its_caller_hears_of_it() {
    let (pool, gate) = pool(9, PoolOptions::default());
    gate.fails.store(true, Ordering::SeqCst);
    let error = pool.check_out().await.unwrap_err();
    assert!(matches!(error, CheckOutError::NotEstablished(reason) if reason == "refused"));
    assert_eq!(*gate.failures.lock().unwrap(), [PoolGeneration(0)]);
    assert_eq!(pool.counts(), PoolCounts::default());
}

#[tokio::test]
async fn an_interrupting_clear_ends_a_running_operation() {
    let (pool, gate) = pool(9, PoolOptions::default());
    let mut connection = pool.check_out().await.unwrap();
    let clear = async { pool.clear(PoolGeneration(1), true) };
    let operation = connection.run(async |_| std::future::pending::<()>().await);
    let (result, ()) = tokio::join!(operation, clear);
    assert_eq!(
        result.unwrap_err().to_string(),
        "Connection to a:1 interrupted due to server monitor timeout"
    );
    drop(connection);
    assert_eq!((pool.counts().total, open_count(&gate)), (0, 0));
    let paused = pool.check_out().await.unwrap_err();
    assert!(matches!(paused, CheckOutError::PoolCleared { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_background_fills_the_pool_and_drops_what_is_idle() {
    let options = PoolOptions {
        min_pool_size: 2,
        max_idle_time: Some(Duration::from_secs(60)),
        ..PoolOptions::default()
    };
    let (pool, gate) = pool(2, options);
    // The clock stands still while a task can run, so this waits for both establishments.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((pool.counts().available, open_count(&gate)), (2, 2));
    // No further permit: what is idle goes, and the next establishment stays pending.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((pool.counts().available, open_count(&gate)), (0, 0));
    assert_eq!(pool.counts().pending, 1);
}

/// `maxIdleTimeMS` is counted from the check-in: the time of the check-out does not do for it.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_long_in_use_has_not_been_idle() {
    let max_idle_time = Some(Duration::from_secs(60));
    let (pool, _gate) = pool(9, PoolOptions { max_idle_time, ..PoolOptions::default() });
    let held = pool.check_out().await.unwrap();
    tokio::time::sleep(Duration::from_secs(59)).await;
    drop(held);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(pool.check_out().await.unwrap().id(), ConnectionId(1));
}

#[tokio::test]
async fn what_is_used_again_tells_the_same_events() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener: PoolEventListener = {
        let heard = Arc::clone(&heard);
        Arc::new(move |event| heard.lock().unwrap().push(event.kind.message()))
    };
    let gate = Arc::new(Gate {
        permits: Arc::new(Semaphore::new(9)),
        fails: AtomicBool::new(false),
        failures: Mutex::new(Vec::new()),
        open: Arc::new(()),
    });
    let address = "a:1".parse().unwrap();
    let pool = Pool::new(address, PoolOptions::default(), Clock::start(), gate, listener);
    pool.ready();
    drop(pool.check_out().await.unwrap());
    heard.lock().unwrap().clear();
    drop(pool.check_out().await.unwrap());
    assert_eq!(
        *heard.lock().unwrap(),
        ["Connection checkout started", "Connection checked out", "Connection checked in"]
    );
}

#[tokio::test]
async fn closing_ends_establishments_and_keeps_no_socket() {
    let (pool, gate) = pool(2, PoolOptions::default());
    let held = pool.check_out().await.unwrap();
    drop(pool.check_out().await.unwrap());
    assert_eq!(open_count(&gate), 2);
    pool.close();
    let error = pool.check_out().await.unwrap_err();
    assert!(matches!(error, CheckOutError::PoolClosed { .. }));
    drop(held);
    assert_eq!((pool.counts(), open_count(&gate)), (PoolCounts::default(), 0));
}

#[test]
fn a_connection_may_outlive_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = PoolOptions { min_pool_size: 2, ..PoolOptions::default() };
    let (pool, gate) = runtime.block_on(async { pool(9, options) });
    let mut held = runtime.block_on(pool.check_out()).unwrap();
    held.usable = false;
    drop(runtime);
    drop(held);
    drop(pool);
    assert_eq!(open_count(&gate), 0);
}
