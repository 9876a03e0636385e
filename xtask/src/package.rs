//! `cargo xtask package`: a static program, and the archive, the `.deb` and the container image made of it.
//!
//! Linked against the static C library of the toolchain's system, the program runs on every Linux of its
//! machine. `quorate-packaging` puts the packages together, from the program alone.

use std::path::PathBuf;

use crate::Failure;
use crate::process;

/// Where packages go, below the target directory.
const DIRECTORY: &str = "packages";

/// Makes the packages of this program, or of one that is built for it.
pub(crate) fn run(program: Option<PathBuf>) -> Result<(), Failure> {
    let program = match program {
        Some(program) => program,
        None => build()?,
    };
    let directory = process::target_directory().join(DIRECTORY);
    let mut packaging = process::cargo();
    packaging.args(["run", "--quiet", "--release", "--package", "quorate-packaging", "--"]);
    process::run(packaging.arg(program).arg(directory))
}

/// Builds the program that is shipped: static, and optimised as a whole.
fn build() -> Result<PathBuf, Failure> {
    let told = process::read(process::program("rustc").arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| fail!("rustc does not name its host"))?;
    // Flags of a target alone: procedural macros, which cargo loads, cannot be static.
    let flags = format!("target.{host}.rustflags=[\"-Ctarget-feature=+crt-static\"]");
    let mut cargo = process::cargo();
    cargo.args(["build", "--profile", "dist", "--target", host, "--config", &flags]);
    process::run(&mut cargo)?;
    Ok(process::target_directory().join(host).join("dist/quorate"))
}
