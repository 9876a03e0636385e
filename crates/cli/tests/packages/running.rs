//! The packages where they are meant to run: the service under systemd as process 1, the image and its compose file
//! under a container runtime.
//!
//! Both need root and what containers need of a kernel. A machine that cannot is told how to leave these tests out.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quorate_provision::debian;
use quorate_test_support::leave_out;

use crate::{install_deb, make_packages, packages, succeeded};

/// Set to `without`, the tests of this file are left out where they cannot run. `cargo xtask ci` sets it.
const WITHOUT: &str = "QUORATE_CONTAINERS";

/// How long a machine or a set of containers may take until it is where a test waits for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a machine may live, in seconds.
const MACHINE_LIMIT: &str = "180";

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        std::thread::yield_now();
        assert!(Instant::now() < deadline, "never saw that {what}");
    }
}

/// Whether containers can be made here: their packages are there and the kernel lets `probe` succeed.
fn containers_can_be_made(packages: &[&str], probe: &mut Command) -> bool {
    let is_root = succeeded(Command::new("id").arg("-u")).stdout == b"0\n";
    let why = match debian(packages) {
        Ok(()) if is_root => match probe.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return true,
            Ok(output) => format!("{probe:?}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => format!("{probe:?}: {error}"),
        },
        Ok(()) => "this is not root".to_owned(),
        Err(error) => error.to_string(),
    };
    leave_out(WITHOUT, &format!("containers cannot be made here: {why}"));
    false
}

/// The unit as it is installed, with all of its limits, under a systemd of its own.
#[test]
fn the_service_runs_under_systemd() {
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--mount-proc", "true"]);
    if !containers_can_be_made(&["systemd", "systemd-container"], &mut probe) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [_, deb, _] = make_packages(directory.path());
    let root = directory.path().join("machine");
    install_deb(&deb, &root);
    furnish(&root);
    let mut machine = Command::new("timeout");
    machine.args([MACHINE_LIMIT, "systemd-nspawn", "--quiet", "--boot", "--private-network"]);
    machine.args(["--console=pipe", "--link-journal=no"]).arg("--directory").arg(&root);
    machine.arg(format!("--machine=quorate-{}", std::process::id()));
    // The system's programs and libraries below what the package brought.
    machine.arg(format!("--overlay-ro=/usr:{}:/usr", root.join("usr").display()));
    if !Path::new("/run/systemd/system").exists() {
        machine.args(["--register=no", "--keep-unit"]);
    }
    let machine = machine.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut machine = machine.spawn().unwrap();
    let log = || fs::read_to_string(root.join("check.log")).unwrap_or_default();
    until("the check is done", || {
        log().ends_with("done\n") || machine.try_wait().unwrap().is_some()
    });
    // The first signal has it shut down, the second one ends it.
    for _ in 0..2 {
        let _ = Command::new("kill").args(["-TERM", &machine.id().to_string()]).status();
    }
    machine.wait().unwrap();
    let told = log();
    for expected in [
        "user=quorate", "NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000",
        "etc=read-only", "state=writable", "restarts=1", "kept=1", "result=success",
        "state=quorate 700", "done",
    ] {
        assert!(told.lines().any(|line| line == expected), "{expected}\n{told}");
    }
}

/// What a machine has besides the package: links to the system's programs, a name, and the check that ends it.
fn furnish(root: &Path) {
    for folder in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{folder}"), root.join(folder)).unwrap();
    }
    fs::copy("/usr/lib/os-release", root.join("etc/os-release")).unwrap();
    fs::write(root.join("etc/machine-id"), "6f2d4c5e8a9b40c1b2d3e4f5a6b7c8d9\n").unwrap();
    fs::write(root.join("check.sh"), CHECK).unwrap();
    let units = root.join("etc/systemd/system");
    let wanted = units.join("multi-user.target.wants");
    fs::create_dir_all(&wanted).unwrap();
    fs::write(units.join("check.service"), CHECK_UNIT).unwrap();
    symlink("../check.service", wanted.join("check.service")).unwrap();
    let mut enable = Command::new("systemctl");
    succeeded(enable.arg("--root").arg(root).args(["enable", "quorate.service"]));
}

const CHECK_UNIT: &str = "\
[Unit]
After=quorate.service
[Service]
Type=oneshot
ExecStart=/bin/sh /check.sh
";

const CHECK: &str = r#"
exec > /check.log 2>&1
ask() { quorate run 'mongodb://127.0.0.1:27017/?serverSelectionTimeoutMS=30000' "$1" --database shop; }
ask '{insert: "orders", documents: [{_id: 1}], writeConcern: {w: 1, j: true}}'
pid=$(systemctl show --property MainPID --value quorate)
echo "user=$(stat --format %U /proc/$pid)"
grep -E '^(NoNewPrivs|Seccomp|CapBnd):' /proc/$pid/status
nsenter --target $pid --mount touch /etc/quorate/probe || echo etc=read-only
nsenter --target $pid --mount touch /var/lib/quorate/probe && echo state=writable
rm /var/lib/quorate/probe
kill -KILL $pid
# The client waits until the service is back.
ask '{count: "orders"}' | grep --quiet '"n":\s*1' && echo kept=1
echo "restarts=$(systemctl show --property NRestarts --value quorate)"
systemctl stop quorate
echo "result=$(systemctl show --property Result --value quorate)"
echo "state=$(stat --format '%U %a' /var/lib/quorate)"
systemctl status --no-pager quorate
echo done
"#;

