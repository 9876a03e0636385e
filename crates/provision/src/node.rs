//! npm packages from the registry that npm is set up for, with the Node.js of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ProvisionError;
use crate::command::run;
use crate::environment::{failed, provide};

const FORM: &str = "\"name@1.2.3\"";
const NEXT_STEP: &str =
    "install Node.js 20 or later with npm, and check the network and that the versions exist";

/// A `node_modules` directory that has these packages, each as `name@version`.
///
/// Scripts of packages are not run: they build native parts with compilers or fetch them from
/// places other than the registry, and no test here needs one. Fails if there is no npm, or it
/// cannot install the packages.
pub fn npm(packages: &[&str]) -> Result<PathBuf, ProvisionError> {
    for package in packages {
        if !is_pinned(package) {
            return Err(ProvisionError::NotPinned { package: (*package).to_owned(), form: FORM });
        }
    }
    let modules = |folder: &Path| folder.join("node_modules");
    let folder = provide(
        "npm",
        packages,
        |folder| modules(folder).is_dir(),
        |folder| {
            let manifest = folder.join("package.json");
            // Without it npm would look for one in the folders above.
            fs::write(&manifest, "{\"private\": true}\n").map_err(failed("writing", &manifest))?;
            let mut command = Command::new("npm");
            command
                .current_dir(folder)
                .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"]);
            command.args(["--no-progress", "--save-exact"]).args(packages);
            run(&mut command, NEXT_STEP).map(drop)
        },
    )?;
    Ok(modules(&folder))
}

/// Whether a version is given that stands for itself, unlike `^1.2` or `latest`.
fn is_pinned(package: &str) -> bool {
    // The name of a scoped package begins with the sign too.
    let version = package.rsplit_once('@').filter(|(name, _)| !name.is_empty());
    version.is_some_and(|(_, version)| {
        version.starts_with(|first: char| first.is_ascii_digit())
            && version.split(['-', '+']).next().is_some_and(|core| core.split('.').count() == 3)
            && !version.contains(['x', 'X', '*', ' '])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_versions_are_pinned() {
        for package in ["mongodb@7.1.0", "@napi-rs/snappy@7.2.2", "a@1.0.0-rc.1"] {
            assert!(is_pinned(package), "{package}");
        }
        for package in ["mongodb", "@napi-rs/snappy", "a@^1.0.0", "a@latest", "a@7", "a@1.2.x"] {
            assert!(!is_pinned(package), "{package}");
        }
    }
}
