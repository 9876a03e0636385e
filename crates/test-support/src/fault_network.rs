//! A TCP proxy in front of every member of a set, through which the members reach each other.
//!
//! Owns listeners, the copying of bytes, and what goes wrong with them in each direction between two
//! members; leaves starting the members, and judging them, to the test. Members list each other by
//! the proxies' addresses. Who dialled is read from `/proc`: the process that owns the other end of
//! the socket. Connections of other programs (a client, a driver) are always whole.
//!
//! ```text
//!   member 0 ──dials──▶ proxy of 1 ──dials──▶ member 1
//!            bytes 0 → 1: flow (0, 1)      bytes 1 → 0: flow (1, 0)
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread;
use std::time::Duration;

use quorate_protocol::Lock;

/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Members of a replica set, at most.
const MAX_MEMBERS: usize = 50;

/// Connections that a proxy keeps at once; more are turned away.
const MAX_CONNECTIONS: usize = 4096;

/// What happens to bytes in one direction between two members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Bytes pass.
    #[default]
    Open,
    /// Bytes wait, as if lost on the way and sent again: they arrive when the flow is open again.
    Held,
    /// Bytes vanish; connections that lost some are reset when the flow is open again.
    Dropped,
    /// Bytes arrive this much later.
    Delayed(Duration),
    /// Connections are reset at once, and new ones as soon as they are made.
    Reset,
}

/// The proxies of a set. Dropping it ends every connection.
#[derive(Debug)]
pub struct FaultNetwork {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Lock<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Member>,
    flows: BTreeMap<(usize, usize), Flow>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    ended: bool,
}

#[derive(Debug)]
struct Member {
    proxy: SocketAddr,
    process: Option<u32>,
    port: Option<u16>,
}

/// The two sockets of a connection and the members at its ends.
#[derive(Debug)]
struct Connection {
    ends: Option<(usize, usize)>,
    near: TcpStream,
    far: TcpStream,
}

