//! When one server is checked, how, and what follows from the outcome.
//!
//! Owns the decisions of "Monitor thread" and "RTT thread" in the Server Monitoring specification
//! for one server of a multi-threaded or asynchronous client, told the time. `topology.rs` performs
//! them; `scan.rs` decides for single-threaded clients.

use std::time::Duration;

use quorate_protocol::{HelloCommand, HelloReply, MonotonicTime, TopologyVersion};

use crate::command::{CheckId, CheckKind};
use crate::event::MonitorConnectionId;
use crate::options::{DiscoveryOptions, MIN_HEARTBEAT_FREQUENCY};
use crate::round_trip::RoundTripEstimator;

/// What a monitor needs to know of the options.
#[derive(Clone, Debug)]
pub(crate) struct MonitorSettings {
    pub(crate) heartbeat_frequency: Duration,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) awaited_reply_timeout: Option<Duration>,
    pub(crate) streams: bool,
    pub(crate) stable_api: bool,
}

impl MonitorSettings {
    pub(crate) fn new(options: &DiscoveryOptions) -> Self {
        Self {
            heartbeat_frequency: options.heartbeat_frequency(),
            connect_timeout: options.connect_timeout,
            awaited_reply_timeout: options.awaited_reply_timeout(),
            streams: options.streams(),
            stable_api: options.stable_api,
        }
    }
}

/// The monitor of one server.
#[derive(Clone, Debug)]
pub(crate) struct Monitor {
    state: State,
    /// The monitoring connection, while it is usable.
    connection: Option<Connection>,
    /// Of the latest reply on this connection.
    topology_version: Option<TopologyVersion>,
    hello: HelloCommand,
    /// Whether the latest check ended in a reply: then a network error is retried at once.
    last_check_succeeded: bool,
    pub(crate) round_trips: RoundTripEstimator,
    measuring: Measuring,
    /// Since when awaited replies are counted, and how many came.
    awaited_replies: (MonotonicTime, u32),
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    id: MonitorConnectionId,
    /// The latest reply had `moreToCome`: the next one comes unasked.
    more_to_come: bool,
}

/// ```text
///            reply that allows streaming; network error of a server that had answered
///                     ┌──────────────┐
///                     ▼              │
///   first ────────► Checking ────────┘
///                   ▲      │ any other outcome; cancelled
///       deadline    │      ▼
///                   └─── Waiting ◄─┐ request: the deadline moves to 500 ms after the
///                             └────┘ wait began, if that is sooner
/// ```
#[derive(Clone, Copy, Debug)]
enum State {
    Waiting { since: MonotonicTime, until: MonotonicTime },
    Checking { check: CheckId, started: MonotonicTime, awaited: bool },
}

/// Round trips are measured on a connection of their own, and only while the server streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measuring {
    Off,
    Waiting { until: MonotonicTime },
    Under { check: CheckId },
}

/// A check that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Underway {
    pub(crate) check: CheckId,
    pub(crate) connection: MonitorConnectionId,
    pub(crate) started: MonotonicTime,
    pub(crate) awaited: bool,
}

/// A check to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedCheck {
    pub(crate) kind: CheckKind,
    pub(crate) hello: HelloCommand,
    pub(crate) timeout: Option<Duration>,
}

/// What to do after a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    CheckNow,
    /// The server answers awaited checks too fast: go on after a pause.
    Pause,
    Wait,
}

/// Awaited replies that a server may send within [`MIN_HEARTBEAT_FREQUENCY`]; further ones wait. A server
/// that answers at once would otherwise have its clients do nothing else.
pub(crate) const MAX_AWAITED_REPLIES: u32 = 20;

impl Monitor {
    pub(crate) fn new(settings: &MonitorSettings, now: MonotonicTime) -> Self {
        Self {
            state: State::Waiting { since: now, until: now },
            connection: None,
            topology_version: None,
            hello: HelloCommand::first(settings.stable_api),
            last_check_succeeded: false,
            round_trips: RoundTripEstimator::new(),
            measuring: Measuring::Off,
            awaited_replies: (now, 0),
        }
    }

