//! Server parameters and fail points.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{Bson, Document, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, Result};
use crate::fields::Fields;
use crate::generic_arguments::is_generic;
use crate::node::MAX_CLOCK_DRIFT_SECS;
use crate::replication::IndexPrefetch;
use crate::users::AUTHENTICATION_SCHEMA;

/// What is read ahead of applying.
const INDEX_PREFETCH: &str = "replIndexPrefetch";

/// Whether clients' connections end when the member steps down.
const CLOSE_ON_STEP_DOWN: &str = "closeConnectionsOnStepDown";

/// Whether writers are slowed while a majority falls behind.
const FLOW_CONTROL: &str = "enableFlowControl";

/// How long a transaction may live, in seconds.
const TRANSACTION_LIFETIME: &str = "transactionLifetimeLimitSeconds";

/// How long a transaction waits for a change of a collection's description.
const TRANSACTION_LOCK_REQUEST: &str = "maxTransactionLockRequestTimeoutMillis";

/// Those that can be changed while the server runs.
const CHANGEABLE: [&str; 5] = [
    INDEX_PREFETCH, CLOSE_ON_STEP_DOWN, FLOW_CONTROL, TRANSACTION_LIFETIME,
    TRANSACTION_LOCK_REQUEST,
];

/// What clients ask for, and the answer.
fn parameters(request: &Request<'_>) -> Document {
    let mut parameters = doc! {
        "featureCompatibilityVersion": { "version": "7.0" },
        "enableTestCommands": request.node.options().test_commands,
        "authSchemaVersion": AUTHENTICATION_SCHEMA,
        "authenticationMechanisms": ["SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509"],
        "requireApiVersion": false,
        "logicalSessionRefreshMillis": 300_000,
        "localLogicalSessionTimeoutMinutes": crate::sessions::SESSION_TIMEOUT_MINUTES as i32,
        "maxAcceptableLogicalClockDriftSecs": MAX_CLOCK_DRIFT_SECS,
        "cursorTimeoutMillis": crate::cursors::CURSOR_TIMEOUT.as_millis() as i64,
    };
    let lifetime = request.node.write(request.context.now).state.transactions.table.lifetime();
    parameters.insert(TRANSACTION_LIFETIME, lifetime.as_secs() as i32);
    let millis = request.node.end_queue().lock_request_millis();
    parameters.insert(TRANSACTION_LOCK_REQUEST, millis);
    if let Some(replication) = request.node.replication() {
        parameters.insert(INDEX_PREFETCH, replication.prefetch.get().name());
        let closes = replication.closes_on_step_down.load(Ordering::Relaxed);
        parameters.insert(CLOSE_ON_STEP_DOWN, closes);
        parameters.insert(FLOW_CONTROL, replication.has_flow_control());
    }
    parameters
}

pub(super) fn get_parameter(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let option = |name| match command.body.get("getParameter") {
        Some(Bson::Document(options)) => options.get_bool(name).unwrap_or(false),
        _ => false,
    };
    let is_star =
        matches!(command.body.get("getParameter"), Some(Bson::String(text)) if text == "*");
    let (all, in_detail) = (is_star || option("allParameters"), option("showDetails"));
    let mut found = Document::new();
    for (name, value) in parameters(request) {
        if !(all || command.body.contains_key(&name)) {
            continue;
        }
        let at_runtime = CHANGEABLE.contains(&name.as_str());
        let shown = match in_detail {
            true => Bson::Document(doc! {
                "value": value, "settableAtRuntime": at_runtime, "settableAtStartup": false,
            }),
            false => value,
        };
        found.insert(name, shown);
    }
    refuse_if!(found.is_empty() => INVALID_OPTIONS,
        "no option found to get; use getParameter: '*' for all of them");
    found.insert("ok", 1.0);
    reply(&found)
}

/// Changes the parameters that are named, all of them or, if one of them cannot be changed, none.
pub(super) fn set_parameter(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "setParameter");
    let known = parameters(request);
    let names = command.body.keys().skip(1).filter(|name| !is_generic(name.as_bytes()));
    let settings: Vec<_> =
        names.map(|name| Setting::read(name, &fields, &known)).collect::<Result<_, _>>()?;
    let were: Vec<_> = settings.into_iter().map(|setting| setting.make(request)).collect();
    let was = were.into_iter().next().ok_or_else(|| not_found(None))?;
    reply(&doc! { "was": was, "ok": 1.0 })
}

/// A parameter that a client changes, with its new value.
enum Setting {
    IndexPrefetch(IndexPrefetch),
    CloseOnStepDown(bool),
    FlowControl(bool),
    TransactionLifetime(Duration),
    TransactionLockRequest(i32),
}

