//! Members in network namespaces of their own, joined by a bridge: links that really go down, and
//! packets that really vanish.
//!
//! ```text
//!   namespace 0 [eth0 .1]──veth──┐
//!   namespace 1 [eth0 .2]──veth──┼── bridge [.254] ── this process
//!   namespace 2 [eth0 .3]──veth──┘
//! ```
//!
//! Packets in one direction are lost by telling a namespace a hardware address that no device has. That
//! needs no more than `ip`, of the package iproute2, and the right to use it.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::leave_out;

/// Where members listen; each has an address of its own.
const PORT: u16 = 27017;

/// Set to `without` on a machine that cannot make namespaces, to have these tests say so and pass.
const WITHOUT: &str = "QUORATE_NAMESPACES";

/// The namespaces of one test, and the bridge between them. Removed when dropped.
pub struct Namespaces {
    /// Names of links are at most 15 characters long.
    prefix: String,
    network: [u8; 3],
    members: usize,
    /// The last part of each member's address.
    places: Vec<u8>,
}

impl Namespaces {
    /// Makes the bridge; none if the machine cannot and the test run may leave it out.
    pub fn new() -> Option<Self> {
        let process = std::process::id();
        let prefix = format!("qr{process}");
        let network = [10, 64 + (process / 250 % 128) as u8, (process % 250) as u8];
        let installed = match ip(&["-V"]) {
            Ok(()) => Ok(()),
            Err(_) => quorate_provision::debian(&["iproute2"]).map_err(|error| error.to_string()),
        };
        let bridge = format!("{prefix}b");
        let made = installed.and_then(|()| ip(&["link", "add", &bridge, "type", "bridge"]));
        if let Err(why) = made {
            leave_out(WITHOUT, &format!("network namespaces cannot be made here: {why}"));
            return None;
        }
        let namespaces = Self { prefix, network, members: 0, places: Vec::new() };
        let bridge = namespaces.bridge();
        must(&["addr", "add", &format!("{}/24", namespaces.ip(253)), "dev", &bridge]);
        must(&["link", "set", &bridge, "up"]);
        Some(namespaces)
    }

    /// Makes one more namespace, and gives where its member is to listen.
    pub fn add(&mut self) -> SocketAddr {
        let place = self.members;
        self.members += 1;
        self.places.push(place as u8 + 1);
        let (name, link, address) = (self.name(place), self.link(place), self.ip(place));
        must(&["netns", "add", &name]);
        must(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name]);
        must(&["link", "set", &link, "master", &self.bridge(), "up"]);
        must(&["-n", &name, "addr", "add", &format!("{address}/24"), "dev", "eth0"]);
        must(&["-n", &name, "link", "set", "eth0", "up"]);
        must(&["-n", &name, "link", "set", "lo", "up"]);
        SocketAddr::from((address, PORT))
    }

    /// Gives the host of a member another address, as a network that hands out addresses does.
    ///
    /// # Panics
    ///
    /// If the system refuses.
    pub fn move_to_another_address(&mut self, place: usize) {
        let (name, old) = (self.name(place), self.ip(place));
        self.places[place] += 100;
        let new = self.ip(place);
        must(&["-n", &name, "addr", "del", &format!("{old}/24"), "dev", "eth0"]);
        must(&["-n", &name, "addr", "add", &format!("{new}/24"), "dev", "eth0"]);
    }

    /// Tells every namespace the names of all hosts, in the order of their places. Processes that run
    /// already look at the same file.
    ///
    /// # Panics
    ///
    /// If the files cannot be written.
    pub fn name_hosts(&self, names: &[&str]) {
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        for (place, name) in names.iter().enumerate() {
            hosts.push_str(&format!("{} {name}\n", self.ip(place)));
        }
        for place in 0..self.members {
            let directory = self.files(place);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("hosts"), &hosts).unwrap();
        }
    }

    /// What `ip netns exec` shows in `/etc`.
    fn files(&self, place: usize) -> PathBuf {
        Path::new("/etc/netns").join(self.name(place))
    }

    /// A command that runs in a member's namespace.
    pub fn command(&self, place: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(place), program]);
        command
    }

    /// Takes a member's link down, or up again.
    pub fn set_link(&self, place: usize, state: &str) {
        must(&["-n", &self.name(place), "link", "set", "eth0", state]);
    }

    /// Packets from one member to another go nowhere from now on.
    pub fn lose(&self, from: usize, to: usize) {
        let (name, address) = (self.name(from), self.ip(to).to_string());
        let unused = "02:00:00:00:00:fe";
        must(&[
            "-n", &name, "neigh", "replace", &address, "lladdr", unused, "dev", "eth0", "nud",
            "permanent",
        ]);
    }

    /// Packets from one member to another arrive again.
    pub fn find(&self, from: usize, to: usize) {
        let (name, address) = (self.name(from), self.ip(to).to_string());
        must(&["-n", &name, "neigh", "del", &address, "dev", "eth0"]);
    }

    fn name(&self, place: usize) -> String {
        format!("{}n{place}", self.prefix)
    }

    fn link(&self, place: usize) -> String {
        format!("{}v{place}", self.prefix)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.prefix)
    }

    fn ip(&self, place: usize) -> Ipv4Addr {
        let [a, b, c] = self.network;
        let last = self.places.get(place).copied().unwrap_or(place as u8 + 1);
        Ipv4Addr::new(a, b, c, last)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for place in 0..self.members {
            // The member in it may be there still: the namespace goes when it does.
            let _ = ip(&["link", "del", &self.link(place)]);
            let _ = ip(&["netns", "del", &self.name(place)]);
            let _ = std::fs::remove_dir_all(self.files(place));
        }
        let _ = ip(&["link", "del", &self.bridge()]);
    }
}

fn must(arguments: &[&str]) {
    if let Err(why) = ip(arguments) {
        panic!("ip {}: {why}", arguments.join(" "));
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