    /// Counts an awaited reply. Whether the server has sent too many of them of late.
    pub(crate) fn answers_at_once(&mut self, now: MonotonicTime) -> bool {
        let (since, count) = &mut self.awaited_replies;
        if now.since(*since) >= MIN_HEARTBEAT_FREQUENCY {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count > MAX_AWAITED_REPLIES
    }

    /// Goes on after the shortest time between two checks.
    pub(crate) fn pause(&mut self, now: MonotonicTime) {
        self.state = State::Waiting { since: now, until: now + MIN_HEARTBEAT_FREQUENCY };
    }

    /// The check under way, if there is one.
    pub(crate) fn underway(&self) -> Option<Underway> {
        match (self.state, self.connection) {
            (State::Checking { check, started, awaited }, Some(connection)) => {
                Some(Underway { check, connection: connection.id, started, awaited })
            }
            _ => None,
        }
    }

    /// When something is to be done: a check, or the measuring of a round trip.
    pub(crate) fn deadline(&self) -> Option<MonotonicTime> {
        let check = match self.state {
            State::Waiting { until, .. } => Some(until),
            State::Checking { .. } => None,
        };
        match (check, self.measuring) {
            (Some(check), Measuring::Waiting { until }) => Some(check.min(until)),
            (None, Measuring::Waiting { until }) => Some(until),
            (check, _) => check,
        }
    }

    pub(crate) fn check_is_due(&self, now: MonotonicTime) -> bool {
        matches!(self.state, State::Waiting { until, .. } if until <= now)
    }

    pub(crate) fn measuring_is_due(&self, now: MonotonicTime) -> bool {
        matches!(self.measuring, Measuring::Waiting { until } if until <= now)
    }

    /// Starts a check on the connection there is, or on a new one.
    pub(crate) fn start_check(
        &mut self,
        settings: &MonitorSettings,
        check: CheckId,
        new_connection: impl FnOnce() -> MonitorConnectionId,
        now: MonotonicTime,
    ) -> PlannedCheck {
        let kind = match (self.connection, self.topology_version) {
            (None, _) => CheckKind::Connect,
            (Some(connection), _) if connection.more_to_come => CheckKind::ReadNext,
            (Some(_), Some(topology_version)) if settings.streams => {
                CheckKind::Await { topology_version, max_await_time: settings.heartbeat_frequency }
            }
            (Some(_), _) => CheckKind::Poll,
        };
        if kind == CheckKind::Connect {
            self.hello = HelloCommand::first(settings.stable_api);
            self.connection = Some(Connection { id: new_connection(), more_to_come: false });
        }
        let awaited = kind.is_awaited();
        self.state = State::Checking { check, started: now, awaited };
        let timeout =
            if awaited { settings.awaited_reply_timeout } else { settings.connect_timeout };
        PlannedCheck { kind, hello: self.hello, timeout }
    }

    /// Takes note of a reply.
    pub(crate) fn reply_received(
        &mut self,
        settings: &MonitorSettings,
        reply: &HelloReply,
        more_to_come: bool,
    ) -> Next {
        if reply.hello_ok || settings.stable_api {
            self.hello = HelloCommand::Hello;
        } else {
            self.hello = HelloCommand::Legacy;
        }
        self.topology_version = reply.topology_version;
        self.last_check_succeeded = true;
        if let Some(connection) = &mut self.connection {
            connection.more_to_come = more_to_come;
        }
        if settings.streams && (reply.topology_version.is_some() || more_to_come) {
            Next::CheckNow
        } else {
            Next::Wait
        }
    }

    /// Takes note that a check failed: the connection is to be closed.
    pub(crate) fn check_failed(&mut self, network_error: bool) -> Next {
        let had_answered = self.last_check_succeeded;
        self.lose_connection();
        if network_error && had_answered { Next::CheckNow } else { Next::Wait }
    }

    /// Takes note that the connection is gone, with whatever was known from it.
    pub(crate) fn lose_connection(&mut self) {
        self.connection = None;
        self.topology_version = None;
        self.last_check_succeeded = false;
        self.round_trips.reset();
    }

    pub(crate) fn has_connection(&self) -> bool {
        self.connection.is_some()
    }

    pub(crate) fn wait(&mut self, settings: &MonitorSettings, now: MonotonicTime) {
        self.state = State::Waiting { since: now, until: now + settings.heartbeat_frequency };
    }

    /// Leaves the monitor idle until it is told to check: single-threaded clients have no timers.
    pub(crate) fn rest(&mut self, now: MonotonicTime) {
        self.state = State::Waiting { since: now, until: MonotonicTime::from_nanos(u64::MAX) };
    }

    /// "Requesting an immediate check". Ignored while one is under way.
    pub(crate) fn request_check(&mut self, now: MonotonicTime) {
        if let State::Waiting { since, until } = &mut self.state {
            *until = (*until).min((*since + MIN_HEARTBEAT_FREQUENCY).max(now));
        }
    }

    /// Begins to measure round trips, unless that has begun already. The check that found the server has
    /// just measured one: the second connection is opened a little later, and not while the other members
    /// are being discovered.
    pub(crate) fn begin_measuring(&mut self, now: MonotonicTime) {
        if self.measuring == Measuring::Off {
            self.measuring = Measuring::Waiting { until: now + MIN_HEARTBEAT_FREQUENCY };
        }
    }

    /// Gives up measuring; whether there is a connection to close.
    pub(crate) fn end_measuring(&mut self) -> bool {
        std::mem::replace(&mut self.measuring, Measuring::Off) != Measuring::Off
    }

    pub(crate) fn start_measuring(
        &mut self,
        settings: &MonitorSettings,
        check: CheckId,
    ) -> (HelloCommand, Option<Duration>) {
        self.measuring = Measuring::Under { check };
        (self.hello, settings.connect_timeout)
    }

    /// Takes a measurement into account, if it is the one that was asked for.
    pub(crate) fn measured(
        &mut self,
        settings: &MonitorSettings,
        check: CheckId,
        round_trip: Option<Duration>,
        now: MonotonicTime,
    ) -> bool {
        if self.measuring != (Measuring::Under { check }) {
            return false;
        }
        self.measuring = Measuring::Waiting { until: now + settings.heartbeat_frequency };
        match round_trip {
            // Without an answer since the last failure, a sample would outlive what it measured.
            Some(round_trip) if self.last_check_succeeded => {
                self.round_trips.record(round_trip);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_protocol::ObjectId;

    const SECOND: Duration = Duration::from_secs(1);

    fn settings(streams: bool) -> MonitorSettings {
        MonitorSettings {
            heartbeat_frequency: 10 * SECOND,
            connect_timeout: Some(SECOND),
            awaited_reply_timeout: Some(11 * SECOND),
            streams,
            stable_api: false,
        }
    }

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime::from_millis(millis)
    }

    fn reply(streamable: bool, hello_ok: bool) -> HelloReply {
        let version = TopologyVersion { process_id: ObjectId::default(), counter: 1 };
        HelloReply {
            ok: true,
            hello_ok,
            topology_version: streamable.then_some(version),
            ..HelloReply::default()
        }
    }

    fn start(monitor: &mut Monitor, settings: &MonitorSettings, now: u64) -> PlannedCheck {
        monitor.start_check(settings, CheckId(1), || MonitorConnectionId(1), at(now))
    }

    #[test]
    fn the_first_check_connects_then_awaits_then_reads_on() {
        let settings = settings(true);
        let mut monitor = Monitor::new(&settings, at(0));
        assert!(monitor.check_is_due(at(0)));
        let first = start(&mut monitor, &settings, 0);
        assert_eq!((first.kind, first.hello), (CheckKind::Connect, HelloCommand::Legacy));
        assert_eq!(first.timeout, Some(SECOND));
        assert_eq!(monitor.reply_received(&settings, &reply(true, true), false), Next::CheckNow);
        let second = start(&mut monitor, &settings, 1);
        assert!(matches!(second.kind, CheckKind::Await { max_await_time, .. }
            if max_await_time == 10 * SECOND));
        assert_eq!((second.hello, second.timeout), (HelloCommand::Hello, Some(11 * SECOND)));
        assert_eq!(monitor.reply_received(&settings, &reply(true, true), true), Next::CheckNow);
        assert_eq!(start(&mut monitor, &settings, 2).kind, CheckKind::ReadNext);
    }

    #[test]
    fn servers_without_topology_version_are_polled() {
        let settings = settings(true);
        let mut monitor = Monitor::new(&settings, at(0));
        start(&mut monitor, &settings, 0);
        assert_eq!(monitor.reply_received(&settings, &reply(false, false), false), Next::Wait);
        monitor.wait(&settings, at(100));
        assert_eq!(monitor.deadline(), Some(at(10_100)));
        let next = start(&mut monitor, &settings, 10_100);
        assert_eq!((next.kind, next.hello), (CheckKind::Poll, HelloCommand::Legacy));
    }

    #[test]
    fn polling_mode_never_awaits() {
        let settings = settings(false);
        let mut monitor = Monitor::new(&settings, at(0));
        start(&mut monitor, &settings, 0);
        assert_eq!(monitor.reply_received(&settings, &reply(true, true), false), Next::Wait);
        assert_eq!(start(&mut monitor, &settings, 10_000).kind, CheckKind::Poll);
    }

    #[test]
    fn a_request_moves_the_check_to_half_a_second_after_the_last() {
        let settings = settings(true);
        let mut monitor = Monitor::new(&settings, at(0));
        start(&mut monitor, &settings, 0);
        monitor.request_check(at(10));
        assert_eq!(monitor.deadline(), None, "ignored while a check is under way");
        monitor.check_failed(true);
        monitor.wait(&settings, at(1000));
        monitor.request_check(at(1100));
        assert_eq!(monitor.deadline(), Some(at(1500)));
        monitor.wait(&settings, at(2000));
        monitor.request_check(at(4000));
        assert_eq!(monitor.deadline(), Some(at(4000)), "as soon as possible");
    }

    /// "Network or command error during server check", steps 4 and 5.
    #[test]
    fn only_a_network_error_of_a_server_that_had_answered_is_retried_at_once() {
        let settings = settings(true);
        let outcome = |answered: bool, network: bool| {
            let mut monitor = Monitor::new(&settings, at(0));
            start(&mut monitor, &settings, 0);
            if answered {
                monitor.reply_received(&settings, &reply(true, true), false);
                start(&mut monitor, &settings, 1);
            }
            monitor.check_failed(network)
        };
        assert_eq!(outcome(true, true), Next::CheckNow);
        assert_eq!(outcome(true, false), Next::Wait);
        assert_eq!(outcome(false, true), Next::Wait);
    }

    #[test]
    fn measurements_that_were_not_asked_for_are_ignored() {
        let settings = settings(true);
        let mut monitor = Monitor::new(&settings, at(0));
        start(&mut monitor, &settings, 0);
        monitor.reply_received(&settings, &reply(true, true), false);
        assert!(!monitor.measured(&settings, CheckId(7), Some(SECOND), at(0)));
        monitor.begin_measuring(at(0));
        assert!(!monitor.measuring_is_due(at(499)) && monitor.measuring_is_due(at(500)));
        monitor.start_measuring(&settings, CheckId(8));
        assert!(!monitor.measured(&settings, CheckId(7), Some(SECOND), at(0)));
        assert!(monitor.measured(&settings, CheckId(8), Some(SECOND), at(0)));
        assert_eq!(monitor.deadline(), Some(at(10_000)));
        assert_eq!(monitor.round_trips.average(), Some(SECOND));
    }
}
