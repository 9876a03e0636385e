//! Metrics in the text format that Prometheus reads (version 0.0.4).

use std::fmt::{self, Write};

use super::{Metrics, ServerMetrics};

/// `Content-Type` of the text.
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of samples with one value for the client.
struct ClientFamily {
    name: &'static str,
    help: &'static str,
    value: fn(&Metrics) -> f64,
}

/// A family of samples with one value for each server.
struct ServerFamily {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    value: fn(&ServerMetrics) -> Option<f64>,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// The counters of the client.
const CLIENT: [ClientFamily; 9] = [
    ClientFamily {
        name: "quorate_client_commands_started_total",
        help: "Commands sent to servers.",
        value: |m| m.commands_started as f64,
    },
    ClientFamily {
        name: "quorate_client_commands_succeeded_total",
        help: "Commands that a server carried out.",
        value: |m| m.commands_succeeded as f64,
    },
    ClientFamily {
        name: "quorate_client_commands_failed_total",
        help: "Commands that a server refused or whose connection failed.",
        value: |m| m.commands_failed as f64,
    },
    ClientFamily {
        name: "quorate_client_commands_retried_total",
        help: "Commands sent again after an error.",
        value: |m| m.commands_retried as f64,
    },
    ClientFamily {
        name: "quorate_client_server_selections_total",
        help: "Server selections that ended, with a server or without.",
        value: |m| m.selections as f64,
    },
    ClientFamily {
        name: "quorate_client_server_selections_waited_total",
        help: "Server selections that had to wait for a suitable server.",
        value: |m| m.selections_waited as f64,
    },
    ClientFamily {
        name: "quorate_client_server_selections_failed_total",
        help: "Server selections that ended without a server.",
        value: |m| m.selections_failed as f64,
    },
    ClientFamily {
        name: "quorate_client_server_selection_wait_seconds_total",
        help: "Time spent waiting for suitable servers.",
        value: |m| m.selection_wait.as_secs_f64(),
    },
    ClientFamily {
        name: "quorate_client_topology_changes_total",
        help: "Changes of the topology description.",
        value: |m| m.topology_changes as f64,
    },
];

/// What is told of each server.
const SERVER: [ServerFamily; 15] = [
    ServerFamily {
        name: "quorate_client_checks_started_total",
        help: "Checks of the server that were started.",
        kind: Kind::Counter,
        value: |s| Some(s.checks_started as f64),
    },
    ServerFamily {
        name: "quorate_client_checks_succeeded_total",
        help: "Checks that the server answered.",
        kind: Kind::Counter,
        value: |s| Some(s.checks_succeeded as f64),
    },
    ServerFamily {
        name: "quorate_client_checks_failed_total",
        help: "Checks of the server that failed.",
        kind: Kind::Counter,
        value: |s| Some(s.checks_failed as f64),
    },
    ServerFamily {
        name: "quorate_client_round_trip_seconds",
        help: "Average round trip time to the server, as server selection uses it.",
        kind: Kind::Gauge,
        value: |s| s.round_trip_time.map(|time| time.as_secs_f64()),
    },
    ServerFamily {
        name: "quorate_client_operations_running",
        help: "Operations that run on the server now.",
        kind: Kind::Gauge,
        value: |s| Some(s.operations as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_connections",
        help: "Connections of the pool: being established, idle and in use.",
        kind: Kind::Gauge,
        value: |s| Some(s.pool.total as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_connections_idle",
        help: "Idle connections of the pool.",
        kind: Kind::Gauge,
        value: |s| Some(s.pool.available as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_connections_pending",
        help: "Connections of the pool that are being established.",
        kind: Kind::Gauge,
        value: |s| Some(s.pool.pending as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_callers_waiting",
        help: "Callers that wait for a connection now.",
        kind: Kind::Gauge,
        value: |s| Some(s.pool.waiting as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_connections_created_total",
        help: "Connections that the pool made.",
        kind: Kind::Counter,
        value: |s| Some(s.connections_created as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_connections_closed_total",
        help: "Connections that the pool closed.",
        kind: Kind::Counter,
        value: |s| Some(s.connections_closed as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_checkouts_total",
        help: "Connections handed out to callers.",
        kind: Kind::Counter,
        value: |s| Some(s.check_outs as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_checkouts_failed_total",
        help: "Callers that got no connection.",
        kind: Kind::Counter,
        value: |s| Some(s.check_outs_failed as f64),
    },
    ServerFamily {
        name: "quorate_client_pool_checkout_wait_seconds_total",
        help: "Time that callers waited for connections.",
        kind: Kind::Counter,
        value: |s| Some(s.check_out_wait.as_secs_f64()),
    },
    ServerFamily {
        name: "quorate_client_pool_cleared_total",
        help: "How often the pool was cleared after an error.",
        kind: Kind::Counter,
        value: |s| Some(s.pool_cleared as f64),
    },
];

/// One sample with the value 1 that tells by its labels what a server is.
const SERVER_TYPE: (&str, &str) =
    ("quorate_client_server_type", "What the server is now: 1 for its type.");

impl Metrics {
    /// The text that Prometheus reads; see [`PROMETHEUS_CONTENT_TYPE`].
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        for family in &CLIENT {
            head(out, family.name, family.help, Kind::Counter)?;
            writeln!(out, "{} {}", family.name, (family.value)(self))?;
        }
        let (name, help) = SERVER_TYPE;
        head(out, name, help, Kind::Gauge)?;
        for server in &self.servers {
            let label = Label(server.address.as_str());
            writeln!(out, "{name}{{server=\"{label}\",type=\"{}\"}} 1", server.server_type)?;
        }
        for family in &SERVER {
            head(out, family.name, family.help, family.kind)?;
            for server in &self.servers {
                if let Some(value) = (family.value)(server) {
                    let label = Label(server.address.as_str());
                    writeln!(out, "{}{{server=\"{label}\"}} {value}", family.name)?;
                }
            }
        }
        Ok(())
    }
}

fn head(out: &mut String, name: &str, help: &str, kind: Kind) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}")?;
    writeln!(out, "# TYPE {name} {}", kind.name())
}

/// A label's value, with what would end it early escaped.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
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

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(Label("a\"b\\c\nd").to_string(), "a\\\"b\\\\c\\nd");
    }
}
