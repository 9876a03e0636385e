//! Debian packages, installed into the system.

use std::process::Command;

use crate::command::run;
use crate::environment::lock;
use crate::{LOCK_PATIENCE, ProvisionError};

const NEXT_STEP: &str =
    "check the network and the package sources, or install the packages by hand";
const NO_ROOT: &str = "run the tests as root, or install sudo, or install the packages by hand";

/// Installs these packages, as root or through sudo, without recommended ones. Does nothing if they
/// are there. Fails if this is not a Debian, or apt cannot install them.
pub fn debian(packages: &[&str]) -> Result<(), ProvisionError> {
    if are_installed(packages)? {
        return Ok(());
    }
    let user = run(Command::new("id").arg("-u"), "install coreutils")?;
    let user = user.trim();
    // The system is one for all target directories, so the lock is not in one of them. It bears the
    // user's number, because no user may open the lock file of another in the temporary directory.
    let _lock = lock(&std::env::temp_dir().join(format!("quorate-provision-debian-{user}.lock")))?;
    if are_installed(packages)? {
        return Ok(());
    }
    let install = || {
        let mut command = apt_get(user);
        command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
        run(&mut command, NEXT_STEP)
    };
    // On a fresh machine there are no lists, later they may be too old. Only then they are fetched,
    // since that takes longer than most installations.
    if install().is_err() {
        run(apt_get(user).arg("update"), if user == "0" { NEXT_STEP } else { NO_ROOT })?;
        install()?;
    }
    Ok(())
}

fn are_installed(packages: &[&str]) -> Result<bool, ProvisionError> {
    let mut command = Command::new("dpkg-query");
    command.args(["--show", "--showformat", "${db:Status-Status}\\n"]).args(packages);
    match run(&mut command, "this is not a Debian: install the packages by hand") {
        Ok(said) => Ok(said.lines().filter(|line| *line == "installed").count() >= packages.len()),
        // It knows no such package, which is the way it says "not installed".
        Err(ProvisionError::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn apt_get(user: &str) -> Command {
    let mut command = if user == "0" {
        Command::new("env")
    } else {
        let mut command = Command::new("sudo");
        // No user is there to type a password.
        command.args(["--non-interactive", "env"]);
        command
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "--option"]);
    // Another apt may be at work.
    command.arg(format!("DPkg::Lock::Timeout={}", LOCK_PATIENCE.as_secs()));
    command
}
