//! The processes of a set: started, looked after, broken on purpose, mended and stopped.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use quorate_protocol::ServerAddress;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::arguments::UpArguments;
use crate::screen::Failure;
use crate::view::actions::{Action, ActionError};
use crate::view::member::Process;

/// How long a member may take to listen again.
const START_WITHIN: Duration = Duration::from_secs(10);

/// How long a member may take to stop by itself before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// One member and its process.
pub(super) struct Member {
    pub(super) id: u8,
    pid: u32,
    host: String,
    process: Child,
    /// What it says; its first event tells where it listens.
    says: Lines<BufReader<ChildStdout>>,
    condition: Process,
}

/// What all members are started with.
#[derive(Clone)]
struct Plan {
    name: String,
    data: Option<PathBuf>,
}

/// A member that ended by itself.
pub(super) struct Exit {
    pub(super) id: u8,
    pub(super) host: String,
    pub(super) how: String,
}

/// Every member, by id.
pub(super) struct Members {
    all: Vec<Member>,
    plan: Plan,
}

impl Member {
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Where it is reached.
    pub(super) fn address(&self) -> Option<ServerAddress> {
        self.host.parse().ok()
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// What became of the process.
    pub(super) fn condition(&self) -> &Process {
        &self.condition
    }

    fn is_gone(&self) -> bool {
        matches!(self.condition, Process::Gone(_))
    }

    fn start(plan: &Plan, id: u8, port: u16) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::Problem(format!(
                "member {id} cannot be started: {error}; check the limits (ulimit -a)"
            ))
        };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args([
            "serve",
            "--json",
            "--breakable",
            "--until-stdin-closes",
            "--replset",
            &plan.name,
            "--port",
            &port.to_string(),
        ]);
        match &plan.data {
            Some(directory) => {
                command.arg("--data").arg(directory.join(format!("member{id}")));
            }
            None => {
                command.arg("--memory");
            }
        }
        // A group of its own: Ctrl-C comes to us alone, and we stop the members in order.
        command.process_group(0).kill_on_drop(true);
        // Closed by the system if we are killed: no member outlives its set.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let stdout = process.stdout.take();
        let pid = process.id().unwrap_or_default();
        let says = stdout.map(|stdout| BufReader::new(stdout).lines()).ok_or_else(|| {
            Failure::Problem(format!("member {id} says nothing; this is a defect, report it"))
        })?;
        Ok(Self { id, pid, host: String::new(), process, says, condition: Process::Running })
    }

    async fn listening(&mut self) -> Result<(), Failure> {
        while let Ok(Some(line)) = self.says.next_line().await {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(host) = event["host"].as_str() {
                self.host = host.to_owned();
                return Ok(());
            }
        }
        // It has told why on stderr, which is ours too.
        Err(Failure::Problem(format!("member {} did not start; its reason is above", self.id)))
    }

    fn signal(&self, signal: Signal) {
        // The number of a process that was waited for may belong to somebody else by now.
        if self.is_gone() {
            return;
        }
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // A process that is gone already needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks it to end, in whatever condition it is.
    fn terminate(&self) {
        for signal in [Signal::CONT, Signal::USR2, Signal::TERM] {
            self.signal(signal);
        }
    }

    /// Breaks it or mends it; a member that is gone is started by [`Members::perform`].
    fn perform(&mut self, action: Action) -> Result<&'static str, String> {
        let (signals, condition, done): (&[Signal], _, _) = match (action, &self.condition) {
            (Action::Restore, Process::Running) => {
                return Err("runs; there is nothing to restore".to_owned());
            }
            (Action::Restore, _) => {
                (&[Signal::CONT, Signal::USR2], Process::Running, "restored: it takes part again")
            }
            (_, Process::Gone(how)) => return Err(format!("is gone: {how}; restore it first")),
            (Action::Kill, _) => (&[Signal::KILL], self.condition.clone(), "killed with SIGKILL"),
            (_, Process::Paused) => return Err("is paused; restore it first".to_owned()),
            (Action::Pause, _) => {
                (&[Signal::STOP], Process::Paused, "paused with SIGSTOP: it hangs, sockets open")
            }
            (Action::Partition, Process::Partitioned) => {
                return Err("is cut off already; restore it first".to_owned());
            }
            (Action::Partition, _) => {
                (&[Signal::USR1], Process::Partitioned, "cut off: it hears no other member")
            }
            (Action::StepDown, _) => return Err("is asked over the network".to_owned()),
        };
        signals.iter().for_each(|signal| self.signal(*signal));
        self.condition = condition;
        Ok(done)
    }
}

