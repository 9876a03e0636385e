//! The web page: the set as a graph, its figures, and the buttons that break it.
//!
//! ```text
//!   GET /          the page, and its style and scripts beside it
//!   GET /events    the view as server-sent events, the newest one only
//!   GET /view      the view once, as JSON
//!   GET /metrics   the same for Prometheus
//!   POST /actions  breaks or mends a member; only on a set that we started
//! ```
//!
//! The page shows the view, and actions go to the keeper of the processes. Every request
//! passes the `guard` first. Nothing here reaches another host, and the page's own policy forbids the
//! browser to.

mod assets;
mod guard;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use quorate_client::Client;
use quorate_protocol::ServerAddress;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::clock;
use crate::exporter::metrics_reply;
use crate::screen::{Result, Screen};
use crate::task::Task;
use crate::view::Input;
use crate::view::actions::{Action, ActionError, Actions};
use crate::view::collector::Live;
use guard::{Guard, Token};
use stream::Stream;

/// The most bytes of an order: an action and an address are far shorter.
const MAX_BODY: usize = 4096;

/// A page that is served until this is dropped.
pub(crate) struct Page {
    url: String,
    _task: Task,
}

impl Page {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Says where it is.
    pub(crate) fn tell(&self, screen: &mut Screen) -> Result<()> {
        tell_page(&self.url, screen)
    }
}

/// Says where a page is.
pub(crate) fn tell_page(url: &str, screen: &mut Screen) -> Result<()> {
    tell!(screen, "page", {"url": url}, "see it at {url}")
}

/// The state that all requests share.
struct Site {
    live: Live,
    client: Client,
    actions: Option<Arc<dyn Actions>>,
    stream: Stream,
    guard: Guard,
}

/// Whether another port will do if the wanted one is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// The user asked for this very one.
    Refuse,
    /// The user asked for no port.
    TakeAny,
}

/// Serves the page of a view and of the client that feeds it. Without actions, it only shows. Fails
/// if the address is taken, or this machine gives no random numbers.
pub(crate) async fn serve(
    address: SocketAddr,
    otherwise: Otherwise,
    live: Live,
    client: Client,
    actions: Option<Arc<dyn Actions>>,
) -> Result<Page> {
    let listener = match TcpListener::bind(address).await {
        Err(_) if otherwise == Otherwise::TakeAny => {
            TcpListener::bind(SocketAddr::new(address.ip(), 0)).await
        }
        bound => bound,
    };
    let listener = listener.map_err(|error| {
        problem!("cannot show the page on {address}: {error}; give another --web, 0 for any port")
    })?;
    let address = listener.local_addr()?;
    let token = Token::random().map_err(|error| {
        problem!("this machine gives no random numbers: {error}; check /dev/urandom")
    })?;
    let stream = Stream::start(live.clone());
    let guard = Guard::new(address, token);
    let site = Arc::new(Site { live, client, actions, stream, guard });
    let router = Router::new()
        .route("/events", get(events))
        .route("/view", get(view))
        .route("/metrics", get(metrics_text))
        .route("/actions", post(act))
        .fallback(get(asset))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), guard::check))
        .with_state(site);
    // Ends only with the process, or when the page is dropped.
    let task = Task::spawn(async move { axum::serve(listener, router).await });
    Ok(Page { url: format!("http://{address}/"), _task: task })
}

async fn asset(
    State(site): State<Arc<Site>>,
    request: axum::http::Uri,
) -> Result<Response, StatusCode> {
    let found = assets::find(request.path()).ok_or(StatusCode::NOT_FOUND)?;
    let kind = [(header::CONTENT_TYPE, found.kind)];
    Ok(match request.path() {
        "/" => {
            let breakable = site.actions.is_some().to_string();
            let page = found.text.replace("{{token}}", site.guard.token().as_str());
            (kind, page.replace("{{breakable}}", &breakable)).into_response()
        }
        _ => (kind, found.text).into_response(),
    })
}

async fn events(State(site): State<Arc<Site>>) -> Response {
    match site.stream.subscribe() {
        Some(events) => events.into_response(),
        None => {
            let sentence = "too many pages are open; close one and load this again\n";
            (StatusCode::SERVICE_UNAVAILABLE, sentence).into_response()
        }
    }
}

async fn view(State(site): State<Arc<Site>>) -> Response {
    let now = clock::now();
    let view = site.live.read(|view| view.to_json(now));
    json_reply(StatusCode::OK, &view)
}

async fn metrics_text(State(site): State<Arc<Site>>) -> Response {
    metrics_reply(&site.live, &site.client)
}

/// Carries out `{"action": "kill", "member": "127.0.0.1:27017"}`.
async fn act(State(site): State<Arc<Site>>, headers: HeaderMap, body: Bytes) -> Response {
    let refuse = |status, message: &str| json_reply(status, &json!({"message": message}));
    let Some(actions) = &site.actions else {
        return refuse(
            StatusCode::NOT_FOUND,
            "this set was not started here, so it is not broken from here; try quorate up --web",
        );
    };
    if !site.guard.knows(&headers) {
        return refuse(StatusCode::FORBIDDEN, "the token is missing or old; load the page again");
    }
    let order: Value = serde_json::from_slice(&body).unwrap_or_default();
    let action = order["action"].as_str().and_then(Action::parse);
    let member = order["member"].as_str().and_then(|member| member.parse().ok());
    let (Some(action), Some(member)) = (action, member) else {
        let example = "send an action and a member, such as {\"action\": \"kill\", \"member\": \
                       \"127.0.0.1:27017\"}";
        return refuse(StatusCode::BAD_REQUEST, example);
    };
    let member: ServerAddress = member;
    match actions.perform(action, &member).await {
        Ok(message) => {
            // The keeper reports changes of processes itself.
            if action == Action::StepDown {
                let text = message.replace(member.as_str(), "").trim().to_owned();
                site.live.tell(Input::Done { member, text });
            }
            json_reply(StatusCode::OK, &json!({"message": message}))
        }
        Err(error) => {
            let status = match error {
                ActionError::NotOurs(_) => StatusCode::NOT_FOUND,
                ActionError::Senseless { .. } => StatusCode::CONFLICT,
                ActionError::Refused { .. } => StatusCode::BAD_GATEWAY,
                ActionError::Ending => StatusCode::SERVICE_UNAVAILABLE,
            };
            refuse(status, &error.to_string())
        }
    }
}

fn json_reply(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
