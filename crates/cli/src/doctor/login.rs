//! The stage behind hello: the login of the connection string, and the replies of a server after the login.
//! Replies about its set are read by `inside`.
//!
//! Asks one server, the primary if there is one. Sends nothing that changes anything.

use std::time::Duration;

use bson::raw::RawDocument;
use bson::rawdoc;
use quorate_client::dial::{
    AuthenticationCause, AuthenticationError, Authenticator, Connection, Connector,
    ConnectorOptions, ConversationError, Environment, EstablishError, Handshake, Request,
};
use quorate_connection_string::ConnectionString;
use quorate_protocol::{ErrorCode, ServerAddress};
use quorate_server_discovery::ServerType;
use quorate_wire::{CommandError, command_error};
use tokio::time::timeout;

use super::examination::Examination;
use super::inside::{self, Inside};
use super::probe::Prober;
use super::waiting::{self, count};
use crate::finding::{Finding, Stops};
use crate::remedy;
use crate::words::Foreign;

/// Below this share of free connections a word is in place.
const FREE_SHARE: f64 = 0.1;

/// `maxPoolSize` where the connection string says nothing.
const DEFAULT_POOL_SIZE: u64 = 100;

/// The outcome of the stage.
#[derive(Debug)]
pub(super) struct Login {
    /// The server that was asked.
    pub(super) address: ServerAddress,
    /// The outcome of the login, in one line; `None` if the connection string has none.
    pub(super) authenticated: Option<Result<String, String>>,
    /// The server's report about its set, if the login succeeded.
    pub(super) inside: Option<Inside>,
    pub(super) findings: Vec<Finding>,
}

/// Logs in, and asks for the number of connections.
pub(super) async fn log_in(seen: &Examination, prober: &Prober) -> Option<Login> {
    let address = whom(seen)?;
    let mut login =
        Login { address: address.clone(), authenticated: None, inside: None, findings: Vec::new() };
    let authenticator = match seen.uri.credential().cloned().map(Authenticator::new).transpose() {
        Ok(authenticator) => authenticator,
        Err(unsupported) => {
            login.findings.push(
                finding!(problem "mechanism", "{unsupported}")
                    .because(
                        "the login of this connection string cannot be tried from here, so that \
                         nothing behind it is known",
                    )
                    .fix(format!(
                        "try it with a client that has this mechanism: {}",
                        seen.mongosh("db.hello().ok")
                    ))
                    .stopping(Stops::Everything),
            );
            return Some(login);
        }
    };
    let wants_login = authenticator.is_some();
    let mut connection = match connect(prober, &address, authenticator).await {
        Ok(connection) => connection,
        Err(EstablishError::Authentication(error)) => {
            login.authenticated = Some(Err(error.cause.to_string()));
            login.findings.push(refused(&error, seen));
            return Some(login);
        }
        // Hello was answered a moment ago. If the fault lasts, the next run shows it.
        Err(_) => return Some(login),
    };
    if wants_login {
        login.authenticated = Some(Ok(who(&seen.uri)));
    }
    let status = rawdoc! { "serverStatus": 1, "$db": "admin" };
    let asked = connection.round_trip(Request::new(&status));
    if let Ok(Ok(reply)) = timeout(prober.limit, asked).await {
        match command_error(reply.body()) {
            Ok(Some(error)) => login.findings.extend(login_needed(&error, wants_login, seen)),
            Ok(None) => {
                login.findings.extend(connections(seen, &address, reply.body()));
                login.findings.extend(waiting::findings(seen, &address, reply.body()));
            }
            Err(_) => {}
        }
    }
    let (inside, findings) = inside::ask_all(&mut connection, seen, &address, prober.limit).await;
    login.findings.extend(findings);
    login.inside = Some(inside);
    Some(login)
}

/// The primary, or the first that holds data, or any member that knows its set.
fn whom(seen: &Examination) -> Option<ServerAddress> {
    let usable = |kind: ServerType| kind.is_data_bearing();
    let answering =
        || seen.answers().map(|(address, answer)| (address, ServerType::from_reply(&answer.reply)));
    let primary = answering().find(|(_, kind)| *kind == ServerType::RsPrimary);
    let member = |kind| matches!(kind, ServerType::RsOther | ServerType::RsArbiter);
    let chosen = primary
        .or_else(|| answering().find(|(_, kind)| usable(*kind)))
        .or_else(|| answering().find(|(_, kind)| member(*kind)));
    chosen.map(|(address, _)| address.clone())
}

