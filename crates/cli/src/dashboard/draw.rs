//! The whole screen: what goes where in which size.
//!
//! ```text
//!   two lines about the set, broken where they do not fit
//!   ── Members ──   one line each; scrolls with the choice
//!   ── the chosen member ──   the client's view beside its own words
//!   ── Log ──   the newest first
//!   keys, or a message
//! ```
//!
//! Made for 80×24 and anything larger; below that the middle goes first, then the log.

use quorate_protocol::MonotonicTime;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::state::{ACTION_KEYS, Dashboard, Dialog};
use super::{comparison, members};
use crate::view::View;
use crate::view::log::{Age, Ago};
use crate::view::summary::Facts;
use crate::words::{Foreign, Span as TimeSpan};

/// Below this nothing useful fits.
const LEAST: (u16, u16) = (40, 8);

/// How many lines one sentence about the set may take.
const MOST_WRAPPED: usize = 3;

/// From this height on there is room for more of them.
const ROOMY: u16 = 24;

/// Lines of the comparison, its title included.
const COMPARISON: u16 = 9;

/// The fewest lines of the log, its title included, beside a comparison.
const LEAST_LOG: u16 = 3;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, dashboard: &Dashboard, view: &View, now: MonotonicTime) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("{}×{} is needed", LEAST.0, LEAST.1);
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let (view, shown_at) = dashboard.shown(view, now);
    let shown = dashboard.members(view);
    let footer = if dashboard.can_act { 2 } else { 1 };
    let lines = header_lines(dashboard, view, shown_at);
    let lines: Vec<Line<'static>> = lines
        .into_iter()
        .flat_map(|line| wrapped(line, area.width, MOST_WRAPPED))
        .take(if area.height < ROOMY { 4 } else { 5 })
        .collect();
    let head = u16::try_from(lines.len()).unwrap_or(2);
    let rest = area.height.saturating_sub(head + 2 + footer);
    let rows = u16::try_from(shown.len()).unwrap_or(u16::MAX).clamp(1, (rest / 2).max(1));
    let compared = if rest - rows >= COMPARISON + LEAST_LOG { COMPARISON } else { 0 };
    let [header, table, details, log, foot] = Layout::vertical([
        Constraint::Length(head),
        Constraint::Length(2 + rows),
        Constraint::Length(compared),
        Constraint::Fill(1),
        Constraint::Length(footer),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(lines), header);
    members::draw(frame, table, dashboard, view.uri(), &shown);
    if compared > 0
        && let Some(selected) = dashboard.selected(&shown)
    {
        comparison::draw(frame, details, dashboard, view, selected, shown_at);
    }
    draw_log(frame, log, dashboard, view, shown_at);
    frame.render_widget(Paragraph::new(footer_lines(dashboard, now)), foot);
    if dashboard.dialog == Dialog::Member
        && let Some(selected) = dashboard.selected(&shown)
    {
        let place = middle(area, area.width, COMPARISON + 2);
        let block = Block::bordered();
        let inner = block.inner(place);
        frame.render_widget(Clear, place);
        frame.render_widget(block, place);
        comparison::draw(frame, inner, dashboard, view, selected, shown_at);
    }
    draw_dialog(frame, area, dashboard);
}

/// A box of this size in the middle of the screen.
fn middle(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}

/// The line broken between words where it does not fit, into at most so many.
fn wrapped(line: Line<'static>, width: u16, most: usize) -> Vec<Line<'static>> {
    let room = usize::from(width);
    let mut lines = vec![Line::default().style(line.style)];
    let mut used = 0;
    for span in line.spans {
        let style = span.style;
        for word in span.content.split_inclusive(' ') {
            let length = word.trim_end().chars().count();
            if used > 0 && used + length > room && lines.len() < most {
                lines.push(Line::default().style(line.style));
                used = 0;
            }
            let shown = if used == 0 { word.trim_start() } else { word };
            // The space at the end of a line takes no room.
            let full = used + shown.chars().count() > room;
            let shown = if full { shown.trim_end() } else { shown };
            used += shown.chars().count();
            if let Some(last) = lines.last_mut() {
                last.push_span(Span::styled(shown.to_owned(), style));
            }
        }
    }
    lines.into_iter().map(|line| shortened(line, width)).collect()
}

fn header_lines(dashboard: &Dashboard, view: &View, now: MonotonicTime) -> Vec<Line<'static>> {
    let facts = view.facts(now);
    let palette = dashboard.palette;
    let mut first = vec![
        Span::styled(
            facts.set_name.map_or("quorate".to_owned(), |name| Foreign(name).to_string()),
            palette.strong(),
        ),
        Span::raw(format!("  {}", facts.topology_type)),
        Span::raw(format!("  {} of {} up", facts.up, facts.members)),
    ];
    if let (Some(up), Some(votes), Some(needed)) = (facts.votes_up, facts.votes, facts.votes_needed)
    {
        let style = if up >= needed { palette.fine() } else { palette.problem() };
        let enough = if up >= needed { "majority" } else { "NO MAJORITY" };
        let text = format!("  {enough}: votes {up} of {votes}, {needed} needed");
        first.push(Span::styled(text, style));
    }
    if let Some(term) = facts.term {
        first.push(Span::raw(format!("  term {term}")));
    }
    if dashboard.is_paused() {
        first.insert(0, Span::styled(" PAUSED ", palette.selected()));
        first.insert(1, Span::raw(" "));
    }
    vec![Line::from(first), second_line(dashboard, view, &facts, now)]
}

