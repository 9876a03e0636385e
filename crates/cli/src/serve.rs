//! `quorate serve`: one member as a process.
//!
//! The member and its sockets are `quorate-server`'s. This module reads the options, binds, says when
//! it is ready, and ends cleanly on SIGINT and SIGTERM.

mod config;
mod mongod;

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;

use quorate_server::{
    Listeners, LogFormat, Membership, Place, Running, Server, StartOptions, TlsMode, TlsOptions,
    log_to_stderr,
};
use serde_json::json;
use tokio::net::TcpListener;
use tracing::Level;

use crate::arguments::ServeArguments;
use crate::connect;
use crate::screen::{Failure, Outcome, Result, Screen};
use crate::signals;
use crate::words::Foreign;

/// Serves until told to stop.
pub(crate) fn run(arguments: &ServeArguments, screen: &mut Screen) -> Result<Outcome> {
    if arguments.print_config {
        screen.raw(config::sample().as_bytes())?;
        return Ok(Outcome::Fine);
    }
    let merged;
    let arguments = match &arguments.config {
        // After the name of the program and that of the command.
        Some(path) => {
            let ignored;
            (merged, ignored) = config::with_file(path, std::env::args_os().skip(2))?;
            if !ignored.is_empty() {
                screen.talk(format_args!(
                    "of {} these have no counterpart and are left out: {}",
                    path.display(),
                    Foreign(ignored.join(", "))
                ));
            }
            &merged
        }
        None => arguments,
    };
    refuse_foreign_options(arguments)?;
    refuse_if!(arguments.data.is_none() && !arguments.memory => misuse,
        "give the directory of the data with --data DIR, or --memory to keep nothing");
    log_to_file(arguments)?;
    log(arguments);
    let runtime = quorate_server::runtime();
    let runtime = runtime.map_err(connect::not_started)?;
    let result = runtime.block_on(serve(arguments, screen));
    // A thread may still wait for stdin; no other thread has work left.
    runtime.shutdown_background();
    result
}

async fn serve(arguments: &ServeArguments, screen: &mut Screen) -> Result<Outcome> {
    let stop = signals::stop()?;
    let options = options(arguments)?;
    let addresses = addresses(arguments).await?;
    check_exposure(arguments, &addresses)?;
    // Before the data: a taken port must not leave a directory behind.
    let listeners = listeners(arguments, &addresses).await?;
    let mut running = Server::start(listeners, options)
        .await
        .map_err(|error| Failure::Problem(error.to_string()))?;
    // Before other processes learn of this member, since signals kill a process without handlers.
    let mut cuts = if arguments.breakable { Some(signals::Cuts::listen()?) } else { None };
    tell_ready(arguments, &running, screen)?;
    let host = running.address().to_string();
    let mut stop = pin!(stop);
    let mut stdin_closes = pin!(stdin_closes());
    let ended = loop {
        let cut = async {
            match &mut cuts {
                Some(cuts) => cuts.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = running.ended() => break ended,
            is_cut = cut => running.set_cut_off(is_cut),
            () = &mut stop => break running.stop().await,
            () = &mut stdin_closes, if arguments.until_stdin_closes => break running.stop().await,
        }
    };
    ended.map_err(|error| Failure::Problem(error.to_string()))?;
    let kept =
        if arguments.memory { "nothing was kept" } else { "everything acknowledged is on disk" };
    tell!(screen, "stopped", {"host": host}, "stopped; {kept}")?;
    Ok(Outcome::Fine)
}

fn options(arguments: &ServeArguments) -> Result<StartOptions> {
    let place = match &arguments.data {
        Some(directory) => Place::Directory(directory.clone()),
        None => Place::Memory,
    };
    let mut options = StartOptions::new(place);
    options.replica_set.clone_from(&arguments.replset);
    options.authentication = arguments.auth;
    options.membership = membership(arguments)?;
    options.tls = tls(arguments)?;
    options.test_commands = arguments.enable_test_commands;
    options.server.max_connections = arguments.max_connections;
    options.advertise.clone_from(&arguments.advertise);
    if let Some(bytes) = arguments.oplog_size {
        options.oplog_bytes = bytes;
    }
    options.index_prefetch = index_prefetch(&arguments.repl_index_prefetch)?;
    Ok(options)
}

fn index_prefetch(name: &str) -> Result<quorate_server::IndexPrefetch> {
    quorate_server::IndexPrefetch::from_name(name)
        .ok_or_else(|| misuse!("{name} is not offered; write none, _id_only or all"))
}

fn membership(arguments: &ServeArguments) -> Result<Membership> {
    match (arguments.cluster_auth.as_deref(), &arguments.keyfile) {
        (Some("x509"), None) => Ok(Membership::Certificate),
        (Some("x509"), Some(_)) => Err(misuse!(
            "members know each other by certificates or by a key file; leave out --keyfile, or \
             --cluster-auth x509"
        )),
        (_, Some(path)) => Ok(Membership::KeyFile(path.clone())),
        (Some(_), None) => Err(misuse!(
            "members that know each other by a key file need one; give it with --keyfile"
        )),
        (None, None) => Ok(Membership::Unchecked),
    }
}

/// Refuses options of other servers for which there is a better way here.
fn refuse_foreign_options(arguments: &ServeArguments) -> Result<()> {
    refuse_if!(arguments.fork => misuse,
        "a server does not put itself into the background; let systemd run it \
         (ExecStart=quorate serve …), or start a set with quorate up --detach");
    Ok(())
}

/// Sends stderr, and so the log, to the end of the file that the options name.
fn log_to_file(arguments: &ServeArguments) -> Result<()> {
    let Some(path) = &arguments.log_file else { return Ok(()) };
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|file| Ok(rustix::stdio::dup2_stderr(file)?)).map_err(|error| {
        let advice = "check the path, or leave --log-file out: the log goes to stderr";
        problem!("the log {} cannot be opened: {error}; {advice}", path.display())
    })
}