async fn connect(
    prober: &Prober,
    address: &ServerAddress,
    authenticator: Option<Authenticator>,
) -> Result<Connection<quorate_client::dial::Stream>, EstablishError> {
    let limit: Option<Duration> = Some(prober.limit);
    let connector = Connector::new(ConnectorOptions {
        connect_timeout: limit,
        tls: prober.tls.clone(),
        ..ConnectorOptions::default()
    });
    let environment = Environment::of_this_process();
    let handshake =
        Handshake { authenticator, ..Handshake::new(Some("quorate doctor"), &[], &environment) };
    handshake.open(&connector, address, limit).await.map(|(connection, _)| connection)
}

fn who(uri: &ConnectionString) -> String {
    let Some(credential) = uri.credential() else { return String::new() };
    match &credential.user_name {
        Some(user) => format!("user {} of {}", Foreign(user), credential.source),
        None => "the client certificate".to_owned(),
    }
}

fn refused(error: &AuthenticationError, seen: &Examination) -> Finding {
    let user = error.user.as_deref().unwrap_or("of the certificate");
    let told = format!(
        "authentication failed for user {} ({}, database {}): {}",
        Foreign(user),
        error.mechanism,
        error.source_database,
        Foreign(&error.cause)
    );
    let finding = Finding::problem("authentication_failed", told).stopping(Stops::Everything);
    match &error.cause {
        AuthenticationCause::Conversation(
            ConversationError::Refused(_) | ConversationError::Scram(_),
        ) => {
            let look_up = format!(
                "db.getSiblingDB({}).getUser({})",
                remedy::quoted(&error.source_database),
                remedy::quoted(user)
            );
            let finding = finding.because(
                "not a network problem: the server was reached and does not accept this login",
            );
            let finding = match error.source_database.as_str() {
                // The password is wrong, or the user is another database's.
                "admin" => finding.fix("write the right password; this one is not the user's"),
                _ => finding.fix(remedy::NAME_AUTH_SOURCE),
            };
            finding
                .fix(remedy::ENCODE_PASSWORD)
                .fix(format!("look the user up as an administrator: {}", seen.mongosh(&look_up)))
        }
        _ => finding
            .because("the login was begun and not answered to its end")
            .fix("look at the server's log at the same time"),
    }
}

fn login_needed(error: &CommandError, had_login: bool, seen: &Examination) -> Option<Finding> {
    // A user without this right is no problem; an application need not ask for it.
    if error.code != Some(ErrorCode::UNAUTHORIZED.0) || had_login {
        return None;
    }
    Some(
        Finding::problem(
            "login_needed",
            "the server wants a login, and the connection string has none",
        )
        .because("hello needs no login; reads and writes will be refused")
        .fix(format!("{} in place of this connection string", with_login(&seen.uri.to_string())))
        .stopping(Stops::Everything),
    )
}

/// The same connection string with a place for the login.
fn with_login(uri: &str) -> String {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("mongodb", uri));
    if rest.to_ascii_lowercase().contains("authsource=") {
        return format!("{scheme}://USER:PASSWORD@{rest}");
    }
    let joint = match (rest.contains('?'), rest.contains('/')) {
        (true, _) => "&",
        (false, true) => "?",
        (false, false) => "/?",
    };
    format!("{scheme}://USER:PASSWORD@{rest}{joint}authSource=admin")
}

/// How many clients of this kind still fit.
fn connections(
    seen: &Examination,
    address: &ServerAddress,
    status: &RawDocument,
) -> Option<Finding> {
    let counts = status.get_document("connections").ok()?;
    let (current, available) = (count(counts, "current")?, count(counts, "available")?);
    let total = current.saturating_add(available);
    let pool = match seen.uri.options().max_pool_size {
        None => DEFAULT_POOL_SIZE,
        Some(limit) => limit.bound().map_or(total, |most| u64::from(most.get())),
    };
    let each = pool.saturating_add(2);
    let scarce = (available as f64) < (total as f64) * FREE_SHARE || available < each;
    scarce.then(|| {
        finding!(warning "connections_scarce",
            "{address} has {current} of {total} connections in use, {available} are free")
        .because(format!(
            "one client with this connection string may open {each} (2 monitors + {pool} pooled): \
             {} more of them fit",
            available / each
        ))
        .fix(remedy::FEWER_CONNECTIONS)
        .fix(remedy::MORE_CONNECTIONS)
    })
}
