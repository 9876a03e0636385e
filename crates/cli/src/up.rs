//! `quorate up`: a real replica set on this machine, one process per member.
//!
//! Starts the members, makes them a set, and calls it ready only after a write that a majority
//! acknowledged went through our own client. Then it looks after the processes: a member that dies is
//! reported, not hidden, and the set ends with this command.

mod access;
mod assembly;
mod command;
pub(crate) mod control;
mod detach;
pub(crate) mod keeper;
mod members;
mod plan;
mod process;
pub(crate) mod running;
mod workload;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_client::{Client, ClientOptions};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::arguments::UpArguments;
use crate::connect;
use crate::dashboard;
use crate::screen::{FINE, Failure, Outcome, PROBLEM, Result, Screen};
use crate::signals;
use crate::view::Input;
use crate::view::actions::Actions;
use crate::view::collector::Live;
use crate::web::{self, Otherwise, Page};

use control::Control;
use keeper::Keeper;
use members::Members;
use plan::Plan;
use process::ProcessId;
use running::RunningSet;

/// How long the members may take to become a set that takes writes.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// What to do once the set is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Look after the members.
    Wait,
    /// Write to it and show what happens: on a screen, or in lines where there is no terminal.
    Show,
}

/// Runs a set until told to stop.
pub(crate) fn run(arguments: &UpArguments, then: Then, screen: &mut Screen) -> Result<Outcome> {
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

async fn up(arguments: &UpArguments, then: Then, screen: &mut Screen) -> Result<Outcome> {
    let started = Instant::now();
    let stop = signals::stop()?;
    let mend = signals::mend()?;
    let endings = signals::Endings::listen()?;
    tokio::pin!(stop);
    let plan = Plan::make(arguments, screen)?;
    let Some((members, begun)) = start(arguments, &plan, stop.as_mut(), screen).await? else {
        return tell_stopped(Outcome::Fine, screen);
    };
    let first = members.first().pid();
    let on_screen = then == Then::Show && dashboard::is_possible();
    let live = if on_screen || arguments.web.is_some() { Some(collect(&begun)?) } else { None };
    let uri = begun.set.uri.clone();
    let control_of = begun.set.clone();
    let (keeper, handle) = Keeper::new(members, begun.set, live.clone());
    let control = match Control::serve(&control_of, handle.clone()) {
        Ok(control) => control,
        Err(failure) => {
            keeper.stop().await;
            return Err(failure);
        }
    };
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
    let has_command = !arguments.command.is_empty();
    tell_ready(&uri, started.elapsed().as_millis() as u64, has_command, screen)?;
    let mut lines = workload::silence();
    if arguments.workload {
        lines = workload::start(&begun.client);
    }
    if !on_screen && arguments.keeper_log.is_none() && !has_command {
        screen.talk_unless_json("Ctrl-C stops the set");
        if arguments.workload {
            workload::invite(first, screen);
        }
    }
    let ending = match has_command {
        false => Ending::Told(stop),
        true => Ending::by_command(arguments, &uri, endings, screen)?,
    };
    let shown =
        live.as_ref().filter(|_| on_screen).map(|live| dashboard::show(live, Some(actions)));
    let kept = keep(keeper, mend, &mut lines, ending, shown, screen).await;
    drop((lines, page, control));
    begun.client.close().await;
    tell_stopped(kept?, screen)
}

/// Starts the processes and makes them a set; none if the command was told to stop meanwhile. Processes of
/// a start that comes to nothing are ended.
async fn start(
    arguments: &UpArguments,
    plan: &Plan,
    stop: Pin<&mut impl Future<Output = ()>>,
    screen: &mut Screen,
) -> Result<Option<(Members, Begun)>> {
    let mut members = Members::start(plan)?;
    let begun = tokio::select! {
        begun = timeout(READY_WITHIN, begin(arguments, plan, &mut members, screen)) => {
            begun.unwrap_or_else(|_| Err(too_slow())).map(Some)
        }
        () = stop => Ok(None),
    };
    match begun {
        Ok(Some(begun)) => Ok(Some((members, begun))),
        ended => {
            members.stop().await;
            ended.map(|_| None)
        }
    }
}

/// The event that ends a set.
enum Ending<Stop> {
    /// A signal.
    Told(Stop),
    /// A program that ends.
    Command(Box<command::Running>),
    /// A program that did not start; the exit code says why.
    Refused(u8),
}

impl<Stop: Future<Output = ()>> Ending<Stop> {
    /// Runs the command that was given; the set ends with it.
    fn by_command(
        arguments: &UpArguments,
        uri: &str,
        endings: signals::Endings,
        screen: &mut Screen,
    ) -> Result<Self> {
        match command::Running::start(&arguments.command, uri, endings) {
            Ok(running) => Ok(Self::Command(Box::new(running))),
            Err(refused) => {
                screen.talk(format_args!("{PROBLEM}error:{PROBLEM:#} {}", refused.text));
                screen.event("error", json!({"message": refused.text}))?;
                Ok(Self::Refused(refused.code))
            }
        }
    }

    async fn come(self) -> Result<Outcome> {
        match self {
            Self::Told(stop) => {
                stop.await;
                Ok(Outcome::Fine)
            }
            Self::Command(running) => running.finish().await,
            Self::Refused(code) => Ok(Outcome::Code(code)),
        }
    }
}

/// Makes the processes a set, and lets other commands know it as ours.
async fn begin(
    arguments: &UpArguments,
    plan: &Plan,
    members: &mut Members,
    screen: &mut Screen,
) -> Result<Begun> {
    members.listening().await?;
    for member in members.iter() {
        tell_member(member.id.into(), member.host(), member.pid().into(), screen)?;
    }
    plan.remember(members.ports())?;
    let (client, options) = assembly::assemble(plan, members).await?;
    let set = register(arguments, plan, members)?;
    Ok(Begun { client, options, set })
}

/// Looks after the set until its end comes, or until the screen is left; then stops every member.
async fn keep(
    mut keeper: Keeper,
    mut mend: tokio::signal::unix::Signal,
    lines: &mut mpsc::Receiver<String>,
    ending: Ending<impl Future<Output = ()>>,
    shown: Option<impl Future<Output = std::io::Result<()>>>,
    screen: &mut Screen,
) -> Result<Outcome> {
    let on_screen = shown.is_some();
    let mut left = Ok(Outcome::Fine);
    let stop = async {
        let ended = ending.come();
        match shown {
            None => left = ended.await,
            Some(shown) => tokio::select! {
                ended = ended => left = ended,
                shown = shown => left = shown.map(|()| Outcome::Fine).map_err(no_terminal),
            },
        }
    };
    // Lines of text would tear the screen, which shows the same.
    screen.hush(on_screen);
    let kept = keeper.run(stop, &mut mend, lines, screen).await;
    screen.hush(false);
    keeper.stop().await;
    kept?;
    left
}

fn no_terminal(error: std::io::Error) -> Failure {
    problem!("the terminal cannot be used: {error}; try quorate up")
}

/// Begins to collect what the screen and the page show.
fn collect(begun: &Begun) -> Result<Live> {
    Ok(Live::start(begun.client.clone(), &begun.options, begun.set.uri.clone())?)
}

/// The page, if there is to be one.
async fn page(
    arguments: &UpArguments,
    then: Then,
    live: Option<&Live>,
    client: &Client,
    actions: &Arc<dyn Actions>,
) -> Result<Option<Page>> {
    let (Some(address), Some(live)) = (arguments.web, live) else { return Ok(None) };
    let otherwise = match then {
        Then::Wait => Otherwise::Refuse,
        Then::Show => Otherwise::TakeAny,
    };
    let actions = Some(Arc::clone(actions));
    web::serve(address, otherwise, live.clone(), client.clone(), actions).await.map(Some)
}

/// Says where the page is. Lines vanish behind a screen; its log does not.
fn tell_page(page: &Page, shown: Option<&Live>, screen: &mut Screen) -> Result<()> {
    if let Some(live) = shown {
        live.tell(Input::Note(format!("see this on a page: {}", page.url())));
    }
    page.tell(screen)
}

/// Lets other commands know the set as ours.
fn register(arguments: &UpArguments, plan: &Plan, members: &Members) -> Result<RunningSet> {
    let keeper = ProcessId::of(std::process::id())
        .ok_or_else(|| problem!("this process cannot see itself; mount /proc"))?;
    let set = RunningSet {
        name: plan.name.clone(),
        uri: assembly::uri(plan, members),
        data: detach::absolute(&arguments.data),
        keeper,
        log: arguments.keeper_log.clone(),
        members: members.running(),
    };
    set.save()?;
    Ok(set)
}

fn tell_member(id: u64, host: &str, pid: u64, screen: &mut Screen) -> Result<()> {
    tell!(screen, "member", {"id": id, "host": host, "pid": pid},
        "member {id} is {host}, process {pid}")
}

fn tell_taken(ports: &str, screen: &mut Screen) -> Result<()> {
    tell!(screen, "port_taken", {"ports": ports}, "port {ports} is taken, so the set moves past it")
}

fn tell_ready(uri: &str, elapsed_ms: u64, has_command: bool, screen: &mut Screen) -> Result<()> {
    match has_command {
        // Stdout is the command's.
        true => screen.talk_unless_json(uri),
        false => screen.line(uri)?,
    }
    screen.flush()?;
    tell!(screen, "ready", {"uri": uri, "elapsed_ms": elapsed_ms, "test_commands": true},
        "{FINE}ready{FINE:#} after {elapsed_ms} ms: a write was acknowledged by a majority")?;
    screen.talk_unless_json(
        "the members take test commands (fail points), as under serve --enable-test-commands",
    );
    Ok(())
}

fn too_slow() -> Failure {
    problem!(
        "the set took no majority write within {} s; look at what its members say above, or try \
         --memory on an idle machine",
        READY_WITHIN.as_secs()
    )
}

fn tell_stopped(outcome: Outcome, screen: &mut Screen) -> Result<Outcome> {
    tell!(screen, "stopped", {}, "every member has stopped")?;
    Ok(outcome)
}
