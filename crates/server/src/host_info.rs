//! `hostInfo`: the machine that the process runs on, as far as the system tells of it.
//!
//! On Linux it is read from `/proc` (proc(5)) and `/sys/fs/cgroup`; what is not there is left out.

use std::fs;
use std::path::Path;

use bson::{Document, doc};
use quorate_protocol::WallTime;
use quorate_wire::to_bson_date_time;
use rustix::process::{Resource, getrlimit};

const MIB: u64 = 1024 * 1024;

/// The answer to `hostInfo`.
pub(crate) fn host_info(now: WallTime, host: &str) -> Document {
    let mut system = doc! {
        "currentTime": to_bson_date_time(now),
        "hostname": host,
        "cpuAddrSize": usize::BITS as i32,
    };
    if let Some(total) = total_memory() {
        system.insert("memSizeMB", (total / MIB) as i64);
        let limit = memory_limit().map_or(total, |limit| limit.min(total));
        system.insert("memLimitMB", (limit / MIB) as i64);
    }
    let available = std::thread::available_parallelism().ok().map(|cores| cores.get() as i32);
    if let Some(cores) = read("/proc/cpuinfo").map(|text| cores_of(&text)).filter(|&it| it > 0) {
        system.insert("numCores", cores as i32);
    } else if let Some(available) = available {
        system.insert("numCores", available);
    }
    if let Some(available) = available {
        system.insert("numCoresAvailableToProcess", available);
    }
    system.insert("cpuArch", std::env::consts::ARCH);
    doc! { "system": system, "os": operating_system(), "extra": extra(), "ok": 1.0 }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(path)).ok()
}

fn total_memory() -> Option<u64> {
    kilobytes(&read("/proc/meminfo")?, "MemTotal:").map(|total| total * 1024)
}

/// A line such as `MemTotal:  16384 kB`.
pub(crate) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The limit of the container, of either version of cgroups.
fn memory_limit() -> Option<u64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    // Without a limit the first says `max`.
    files.into_iter().find_map(|path| read(path)?.trim().parse().ok())
}

fn cores_of(text: &str) -> usize {
    text.lines().filter(|line| line.split(':').next().map(str::trim) == Some("processor")).count()
}

fn operating_system() -> Document {
    let kind = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        other => other,
    };
    let mut told = doc! { "type": kind };
    let release = read("/etc/os-release").unwrap_or_default();
    for (name, variable) in [("name", "NAME="), ("version", "VERSION_ID=")] {
        if let Some(value) = release.lines().find_map(|line| line.strip_prefix(variable)) {
            told.insert(name, value.trim_matches('"'));
        }
    }
    told
}

fn extra() -> Document {
    let mut told = Document::new();
    for (name, path) in
        [("versionString", "/proc/version"), ("kernelVersion", "/proc/sys/kernel/osrelease")]
    {
        if let Some(text) = read(path) {
            told.insert(name, text.trim());
        }
    }
    if let Some(files) = getrlimit(Resource::Nofile).current {
        told.insert("maxOpenFiles", files as i64);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_machine_are_read_from_proc() {
        let memory = "MemTotal:       16384 kB\nMemFree:        1 kB\n";
        assert_eq!(kilobytes(memory, "MemTotal:"), Some(16384));
        assert_eq!(kilobytes("MemTotal: many kB\n", "MemTotal:"), None);
        let cores = "processor\t: 0\nmodel name\t: processor of 64\n\nprocessor\t: 1\n";
        assert_eq!(cores_of(cores), 2);
    }
}