impl Connection {
    fn reset(&self) {
        // A socket that is closed already needs nothing.
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

impl Default for FaultNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl FaultNetwork {
    /// A network without members.
    pub fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Makes the proxy of one more member and gives its place. Fails if there is no port left, or
    /// the set is full.
    pub fn add(&self) -> io::Result<usize> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let proxy = listener.local_addr()?;
        let mut state = self.shared.state.lock();
        let place = state.members.len();
        if place >= MAX_MEMBERS {
            return Err(io::Error::other("a replica set has at most 50 members"));
        }
        state.members.push(Member { proxy, process: None, port: None });
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name(format!("proxy {place}")).spawn(move || {
            for near in listener.incoming() {
                if shared.state.lock().ended {
                    return;
                }
                // One that fails to be taken over is closed, as a proxy does.
                if let Ok(near) = near {
                    let _ = Shared::take_over(&shared, place, near);
                }
            }
        })?;
        Ok(place)
    }

    /// The port by which the others reach a member.
    pub fn port(&self, member: usize) -> u16 {
        self.shared.state.lock().members[member].proxy.port()
    }

    /// Starts a member's process. Its connections are served once its number is known. The error is
    /// what starting it gave.
    pub fn start<T>(
        &self,
        member: usize,
        start: impl FnOnce() -> io::Result<(u32, T)>,
    ) -> io::Result<T> {
        let mut state = self.shared.state.lock();
        let (process, started) = start()?;
        state.members[member].process = Some(process);
        Ok(started)
    }

    /// Names the port on which a member's process listens.
    pub fn listens(&self, member: usize, port: u16) {
        self.shared.state.lock().members[member].port = Some(port);
    }

    /// Sets what happens to bytes from one member to another.
    pub fn set(&self, from: usize, to: usize, flow: Flow) {
        let mut state = self.shared.state.lock();
        state.flows.insert((from, to), flow);
        if flow == Flow::Reset {
            let hit = |ends| ends == Some((from, to)) || ends == Some((to, from));
            state.connections.values().filter(|c| hit(c.ends)).for_each(Connection::reset);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Sets what happens to bytes between two groups, in both directions.
    pub fn between(&self, one: &[usize], other: &[usize], flow: Flow) {
        for from in one {
            for to in other {
                self.set(*from, *to, flow);
                self.set(*to, *from, flow);
            }
        }
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.shared.state.lock().flows.clear();
        self.shared.changed.notify_all();
    }
}

impl Drop for FaultNetwork {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.ended = true;
        state.connections.values().for_each(Connection::reset);
        let proxies: Vec<SocketAddr> = state.members.iter().map(|member| member.proxy).collect();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the threads that accept, so that they see the end.
        for proxy in proxies {
            let _ = TcpStream::connect(proxy);
        }
    }
}

impl Shared {
    /// Joins a dialler to the member that it dialled.
    fn take_over(shared: &Arc<Self>, to: usize, near: TcpStream) -> io::Result<()> {
        let dialled_from = near.peer_addr()?.port();
        // Looking at every socket of the machine takes long, so no other thread waits for it.
        let (port, proxy, processes) = {
            let state = shared.state.lock();
            let processes: Vec<_> = state.members.iter().map(|member| member.process).collect();
            (state.members[to].port, state.members[to].proxy.port(), processes)
        };
        let ends = dialler(&processes, dialled_from, proxy).map(|from| (from, to));
        let Some(port) = port else { return Ok(()) };
        if ends.is_some_and(|(from, to)| {
            shared.flow(from, to) == Flow::Reset || shared.flow(to, from) == Flow::Reset
        }) {
            return Ok(());
        }
        let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (up_from, up_to) = (near.try_clone()?, far.try_clone()?);
        let (down_from, down_to) = (far.try_clone()?, near.try_clone()?);
        let mut state = shared.state.lock();
        if state.ended || state.connections.len() >= MAX_CONNECTIONS {
            return Ok(());
        }
        state.next_connection += 1;
        let number = state.next_connection;
        state.connections.insert(number, Connection { ends, near, far });
        drop(state);
        let directions =
            [(up_from, up_to, ends), (down_from, down_to, ends.map(|(from, to)| (to, from)))];
        for (source, target, flow) in directions {
            let shared = Arc::clone(shared);
            thread::spawn(move || {
                // However it ended, the connection is of no more use.
                let _ = shared.copy(source, target, flow);
                if let Some(connection) = shared.state.lock().connections.remove(&number) {
                    connection.reset();
                }
            });
        }
        Ok(())
    }

    fn flow(&self, from: usize, to: usize) -> Flow {
        self.state.lock().flows.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Copies bytes of one direction until either end is gone.
    fn copy(
        &self,
        mut source: TcpStream,
        mut target: TcpStream,
        ends: Option<(usize, usize)>,
    ) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = source.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            if let Some((from, to)) = ends {
                match self.wait_while(from, to, |flow| flow == Flow::Held) {
                    Flow::Dropped => {
                        self.wait_while(from, to, |flow| flow == Flow::Dropped);
                        return Ok(());
                    }
                    Flow::Delayed(delay) => thread::sleep(delay),
                    Flow::Open | Flow::Held | Flow::Reset => {}
                }
            }
            target.write_all(&chunk[..read])?;
        }
    }

    /// Waits while the flow is of a kind, and gives what it is then. The end of the network ends
    /// every wait; the sockets are closed by then.
    fn wait_while(&self, from: usize, to: usize, kind: impl Fn(Flow) -> bool) -> Flow {
        let mut state = self.state.lock();
        loop {
            let flow = state.flows.get(&(from, to)).copied().unwrap_or_default();
            if state.ended || !kind(flow) {
                return flow;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The member whose process owns the socket that dialled from this port.
fn dialler(processes: &[Option<u32>], from_port: u16, to_port: u16) -> Option<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let inode = table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |field: &str| u16::from_str_radix(field.rsplit(':').next()?, 16).ok();
        let matches =
            port(fields.get(1)?) == Some(from_port) && port(fields.get(2)?) == Some(to_port);
        matches.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
    })?;
    processes.iter().position(|process| process.is_some_and(|process| owns(process, &inode)))
}

fn owns(process: u32, socket: &str) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        std::fs::read_link(descriptor.path()).is_ok_and(|target| target.as_os_str() == socket)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any machine takes.
    const PATIENCE: Duration = Duration::from_secs(30);
    /// Long enough to see that nothing comes.
    const GLANCE: Duration = Duration::from_millis(50);

    /// Member 0 is this process, member 1 sends back what it gets.
    fn network() -> FaultNetwork {
        let network = FaultNetwork::new();
        assert_eq!((network.add().unwrap(), network.add().unwrap()), (0, 1));
        network.start(0, || Ok((std::process::id(), ()))).unwrap();
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        network.listens(1, echo.local_addr().unwrap().port());
        thread::spawn(move || {
            for stream in echo.incoming() {
                thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let mut chunk = [0; 1024];
                    while let Ok(read) = stream.read(&mut chunk)
                        && read > 0
                        && stream.write_all(&chunk[..read]).is_ok()
                    {}
                });
            }
        });
        network
    }

    fn dial(network: &FaultNetwork) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, network.port(1))).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn echoed(stream: &mut TcpStream, text: &str) -> io::Result<String> {
        stream.write_all(text.as_bytes())?;
        received(stream)
    }

    fn received(stream: &mut TcpStream) -> io::Result<String> {
        let mut chunk = [0; 1024];
        let read = stream.read(&mut chunk)?;
        Ok(String::from_utf8_lossy(&chunk[..read]).into_owned())
    }

    fn nothing_comes(stream: &mut TcpStream) {
        stream.set_read_timeout(Some(GLANCE)).unwrap();
        assert!(received(stream).is_err());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    #[test]
    fn held_bytes_arrive_when_the_network_is_healed_in_either_direction() {
        for (from, to) in [(0, 1), (1, 0)] {
            let network = network();
            let mut stream = dial(&network);
            assert_eq!(echoed(&mut stream, "one").unwrap(), "one");
            network.set(from, to, Flow::Held);
            stream.write_all(b"two").unwrap();
            nothing_comes(&mut stream);
            network.heal();
            assert_eq!(received(&mut stream).unwrap(), "two");
        }
    }

    #[test]
    fn a_connection_that_lost_bytes_is_reset_when_the_network_is_healed() {
        let network = network();
        let mut stream = dial(&network);
        assert_eq!(echoed(&mut stream, "one").unwrap(), "one");
        network.between(&[0], &[1], Flow::Dropped);
        stream.write_all(b"two").unwrap();
        nothing_comes(&mut stream);
        network.heal();
        assert!(matches!(received(&mut stream).as_deref(), Ok("") | Err(_)));
        assert_eq!(echoed(&mut dial(&network), "three").unwrap(), "three");
    }

    #[test]
    fn a_reset_flow_ends_connections_and_refuses_new_ones() {
        let network = network();
        let mut stream = dial(&network);
        assert_eq!(echoed(&mut stream, "one").unwrap(), "one");
        network.set(1, 0, Flow::Reset);
        assert!(matches!(received(&mut stream).as_deref(), Ok("") | Err(_)));
        assert!(matches!(echoed(&mut dial(&network), "two").as_deref(), Ok("") | Err(_)));
    }

    #[test]
    fn delayed_bytes_arrive_later() {
        let network = network();
        let mut stream = dial(&network);
        let delay = Duration::from_millis(60);
        network.set(0, 1, Flow::Delayed(delay));
        let start = std::time::Instant::now();
        assert_eq!(echoed(&mut stream, "late").unwrap(), "late");
        assert!(start.elapsed() >= delay);
    }

    #[test]
    fn others_than_members_are_not_hindered() {
        let network = network();
        network.between(&[0], &[1], Flow::Held);
        // A process that is no member, as far as the network knows.
        network.start(0, || Ok((1, ()))).unwrap();
        assert_eq!(echoed(&mut dial(&network), "client").unwrap(), "client");
    }
}
