//! A recording on the screen, scrubbed back and forth.
//!
//! Key handling and drawing are pure functions, and tested without a terminal. The steps are those of the
//! page: the input, what followed, and the client's belief beside each member's last word.

use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};
use serde_json::Value;

use crate::connect;
use crate::dashboard::{Keys, Taken};
use crate::progress::bar;
use crate::screen::Result;

/// How many steps PageUp and PageDown go.
const PAGE: usize = 20;

/// Where in a recording one is.
pub(super) struct Scrub<'a> {
    steps: &'a [Value],
    at: usize,
}

impl<'a> Scrub<'a> {
    pub(super) fn new(steps: &'a [Value]) -> Self {
        Self { steps, at: 0 }
    }

    /// Takes a key. False if it ends the show.
    fn on_key(&mut self, code: KeyCode) -> bool {
        let last = self.steps.len().saturating_sub(1);
        self.at = match code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Left | KeyCode::Char('h') => self.at.saturating_sub(1),
            KeyCode::Right | KeyCode::Char('l' | ' ') => (self.at + 1).min(last),
            KeyCode::PageUp => self.at.saturating_sub(PAGE),
            KeyCode::PageDown => (self.at + PAGE).min(last),
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Char('n') => self.change((self.at + 1)..self.steps.len()).unwrap_or(last),
            KeyCode::Char('p') => {
                let before = (0..self.at).rev().find(|step| self.is_change(*step));
                before.unwrap_or(0)
            }
            _ => self.at,
        };
        true
    }

    fn is_change(&self, step: usize) -> bool {
        self.steps.get(step).is_some_and(|step| step["c"] == true)
    }

    fn change(&self, mut range: std::ops::Range<usize>) -> Option<usize> {
        range.find(|step| self.is_change(*step))
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let quiet = Style::new().add_modifier(Modifier::DIM);
        let strong = Style::new().add_modifier(Modifier::BOLD);
        let Some(step) = self.steps.get(self.at) else {
            frame.render_widget(Paragraph::new("The recording is empty. q leaves."), frame.area());
            return;
        };
        let servers = step["b"]["v"].as_array().cloned().unwrap_or_default();
        let rows = u16::try_from(servers.len()).unwrap_or(u16::MAX);
        let [head, said, table, follows, keys] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(3),
            Constraint::Length(rows.saturating_add(2)),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let share = (self.at + 1) as f64 / self.steps.len() as f64;
        let wall = match step["w"].as_str() {
            Some(wall) => format!("{wall}  "),
            None => String::new(),
        };
        let seconds = step["t"].as_f64().unwrap_or_default();
        let place = format!("step {} of {}  {wall}+{seconds:.3} s", self.at + 1, self.steps.len());
        let width = usize::from(frame.area().width);
        frame.render_widget(
            Paragraph::new(vec![Line::styled(place, strong), Line::raw(bar(share, width))]),
            head,
        );
        let primary = match step["b"]["p"].as_str() {
            Some(primary) => format!(", primary {primary}"),
            None => ", no primary".to_owned(),
        };
        let belief = format!("{}{primary}", text(&step["b"]["k"]));
        let lines = vec![Line::raw(text(&step["s"])), Line::styled(belief, strong)];
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), said);
        let titles = Row::new(["MEMBER", "THE CLIENT BELIEVES", "THE MEMBER SAID LAST"]);
        let rows = servers.iter().map(|server| {
            let error = server["e"].as_str().map(|error| format!(": {error}"));
            let word = server["m"].as_str().unwrap_or("nothing yet").to_owned();
            let believed = format!("{}{}", text(&server["k"]), error.unwrap_or_default());
            Row::new([text(&server["a"]), believed, word])
        });
        let widths = [Constraint::Fill(2), Constraint::Fill(3), Constraint::Fill(3)];
        frame.render_widget(Table::new(rows, widths).header(titles.style(quiet)), table);
        let outputs = step["o"].as_array().into_iter().flatten();
        let outputs = outputs.map(|output| Line::styled(text(output), quiet));
        frame.render_widget(Paragraph::new(outputs.collect::<Vec<_>>()), follows);
        let help = "← → step  n p next and previous change  Home End  q quit";
        frame.render_widget(Paragraph::new(Line::styled(help, quiet)), keys);
    }
}

/// Shows the steps until the person leaves.
pub(super) fn show(steps: &[Value]) -> Result<()> {
    let unusable = |error: std::io::Error| {
        problem!(
            "the terminal cannot be used: {error}; leave out --screen, or make a page with --html"
        )
    };
    connect::runtime()?.block_on(async {
        let mut taken = Taken::take().map_err(unusable)?;
        let mut keys = Keys::read();
        let mut scrub = Scrub::new(steps);
        loop {
            taken.terminal.draw(|frame| scrub.draw(frame)).map_err(unusable)?;
            let Some(event) = keys.next().await else { return Ok(()) };
            if let Event::Key(key) = event.map_err(unusable)?
                && key.kind != KeyEventKind::Release
                && !scrub.on_key(key.code)
            {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn steps() -> Vec<Value> {
        let step = |number: usize, kind: &str, changed: bool| {
            let primary = (kind == "RSPrimary").then_some("a:1");
            json!({
                "n": number, "t": number, "w": format!("2026-01-01T00:00:0{number}.000Z"),
                "s": format!("input {number}"), "o": [format!("output {number}")], "c": changed,
                "b": {"k": "ReplicaSetWithPrimary", "p": primary,
                      "v": [{"a": "a:1", "k": kind, "e": null, "m": "RSPrimary of rs0"}]},
            })
        };
        vec![
            step(0, "Unknown", false),
            step(1, "RSPrimary", true),
            step(2, "RSPrimary", false),
            step(3, "Unknown", true),
        ]
    }

    fn drawn(scrub: &Scrub<'_>) -> String {
        let mut terminal = Terminal::new(TestBackend::new(60, 20)).unwrap();
        terminal.draw(|frame| scrub.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn keys_scrub_back_and_forth_and_jump_to_changes() {
        let steps = steps();
        let mut scrub = Scrub::new(&steps);
        let mut go = |code| {
            assert!(scrub.on_key(code));
            scrub.at
        };
        assert_eq!(go(KeyCode::Left), 0, "nothing before the first");
        assert_eq!(go(KeyCode::Char('n')), 1);
        assert_eq!(go(KeyCode::Char('n')), 3);
        assert_eq!(go(KeyCode::Right), 3, "nothing after the last");
        assert_eq!(go(KeyCode::Char('p')), 1);
        assert_eq!(go(KeyCode::Left), 0);
        assert_eq!(go(KeyCode::End), 3);
        assert!(!scrub.on_key(KeyCode::Char('q')));
    }

    #[test]
    fn a_step_shows_belief_word_and_time() {
        let steps = steps();
        let mut scrub = Scrub::new(&steps);
        scrub.on_key(KeyCode::Char('n'));
        let shown = drawn(&scrub);
        for words in ["step 2 of 4", "2026-01-01T00:00:01.000Z", "primary a:1", "output 1"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(drawn(&Scrub::new(&[])).contains("empty"));
    }
}
