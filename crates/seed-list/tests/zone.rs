//! A real name server on loopback answers; the resolver asks over real sockets.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::{SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use quorate_connection_string::{ConnectionString, SeedListError, TxtError};
use quorate_seed_list::{MIN_RESCAN_INTERVAL, ResolveError, SeedListResolver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

/// Answers until it is dropped.
struct NameServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NameServer {
    /// SRV targets with their ports and TTLs, and TXT records, for `cluster.example.com`.
    async fn start(srv: &[(&str, u16, u32)], txt: &[&[&str]]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let srv: Vec<_> =
            srv.iter().map(|(host, port, ttl)| (host.to_string(), *port, *ttl)).collect();
        let txt: Vec<Vec<String>> =
            txt.iter().map(|record| record.iter().map(ToString::to_string).collect()).collect();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let request = Message::from_vec(&buffer[..length]).unwrap();
                let reply = answer(&request, &srv, &txt);
                let _ = socket.send_to(&reply.to_vec().unwrap(), from).await;
            }
        });
        Self { address, task }
    }

    fn resolver(&self) -> SeedListResolver {
        SeedListResolver::with_name_server(self.address)
    }
}

fn answer(request: &Message, srv: &[(String, u16, u32)], txt: &[Vec<String>]) -> Message {
    let query = request.queries.first().unwrap().clone();
    let mut reply =
        Message::new(request.metadata.id, MessageType::Response, request.metadata.op_code);
    let name = query.name().clone();
    let asked = name.to_utf8();
    match query.query_type() {
        RecordType::SRV if asked == "_mongodb._tcp.cluster.example.com." => {
            for (host, port, ttl) in srv {
                let target = Name::from_utf8(host).unwrap();
                let data = RData::SRV(SRV::new(0, 0, *port, target));
                reply.add_answer(Record::from_rdata(name.clone(), *ttl, data));
            }
        }
        RecordType::TXT if asked == "cluster.example.com." => {
            for record in txt {
                let data = RData::TXT(TXT::new(record.clone()));
                reply.add_answer(Record::from_rdata(name.clone(), 60, data));
            }
        }
        _ => reply.metadata.response_code = ResponseCode::NXDomain,
    }
    reply.add_query(query);
    reply
}

fn string(text: &str) -> ConnectionString {
    ConnectionString::parse(text).unwrap()
}

#[tokio::test]
async fn hosts_come_from_srv_and_options_from_txt() {
    let servers = [("a.example.com.", 27017, 300), ("B.example.com.", 27018, 120)];
    let server = NameServer::start(&servers, &[&["replicaSet=rs0&auth", "Source=admin"]]).await;
    let list =
        server.resolver().resolve(&string("mongodb+srv://cluster.example.com/"), 1).await.unwrap();
    let mut seeds: Vec<String> = list.seeds.iter().map(ToString::to_string).collect();
    seeds.sort();
    assert_eq!(seeds, ["a.example.com:27017", "b.example.com:27018"]);
    assert_eq!(list.connection_string.options().replica_set.as_deref(), Some("rs0"));
    assert_eq!(list.connection_string.options().auth_source.as_deref(), Some("admin"));
    assert_eq!(list.rescan_after, Duration::from_secs(120));
}

#[tokio::test]
async fn short_lived_records_are_asked_for_once_a_minute_at_most() {
    let server = NameServer::start(&[("a.example.com.", 27017, 5)], &[]).await;
    let list =
        server.resolver().resolve(&string("mongodb+srv://cluster.example.com/"), 1).await.unwrap();
    assert_eq!(list.rescan_after, MIN_RESCAN_INTERVAL);
}

#[tokio::test]
async fn at_most_srv_max_hosts_are_taken() {
    let hosts: Vec<String> = (0..9).map(|number| format!("h{number}.example.com.")).collect();
    let hosts: Vec<_> = hosts.iter().map(|host| (host.as_str(), 27017, 60)).collect();
    let server = NameServer::start(&hosts, &[]).await;
    let limited = string("mongodb+srv://cluster.example.com/?srvMaxHosts=2");
    let list = server.resolver().resolve(&limited, 1).await.unwrap();
    assert_eq!(list.seeds.len(), 2);
    // A rescan tells them all: the core chooses, since it knows which are in use.
    assert_eq!(server.resolver().rescan(&limited).await.unwrap().hosts.len(), 9);
}

