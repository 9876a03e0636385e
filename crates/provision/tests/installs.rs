//! Installs small real packages and uses them, as the tests of other crates do.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::fs;
use std::process::Command;

use quorate_provision::{ProvisionError, debian, npm, python, source_package};

fn says(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_debian_package_is_there_afterwards_and_a_second_time() {
    debian(&["tree"]).unwrap();
    debian(&["tree"]).unwrap();
    assert!(says(Command::new("tree").arg("--version")).starts_with("tree v"));
}

#[test]
fn a_python_package_can_be_imported() {
    let interpreter = python(&["iniconfig==2.1.0"]).unwrap();
    let mut command = Command::new(interpreter);
    command.args(["-c", "from importlib.metadata import version as v; print(v('iniconfig'))"]);
    assert_eq!(says(&mut command), "2.1.0\n");
}

#[test]
fn a_node_package_can_be_required() {
    let modules = npm(&["ms@2.1.3"]).unwrap();
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules).args(["-p", "require('ms')('2 days')"]);
    assert_eq!(says(&mut command), "172800000\n");
}

#[test]
fn a_source_package_is_unpacked() {
    let sha256 = "3abbd2e30b36733fee78f9c7f7308f2d0050e88f0087fd25c2645f63c773e1c7";
    let folder = source_package("iniconfig", "2.1.0", sha256).unwrap();
    assert!(fs::read_to_string(folder.join("PKG-INFO")).unwrap().contains("Version: 2.1.0"));
}

#[test]
fn a_source_package_with_another_hash_is_refused() {
    let error = source_package("iniconfig", "2.1.0", &"0".repeat(64)).unwrap_err();
    assert!(error.to_string().contains("HASHES FROM THE REQUIREMENTS FILE"), "{error}");
}

#[test]
fn packages_without_an_exact_version_are_refused() {
    for package in ["pymongo", "pymongo>=4", "pymongo==4.*"] {
        assert!(matches!(python(&[package]), Err(ProvisionError::NotPinned { .. })), "{package}");
    }
    assert!(matches!(npm(&["mongodb@7"]), Err(ProvisionError::NotPinned { .. })));
}
