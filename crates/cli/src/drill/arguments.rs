//! The options of `quorate drill`.

use std::time::Duration;

use clap::Args;

use super::fault::Kind;
use crate::quantities::span;

/// `quorate drill`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("fault").required(true).args(["kill", "step_down", "pause", "partition"])), after_help = "\
Examples:
  quorate drill --kill --max-gap 1s 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
  quorate drill --kill --times 30 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
  quorate drill --step-down --yes --json 'mongodb://a,b,c/?replicaSet=rs0' | jq .gap_ms

A writer waits for a majority each time; every acknowledged write is read back afterwards. Ends in
code 1 past the limit, after any loss, if writes do not go on, or if the broken member does not come
back. Only sets that your quorate up started are killed, paused and cut; any other steps down, after
a yes.")]
pub(crate) struct DrillArguments {
    /// The connection string of the set.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Kill the primary, as a crash would.
    #[arg(long)]
    pub(crate) kill: bool,
    /// Ask the primary to step down, as maintenance would.
    #[arg(long)]
    pub(crate) step_down: bool,
    /// Stop the primary's process where it is, as a host that hangs would.
    #[arg(long)]
    pub(crate) pause: bool,
    /// Cut the primary off from the other members.
    #[arg(long)]
    pub(crate) partition: bool,
    /// Fail if no write is acknowledged for longer than this, such as 5s or 200ms.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) max_gap: Option<Duration>,
    /// Break and mend the set so many times, and score the forecasts that were made before.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) times: u32,
    /// Do not ask before breaking a set that quorate up did not start.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl DrillArguments {
    /// What to break. The group makes sure that it is one thing.
    pub(crate) fn fault(&self) -> Kind {
        let faults =
            [(self.kill, Kind::Kill), (self.pause, Kind::Pause), (self.partition, Kind::Partition)];
        let chosen = faults.into_iter().find(|(given, _)| *given);
        chosen.map_or(Kind::StepDown, |(_, kind)| kind)
    }
}