fn second_line(
    dashboard: &Dashboard,
    view: &View,
    facts: &Facts<'_>,
    now: MonotonicTime,
) -> Line<'static> {
    let palette = dashboard.palette;
    if let Some(why) = facts.incompatible {
        return Line::styled(format!("incompatible: {}", Foreign(why)), palette.problem());
    }
    let mut parts = Vec::new();
    match facts.primary {
        Some(primary) => parts.push(match facts.primary_silent {
            None => Span::styled(format!("primary {primary}"), palette.fine()),
            Some(silent) => {
                let text = format!("primary {primary}, silent for {}", Age(silent));
                Span::styled(text, palette.problem())
            }
        }),
        None if facts.topology_type.is_replica_set() => {
            let since = match facts.without_primary {
                Some(span) => format!("NO PRIMARY for {}", Age(span)),
                None => "NO PRIMARY".to_owned(),
            };
            parts.push(Span::styled(since, palette.problem()));
        }
        None => {}
    }
    if let Some(locked) = facts.locked {
        let text = format!("{locked} is LOCKED by fsync, writes wait");
        parts.push(Span::styled(text, palette.problem()));
    }
    if let Some(login) = facts.login {
        parts.push(Span::styled(Foreign(login).to_string(), palette.warning()));
    }
    if facts.up == 0 {
        parts.push(Span::styled("no member answers".to_owned(), palette.problem()));
    }
    if let Some(gap) = facts.open_gap {
        let text = format!("no write acknowledged for {}", Age(gap));
        parts.push(Span::styled(text, palette.problem()));
    } else if let Some(rate) = view.writes().per_second().map(f64::from).or(facts.writes_per_second)
    {
        parts.push(Span::raw(format!("{rate:.0} writes/s")));
    }
    if let Some(words) = facts.transactions.and_then(|transactions| transactions.words()) {
        parts.push(Span::raw(words));
    }
    parts.extend(last_failover(facts, now).map(Span::raw));
    if let Some(why) = &facts.explanation {
        parts.push(Span::raw(Foreign(why).to_string()));
    }
    let mut line = Line::default();
    for (number, part) in parts.into_iter().enumerate() {
        if number > 0 {
            line.push_span(Span::styled(" · ", palette.quiet()));
        }
        line.push_span(part);
    }
    line
}

fn last_failover(facts: &Facts<'_>, now: MonotonicTime) -> Option<String> {
    let election = facts.last_election?;
    let mut text = format!("failover {}", Ago(now.since(election.at)));
    if let Some(reason) = facts.election_reason {
        text.push_str(&format!(" ({})", Foreign(reason)));
    }
    if let Some(gap) = election.write_gap {
        text.push_str(&format!(", write gap {}", TimeSpan(gap)));
    } else if let Some(span) = election.without_primary {
        text.push_str(&format!(", {} without a primary", TimeSpan(span)));
    }
    Some(text)
}

/// A line across the screen with a title in it.
pub(super) fn rule(dashboard: &Dashboard, title: &str, width: u16) -> Line<'static> {
    let width = usize::from(width);
    let title = format!("── {title} ");
    let title: String = title.chars().take(width).collect();
    let rest = "─".repeat(width.saturating_sub(title.chars().count()));
    Line::styled(format!("{title}{rest}"), dashboard.palette.quiet())
}

