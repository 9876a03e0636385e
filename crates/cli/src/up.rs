//! `quorate up`: a real replica set on this machine, one process per member.
//!
//! Starts the members, makes them a set, and calls it ready only after a write that a majority
//! acknowledged went through our own client. Then it looks after the processes: a member that dies is
//! reported, not hidden, and the set ends with this command.

mod detach;
pub(crate) mod keeper;
mod members;
mod process;
pub(crate) mod running;
mod workload;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::rawdoc;
use quorate_client::{Client, ClientOptions};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::arguments::UpArguments;
use crate::connect;
use crate::dashboard;
use crate::screen::{FINE, Failure, Outcome, Screen};
use crate::signals;
use crate::view::Input;
use crate::view::actions::Actions;
use crate::view::collector::Live;
use crate::web::{self, Otherwise, Page};

use keeper::Keeper;
use members::Members;
use process::ProcessId;
use running::RunningSet;

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
    if arguments.detach {
        return detach::start(arguments, screen);
    }
    connect::runtime()?.block_on(up(arguments, then, screen))
}

/// A set that took a majority write.
struct Begun {
    client: Client,
    options: ClientOptions,
    set: RunningSet,
}

async fn up(arguments: &UpArguments, then: Then, screen: &mut Screen) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let no_signals = |error: std::io::Error| {
        Failure::Problem(format!(
            "cannot listen for signals: {error}; check the limits (ulimit -a)"
        ))
    };
    let stop = signals::stop().map_err(no_signals)?;
    let mend = signals::mend().map_err(no_signals)?;
    tokio::pin!(stop);
    let ports = match remembered_ports(arguments)? {
        Some(ports) => ports,
        None => free_ports(arguments, screen)?,
    };
    let mut members = Members::start(arguments, &ports)?;
    let ready = tokio::select! {
        ready = timeout(READY_WITHIN, begin(arguments, &mut members, screen)) => {
            ready.unwrap_or_else(|_| Err(too_slow()))
        }
        () = &mut stop => {
            members.stop().await;
            return tell_stopped(screen);
        }
    };
    let begun = match ready {
        Ok(begun) => begun,
        Err(failure) => {
            members.stop().await;
            return Err(failure);
        }
    };
    let first = members.first().pid();
    let on_screen = then == Then::Show && dashboard::is_possible();
    let live = match on_screen || arguments.web.is_some() {
        true => Some(collect(&begun)?),
        false => None,
    };
    let uri = begun.set.uri.clone();
    let (keeper, handle) = Keeper::new(members, begun.set, live.clone());
    let actions: Arc<dyn Actions> = Arc::new(handle);
    let page = match page(arguments, then, live.as_ref(), &begun.client, &actions).await {
        Ok(page) => page,
        Err(failure) => {
            keeper.stop().await;
            return Err(failure);
        }
    };
    if let Some(page) = &page {
        tell_page(page, live.as_ref().filter(|_| on_screen), screen)?;
    }
    tell_ready(&uri, started.elapsed().as_millis() as u64, screen)?;
    let mut lines = workload::silence();
    if arguments.workload {
        lines = workload::start(&begun.client);
    }
    if !on_screen && arguments.keeper_log.is_none() {
        screen.talk_unless_json("Ctrl-C stops the set");
        if arguments.workload {
            workload::invite(first, screen);
        }
    }
    let shown =
        live.as_ref().filter(|_| on_screen).map(|live| dashboard::show(live, Some(actions)));
    let kept = keep(keeper, mend, &mut lines, stop, shown, screen).await;
    drop((lines, page));
    begun.client.close().await;
    kept?;
    tell_stopped(screen)
}

/// Makes the processes a set, and lets other commands know it as ours.
async fn begin(
    arguments: &UpArguments,
    members: &mut Members,
    screen: &mut Screen,
) -> Result<Begun, Failure> {
    members.listening().await?;
    for member in members.iter() {
        tell_member(member.id.into(), member.host(), member.pid().into(), screen)?;
    }
    remember_ports(arguments, members)?;
    let (client, options) = assemble(arguments, members).await?;
    let set = register(arguments, members)?;
    Ok(Begun { client, options, set })
}

