//! The view for Prometheus, in the text format 0.0.4.
//!
//! Names and labels are a promise: dashboards are built on them, so they are only added to. What is
//! not known has no sample, which is how Prometheus wants absence; that there is no primary is known,
//! and is a 0.

use std::time::Duration;

use quorate_protocol::{MonotonicTime, PrometheusText, SampleKind};

use crate::view::View;
use crate::view::summary::{Health, MemberSummary};

/// Everything there is to measure in a view, now.
pub(crate) fn text(view: &View, now: MonotonicTime) -> String {
    let mut page = PrometheusText::default();
    set(&mut page, view, now);
    writes(&mut page, view, now);
    members(&mut page, &view.members());
    page.into_string()
}

fn set(page: &mut PrometheusText, view: &View, now: MonotonicTime) {
    let facts = view.facts(now);
    let labels = [("set", facts.set_name.unwrap_or_default())];
    let info = [labels[0], ("type", facts.topology_type.name())];
    gauge(page, "quorate_set_info", "The kind of deployment; always 1.", &info, Some(1.0));
    let without_primary = match (facts.primary, facts.without_primary) {
        (Some(_), _) => Some(0.0),
        (None, since) => since.map(seconds),
    };
    let gauges = [
        (
            "quorate_set_has_primary",
            "Whether the client knows a primary.",
            Some(flag(facts.primary.is_some())),
        ),
        (
            "quorate_set_without_primary_seconds",
            "How long the client has known no primary; 0 while it knows one.",
            without_primary,
        ),
        ("quorate_set_term", "The highest election term seen.", facts.term.map(|term| term as f64)),
        ("quorate_set_members", "Members known.", Some(facts.members as f64)),
        ("quorate_set_members_up", "Members that answer.", Some(facts.up as f64)),
        ("quorate_set_votes", "Votes in the set.", facts.votes.map(f64::from)),
        ("quorate_set_votes_up", "Votes of members that answer.", facts.votes_up.map(f64::from)),
        (
            "quorate_set_votes_needed",
            "Votes that elect a primary.",
            facts.votes_needed.map(f64::from),
        ),
        (
            "quorate_set_has_majority",
            "Whether the members that answer can elect a primary.",
            facts.has_majority().map(flag),
        ),
    ];
    for (name, help, value) in gauges {
        gauge(page, name, help, &labels, value);
    }
}

fn writes(page: &mut PrometheusText, view: &View, now: MonotonicTime) {
    let facts = view.facts(now);
    let writes = view.writes();
    page.single(
        "quorate_client_writes_acknowledged_total",
        "Writes of the watching client that were acknowledged.",
        SampleKind::Counter,
        Some(writes.acknowledged() as f64),
    );
    page.single(
        "quorate_client_writes_failed_total",
        "Writes of the watching client that failed, retries included.",
        SampleKind::Counter,
        Some(writes.failed() as f64),
    );
    page.single(
        "quorate_client_write_gap_seconds",
        "The last time without acknowledged writes, from one acknowledgement to the next.",
        SampleKind::Gauge,
        writes.gaps().next_back().map(|gap| seconds(gap.length())),
    );
    page.single(
        "quorate_client_write_gap_open_seconds",
        "How long no write has been acknowledged, while that is a gap; 0 otherwise.",
        SampleKind::Gauge,
        writes.any().then(|| facts.open_gap.map_or(0.0, seconds)),
    );
}