/// Containers of this test alone: their storage, networks and limits.
struct Containers {
    directory: PathBuf,
    project: String,
}

impl Containers {
    fn new(directory: &Path) -> Self {
        let place = |name: &str| directory.join(name).display().to_string();
        // Limits that need no right to raise them.
        let containers = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=4096:4096\"]\nlog_driver = \"k8s-file\"\n\
             [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
             tmp_dir = \"{}\"\nvolume_path = \"{}\"\n\
             [network]\nnetwork_backend = \"netavark\"\nnetwork_config_dir = \"{}\"\n",
            place("tmp"),
            place("volumes"),
            place("networks")
        );
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
            place("store"),
            place("run")
        );
        fs::write(directory.join("containers.conf"), containers).unwrap();
        fs::write(directory.join("storage.conf"), storage).unwrap();
        let project = format!("quorate-test-{}", std::process::id());
        Self { directory: directory.to_owned(), project }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("CONTAINERS_CONF", self.directory.join("containers.conf"));
        command.env("CONTAINERS_STORAGE_CONF", self.directory.join("storage.conf"));
        command.current_dir(&self.directory).stdin(Stdio::null());
        command
    }

    fn compose(&self) -> Command {
        let mut command = self.command("podman-compose");
        command.args(["--project-name", &self.project, "--file"]);
        command.arg(packages().join("container/compose.yaml").canonicalize().unwrap());
        command
    }

    /// The container of a service of the compose file.
    fn name(&self, service: &str) -> String {
        format!("{}_{service}_1", self.project)
    }

    fn podman(&self, words: &[&str]) -> Command {
        let mut command = self.command("podman");
        command.args(words);
        command
    }

    /// Runs the program in the container of a service.
    fn inside(&self, service: &str, words: &[&str]) -> Command {
        self.podman(&[&["exec", &self.name(service), "/usr/bin/quorate"], words].concat())
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        // Ignore errors: what did not start needs no stopping.
        let _ = self.compose().args(["down", "--volumes", "--timeout", "5"]).output();
        let _ = self.podman(&["rm", "--all", "--force", "--time", "1"]).output();
        let _ = self.podman(&["network", "prune", "--force"]).output();
    }
}

/// The image as it is loaded, the compose file as it is: three members under their names, made into a set, which goes on
/// without one of them. The health checks are run here, since podman has systemd run them.
#[test]
fn the_compose_file_makes_a_set_of_containers() {
    const SET: &str = "mongodb://one:27017,two:27017,three:27017/?replicaSet=rs0";
    let needed = ["podman", "podman-compose", "runc", "netavark", "aardvark-dns", "iptables"];
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--pid", "--net", "--fork", "iptables", "--table", "nat", "--list"]);
    if !containers_can_be_made(&needed, &mut probe) {
        return;
    }
    let file = fs::read_to_string(packages().join("container/compose.yaml")).unwrap();
    assert!(file.contains(&format!("test: [CMD, /usr/bin/quorate, status, \"{SET}\"]")), "{file}");
    let directory = tempfile::tempdir().unwrap();
    let [_, _, image] = make_packages(directory.path());
    let containers = Containers::new(directory.path());
    succeeded(containers.podman(&["load", "--input"]).arg(&image));
    succeeded(containers.compose().args(["up", "--detach"]));
    let is_healthy =
        || containers.inside("watch", &["status", SET]).output().unwrap().status.success();
    until("the set is healthy", is_healthy);
    let insert = "{insert: 'c', documents: [{_id: 1}], writeConcern: {w: 3}}";
    succeeded(&mut containers.inside("one", &["run", SET, insert]));
    let who = succeeded(&mut containers.podman(&["top", &containers.name("one"), "huser"]));
    assert!(String::from_utf8_lossy(&who.stdout).contains("65532"), "{who:?}");
    // A member that hangs leaves the set able to write, and is missed.
    let two = containers.name("two");
    succeeded(&mut containers.podman(&["pause", &two]));
    until("the missing member is noticed", || !is_healthy());
    let another = insert.replace("w: 3", "w: 2").replace("_id: 1", "_id: 2");
    succeeded(&mut containers.inside("one", &["run", SET, &another]));
    succeeded(&mut containers.podman(&["unpause", &two]));
    // One that starts again has its data, perhaps at another address.
    succeeded(&mut containers.podman(&["restart", "--time", "60", &two]));
    until("all are well again", is_healthy);
    let count = ["run", "mongodb://two:27017/?directConnection=true", "{count: 'c'}"];
    let counted = succeeded(&mut containers.inside("one", &count));
    assert!(String::from_utf8_lossy(&counted.stdout).contains("\"n\": 2"), "{counted:?}");
}
