//! `quorate drill URI`: a measured failover.
//!
//! ```text
//!   warm up ──▶ fault ──▶ primary lost ──▶ elected ──▶ first write ──▶ read everything back ──▶ mend
//!      └──────────────── a writer, one majority write after the other ──────┘
//! ```
//!
//! The writer is our own client with retryable writes, as an application would have it; the gap is the
//! longest time between two acknowledgements around the fault. Afterwards every acknowledged write
//! is read back with read concern majority: one that is missing is a loss, whatever the gap.
//!
//! Safe by default. What is ours is known from the file that `up` keeps; on any other set the only
//! fault is a step-down, and only after a yes.

pub(crate) mod arguments;
mod fault;
mod progress;
mod report;
mod score;
mod standing;
mod timeline;
mod writer;

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use quorate_client::{Client, ClientOptions, WriteConcern};
use quorate_connection_string::{ConnectionString, WriteAcknowledgement};
use quorate_protocol::ServerAddress;
use quorate_server_discovery::{
    DiscoveryOptions, ServerDescription, ServerType, TopologyDescription,
};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::arguments::SwitchoverArguments;
use crate::clock;
use crate::connect;
use crate::remedy;
use crate::screen::{Outcome, Result, Screen};
use crate::signals;
use crate::up::running::RunningSet;
use crate::what_if::{self, Forecast, Writes};
use arguments::DrillArguments;
use fault::Fault;
pub(crate) use fault::Kind;
use progress::Progress;
use report::Report;
use score::{Score, Scored};
use timeline::{Moment, Timeline};
use writer::{Acknowledged, Writer};

/// How long the primary is looked for before the drill gives up.
const FIND_WITHIN: Duration = Duration::from_secs(5);

/// How many futures the forecast before a drill has.
const FUTURES: usize = 100;

/// How many writes must be acknowledged before anything is broken.
const WARM_UP_WRITES: usize = 50;

/// How long members that are away may take to come back before the set is broken without them.
const WHOLE_WITHIN: Duration = Duration::from_secs(5);

/// How many writes must follow the forecast before the fault.
const PACE_WRITES: usize = 5;

/// How long the first of them may take.
const WARM_UP_WITHIN: Duration = Duration::from_secs(60);

/// How long a set may take to acknowledge writes again before the drill gives it up.
const RECOVER_WITHIN: Duration = Duration::from_secs(120);

/// How many writes must follow the first one before the set counts as recovered.
const SETTLED_WRITES: usize = 20;

/// How long a broken member may take to come back.
const MEND_WITHIN: Duration = Duration::from_secs(60);

/// The database of the writes, where the connection string names none.
const DATABASE: &str = "quorate";

/// The fault to make, and the limits to measure against.
struct Plan<'a> {
    uri: &'a str,
    kind: Kind,
    /// The member that is to lead.
    to: Option<&'a ServerAddress>,
    max_gap: Option<Duration>,
    yes: bool,
}

/// Breaks the set, measures, and mends it.
pub(crate) fn run(arguments: &DrillArguments, screen: &mut Screen) -> Result<Outcome> {
    let plan = Plan {
        uri: &arguments.uri,
        kind: arguments.fault(),
        to: None,
        max_gap: arguments.max_gap,
        yes: arguments.yes,
    };
    let (mut outcome, mut score) = (Outcome::Fine, Score::default());
    for _ in 0..arguments.times {
        let (drilled, scored) = carry_out(&plan, screen)?;
        if drilled != Outcome::Fine {
            outcome = drilled;
        }
        score.add(scored);
    }
    score.tell(screen)?;
    Ok(outcome)
}

/// Lets a named member lead, and measures.
pub(crate) fn switch_over(arguments: &SwitchoverArguments, screen: &mut Screen) -> Result<Outcome> {
    let plan = Plan {
        uri: &arguments.uri,
        kind: Kind::HandOver,
        to: Some(&arguments.to),
        max_gap: arguments.max_gap,
        yes: arguments.yes,
    };
    carry_out(&plan, screen).map(|(outcome, _)| outcome)
}

