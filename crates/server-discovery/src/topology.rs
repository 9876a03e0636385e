//! The core: inputs and the time go in, commands and events come out.
//!
//! Owns the order of things. What a reply means is decided in `transition.rs`, when to check next in
//! `monitor.rs`; here the decisions are joined, and turned into one queue whose order makes the
//! races of the specification's rationale impossible.

mod application;
mod change;
mod monitoring;
mod scan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{MonotonicTime, ObjectId, ServerAddress};

use crate::command::{CheckId, Input, MonitorCommand, Output, PoolCommand, PoolGeneration};
use crate::event::{DiscoveryEvent, TopologyId, Warning};
use crate::monitor::{Monitor, MonitorSettings};
use crate::options::{DiscoveryOptions, OptionsError, Threading};
use crate::random::SeededChoice;
use crate::server_description::ServerDescription;
use crate::servers::Servers;
use crate::topology::scan::Scan;
use crate::topology_description::TopologyDescription;
use crate::transition::Rules;

/// Everything a client believes about a deployment, and what it should do next.
///
/// # Contract
///
/// - Make one with [`new`](Self::new), which does no I/O, and drain [`poll_output`](Self::poll_output).
/// - Then, for ever: wait for whichever comes first, an answer to one of its commands, a failure that
///   an operation met, or [`next_deadline`](Self::next_deadline). Pass it to
///   [`handle`](Self::handle) with the time, and drain `poll_output` again, carrying out each output
///   before the next. Time never goes back.
/// - [`handle`](Self::handle) cannot fail. Bad news is an input like any other; answers that no check
///   waits for any more are dropped. Calling it before the outputs are drained is a mistake of the
///   caller and panics.
/// - After [`Input::Close`] and its outputs, nothing comes out any more.
///
/// The same inputs at the same times give the same outputs, to the byte.
#[derive(Clone, Debug)]
pub struct Topology {
    id: TopologyId,
    threading: Threading,
    /// A load balancer is used unseen; everything else is checked.
    monitored: bool,
    rules: Rules,
    settings: MonitorSettings,
    srv_max_hosts: Option<usize>,
    displaced_patience: Option<Duration>,
    description: Arc<TopologyDescription>,
    /// One for each server of the description, in the same order.
    states: Vec<ServerState>,
    /// When the monitors want to be woken.
    timers: BTreeSet<(MonotonicTime, ServerAddress)>,
    /// Bounded by what one input can cause: a few outputs for each server.
    outputs: VecDeque<Output>,
    last_check: u64,
    last_connection: u64,
    /// Counts the changes of the description that matter to `transition.rs`.
    revision: u64,
    scan: Scan,
    random: SeededChoice,
    closed: bool,
}

/// A seed list longer than this is warned about: no replica set has more members, and one or two
/// seeds find all of them.
const MANY_SEEDS: usize = 50;

/// What is known about a server besides its description.
#[derive(Clone, Debug)]
struct ServerState {
    monitor: Monitor,
    /// The monitor's entry among the timers.
    timer: Option<MonotonicTime>,
    pool: PoolState,
    /// Until when a newer primary's predecessor may stay silent.
    displaced_until: Option<MonotonicTime>,
    /// The revision of the topology when this server's description last went through the table. As
    /// long as it is the current one, an equal description cannot change anything.
    processed: Option<u64>,
}

/// What the core knows about a server's pool: it gives every command, so it need not ask.
#[derive(Clone, Debug, Default)]
struct PoolState {
    open: bool,
    ready: bool,
    generation: PoolGeneration,
    /// Behind a load balancer, each service has a count of its own.
    services: BTreeMap<ObjectId, PoolGeneration>,
}

