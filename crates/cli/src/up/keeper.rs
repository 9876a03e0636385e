//! Looking after a set that runs: reporting members that die, and breaking and mending on request.
//!
//! One task owns the processes. The screen and the page reach it through a [`Handle`], other
//! commands through SIGUSR2, which asks for everything to be mended. What changes is told to the
//! view and to the file by which others know the set.

use std::future::Future;
use std::sync::Arc;

use bson::rawdoc;
use quorate_client::Client;
use quorate_protocol::ServerAddress;
use rustix::process::Signal;
use serde_json::json;
use tokio::signal::unix::Signal as SignalStream;
use tokio::sync::{mpsc, oneshot};

use super::members::{Exit, Member, Members};
use super::running::RunningSet;
use crate::screen::{Result, Screen};
use crate::view::Input;
use crate::view::actions::{Action, ActionError, Actions, Performed};
use crate::view::collector::Live;
use crate::view::member::Process;
use crate::words::Foreign;

/// How many orders may wait; the giver of an order waits with it.
const MAX_ORDERS: usize = 16;

/// How long a member that steps down on request stays out of elections, in seconds. Short, because
/// the user wants to see it come back.
const STEP_DOWN_SECONDS: i32 = 10;

/// How long it waits for a secondary to catch up, in seconds.
const CATCH_UP_SECONDS: i32 = 5;

/// An action that was ordered, and where its result goes.
struct Order {
    action: Action,
    member: ServerAddress,
    answer: oneshot::Sender<Result<String, ActionError>>,
}

/// The way to the keeper. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    orders: mpsc::Sender<Order>,
    set: Arc<RunningSet>,
}

impl Handle {
    async fn order(&self, action: Action, member: &ServerAddress) -> Result<String, ActionError> {
        if !self.set.hosts().any(|host| host == member.as_str()) {
            return Err(ActionError::NotOurs(member.clone()));
        }
        if action == Action::StepDown {
            // It takes as long as a secondary needs; the keeper has more to do than to wait.
            return step_down(member, &self.set).await;
        }
        let (answer, result) = oneshot::channel();
        let order = Order { action, member: member.clone(), answer };
        self.orders.send(order).await.map_err(|_| ActionError::Ending)?;
        result.await.unwrap_or(Err(ActionError::Ending))
    }
}

impl Actions for Handle {
    fn perform<'a>(&'a self, action: Action, member: &'a ServerAddress) -> Performed<'a> {
        Box::pin(self.order(action, member))
    }
}

/// Asks a member to step down, and returns the outcome as text.
pub(crate) async fn step_down(
    member: &ServerAddress,
    set: &RunningSet,
) -> Result<String, ActionError> {
    let refused = |why: String| ActionError::Refused { member: member.clone(), why };
    let uri = format!("{}&serverSelectionTimeoutMS=2000", set.member_uri(member.as_str()));
    let client = Client::with_uri(&uri).map_err(|error| refused(error.to_string()))?;
    let command = rawdoc! {
        "replSetStepDown": STEP_DOWN_SECONDS,
        "secondaryCatchUpPeriodSecs": CATCH_UP_SECONDS,
    };
    let outcome = client.run_command("admin", &command).await;
    client.close().await;
    match outcome {
        Ok(_) => Ok(format!("{member} stepped down for {STEP_DOWN_SECONDS} s")),
        Err(error) => Err(refused(Foreign(error).to_string())),
    }
}

/// The owner of the processes of a set that is ready.
pub(super) struct Keeper {
    members: Members,
    set: RunningSet,
    live: Option<Live>,
    orders: mpsc::Receiver<Order>,
}

impl Keeper {
    /// Looks after these members from now on, and tells the view of them.
    pub(super) fn new(members: Members, set: RunningSet, live: Option<Live>) -> (Self, Handle) {
        let (sender, orders) = mpsc::channel(MAX_ORDERS);
        let shared = Arc::new(set.clone());
        let keeper = Self { members, set, live, orders };
        keeper.members.iter().for_each(|member| keeper.show(member));
        (keeper, Handle { orders: sender, set: shared })
    }

