//! A `mongodb+srv://` string all the way from DNS to a reply.

// A panic in the functions that the tests share is a report, as it is in the tests.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use bson::rawdoc;
use quorate_client::{Client, ClientError};
use quorate_connection_string::ConnectionString;
use quorate_protocol::ServerAddress;
use quorate_seed_list::SeedListResolver;
use quorate_test_support::FakeServer;
use tokio::net::UdpSocket;

const SRV: u16 = 33;

/// Answers every question for SRV records with one record, and has no others.
async fn name_server(target: &'static str, port: u16) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&answer(&buffer[..length], target, port), from).await;
        }
    });
    address
}

/// RFC 1035, section 4: a header, the question again, and perhaps one answer.
fn answer(request: &[u8], target: &str, port: u16) -> Vec<u8> {
    let question_end = 12 + request[12..].iter().position(|&byte| byte == 0).unwrap() + 5;
    let question = &request[12..question_end];
    let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
    let answers = u16::from(kind == SRV);
    let mut out = request[..2].to_vec();
    // A response, authoritative; one question, and no authority or additional records.
    for number in [0x8400_u16, 1, answers, 0, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(question);
    if kind == SRV {
        let mut name = Vec::new();
        for label in target.split('.') {
            name.push(u8::try_from(label.len()).unwrap());
            name.extend_from_slice(label.as_bytes());
        }
        name.push(0);
        // The name of the question, by a pointer to it; class IN; an hour to live.
        out.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0x0e, 0x10]);
        let length = u16::try_from(6 + name.len()).unwrap();
        for number in [length, 0, 0, port] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&name);
    }
    out
}

fn string() -> ConnectionString {
    ConnectionString::parse("mongodb+srv://cluster.test.example/?tls=false").unwrap()
}

#[tokio::test]
async fn seeds_come_from_dns_and_the_host_map_leads_to_them() {
    let server = FakeServer::start().await.unwrap();
    let resolver = SeedListResolver::with_name_server(name_server("db0.test.example", 27017).await);
    let reachable = server.address().clone();
    let string = string();
    let client = Client::connect_with_resolver(&string, resolver, |options| {
        let advertised: ServerAddress = "db0.test.example:27017".parse().unwrap();
        assert_eq!(options.discovery.seeds, std::slice::from_ref(&advertised));
        options.host_map.insert(advertised, reachable);
    });
    let client = client.await.unwrap();
    assert!(client.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok());
    client.close().await;
}

#[tokio::test]
async fn strangers_in_dns_are_refused() {
    let resolver = SeedListResolver::with_name_server(name_server("db0.evil.example", 27017).await);
    let refused = Client::connect_with_resolver(&string(), resolver, |_| ()).await;
    assert!(matches!(refused, Err(ClientError::Resolve(_))), "{refused:?}");
}

#[tokio::test]
async fn the_way_without_io_says_where_to_go() {
    let refused = Client::with_uri("mongodb+srv://cluster.test.example").unwrap_err();
    assert!(refused.to_string().contains("Client::connect"));
}
