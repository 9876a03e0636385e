//! Faults, one at a time, each undone before the next.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, rawdoc};
use quorate_client::Client;
use quorate_protocol::ServerAddress;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::kinds::{Kind, Told};
use super::reconfiguring::{Change, changed, restored};
use super::workload::Chance;
use crate::screen::Screen;
use crate::up::running::RunningSet;

/// The shortest and the longest time between the end of a fault and the next.
const CALM: [u64; 2] = [500, 2_500];

/// The shortest and the longest time that a fault lasts, in milliseconds. Some outlast the election timeout of a
/// default configuration.
const LASTS: [u64; 2] = [200, 4_000];

/// Every so many faults one lasts longer than the election timeout of a default configuration.
const LONG_ONE_IN: u64 = 8;
const LONG: Duration = Duration::from_secs(12);

/// How long all members may take to be well again.
const WELL_LIMIT: Duration = Duration::from_secs(60);

/// How long the answer to a command that breaks or mends may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);

/// How far a calendar is moved, at most, in milliseconds and in either direction.
const LONGEST_MOVE: u64 = 600_000;

/// The faults that the set allows.
pub(super) enum Allowed {
    /// Another program started the set, and the user did not allow step-downs.
    Nothing,
    /// Another program started the set: its primary may be told to step down.
    StepDowns,
    /// `quorate up` started the set: faults of these kinds.
    Everything(Box<RunningSet>, Vec<Kind>),
}

/// A fault that has to be undone.
#[derive(Clone, Debug)]
enum Broken {
    Killed,
    Paused,
    Cut,
    Full,
    /// The configuration was this.
    Reconfigured(Document),
}

/// Breaks the set again and again.
pub(super) struct Faults {
    client: Client,
    allowed: Allowed,
    chance: Chance,
    told: Told,
    broken: Option<(Broken, String)>,
    /// Members whose calendar may be another one than the machine's.
    moved: BTreeSet<String>,
}

impl Faults {
    pub(super) fn new(client: Client, allowed: Allowed, seed: u64) -> Self {
        let (chance, told) = (Chance::new(seed), Told::default());
        Self { client, allowed, chance, told, broken: None, moved: BTreeSet::new() }
    }

    pub(super) fn told(&self) -> Told {
        self.told
    }

    /// Breaks and mends until it is dropped.
    pub(super) async fn run(&mut self, screen: &mut Screen) {
        if matches!(self.allowed, Allowed::Nothing) {
            return std::future::pending().await;
        }
        loop {
            sleep(self.span(CALM)).await;
            let Some((kind, target)) = self.choose() else { continue };
            // Ignore errors: a screen that cannot be written to does not end the proof.
            let _ = screen.event("fault", json!({ "fault": kind.name(), "target": target }));
            screen.talk_unless_json(format_args!("{} of {target}", kind.name()));
            self.commit(kind, &target, screen).await;
            let lasts = if self.chance.below(LONG_ONE_IN) == 0 && kind != Kind::StepDown {
                LONG
            } else {
                self.span(LASTS)
            };
            sleep(lasts).await;
            self.mend().await;
        }
    }

    fn span(&mut self, [least, most]: [u64; 2]) -> Duration {
        Duration::from_millis(least + self.chance.below(most - least))
    }

    fn choose(&mut self) -> Option<(Kind, String)> {
        let primary = self.client.topology().primary().map(|primary| primary.address().to_string());
        let kind = match &self.allowed {
            Allowed::Nothing => return None,
            Allowed::StepDowns => Kind::StepDown,
            Allowed::Everything(_, kinds) => {
                *kinds.get(self.chance.below(kinds.len() as u64) as usize)?
            }
        };
        let leader_first = self.chance.below(5) < 3;
        // A primary is not changed by a configuration that it installs itself.
        let reconfigures = kind == Kind::Reconfigure;
        // The primary more often than not: its loss is what clients notice.
        if kind == Kind::StepDown || (leader_first && !reconfigures) {
            return Some((kind, primary?));
        }
        let Allowed::Everything(set, _) = &self.allowed else { return None };
        let hosts: Vec<&str> =
            set.hosts().filter(|host| !reconfigures || primary.as_deref() != Some(host)).collect();
        let host = hosts.get(self.chance.below(hosts.len().max(1) as u64) as usize)?;
        Some((kind, (*host).to_owned()))
    }

