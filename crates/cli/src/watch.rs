//! `quorate watch URI`: the live topology of any deployment, line by line.
//!
//! The `observer` watches; this module puts its events into words. Every change has its reason: what
//! a server was, what it is, and why.

mod observer;
mod recorder;

use std::io;
use std::pin::pin;

use quorate_client::ClientOptions;
use quorate_client::handshake::Handshake;
use quorate_client::metadata::{Environment, client_metadata};
use quorate_client::net::{Connector, ConnectorOptions};
use quorate_client::tls::Tls;
use quorate_connection_string::ConnectionString;
use quorate_protocol::MonotonicTime;
use quorate_server_discovery::{
    DiscoveryEvent, RecordingStart, ServerDescription, TopologyDescription, TopologyId,
};
use serde_json::json;

use crate::arguments::WatchArguments;
use crate::clock;
use crate::connect;
use crate::screen::{Failure, Outcome, QUIET, STRONG, Screen, WARNING};
use crate::signals;
use crate::topology_view::{server_to_json, topology_to_json};
use crate::words::{Counted, Foreign, Span};
use observer::{Manner, Observer, Seen};
use recorder::Recorder;

/// Watches until told to stop.
pub(crate) fn run(arguments: &WatchArguments, screen: &mut Screen) -> Result<Outcome, Failure> {
    let uri = connect::parse(&arguments.uri)?;
    let options = ClientOptions::from_connection_string(&uri);
    let environment = Environment::of_this_process();
    let mut discovery = options.discovery.clone();
    discovery.function_platform = environment.function_platform();
    let at = clock::now();
    let id = TopologyId(1);
    // Nothing here is secret: the seed only spreads choices, and the recording repeats it.
    let seed = at.as_nanos() ^ u64::from(std::process::id());
    let start = RecordingStart { options: discovery, id, seed, at };
    let topology = start.topology().map_err(|error| Failure::Misuse(error.to_string()))?;
    let manner = manner(&uri, &options, &environment)?;
    let recorder = match &arguments.record {
        None => None,
        Some(path) => Some(Recorder::create(path).map_err(|error| {
            let path = path.display();
            Failure::Misuse(format!("cannot record to {path}: {error}; choose another file"))
        })?),
    };
    connect::runtime()?.block_on(async {
        let (observer, first) = Observer::start(topology, &start, manner, recorder)
            .map_err(|error| not_recorded(&error))?;
        screen.talk_unless_json(format_args!("watching {uri}; Ctrl-C stops"));
        watch(observer, first, start.at, screen).await
    })
}

fn manner(
    uri: &ConnectionString,
    options: &ClientOptions,
    environment: &Environment,
) -> Result<Manner, Failure> {
    let tls = uri.tls_enabled().then(|| Tls::new(&connect::tls_options(uri))).transpose();
    let tls = tls.map_err(|error| {
        Failure::Misuse(format!("{error}; correct the tls options of the connection string"))
    })?;
    let connect_timeout = options.discovery.connect_timeout;
    let connector =
        Connector::new(ConnectorOptions { connect_timeout, tls, ..ConnectorOptions::default() });
    let handshake = Handshake {
        metadata: client_metadata(options.app_name.as_deref(), &options.wrappers, environment),
        compressors: Vec::new(),
        zlib_level: None,
        load_balanced: options.discovery.load_balanced,
        server_api: options.server_api.clone(),
        authenticator: None,
    };
    Ok(Manner { connector, handshake })
}

async fn watch(
    mut observer: Observer,
    first: Vec<Seen>,
    began: MonotonicTime,
    screen: &mut Screen,
) -> Result<Outcome, Failure> {
    let mut stop = pin!(signals::stop().map_err(|error| {
        let advice = "check the limits of this process (ulimit -a)";
        Failure::Problem(format!("cannot listen for signals: {error}; {advice}"))
    })?);
    let teller = Teller { began };
    teller.tell_all(&first, screen)?;
    loop {
        let seen = tokio::select! {
            () = &mut stop => break,
            seen = observer.next() => seen.map_err(|error| not_recorded(&error))?,
        };
        teller.tell_all(&seen, screen)?;
    }
    // What closing does is recorded, but no news to anybody.
    observer.close().map_err(|error| not_recorded(&error))?;
    Ok(Outcome::Fine)
}

