use std::time::Duration;

use super::*;

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime::from_millis(millis)
}

/// A pool that is ready, its first two events drained.
fn ready_pool(options: PoolOptions) -> PoolMachine {
    let mut pool = PoolMachine::new(options);
    pool.ready(at(0));
    drain(&mut pool);
    pool
}

fn drain(pool: &mut PoolMachine) -> Vec<Output> {
    std::iter::from_fn(|| pool.poll_output()).collect()
}

/// The outputs in short: `started`, `created 1`, `establish 1`, `granted 1`, …
fn told(pool: &mut PoolMachine) -> Vec<String> {
    drain(pool).iter().map(brief).collect()
}

fn brief(output: &Output) -> String {
    use PoolEventKind as Event;
    match output {
        Output::Event(event) => match event {
            Event::PoolCreated { .. } => "pool created".into(),
            Event::PoolReady => "pool ready".into(),
            Event::PoolCleared { .. } => "pool cleared".into(),
            Event::PoolClosed => "pool closed".into(),
            Event::ConnectionCreated { connection } => format!("created {connection}"),
            Event::ConnectionReady { connection, .. } => format!("ready {connection}"),
            Event::ConnectionClosed { connection, reason } => {
                format!("closed {connection} {}", reason.name())
            }
            Event::CheckOutStarted => "started".into(),
            Event::CheckOutFailed { reason, .. } => format!("failed {}", reason.name()),
            Event::CheckedOut { connection, .. } => format!("out {connection}"),
            Event::CheckedIn { connection } => format!("in {connection}"),
        },
        Output::Establish { connection, .. } => format!("establish {connection}"),
        Output::Grant { ticket, connection } => format!("grant {connection} to {}", ticket.0),
        Output::Refuse { ticket, .. } => format!("refuse {}", ticket.0),
        Output::Close { connection } => format!("close {connection}"),
        Output::Interrupt { connection } => format!("interrupt {connection}"),
    }
}

/// Checks connection 1 out of an empty pool.
fn first_in_use(pool: &mut PoolMachine) {
    pool.check_out(at(0));
    pool.on_established(at(1), ConnectionId(1), None);
    drain(pool);
}

#[test]
fn a_connection_is_made_granted_returned_and_granted_again() {
    let mut pool = PoolMachine::new(PoolOptions::default());
    assert_eq!(told(&mut pool), ["pool created"]);
    pool.ready(at(0));
    pool.ready(at(0));
    assert_eq!(told(&mut pool), ["pool ready"]);
    pool.check_out(at(1));
    assert_eq!(told(&mut pool), ["started", "created 1", "establish 1"]);
    assert_eq!((pool.total_connection_count(), pool.pending_connection_count()), (1, 1));
    pool.on_established(at(5), ConnectionId(1), None);
    assert_eq!(told(&mut pool), ["ready 1", "out 1", "grant 1 to 1"]);
    assert_eq!(pool.pending_connection_count(), 0);
    pool.check_in(at(6), ConnectionId(1), true);
    assert_eq!(told(&mut pool), ["in 1"]);
    assert_eq!(pool.available_connection_count(), 1);
    pool.check_out(at(7));
    assert_eq!(told(&mut pool), ["started", "out 1", "grant 1 to 2"]);
}

#[test]
fn a_paused_pool_refuses_and_a_closed_one_refuses_for_good() {
    let mut pool = PoolMachine::new(PoolOptions::default());
    drain(&mut pool);
    pool.check_out(at(0));
    assert_eq!(told(&mut pool), ["started", "failed connectionError", "refuse 1"]);
    pool.close(at(0));
    pool.ready(at(0));
    pool.clear(at(0), PoolGeneration(1), false);
    assert_eq!(told(&mut pool), ["pool closed"]);
    pool.check_out(at(0));
    assert_eq!(told(&mut pool), ["started", "failed poolClosed", "refuse 2"]);
}

