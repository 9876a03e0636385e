//! Python packages from the registry that pip is set up for, in virtual environments, and source
//! packages of which the hash is known.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::environment::{failed, provide};
use crate::{ProvisionError, debian};

const FORM: &str = "\"name==version\"";
const NO_PYTHON: &str = "install Python 3 with its module venv (Debian: python3-venv)";
const NO_PACKAGE: &str = "check the network and that the versions exist in the registry";

/// The interpreter of a virtual environment that has these packages, each as `name==version`, with
/// extras if need be: `pymongo[snappy]==4.19.0`. Fails if there is no Python, or pip cannot install
/// the packages.
pub fn python(packages: &[&str]) -> Result<PathBuf, ProvisionError> {
    for package in packages {
        let version = package.split_once("==").map(|(_, version)| version);
        if version.is_none_or(|version| version.is_empty() || version.contains('*')) {
            return Err(ProvisionError::NotPinned { package: (*package).to_owned(), form: FORM });
        }
    }
    let interpreter = |folder: &Path| folder.join("bin/python");
    // It links to the interpreter of the system, which may have gone.
    let is_whole = |folder: &Path| interpreter(folder).exists();
    let folder = provide("python", packages, is_whole, |folder| {
        // Debian's python3 comes without the means to make environments.
        if run(Command::new("python3").args(["-c", "import ensurepip"]), NO_PYTHON).is_err() {
            debian(&["python3", "python3-venv"])?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(folder), NO_PYTHON)?;
        if packages.is_empty() {
            return Ok(());
        }
        let mut install = pip(interpreter(folder), "install");
        run(install.args(packages), NO_PACKAGE).map(drop)
    })?;
    Ok(interpreter(&folder))
}

/// The folder with the unpacked source package `name-version`, if the archive has this SHA-256.
/// Fails if it cannot be downloaded, is another one, or cannot be unpacked.
pub fn source_package(name: &str, version: &str, sha256: &str) -> Result<PathBuf, ProvisionError> {
    let requirement = format!("{name}=={version} --hash=sha256:{sha256}");
    let unpacked = format!("{name}-{version}");
    // Of an environment of its own, so that there is a pip wherever there is a Python.
    let python = python(&[])?;
    let is_whole = |folder: &Path| folder.join(&unpacked).is_dir();
    let folder = provide("source", &[&requirement], is_whole, |folder| {
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, &requirement).map_err(failed("writing", &requirements))?;
        let mut download = pip(&python, "download");
        download.args(["--no-deps", "--no-binary=:all:", "--require-hashes", "--dest"]);
        download.arg(folder).arg("--requirement").arg(&requirements);
        run(&mut download, NO_PACKAGE)?;
        let archive = folder.join(format!("{unpacked}.tar.gz"));
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--no-same-owner", "--file"]).arg(&archive);
        run(unpack.arg("--directory").arg(folder), "install tar and gzip").map(drop)
    })?;
    Ok(folder.join(unpacked))
}

fn pip(python: impl AsRef<OsStr>, task: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", task, "--quiet", "--disable-pip-version-check", "--no-input"]);
    command
}
