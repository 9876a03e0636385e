//! Checks and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress};

use super::{ServerState, Topology};
use crate::command::{CheckId, MonitorCommand};
use crate::event::{DiscoveryEvent, Heartbeat, MonitorConnectionId};
use crate::fault::{CheckFailure, CheckFailureKind, ServerError, ServerFault};
use crate::monitor::{Next, Underway};
use crate::options::Threading;
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;

impl Topology {
    pub(super) fn hello_received(
        &mut self,
        server: &ServerAddress,
        check: CheckId,
        reply: Arc<HelloReply>,
        round_trip: Duration,
        more_to_come: bool,
        now: MonotonicTime,
    ) {
        if !reply.ok {
            let message = "hello was answered with ok: 0";
            let failure = CheckFailure::new(CheckFailureKind::Command, message);
            return self.check_failed(server, check, failure, now);
        }
        let Some((position, underway)) = self.awaited_check(server, check) else { return };
        let heartbeat = heartbeat(server, underway);
        let (duration, told) = (round_trip, Arc::clone(&reply));
        self.event(DiscoveryEvent::ServerHeartbeatSucceeded { heartbeat, duration, reply: told });

        let state = &mut self.states[position];
        state.displaced_until = None;
        let monitor = &mut state.monitor;
        if !underway.awaited {
            monitor.round_trips.record(round_trip);
        }
        let next = match monitor.reply_received(&self.settings, &reply, more_to_come) {
            Next::CheckNow if underway.awaited && monitor.answers_at_once(now) => Next::Pause,
            next => next,
        };
        let round_trips = monitor.round_trips.round_trips();
        // No check is under way while the description is updated.
        monitor.rest(now);
        let description = ServerDescription::from_reply(server.clone(), reply, round_trips, now);
        self.update_server(position, description, now);
        self.after_check(server, position, next, now);
    }

    pub(super) fn check_failed(
        &mut self,
        server: &ServerAddress,
        check: CheckId,
        failure: CheckFailure,
        now: MonotonicTime,
    ) {
        let Some((position, underway)) = self.awaited_check(server, check) else { return };
        let kind = failure.kind;
        let heartbeat = heartbeat(server, underway);
        let duration = now.since(underway.started);
        let told = Arc::new(failure.clone());
        self.event(DiscoveryEvent::ServerHeartbeatFailed { heartbeat, duration, failure: told });

        let state = &mut self.states[position];
        state.displaced_until = None;
        let monitor = &mut state.monitor;
        let next = monitor.check_failed(kind.is_network());
        monitor.rest(now);
        let error = ServerError::new(ServerFault::Check(failure), now);
        // Without a topology version: the connection is gone, so nothing newer can come over it.
        let description = ServerDescription::failed(server.clone(), error, None, Some(now));
        self.update_server(position, description, now);
        // An Unknown server is never removed, so it still has its place.
        self.clear_pool(position, None, kind == CheckFailureKind::NetworkTimeout);
        self.after_check(server, position, next, now);
    }

    /// "Clients update the topology from each handshake". The reply carries no measured round trip,
    /// so it only counts for a server that has one.
    pub(super) fn handshake_received(
        &mut self,
        server: &ServerAddress,
        reply: Arc<HelloReply>,
        now: MonotonicTime,
    ) {
        let Some(position) = self.description.servers.position(server) else { return };
        let current = self.description.servers.at(position);
        if !reply.ok || current.round_trip_time().is_none() {
            return;
        }
        let round_trips = self.states[position].monitor.round_trips.round_trips();
        if round_trips.average.is_none() {
            return;
        }
        let description = ServerDescription::from_reply(server.clone(), reply, round_trips, now);
        self.update_server(position, description, now);
    }