/// The most addresses that --bind may come to.
const MAX_ADDRESSES: usize = 16;

/// The addresses of --bind: literal ones as they are, names as this machine resolves them.
async fn addresses(arguments: &ServeArguments) -> Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    for name in &arguments.bind {
        let bare = name.trim().trim_start_matches('[').trim_end_matches(']');
        let found = match (bare, bare.parse::<IpAddr>()) {
            ("*", _) => vec![IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED)],
            (_, Ok(ip)) => vec![ip],
            (_, Err(_)) => tokio::net::lookup_host((bare, 0))
                .await
                .map_err(|error| {
                    problem!(
                        "--bind {bare} cannot be resolved: {error}; give an address of this machine"
                    )
                })?
                .map(|address| address.ip())
                .collect(),
        };
        for ip in found {
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
    }
    match addresses.len() {
        1..=MAX_ADDRESSES => Ok(addresses),
        _ => Err(misuse!("give --bind 1 to {MAX_ADDRESSES} addresses")),
    }
}

/// Refuses to serve the world without asking who it is.
fn check_exposure(arguments: &ServeArguments, addresses: &[IpAddr]) -> Result<()> {
    let asks = arguments.auth || arguments.keyfile.is_some() || arguments.cluster_auth.is_some();
    let exposed = addresses.iter().find(|address| !address.is_loopback());
    match exposed {
        Some(exposed) if !asks && !arguments.insecure => Err(misuse!(
            "every client that reaches {exposed} could read and write everything; ask for logins with --auth, \
             or say --insecure if the network keeps strangers out"
        )),
        _ => Ok(()),
    }
}

fn tls(arguments: &ServeArguments) -> Result<Option<TlsOptions>> {
    let named = |name: &str| TlsMode::NAMED.into_iter().find(|(known, _)| *known == name);
    let mode = arguments.tls_mode.as_deref().and_then(named).map(|(_, mode)| mode);
    let Some(certificate) = &arguments.tls_cert else {
        let without = arguments.tls_key.is_some()
            || arguments.tls_ca.is_some()
            || arguments.tls_require_client_certificate
            || mode.is_some_and(|mode| mode != TlsMode::Disabled);
        return match without {
            true => Err(misuse!(
                "TLS needs a certificate of this server; give its file with --tls-cert"
            )),
            false => Ok(None),
        };
    };
    Ok(Some(TlsOptions {
        certificate: certificate.clone(),
        key: arguments.tls_key.clone().unwrap_or_else(|| certificate.clone()),
        authority: arguments.tls_ca.clone(),
        mode: mode.unwrap_or_default(),
        require_client_certificate: arguments.tls_require_client_certificate,
    }))
}

/// Ready when the process at the other end of stdin is gone.
async fn stdin_closes() {
    // Nothing is written to it; an error means that it is closed as well.
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
}

/// Sends the log where it was asked to go.
fn log(arguments: &ServeArguments) {
    let level = match arguments.log_level.as_str() {
        "error" => Level::ERROR,
        "info" => Level::INFO,
        "debug" => Level::DEBUG,
        _ => Level::WARN,
    };
    let format = match arguments.log_format.as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    };
    // No other subscriber in this process takes the log.
    log_to_stderr(level, format);
}

/// The server's own port and those of its horizons.
async fn listeners(arguments: &ServeArguments, addresses: &[IpAddr]) -> Result<Listeners> {
    let Some((first, more)) = addresses.split_first() else {
        return Err(misuse!("give --bind an address"));
    };
    let main = bind(*first, arguments.port).await?;
    // A port that the system chose for the first address holds for all.
    let port = main.local_addr().map_or(arguments.port, |address| address.port());
    let mut listeners = Listeners::from(main);
    for address in more {
        listeners = listeners.with_address(bind(*address, port).await?);
    }
    for horizon in &arguments.horizon {
        let (name, port) = horizon
            .split_once('=')
            .and_then(|(name, port)| Some((name, port.parse().ok()?)))
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                misuse!("a horizon is a name and a port, as in outside=27117; not {horizon:?}")
            })?;
        listeners = listeners.with_horizon(name, bind(*first, port).await?);
    }
    Ok(listeners)
}

async fn bind(ip: IpAddr, port: u16) -> Result<TcpListener> {
    TcpListener::bind((ip, port)).await.map_err(|error| {
        let address = SocketAddr::new(ip, port);
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "see who has it: ss -ltnp | grep :{port}; or choose another --port, 0 for any"
                )
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "give an address of this machine to --bind".to_owned()
            }
            _ => "choose another --port or --bind".to_owned(),
        };
        problem!("cannot listen on {address}: {error}; {advice}")
    })
}

fn tell_ready(arguments: &ServeArguments, running: &Running, screen: &mut Screen) -> Result<()> {
    let host = running.address().to_string();
    let uri = match &arguments.replset {
        Some(name) => format!("mongodb://{host}/?replicaSet={name}"),
        None => format!("mongodb://{host}/"),
    };
    let uri = match running.requires_tls() {
        true if uri.contains('?') => format!("{uri}&tls=true"),
        true => format!("{uri}?tls=true"),
        false => uri,
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
    if arguments.enable_test_commands {
        screen.talk_unless_json("warning: test commands are on: clients may inject faults");
    }
    if arguments.insecure {
        screen.talk_unless_json("warning: every client that reaches this address reads and writes");
    }
    Ok(())
}
