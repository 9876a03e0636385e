//! Faults, one at a time, each undone before the next.

use std::fmt;
use std::time::Duration;

use bson::rawdoc;
use quorate_client::Client;
use quorate_protocol::ServerAddress;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

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

/// How long the answer to a step-down may take.
const STEP_DOWN_LIMIT: Duration = Duration::from_secs(5);

/// What may be done to the set.
pub(super) enum Allowed {
    /// It is not ours, and its owner did not say yes.
    Nothing,
    /// It is not ours.
    StepDowns,
    /// It is ours.
    Everything(Box<RunningSet>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    StepDown,
    Kill,
    Pause,
    Partition,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::StepDown => "step-down",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Partition => "partition",
        }
    }
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    step_downs: usize,
    kills: usize,
    pauses: usize,
    partitions: usize,
}

impl Told {
    pub(super) fn total(&self) -> usize {
        self.step_downs + self.kills + self.pauses + self.partitions
    }

    fn count(&mut self, kind: Kind) {
        match kind {
            Kind::StepDown => self.step_downs += 1,
            Kind::Kill => self.kills += 1,
            Kind::Pause => self.pauses += 1,
            Kind::Partition => self.partitions += 1,
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} faults ({} kills, {} pauses, {} partitions, {} step-downs)",
            self.total(),
            self.kills,
            self.pauses,
            self.partitions,
            self.step_downs
        )
    }
}

/// Breaks the set again and again.
pub(super) struct Faults {
    client: Client,
    allowed: Allowed,
    chance: Chance,
    told: Told,
    /// What has to be undone.
    broken: Option<(Kind, String)>,
}

impl Faults {
    pub(super) fn new(client: Client, allowed: Allowed, seed: u64) -> Self {
        Self { client, allowed, chance: Chance::new(seed), told: Told::default(), broken: None }
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
            self.commit(kind, &target).await;
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
            Allowed::Everything(_) => [Kind::StepDown, Kind::Kill, Kind::Pause, Kind::Partition]
                [self.chance.below(4) as usize],
        };
        // The primary more often than not: its loss is what clients notice.
        if kind == Kind::StepDown || self.chance.below(5) < 3 {
            return Some((kind, primary?));
        }
        let Allowed::Everything(set) = &self.allowed else { return None };
        let hosts: Vec<&str> = set.hosts().collect();
        let host = hosts.get(self.chance.below(hosts.len().max(1) as u64) as usize)?;
        Some((kind, (*host).to_owned()))
    }

    async fn commit(&mut self, kind: Kind, target: &str) {
        let signal = match kind {
            Kind::StepDown => {
                let command = rawdoc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 2 };
                let answered =
                    timeout(STEP_DOWN_LIMIT, self.client.run_command("admin", &command)).await;
                self.told.step_downs += usize::from(matches!(answered, Ok(Ok(_))));
                return;
            }
            Kind::Kill => Signal::KILL,
            Kind::Pause => Signal::STOP,
            Kind::Partition => Signal::USR1,
        };
        let sent = self.running().and_then(|set| Some(set.member(target)?.process.signal(signal)));
        if sent == Some(true) {
            self.told.count(kind);
            self.broken = Some((kind, target.to_owned()));
        }
    }

    /// The set as it runs now: a member that was started again has another process.
    fn running(&self) -> Option<RunningSet> {
        let Allowed::Everything(set) = &self.allowed else { return None };
        let known = RunningSet::all().ok()?;
        known.into_iter().find(|running| running.hosts().eq(set.hosts()))
    }

    /// Undoes the last fault and waits until every member is well.
    pub(super) async fn mend(&mut self) {
        let Some((kind, target)) = self.broken.take() else { return };
        if let Some(set) = self.running() {
            match kind {
                Kind::StepDown => {}
                // The keeper starts what is missing.
                Kind::Kill => {
                    set.keeper.signal(Signal::USR2);
                }
                Kind::Pause => {
                    set.member(&target).map(|member| member.process.signal(Signal::CONT));
                }
                Kind::Partition => {
                    set.member(&target).map(|member| member.process.signal(Signal::USR2));
                }
            }
        }
        let deadline = Instant::now() + WELL_LIMIT;
        while Instant::now() < deadline && !self.is_well(&target).await {
            sleep(Duration::from_millis(100)).await;
        }
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