fn carry_out(plan: &Plan<'_>, screen: &mut Screen) -> Result<(Outcome, Option<Scored>)> {
    let uri = connect::parse(plan.uri)?;
    connect::runtime()?.block_on(async {
        let (uri, seeds) = connect::find_seeds(uri).await?;
        let mut options = ClientOptions::from_connection_string(&uri);
        options.discovery.seeds = seeds;
        options.tls = uri.tls_enabled().then(|| connect::tls_options(&uri));
        options.write_concern = WriteConcern {
            w: Some(WriteAcknowledgement::Majority),
            ..options.write_concern.clone()
        };
        connect::read_committed(&mut options);
        let database = options.default_database.clone().unwrap_or_else(|| DATABASE.to_owned());
        let client = Client::with_options(options)?;
        let drilled = drill(plan, &uri, &client, &database, screen).await;
        client.close().await;
        drilled
    })
}

async fn drill(
    plan: &Plan<'_>,
    uri: &ConnectionString,
    client: &Client,
    database: &str,
    screen: &mut Screen,
) -> Result<(Outcome, Option<Scored>)> {
    let mut progress = Progress::new(screen.is_json());
    let primary = find_primary(plan, uri, client, &mut progress).await?;
    if plan.to == Some(primary.address()) {
        tell!(screen, "leads_already", {"primary": primary.address().as_str()},
            "{} leads already", primary.address())?;
        return Ok((Outcome::Fine, None));
    }
    if let Some(to) = plan.to.filter(|to| standing::is_awaited(to, &client.topology())) {
        screen.event("waiting", json!({"member": to.as_str()}))?;
        progress.stage("waiting for the member that is to lead");
        standing::known(to, client).await;
        progress.clear();
    }
    let others = standing::others(plan.to, &client.topology())?;
    let ours = RunningSet::with_member(primary.address().as_str())?;
    permit(plan, &primary, ours.as_ref(), database)?;
    let fault = Fault::new(plan.kind, primary.address().clone(), ours);
    // Named for the moment, so that two drills never meet.
    let collection = format!("drill_{}_{}", std::process::id(), clock::now().as_nanos());
    let writer = Writer::start(client.collection(database, &collection));
    // A drill that is stopped must not leave the set broken.
    let stop = signals::stop()?;
    standing::forbid(uri, &others).await;
    let measured = tokio::select! {
        measured = measure(plan, uri, client, &primary, &fault, &writer, &mut progress, screen) => {
            measured
        }
        () = stop => Err(problem!("stopped before the end, so nothing is known; let it run the next time")),
    };
    let written = writer.stop().await;
    progress.stage("mending what was broken");
    if plan.kind.asks() {
        // Otherwise the next step-down finds one candidate less.
        let asked = others.iter().chain([primary.address()]);
        standing::allow(uri, asked).await;
    }
    let mended = mend(client, &fault, &mut progress).await;
    let (timeline, forecast) = measured?;
    progress.stage("reading every acknowledged write back");
    let lost = read_back(client, database, &collection, &written.acknowledged).await;
    // Left behind, it would only be a collection to delete by hand.
    let _ = client.run_command(database, &rawdoc! { "drop": collection.as_str() }).await;
    progress.clear();
    let lost = lost.map_err(|error| connect::failed(&error, plan.uri))?;
    let report = Report {
        fault: plan.kind,
        target: primary.address().clone(),
        to: plan.to.cloned(),
        timeline,
        written,
        lost,
        max_gap: plan.max_gap,
        mended,
        forecast,
    };
    Ok((report.tell(screen)?, report.scored()))
}

