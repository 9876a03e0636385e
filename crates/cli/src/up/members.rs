//! The processes of a set: started, watched, broken on request, mended and stopped.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::plan::Plan;
use super::process::ProcessId;
use super::running::RunningMember;
use crate::remedy::CHECK_LIMITS;
use crate::screen::Result;
use crate::view::member::Process;

/// How long a member that is started again may take until it listens.
const LISTEN_WITHIN: Duration = Duration::from_secs(20);

/// How long a member may take to stop by itself before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How a member is started, the first time and again.
#[derive(Clone, Debug)]
struct Recipe {
    set_name: String,
    /// Its directory; in memory otherwise.
    data: Option<PathBuf>,
    port: u16,
    /// Its key file, its certificates and the size of its oplog.
    access: Vec<OsString>,
}

/// One member and its process.
pub(super) struct Member {
    pub(super) id: u8,
    recipe: Recipe,
    host: String,
    process: Child,
    identity: ProcessId,
    /// Closed by the system if we are killed: no member outlives its set.
    leash: Option<ChildStdin>,
    /// Its output; the first event has the address on which it listens.
    says: Lines<BufReader<ChildStdout>>,
    condition: Process,
}

/// A member that ended by itself.
pub(super) struct Exit {
    pub(super) id: u8,
    pub(super) host: String,
    pub(super) how: String,
}

/// Every member, by id.
pub(super) struct Members(Vec<Member>);

impl Member {
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn pid(&self) -> u32 {
        self.identity.pid()
    }

    pub(super) fn condition(&self) -> &Process {
        &self.condition
    }

    fn is_gone(&self) -> bool {
        matches!(self.condition, Process::Gone(_))
    }

    fn start(id: u8, recipe: Recipe) -> Result<Self> {
        let failed =
            |error: io::Error| problem!("member {id} cannot be started: {error}; {CHECK_LIMITS}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--json", "--until-stdin-closes", "--breakable"]);
        command.arg("--enable-test-commands");
        command.args(["--replset", &recipe.set_name, "--port", &recipe.port.to_string()]);
        match &recipe.data {
            Some(directory) => command.arg("--data").arg(directory),
            None => command.arg("--memory"),
        };
        command.args(&recipe.access);
        // A group of its own: Ctrl-C comes to us alone, and we stop the members in order.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        // Waiting for the process would close it.
        let leash = process.stdin.take();
        let stdout = process.stdout.take();
        let says = stdout
            .map(|stdout| BufReader::new(stdout).lines())
            .ok_or_else(|| problem!("member {id} says nothing; this is a defect, report it"))?;
        let identity = process
            .id()
            .and_then(ProcessId::of)
            .ok_or_else(|| problem!("member {id} did not start; its reason is above"))?;
        let condition = Process::Running;
        Ok(Self { id, recipe, host: String::new(), process, identity, leash, says, condition })
    }

    async fn listening(&mut self) -> Result<()> {
        while let Ok(Some(line)) = self.says.next_line().await {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(host) = event["host"].as_str() {
                self.host = host.to_owned();
                // Under another address it would be no member of its set any more.
                let port = host.rsplit(':').next().and_then(|port| port.parse().ok());
                self.recipe.port = port.unwrap_or(self.recipe.port);
                return Ok(());
            }
        }
        // The member has written its reason to stderr, which it shares with this process.
        Err(problem!("member {} did not start; its reason is above", self.id))
    }

    /// Sends a signal that changes its condition. False if the process is gone.
    pub(super) fn afflict(&mut self, signal: Signal, condition: Process) -> bool {
        let sent = !self.is_gone() && self.identity.signal(signal);
        if sent {
            self.condition = condition;
        }
        sent
    }

    /// Kills it. Its end is reported like any other.
    pub(super) fn kill(&mut self) -> bool {
        !self.is_gone() && self.identity.signal(Signal::KILL)
    }

    /// Undoes the fault of this member. False if it had none.
    pub(super) async fn mend(&mut self) -> Result<bool> {
        match self.condition {
            Process::Running => Ok(false),
            Process::Paused => Ok(self.afflict(Signal::CONT, Process::Running)),
            Process::Partitioned => Ok(self.afflict(Signal::USR2, Process::Running)),
            Process::Gone(_) => {
                let mut again = Self::start(self.id, self.recipe.clone())?;
                let listening = timeout(LISTEN_WITHIN, again.listening()).await;
                listening.unwrap_or_else(|_| {
                    Err(problem!(
                        "member {} does not listen after {} s; look at what it says",
                        self.id,
                        LISTEN_WITHIN.as_secs()
                    ))
                })?;
                *self = again;
                Ok(true)
            }
        }
    }

    fn terminate(&mut self) {
        // A process that is gone already needs no signal; one that is paused hears none; one that
        // is cut off could not hand over.
        for signal in [Signal::TERM, Signal::CONT, Signal::USR2] {
            self.identity.signal(signal);
        }
        self.leash = None;
    }
}