fn not_recorded(error: &io::Error) -> Failure {
    Failure::Problem(format!("the recording cannot be written: {error}; check the disk"))
}

/// Puts events into words.
struct Teller {
    began: MonotonicTime,
}

impl Teller {
    fn tell_all(&self, seen: &[Seen], screen: &mut Screen) -> io::Result<()> {
        seen.iter().try_for_each(|(at, event)| self.tell(*at, event, screen))
    }

    fn tell(
        &self,
        at: MonotonicTime,
        event: &DiscoveryEvent,
        screen: &mut Screen,
    ) -> io::Result<()> {
        match event {
            DiscoveryEvent::TopologyDescriptionChanged { new, .. } => {
                self.line(at, &format!("{STRONG}{}{STRONG:#}", summary(new)), screen)?;
                screen.event_at(at, "topology", topology_to_json(new))
            }
            DiscoveryEvent::ServerDescriptionChanged { previous, new } => {
                self.line(at, &change(previous, new), screen)?;
                let mut fields = server_to_json(new);
                fields["previous"] = previous.server_type().name().into();
                screen.event_at(at, "server", fields)
            }
            DiscoveryEvent::ServerOpening { address } => {
                self.line(at, &format!("{address} found"), screen)?;
                screen.event_at(at, "server_found", json!({"address": address.as_str()}))
            }
            DiscoveryEvent::ServerClosed { address, reason } => {
                let reason = Foreign(reason).to_string();
                self.line(at, &format!("{address} dropped: {reason}"), screen)?;
                let fields = json!({"address": address.as_str(), "reason": reason});
                screen.event_at(at, "server_dropped", fields)
            }
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, duration, failure } => {
                let (address, failure) = (&heartbeat.address, Foreign(failure).to_string());
                let took = Span(*duration);
                let told =
                    format!("{QUIET}{address} check failed after {took}: {failure}{QUIET:#}");
                self.line(at, &told, screen)?;
                let fields = json!({"address": address.as_str(), "error": failure});
                screen.event_at(at, "check_failed", fields)
            }
            DiscoveryEvent::Warning(warning) => {
                let told = format!("{WARNING}warning{WARNING:#} {}", Foreign(warning));
                self.line(at, &told, screen)?;
                screen.event_at(at, "warning", json!({"message": warning.to_string()}))
            }
            DiscoveryEvent::TopologyOpening
            | DiscoveryEvent::TopologyClosed
            | DiscoveryEvent::ServerHeartbeatStarted { .. }
            | DiscoveryEvent::ServerHeartbeatSucceeded { .. } => Ok(()),
        }
    }

    fn line(&self, at: MonotonicTime, text: &str, screen: &mut Screen) -> io::Result<()> {
        let seconds = at.since(self.began).as_secs_f64();
        screen.line(format_args!("{QUIET}{seconds:>9.3} s{QUIET:#}  {text}"))?;
        screen.flush()
    }
}

fn summary(topology: &TopologyDescription) -> String {
    let mut text = topology.topology_type().to_string();
    if let Some(name) = topology.set_name() {
        text.push_str(&format!(" {}", Foreign(name)));
    }
    text.push_str(&format!(", {}", Counted(topology.servers().len(), "server")));
    if let Some(primary) = topology.primary() {
        text.push_str(&format!(", primary {}", primary.address()));
    } else if topology.topology_type().is_replica_set() {
        text.push_str(", no primary");
    }
    if let Some(error) = topology.compatibility_error() {
        text.push_str(&format!(", incompatible: {}", Foreign(error)));
    }
    text
}

fn change(previous: &ServerDescription, new: &ServerDescription) -> String {
    let (was, is) = (previous.server_type(), new.server_type());
    let mut text = match was == is {
        true => format!("{} {is}, changed", new.address()),
        false => format!("{} {was} → {is}", new.address()),
    };
    if let Some(error) = new.error() {
        text.push_str(&format!(": {}", Foreign(error)));
    } else if let Some(round_trip) = new.round_trip_time() {
        text.push_str(&format!(", {}", Span(round_trip)));
    }
    text
}