/// The line with its end cut off where it does not fit, which a mark shows.
pub(super) fn shortened(line: Line<'static>, width: u16) -> Line<'static> {
    let width = usize::from(width);
    if line.width() <= width {
        return line;
    }
    let mut room = width.saturating_sub(1);
    let mut short = Line::default().style(line.style);
    for span in line.spans {
        let taken: String = span.content.chars().take(room).collect();
        room -= taken.chars().count();
        short.push_span(Span::styled(taken, span.style));
    }
    short.push_span(Span::raw("…"));
    short
}

fn draw_log(
    frame: &mut Frame<'_>,
    area: Rect,
    dashboard: &Dashboard,
    view: &View,
    now: MonotonicTime,
) {
    let Some(room) = usize::from(area.height).checked_sub(1) else { return };
    let entries = dashboard.entries(view);
    let offset = dashboard.log_offset.min(entries.len().saturating_sub(room));
    let title = match offset {
        0 => format!("Log, {} entries", entries.len()),
        _ => format!("Log, from entry {} of {}", offset + 1, entries.len()),
    };
    let mut lines = vec![rule(dashboard, &title, area.width)];
    for entry in entries.into_iter().skip(offset).take(room) {
        let age = Ago(entry.age(now)).to_string();
        let member = entry.member.as_ref().map(|member| format!("{member} ")).unwrap_or_default();
        let times = if entry.times > 1 { format!(" ×{}", entry.times) } else { String::new() };
        let line = Line::from(vec![
            Span::styled(format!("{age:>10}  "), dashboard.palette.quiet()),
            Span::raw(member),
            Span::styled(entry.text.clone(), dashboard.palette.entry(entry.kind)),
            Span::raw(times),
        ]);
        lines.push(shortened(line, area.width));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn footer_lines(dashboard: &Dashboard, now: MonotonicTime) -> Vec<Line<'static>> {
    let palette = dashboard.palette;
    let keys = |pairs: &[(String, &str)]| {
        let mut line = Line::default();
        for (key, name) in pairs {
            line.push_span(Span::styled(key.clone(), palette.strong()));
            line.push_span(Span::raw(format!(" {name}  ")));
        }
        line
    };
    let first = match (&dashboard.dialog, dashboard.message(now)) {
        (Dialog::Filter, _) => Line::raw(format!("filter: {}▏ (Enter keeps it)", dashboard.filter)),
        (_, Some(message)) => Line::styled(Foreign(message).to_string(), palette.note()),
        (_, None) => {
            let plain = [
                ("q", "quit"),
                ("?", "help"),
                ("↑↓", "choose"),
                ("s", "sort"),
                ("/", "filter"),
                ("p", "pause"),
                ("c", "copy the URI"),
            ];
            keys(&plain.map(|(key, name)| (key.to_owned(), name)))
        }
    };
    let mut lines = vec![first];
    if dashboard.can_act {
        let actions = ACTION_KEYS.map(|(key, action)| (key.to_string(), action.name()));
        lines.push(keys(&actions));
    }
    lines
}

fn draw_dialog(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let (title, lines) = match &dashboard.dialog {
        Dialog::None | Dialog::Filter | Dialog::Member => return,
        Dialog::Confirm(action, member) => {
            let question = format!("{action} {member}?");
            (" Sure? ", vec![Line::raw(question), Line::raw("y yes   any other key no")])
        }
        Dialog::Help => (" Help ", help_lines(dashboard)),
    };
    let width = lines.iter().map(Line::width).max().unwrap_or(0) + 4;
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(area.width);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let place = middle(area, width, height);
    let block = Block::bordered().title(title).title_alignment(Alignment::Center);
    let inner = block.inner(place);
    frame.render_widget(Clear, place);
    frame.render_widget(block, place);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    frame.render_widget(Paragraph::new(lines), inner);
}

fn help_lines(dashboard: &Dashboard) -> Vec<Line<'static>> {
    let mut text = vec![
        "q quit   s sort   / filter   p pause   c copy the URI",
        "↑ ↓ choose a member   Enter opens it   PgUp PgDn the log",
        "",
        "★ primary  ● secondary  ◇ arbiter  ○ other  ? unknown,",
        "as the client believes; STATE is what the member says.",
        "≠ they disagree: choose the member to see in what.",
        "UP counts the other members that reach it.",
        "V/P votes and priority. SYNC whom it copies from.",
        "POOL connections in use of all, to this member.",
    ];
    if dashboard.can_act {
        text.push("");
        text.push("On the chosen member, as it was started here:");
        text.push("D step down (the primary)   K kill (SIGKILL)");
        text.push("Z pause (SIGSTOP: it hangs)   X partition it");
        text.push("from the other members   R restore");
    }
    text.into_iter().map(Line::raw).collect()
}
