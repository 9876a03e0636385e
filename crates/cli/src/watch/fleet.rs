//! `quorate watch --fleet FILE`: many deployments, one process, one table sorted by trouble.
//!
//! The file has a line for each deployment: a name and a connection string, or the connection string
//! alone. Each is watched by a client of its own that only monitors. Once a second the table is made
//! from what the clients believe, and changes are printed.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use quorate_client::Client;
use quorate_connection_string::ConnectionString;
use quorate_protocol::Counted;
use quorate_server_discovery::{TopologyDescription, TopologyType};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::connect;
use crate::screen::{FINE, Outcome, PROBLEM, QUIET, Result, STRONG, Screen, WARNING};
use crate::signals;
use crate::words::Foreign;

/// The most deployments of one fleet.
const MAX_DEPLOYMENTS: usize = 10_000;

/// The longest fleet file that is read, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// How often the table is made.
const EVERY: Duration = Duration::from_secs(1);

/// How many lines of the terminal are not rows of the table.
const OTHER_LINES: usize = 4;

quorate_protocol::named! {
    /// How bad it is. The worst comes last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Trouble {
        /// Every server answers.
        None = "fine",
        /// The deployment is not known yet.
        Asking = "asking",
        /// A server does not answer.
        Degraded = "degraded",
        /// No write finds a server.
        NoWrites = "no_writes",
        /// No server answers.
        Silent = "silent",
    }
}

/// One deployment of the file.
struct Deployment {
    name: String,
    client: Client,
}

/// The row of one deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    trouble: Trouble,
    kind: TopologyType,
    primary: Option<String>,
    up: usize,
    servers: usize,
    reason: Option<String>,
}

/// Watches every deployment of the file until told to stop.
pub(super) async fn run(path: &Path, screen: &mut Screen) -> Result<Outcome> {
    let stop = signals::stop()?;
    tokio::pin!(stop);
    let mut fleet = Vec::new();
    for (name, uri) in read(path)? {
        let (client, _) = connect::client(&uri, |options| options.pool.min_pool_size = 0).await?;
        fleet.push(Deployment { name, client });
    }
    screen.talk_unless_json(format_args!(
        "watching {}; Ctrl-C stops",
        Counted(fleet.len(), "deployment")
    ));
    let on_terminal = !screen.is_json() && std::io::stdout().is_terminal();
    let mut known: BTreeMap<usize, Row> = BTreeMap::new();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = ticks.tick() => {}
        }
        let rows: Vec<Row> = fleet.iter().map(|one| row(&one.client.topology())).collect();
        for (number, row) in rows.iter().enumerate() {
            if known.get(&number) != Some(row) {
                tell(&fleet[number].name, row, on_terminal, screen)?;
                known.insert(number, row.clone());
            }
        }
        if on_terminal {
            draw(&fleet, &rows, screen)?;
        }
    }
    for deployment in fleet {
        deployment.client.close().await;
    }
    Ok(Outcome::Fine)
}

/// The deployments of a file, by name.
fn read(path: &Path) -> Result<Vec<(String, ConnectionString)>> {
    let shown = path.display();
    let misuse = |why: String| misuse!("the fleet file {shown} {why}");
    let size = std::fs::metadata(path).map(|file| file.len()).unwrap_or_default();
    if size > MAX_FILE {
        return Err(misuse(format!("has more than {MAX_FILE} bytes; split it")));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| misuse(format!("cannot be read: {error}; check its path")))?;
    let mut fleet = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, uri) = match line.split_once(char::is_whitespace) {
            Some((name, uri)) => (name.to_owned(), uri.trim()),
            None => (String::new(), line),
        };
        let uri = ConnectionString::parse(uri)
            .map_err(|error| misuse(format!("is wrong in line {number}: {error}")))?;
        let name = if name.is_empty() { uri.to_string() } else { name };
        fleet.push((Foreign(name).to_string(), uri));
        if fleet.len() > MAX_DEPLOYMENTS {
            return Err(misuse(format!("names more than {MAX_DEPLOYMENTS}; split it")));
        }
    }
    match fleet.is_empty() {
        true => Err(misuse(
            "names no deployment; write a name and a connection string in a line".into(),
        )),
        false => Ok(fleet),
    }
}

