//! `quorate up`: a real replica set on this machine, one process per member.
//!
//! Starts the members, makes them a set, and calls it ready only after a write that a majority
//! acknowledged went through our own client. Then it looks after the processes: a member that dies is
//! reported, not hidden, and the set ends with this command.

mod levers;
mod members;
mod step_down;
mod workload;

use std::net::{Ipv4Addr, TcpListener};
use std::pin::pin;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::rawdoc;
use quorate_client::{Client, ClientOptions};
use serde_json::json;
use tokio::time::timeout;

use crate::arguments::UpArguments;
use crate::connect;
use crate::dashboard;
use crate::screen::{FINE, Failure, Outcome, Screen};
use crate::signals;
use crate::view::Input;
use crate::view::actions::Action;
use crate::view::collector::Live;

use levers::Order;
use members::{Exit, Members};

/// How long the members may take to become a set that takes writes.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How many ports are tried for one member.
const PORTS_TRIED: u16 = 200;

/// What to do once the set is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Look after the members.
    Wait,
    /// Write to it and show what happens: on a screen, or in lines where there is no terminal.
    Show,
}

/// Runs a set until told to stop.
pub(crate) fn run(
    arguments: &UpArguments,
    then: Then,
    screen: &mut Screen,
) -> Result<Outcome, Failure> {
    connect::runtime()?.block_on(up(arguments, then, screen))
}

async fn up(arguments: &UpArguments, then: Then, screen: &mut Screen) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let stop = signals::stop().map_err(|error| {
        Failure::Problem(format!(
            "cannot listen for signals: {error}; check the limits (ulimit -a)"
        ))
    })?;
    tokio::pin!(stop);
    let ports = match remembered_ports(arguments)? {
        Some(ports) => ports,
        None => free_ports(arguments, screen)?,
    };
    let mut members = Members::start(arguments, &ports)?;
    let readiness = async {
        members.listening().await?;
        for member in members.iter() {
            let (id, host, pid) = (member.id, member.host(), member.pid());
            screen.event("member", json!({"id": id, "host": host, "pid": pid}))?;
            screen.talk_unless_json(format_args!("member {id} is {host}, process {pid}"));
        }
        remember_ports(arguments, &members)?;
        assemble(arguments, &members).await
    };
    let ready = tokio::select! {
        ready = timeout(READY_WITHIN, readiness) => ready.unwrap_or_else(|_| Err(too_slow())),
        () = &mut stop => return end(members, screen).await,
    };
    let client = match ready {
        Ok(client) => client,
        Err(failure) => {
            members.stop().await;
            return Err(failure);
        }
    };
    let uri = uri(arguments, &members);
    let elapsed_ms = started.elapsed().as_millis();
    screen.line(&uri)?;
    screen.flush()?;
    screen.event("ready", json!({"uri": uri, "elapsed_ms": elapsed_ms}))?;
    screen.talk_unless_json(format_args!(
        "{FINE}ready{FINE:#} after {elapsed_ms} ms: a write was acknowledged by a majority; Ctrl-C \
         stops the set"
    ));
    let outcome = tokio::select! {
        () = &mut stop => Ok(()),
        outcome = look_after(&mut members, &client, &uri, then, screen) => outcome,
    };
    client.close().await;
    // The members are stopped also where the screen broke.
    let ended = end(members, screen).await;
    outcome.and(ended)
}

