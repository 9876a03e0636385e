//! The names of the client's metrics for Prometheus.

use quorate_protocol::PrometheusText;
use quorate_protocol::SampleKind::{self, Counter, Gauge};

use super::{Metrics, ServerMetrics};

/// A family of samples with one value for the client: its name, its help, its value.
type ClientFamily = (&'static str, &'static str, fn(&Metrics) -> f64);

/// A family of samples with one value for each server.
type ServerFamily = (&'static str, &'static str, SampleKind, fn(&ServerMetrics) -> Option<f64>);

/// The counters of the client.
const CLIENT: [ClientFamily; 9] = [
    ("quorate_client_commands_started_total", "Commands sent to servers.", |m| {
        m.commands_started as f64
    }),
    ("quorate_client_commands_succeeded_total", "Commands that a server carried out.", |m| {
        m.commands_succeeded as f64
    }),
    (
        "quorate_client_commands_failed_total",
        "Commands that a server refused or whose connection failed.",
        |m| m.commands_failed as f64,
    ),
    ("quorate_client_commands_retried_total", "Commands sent again after an error.", |m| {
        m.commands_retried as f64
    }),
    (
        "quorate_client_server_selections_total",
        "Server selections that ended, with a server or without.",
        |m| m.selections as f64,
    ),
    (
        "quorate_client_server_selections_waited_total",
        "Server selections that had to wait for a suitable server.",
        |m| m.selections_waited as f64,
    ),
    (
        "quorate_client_server_selections_failed_total",
        "Server selections that ended without a server.",
        |m| m.selections_failed as f64,
    ),
    (
        "quorate_client_server_selection_wait_seconds_total",
        "Time spent waiting for suitable servers.",
        |m| m.selection_wait.as_secs_f64(),
    ),
    ("quorate_client_topology_changes_total", "Changes of the topology description.", |m| {
        m.topology_changes as f64
    }),
];

/// The figures of each server.
const SERVER: [ServerFamily; 15] = [
    (
        "quorate_client_checks_started_total",
        "Checks of the server that were started.",
        Counter,
        |s| Some(s.checks_started as f64),
    ),
    ("quorate_client_checks_succeeded_total", "Checks that the server answered.", Counter, |s| {
        Some(s.checks_succeeded as f64)
    }),
    ("quorate_client_checks_failed_total", "Checks of the server that failed.", Counter, |s| {
        Some(s.checks_failed as f64)
    }),
    (
        "quorate_client_round_trip_seconds",
        "Average round trip time to the server, as server selection uses it.",
        Gauge,
        |s| s.round_trip_time.map(|time| time.as_secs_f64()),
    ),
    ("quorate_client_operations_running", "Operations that run on the server now.", Gauge, |s| {
        Some(s.operations as f64)
    }),
    (
        "quorate_client_pool_connections",
        "Connections of the pool: being established, idle and in use.",
        Gauge,
        |s| Some(s.pool.total as f64),
    ),
    ("quorate_client_pool_connections_idle", "Idle connections of the pool.", Gauge, |s| {
        Some(s.pool.available as f64)
    }),
    (
        "quorate_client_pool_connections_pending",
        "Connections of the pool that are being established.",
        Gauge,
        |s| Some(s.pool.pending as f64),
    ),
    (
        "quorate_client_pool_callers_waiting",
        "Callers that wait for a connection now.",
        Gauge,
        |s| Some(s.pool.waiting as f64),
    ),
    (
        "quorate_client_pool_connections_created_total",
        "Connections that the pool made.",
        Counter,
        |s| Some(s.connections_created as f64),
    ),
    (
        "quorate_client_pool_connections_closed_total",
        "Connections that the pool closed.",
        Counter,
        |s| Some(s.connections_closed as f64),
    ),
    ("quorate_client_pool_checkouts_total", "Connections handed out to callers.", Counter, |s| {
        Some(s.check_outs as f64)
    }),
    (
        "quorate_client_pool_checkouts_failed_total",
        "Callers that got no connection.",
        Counter,
        |s| Some(s.check_outs_failed as f64),
    ),
    (
        "quorate_client_pool_checkout_wait_seconds_total",
        "Time that callers waited for connections.",
        Counter,
        |s| Some(s.check_out_wait.as_secs_f64()),
    ),
    (
        "quorate_client_pool_cleared_total",
        "How often the pool was cleared after an error.",
        Counter,
        |s| Some(s.pool_cleared as f64),
    ),
];

