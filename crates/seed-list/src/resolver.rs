//! Asking name servers: which ones, how often, and over which transport.
//!
//! The name servers of `/etc/resolv.conf` are asked one after the other, each over UDP and, if the answer
//! does not fit, over TCP. There is no cache: a client asks once, and again after a minute at the earliest.
//! Names are asked for as they are; search domains could send credentials astray.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{Answer, Kind, MAX_DATAGRAM, Record, answer, question};

/// Where this machine's name servers are listed.
const CONFIGURATION: &str = "/etc/resolv.conf";

/// Where the kernel tells the numbers of network interfaces.
const INTERFACES: &str = "/sys/class/net";

const PORT: u16 = 53;

/// As many name servers as the system's own resolver asks.
const MAX_SERVERS: usize = 3;

/// How long one server may take, unless the configuration says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that a configuration may ask for.
const MAX_TIMEOUT_SECONDS: u64 = 30;

/// How often each server is asked, unless the configuration says otherwise.
const ATTEMPTS: usize = 2;

/// The most that a configuration may ask for.
const MAX_ATTEMPTS: usize = 5;

/// Datagrams that are no answer to the question and are passed over: a stranger may send them.
const MAX_STRANGE_DATAGRAMS: usize = 64;

/// The name servers to ask, and their timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolver {
    servers: Vec<SocketAddr>,
    timeout: Duration,
    attempts: usize,
    /// Datagrams are not tried (`use-vc`).
    only_tcp: bool,
    /// Why the only server is this machine.
    missing: Option<&'static str>,
}

impl Resolver {
    /// The name servers that this machine is configured to ask.
    pub(crate) fn from_system() -> io::Result<Self> {
        match fs::read(CONFIGURATION) {
            Ok(bytes) => Ok(Self::configured(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { missing: Some("there is no /etc/resolv.conf"), ..Self::configured("") })
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn with_server(server: SocketAddr) -> Self {
        Self {
            servers: vec![server],
            timeout: TIMEOUT,
            attempts: ATTEMPTS,
            only_tcp: false,
            missing: None,
        }
    }

    /// Reads `nameserver` and `options` of resolv.conf(5). What cannot be read there is passed over, as the
    /// system does. Without a name server, this machine is asked, as the system does.
    fn configured(text: &str) -> Self {
        let mut read = Self::with_server(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
        let mut servers = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => servers.extend(words.next().and_then(name_server)),
                Some("options") => words.for_each(|word| read.set_option(word)),
                _ => {}
            }
        }
        servers.truncate(MAX_SERVERS);
        match servers.is_empty() {
            true => read.missing = Some("/etc/resolv.conf lists no name server"),
            false => read.servers = servers,
        }
        read
    }

    fn set_option(&mut self, word: &str) {
        match word.split_once(':') {
            Some(("timeout", seconds)) => {
                let seconds = seconds.parse().unwrap_or(TIMEOUT.as_secs());
                self.timeout = Duration::from_secs(seconds.clamp(1, MAX_TIMEOUT_SECONDS));
            }
            Some(("attempts", count)) => {
                self.attempts = count.parse().unwrap_or(ATTEMPTS).clamp(1, MAX_ATTEMPTS);
            }
            None if word == "use-vc" => self.only_tcp = true,
            _ => {}
        }
    }

    /// The records of a name; none if it has none of this kind or does not exist. The error says what the
    /// last server did.
    pub(crate) async fn ask(&self, name: &str, kind: Kind) -> Result<Vec<Record>, String> {
        if is_without_records(name) {
            return Ok(Vec::new());
        }
        let mut last = String::new();
        for _ in 0..self.attempts {
            for server in &self.servers {
                match timeout(self.timeout, self.ask_one(*server, name, kind)).await {
                    Ok(Ok(records)) => return Ok(records),
                    Ok(Err(reason)) => last = format!("{server}: {reason}"),
                    Err(_) => {
                        last = format!("{server} does not answer within {:?}", self.timeout);
                    }
                }
            }
        }
        match self.missing {
            Some(missing) => Err(format!("{last}, and {missing}")),
            None => Err(last),
        }
    }

    async fn ask_one(
        &self,
        server: SocketAddr,
        name: &str,
        kind: Kind,
    ) -> Result<Vec<Record>, String> {
        let mut told = match self.only_tcp {
            true => Answer::Truncated,
            false => over_udp(server, name, kind, true).await?,
        };
        if told == Answer::NotUnderstood {
            // An old server may stumble over the option.
            told = over_udp(server, name, kind, false).await?;
        }
        if told == Answer::Truncated {
            told = over_tcp(server, name, kind).await?;
        }
        match told {
            Answer::Records(records) => Ok(records),
            Answer::Truncated => Err("its answer is cut short".to_owned()),
            Answer::NotUnderstood => Err("it does not understand the question".to_owned()),
            Answer::Refused(2) => Err("it could not find out (SERVFAIL)".to_owned()),
            Answer::Refused(5) => Err("it refuses to answer (REFUSED)".to_owned()),
            Answer::Refused(code) => Err(format!("it answers with code {code}")),
        }
    }
}

/// The address of a `nameserver` line; a link-local one names its interface behind a percent sign.
fn name_server(word: &str) -> Option<SocketAddr> {
    let Some((address, interface)) = word.split_once('%') else {
        return Some(SocketAddr::new(word.parse::<IpAddr>().ok()?, PORT));
    };
    let scope = match interface.parse() {
        Ok(number) => number,
        Err(_) if interface.contains('/') => return None,
        Err(_) => {
            let number = fs::read_to_string(format!("{INTERFACES}/{interface}/ifindex")).ok()?;
            number.trim().parse().ok()?
        }
    };
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, scope).into())
}

