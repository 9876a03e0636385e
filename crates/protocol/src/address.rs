//! Where a server listens.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::sync::Arc;

/// The port of an address that names none.
pub const DEFAULT_PORT: u16 = 27017;

/// The longest host name (or socket path) we accept, in bytes. DNS allows 253 for a name and Linux
/// 107 for a path; the rest is room for what others allow. A reply can therefore never make us keep
/// more than this per listed member.
pub const MAX_HOST_LENGTH: usize = 1024;

/// A host and port, or the path of a unix domain socket. Host names are lower-case.
///
/// Cheap to clone. Ordered by its text, so that lists of servers read alphabetically.
#[derive(Clone)]
pub struct ServerAddress {
    /// `host:port` with brackets around an IPv6 host, or the socket's path.
    text: Arc<str>,
    /// `None` for a unix domain socket.
    port: Option<u16>,
}

impl ServerAddress {
    /// The address of a host and port. The host is lower-cased; an IPv6 literal has no brackets.
    ///
    /// # Errors
    ///
    /// If the host is empty, too long, or holds a character that no host name has.
    pub fn tcp(host: &str, port: u16) -> Result<Self, AddressError> {
        check_length(host)?;
        if port == 0 {
            return Err(AddressError::PortOutOfRange(host.to_owned()));
        }
        let text = if host.contains(':') {
            let zoneless = host.split('%').next().unwrap_or(host);
            if zoneless.parse::<Ipv6Addr>().is_err() {
                return Err(AddressError::BadIpv6(host.to_owned()));
            }
            format!("[{}]:{port}", host.to_ascii_lowercase())
        } else {
            if let Some(bad) = host.chars().find(|c| {
                c.is_whitespace() || c.is_control() || matches!(c, '[' | ']' | '/' | '@' | '?')
            }) {
                return Err(AddressError::BadCharacter(host.to_owned(), bad));
            }
            format!("{}:{port}", host.to_lowercase())
        };
        Ok(Self { text: text.into(), port: Some(port) })
    }

    /// The address of a unix domain socket. Paths keep their case.
    ///
    /// # Errors
    ///
    /// If the path is empty, too long, or does not end in `.sock`.
    pub fn unix(path: &str) -> Result<Self, AddressError> {
        check_length(path)?;
        if let Some(bad) = path.chars().find(|c| c.is_control()) {
            return Err(AddressError::BadCharacter(path.to_owned(), bad));
        }
        if !path.ends_with(".sock") {
            return Err(AddressError::NotASocketPath(path.to_owned()));
        }
        Ok(Self { text: path.into(), port: None })
    }

    /// The host without brackets, or the socket's path.
    pub fn host(&self) -> &str {
        match self.port {
            None => &self.text,
            Some(_) => {
                let host = self.text.rfind(':').map_or(&*self.text, |colon| &self.text[..colon]);
                host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
            }
        }
    }

    /// The port; `None` for a unix domain socket.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether this is the path of a unix domain socket.
    pub fn is_unix(&self) -> bool {
        self.port.is_none()
    }

    /// `host:port`, or the socket's path.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn check_length(host: &str) -> Result<(), AddressError> {
    if host.is_empty() {
        return Err(AddressError::Empty);
    }
    if host.len() > MAX_HOST_LENGTH {
        return Err(AddressError::TooLong(host.len()));
    }
    Ok(())
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    /// Reads `host`, `host:port`, `[ipv6]`, `[ipv6]:port` or a path ending in `.sock`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if text.len() > MAX_HOST_LENGTH + "[]:65535".len() {
            return Err(AddressError::TooLong(text.len()));
        }
        if text.ends_with(".sock") {
            return Self::unix(text);
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (host, after) =
                rest.split_once(']').ok_or_else(|| AddressError::BadIpv6(text.to_owned()))?;
            if !host.contains(':') {
                return Err(AddressError::BadIpv6(text.to_owned()));
            }
            return match after.strip_prefix(':') {
                Some(port) => Self::tcp(host, parse_port(port, text)?),
                None if after.is_empty() => Self::tcp(host, DEFAULT_PORT),
                None => Err(AddressError::BadIpv6(text.to_owned())),
            };
        }
        match text.split_once(':') {
            None => Self::tcp(text, DEFAULT_PORT),
            Some((_, port)) if port.contains(':') => Err(AddressError::BadIpv6(text.to_owned())),
            Some((host, port)) => Self::tcp(host, parse_port(port, text)?),
        }
    }
}

