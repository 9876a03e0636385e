//! The common part of all commands that talk to a deployment: reading the connection string, making
//! a runtime, and telling why it did not work.

use std::time::Duration;

use quorate_client::{Client, ClientOptions, Error, ErrorKind, TlsOptions};
use quorate_connection_string::{ConnectionString, Seeds};
use quorate_protocol::{ErrorCode as ServerCode, ReadPreference, ServerAddress};
use quorate_seed_list::{ResolveError, SeedListResolver};
use quorate_server_discovery::{SelectionFailure, SelectionRequest};

use crate::remedy::{self, CHECK_LIMITS};
use crate::screen::{Failure, Result};
use crate::words::OneLine;

/// `$changeStream` is asked of a server that belongs to no set.
const NOT_ON_A_SET: ServerCode = ServerCode(40573);

/// Reads a connection string.
pub(crate) fn parse(text: &str) -> Result<ConnectionString> {
    ConnectionString::parse(text).map_err(|error| Failure::Misuse(error.to_string()))
}

/// The connection string with the options that DNS adds, and the hosts to begin with. Only
/// `mongodb+srv://` asks DNS. Fails if DNS has no answer to believe.
pub(crate) async fn find_seeds(
    uri: ConnectionString,
) -> Result<(ConnectionString, Vec<ServerAddress>), ResolveError> {
    if let Seeds::Hosts(hosts) = uri.seeds() {
        let hosts = hosts.clone();
        return Ok((uri, hosts));
    }
    // The seed only decides which hosts srvMaxHosts leaves out.
    let seed = crate::clock::now().as_nanos();
    let list = SeedListResolver::from_system()?.resolve(&uri, seed).await?;
    Ok((list.connection_string, list.seeds))
}

/// A client of this connection string, and the options it has in the end. `mongodb+srv://` asks DNS
/// first, and again for as long as that makes sense. Fails if DNS has no answer to believe, or the
/// options contradict each other.
pub(crate) async fn client(
    uri: &ConnectionString,
    change: impl FnOnce(&mut ClientOptions),
) -> Result<(Client, ClientOptions)> {
    let mut kept = ClientOptions::from_connection_string(uri);
    let change = |options: &mut ClientOptions| {
        change(options);
        kept.clone_from(options);
    };
    let client = match uri.seeds() {
        Seeds::Hosts(_) => {
            let mut options = ClientOptions::from_connection_string(uri);
            change(&mut options);
            Client::with_options(options)?
        }
        Seeds::Srv(_) => {
            let resolver = SeedListResolver::from_system()?;
            Client::connect_with_resolver(uri, resolver, change).await?
        }
    };
    Ok((client, kept))
}

/// Does something with a client of this connection string, and closes it.
pub(crate) async fn with_client<T>(
    uri: &ConnectionString,
    change: impl FnOnce(&mut ClientOptions),
    work: impl AsyncFnOnce(&Client) -> Result<T>,
) -> Result<T> {
    let (client, _) = client(uri, change).await?;
    let done = work(&client).await;
    client.close().await;
    done
}

/// Reads what a majority has, at the primary: no failover takes it back.
pub(crate) fn read_committed(options: &mut ClientOptions) {
    options.read_concern = Some("majority".to_owned());
    options.read_preference = ReadPreference::PRIMARY;
}

/// The TLS options of a connection string; the defaults if it wants none.
pub(crate) fn tls_options(uri: &ConnectionString) -> TlsOptions {
    TlsOptions::from_connection_string(uri).unwrap_or_default()
}

/// A runtime for one command: one thread, since all it does is wait for sockets.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(not_started)
}

/// The system refuses a runtime its threads or descriptors.
pub(crate) fn not_started(error: std::io::Error) -> Failure {
    problem!("cannot start: {error}; {CHECK_LIMITS}")
}

/// The set has no primary that takes an operation, after so much time.
pub(crate) fn no_primary(client: &Client, waited: Duration, uri: &str) -> Failure {
    let failure = SelectionFailure::new(
        client.topology(),
        &SelectionRequest::WRITE,
        client.clock().now(),
        waited,
    );
    problem!("{failure}; {} tells more", remedy::quorate("doctor", &shown(uri)))
}

/// The connection string without its password.
fn shown(uri: &str) -> String {
    ConnectionString::parse(uri).map(|uri| uri.to_string()).unwrap_or_default()
}

/// An operation failed.
pub(crate) fn failed(error: &Error, uri: &str) -> Failure {
    // The text of these errors ends with a next step.
    let complete = matches!(
        error.kind(),
        ErrorKind::Selection(_) | ErrorKind::ImpossibleSelection(_) | ErrorKind::ServerGone(_)
    );
    let text = error.to_string();
    let text = text.lines().map(|line| OneLine(line).to_string()).collect::<Vec<_>>().join("\n");
    Failure::Problem(match complete {
        true => text,
        false if matches!(error.kind(), ErrorKind::Command { .. } | ErrorKind::Write(_)) => {
            let step = match error.code().map(ServerCode) {
                // The client has not logged in.
                Some(ServerCode::UNAUTHORIZED) if text.contains("requires authentication") => {
                    "log in with mongodb://USER:PASSWORD@ at the beginning of the connection string"
                }
                Some(ServerCode::UNAUTHORIZED) => {
                    "log in as a user who may, or have a role granted"
                }
                Some(ServerCode::NOT_WRITABLE_PRIMARY) => {
                    "write to the primary: name the set with replicaSet=, without directConnection"
                }
                Some(NOT_ON_A_SET) => {
                    "only replica sets tell changes; quorate up starts one, and serve --replset \
                     makes a server a member of one"
                }
                _ => "correct the command",
            };
            format!("{text}; the server was reached and said no: {step}")
        }
        false => {
            format!("{text}; quorate doctor '{}' tells more", shown(uri))
        }
    })
}
