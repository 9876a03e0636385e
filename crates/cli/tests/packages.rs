//! The test fixtures for Rust, Python and Node.js, installed from what this repository builds into empty environments.
//!
//! Each package carries the program or is told where it is. Nothing is downloaded when a package itself is installed or
//! run; only the drivers and pytest, which the samples use, come from their registries.

#![allow(clippy::unwrap_used, reason = "a panic here is the report")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quorate_provision::{npm, python};
use quorate_testing::{ReplicaSet, SetError};

const PYMONGO: &str = "pymongo==4.19.0";
const PYTEST: &str = "pytest==8.4.2";
const NODE_DRIVER: &str = "mongodb@7.8.0";

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packages")
}

/// A copy of a package that carries the program.
fn with_program(package: &str, place: &str, into: &Path) -> PathBuf {
    let folder = into.join(package);
    let copied = Command::new("cp").arg("-r").arg(packages().join(package)).arg(&folder).status();
    assert!(copied.unwrap().success());
    let bin = folder.join(place);
    fs::create_dir_all(&bin).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_quorate"), bin.join("quorate")).unwrap();
    folder
}

fn succeeded(command: &mut Command) -> Output {
    // A set that is found on the PATH or by its variable would hide a package that carries none.
    let output = command.env_remove("QUORATE_BIN").output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    output
}

#[test]
fn the_rust_crate_gives_a_set_that_can_be_broken() {
    let set = ReplicaSet::builder().program(env!("CARGO_BIN_EXE_quorate")).start().unwrap();
    assert_eq!(set.members().len(), 3);
    let insert = "{insert: \"c\", documents: [{_id: 1}], writeConcern: {w: \"majority\"}}";
    assert_eq!(set.run(insert).unwrap()["n"], 1);
    let first = set.primary().unwrap().clone();
    first.kill().unwrap();
    assert_eq!(set.run(&insert.replace("_id: 1", "_id: 2")).unwrap()["n"], 1);
    assert_ne!(set.primary().unwrap().host(), first.host());
    let error = set.run("{noSuchCommand: 1}").unwrap_err();
    assert!(error.to_string().contains("noSuchCommand"), "{error}");
}

#[test]
fn the_rust_crate_says_where_to_get_the_program() {
    let error = ReplicaSet::builder().program("no-such-program-anywhere").start().unwrap_err();
    assert!(matches!(error, SetError::Program { .. }), "{error}");
    assert!(error.to_string().contains("QUORATE_BIN"), "{error}");
}

#[test]
fn the_wheel_gives_fixtures_to_pytest() {
    let directory = tempfile::tempdir().unwrap();
    let source = with_program("python", "quorate_testing/bin", directory.path());
    let builder = python(&[]).unwrap();
    let wheels = directory.path().join("wheels");
    let mut build = Command::new(&builder);
    build.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--wheel-dir"]);
    succeeded(build.arg(&wheels).arg(&source));
    let wheel = fs::read_dir(&wheels).unwrap().next().unwrap().unwrap().path();
    assert!(
        !wheel.to_string_lossy().contains("none-any"),
        "it carries a program: {}",
        wheel.display()
    );
    let site = directory.path().join("site");
    let interpreter = python(&[PYMONGO, PYTEST]).unwrap();
    let mut install = Command::new(&interpreter);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]);
    succeeded(install.arg(&site).arg(&wheel));
    let sample = directory.path().join("test_sample.py");
    fs::write(&sample, PYTHON_SAMPLE).unwrap();
    let mut pytest = Command::new(&interpreter);
    pytest
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(&sample)
        .env("PYTHONPATH", &site);
    let output = succeeded(pytest.current_dir(directory.path()));
    assert!(String::from_utf8_lossy(&output.stdout).contains("3 passed"), "{output:?}");
}

const PYTHON_SAMPLE: &str = r#"
import pymongo
import quorate_testing


def test_the_shared_set_takes_a_majority_write(quorate_set):
    things = pymongo.MongoClient(quorate_set.uri).shop.things
    things.insert_one({"_id": 1})
    assert things.find_one() == {"_id": 1}
    assert len(quorate_set.members) == 3


def test_a_write_survives_the_primary(fresh_quorate_set):
    orders = pymongo.MongoClient(fresh_quorate_set.uri).shop.orders
    orders.insert_one({"_id": 1})
    fresh_quorate_set.primary().kill()
    orders.insert_one({"_id": 2})
    assert orders.count_documents({}) == 2


def test_a_set_of_one_in_one_line():
    with quorate_testing.ReplicaSet(members=1, name="alone") as rs:
        assert pymongo.MongoClient(rs.uri).admin.command("hello")["setName"] == "alone"
"#;

#[test]
fn the_npm_package_reads_like_the_one_that_people_know() {
    let directory = tempfile::tempdir().unwrap();
    let source = with_program("npm", "bin", directory.path());
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", "--pack-destination"]).arg(directory.path());
    succeeded(pack.current_dir(&source));
    let tarball = directory.path().join("quorate-testing-0.1.0.tgz");
    let project = directory.path().join("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("package.json"), "{\"private\": true}\n").unwrap();
    let mut install = Command::new("npm");
    install.args([
        "install",
        "--silent",
        "--offline",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
    ]);
    succeeded(install.arg(&tarball).current_dir(&project));
    let driver = npm(&[NODE_DRIVER]).unwrap();
    fs::write(project.join("sample.js"), NODE_SAMPLE).unwrap();
    let mut node = Command::new("node");
    let output = succeeded(node.arg("sample.js").env("NODE_PATH", driver).current_dir(&project));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "2 documents");
}

const NODE_SAMPLE: &str = r"
const { MongoMemoryReplSet } = require('quorate-testing');
const { MongoClient } = require('mongodb');

(async () => {
  const set = await MongoMemoryReplSet.create({ replSet: { count: 3, name: 'test' } });
  const client = await MongoClient.connect(set.getUri());
  const things = client.db('shop').collection('things');
  await things.insertOne({ _id: 1 });
  await set.stepDown();
  await things.insertOne({ _id: 2 });
  console.log(`${await things.countDocuments()} documents`);
  await client.close();
  await set.stop();
})();
";
