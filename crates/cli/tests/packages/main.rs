//! What people install, made from what this repository builds and installed into empty environments: the program as an
//! archive, a `.deb` and a container image, and the test fixtures for Rust, Python and Node.js.
//!
//! Each package carries the program or is told where it is. Nothing is downloaded when a package itself is installed or
//! run; only the drivers and pytest, which the samples use, come from their registries.

#![allow(clippy::unwrap_used, reason = "a panic here is the report")]

mod running;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use bson::doc;
use quorate_packaging::{Effort, Program, make_all};
use quorate_provision::{debian, npm, python};
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

/// Says to a process that it is the one in which the sample runs.
const SAMPLE: &str = "QUORATE_TEST_SAMPLE";

/// The program is named by `QUORATE_BIN`, as in a project that has it somewhere. The sample runs in a process of its
/// own, with which the shared set ends.
#[tokio::test]
async fn the_rust_crate_gives_a_shared_set_with_transactions_and_change_streams() {
    if std::env::var_os(SAMPLE).is_some() {
        return shared_sample().await;
    }
    let this = "the_rust_crate_gives_a_shared_set_with_transactions_and_change_streams";
    let mut sample = Command::new(std::env::current_exe().unwrap());
    sample.args(["--exact", this, "--nocapture"]);
    let sample = sample.env(SAMPLE, "").env("QUORATE_BIN", env!("CARGO_BIN_EXE_quorate"));
    let output = sample.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

/// What a project's test does.
async fn shared_sample() {
    let set = ReplicaSet::shared().unwrap();
    assert!(std::ptr::eq(set, ReplicaSet::shared().unwrap()), "one set");
    let client = quorate_client::Client::connect(set.uri()).await.unwrap();
    let orders = client.collection("shop", "orders");
    orders.insert_one(doc! { "_id": 0 }).await.unwrap();
    let mut changes = orders.watch(Vec::<bson::RawDocumentBuf>::new()).await.unwrap();
    let mut session = client.start_session();
    let both = session.with_transaction(async |session| {
        orders.insert_one(doc! { "_id": 1 }).session(session).await?;
        orders.insert_one(doc! { "_id": 2 }).session(session).await
    });
    both.await.unwrap();
    session.start_transaction().unwrap();
    orders.insert_one(doc! { "_id": 3 }).session(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    for id in [1, 2] {
        let event = changes.next().await.unwrap().unwrap();
        assert_eq!(event.get_document("documentKey").unwrap().get_i32("_id").unwrap(), id);
    }
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 3);
    client.close().await;
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
    assert!(String::from_utf8_lossy(&output.stdout).contains("5 passed"), "{output:?}");
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


def test_a_transaction_is_whole_or_nothing(quorate_set):
    client = pymongo.MongoClient(quorate_set.uri)
    accounts = client.bank.accounts
    with client.start_session() as session:
        with session.start_transaction():
            accounts.insert_many([{"_id": "ann"}, {"_id": "bob"}], session=session)
        session.start_transaction()
        accounts.delete_many({}, session=session)
        session.abort_transaction()
    assert accounts.count_documents({}) == 2


def test_a_change_stream_survives_the_primary(fresh_quorate_set):
    orders = pymongo.MongoClient(fresh_quorate_set.uri).shop.orders
    with orders.watch() as changes:
        orders.insert_one({"_id": 1})
        assert changes.next()["documentKey"] == {"_id": 1}
        fresh_quorate_set.primary().kill()
        orders.insert_one({"_id": 2})
        assert changes.next()["documentKey"] == {"_id": 2}


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
    install
        .args(["install", "--silent", "--offline", "--no-audit", "--no-fund", "--ignore-scripts"]);
    succeeded(install.arg(&tarball).current_dir(&project));
    let driver = npm(&[NODE_DRIVER]).unwrap();
    fs::write(project.join("sample.js"), NODE_SAMPLE).unwrap();
    let mut node = Command::new("node");
    let output = succeeded(node.arg("sample.js").env("NODE_PATH", driver).current_dir(&project));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "4 documents, changes 1,2,3,4");
}

