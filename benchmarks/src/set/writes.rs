//! Durable writes on a majority: ours, the floor and the peers take turns in every round.

use std::net::SocketAddr;

use crate::dialects::Dialect;
use crate::floor_log::FloorLog;
use crate::members::Set;
use crate::table::{Figures, line};
use crate::{Effort, load, peers};

struct Contestant {
    name: &'static str,
    dialect: Dialect,
    address: SocketAddr,
    per_second: Figures,
    p50: Figures,
    p99: Figures,
}

impl Contestant {
    fn new(name: &'static str, dialect: Dialect, address: SocketAddr) -> Self {
        let none = Figures::default;
        Self { name, dialect, address, per_second: none(), p50: none(), p99: none() }
    }
}

pub async fn run(effort: Effort) {
    let set = Set::ready().await;
    let floor = FloorLog::start();
    let peers = peers::start().await;
    for clients in [1, 64] {
        let ours = set.address(set.primary().await);
        let mut contestants = vec![
            Contestant::new("ours", Dialect::Quorate, ours),
            Contestant::new("floor log", Dialect::FloorLog, floor.address),
        ];
        contestants.extend(
            peers.iter().map(|peer| Contestant::new(peer.name, peer.dialect, peer.address)),
        );
        for _ in 0..effort.rounds {
            for contestant in &mut contestants {
                let Contestant { dialect, address, .. } = *contestant;
                let outcome = load::run(dialect, address, clients, effort.load).await;
                contestant.per_second.push(outcome.per_second);
                contestant.p50.push(outcome.p50_us);
                contestant.p99.push(outcome.p99_us);
            }
        }
        let (ours, others) = contestants.split_first().unwrap();
        let measures: [(&str, fn(&Contestant) -> &Figures); 3] = [
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
    }
}
