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

/// How many round trips are shown at least.
const LEAST_SPARK: u16 = 6;

/// A connection string is shown where this many characters of it fit.
const LEAST_URI: usize = 24;

/// How wide a sync source is at most.
const MOST_SOURCE: u16 = 24;

/// How many more are shown where there is room.
const MORE_SPARK: u16 = 24;

/// The eight heights of a sparkline.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the table with its title. Scrolls so that the chosen member is seen.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    dashboard: &Dashboard,
    uri: &str,
    members: &[MemberSummary<'_>],
) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let mut name = format!("Members, by {}", dashboard.sort.name());
    if !dashboard.filter.is_empty() {
        name.push_str(&format!(", only {}", dashboard.filter));
    }
    // The connection string, as far as there is room for its hosts.
    let room = usize::from(area.width).saturating_sub(name.chars().count() + 8);
    if room >= LEAST_URI {
        let uri = u16::try_from(room).map(|room| elided(uri, room)).unwrap_or_default();
        name.push_str(&format!(" ── {uri}"));
    }
    frame.render_widget(Paragraph::new(rule(dashboard, &name, area.width)), title);
    let columns = Columns::of(area.width, members);
    let selected = dashboard.selected(members);
    let rows = usize::from(table.height.saturating_sub(1));
    let place = members.iter().position(|member| Some(member.address) == selected).unwrap_or(0);
    let first = (place + 1).saturating_sub(rows);
    let shown = members.iter().skip(first).take(rows).map(|member| {
        let row = Row::new(columns.cells(dashboard, member));
        if Some(member.address) == selected { row.style(dashboard.palette.selected()) } else { row }
    });
    let header = Row::new(columns.titles()).style(dashboard.palette.quiet());
    let widths = columns.widths();
    frame.render_widget(Table::new(shown, widths).header(header).column_spacing(1), table);
}

quorate_protocol::named! {
    /// A column, in the order of the screen, with its title.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Column {
        Differs = "",
        Glyph = "",
        Member = "MEMBER",
        Role = "ROLE",
        State = "STATE",
        Up = "UP",
        RoundTrip = "RTT",
        Spark = "",
        Lag = "LAG",
        Votes = "V/P",
        Source = "SYNC",
        Pool = "POOL",
        OpTime = "OPTIME",
    }
}

impl Column {
    /// Which columns go first where there is too little room for names.
    const DROPPED_FIRST: [Self; 8] = [
        Self::OpTime,
        Self::Role,
        Self::Spark,
        Self::Pool,
        Self::Source,
        Self::RoundTrip,
        Self::Votes,
        Self::Up,
    ];

    /// The fixed width; none if the width depends on the content.
    const fn length(self) -> Option<u16> {
        match self {
            Self::Differs | Self::Glyph => Some(1),
            Self::Role | Self::State => Some(10),
            Self::Up | Self::RoundTrip | Self::Lag => Some(6),
            Self::Votes => Some(4),
            Self::Pool => Some(5),
            Self::OpTime => Some(16),
            Self::Member | Self::Spark | Self::Source => None,
        }
    }
}

/// The displayed columns, and the widths of those that depend on the content.
struct Columns {
    shown: Vec<Column>,
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
        let name =
            longest(&mut members.iter().map(|member| member.address.as_str().chars().count()));
        let mut columns = Self {
            shown: Column::ALL.to_vec(),
            member: name.max(6),
            source: 0,
            spark: 0,
            shared_host,
        };
        let sources = members.iter().filter_map(|member| member.sync_source.as_ref());
        let wanted =
            longest(&mut sources.map(|source| columns.source_name(source).chars().count() + 2));
        columns.source = wanted.clamp(4, MOST_SOURCE);
        columns.spark = LEAST_SPARK;
        // Columns go by rank until the names fit; then names give way.
        for dropped in Column::DROPPED_FIRST {
            if columns.width() <= width {
                break;
            }
            columns.shown.retain(|column| *column != dropped);
        }
        let over = columns.width().saturating_sub(width);
        columns.member = columns.member.saturating_sub(over).max(6);
        let free = width.saturating_sub(columns.width());
        columns.spark += free.min(MORE_SPARK);
        columns
    }

    /// All columns and the gaps between them.
    fn width(&self) -> u16 {
        let gaps = u16::try_from(self.shown.len().saturating_sub(1)).unwrap_or(u16::MAX);
        self.shown.iter().map(|column| self.length(*column)).sum::<u16>() + gaps
    }

    fn length(&self, column: Column) -> u16 {
        column.length().unwrap_or(match column {
            Column::Member => self.member,
            Column::Source => self.source,
            _ => self.spark,
        })
    }

    fn source_name(&self, source: &ServerAddress) -> String {
        match (&self.shared_host, source.port()) {
            (Some(host), Some(port)) if source.host() == host => format!(":{port}"),
            _ => source.to_string(),
        }
    }

    fn titles(&self) -> Vec<&'static str> {
        self.shown.iter().map(|column| column.name()).collect()
    }

    fn widths(&self) -> Vec<Constraint> {
        self.shown.iter().map(|column| Constraint::Length(self.length(*column))).collect()
    }

    fn cells(&self, dashboard: &Dashboard, member: &MemberSummary<'_>) -> Vec<Cell<'static>> {
        self.shown.iter().map(|column| self.cell(*column, dashboard, member)).collect()
    }

    fn cell(
        &self,
        column: Column,
        dashboard: &Dashboard,
        member: &MemberSummary<'_>,
    ) -> Cell<'static> {
        let palette = dashboard.palette;
        let style = member_style(dashboard, member);
        match column {
            Column::Differs => {
                let differs = if member.differences.is_empty() { " " } else { "≠" };
                Cell::from(Span::styled(differs, palette.warning()))
            }
            Column::Glyph => Cell::from(Span::styled(glyph(member), style)),
            Column::Member => Cell::from(elided(member.address.as_str(), self.member)),
            Column::Role => Cell::from(Span::styled(role_name(member), style)),
            Column::State => Cell::from(Span::styled(state(member), style)),
            Column::Up => Cell::from(Span::styled(health(member), style)),
            Column::RoundTrip => {
                let rtt = member.round_trip;
                Cell::from(rtt.map(|rtt| TimeSpan(rtt).to_string()).unwrap_or_default())
            }
            Column::Spark => Cell::from(sparkline(member.round_trips, usize::from(self.spark))),
            Column::Lag => {
                let lag_style = match member.lag {
                    Some(lag) if lag >= Duration::from_secs(10) => palette.problem(),
                    Some(lag) if lag >= Duration::from_secs(2) => palette.warning(),
                    _ => Style::new(),
                };
                let lag = member.lag.map(|lag| Age(lag).to_string()).unwrap_or_default();
                Cell::from(Span::styled(lag, lag_style))
            }
            Column::Votes => Cell::from(votes(member)),
            Column::Source => {
                let source = member.sync_source.as_ref();
                let source = source.map(|source| format!("→ {}", self.source_name(source)));
                Cell::from(elided(&source.unwrap_or_default(), self.source))
            }
            Column::Pool => Cell::from(pool(member)),
            Column::OpTime => {
                Cell::from(member.op_time.map(|at| at.to_string()).unwrap_or_default())
            }
        }
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