/// How a figure of a member is read.
type Read = fn(&MemberSummary<'_>) -> Option<f64>;

/// Figures about the transactions of a member.
const OF_TRANSACTIONS: [(&str, &str, Read); 3] = [
    ("quorate_member_open_transactions", "Transactions that are open at the member.", |member| {
        member.rates.transactions.map(|told| told.open as f64)
    }),
    (
        "quorate_member_transaction_conflicts_per_second",
        "Writes of transactions that met a newer or an uncommitted one, in a second.",
        |member| member.rates.transactions?.conflicts,
    ),
    (
        "quorate_member_writes_behind_transactions",
        "Plain writes that wait until a transaction ends.",
        |member| member.rates.transactions?.waiting_writes.map(|writes| writes as f64),
    ),
];

fn members(page: &mut PrometheusText, members: &[MemberSummary<'_>]) {
    let gauges: [(&str, &str, Read); 12] = [
        ("quorate_member_up", "Whether the member answers.", |member| match member.health {
            Health::Up => Some(1.0),
            Health::Down => Some(0.0),
            Health::NotAsked => None,
        }),
        (
            "quorate_member_is_primary",
            "Whether the client takes the member for the primary.",
            |member| {
                use quorate_server_discovery::ServerType::RsPrimary;
                Some(flag(member.client_type == Some(RsPrimary)))
            },
        ),
        ("quorate_member_round_trip_seconds", "The last round trip of a hello.", |member| {
            member.round_trip.map(seconds)
        }),
        (
            "quorate_member_replication_lag_seconds",
            "How far the member is behind the most advanced one.",
            |member| member.lag.map(seconds),
        ),
        (
            "quorate_member_oplog_window_seconds",
            "From the oldest entry of the member's oplog to its newest.",
            |member| member.oplog_window.map(seconds),
        ),
        ("quorate_member_votes", "Votes of the member.", |member| member.votes.map(f64::from)),
        ("quorate_member_priority", "Priority of the member.", |member| member.priority),
        (
            "quorate_member_connections",
            "Connections that the member has, of all clients.",
            |member| member.rates.connections.map(|count| count as f64),
        ),
        (
            "quorate_member_writes_per_second",
            "Documents that clients write to the member in a second.",
            |member| member.rates.writes,
        ),
        (
            "quorate_member_reads_per_second",
            "Queries and further batches that the member answers in a second.",
            |member| member.rates.reads,
        ),
        ("quorate_member_is_arbiter", "Whether the member only votes.", |member| {
            member.is_arbiter.map(flag)
        }),
        (
            "quorate_member_differences",
            "Points on which the client and the member disagree.",
            |member| Some(member.differences.len() as f64),
        ),
    ];
    for (name, help, read) in gauges.into_iter().chain(OF_TRANSACTIONS) {
        page.family(name, help, SampleKind::Gauge);
        for member in members {
            page.sample(name, &[("member", member.address.as_str())], read(member));
        }
    }
    page.family("quorate_member_state", "The state of the member; always 1.", SampleKind::Gauge);
    for member in members {
        if let Some(state) = member.state {
            let labels = [("member", member.address.as_str()), ("state", state.name())];
            page.sample("quorate_member_state", &labels, Some(1.0));
        }
    }
}

fn flag(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}

fn gauge(
    page: &mut PrometheusText,
    name: &str,
    help: &str,
    labels: &[(&str, &str)],
    value: Option<f64>,
) {
    page.family(name, help, SampleKind::Gauge);
    page.sample(name, labels, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::test_view::Stage;

    /// Every name that may be on a dashboard. Removing or renaming one breaks users' alarms.
    const NAMES: [&str; 30] = [
        "quorate_set_info",
        "quorate_set_has_primary",
        "quorate_set_without_primary_seconds",
        "quorate_set_term",
        "quorate_set_members",
        "quorate_set_members_up",
        "quorate_set_votes",
        "quorate_set_votes_up",
        "quorate_set_votes_needed",
        "quorate_set_has_majority",
        "quorate_client_writes_acknowledged_total",
        "quorate_client_writes_failed_total",
        "quorate_client_write_gap_seconds",
        "quorate_client_write_gap_open_seconds",
        "quorate_member_up",
        "quorate_member_is_primary",
        "quorate_member_round_trip_seconds",
        "quorate_member_replication_lag_seconds",
        "quorate_member_oplog_window_seconds",
        "quorate_member_votes",
        "quorate_member_priority",
        "quorate_member_connections",
        "quorate_member_writes_per_second",
        "quorate_member_reads_per_second",
        "quorate_member_is_arbiter",
        "quorate_member_differences",
        "quorate_member_open_transactions",
        "quorate_member_transaction_conflicts_per_second",
        "quorate_member_writes_behind_transactions",
        "quorate_member_state",
    ];

    fn of(stage: &Stage) -> String {
        text(&stage.view, stage.now)
    }

    /// The text format: each name is described once, with help and type, before its samples.
    fn check_format(text: &str) {
        let mut described = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty() && !described.contains(&name), "{line}");
                let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} "));
                assert!(matches!(kind, Some("gauge" | "counter")), "{name}: {kind:?}");
                assert_eq!(kind == Some("counter"), name.ends_with("_total"), "{name}");
                described.push(name);
                continue;
            }
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(described.last(), Some(&name), "{line} stands apart from its help");
            let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(value.is_finite(), "{line}");
        }
        assert_eq!(described, NAMES);
    }

    #[test]
    fn names_and_format_are_a_promise_in_every_state() {
        check_format(&of(&Stage::new(&["a:27017"])));
        let mut stage = Stage::healthy();
        check_format(&of(&stage));
        stage.wrote("a:27017");
        stage.lose("a:27017", "connection reset");
        check_format(&of(stage.after(500)));
    }

    #[test]
    fn a_healthy_set_has_figures() {
        let text = of(&Stage::healthy());
        for line in [
            "quorate_set_info{set=\"rs0\",type=\"ReplicaSetWithPrimary\"} 1",
            "quorate_set_has_primary{set=\"rs0\"} 1",
            "quorate_set_without_primary_seconds{set=\"rs0\"} 0",
            "quorate_set_term{set=\"rs0\"} 1",
            "quorate_set_members_up{set=\"rs0\"} 3",
            "quorate_set_has_majority{set=\"rs0\"} 1",
            "quorate_member_up{member=\"b:27017\"} 1",
            "quorate_member_is_primary{member=\"a:27017\"} 1",
            "quorate_member_is_primary{member=\"b:27017\"} 0",
            "quorate_member_state{member=\"a:27017\",state=\"PRIMARY\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn no_primary_is_a_figure_and_what_is_unknown_is_none() {
        let mut stage = Stage::healthy();
        stage.lose("a:27017", "connection reset");
        let text = of(stage.after(1500));
        for line in [
            "quorate_set_has_primary{set=\"rs0\"} 0",
            "quorate_set_without_primary_seconds{set=\"rs0\"} 1.5",
            "quorate_member_up{member=\"a:27017\"} 0",
            "quorate_member_is_primary{member=\"a:27017\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let unknown = of(&Stage::new(&["a:27017"]));
        assert!(unknown.contains("quorate_set_has_primary{set=\"rs0\"} 0"), "{unknown}");
        for name in ["quorate_set_term", "quorate_set_votes", "quorate_member_up"] {
            assert!(!unknown.contains(&format!("\n{name}{{")), "{name} is not known\n{unknown}");
        }
    }
}