/// One sample with the value 1 that tells by its labels what a server is.
const SERVER_TYPE: (&str, &str) =
    ("quorate_client_server_type", "What the server is now: 1 for its type.");

impl Metrics {
    /// The text that Prometheus reads; its content type is
    /// [`PROMETHEUS_CONTENT_TYPE`](crate::PROMETHEUS_CONTENT_TYPE).
    pub fn to_prometheus(&self) -> String {
        let mut text = PrometheusText::default();
        for (name, help, value) in CLIENT {
            text.single(name, help, Counter, Some(value(self)));
        }
        let (name, help) = SERVER_TYPE;
        text.family(name, help, Gauge);
        for server in &self.servers {
            let labels = [("server", server.address.as_str()), ("type", server.server_type)];
            text.sample(name, &labels, Some(1.0));
        }
        for (name, help, kind, value) in SERVER {
            text.family(name, help, kind);
            for server in &self.servers {
                text.sample(name, &[("server", server.address.as_str())], value(server));
            }
        }
        text.into_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::pool::PoolCounts;

    fn metrics() -> Metrics {
        let server = |address: &str, round_trip_time| ServerMetrics {
            address: address.parse().unwrap(),
            server_type: "RSPrimary",
            round_trip_time,
            pool: PoolCounts { total: 3, available: 2, pending: 0, waiting: 0 },
            operations: 1,
            checks_started: 5,
            checks_succeeded: 4,
            checks_failed: 1,
            connections_created: 3,
            connections_closed: 0,
            check_outs: 9,
            check_outs_failed: 0,
            check_out_wait: Duration::from_millis(1500),
            pool_cleared: 1,
        };
        Metrics {
            commands_started: 10,
            commands_succeeded: 9,
            commands_failed: 1,
            commands_retried: 1,
            selections: 11,
            selections_waited: 1,
            selections_failed: 0,
            selection_wait: Duration::from_millis(250),
            topology_changes: 4,
            servers: vec![server("a:1", Some(Duration::from_micros(500))), server("b:2", None)],
        }
    }

    /// The rules of the text format: a HELP and a TYPE line before the samples of each family, no
    /// family twice, names of the allowed characters, counters that end in `_total`, values that are
    /// numbers, and a line break at the end.
    #[test]
    fn the_text_keeps_to_the_format() {
        let text = metrics().to_prometheus();
        assert!(text.ends_with('\n'));
        let mut seen = BTreeSet::new();
        let (mut family, mut kind, mut described) = ("", "", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(seen.insert(name.to_owned()), "{name} twice");
                assert!(help.ends_with('.') && !help.contains('\\'), "{help}");
                described = name;
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                (family, kind) = rest.split_once(' ').unwrap();
                assert_eq!(family, described);
                assert_eq!(kind == "counter", family.ends_with("_total"), "{family}");
            } else {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let name = sample.split('{').next().unwrap();
                assert_eq!(name, family, "{line}");
                assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
                assert!(value.parse::<f64>().unwrap() >= 0.0, "{line}");
                assert!(!kind.is_empty());
            }
        }
        assert_eq!(seen.len(), CLIENT.len() + SERVER.len() + 1);
    }

    #[test]
    fn samples_say_what_was_counted() {
        let text = metrics().to_prometheus();
        for line in [
            "quorate_client_commands_started_total 10",
            "quorate_client_server_selection_wait_seconds_total 0.25",
            "quorate_client_server_type{server=\"a:1\",type=\"RSPrimary\"} 1",
            "quorate_client_round_trip_seconds{server=\"a:1\"} 0.0005",
            "quorate_client_pool_checkout_wait_seconds_total{server=\"b:2\"} 1.5",
            "quorate_client_checks_failed_total{server=\"b:2\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("quorate_client_round_trip_seconds{server=\"b:2\"}"));
    }
}