impl Members {
    /// Starts a process for each port.
    pub(super) fn start(plan: &Plan) -> Result<Self> {
        let started = (0_u8..).zip(&plan.ports).map(|(id, port)| {
            let data = plan.data.as_ref().map(|data| data.join(format!("member{id}")));
            let mut access = plan.access.serve_arguments();
            if let Some(bytes) = plan.oplog_size {
                access.extend(["--oplog-size".into(), format!("{}MB", bytes >> 20).into()]);
            }
            let recipe = Recipe { set_name: plan.name.clone(), data, port: *port, access };
            Member::start(id, recipe)
        });
        started.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.0.iter_mut()
    }

    /// The member that initiates the set.
    pub(super) fn first(&self) -> &Member {
        &self.0[0]
    }

    pub(super) fn ports(&self) -> Vec<u16> {
        self.0.iter().map(|member| member.recipe.port).collect()
    }

    /// The processes as they are now.
    pub(super) fn running(&self) -> Vec<RunningMember> {
        let running = self.0.iter().map(|member| RunningMember {
            id: member.id,
            host: member.host.clone(),
            process: member.identity.clone(),
        });
        running.collect()
    }

    /// Returns when every member takes connections.
    pub(super) async fn listening(&mut self) -> Result<()> {
        for member in &mut self.0 {
            member.listening().await?;
        }
        Ok(())
    }

    /// The next member that ends by itself. Dropping the future loses nothing.
    pub(super) async fn next_exit(&mut self) -> Exit {
        loop {
            if let Some(exit) = self.exited() {
                return exit;
            }
            wait_for_any(&mut self.0).await;
        }
    }

    /// Waits for the members that are about to end. The first thread of a killed process ends before its others do,
    /// and every other program takes the process for gone then; its parent gets SIGCHLD after the last one.
    pub(super) async fn settle(&mut self) {
        let ending = |member: &&mut Member| !member.is_gone() && !member.identity.is_alive();
        for member in self.0.iter_mut().filter(ending) {
            // One that takes longer is reported when it has ended.
            let _ = timeout(STOP_WITHIN, member.process.wait()).await;
        }
    }

    /// A member that has ended by itself and was not reported yet.
    pub(super) fn exited(&mut self) -> Option<Exit> {
        self.0.iter_mut().filter(|member| !member.is_gone()).find_map(|member| {
            let status = member.process.try_wait().ok()??;
            let (id, host, how) = (member.id, member.host.clone(), told(status));
            member.condition = Process::Gone(how.clone());
            Some(Exit { id, host, how })
        })
    }

    /// Asks every member to stop, and sees to it. Members in memory have nothing to save, and a primary among them would
    /// wait in vain for another one to take over: they are ended at once.
    pub(super) async fn stop(&mut self) {
        for member in &mut self.0 {
            match member.recipe.data {
                Some(_) => member.terminate(),
                // One that is gone already needs no signal.
                None => _ = member.identity.signal(Signal::KILL),
            }
        }
        for member in &mut self.0 {
            if timeout(STOP_WITHIN, member.process.wait()).await.is_err() {
                let _ = member.process.kill().await;
            }
        }
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
