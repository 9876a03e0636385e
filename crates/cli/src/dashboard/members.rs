//! The table of members.

use std::time::Duration;

use quorate_protocol::ServerAddress;
use quorate_server_discovery::ServerType;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::draw::rule;
use super::state::Dashboard;
use crate::view::log::Age;
use crate::view::member::{PoolPhase, Process};
use crate::view::ring::Ring;
use crate::view::role;
use crate::view::summary::{Health, MemberSummary};
use crate::words::Span as TimeSpan;

/// From this width on, roles are spelt out and the optime is shown.
const WIDE: u16 = 110;

/// How many round trips are shown at least.
const LEAST_SPARK: u16 = 6;

/// How many more are shown where there is room.
const MORE_SPARK: u16 = 24;

/// The eight heights of a sparkline.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the table with its title. Scrolls so that the chosen member is seen.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    dashboard: &Dashboard,
    members: &[MemberSummary<'_>],
) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let mut name = format!("Members, by {}", dashboard.sort.name());
    if !dashboard.filter.is_empty() {
        name.push_str(&format!(", only {}", dashboard.filter));
    }
    frame.render_widget(Paragraph::new(rule(dashboard, &name, area.width)), title);
    let wide = area.width >= WIDE;
    let columns = Columns::of(area.width, members);
    let selected = dashboard.selected(members);
    let rows = usize::from(table.height.saturating_sub(1));
    let place = members.iter().position(|member| Some(member.address) == selected).unwrap_or(0);
    let first = (place + 1).saturating_sub(rows);
    let shown = members.iter().skip(first).take(rows).map(|member| {
        let row = Row::new(columns.cells(dashboard, member, wide));
        match Some(member.address) == selected {
            true => row.style(dashboard.palette.selected()),
            false => row,
        }
    });
    let header = Row::new(columns.titles(wide)).style(dashboard.palette.quiet());
    let widths = columns.widths(wide);
    frame.render_widget(Table::new(shown, widths).header(header).column_spacing(1), table);
}

/// How wide the columns are that depend on what is in them.
struct Columns {
    member: u16,
    source: u16,
    spark: u16,
    /// The host that all members share, which a sync source need not repeat.
    shared_host: Option<String>,
}

impl Columns {
    fn of(width: u16, members: &[MemberSummary<'_>]) -> Self {
        let first = members.first().map(|member| member.address.host());
        let shared = members.iter().all(|member| Some(member.address.host()) == first);
        let shared_host = first.filter(|_| shared).map(str::to_owned);
        let longest = |lengths: &mut dyn Iterator<Item = usize>| {
            u16::try_from(lengths.max().unwrap_or(0)).unwrap_or(u16::MAX)
        };
        let mut columns = Self { member: 0, source: 0, spark: 0, shared_host };
        // What the other columns and the gaps between all of them leave.
        let taken = columns.lengths(width >= WIDE);
        let gaps = u16::try_from(taken.len() - 1).unwrap_or(u16::MAX);
        let free = width.saturating_sub(taken.iter().sum::<u16>() + gaps + LEAST_SPARK);
        let sources = members.iter().filter_map(|member| member.sync_source.as_ref());
        let wanted =
            longest(&mut sources.map(|source| columns.source_name(source).chars().count() + 2));
        columns.source = wanted.clamp(4, (free * 2 / 5).max(4));
        let free = free.saturating_sub(columns.source);
        let wanted =
            longest(&mut members.iter().map(|member| member.address.as_str().chars().count()));
        columns.member = wanted.clamp(6, free.max(6));
        columns.spark = LEAST_SPARK + free.saturating_sub(columns.member).min(MORE_SPARK);
        columns
    }

    fn source_name(&self, source: &ServerAddress) -> String {
        match (&self.shared_host, source.port()) {
            (Some(host), Some(port)) if source.host() == host => format!(":{port}"),
            _ => source.to_string(),
        }
    }

    fn titles(&self, wide: bool) -> Vec<&'static str> {
        let mut titles = vec!["", "", "MEMBER"];
        if wide {
            titles.push("ROLE");
        }
        titles.extend(["STATE", "UP", "RTT", "", "LAG", "V/P", "SYNC", "POOL"]);
        if wide {
            titles.push("OPTIME");
        }
        titles
    }

    fn lengths(&self, wide: bool) -> Vec<u16> {
        let mut widths = vec![1, 1, self.member];
        if wide {
            widths.push(10);
        }
        widths.extend([10, 6, 6, self.spark, 6, 4, self.source, 5]);
        if wide {
            widths.push(16);
        }
        widths
    }

    fn widths(&self, wide: bool) -> Vec<Constraint> {
        self.lengths(wide).into_iter().map(Constraint::Length).collect()
    }