/// Looks after the members until somebody leaves the screen; without one, for ever.
async fn look_after(
    members: &mut Members,
    client: &Client,
    uri: &str,
    then: Then,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let (actions, mut orders) = levers::levers();
    let on_screen = then == Then::Show && dashboard::is_possible();
    let live = match on_screen {
        true => Some(watch_members(members, client, uri)?),
        false => None,
    };
    let mut told = match then {
        Then::Wait => None,
        Then::Show => {
            if !on_screen {
                workload::invite(members, screen);
            }
            Some(workload::start(client))
        }
    };
    let mut shown = pin!(async {
        match &live {
            Some(live) => dashboard::show(live, Some(actions)).await,
            None => std::future::pending().await,
        }
    });
    loop {
        let line = async {
            match &mut told {
                Some(told) => told.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            left = &mut shown => return left.map_err(|error| no_screen(&error)),
            exit = members.next_exit() => match &live {
                None => tell_exit(&exit, screen)?,
                Some(live) => {
                    let (member, text) = (exit.host.parse(), format!("is gone: {}", exit.how));
                    if let Ok(member) = member {
                        live.tell(Input::Done { member, text });
                    }
                    tell_processes(members, live);
                }
            },
            Some(order) = orders.recv() => {
                carry_out(members, order, live.as_ref()).await;
                if let Some(live) = &live {
                    tell_processes(members, live);
                }
            }
            // What a screen shows need not be told in lines.
            Some(line) = line => if live.is_none() { screen.talk(line) },
        }
    }
}

/// Begins to collect what the screen shows.
fn watch_members(members: &Members, client: &Client, uri: &str) -> Result<Live, Failure> {
    let options = ClientOptions::from_connection_string(&connect::parse(uri)?);
    let live = Live::start(client.clone(), &options, uri.to_owned())
        .map_err(|error| connect::refused(&error))?;
    tell_processes(members, &live);
    Ok(live)
}

fn tell_processes(members: &Members, live: &Live) {
    for member in members.iter() {
        if let Some(address) = member.address() {
            let (pid, process) = (member.pid(), member.condition().clone());
            live.tell(Input::Process { member: address, pid, process });
        }
    }
}

/// Does what somebody ordered. What takes a network is done beside.
async fn carry_out(members: &mut Members, order: Order, live: Option<&Live>) {
    let Order { action, member, outcome } = order;
    let live = live.cloned();
    let tell = move |member, done: &Result<String, _>| {
        if let (Some(live), Ok(text)) = (&live, done) {
            live.tell(Input::Done { member, text: text.clone() });
        }
    };
    if action == Action::StepDown && members.of(&member).is_some() {
        tokio::spawn(async move {
            let done = step_down::step_down(&member).await;
            tell(member, &done);
            // Whoever ordered it may have left.
            let _ = outcome.send(done);
        });
        return;
    }
    let done = members.perform(action, &member).await;
    tell(member, &done);
    let _ = outcome.send(done);
}

fn no_screen(error: &std::io::Error) -> Failure {
    Failure::Problem(format!("the terminal cannot be used: {error}; try quorate up"))
}

/// Where a set with a data directory keeps the ports of its members: their addresses are part of its
/// configuration, so it must come back under the same ones.
const PORTS_FILE: &str = "ports";

/// The ports that the set in the data directory had.
fn remembered_ports(arguments: &UpArguments) -> Result<Option<Vec<u16>>, Failure> {
    let Some(directory) = &arguments.data else { return Ok(None) };
    let path = directory.join(PORTS_FILE);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let ports: Option<Vec<u16>> = text.split_whitespace().map(|port| port.parse().ok()).collect();
    let wanted = usize::from(arguments.members) + usize::from(arguments.arbiters);
    match ports {
        Some(ports) if ports.len() == wanted => Ok(Some(ports)),
        Some(ports) => Err(Failure::Misuse(format!(
            "{} holds a set of {} members, not of {wanted}; give the same --members and --arbiters, \
             or another --data",
            directory.display(),
            ports.len()
        ))),
        None => Err(Failure::Problem(format!(
            "{} is damaged; write the ports of the members into it, or give another --data",
            path.display()
        ))),
    }
}

fn remember_ports(arguments: &UpArguments, members: &Members) -> Result<(), Failure> {
    let Some(directory) = &arguments.data else { return Ok(()) };
    let ports: Vec<&str> =
        members.iter().filter_map(|member| member.host().rsplit(':').next()).collect();
    std::fs::write(directory.join(PORTS_FILE), ports.join(" ")).map_err(|error| {
        Failure::Problem(format!(
            "cannot write into {}: {error}; give another --data",
            directory.display()
        ))
    })
}

/// The ports of the members: the wanted ones, or the next that are free.
fn free_ports(arguments: &UpArguments, screen: &mut Screen) -> Result<Vec<u16>, Failure> {
    let wanted = usize::from(arguments.members) + usize::from(arguments.arbiters);
    let mut ports = Vec::with_capacity(wanted);
    let mut taken = Vec::new();
    let mut next = arguments.port;
    while ports.len() < wanted {
        if next == 0 {
            // Any port: the system chooses, and the member says which.
            ports.push(0);
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, next)) {
            Ok(_) => ports.push(next),
            Err(_) => taken.push(next),
        }
        next = next.checked_add(1).filter(|_| taken.len() < usize::from(PORTS_TRIED)).ok_or_else(
            || {
                Failure::Problem(format!(
                    "no {wanted} free ports from {} on; give another --port, 0 for any",
                    arguments.port
                ))
            },
        )?;
    }
    if let (Some(first), Some(last)) = (taken.first(), taken.last()) {
        let range = if first == last { format!("{first}") } else { format!("{first} to {last}") };
        screen.talk_unless_json(format_args!("port {range} is taken, so the set moves past it"));
    }
    Ok(ports)
}