const NODE_SAMPLE: &str = r"
const { MongoMemoryReplSet } = require('quorate-testing');
const { MongoClient } = require('mongodb');

(async () => {
  const set = await MongoMemoryReplSet.create({ replSet: { count: 3, name: 'test', storageEngine: 'wiredTiger' } });
  await set.waitUntilRunning();
  const client = await MongoClient.connect(set.getUri());
  const things = client.db('shop').collection('things');
  const changes = things.watch();
  // This opens the stream: it shows what is written from here on.
  await changes.tryNext();
  await things.insertOne({ _id: 1 });
  await set.stepDown();
  await things.insertOne({ _id: 2 });
  await client.withSession((session) =>
    session.withTransaction(async () => {
      await things.insertOne({ _id: 3 }, { session });
      await things.insertOne({ _id: 4 }, { session });
    }),
  );
  const ids = [];
  while (ids.length < 4) ids.push((await changes.next()).documentKey._id);
  console.log(`${await things.countDocuments()} documents, changes ${ids}`);
  await changes.close();
  await client.close();
  await set.stop({ doCleanup: true });
  await set.cleanup();
})();
";

/// The packages of this build's program, without its symbols: archive, `.deb`, image.
fn make_packages(directory: &Path) -> [PathBuf; 3] {
    let program = directory.join("quorate");
    succeeded(Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_quorate")));
    let program = Program::examine(&program).unwrap();
    let made = make_all(&program, &directory.join("packages"), Effort::Least).unwrap();
    made.try_into().unwrap()
}

/// A server that must tell that it is ready, and end well when it is asked to.
fn starts(command: &mut Command) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server: Child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if !line.contains("\"ready\"") {
        server.kill().unwrap();
        panic!("{command:?} {line} {:?}", server.wait_with_output());
    }
    let pid = server.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(server.wait().unwrap().code(), Some(0), "{command:?}");
}

fn tool(name: &str, package: &str) -> Command {
    if Command::new(name).arg("--version").output().is_err() {
        debian(&[package]).unwrap();
    }
    Command::new(name)
}

/// Each one is installed into an empty directory and started from there.
#[test]
fn the_archive_the_deb_and_the_image_install_and_start() {
    let directory = tempfile::tempdir().unwrap();
    let [archive, deb, image] = make_packages(directory.path());
    archive_starts(&archive, &directory.path().join("archive"));
    deb_starts(&deb, &directory.path().join("deb"));
    image_starts(&image, &directory.path().join("image"));
    let again = directory.path().join("again");
    fs::create_dir(&again).unwrap();
    for (one, other) in [&archive, &deb, &image].into_iter().zip(make_packages(&again)) {
        assert!(fs::read(one).unwrap() == fs::read(&other).unwrap(), "{} differs", other.display());
    }
}

fn archive_starts(archive: &Path, root: &Path) {
    fs::create_dir(root).unwrap();
    succeeded(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(root));
    let folder = fs::read_dir(root).unwrap().next().unwrap().unwrap().path();
    for file in ["LICENSE", "usr/share/man/man1/quorate-up.1.gz", "usr/share/man/man1/quorate.1.gz"]
    {
        assert!(folder.join(file).exists(), "{file}");
    }
    let program = folder.join("usr/bin/quorate");
    starts(Command::new(program).args(["serve", "--memory", "--port", "0", "--json"]));
}

