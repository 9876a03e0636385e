//! What every command that talks to a deployment does alike: reading the connection string, making
//! a runtime, and telling why it did not work.

use std::path::PathBuf;

use quorate_client::tls::TlsOptions;
use quorate_client::{ClientError, Error, ErrorKind};
use quorate_connection_string::{ConnectionString, Seeds};

use crate::screen::Failure;
use crate::words::OneLine;

/// Reads a connection string.
pub(crate) fn parse(text: &str) -> Result<ConnectionString, Failure> {
    let uri = ConnectionString::parse(text).map_err(|error| Failure::Misuse(error.to_string()))?;
    match uri.seeds() {
        Seeds::Hosts(_) => Ok(uri),
        Seeds::Srv(name) => Err(no_srv(name)),
    }
}

/// DNS seed lists are not looked up by this version.
pub(crate) fn no_srv(name: &str) -> Failure {
    Failure::Problem(format!(
        "this version does not ask DNS for SRV records; list the hosts of {name} yourself, from \
         dig +short SRV _mongodb._tcp.{name}"
    ))
}

/// The TLS options of a connection string that wants TLS.
pub(crate) fn tls_options(uri: &ConnectionString) -> TlsOptions {
    let options = uri.options();
    let insecure = options.tls_insecure == Some(true);
    TlsOptions {
        ca_file: options.tls_ca_file.as_ref().map(PathBuf::from),
        certificate_key_file: options.tls_certificate_key_file.as_ref().map(PathBuf::from),
        allow_invalid_certificates: insecure
            || options.tls_allow_invalid_certificates == Some(true),
        allow_invalid_hostnames: insecure || options.tls_allow_invalid_hostnames == Some(true),
    }
}

/// A runtime for one command: one thread, since all it does is wait for sockets.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        let advice = "check the limits of this process (ulimit -a)";
        Failure::Problem(format!("cannot start: {error}; {advice}"))
    })
}

/// The client could not be made.
pub(crate) fn refused(error: &ClientError) -> Failure {
    Failure::Misuse(format!("{error}; correct the connection string"))
}

/// An operation failed.
pub(crate) fn failed(error: &Error, uri: &str) -> Failure {
    // These tell what to do themselves.
    let complete = matches!(
        error.kind(),
        ErrorKind::Selection(_) | ErrorKind::ImpossibleSelection(_) | ErrorKind::ServerGone(_)
    );
    let text = error.to_string();
    let text = text.lines().map(|line| OneLine(line).to_string()).collect::<Vec<_>>().join("\n");
    Failure::Problem(match complete {
        true => text,
        false if matches!(error.kind(), ErrorKind::Command { .. } | ErrorKind::Write(_)) => {
            format!("{text}; the server was reached and said no: correct the command")
        }
        false => {
            let shown = ConnectionString::parse(uri).map(|uri| uri.to_string()).unwrap_or_default();
            format!("{text}; quorate doctor '{shown}' tells more")
        }
    })
}