impl Topology {
    /// A topology of the seeds, none of which was contacted yet.
    ///
    /// The seed feeds every random choice; give each client its own.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn new(
        options: &DiscoveryOptions,
        id: TopologyId,
        seed: u64,
        now: MonotonicTime,
    ) -> Result<Self, OptionsError> {
        options.check()?;
        let empty = Arc::new(TopologyDescription::empty(options.selection_settings()));
        let mut topology = Self {
            id,
            threading: options.threading,
            monitored: !options.load_balanced,
            rules: Rules::new(options),
            settings: MonitorSettings::new(options),
            srv_max_hosts: options.srv_max_hosts,
            displaced_patience: options.displaced_patience,
            description: empty,
            states: Vec::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            last_check: 0,
            last_connection: 0,
            revision: 0,
            scan: Scan::default(),
            random: SeededChoice::new(seed),
            closed: false,
        };
        topology.open(options, now);
        Ok(topology)
    }

    /// Takes one input into account. Drain [`poll_output`](Self::poll_output) before the next.
    ///
    /// # Panics
    ///
    /// If outputs of the previous input were not drained.
    pub fn handle(&mut self, now: MonotonicTime, input: Input) {
        assert!(self.outputs.is_empty(), "drain poll_output before the next input");
        if self.closed {
            return;
        }
        match input {
            Input::HelloReceived { server, check, reply, round_trip, more_to_come } => {
                self.hello_received(&server, check, reply, round_trip, more_to_come, now);
            }
            Input::CheckFailed { server, check, failure } => {
                self.check_failed(&server, check, failure, now);
            }
            Input::RoundTripMeasured { server, check, round_trip } => {
                self.round_trip_measured(&server, check, round_trip, now);
            }
            Input::HandshakeReceived { server, reply } => {
                self.handshake_received(&server, reply, now);
            }
            failed @ Input::ApplicationFailed { .. } => self.application_failed(failed, now),
            // A load balancer is never checked, whatever asks.
            Input::CheckWanted | Input::ScanWanted | Input::ServerCheckWanted { .. }
                if !self.monitored => {}
            Input::CheckWanted => self.check_wanted(now),
            Input::ScanWanted => self.scan_wanted(now),
            Input::ServerCheckWanted { server } => self.server_check_wanted(&server, now),
            Input::SeedsResolved(seeds) => self.seeds_resolved(&seeds, now),
            Input::Tick => self.tick(now),
            Input::Close => self.close(now),
        }
        self.check_invariants();
    }

    /// What to do next; `None` until the next input.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to pass [`Input::Tick`], if nothing else happens before.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// What the client believes now. The latest [`Output::Publish`] carried the same.
    pub fn description(&self) -> &Arc<TopologyDescription> {
        &self.description
    }

    /// What tells this topology from others.
    pub fn id(&self) -> TopologyId {
        self.id
    }

    /// The generation of a server's pool, which new connections carry.
    pub fn pool_generation(
        &self,
        server: &ServerAddress,
        service_id: Option<ObjectId>,
    ) -> Option<PoolGeneration> {
        let pool = &self.states[self.description.servers.position(server)?].pool;
        Some(match service_id {
            Some(service) => pool.services.get(&service).copied().unwrap_or_default(),
            None => pool.generation,
        })
    }

    fn open(&mut self, options: &DiscoveryOptions, now: MonotonicTime) {
        self.event(DiscoveryEvent::TopologyOpening);
        if options.seeds.is_empty() {
            self.event(DiscoveryEvent::Warning(Warning::NoSeeds));
        }
        if options.seeds.len() > MANY_SEEDS {
            let count = options.seeds.len();
            self.event(DiscoveryEvent::Warning(Warning::ManySeeds { count }));
        }
        let unknown = options.seeds.iter().cloned().map(ServerDescription::unknown).map(Arc::new);
        let initial = Arc::new(TopologyDescription {
            topology_type: options.initial_topology_type(),
            set_name: options.set_name.as_deref().map(Arc::from),
            servers: Servers::from_descriptions(unknown),
            ..TopologyDescription::empty(options.selection_settings())
        });
        let addresses = initial.servers.addresses().to_vec();
        self.states = addresses.iter().map(|_| self.new_state(now)).collect();
        self.publish(initial.clone(), true);
        for address in &addresses {
            self.event(DiscoveryEvent::ServerOpening { address: address.clone() });
        }
        if !self.monitored {
            return self.open_load_balancer(&initial);
        }
        for (position, address) in addresses.into_iter().enumerate() {
            self.start_monitor(position, address, now);
        }
    }

    /// A load balancer is not monitored: it is what the connection string says it is.
    fn open_load_balancer(&mut self, initial: &TopologyDescription) {
        for (position, address) in initial.servers.addresses().iter().enumerate() {
            self.make_pool_ready(position, address);
            let previous = Arc::clone(initial.servers.at(position));
            let new = Arc::new(ServerDescription::load_balancer(address.clone()));
            let mut description = initial.clone();
            description.servers.replace_at(position, Arc::clone(&new));
            // The descriptions differ, and so do their events' places: the server's comes first.
            let earlier = std::mem::replace(&mut self.description, Arc::new(description));
            self.push(Output::Publish(Arc::clone(&self.description)));
            self.event(DiscoveryEvent::ServerDescriptionChanged { previous, new });
            let new = Arc::clone(&self.description);
            self.event(DiscoveryEvent::TopologyDescriptionChanged { previous: earlier, new });
        }
    }

    fn new_state(&self, now: MonotonicTime) -> ServerState {
        let mut monitor = Monitor::new(&self.settings, now);
        if self.threading == Threading::Single {
            monitor.rest(now);
        }
        ServerState {
            monitor,
            timer: None,
            pool: PoolState::default(),
            displaced_until: None,
            processed: None,
        }
    }

    /// Makes a description the current one, with its event if it is told.
    fn publish(&mut self, description: Arc<TopologyDescription>, tell: bool) {
        let previous = std::mem::replace(&mut self.description, Arc::clone(&description));
        self.push(Output::Publish(Arc::clone(&description)));
        if tell {
            let new = description;
            self.event(DiscoveryEvent::TopologyDescriptionChanged { previous, new });
        }
    }

    fn make_pool_ready(&mut self, position: usize, address: &ServerAddress) {
        let pool = &mut self.states[position].pool;
        if pool.ready {
            return;
        }
        let opened = std::mem::replace(&mut pool.open, true);
        pool.ready = true;
        if !opened {
            self.pool_command(address, PoolCommand::Open);
        }
        self.pool_command(address, PoolCommand::MarkReady);
    }

    fn clear_pool(
        &mut self,
        position: usize,
        service_id: Option<ObjectId>,
        interrupt_in_use: bool,
    ) {
        let pool = &mut self.states[position].pool;
        if !pool.open {
            return;
        }
        let generation = match service_id {
            Some(service) => pool.services.entry(service).or_default(),
            None => {
                pool.ready = false;
                &mut pool.generation
            }
        };
        generation.0 += 1;
        let generation = *generation;
        let address = self.address_at(position);
        let command = PoolCommand::Clear { generation, service_id, interrupt_in_use };
        self.pool_command(&address, command);
    }

    fn address_at(&self, position: usize) -> ServerAddress {
        self.description.servers.addresses()[position].clone()
    }

    fn next_check(&mut self) -> CheckId {
        self.last_check += 1;
        CheckId(self.last_check)
    }

    fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    fn event(&mut self, event: DiscoveryEvent) {
        self.push(Output::Event(event));
    }

    fn monitor_command(&mut self, server: &ServerAddress, command: MonitorCommand) {
        self.push(Output::Monitor { server: server.clone(), command });
    }

    fn pool_command(&mut self, server: &ServerAddress, command: PoolCommand) {
        self.push(Output::Pool { server: server.clone(), command });
    }

    fn check_invariants(&self) {
        assert_eq!(self.states.len(), self.description.servers.len(), "one state for each server");
        #[cfg(debug_assertions)]
        self.check_costly_invariants();
    }

    /// What must hold after every input, and takes a look at every server to see.
    #[cfg(debug_assertions)]
    fn check_costly_invariants(&self) {
        use crate::types::{ServerType, TopologyType};
        let types = || self.description.servers.iter().map(|server| server.server_type());
        let primaries = types().filter(|kind| *kind == ServerType::RsPrimary).count();
        match self.description.topology_type {
            TopologyType::ReplicaSetWithPrimary => assert_eq!(primaries, 1),
            TopologyType::Single => assert!(primaries <= 1),
            _ => assert_eq!(primaries, 0, "a primary makes the topology one with a primary"),
        }
        assert_eq!(
            self.description.primary().map(|primary| primary.server_type()),
            (primaries == 1).then_some(ServerType::RsPrimary)
        );
        for (state, address) in self.states.iter().zip(self.description.servers.addresses()) {
            if let Some(at) = state.timer {
                assert!(self.timers.contains(&(at, address.clone())));
            }
            assert!(state.pool.open || !state.pool.ready);
        }
        assert_eq!(
            self.timers.len(),
            self.states.iter().filter(|state| state.timer.is_some()).count()
        );
    }
}