    async fn commit(&mut self, kind: Kind, target: &str, screen: &mut Screen) {
        let done = match kind {
            Kind::StepDown => {
                let command = rawdoc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 2 };
                self.ask(&command).await.is_some()
            }
            Kind::Kill => self.signal(target, Signal::KILL, Broken::Killed),
            Kind::Pause => self.signal(target, Signal::STOP, Broken::Paused),
            Kind::Partition => self.signal(target, Signal::USR1, Broken::Cut),
            Kind::Disk => {
                // The answer may be late: it is to be undone anyway.
                self.broken = Some((Broken::Full, target.to_owned()));
                let fill = rawdoc! { "configureFailPoint": "fillDisk", "mode": "alwaysOn" };
                self.tell_member(target, &fill).await
            }
            Kind::Clock => {
                let millis = self.chance.below(2 * LONGEST_MOVE) as i64 - LONGEST_MOVE as i64;
                screen.talk_unless_json(format_args!("  by {millis} ms"));
                self.moved.insert(target.to_owned());
                let jump = rawdoc! {
                    "configureFailPoint": "moveClock", "mode": "alwaysOn", "data": { "millis": millis },
                };
                self.tell_member(target, &jump).await
            }
            Kind::Reconfigure => self.reconfigure(target, screen).await,
        };
        if done {
            self.told.count(kind);
        }
    }

    fn signal(&mut self, target: &str, signal: Signal, broken: Broken) -> bool {
        let sent = self.running().and_then(|set| Some(set.member(target)?.process.signal(signal)));
        if sent == Some(true) {
            self.broken = Some((broken, target.to_owned()));
        }
        sent == Some(true)
    }

    /// Runs a command on the primary; none if it failed.
    async fn ask(&self, command: &RawDocumentBuf) -> Option<RawDocumentBuf> {
        timeout(COMMAND_LIMIT, self.client.run_command("admin", command)).await.ok()?.ok()
    }

    /// Runs a command on one member. False if it failed.
    async fn tell_member(&self, host: &str, command: &RawDocumentBuf) -> bool {
        let Some(set) = self.running() else { return false };
        let uri = format!("{}&serverSelectionTimeoutMS=2000", set.member_uri(host));
        let Ok(client) = Client::with_uri(&uri) else { return false };
        let answered = timeout(COMMAND_LIMIT, client.run_command("admin", command)).await;
        client.close().await;
        matches!(answered, Ok(Ok(_)))
    }

    async fn config(&self) -> Option<Document> {
        let reply = self.ask(&rawdoc! { "replSetGetConfig": 1 }).await?;
        Document::try_from(reply.get_document("config").ok()?).ok()
    }

    async fn install(&self, config: Document) -> bool {
        let Ok(config) = RawDocumentBuf::try_from(config) else { return false };
        self.ask(&rawdoc! { "replSetReconfig": config }).await.is_some()
    }

    async fn reconfigure(&mut self, target: &str, screen: &mut Screen) -> bool {
        let change = Change::ALL[self.chance.below(Change::ALL.len() as u64) as usize];
        let Some(original) = self.config().await else { return false };
        let Some(config) = changed(&original, target, change) else { return false };
        screen.talk_unless_json(format_args!("  {target} {}", change.name()));
        self.broken = Some((Broken::Reconfigured(original), target.to_owned()));
        self.install(config).await
    }

    /// The set as it runs now: a member that was started again has another process.
    fn running(&self) -> Option<RunningSet> {
        let Allowed::Everything(set, _) = &self.allowed else { return None };
        let known = RunningSet::all().ok()?;
        known.into_iter().find(|running| running.hosts().eq(set.hosts()))
    }

    /// Undoes the last fault and waits until every member is well. Calendars stay where they are.
    pub(super) async fn mend(&mut self) {
        let Some((broken, target)) = self.broken.clone() else { return };
        let deadline = Instant::now() + WELL_LIMIT;
        while Instant::now() < deadline && !self.undo(&broken, &target).await {
            sleep(Duration::from_millis(100)).await;
        }
        self.broken = None;
        while Instant::now() < deadline && !self.is_well(&target).await {
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Undoes everything, calendars too.
    pub(super) async fn end(&mut self) {
        self.mend().await;
        let back = rawdoc! { "configureFailPoint": "moveClock", "mode": "off" };
        let deadline = Instant::now() + WELL_LIMIT;
        while let Some(host) = self.moved.pop_first() {
            while Instant::now() < deadline && !self.tell_member(&host, &back).await {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Undoes a fault. False if it must be tried again.
    async fn undo(&self, broken: &Broken, target: &str) -> bool {
        let Some(set) = self.running() else { return true };
        match broken {
            // The keeper restarts missing members.
            Broken::Killed => {
                set.keeper.signal(Signal::USR2);
            }
            Broken::Paused => {
                set.member(target).map(|member| member.process.signal(Signal::CONT));
            }
            Broken::Cut => {
                set.member(target).map(|member| member.process.signal(Signal::USR2));
            }
            Broken::Full => {
                let empty = rawdoc! { "configureFailPoint": "fillDisk", "mode": "off" };
                return self.tell_member(target, &empty).await;
            }
            Broken::Reconfigured(original) => {
                let Some(config) = self.config().await else { return false };
                // Looked at again once it is installed: the answer may be that of an old primary.
                if let Some(back) = restored(&config, original) {
                    self.install(back).await;
                    return false;
                }
            }
        }
        true
    }

    /// Whether the member that was broken leads or follows again.
    async fn is_well(&self, target: &str) -> bool {
        let Ok(address) = target.parse::<ServerAddress>() else { return true };
        let topology = self.client.topology();
        topology.primary().is_some()
            && topology.servers().iter().any(|server| {
                *server.address() == address && server.server_type().is_data_bearing()
            })
    }
}
