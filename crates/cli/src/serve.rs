//! `quorate serve`: one member as a process.
//!
//! The member is `quorate-node`, its sockets are `quorate-server`'s. This module binds, opens the
//! data, says when it is ready, and ends cleanly on SIGINT and SIGTERM.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quorate_node::{Node, NodeOptions};
use quorate_server::{Clock, MAX_CONNECTIONS, Place, Server, ServerOptions, StartOptions};
use quorate_storage::{LsmOptions, LsmStore, ModelStore, Store};
use serde_json::json;
use tokio::net::TcpListener;

use crate::arguments::ServeArguments;
use crate::screen::{Failure, Outcome, Screen};
use crate::signals;

/// The compressors offered, best first.
const COMPRESSORS: [&str; 3] = ["zstd", "snappy", "zlib"];

/// Serves until told to stop.
pub(crate) fn run(arguments: &ServeArguments, screen: &mut Screen) -> Result<Outcome, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        let advice = "check the limits of this process (ulimit -a)";
        Failure::Problem(format!("cannot start: {error}; {advice}"))
    })?;
    runtime.block_on(serve(arguments, screen))
}

async fn serve(arguments: &ServeArguments, screen: &mut Screen) -> Result<Outcome, Failure> {
    let stop = signals::stop().map_err(|error| {
        Failure::Problem(format!(
            "cannot listen for signals: {error}; check the limits (ulimit -a)"
        ))
    })?;
    // Before the data: a taken port must not leave a directory behind.
    let listener = bind(arguments.bind, arguments.port).await?;
    let address = listener.local_addr()?;
    if let Some(set_name) = &arguments.replset {
        if arguments.auth {
            // Better refused than served without: members cannot log in to each other yet.
            return Err(Failure::Misuse(
                "a member of a set cannot ask for a login yet; leave out --auth and stay on \
                 loopback, or serve without --replset"
                    .to_owned(),
            ));
        }
        return serve_member(arguments, set_name, listener, stop, screen).await;
    }
    let store = open(arguments)?;
    // Nonces and salts come from it, so that it must not be guessed.
    let seed = getrandom::u64().map_err(|error| {
        Failure::Problem(format!(
            "this machine gives no random numbers: {error}; check /dev/urandom"
        ))
    })?;
    let clock = Clock::new();
    let now = clock.now();
    let options = NodeOptions {
        seed,
        host: reached_as(address).to_string(),
        compressors: COMPRESSORS.map(str::to_owned).to_vec(),
        authentication: arguments.auth,
        oplog_bytes: None,
        max_connections: MAX_CONNECTIONS,
    };
    let node = Node::open(store, options, now).map_err(|error| {
        Failure::Problem(format!(
            "the data cannot be read: {error}; restore the directory, or give another --data"
        ))
    })?;
    let server = Server::new(Arc::new(node), clock, ServerOptions::default()).map_err(|error| {
        Failure::Problem(format!(
            "cannot start: {error}; check the limits of this process (ulimit -a)"
        ))
    })?;
    tell_ready(arguments, address, screen)?;
    server.run(listener, stop).await.map_err(|error| {
        Failure::Problem(format!("the last writes could not be synced: {error}; check the disk"))
    })?;
    screen.event("stopped", json!({"host": reached_as(address).to_string()}))?;
    screen.talk_unless_json(match arguments.memory {
        true => "stopped; nothing was kept",
        false => "stopped; everything acknowledged is on disk",
    });
    Ok(Outcome::Fine)
}

/// Ready when whoever holds the other end of stdin is gone.
async fn stdin_closes() {
    // Nobody writes to it; an error means that it is closed as well.
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
}

/// Serves as a member of a replica set.
async fn serve_member(
    arguments: &ServeArguments,
    set_name: &str,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
    screen: &mut Screen,
) -> Result<Outcome, Failure> {
    let place = match &arguments.data {
        Some(directory) => Place::Directory(directory.clone()),
        None => Place::Memory,
    };
    let mut options = StartOptions::new(place);
    options.replica_set = Some(set_name.to_owned());
    let running = Server::start(listener, options).await.map_err(|error| {
        let advice = "give another --data, or stop whoever uses it";
        Failure::Problem(format!("the member cannot start: {error}; {advice}"))
    })?;
    let address = running.address();
    tell_ready(arguments, address, screen)?;
    tokio::select! {
        () = stop => {}
        () = stdin_closes(), if arguments.until_stdin_closes => {}
    }
    running.stop().await.map_err(|error| {
        Failure::Problem(format!("the last writes could not be synced: {error}; check the disk"))
    })?;
    screen.event("stopped", json!({"host": reached_as(address).to_string()}))?;
    Ok(Outcome::Fine)
}

async fn bind(ip: IpAddr, port: u16) -> Result<TcpListener, Failure> {
    TcpListener::bind((ip, port)).await.map_err(|error| {
        let address = SocketAddr::new(ip, port);
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "see who has it: ss -ltnp | grep {port}; or choose another --port, 0 for any"
                )
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "give an address of this machine to --bind".to_owned()
            }
            _ => "choose another --port or --bind".to_owned(),
        };
        Failure::Problem(format!("cannot listen on {address}: {error}; {advice}"))
    })
}

fn open(arguments: &ServeArguments) -> Result<Arc<dyn Store>, Failure> {
    let Some(directory) = &arguments.data else { return Ok(Arc::new(ModelStore::new())) };
    match LsmStore::open(directory, LsmOptions::default()) {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => {
            let advice = "give another --data, or stop whoever uses it";
            Err(Failure::Problem(format!("cannot open {}: {error}; {advice}", directory.display())))
        }
    }
}

/// The address for clients on this machine.
fn reached_as(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn tell_ready(
    arguments: &ServeArguments,
    address: SocketAddr,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let host = reached_as(address).to_string();
    let uri = match &arguments.replset {
        Some(name) => format!("mongodb://{host}/?replicaSet={name}"),
        None => format!("mongodb://{host}/"),
    };
    let data = arguments.data.as_ref().map(|data| data.display().to_string());
    screen.line(&uri)?;
    screen.flush()?;
    screen.event(
        "ready",
        json!({"uri": uri, "host": host, "pid": std::process::id(), "data": data}),
    )?;
    match data {
        Some(data) => screen.talk_unless_json(format_args!("serving {data}; Ctrl-C stops")),
        None => screen.talk_unless_json("serving from memory, nothing is kept; Ctrl-C stops"),
    }
    if !address.ip().is_loopback() && !arguments.auth {
        screen.talk_unless_json(
            "warning: whoever reaches this address reads and writes; --auth asks for a login",
        );
    }
    Ok(())
}