impl Setting {
    fn read(name: &str, fields: &Fields<'_>, known: &Document) -> Result<Self> {
        // Those of a set are there on its members alone.
        if !known.contains_key(name) {
            return Err(not_found(Some(name)));
        }
        let flag = || Ok(fields.boolean(name)?.unwrap_or_default());
        let number = |least: i32| {
            let number = fields.integer(name)?.and_then(|number| i32::try_from(number).ok());
            let must = || fail!(BAD_VALUE, "{name} must be at least {least}");
            number.filter(|number| *number >= least).ok_or_else(must)
        };
        match name {
            INDEX_PREFETCH => {
                let wanted = fields.raw(name).and_then(Bson::as_str);
                let wanted = wanted
                    .and_then(IndexPrefetch::from_name)
                    .ok_or_else(|| fail!(BAD_VALUE, "{name} must be none, _id_only or all"))?;
                Ok(Self::IndexPrefetch(wanted))
            }
            CLOSE_ON_STEP_DOWN => flag().map(Self::CloseOnStepDown),
            FLOW_CONTROL => flag().map(Self::FlowControl),
            TRANSACTION_LIFETIME => {
                let seconds = u64::from(number(1)?.unsigned_abs());
                Ok(Self::TransactionLifetime(Duration::from_secs(seconds)))
            }
            TRANSACTION_LOCK_REQUEST => number(-1).map(Self::TransactionLockRequest),
            _ => Err(fail!(
                INVALID_OPTIONS,
                "parameter {name} cannot be changed while the server runs"
            )),
        }
    }

    /// Changes the parameter. Returns what it was.
    fn make(self, request: &Request<'_>) -> Bson {
        let replication = request.node.replication();
        match (self, replication) {
            (Self::IndexPrefetch(setting), Some(replication)) => {
                let was = replication.prefetch.get().name();
                replication.prefetch.set(setting);
                was.into()
            }
            (Self::CloseOnStepDown(closes), Some(replication)) => {
                replication.closes_on_step_down.swap(closes, Ordering::Relaxed).into()
            }
            (Self::FlowControl(enabled), Some(replication)) => {
                let was = replication.has_flow_control();
                replication.set_flow_control(enabled);
                was.into()
            }
            (Self::TransactionLifetime(lifetime), _) => {
                let mut writer = request.node.write(request.context.now);
                let table = &mut writer.state.transactions.table;
                let was = table.lifetime().as_secs() as i32;
                table.set_lifetime(lifetime);
                was.into()
            }
            (Self::TransactionLockRequest(millis), _) => {
                request.node.end_queue().set_lock_request_millis(millis).into()
            }
            (_, None) => Bson::Null,
        }
    }
}

fn not_found(name: Option<&str>) -> CommandError {
    let named = name.map(|name| format!(": {name}")).unwrap_or_default();
    fail!(INVALID_OPTIONS, "no option found to set{named}; use getParameter: '*' for their names")
}

pub(super) fn configure_fail_point(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let count = request.node.fail_points().configure(&command.body.to_document())?;
    reply(&doc! { "count": count, "ok": 1.0 })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_storage::ModelStore;

    use super::*;
    use crate::node::{Node, NodeOptions};
    use crate::test_support::{now, run_on_admin};

    /// The manual, "setParameter" and "getParameter".
    #[test]
    fn parameters_are_changed_together_and_told_in_detail() {
        let options = NodeOptions { oplog_bytes: Some(1 << 20), ..NodeOptions::default() };
        let node = Node::open(Arc::new(ModelStore::new()), options, now()).unwrap();
        node.join_replica_set(now()).unwrap();
        let code = |reply: &Document| reply.get_i32("code").ok();
        let details = |name: &str| {
            let ask = doc! { "getParameter": { "showDetails": true }, name: 1 };
            run_on_admin(&node, ask).get_document(name).unwrap().clone()
        };
        let set = |more: Document| {
            let mut command = doc! { "setParameter": 1 };
            command.extend(more);
            run_on_admin(&node, command)
        };
        for wrong in [
            doc! { FLOW_CONTROL: false, "noSuchParameter": 1 },
            doc! { FLOW_CONTROL: false, "requireApiVersion": true },
            doc! { FLOW_CONTROL: false, TRANSACTION_LIFETIME: 0 },
            doc! {},
        ] {
            let reply = set(wrong.clone());
            assert!(matches!(code(&reply), Some(2 | 72)), "{wrong}: {reply}");
        }
        let kept = doc! { "value": true, "settableAtRuntime": true, "settableAtStartup": false };
        assert_eq!(details(FLOW_CONTROL), kept, "none was changed");
        let reply = set(doc! { FLOW_CONTROL: false, TRANSACTION_LIFETIME: 7, "comment": "x" });
        assert_eq!(reply.get_bool("was").ok(), Some(true), "{reply}");
        assert_eq!(details(FLOW_CONTROL).get_bool("value").ok(), Some(false));
        assert_eq!(details(TRANSACTION_LIFETIME).get_i32("value").ok(), Some(7));
        let fixed = details("requireApiVersion");
        assert_eq!(fixed.get_bool("settableAtRuntime").ok(), Some(false));
    }
}
