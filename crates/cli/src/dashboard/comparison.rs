//! The chosen member: what the client believes beside what it says, and its last error.

use quorate_protocol::{MonotonicTime, ServerAddress};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

use super::draw::{rule, shortened};
use super::state::Dashboard;
use crate::progress::bar;
use crate::view::View;
use crate::view::log::{Age, Ago};
use crate::view::member::Process;
use crate::view::summary::MemberSummary;

/// The width of the first column.
const NAMES: u16 = 11;

/// How wide a progress bar is.
const BAR: usize = 20;

/// Draws it with its title.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    dashboard: &Dashboard,
    view: &View,
    selected: &ServerAddress,
    now: MonotonicTime,
) {
    let palette = dashboard.palette;
    let members = view.members();
    let Some(member) = members.into_iter().find(|member| member.address == selected) else {
        return;
    };
    let [title, table, last] = ratatui::layout::Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let name = title_of(&member, now);
    frame.render_widget(Paragraph::new(rule(dashboard, &name, area.width)), title);
    // A mark and three gaps stand before and between.
    let half = area.width.saturating_sub(1 + NAMES + 3) / 2;
    let rows = view.comparison(selected).into_iter().map(|line| {
        let mark = if line.differs { "≠" } else { " " };
        let style = if line.differs { palette.warning() } else { Style::new() };
        let shown = |text: Option<String>| {
            shortened(Line::styled(text.unwrap_or("—".to_owned()), style), half)
        };
        Row::new(vec![
            Line::styled(mark, style),
            Line::styled(line.name, palette.quiet()),
            shown(line.client),
            shown(line.member),
        ])
    });
    let widths = [
        Constraint::Length(1),
        Constraint::Length(NAMES),
        Constraint::Length(half),
        Constraint::Length(half),
    ];
    let header =
        Row::new(["", "", "THE CLIENT BELIEVES", "THE MEMBER SAYS"]).style(palette.quiet());
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), table);
    let line = shortened(last_line(dashboard, &member, now), area.width);
    frame.render_widget(Paragraph::new(line), last);
}

fn title_of(member: &MemberSummary<'_>, now: MonotonicTime) -> String {
    let mut title = member.address.to_string();
    if let Some((pid, process)) = member.process {
        title.push_str(&match process {
            Process::Gone(how) => format!(", process {pid}: {how}"),
            other => format!(", process {pid}, {}", other.name()),
        });
    }
    if let Some(at) = member.hello_at {
        title.push_str(&format!(", answered {}", Ago(now.since(at))));
    }
    title
}

/// The initial sync while there is one, or else the last error.
fn last_line(
    dashboard: &Dashboard,
    member: &MemberSummary<'_>,
    now: MonotonicTime,
) -> Line<'static> {
    let palette = dashboard.palette;
    if let Some(sync) = member.initial_sync {
        let mut text = "  initial sync ".to_owned();
        if let Some(fraction) = sync.fraction() {
            text.push_str(&format!("{} {:.0} %", bar(fraction, BAR), fraction * 100.0));
        }
        if let Some(stage) = &sync.stage {
            text.push_str(&format!(" {}", crate::words::Foreign(stage)));
        }
        if let Some(remaining) = sync.remaining {
            text.push_str(&format!(", {} left", Age(remaining)));
        }
        return Line::styled(text, palette.note());
    }
    if let Some(dropped) = member.dropped {
        let ago = Ago(now.since(dropped.at));
        return Line::styled(format!("  dropped {ago}: {}", dropped.reason), palette.warning());
    }
    match member.trouble {
        None => Line::styled("  no error so far", palette.quiet()),
        Some(trouble) => {
            let text = format!("  last error {}: {}", Ago(now.since(trouble.at)), trouble.reason);
            let style = if member.recovered { palette.quiet() } else { palette.problem() };
            Line::styled(text, style)
        }
    }
}
