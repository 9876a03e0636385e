//! Serves a member on loopback and prints its port: `serve [--port P] [--data DIR]`.
//!
//! Without a directory everything is kept in memory. For trying out; the program has `serve`.

#![allow(clippy::print_stdout, reason = "the port is what the example is for")]

use std::error::Error;
use std::net::Ipv4Addr;

use quorate_server::{Place, Server, StartOptions};
use tokio::net::TcpListener;

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let port: u16 = option("--port").map_or(Ok(0), |port| port.parse())?;
    let place = option("--data").map_or(Place::Memory, |data| Place::Directory(data.into()));
    let mut options = StartOptions::new(place);
    options.test_commands = true;
    options.authentication = arguments.iter().any(|argument| argument == "--auth");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let mut running = Server::start(listener, options).await?;
    println!("{}", running.address().port());
    tokio::select! {
        ended = running.ended() => ended?,
        // Without a handler the process just ends, which is fine for an example.
        _ = tokio::signal::ctrl_c() => running.stop().await?,
    }
    Ok(())
}