    pub(super) fn round_trip_measured(
        &mut self,
        server: &ServerAddress,
        check: CheckId,
        round_trip: Option<Duration>,
        now: MonotonicTime,
    ) {
        let Some(position) = self.description.servers.position(server) else { return };
        let monitor = &mut self.states[position].monitor;
        let counts = monitor.measured(&self.settings, check, round_trip, now);
        let round_trips = monitor.round_trips.round_trips();
        self.sync_timer(position);
        let current = self.description.servers.at(position);
        if counts && current.server_type().is_known() {
            let measured = current.with_round_trips(round_trips);
            let mut next = TopologyDescription::clone(&self.description);
            next.servers.replace_at(position, Arc::new(measured));
            self.publish(Arc::new(next), false);
        }
    }

    /// Selection found nothing suitable: every server is to be checked as soon as it may be.
    pub(super) fn check_wanted(&mut self, now: MonotonicTime) {
        if self.threading == Threading::Single {
            return self.mark_stale();
        }
        for position in 0..self.states.len() {
            self.states[position].monitor.request_check(now);
            self.sync_timer(position);
        }
        self.tick(now);
    }

    pub(super) fn tick(&mut self, now: MonotonicTime) {
        // Each round moves a timer past `now`, so there are few for each server.
        while let Some((at, address)) = self.timers.first().cloned() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let Some(position) = self.description.servers.position(&address) else { continue };
            self.states[position].timer = None;
            if let Some(patience) = self.displaced_patience
                && self.states[position].displaced_until.is_some_and(|until| until <= now)
            {
                self.give_up_on_displaced(position, patience, now);
            }
            if self.states[position].monitor.check_is_due(now) {
                self.start_check(position, &address, now);
            }
            if self.states[position].monitor.measuring_is_due(now) {
                self.start_measuring(position, &address);
            }
            self.sync_timer(position);
        }
    }

    /// A newer primary has displaced this one, and it has said nothing to a check that has been under
    /// way for long enough: it hangs, or the network to it does. Operations that wait for it are
    /// interrupted, so that those which can be sent again go to the new primary now and not when the
    /// check times out. Ours, not the specification's; `docs/discovery.md` gives the reasons.
    fn give_up_on_displaced(&mut self, position: usize, patience: Duration, now: MonotonicTime) {
        let until = self.asked_at(position, now) + patience;
        let state = &mut self.states[position];
        state.displaced_until = Some(until).filter(|until| *until > now);
        if state.displaced_until.is_none() {
            self.clear_pool(position, None, true);
            self.cancel_check(position, now);
            self.states[position].monitor.request_check(now);
            self.sync_timer(position);
        }
    }

    /// When the check began that a server owes an answer to, or will begin if it is polled.
    pub(super) fn asked_at(&self, position: usize, now: MonotonicTime) -> MonotonicTime {
        let monitor = &self.states[position].monitor;
        match monitor.underway() {
            Some(underway) => underway.started,
            None => monitor.deadline().unwrap_or(now),
        }
    }

    /// Begins to look after a server.
    pub(super) fn start_monitor(
        &mut self,
        position: usize,
        address: ServerAddress,
        now: MonotonicTime,
    ) {
        self.monitor_command(&address, MonitorCommand::Start);
        if self.threading == Threading::Multi {
            self.start_check(position, &address, now);
        }
    }

    pub(super) fn start_check(
        &mut self,
        position: usize,
        address: &ServerAddress,
        now: MonotonicTime,
    ) {
        let check = self.next_check();
        let last_connection = &mut self.last_connection;
        let new_connection = || {
            *last_connection += 1;
            MonitorConnectionId(*last_connection)
        };
        let monitor = &mut self.states[position].monitor;
        let planned = monitor.start_check(&self.settings, check, new_connection, now);
        let Some(underway) = monitor.underway() else { return };
        self.event(DiscoveryEvent::ServerHeartbeatStarted {
            heartbeat: heartbeat(address, underway),
        });
        let command = MonitorCommand::Check {
            check,
            connection: underway.connection,
            kind: planned.kind,
            hello: planned.hello,
            timeout: planned.timeout,
        };
        self.monitor_command(address, command);
        self.sync_timer(position);
    }

    fn start_measuring(&mut self, position: usize, address: &ServerAddress) {
        let check = self.next_check();
        let monitor = &mut self.states[position].monitor;
        let (hello, timeout) = monitor.start_measuring(&self.settings, check);
        self.monitor_command(address, MonitorCommand::MeasureRoundTrip { check, hello, timeout });
    }

    /// Goes on after a check, unless the server was removed by its own reply.
    fn after_check(
        &mut self,
        server: &ServerAddress,
        position: usize,
        next: Next,
        now: MonotonicTime,
    ) {
        let position = match self.description.servers.addresses().get(position) {
            Some(address) if address == server => Some(position),
            _ => self.description.servers.position(server),
        };
        if self.threading == Threading::Single {
            return self.continue_scan(now);
        }
        let Some(position) = position else { return };
        let monitor = &mut self.states[position].monitor;
        let streams = next != Next::Wait && monitor.has_connection();
        if streams {
            monitor.begin_measuring(now);
        } else if monitor.has_connection() && monitor.end_measuring() {
            // The server answers but does not stream: no second connection is to be kept.
            self.monitor_command(server, MonitorCommand::StopMeasuring);
        }
        match next {
            Next::CheckNow => self.start_check(position, server, now),
            Next::Pause => self.states[position].monitor.pause(now),
            Next::Wait => self.states[position].monitor.wait(&self.settings, now),
        }
        if self.states[position].monitor.measuring_is_due(now) {
            self.start_measuring(position, server);
        }
        self.sync_timer(position);
    }

    /// "hello or legacy hello Cancellation": the monitoring connection must be as bad as the one an
    /// operation found broken.
    pub(super) fn cancel_check(&mut self, position: usize, now: MonotonicTime) {
        let address = self.address_at(position);
        let underway = self.states[position].monitor.underway();
        if let Some(underway) = underway {
            self.tell_cancelled(&address, underway, now);
        }
        if self.states[position].monitor.has_connection() {
            self.monitor_command(&address, MonitorCommand::Cancel);
        }
        let monitor = &mut self.states[position].monitor;
        monitor.lose_connection();
        if self.threading == Threading::Single {
            monitor.rest(now);
        } else if underway.is_some() {
            monitor.wait(&self.settings, now);
        }
        self.sync_timer(position);
    }

    /// Every heartbeat that started also ends: the one of a server that leaves is given up.
    pub(super) fn tell_check_given_up(
        &mut self,
        address: &ServerAddress,
        state: &ServerState,
        now: MonotonicTime,
    ) {
        if let Some(underway) = state.monitor.underway() {
            self.tell_cancelled(address, underway, now);
        }
    }

    fn tell_cancelled(&mut self, address: &ServerAddress, underway: Underway, now: MonotonicTime) {
        let failure = CheckFailure::new(CheckFailureKind::Cancelled, "the check was cancelled");
        self.event(DiscoveryEvent::ServerHeartbeatFailed {
            heartbeat: heartbeat(address, underway),
            duration: now.since(underway.started),
            failure: Arc::new(failure),
        });
    }

    /// The server's place and the check, if it is the one that is under way.
    fn awaited_check(&self, server: &ServerAddress, check: CheckId) -> Option<(usize, Underway)> {
        let position = self.description.servers.position(server)?;
        let underway = self.states[position].monitor.underway()?;
        (underway.check == check).then_some((position, underway))
    }

    pub(super) fn sync_timer(&mut self, position: usize) {
        if self.threading == Threading::Single {
            return;
        }
        let state = &mut self.states[position];
        let deadlines = [state.monitor.deadline(), state.displaced_until];
        let deadline = deadlines.into_iter().flatten().min();
        if state.timer == deadline {
            return;
        }
        let old = std::mem::replace(&mut state.timer, deadline);
        let address = &self.description.servers.addresses()[position];
        if let Some(old) = old {
            self.timers.remove(&(old, address.clone()));
        }
        if let Some(at) = deadline {
            self.timers.insert((at, address.clone()));
        }
    }
}

fn heartbeat(address: &ServerAddress, underway: Underway) -> Heartbeat {
    Heartbeat {
        address: address.clone(),
        connection: underway.connection,
        awaited: underway.awaited,
    }
}
