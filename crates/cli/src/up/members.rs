//! The processes of a set.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::arguments::UpArguments;
use crate::screen::Failure;

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
    gone: bool,
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
        self.pid
    }

    fn start(arguments: &UpArguments, id: u8, port: u16) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::Problem(format!(
                "member {id} cannot be started: {error}; check the limits (ulimit -a)"
            ))
        };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args([
            "serve",
            "--json",
            "--replset",
            &arguments.name,
            "--port",
            &port.to_string(),
        ]);
        match &arguments.data {
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
        Ok(Self { id, pid, host: String::new(), process, says, gone: false })
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

    fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // A process that is gone already needs no signal.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Members {
    /// Starts a process for each port.
    pub(super) fn start(arguments: &UpArguments, ports: &[u16]) -> Result<Self, Failure> {
        let started = (0..).zip(ports).map(|(id, port)| Member::start(arguments, id, *port));
        started.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    /// The one that the set begins with.
    pub(super) fn first(&self) -> &Member {
        &self.0[0]
    }

    /// Returns when every member takes connections.
    pub(super) async fn listening(&mut self) -> Result<(), Failure> {
        for member in &mut self.0 {
            member.listening().await?;
        }
        Ok(())
    }

    /// The next member that ends by itself.
    pub(super) async fn next_exit(&mut self) -> Exit {
        loop {
            for member in self.0.iter_mut().filter(|member| !member.gone) {
                if let Ok(Some(status)) = member.process.try_wait() {
                    member.gone = true;
                    let (id, host) = (member.id, member.host.clone());
                    return Exit { id, host, how: told(status) };
                }
            }
            wait_for_any(&mut self.0).await;
        }
    }

    /// Asks every member to stop, and sees to it.
    pub(super) async fn stop(&mut self) {
        self.0.iter().filter(|member| !member.gone).for_each(Member::terminate);
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
        .filter(|member| !member.gone)
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