fn row(topology: &TopologyDescription) -> Row {
    let servers = topology.servers().len();
    let up = topology.servers().iter().filter(|server| server.server_type().is_known()).count();
    let error = topology.servers().iter().find_map(|server| server.error());
    let trouble = if up == 0 {
        if error.is_some() { Trouble::Silent } else { Trouble::Asking }
    } else if !topology.has_writable_server() {
        Trouble::NoWrites
    } else if up < servers {
        Trouble::Degraded
    } else {
        Trouble::None
    };
    let reason = error.map(|error| error.to_string());
    Row {
        trouble,
        kind: topology.topology_type(),
        primary: topology.primary().map(|primary| primary.address().to_string()),
        up,
        servers,
        reason: reason.map(|text| Foreign(text.split(';').next().unwrap_or_default()).to_string()),
    }
}

fn tell(name: &str, row: &Row, on_terminal: bool, screen: &mut Screen) -> Result<()> {
    let now = clock::wall_now();
    screen.event("deployment", to_json(name, row, &clock::rfc3339(now)))?;
    if !on_terminal {
        screen.line(format_args!("{} {}", clock::time_of_day(now), sentence(name, row)))?;
        screen.flush()?;
    }
    Ok(())
}

fn to_json(name: &str, row: &Row, time: &str) -> Value {
    json!({
        "name": name,
        "trouble": row.trouble.name(),
        "type": row.kind.to_string(),
        "primary": row.primary,
        "up": row.up,
        "servers": row.servers,
        "reason": row.reason,
        "time": time,
    })
}

fn sentence(name: &str, row: &Row) -> String {
    let style = match row.trouble {
        Trouble::None => FINE,
        Trouble::Asking => QUIET,
        Trouble::Degraded => WARNING,
        Trouble::NoWrites | Trouble::Silent => PROBLEM,
    };
    let primary = match (&row.primary, row.kind.is_replica_set()) {
        (Some(primary), _) => format!("primary {primary}"),
        (None, true) => "no primary".to_owned(),
        (None, false) => row.kind.to_string(),
    };
    let reason = row.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let trouble = row.trouble.name().replace('_', " ");
    format!(
        "{style}{trouble:<9}{style:#} {STRONG}{name}{STRONG:#} {primary}, {} of {} up{reason}",
        row.up, row.servers
    )
}

/// The table, the worst first, as far as the terminal has room.
fn draw(fleet: &[Deployment], rows: &[Row], screen: &mut Screen) -> Result<()> {
    let (width, height) = ratatui::crossterm::terminal::size().unwrap_or((80, 24));
    let room = usize::from(height).saturating_sub(OTHER_LINES);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|left, right| {
        let key = |number: &usize| (std::cmp::Reverse(rows[*number].trouble), &fleet[*number].name);
        key(left).cmp(&key(right))
    });
    let count = |trouble| rows.iter().filter(|row| row.trouble == trouble).count();
    // Home, and everything below is written anew.
    screen.raw(b"\x1b[H\x1b[2J")?;
    screen.line(format_args!(
        "{STRONG}{}{STRONG:#}: {} silent, {} without writes, {} degraded, {} fine",
        Counted(rows.len(), "deployment"),
        count(Trouble::Silent),
        count(Trouble::NoWrites),
        count(Trouble::Degraded),
        count(Trouble::None)
    ))?;
    for number in order.iter().take(room) {
        let line = sentence(&fleet[*number].name, &rows[*number]);
        // Styles take no room, so that a line may be cut a little early.
        let cut: String = line.chars().take(usize::from(width) + 24).collect();
        screen.line(cut)?;
    }
    if order.len() > room {
        screen.line(format_args!("{QUIET}… and {} more{QUIET:#}", order.len() - room))?;
    }
    Ok(screen.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_a_line_for_each_deployment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# the shops\nshop mongodb://a:1,b:2/?replicaSet=shop\n\nmongodb://u:pw@c:3/\n";
        std::fs::write(file.path(), text).unwrap();
        let fleet = read(file.path()).unwrap();
        let names: Vec<&str> = fleet.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "shop");
        assert!(!names[1].contains("pw"), "{}", names[1]);
        std::fs::write(file.path(), "shop mongodb://\n").unwrap();
        assert!(read(file.path()).unwrap_err().to_string().contains("line 1"));
        std::fs::write(file.path(), "# nothing\n").unwrap();
        assert!(read(file.path()).is_err());
    }

    #[test]
    fn the_worst_is_the_greatest() {
        assert!(Trouble::Silent > Trouble::NoWrites && Trouble::NoWrites > Trouble::Degraded);
        assert!(Trouble::Degraded > Trouble::None);
    }
}