/// Makes the members a set, unless they are one already, and waits for a majority write.
async fn assemble(arguments: &UpArguments, members: &Members) -> Result<Client, Failure> {
    let first = format!("mongodb://{}/?directConnection=true", members.first().host());
    let direct = Client::with_uri(&first).map_err(|error| connect::refused(&error))?;
    let initiate = rawdoc! { "replSetInitiate": configuration(arguments, members) };
    let outcome = direct.run_command("admin", &initiate).await;
    direct.close().await;
    if let Err(error) = outcome
        && error.code() != Some(ALREADY_INITIALIZED)
    {
        return Err(connect::failed(&error, &first));
    }
    let uri = uri(arguments, members);
    let client = Client::with_uri(&uri).map_err(|error| connect::refused(&error))?;
    let probe = rawdoc! {
        "insert": "ready",
        "documents": [{ "members": i32::from(arguments.members) }],
        "writeConcern": { "w": "majority" },
    };
    match client.run_command("quorate", &probe).await {
        Ok(_) => Ok(client),
        Err(error) => Err(connect::failed(&error, &uri)),
    }
}

/// `AlreadyInitialized`: the data directory holds a set.
const ALREADY_INITIALIZED: i32 = 23;

fn configuration(arguments: &UpArguments, members: &Members) -> RawDocumentBuf {
    let mut list = bson::raw::RawArrayBuf::new();
    for member in members.iter() {
        let mut document = rawdoc! { "_id": i32::from(member.id), "host": member.host() };
        if member.id >= arguments.members {
            document.append(bson::raw::cstr!("arbiterOnly"), true);
        }
        list.push(document);
    }
    rawdoc! { "_id": arguments.name.as_str(), "version": 1, "members": list }
}

fn uri(arguments: &UpArguments, members: &Members) -> String {
    let hosts: Vec<String> = members
        .iter()
        .filter(|member| member.id < arguments.members)
        .map(|member| member.host().to_owned())
        .collect();
    format!("mongodb://{}/?replicaSet={}", hosts.join(","), arguments.name)
}

fn too_slow() -> Failure {
    Failure::Problem(format!(
        "the set took no majority write within {} s; look at what its members say above, or try \
         --memory on an idle machine",
        READY_WITHIN.as_secs()
    ))
}

fn tell_exit(exit: &Exit, screen: &mut Screen) -> Result<(), Failure> {
    let Exit { id, host, how } = exit;
    screen.event("member_exited", json!({"id": id, "host": host, "how": how}))?;
    screen.talk_unless_json(format_args!("member {id} ({host}) is gone: {how}"));
    Ok(())
}

async fn end(mut members: Members, screen: &mut Screen) -> Result<Outcome, Failure> {
    members.stop().await;
    screen.event("stopped", json!({}))?;
    screen.talk_unless_json("every member has stopped");
    Ok(Outcome::Fine)
}