#[test]
fn callers_are_served_in_order_within_the_limits() {
    let options =
        PoolOptions { max_pool_size: Some(3), max_connecting: 2, ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    for _ in 0..4 {
        pool.check_out(at(0));
    }
    assert_eq!(pool.pending_connection_count(), 2);
    drain(&mut pool);
    // The third caller may connect now; the fourth waits for a connection to come back.
    pool.on_established(at(1), ConnectionId(1), None);
    assert_eq!(told(&mut pool), ["ready 1", "out 1", "grant 1 to 1", "created 3", "establish 3"]);
    pool.on_established(at(1), ConnectionId(2), None);
    assert_eq!(told(&mut pool), ["ready 2", "out 2", "grant 2 to 2"]);
    pool.check_in(at(2), ConnectionId(2), true);
    assert_eq!(told(&mut pool), ["in 2", "out 2", "grant 2 to 4"]);
    assert_eq!(pool.total_connection_count(), 3);
}

#[test]
fn a_returned_connection_serves_one_who_waits_for_max_connecting() {
    let options = PoolOptions { max_connecting: 1, ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    first_in_use(&mut pool);
    pool.check_out(at(2));
    pool.check_out(at(2));
    drain(&mut pool);
    pool.check_in(at(3), ConnectionId(1), true);
    assert_eq!(told(&mut pool), ["in 1", "out 1", "grant 1 to 3"]);
}

#[test]
fn a_broken_connection_is_closed_and_its_place_given_away() {
    let options = PoolOptions { max_pool_size: Some(1), ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    first_in_use(&mut pool);
    pool.check_out(at(2));
    drain(&mut pool);
    pool.check_in(at(3), ConnectionId(1), false);
    assert_eq!(told(&mut pool), ["in 1", "closed 1 error", "close 1", "created 2", "establish 2"]);
}

#[test]
fn clearing_refuses_callers_and_makes_connections_stale() {
    let options = PoolOptions { max_pool_size: Some(2), ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    pool.check_out(at(0));
    pool.check_out(at(0));
    pool.on_established(at(1), ConnectionId(1), None);
    pool.check_out(at(1));
    drain(&mut pool);
    pool.clear(at(2), PoolGeneration(1), false);
    assert_eq!(told(&mut pool), ["pool cleared", "failed connectionError", "refuse 3"]);
    assert_eq!(pool.generation(), PoolGeneration(1));
    // Clearing a paused pool raises the generation without an event.
    pool.clear(at(2), PoolGeneration(2), false);
    assert_eq!((told(&mut pool).len(), pool.generation()), (0, PoolGeneration(2)));
    // What was being established, and what was in use, is stale.
    pool.on_established(at(3), ConnectionId(2), None);
    assert_eq!(
        told(&mut pool),
        ["closed 2 stale", "close 2", "failed connectionError", "refuse 2"]
    );
    pool.check_in(at(3), ConnectionId(1), true);
    assert_eq!(told(&mut pool), ["in 1", "closed 1 stale", "close 1"]);
    assert_eq!(pool.total_connection_count(), 0);
}

#[test]
fn an_interrupting_clear_reaches_what_is_in_use_and_what_is_pending() {
    let mut pool = ready_pool(PoolOptions::default());
    first_in_use(&mut pool);
    pool.check_out(at(2));
    drain(&mut pool);
    pool.clear(at(3), PoolGeneration(1), true);
    assert_eq!(
        told(&mut pool),
        [
            "pool cleared", "interrupt 1", "closed 2 stale", "close 2", "failed connectionError",
            "refuse 2"
        ]
    );
    // The establishment that was given up may still report.
    pool.on_established(at(4), ConnectionId(2), None);
    pool.on_establishment_failed(at(4), ConnectionId(2));
    assert!(told(&mut pool).is_empty());
    // A connection made after the clear is not interrupted by it.
    pool.ready(at(5));
    pool.check_out(at(5));
    pool.on_established(at(6), ConnectionId(3), None);
    drain(&mut pool);
    assert_eq!(pool.generation_of(ConnectionId(3)), Some((PoolGeneration(1), None)));
    pool.check_in(at(7), ConnectionId(3), true);
    assert_eq!(told(&mut pool), ["in 3"]);
}

#[test]
fn the_pool_is_filled_one_at_a_time_and_rests_after_a_failure() {
    let options = PoolOptions { min_pool_size: 2, ..PoolOptions::default() };
    let mut pool = PoolMachine::new(options);
    drain(&mut pool);
    assert_eq!(pool.next_deadline(), None);
    pool.ready(at(10));
    assert_eq!(told(&mut pool), ["pool ready", "created 1", "establish 1"]);
    pool.on_establishment_failed(at(20), ConnectionId(1));
    assert_eq!(told(&mut pool), ["closed 1 error", "close 1"]);
    assert_eq!(pool.next_deadline(), Some(at(1020)));
    pool.on_tick(at(1019));
    assert!(told(&mut pool).is_empty());
    pool.on_tick(at(1020));
    pool.on_established(at(1021), ConnectionId(2), None);
    assert_eq!(
        told(&mut pool),
        ["created 2", "establish 2", "ready 2", "created 3", "establish 3"]
    );
    pool.on_established(at(1022), ConnectionId(3), None);
    assert_eq!(told(&mut pool), ["ready 3"]);
    assert_eq!((pool.available_connection_count(), pool.next_deadline()), (2, None));
}

#[test]
fn idle_connections_are_closed_in_the_background_and_when_met() {
    let idle = Some(Duration::from_millis(100));
    for maintenance_interval in [None, Some(Duration::from_secs(1))] {
        let options =
            PoolOptions { max_idle_time: idle, maintenance_interval, ..PoolOptions::default() };
        let mut pool = ready_pool(options);
        first_in_use(&mut pool);
        pool.check_in(at(10), ConnectionId(1), true);
        drain(&mut pool);
        if maintenance_interval.is_some() {
            assert_eq!(pool.next_deadline(), Some(at(110)));
            pool.on_tick(at(110));
            assert_eq!(told(&mut pool), ["closed 1 idle", "close 1"]);
        } else {
            assert_eq!(pool.next_deadline(), None);
            pool.on_tick(at(110));
            assert!(told(&mut pool).is_empty());
            pool.check_out(at(110));
            assert_eq!(
                told(&mut pool),
                ["started", "closed 1 idle", "close 1", "created 2", "establish 2"]
            );
        }
    }
}

#[test]
fn a_caller_times_out_in_the_queue_but_not_while_its_connection_is_made() {
    let options = PoolOptions { max_connecting: 1, ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    let establishing = pool.check_out(at(0));
    let waiting = pool.check_out(at(0));
    drain(&mut pool);
    assert!(!pool.on_wait_timeout(at(50), establishing));
    assert!(told(&mut pool).is_empty());
    assert!(pool.on_wait_timeout(at(50), waiting));
    assert_eq!(told(&mut pool), ["failed timeout", "refuse 2"]);
    assert!(!pool.on_wait_timeout(at(50), waiting));
}

#[test]
fn a_connection_made_for_one_who_left_goes_to_the_next() {
    let options = PoolOptions { max_connecting: 1, ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    let gone = pool.check_out(at(0));
    pool.check_out(at(0));
    drain(&mut pool);
    pool.on_caller_gone(at(1), gone);
    assert_eq!(told(&mut pool), ["failed timeout"]);
    pool.on_established(at(2), ConnectionId(1), None);
    assert_eq!(told(&mut pool), ["ready 1", "out 1", "grant 1 to 2"]);
}

#[test]
fn closing_closes_everything_but_what_is_in_use() {
    let options = PoolOptions { max_pool_size: Some(3), ..PoolOptions::default() };
    let mut pool = ready_pool(options);
    for _ in 0..4 {
        pool.check_out(at(0));
    }
    pool.on_established(at(1), ConnectionId(1), None);
    pool.on_established(at(1), ConnectionId(2), None);
    pool.check_in(at(1), ConnectionId(2), true); // to the fourth caller
    pool.check_out(at(1));
    drain(&mut pool);
    pool.close(at(2));
    assert_eq!(
        told(&mut pool),
        [
            "closed 3 poolClosed", "close 3", "failed poolClosed", "refuse 3", "failed poolClosed",
            "refuse 5", "pool closed"
        ]
    );
    pool.check_in(at(3), ConnectionId(1), true);
    assert_eq!(told(&mut pool), ["in 1", "closed 1 poolClosed", "close 1"]);
}

#[test]
fn services_behind_a_load_balancer_have_their_own_generations() {
    let mut pool = ready_pool(PoolOptions::default());
    let (left, right) = (ObjectId::from_bytes([1; 12]), ObjectId::from_bytes([2; 12]));
    for (number, service) in [(1, left), (2, right), (3, left)] {
        pool.check_out(at(0));
        pool.on_established(at(0), ConnectionId(number), Some(service));
    }
    pool.check_in(at(1), ConnectionId(1), true);
    pool.check_in(at(1), ConnectionId(2), true);
    drain(&mut pool);
    pool.clear_service(at(2), left, PoolGeneration(1));
    assert_eq!(pool.state(), PoolState::Ready);
    assert_eq!(told(&mut pool), ["pool cleared", "closed 1 stale", "close 1"]);
    pool.check_in(at(3), ConnectionId(3), true);
    assert_eq!(told(&mut pool), ["in 3", "closed 3 stale", "close 3"]);
    // A new connection to the service is of its new generation.
    pool.check_out(at(4));
    assert_eq!(told(&mut pool), ["started", "out 2", "grant 2 to 4"]);
    pool.check_out(at(4));
    pool.on_established(at(5), ConnectionId(4), Some(left));
    drain(&mut pool);
    assert_eq!(pool.generation_of(ConnectionId(4)), Some((PoolGeneration(1), Some(left))));
    pool.check_in(at(6), ConnectionId(4), true);
    assert_eq!(told(&mut pool), ["in 4"]);
}

proptest::proptest! {
    /// Whatever happens in whatever order: the limits hold, and every ticket has one answer.
    #[test]
    fn limits_hold_and_every_ticket_is_answered_once(
        steps in proptest::collection::vec((0_u8..9, 0_usize..8), 0..200),
        max in 1_usize..5,
        min in 0_usize..3,
        connecting in 1_usize..3,
    ) {
        let options = PoolOptions {
            max_pool_size: Some(max),
            min_pool_size: min.min(max),
            max_connecting: connecting,
            ..PoolOptions::default()
        };
        let mut pool = PoolMachine::new(options);
        let mut world = World::default();
        for (time, (step, pick)) in steps.into_iter().enumerate() {
            let now = at(time as u64 * 300);
            world.step(&mut pool, now, step, pick);
            proptest::prop_assert!(pool.total_connection_count() <= max);
            proptest::prop_assert!(pool.pending_connection_count() <= connecting);
            world.settle(&mut pool);
        }
        pool.close(at(1_000_000));
        world.settle(&mut pool);
        for connection in std::mem::take(&mut world.in_use) {
            pool.check_in(at(1_000_001), connection, true);
        }
        world.settle(&mut pool);
        proptest::prop_assert!(world.waiting.is_empty());
        proptest::prop_assert_eq!(pool.total_connection_count(), 0);
    }
}

#[derive(Default)]
struct World {
    establishing: Vec<ConnectionId>,
    in_use: Vec<ConnectionId>,
    waiting: Vec<Ticket>,
}

impl World {
    fn step(&mut self, pool: &mut PoolMachine, now: MonotonicTime, step: u8, pick: usize) {
        match step {
            0 | 1 => self.waiting.push(pool.check_out(now)),
            2 | 3 => {
                if pick < self.establishing.len() {
                    let connection = self.establishing.remove(pick);
                    if step == 2 {
                        pool.on_established(now, connection, None);
                    } else {
                        pool.on_establishment_failed(now, connection);
                    }
                }
            }
            4 => {
                if pick < self.in_use.len() {
                    pool.check_in(now, self.in_use.remove(pick), !pick.is_multiple_of(3));
                }
            }
            5 => pool.ready(now),
            6 => {
                let next = PoolGeneration(pool.generation().0 + 1);
                pool.clear(now, next, pick.is_multiple_of(2));
            }
            7 => {
                if let Some(&ticket) = self.waiting.get(pick) {
                    if pick.is_multiple_of(2) {
                        pool.on_wait_timeout(now, ticket);
                    } else {
                        pool.on_caller_gone(now, ticket);
                        self.waiting.remove(pick);
                    }
                }
            }
            _ => pool.on_tick(now),
        }
    }

    fn settle(&mut self, pool: &mut PoolMachine) {
        for output in drain(pool) {
            match output {
                Output::Event(_) | Output::Interrupt { .. } => {}
                Output::Establish { connection, .. } => self.establishing.push(connection),
                Output::Grant { ticket, connection } => {
                    self.answer(ticket);
                    self.in_use.push(connection);
                }
                Output::Refuse { ticket, .. } => self.answer(ticket),
                Output::Close { connection } => {
                    assert!(!self.in_use.contains(&connection), "closed under its user");
                    self.establishing.retain(|&other| other != connection);
                }
            }
        }
    }

    fn answer(&mut self, ticket: Ticket) {
        let position = self.waiting.iter().position(|&other| other == ticket);
        self.waiting.remove(position.expect("only one who waits is answered"));
    }
}

/// What is taken and given back at once is what the general way takes and gives back.
#[test]
fn an_idle_connection_is_taken_and_given_back_at_once() {
    let mut pool = ready_pool(PoolOptions::default());
    assert_eq!(pool.check_out_at_once(at(0)), None, "there is none yet");
    first_in_use(&mut pool);
    assert!(pool.check_in_at_once(at(1), ConnectionId(1)));
    assert_eq!(pool.available_connection_count(), 1);
    assert_eq!(pool.check_out_at_once(at(2)), Some(ConnectionId(1)));
    assert_eq!((pool.latest_grant(), pool.available_connection_count()), (at(2), 0));
    assert_eq!(pool.check_out_at_once(at(3)), None, "it is in use");
    assert!(told(&mut pool).is_empty());
}

#[test]
fn nothing_is_done_at_once_where_more_than_that_is_to_be_done() {
    let one = || PoolOptions { max_pool_size: Some(1), ..PoolOptions::default() };
    let idle = |options: PoolOptions| {
        let mut pool = ready_pool(options);
        first_in_use(&mut pool);
        pool.check_in(at(1), ConnectionId(1), true);
        drain(&mut pool);
        pool
    };
    // A connection that is stale, or was idle for too long, is closed by the general way.
    let mut stale = idle(PoolOptions { maintenance_interval: None, ..one() });
    stale.clear(at(2), PoolGeneration(1), false);
    stale.ready(at(3));
    drain(&mut stale);
    assert_eq!(stale.check_out_at_once(at(4)), None);
    let limit = Some(Duration::from_millis(10));
    let mut old = idle(PoolOptions { max_idle_time: limit, ..one() });
    assert_eq!(old.check_out_at_once(at(11)), None);
    assert_eq!(old.check_out_at_once(at(10)), Some(ConnectionId(1)));
    assert!(
        !old.check_in_at_once(at(10), ConnectionId(1)),
        "its idle time begins with the check-in"
    );
    // A caller that waits is served.
    let mut waited_for = ready_pool(one());
    first_in_use(&mut waited_for);
    waited_for.check_out(at(2));
    drain(&mut waited_for);
    assert!(!waited_for.check_in_at_once(at(2), ConnectionId(1)));
    // What was in use when the pool was cleared is closed.
    let mut cleared = ready_pool(one());
    first_in_use(&mut cleared);
    cleared.clear(at(2), PoolGeneration(1), false);
    cleared.ready(at(3));
    drain(&mut cleared);
    assert!(!cleared.check_in_at_once(at(3), ConnectionId(1)));
    // A pool that keeps some connections ready fills itself up.
    let mut filled = ready_pool(PoolOptions { min_pool_size: 1, ..one() });
    filled.on_established(at(1), ConnectionId(1), None);
    drain(&mut filled);
    assert_eq!(filled.check_out_at_once(at(2)), None);
    filled.close(at(3));
    drain(&mut filled);
    assert_eq!(filled.check_out_at_once(at(4)), None);
}
