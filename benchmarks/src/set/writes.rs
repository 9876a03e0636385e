//! Durable writes on a majority: ours, the floor and the peers take turns in every round.

use std::net::SocketAddr;
use std::time::Duration;

use crate::dialects::Dialect;
use crate::floor_log::FloorLog;
use crate::members::Set;
use crate::table::{Figures, line};
use crate::{Effort, load, peers, programs};

struct Contestant {
    name: &'static str,
    dialect: Dialect,
    address: SocketAddr,
    per_second: Figures,
    p50: Figures,
    p99: Figures,
    /// Microseconds of processor time for a write: its primary, and all secondaries together.
    leading: Figures,
    following: Figures,
}

impl Contestant {
    fn new(name: &'static str, dialect: Dialect, address: SocketAddr) -> Self {
        let none = Figures::default;
        let (leading, following) = (none(), none());
        let (per_second, p50, p99) = (none(), none(), none());
        Self { name, dialect, address, per_second, p50, p99, leading, following }
    }
}

/// What a row tells of a contestant.
type Measure = fn(&Contestant) -> &Figures;

pub async fn run(effort: Effort) {
    let set = Set::ready().await;
    let floor = FloorLog::start();
    let peers = if effort.peers { peers::start().await } else { Vec::new() };
    for &clients in effort.clients {
        let primary = set.primary().await;
        let ours = set.address(primary);
        let mut contestants = vec![
            Contestant::new("ours", Dialect::Quorate, ours),
            Contestant::new("ours, in sessions", Dialect::QuorateInSession, ours),
            Contestant::new("floor log", Dialect::FloorLog, floor.address),
        ];
        contestants.extend(
            peers.iter().map(|peer| Contestant::new(peer.name, peer.dialect, peer.address)),
        );
        for _ in 0..effort.rounds {
            for contestant in &mut contestants {
                let Contestant { dialect, address, .. } = *contestant;
                tokio::task::spawn_blocking(programs::await_quiet).await.unwrap();
                let before = processor_times(&set, primary);
                let outcome = load::run(dialect, address, clients, effort.load).await;
                if dialect == Dialect::Quorate {
                    let after = processor_times(&set, primary);
                    let a_write = |time: Duration| time.as_secs_f64() * 1e6 / outcome.writes as f64;
                    contestant.leading.push(a_write(after.0 - before.0));
                    contestant.following.push(a_write(after.1 - before.1));
                }
                contestant.per_second.push(outcome.per_second);
                contestant.p50.push(outcome.p50_us);
                contestant.p99.push(outcome.p99_us);
            }
        }
        let (ours, others) = contestants.split_first().unwrap();
        let measures: [(&str, Measure); 3] = [
            ("durable majority writes/s", |contestant| &contestant.per_second),
            ("p50, µs", |contestant| &contestant.p50),
            ("p99, µs", |contestant| &contestant.p99),
        ];
        for (what, figures) in measures {
            let measure = format!("{what}, {clients} clients");
            line(&measure, ours.name, figures(ours), None);
            for other in others {
                line(&measure, other.name, figures(other), Some(figures(ours)));
            }
        }
        line(
            &format!("CPU µs a write, primary, {clients} clients"),
            ours.name,
            &ours.leading,
            None,
        );
        let measure = format!("CPU µs a write, both secondaries, {clients} clients");
        line(&measure, ours.name, &ours.following, None);
    }
}

/// What the primary and what the others have used so far.
fn processor_times(set: &Set, primary: usize) -> (Duration, Duration) {
    let others = (0..set.members.len()).filter(|place| *place != primary);
    let others = others.map(|place| set.process(place).processor_time()).sum();
    (set.process(primary).processor_time(), others)
}
