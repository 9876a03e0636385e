//! Serves a member on loopback and prints its port: `serve [--port P] [--data DIR]`.
//!
//! Without a directory everything is kept in memory. For trying out; the program has `serve`.

#![allow(clippy::print_stdout, reason = "the port is what the example is for")]

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;

use quorate_node::{Node, NodeOptions};
use quorate_server::{Clock, Server, ServerOptions};
use quorate_storage::{LsmOptions, LsmStore, ModelStore, Store};
use tokio::net::TcpListener;

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let port: u16 = option("--port").map_or(Ok(0), |port| port.parse())?;
    let store: Arc<dyn Store> = match option("--data") {
        Some(directory) => Arc::new(LsmStore::open(directory, LsmOptions::default())?),
        None => Arc::new(ModelStore::new()),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    let clock = Clock::new();
    let options = NodeOptions {
        seed: u64::from(std::process::id()) ^ clock.now().wall.as_millis() as u64,
        host: address.to_string(),
        compressors: ["zstd", "snappy", "zlib"].map(str::to_owned).to_vec(),
        authentication: arguments.iter().any(|argument| argument == "--auth"),
        oplog_bytes: None,
        max_connections: quorate_server::MAX_CONNECTIONS,
    };
    let node = Arc::new(Node::open(store, options, clock.now())?);
    println!("{}", address.port());
    let shutdown = async {
        // Without a handler the process just ends, which is fine for an example.
        let _ = tokio::signal::ctrl_c().await;
    };
    Server::new(node, clock, ServerOptions::default())?.run(listener, shutdown).await?;
    Ok(())
}