impl Members {
    /// Starts a process for each port.
    pub(super) fn start(arguments: &UpArguments, ports: &[u16]) -> Result<Self, Failure> {
        let plan = Plan { name: arguments.name.clone(), data: arguments.data.clone() };
        let started = (0..).zip(ports).map(|(id, port)| Member::start(&plan, id, *port));
        let all = started.collect::<Result<_, _>>()?;
        Ok(Self { all, plan })
    }

    /// The member of this address.
    pub(super) fn of(&self, address: &ServerAddress) -> Option<&Member> {
        self.all.iter().find(|member| member.address().as_ref() == Some(address))
    }

    /// Breaks or mends a member, and tells what was done.
    pub(super) async fn perform(
        &mut self,
        action: Action,
        address: &ServerAddress,
    ) -> Result<String, ActionError> {
        let member = self
            .all
            .iter_mut()
            .find(|member| member.address().as_ref() == Some(address))
            .ok_or_else(|| ActionError::NotOurs(address.clone()))?;
        let senseless = |why| ActionError::Senseless { member: address.clone(), why };
        if action == Action::Restore && member.is_gone() {
            let again = restart(&self.plan, member.id, address).await.map_err(senseless)?;
            let kept = if self.plan.data.is_some() { "with its data" } else { "empty" };
            let pid = again.pid;
            *member = again;
            return Ok(format!("started again {kept}, process {pid}"));
        }
        member.perform(action).map(str::to_owned).map_err(senseless)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.all.iter()
    }

    /// The one that the set begins with.
    pub(super) fn first(&self) -> &Member {
        &self.all[0]
    }

    /// Returns when every member takes connections.
    pub(super) async fn listening(&mut self) -> Result<(), Failure> {
        for member in &mut self.all {
            member.listening().await?;
        }
        Ok(())
    }

    /// The next member that ends by itself.
    pub(super) async fn next_exit(&mut self) -> Exit {
        loop {
            for member in self.all.iter_mut().filter(|member| !member.is_gone()) {
                if let Ok(Some(status)) = member.process.try_wait() {
                    let how = told(status);
                    member.condition = Process::Gone(how.clone());
                    return Exit { id: member.id, host: member.host.clone(), how };
                }
            }
            wait_for_any(&mut self.all).await;
        }
    }

    /// Asks every member to stop, and sees to it.
    pub(super) async fn stop(&mut self) {
        self.all.iter().for_each(Member::terminate);
        for member in &mut self.all {
            if timeout(STOP_WITHIN, member.process.wait()).await.is_err() {
                let _ = member.process.kill().await;
            }
        }
    }
}

/// Starts a member again where it was.
async fn restart(plan: &Plan, id: u8, address: &ServerAddress) -> Result<Member, String> {
    let port = address.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
    let mut member = Member::start(plan, id, port).map_err(|failure| failure.to_string())?;
    match timeout(START_WITHIN, member.listening()).await {
        Ok(Ok(())) => Ok(member),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err("does not listen again; try once more".to_owned()),
    }
}

/// Returns when one of the processes has ended.
async fn wait_for_any(members: &mut [Member]) {
    let mut waits: Vec<_> = members
        .iter_mut()
        .filter(|member| !member.is_gone())
        .map(|member| Box::pin(member.process.wait()))
        .collect();
    std::future::poll_fn(|context| {
        let ended = waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready());
        if ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

fn told(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with code {code}"),
        (None, Some(signal)) => format!("it was killed by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}