/// The primary, before anything is broken. A deployment that does not answer is an error soon.
async fn find_primary(
    plan: &Plan<'_>,
    uri: &ConnectionString,
    client: &Client,
    progress: &mut Progress,
) -> Result<Arc<ServerDescription>> {
    let ping = rawdoc! { "ping": 1 };
    let wanted = uri.options().server_selection_timeout;
    let within = wanted.map_or(FIND_WITHIN, |wanted| wanted.min(FIND_WITHIN));
    progress.stage("looking for the primary");
    let found = progress.follow(within, client.run_command("admin", &ping)).await;
    progress.clear();
    match found {
        Some(found) => {
            found.map_err(|error| connect::failed(&error, plan.uri))?;
        }
        None => {
            return Err(connect::no_primary(client, within, plan.uri));
        }
    }
    let topology = client.topology();
    let what = if plan.to.is_some() { "switchover" } else { "drill" };
    refuse_if!(!topology.topology_type().is_replica_set() => misuse,
        "a {what} needs a replica set, and this is {}; give the connection string of a set, \
         with replicaSet= and without directConnection", topology.topology_type());
    topology.primary().cloned().ok_or_else(|| {
        problem!(
            "the set has no primary to take away; {} tells why",
            remedy::quorate("doctor", &uri.to_string())
        )
    })
}