/// Names that no name server is asked for (RFC 6761 and RFC 7686).
fn is_without_records(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    ["invalid", "localhost", "onion"].iter().any(|special| last.eq_ignore_ascii_case(special))
}

fn new_id() -> Result<u16, String> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random number: {error}"))?;
    Ok(u16::from_be_bytes(bytes))
}

async fn over_udp(
    server: SocketAddr,
    name: &str,
    kind: Kind,
    sized: bool,
) -> Result<Answer, String> {
    let id = new_id()?;
    let asked = question(id, name, kind, sized).map_err(|error| error.to_string())?;
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let exchange = async {
        let socket = UdpSocket::bind(any).await?;
        // Only what comes from there is taken.
        socket.connect(server).await?;
        socket.send(&asked).await?;
        let mut buffer = vec![0; usize::from(MAX_DATAGRAM).max(512)];
        for _ in 0..MAX_STRANGE_DATAGRAMS {
            let length = socket.recv(&mut buffer).await?;
            if let Some(told) = answer(&buffer[..length], id, name, kind) {
                return Ok(told);
            }
        }
        Err(io::Error::other("its datagrams are no answers"))
    };
    exchange.await.map_err(|error: io::Error| error.to_string())
}

async fn over_tcp(server: SocketAddr, name: &str, kind: Kind) -> Result<Answer, String> {
    let id = new_id()?;
    let asked = question(id, name, kind, false).map_err(|error| error.to_string())?;
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        // A name has at most 255 bytes, so that the length fits.
        let mut framed = (asked.len() as u16).to_be_bytes().to_vec();
        framed.extend(&asked);
        stream.write_all(&framed).await?;
        let length = stream.read_u16().await?;
        let mut message = vec![0; usize::from(length)];
        stream.read_exact(&mut message).await?;
        answer(&message, id, name, kind).ok_or_else(|| io::Error::other("its reply is no answer"))
    };
    exchange.await.map_err(|error: io::Error| format!("over TCP: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reserved_names_are_not_asked_for() {
        // Nothing listens there; the question would fail.
        let nowhere = Resolver::with_server("127.0.0.1:1".parse().unwrap());
        for name in ["_mongodb._tcp.db.invalid", "a.LOCALHOST.", "b.onion"] {
            assert_eq!(nowhere.ask(name, Kind::Srv).await, Ok(Vec::new()), "{name}");
        }
        assert!(nowhere.ask("a.example.com", Kind::Srv).await.is_err());
    }

    #[test]
    fn the_configuration_is_read_as_the_system_reads_it() {
        let text = "# here\nsearch example.com\nnameserver 192.0.2.1 # first\n\
                    nameserver fe80::1%no-such-card\nnameserver fe80::1%lo\n; nameserver 192.0.2.9\n\
                    nameserver 2001:db8::1\noptions ndots:1 timeout:2 attempts:99 edns0 use-vc\n";
        let loopback = SocketAddrV6::new("fe80::1".parse().unwrap(), PORT, 0, 1);
        let expected = Resolver {
            servers: vec![
                "192.0.2.1:53".parse().unwrap(),
                loopback.into(),
                "[2001:db8::1]:53".parse().unwrap(),
            ],
            timeout: Duration::from_secs(2),
            attempts: MAX_ATTEMPTS,
            only_tcp: true,
            missing: None,
        };
        assert_eq!(Resolver::configured(text), expected);
        assert_eq!(name_server("fe80::1%7"), Some("[fe80::1%7]:53".parse().unwrap()));
        let many = "nameserver 192.0.2.1\n".repeat(9);
        assert_eq!(Resolver::configured(&many).servers.len(), MAX_SERVERS);
        let none = Resolver::configured("options timeout:x\n");
        assert_eq!(none.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!((none.timeout, none.attempts), (TIMEOUT, ATTEMPTS));
    }

    #[tokio::test]
    async fn a_machine_without_name_servers_is_told_so() {
        let mut nowhere = Resolver::configured("");
        // Nothing listens there.
        nowhere.servers = vec!["127.0.0.1:1".parse().unwrap()];
        let error = nowhere.ask("a.example.com", Kind::Srv).await.unwrap_err();
        assert!(error.contains("/etc/resolv.conf lists no name server"), "{error}");
    }
}
