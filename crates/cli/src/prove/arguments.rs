//! The command line of `quorate prove`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::kinds::Kind;
use super::workload::Workload;
use crate::screen::Result;

/// The arguments of `quorate prove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate prove --minutes 5 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
  quorate prove --workload append --workload bank --json 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
  quorate prove --fault disk --fault clock 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
  quorate prove --check quorate-prove-7/append.jsonl --workload append

Members of a set that your quorate up started are killed, paused, cut off and stepped down, their
clocks are moved by up to ten minutes, their priorities and votes are changed, and they are removed
and added again. With quorate up --data their disks are full for a while: the member finds no room
and can make no file (a fail point; nothing is written, so your disk stays as it is). Any other set
only steps down, with --yes. Ends in code 1 if a history shows what its guarantee does not explain.
The histories are JSON lines that Jepsen's Elle reads as well.")]
pub(crate) struct ProveArguments {
    /// The connection string of the set.
    #[arg(value_name = "URI", required_unless_present = "check")]
    pub(crate) uri: Option<String>,
    /// How long the clients work, such as 10 or 0.5.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = minutes)]
    pub(crate) minutes: f64,
    /// What the clients do; may be given several times. Everything unless given.
    #[arg(long, value_name = "W", value_enum)]
    pub(crate) workload: Vec<Workload>,
    /// What chance begins with: the same seed gives the same choices, though not the same timing.
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// How many clients each workload has, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) clients: u8,
    /// Keep the histories below this directory; quorate-prove-SEED unless given.
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
    /// Judge this history instead of making one; needs --workload.
    #[arg(long, value_name = "FILE", conflicts_with = "uri")]
    pub(crate) check: Option<PathBuf>,
    /// What is broken; may be given several times. Everything that the set allows unless given.
    #[arg(long, value_name = "F", value_enum, conflicts_with = "no_faults")]
    pub(crate) fault: Vec<Kind>,
    /// Break nothing.
    #[arg(long)]
    pub(crate) no_faults: bool,
    /// Have the primaries of a set that quorate up did not start step down.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl ProveArguments {
    /// How long the clients work.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// What is broken of a set of our own.
    pub(crate) fn faults(&self, on_disk: bool) -> Result<Vec<Kind>> {
        if self.fault.contains(&Kind::Disk) && !on_disk {
            return Err(misuse!(
                "this set is in memory and has no disk to fill; start it with quorate up --data, or leave out \
                 --fault disk"
            ));
        }
        let all = Kind::value_variants().iter().copied();
        Ok(match self.fault.is_empty() {
            true => all.filter(|kind| on_disk || *kind != Kind::Disk).collect(),
            false => self.fault.clone(),
        })
    }

    /// What the clients do.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        match self.workload.is_empty() {
            true => Workload::value_variants().to_vec(),
            false => self.workload.clone(),
        }
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    /// A day: histories are kept in memory.
    const MOST: f64 = 24.0 * 60.0;
    let minutes: Option<f64> = text.parse().ok().filter(|minutes| (0.0..=MOST).contains(minutes));
    minutes.ok_or_else(|| format!("give a number of minutes up to {MOST}, such as 5 or 0.5"))
}