fn deb_starts(deb: &Path, root: &Path) {
    install_deb(deb, root);
    let users = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(users.contains("quorate:x:") && users.contains(":/var/lib/quorate:"), "{users}");
    // The unit is read by systemd itself, which also judges how much it could do to the machine.
    let mut verify = tool("systemd-analyze", "systemd");
    let told = succeeded(verify.arg("verify").arg(unit_of_program(root)));
    assert!(told.stderr.is_empty(), "{}", String::from_utf8_lossy(&told.stderr));
    let mut security = tool("systemd-analyze", "systemd");
    security.args(["security", "--offline=true", "--threshold=20", "--no-pager"]);
    succeeded(security.arg(unit_of_program(root)));
    // What the unit starts, with the paths of this root.
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/quorate.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<String> = start
        .split(' ')
        .map(|word| match word.strip_prefix('/') {
            Some(path) => root.join(path).display().to_string(),
            None => word.to_owned(),
        })
        .collect();
    let data = root.join("var/lib/quorate");
    let mut server = Command::new(&words[0]);
    server.args(&words[1..]).args(["--port", "0", "--json", "--data"]).arg(&data);
    starts(&mut server);
    assert!(data.join("FORMAT").exists());
    dpkg(root, &["--purge", "quorate"]);
    assert!(!root.join("usr/bin/quorate").exists() && !root.join("etc/quorate").exists());
    assert!(data.join("FORMAT").exists(), "data is never removed");
}

/// Installs the package into an empty root.
fn install_deb(deb: &Path, root: &Path) {
    for folder in ["etc", "var/lib/dpkg/updates", "var/lib/dpkg/info"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
        fs::write(root.join(file), "").unwrap();
    }
    tool("systemd-sysusers", "systemd");
    dpkg(root, &["--install", deb.to_str().unwrap()]);
}

fn dpkg(root: &Path, arguments: &[&str]) {
    let mut dpkg = tool("dpkg", "dpkg");
    // Libraries of the system are not in an empty root; the scripts learn where it is.
    dpkg.arg("--root").arg(root).args(["--force-script-chrootless", "--force-depends"]);
    succeeded(dpkg.args(arguments));
}

/// The unit with the path of the program as it is in this root, since systemd looks for it.
fn unit_of_program(root: &Path) -> PathBuf {
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/quorate.service")).unwrap();
    let path = root.join("quorate.service");
    let unit = unit.replace("/usr/bin/quorate", root.join("usr/bin/quorate").to_str().unwrap());
    fs::write(&path, unit.replace("Documentation=man:quorate-serve(1)\n", "")).unwrap();
    path
}

fn image_starts(image: &Path, root: &Path) {
    let layout = root.join("layout");
    fs::create_dir_all(&layout).unwrap();
    succeeded(Command::new("tar").arg("-xf").arg(image).arg("-C").arg(&layout));
    let read = |file: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    };
    let blob = |descriptor: &serde_json::Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = layout.join("blobs/sha256").join(digest);
        let told = succeeded(Command::new("sha256sum").arg(&path)).stdout;
        assert!(told.starts_with(digest.as_bytes()), "{}", path.display());
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        path
    };
    let manifest = read(&blob(&read(&layout.join("index.json"))["manifests"][0]));
    let config = read(&blob(&manifest["config"]));
    let rootfs = root.join("rootfs");
    fs::create_dir(&rootfs).unwrap();
    let layer = blob(&manifest["layers"][0]);
    succeeded(Command::new("tar").arg("-xzf").arg(&layer).arg("-C").arg(&rootfs));
    assert_eq!(config["config"]["User"], "65532:65532");
    // What a container runtime does, without the isolation: its root, its program, its words.
    let entry = config["config"]["Entrypoint"][0].as_str().unwrap();
    let is_root = succeeded(Command::new("id").arg("-u")).stdout == b"0\n";
    let mut container = Command::new(if is_root { "chroot" } else { "unshare" });
    match is_root {
        true => container.arg("--userspec=65532:65532").arg(&rootfs).arg(entry),
        // Without the right to be another user, all files are this one's.
        false => container.arg("-r").arg("-R").arg(&rootfs).args(["-w", "/", entry]),
    };
    let words = config["config"]["Cmd"].as_array().unwrap();
    container.args(words.iter().map(|word| word.as_str().unwrap()));
    starts(container.args(["--port", "0", "--json"]));
    assert!(rootfs.join("data/FORMAT").exists());
}