/// Looks after the set until told to stop, or until the screen is left; then stops every member.
async fn keep(
    mut keeper: Keeper,
    mut mend: tokio::signal::unix::Signal,
    lines: &mut mpsc::Receiver<String>,
    stop: impl Future<Output = ()>,
    shown: Option<impl Future<Output = std::io::Result<()>>>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let on_screen = shown.is_some();
    let mut left = Ok(());
    let stop = async {
        match shown {
            None => stop.await,
            Some(shown) => tokio::select! {
                () = stop => {}
                shown = shown => left = shown,
            },
        }
    };
    // What a screen shows must not be told in lines as well: they would tear it.
    screen.hush(on_screen);
    let kept = keeper.run(stop, &mut mend, lines, screen).await;
    screen.hush(false);
    keeper.stop().await;
    kept?;
    left.map_err(|error| {
        Failure::Problem(format!("the terminal cannot be used: {error}; try quorate up"))
    })
}

/// Begins to collect what the screen and the page show.
fn collect(begun: &Begun) -> Result<Live, Failure> {
    let live = Live::start(begun.client.clone(), &begun.options, begun.set.uri.clone());
    live.map_err(|error| connect::refused(&error))
}

/// The page, if there is to be one.
async fn page(
    arguments: &UpArguments,
    then: Then,
    live: Option<&Live>,
    client: &Client,
    actions: &Arc<dyn Actions>,
) -> Result<Option<Page>, Failure> {
    let (Some(address), Some(live)) = (arguments.web, live) else { return Ok(None) };
    let otherwise = match then {
        Then::Wait => Otherwise::Refuse,
        Then::Show => Otherwise::TakeAny,
    };
    let actions = Some(Arc::clone(actions));
    web::serve(address, otherwise, live.clone(), client.clone(), actions).await.map(Some)
}

/// Says where the page is. Lines vanish behind a screen; its log does not.
fn tell_page(page: &Page, shown: Option<&Live>, screen: &mut Screen) -> Result<(), Failure> {
    if let Some(live) = shown {
        live.tell(Input::Note(format!("see this on a page: {}", page.url())));
    }
    page.tell(screen)
}

/// Lets other commands know the set as ours.
fn register(arguments: &UpArguments, members: &Members) -> Result<RunningSet, Failure> {
    let keeper = ProcessId::of(std::process::id()).ok_or_else(|| {
        Failure::Problem("this process cannot see itself; mount /proc".to_owned())
    })?;
    let set = RunningSet {
        name: arguments.name.clone(),
        uri: uri(arguments, members),
        data: detach::absolute(&arguments.data),
        keeper,
        log: arguments.keeper_log.clone(),
        members: members.running(),
    };
    set.save()?;
    Ok(set)
}

fn tell_member(id: u64, host: &str, pid: u64, screen: &mut Screen) -> Result<(), Failure> {
    screen.event("member", json!({"id": id, "host": host, "pid": pid}))?;
    screen.talk_unless_json(format_args!("member {id} is {host}, process {pid}"));
    Ok(())
}

fn tell_taken(ports: &str, screen: &mut Screen) -> Result<(), Failure> {
    screen.event("port_taken", json!({"ports": ports}))?;
    screen.talk_unless_json(format_args!("port {ports} is taken, so the set moves past it"));
    Ok(())
}

fn tell_ready(uri: &str, elapsed_ms: u64, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(uri)?;
    screen.flush()?;
    let event = json!({"uri": uri, "elapsed_ms": elapsed_ms, "test_commands": true});
    screen.event("ready", event)?;
    screen.talk_unless_json(format_args!(
        "{FINE}ready{FINE:#} after {elapsed_ms} ms: a write was acknowledged by a majority"
    ));
    screen.talk_unless_json(
        "the members take test commands (fail points), as under serve --enable-test-commands",
    );
    Ok(())
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
        tell_taken(&range, screen)?;
    }
    Ok(ports)
}

/// Makes the members a set, unless they are one already, and waits for a majority write.
async fn assemble(
    arguments: &UpArguments,
    members: &Members,
) -> Result<(Client, ClientOptions), Failure> {
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
    let options = ClientOptions::from_connection_string(&connect::parse(&uri)?);
    let client = Client::with_options(options.clone()).map_err(|error| connect::refused(&error))?;
    let probe = rawdoc! {
        "insert": "ready",
        "documents": [{ "members": i32::from(arguments.members) }],
        "writeConcern": { "w": "majority" },
    };
    match client.run_command("quorate", &probe).await {
        Ok(_) => Ok((client, options)),
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

fn tell_stopped(screen: &mut Screen) -> Result<Outcome, Failure> {
    screen.event("stopped", json!({}))?;
    screen.talk_unless_json("every member has stopped");
    Ok(Outcome::Fine)
}