    fn cells(
        &self,
        dashboard: &Dashboard,
        member: &MemberSummary<'_>,
        wide: bool,
    ) -> Vec<Cell<'static>> {
        let palette = dashboard.palette;
        let style = member_style(dashboard, member);
        let differs = if member.differences.is_empty() { " " } else { "≠" };
        let source = member.sync_source.as_ref();
        let source = source.map(|source| format!("→ {}", self.source_name(source)));
        let mut cells = vec![
            Cell::from(Span::styled(differs, palette.warning())),
            Cell::from(Span::styled(glyph(member), style)),
            Cell::from(elided(member.address.as_str(), self.member)),
        ];
        if wide {
            cells.push(Cell::from(Span::styled(role_name(member), style)));
        }
        let (rtt, lag) = (member.round_trip, member.lag);
        let lag_style = match lag {
            Some(lag) if lag >= Duration::from_secs(10) => palette.problem(),
            Some(lag) if lag >= Duration::from_secs(2) => palette.warning(),
            _ => Style::new(),
        };
        cells.extend([
            Cell::from(Span::styled(state(member), style)),
            Cell::from(Span::styled(health(member), style)),
            Cell::from(rtt.map(|rtt| TimeSpan(rtt).to_string()).unwrap_or_default()),
            Cell::from(sparkline(member.round_trips, usize::from(self.spark))),
            Cell::from(Span::styled(
                lag.map(|lag| Age(lag).to_string()).unwrap_or_default(),
                lag_style,
            )),
            Cell::from(votes(member)),
            Cell::from(elided(&source.unwrap_or_default(), self.source)),
            Cell::from(pool(member)),
        ]);
        if wide {
            cells.push(Cell::from(member.op_time.map(|at| at.to_string()).unwrap_or_default()));
        }
        cells
    }
}

fn member_style(dashboard: &Dashboard, member: &MemberSummary<'_>) -> Style {
    let palette = dashboard.palette;
    match (member.health, member.shown_type()) {
        (Health::Down, _) => palette.problem(),
        (_, ServerType::RsPrimary) => palette.fine(),
        (Health::Up, ServerType::Unknown | ServerType::PossiblePrimary) => palette.warning(),
        _ => Style::new(),
    }
}

fn glyph(member: &MemberSummary<'_>) -> &'static str {
    match member.shown_type() {
        ServerType::RsPrimary | ServerType::Standalone | ServerType::Mongos => "★",
        ServerType::RsSecondary => "●",
        ServerType::RsArbiter => "◇",
        ServerType::Unknown | ServerType::PossiblePrimary => "?",
        ServerType::RsOther | ServerType::RsGhost | ServerType::LoadBalancer => "○",
    }
}

fn role_name(member: &MemberSummary<'_>) -> String {
    match member.client_type {
        Some(_) if member.hidden => "hidden".to_owned(),
        Some(kind) => role(kind).to_owned(),
        None if member.hidden => "hidden".to_owned(),
        None => "dropped".to_owned(),
    }
}

/// What it does: an initial sync and a broken process come before everything else.
fn state(member: &MemberSummary<'_>) -> String {
    match member.process {
        Some((_, process @ (Process::Paused | Process::Gone(_)))) => {
            return process.name().to_uppercase();
        }
        Some((_, Process::Partitioned)) => return "CUT OFF".to_owned(),
        _ => {}
    }
    if let Some(sync) = member.initial_sync {
        return match sync.fraction() {
            Some(fraction) => format!("SYNC {:>3.0} %", fraction * 100.0),
            None => "SYNCING".to_owned(),
        };
    }
    let name = member.state.map(|state| state.name().to_owned());
    name.unwrap_or_else(|| match member.own_type {
        Some(kind) => role(kind).to_uppercase(),
        None => String::new(),
    })
}

fn health(member: &MemberSummary<'_>) -> String {
    match (member.health, member.peers) {
        (Health::Up, Some(peers)) => format!("up {}/{}", peers.up, peers.asked),
        (health, _) => health.name().to_owned(),
    }
}

fn votes(member: &MemberSummary<'_>) -> String {
    match (member.votes, member.priority) {
        (Some(votes), Some(priority)) => format!("{votes}/{priority}"),
        _ => String::new(),
    }
}

fn pool(member: &MemberSummary<'_>) -> String {
    match member.pool.phase {
        PoolPhase::Ready => format!("{}/{}", member.pool.in_use(), member.pool.counts.total),
        PoolPhase::Paused => "—".to_owned(),
        PoolPhase::Closed => String::new(),
    }
}

/// The last round trips as bars; a dot where there was no answer.
fn sparkline(history: &Ring<Option<Duration>>, width: usize) -> Line<'static> {
    let skipped = history.len().saturating_sub(width);
    let last = history.iter().skip(skipped);
    let highest = last.clone().flatten().max().copied().unwrap_or_default().as_secs_f64();
    let bars = last.map(|sample| match sample {
        None => '·',
        Some(_) if highest == 0.0 => BARS[0],
        Some(span) => {
            let share = span.as_secs_f64() / highest * (BARS.len() - 1) as f64;
            BARS[(share.round() as usize).min(BARS.len() - 1)]
        }
    });
    Line::raw(bars.collect::<String>())
}

/// At most this many characters, both ends kept: names differ at the front and ports at the end.
fn elided(text: &str, width: u16) -> String {
    let (length, width) = (text.chars().count(), usize::from(width));
    if length <= width || width < 5 {
        return text.chars().take(width).collect();
    }
    let tail = (width - 1) * 2 / 3;
    let front = text.chars().take(width - 1 - tail);
    let end = text.chars().skip(length - tail);
    front.chain(['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(elided("a:27017", 17), "a:27017");
        let shown = elided("shard-00-01.cluster0.example.mongodb.net:27017", 17);
        assert_eq!((shown.chars().count(), shown.as_str()), (17, "shard-….net:27017"));
    }

    #[test]
    fn a_sparkline_is_scaled_and_shows_silence() {
        let mut history = Ring::new(8);
        for millis in [Some(0), Some(7), None, Some(14)] {
            history.push(millis.map(Duration::from_millis));
        }
        assert_eq!(sparkline(&history, 8).to_string(), "▁▅·█");
        assert_eq!(sparkline(&history, 2).to_string(), "·█");
    }
}