/// Whether this may be done to this set: always to our own, a step-down to any after a yes.
fn permit(
    plan: &Plan<'_>,
    primary: &ServerDescription,
    ours: Option<&RunningSet>,
    database: &str,
) -> Result<()> {
    if ours.is_some() {
        return Ok(());
    }
    let address = primary.address();
    refuse_if!(!plan.kind.asks() => misuse,
        "{address} was not started by your quorate up, so it is not ours to {}; use \
         --step-down, or start a set of your own: quorate up --detach", plan.kind.name());
    if plan.yes {
        return Ok(());
    }
    refuse_if!(!std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() => misuse,
        "{address} was not started by your quorate up, and there is no terminal to ask; add --yes \
         to make it step down");
    let mut stderr = std::io::stderr();
    write!(
        stderr,
        "{address} was not started by your quorate up. It will step down, writes will stop for a \
         moment, and a collection in {database} is written and dropped.\nType yes to go on: "
    )?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(problem!("nothing was done; type yes the next time, or --yes")),
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one drill, taken apart once")]
async fn measure(
    plan: &Plan<'_>,
    uri: &ConnectionString,
    client: &Client,
    primary: &ServerDescription,
    fault: &Fault,
    writer: &Writer,
    progress: &mut Progress,
    screen: &mut Screen,
) -> Result<(Timeline, Option<Forecast>)> {
    warm_up(plan, uri, writer, progress).await?;
    progress.stage("waiting for every member");
    let _ = progress.follow(WHOLE_WITHIN, whole(client)).await;
    progress.stage("making a forecast");
    // The client interrupts operations on a primary that it knows to be displaced.
    let patience = match plan.kind {
        Kind::Pause => DiscoveryOptions::default().displaced_patience.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    let writes = Writes { took: writer.took(), patience };
    let forecast = what_if::before_drill(uri.clone(), plan.kind.fate(), writes, FUTURES).await;
    // The time that the forecast took from the writer is no part of the gap.
    let enough = writer.took().len() + PACE_WRITES;
    let _ = progress.follow(WARM_UP_WITHIN, writer.acknowledged(enough)).await;
    let mut events = client.events();
    progress.clear();
    let mut timeline = Timeline::new(primary, clock::now());
    fault.commit(client).await?;
    if let Some(to) = plan.to {
        standing::encourage(uri, to).await;
    }
    tell_moment(Moment::Fault, &timeline, fault, screen)?;
    let deadline = Instant::now() + RECOVER_WITHIN;
    progress.stage("waiting for the next primary");
    while !timeline.is_elected() {
        let changed = progress.follow_until(deadline, timeline::next_topology(&mut events)).await;
        // It may have changed before this subscribed.
        let topology: Arc<TopologyDescription> = match changed {
            Some(Some(topology)) => topology,
            Some(None) => client.topology(),
            None => return Ok((timeline, forecast)),
        };
        progress.clear();
        for moment in timeline.observe(clock::now(), &topology) {
            tell_moment(moment, &timeline, fault, screen)?;
        }
    }
    progress.stage("waiting for an acknowledged write");
    let elected = timeline.elected_at().unwrap_or_else(clock::now);
    let first = progress.follow_until(deadline, writer.acknowledged_after(elected)).await;
    if let Some(first) = first {
        timeline.first_write(first.at);
        progress.clear();
        tell_moment(Moment::FirstWrite, &timeline, fault, screen)?;
        progress.stage("seeing that writes go on");
        let enough = first.number + SETTLED_WRITES;
        let _ = timeout_at(deadline, writer.acknowledged(enough)).await;
    }
    Ok((timeline, forecast))
}

/// Waits for the first writes, before anything is broken. Fails if none is acknowledged, at once if this client
/// may not write.
async fn warm_up(
    plan: &Plan<'_>,
    uri: &ConnectionString,
    writer: &Writer,
    progress: &mut Progress,
) -> Result<()> {
    progress.stage("warming up");
    let acknowledged = async {
        tokio::select! {
            () = writer.acknowledged(WARM_UP_WRITES) => Ok(()),
            refusal = writer.refused() => Err(connect::failed(&refusal, plan.uri)),
        }
    };
    match progress.follow(WARM_UP_WITHIN, acknowledged).await {
        Some(warm) => warm,
        None => {
            let reason = writer.last_error().unwrap_or_else(|| "no write came back".to_owned());
            Err(problem!(
                "the set acknowledges no majority writes, and nothing was broken yet: {reason}; {} \
                 tells more",
                remedy::quorate("doctor", &uri.to_string())
            ))
        }
    }
}

/// Returns when the client knows what every member is, and each leads, follows or votes.
async fn whole(client: &Client) {
    let serves = |server: &Arc<ServerDescription>| {
        let kind = server.server_type();
        kind.is_data_bearing() || kind == ServerType::RsArbiter
    };
    timeline::until(client, |topology| topology.servers().iter().all(serves)).await;
}

fn tell_moment(
    moment: Moment,
    timeline: &Timeline,
    fault: &Fault,
    screen: &mut Screen,
) -> Result<()> {
    let Some(told) = timeline.told(moment, fault) else { return Ok(()) };
    screen.line(format_args!("{:>10.1} ms  {}", told.after_fault_ms, told.text))?;
    screen.flush()?;
    screen.event_at(told.at, moment.name(), told.fields)?;
    Ok(())
}

/// Undoes the fault and waits until the client knows the member again.
async fn mend(client: &Client, fault: &Fault, progress: &mut Progress) -> Option<bool> {
    if !fault.mend() {
        return None;
    }
    let known = timeline::until(client, |topology| is_known(topology, fault.target()));
    Some(progress.follow(MEND_WITHIN, known).await.is_some())
}

fn is_known(topology: &TopologyDescription, address: &ServerAddress) -> bool {
    topology.server(address).is_some_and(|server| server.server_type().is_known())
}

/// The acknowledged writes that are not there.
async fn read_back(
    client: &Client,
    database: &str,
    collection: &str,
    acknowledged: &[Acknowledged],
) -> Result<Vec<i64>, quorate_client::Error> {
    let collection = client.collection(database, collection);
    let find = collection.find(rawdoc! {}).projection(rawdoc! { "_id": 1 });
    let mut cursor = find.sort(rawdoc! { "_id": 1 }).await?;
    let mut found = std::collections::BTreeSet::new();
    while let Some(document) = cursor.next().await? {
        if let Ok(id) = document.get_i64("_id") {
            found.insert(id);
        }
    }
    Ok(acknowledged.iter().map(|write| write.id).filter(|id| !found.contains(id)).collect())
}
