//! `cargo xtask fuzz-commands`: random commands on a whole member against a plain model, for minutes.
//!
//! The steps, the model and the judge are a test of the member, `tests/random_commands`; this builds it as people run
//! it and says how long, or which seed.

use crate::Failure;
use crate::process;

/// How long it goes on by default.
pub(crate) const DEFAULT_MINUTES: u64 = 10;

/// What to run.
pub(crate) enum Wanted {
    /// New seeds, for so many minutes.
    Minutes(u64),
    /// One seed again.
    Seed(u64),
}

/// Runs random commands until the time is over or a run fails.
pub(crate) fn run(wanted: &Wanted) -> Result<(), Failure> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--release", "-p", "quorate-node", "--test", "random_commands", "--"]);
    cargo.args(["--nocapture", "a_member_and_a_plain_model_agree"]);
    match wanted {
        Wanted::Minutes(minutes) => {
            cargo.env("QUORATE_COMMANDS_SECONDS", (minutes * 60).to_string())
        }
        Wanted::Seed(seed) => cargo.env("QUORATE_COMMANDS_SEED", seed.to_string()),
    };
    process::run_or(
        &mut cargo,
        "the member and the model disagree; the report above has the steps and the command that repeats them",
    )
}