    /// Keeps the set until told to stop. Lines come from the other tasks.
    pub(super) async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mend: &mut SignalStream,
        lines: &mut mpsc::Receiver<String>,
        screen: &mut Screen,
    ) -> Result<()> {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                exit = self.members.next_exit() => self.on_exit(&exit, screen)?,
                Some(()) = mend.recv() => self.mend_all(screen).await?,
                Some(order) = self.orders.recv() => self.on_order(order, screen).await?,
                Some(line) = lines.recv() => screen.talk(line),
            }
        }
    }

    /// Stops every member and forgets the set.
    pub(super) async fn stop(mut self) {
        self.members.stop().await;
        self.set.forget();
    }

    fn on_exit(&self, exit: &Exit, screen: &mut Screen) -> Result<()> {
        let Exit { id, host, how } = exit;
        if let Some(member) = self.members.iter().find(|member| member.id == *id) {
            self.show(member);
        }
        tell!(screen, "member_exited", {"id": id, "host": host, "how": how},
            "member {id} ({host}) is gone: {how}")
    }

    /// Records every member that has exited, so that the next action sees it as gone.
    async fn note_exits(&mut self, screen: &mut Screen) -> Result<()> {
        self.members.settle().await;
        while let Some(exit) = self.members.exited() {
            self.on_exit(&exit, screen)?;
        }
        Ok(())
    }

    async fn on_order(&mut self, order: Order, screen: &mut Screen) -> Result<()> {
        let Order { action, member: address, answer } = order;
        // `quorate restart` has seen the process end and orders the next one at once.
        self.note_exits(screen).await?;
        let mut members = self.members.iter_mut();
        let Some(member) = members.find(|member| member.host() == address.as_str()) else {
            let _ = answer.send(Err(ActionError::NotOurs(address)));
            return Ok(());
        };
        let done = carry_out(action, &address, member).await;
        drop(members);
        if let Ok(text) = &done {
            if let Some(member) = self.members.iter().find(|m| m.host() == address.as_str()) {
                self.show(member);
            }
            let fields = json!({"action": action.name(), "host": address.as_str()});
            screen.tell("action", fields, text)?;
            self.save()?;
        }
        // Ignore send errors: the receiver may be gone, and the action is done.
        let _ = answer.send(done);
        Ok(())
    }

    /// Undoes the faults of all members.
    async fn mend_all(&mut self, screen: &mut Screen) -> Result<()> {
        // A drill has killed a process and asks for it: on a busy machine both are news at once.
        self.note_exits(screen).await?;
        for member in self.members.iter_mut() {
            match member.mend().await {
                Ok(false) => {}
                Ok(true) => {
                    let (id, host, pid) = (member.id, member.host(), member.pid());
                    tell!(screen, "member_mended", {"id": id, "host": host, "pid": pid},
                        "member {id} ({host}) is back, process {pid}")?;
                }
                // The set goes on without it; the user can try again.
                Err(failure) => screen.talk(failure),
            }
        }
        self.members.iter().for_each(|member| self.show(member));
        self.save()
    }

    fn save(&mut self) -> Result<()> {
        self.set.members = self.members.running();
        self.set.save()
    }

    fn show(&self, member: &Member) {
        if let (Some(live), Ok(address)) = (&self.live, member.host().parse()) {
            let process = member.condition().clone();
            live.tell(Input::Process { member: address, pid: member.pid(), process });
        }
    }
}

async fn carry_out(
    action: Action,
    address: &ServerAddress,
    member: &mut Member,
) -> Result<String, ActionError> {
    let senseless =
        |why: &str| ActionError::Senseless { member: address.clone(), why: why.to_owned() };
    let pid = member.pid();
    let running = *member.condition() == Process::Running;
    let done = match action {
        Action::StepDown => return Err(senseless("is asked over the network, not through here")),
        Action::Restore => match member.mend().await {
            Ok(true) => return Ok(format!("{address} is back, process {}", member.pid())),
            Ok(false) => return Err(senseless("needs no mending; break something first")),
            Err(failure) => {
                let (member, why) = (address.clone(), failure.to_string());
                return Err(ActionError::Refused { member, why });
            }
        },
        Action::Kill => member.kill().then(|| format!("{address} was killed, process {pid}")),
        _ if !running => return Err(senseless("is broken already; restore it first")),
        Action::Pause => member
            .afflict(Signal::STOP, Process::Paused)
            .then(|| format!("{address} is paused, process {pid}")),
        Action::Partition => member
            .afflict(Signal::USR1, Process::Partitioned)
            .then(|| format!("{address} is cut off from the other members")),
    };
    done.ok_or_else(|| senseless("does not run; restore it first"))
}
