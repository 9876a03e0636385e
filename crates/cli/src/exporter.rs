//! `--metrics ADDR`: figures for Prometheus and answers for load balancers, to be asked from elsewhere.
//!
//! ```text
//!   GET /metrics                  the text format of Prometheus
//!   GET /healthz                  200 while there is a primary and a majority answers, 503 otherwise
//!   GET /primary[?member=HOST]    200 with the primary, or if that member is it; 503 otherwise
//!   GET /secondary[?member=HOST]  the same for secondaries
//! ```
//!
//! Beyond this machine every request carries `Authorization: Bearer TOKEN`, or the client shows a
//! certificate (`tls`). Nothing can be changed through here.

mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate_client::Client;
use quorate_protocol::PROMETHEUS_CONTENT_TYPE;
use quorate_server_discovery::ServerType;
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;

use crate::clock;
use crate::metrics;
use crate::screen::{Result, Screen};
use crate::task::Task;
use crate::view::collector::Live;

pub(crate) use tls::TlsFiles;

/// Which clients may ask, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// The secret that requests carry.
    pub(crate) token: Option<String>,
    /// The files of TLS, if the endpoint encrypts.
    pub(crate) tls: Option<TlsFiles>,
}

impl Access {
    /// Whether a client proves who it is.
    fn is_proven(&self) -> bool {
        self.token.is_some() || self.tls.as_ref().is_some_and(|tls| tls.authority.is_some())
    }
}

/// A token has at least this many characters.
const LEAST_TOKEN: usize = 16;

/// The longest token file that is read, in bytes.
const MAX_TOKEN_FILE: usize = 4096;

/// An endpoint that is served until this is dropped.
pub(crate) struct Exporter {
    address: SocketAddr,
    scheme: &'static str,
    _task: Task,
}

impl Exporter {
    /// Says where it is.
    pub(crate) fn tell(&self, screen: &mut Screen) -> Result<()> {
        let url = format!("{}://{}/metrics", self.scheme, self.address);
        tell!(screen, "metrics", {"url": url}, "metrics at {url}")
    }
}

/// Reads the token of a file: its first line. Fails if the file cannot be read, or its first line
/// is too short to be a secret.
pub(crate) fn read_token(path: &Path) -> Result<String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        misuse!("the token file {shown} cannot be read: {error}; check its path")
    })?;
    let token = text.lines().next().unwrap_or_default().trim().to_owned();
    refuse_if!(text.len() > MAX_TOKEN_FILE || token.chars().count() < LEAST_TOKEN => misuse,
        "{shown} holds no token of at least {LEAST_TOKEN} characters; make one: openssl rand \
         -hex 32 > {shown}");
    Ok(token)
}

struct Site {
    live: Live,
    client: Client,
    token: Option<String>,
}

/// Serves the figures of a view and of the client that feeds it. Fails if the address is taken, or
/// reachable from elsewhere without a token.
pub(crate) async fn serve(
    address: SocketAddr,
    access: Access,
    live: Live,
    client: Client,
) -> Result<Exporter> {
    refuse_if!(!address.ip().is_loopback() && !access.is_proven() => misuse,
        "other machines reach {address}, so that requests must prove who they are; give the \
         file of a secret with --metrics-token, or the authorities of their certificates with \
         --metrics-ca");
    let acceptor = access.tls.as_ref().map(tls::acceptor).transpose();
    let acceptor = acceptor
        .map_err(|error| misuse!("{error}; see --metrics-cert, --metrics-key and --metrics-ca"))?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        problem!(
            "cannot serve metrics on {address}: {error}; give another --metrics, 0 for any port"
        )
    })?;
    let address = listener.local_addr()?;
    let site = Arc::new(Site { live, client, token: access.token });
    let router = Router::new()
        .route("/metrics", get(figures))
        .route("/healthz", get(health))
        .route("/primary", get(primary))
        .route("/secondary", get(secondary))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), check))
        .with_state(site);
    let scheme = if acceptor.is_some() { "https" } else { "http" };
    // Both end only with the process, or when the exporter is dropped.
    let task = match acceptor {
        None => Task::spawn(async move { axum::serve(listener, router).await }),
        Some(acceptor) => {
            let listener = tls::TlsListener::new(listener, acceptor)?;
            Task::spawn(async move { axum::serve(listener, router).await })
        }
    };
    Ok(Exporter { address, scheme, _task: task })
}

/// Refuses requests without the token, if there is one.
async fn check(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    let allowed = match &site.token {
        None => true,
        Some(token) => given.is_some_and(|given| is_same(given, token)),
    };
    match allowed {
        true => next.run(request).await,
        false => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, "give the token of --metrics-token\n")
                .into_response()
        }
    }
}

/// Compares without telling by the time it takes where two texts differ.
fn is_same(left: &str, right: &str) -> bool {
    left.as_bytes().ct_eq(right.as_bytes()).into()
}

async fn figures(State(site): State<Arc<Site>>) -> Response {
    metrics_reply(&site.live, &site.client)
}

/// The metrics of the deployment and of the client that watches it.
pub(crate) fn metrics_reply(live: &Live, client: &Client) -> Response {
    let now = clock::now();
    let mut text = live.read(|view| metrics::text(view, now));
    text.push_str(&client.metrics().to_prometheus());
    ([(header::CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE)], text).into_response()
}

async fn health(State(site): State<Arc<Site>>) -> Response {
    let (well, text) = site.live.read(|view| {
        let facts = view.facts(clock::now());
        let has_majority = facts.has_majority() != Some(false);
        let is_set = facts.topology_type.is_replica_set();
        let well = facts.up > 0 && (!is_set || facts.primary.is_some()) && has_majority;
        let text = match (facts.primary, has_majority) {
            (Some(primary), true) => format!("{primary} leads\n"),
            (Some(primary), false) => format!("{primary} leads without a majority\n"),
            (None, _) if well => "it answers\n".to_owned(),
            (None, _) => "no primary\n".to_owned(),
        };
        (well, text)
    });
    (if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text).into_response()
}

async fn primary(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    role(&site, query.as_deref(), ServerType::RsPrimary)
}

async fn secondary(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    role(&site, query.as_deref(), ServerType::RsSecondary)
}

/// The members of this role, or whether one of them is the named one.
fn role(site: &Site, query: Option<&str>, wanted: ServerType) -> Response {
    let named = query.and_then(|query| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| *name == "member").map(|(_, member)| member).next()
    });
    let named = named.map(|member| member.replace("%3A", ":").replace("%3a", ":"));
    let found: Vec<String> = site.live.read(|view| {
        let members = view.members();
        let suits = members.iter().filter(|member| member.client_type == Some(wanted));
        suits.map(|member| member.address.to_string()).collect()
    });
    let suits = match &named {
        Some(named) => found.contains(named),
        None => !found.is_empty(),
    };
    let status = if suits { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, format!("{}\n", found.join("\n"))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_secrets() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "short\n").unwrap();
        assert!(read_token(file.path()).is_err());
        std::fs::write(file.path(), "0123456789abcdef0123\nmore\n").unwrap();
        assert_eq!(read_token(file.path()).unwrap(), "0123456789abcdef0123");
        assert!(is_same("abc", "abc") && !is_same("abc", "abd") && !is_same("abc", "ab"));
    }
}