fn parse_port(port: &str, address: &str) -> Result<u16, AddressError> {
    // `u16::from_str` would take a leading plus sign.
    match port.parse::<u16>() {
        Ok(number) if number != 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
        _ => Err(AddressError::PortOutOfRange(address.to_owned())),
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// The text decides: a path can not be mistaken for `host:port`, since one ends in `.sock` and the
// other in a digit.
impl PartialEq for ServerAddress {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text) || self.text == other.text
    }
}

impl Eq for ServerAddress {}

impl PartialOrd for ServerAddress {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServerAddress {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl std::hash::Hash for ServerAddress {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// A text that is no address. Its author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is nothing there.
    #[error("the host is empty; write host:port")]
    Empty,
    /// Longer than [`MAX_HOST_LENGTH`].
    #[error("the host is {0} bytes long; at most {MAX_HOST_LENGTH} are accepted")]
    TooLong(usize),
    /// A port that is not 1 to 65535.
    #[error("the port of {0:?} is not a number from 1 to 65535")]
    PortOutOfRange(String),
    /// Colons without brackets, or brackets without an IPv6 address.
    #[error("{0:?} is not an IPv6 address; write it in brackets, as in [::1]:27017")]
    BadIpv6(String),
    /// A character that no host name has.
    #[error("the host {0:?} holds {1:?}, which no host name may")]
    BadCharacter(String, char),
    /// A unix domain socket is recognised by the end of its path.
    #[error("the socket path {0:?} does not end in .sock")]
    NotASocketPath(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerAddress, AddressError> {
        text.parse()
    }

    #[test]
    fn hosts_are_lower_cased_and_ports_defaulted() {
        assert_eq!(parse("A.Example").unwrap().to_string(), "a.example:27017");
        assert_eq!(parse("a:1").unwrap(), parse("A:1").unwrap());
        assert_eq!(parse("a:65535").unwrap().port(), Some(65535));
        assert_eq!(parse("a:1").unwrap().host(), "a");
    }

    #[test]
    fn ipv6_literals_keep_their_brackets_in_text_only() {
        let address = parse("[::1]:27019").unwrap();
        assert_eq!((address.host(), address.port()), ("::1", Some(27019)));
        assert_eq!(address.to_string(), "[::1]:27019");
        assert_eq!(parse("[FE80::1]").unwrap().to_string(), "[fe80::1]:27017");
        for bad in ["::1", "[::1", "[localhost]:1", "[::1]27017", "[]:1", "a:b:c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn socket_paths_keep_their_case() {
        let address = parse("/tmp/Mongo-27017.sock").unwrap();
        assert!(address.is_unix());
        assert_eq!(address.host(), "/tmp/Mongo-27017.sock");
    }

    #[test]
    fn impossible_ports_and_hosts_are_refused() {
        for bad in ["", "a:0", "a:65536", "a:-1", "a:+1", "a:", ":1", "a b:1", "a\n:1", "a/b:1"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(matches!(parse(&"a".repeat(2000)), Err(AddressError::TooLong(2000))));
        assert!(matches!(parse(&"a".repeat(1025)), Err(AddressError::TooLong(1025))));
    }

    #[test]
    fn the_longest_host_reads_back_with_its_port() {
        let address = parse(&"a".repeat(MAX_HOST_LENGTH)).unwrap();
        assert_eq!(parse(address.as_str()), Ok(address));
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_an_address_that_reads_back_or_an_error(text in "\\PC{0,40}") {
            if let Ok(address) = parse(&text) {
                proptest::prop_assert_eq!(parse(address.as_str()).unwrap(), address);
            }
        }
    }
}