#[tokio::test]
async fn strangers_are_refused_at_first_and_left_out_later() {
    let servers = [("a.example.com.", 27017, 60), ("evil.test.", 27017, 60)];
    let server = NameServer::start(&servers, &[]).await;
    let cluster = string("mongodb+srv://cluster.example.com/");
    let refusal = server.resolver().resolve(&cluster, 1).await.unwrap_err();
    assert!(matches!(refusal, ResolveError::Seeds(SeedListError::ForeignHost { .. })), "{refusal}");
    let rescan = server.resolver().rescan(&cluster).await.unwrap();
    assert_eq!(rescan.hosts, ["a.example.com:27017".parse().unwrap()]);
    assert_eq!(rescan.refused.len(), 1);
}

#[tokio::test]
async fn missing_records_and_forbidden_options_say_so() {
    let server = NameServer::start(&[], &[]).await;
    let nothing = string("mongodb+srv://nothing.example.com/");
    let error = server.resolver().resolve(&nothing, 1).await.unwrap_err();
    assert!(matches!(error, ResolveError::Seeds(SeedListError::NoRecords(_))), "{error}");
    assert!(server.resolver().rescan(&nothing).await.is_err());

    let server = NameServer::start(&[("a.example.com.", 27017, 60)], &[&["ssl=false"]]).await;
    let cluster = string("mongodb+srv://cluster.example.com/");
    let error = server.resolver().resolve(&cluster, 1).await.unwrap_err();
    assert!(matches!(error, ResolveError::Options(TxtError::NotAllowed(_))), "{error}");
}

#[tokio::test]
async fn only_srv_strings_are_resolved() {
    let server = NameServer::start(&[], &[]).await;
    let error = server.resolver().resolve(&string("mongodb://a/"), 1).await.unwrap_err();
    assert!(matches!(error, ResolveError::Seeds(SeedListError::NotSrv)));
}

/// An answer that does not fit a datagram is asked for again over TCP.
#[tokio::test]
async fn long_answers_come_over_tcp() {
    let hosts: Vec<String> = (0..200).map(|n| format!("host-{n}.example.com.")).collect();
    let hosts: Vec<_> = hosts.iter().map(|host| (host.clone(), 27017, 60)).collect();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    let datagrams = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let request = Message::from_vec(&buffer[..length]).unwrap();
            let mut reply = answer(&request, &[], &[]);
            reply.metadata.truncation = true;
            let _ = socket.send_to(&reply.to_vec().unwrap(), from).await;
        }
    });
    let streams = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = stream.read_u16().await.unwrap();
            let mut request = vec![0; usize::from(length)];
            stream.read_exact(&mut request).await.unwrap();
            let request = Message::from_vec(&request).unwrap();
            let reply = answer(&request, &hosts, &[]).to_vec().unwrap();
            assert!(reply.len() > 1232, "{}", reply.len());
            stream.write_u16(reply.len() as u16).await.unwrap();
            stream.write_all(&reply).await.unwrap();
        }
    });
    let resolver = SeedListResolver::with_name_server(address);
    let cluster = string("mongodb+srv://cluster.example.com/");
    assert_eq!(resolver.rescan(&cluster).await.unwrap().hosts.len(), 200);
    datagrams.abort();
    streams.abort();
}

/// A name server that cannot find out is named, with what it said.
#[tokio::test]
async fn a_name_server_that_fails_is_named() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let failing = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let request = Message::from_vec(&buffer[..length]).unwrap();
            let mut reply = answer(&request, &[], &[]);
            reply.metadata.response_code = ResponseCode::ServFail;
            // What is no answer to the question is passed over.
            let _ = socket.send_to(b"noise", from).await;
            let _ = socket.send_to(&reply.to_vec().unwrap(), from).await;
        }
    });
    let resolver = SeedListResolver::with_name_server(address);
    let error = resolver.rescan(&string("mongodb+srv://cluster.example.com/")).await.unwrap_err();
    let told = error.to_string();
    assert!(told.contains(&address.to_string()) && told.contains("SERVFAIL"), "{told}");
    failing.abort();
}

/// A caller without a runtime gets one for the question alone, on its own thread.
#[test]
fn callers_without_a_runtime_are_answered() {
    let outside =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = outside
        .block_on(NameServer::start(&[("one.example.com.", 27018, 120)], &[&["authSource=users"]]));
    let address = server.address;
    let list = quorate_seed_list::blocking::resolve_with(
        &string("mongodb+srv://cluster.example.com"),
        1,
        || Ok(SeedListResolver::with_name_server(address)),
    )
    .unwrap();
    assert_eq!(list.seeds, ["one.example.com:27018".parse().unwrap()]);
    assert_eq!(list.connection_string.options().auth_source.as_deref(), Some("users"));
}
