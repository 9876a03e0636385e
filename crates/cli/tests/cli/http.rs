//! The least of HTTP/1.1 that the tests speak: one request, one connection, one reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long a reply may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// Sends a request with exactly these headers, a length and `Connection: close`.
pub(crate) fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let mut reader = send(address, method, path, headers, body);
    let (status, headers) = head(&mut reader);
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let is_chunked = headers.iter().any(|(_, value)| value == "chunked");
    let mut body = Vec::new();
    match length.and_then(|(_, length)| length.parse().ok()) {
        Some(length) => {
            reader.take(length).read_to_end(&mut body).unwrap();
        }
        None if is_chunked => while read_chunk(&mut reader, &mut body) {},
        None => {
            reader.read_to_end(&mut body).unwrap();
        }
    }
    Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() }
}

/// Appends the next chunk. False after the last one.
fn read_chunk(reader: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> bool {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let length = u64::from_str_radix(line.trim(), 16).unwrap();
    reader.take(length).read_to_end(body).unwrap();
    line.clear();
    reader.read_line(&mut line).unwrap();
    length > 0
}

/// Opens a stream of server-sent events. Returns the status and whatever follows.
pub(crate) fn stream(address: &str, path: &str) -> (u16, BufReader<TcpStream>) {
    let mut reader = send(address, "GET", path, &[("host", address)], "");
    let (status, _) = head(&mut reader);
    (status, reader)
}

fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()));
    stream.write_all(text.as_bytes()).unwrap();
    BufReader::new(stream)
}

fn head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {line}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    (status, headers)
}
