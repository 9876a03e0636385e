//! Lines from the terminal: raw while a line is typed, and as it was at any other time.

use std::io::{self, Write};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};

use super::editor::{Done, Editor, Key};

/// The fewest columns for the text, however narrow the terminal is.
const MIN_WIDTH: usize = 10;

/// The most choices that are shown.
const MAX_CHOICES: usize = 60;

/// The input of a person.
pub(super) enum Typed {
    Line(String),
    Cancelled,
    Left,
}

/// Reads lines.
#[derive(Default)]
pub(super) struct Keyboard {
    editor: Editor,
}

/// The terminal is given back however the line ends.
struct Raw;

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = disable_raw_mode();
    }
}

impl Keyboard {
    /// The next line.
    pub(super) fn line(
        &mut self,
        prompt: &str,
        history: &[String],
        words: &[String],
    ) -> io::Result<Typed> {
        enable_raw_mode()?;
        let raw = Raw;
        self.draw(prompt)?;
        loop {
            let key = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => known(key),
                Event::Paste(text) => Some(Key::Paste(text)),
                _ => None,
            };
            let done = match key {
                Some(key) => self.editor.press(key, history, words),
                None => Done::Draw,
            };
            let ended = match done {
                Done::Draw => None,
                Done::Clear => {
                    write!(io::stdout(), "\x1b[2J\x1b[H")?;
                    None
                }
                Done::Choices(choices) => {
                    let shown = choices.len().min(MAX_CHOICES);
                    write!(io::stdout(), "\r\n{}", choices[..shown].join("  "))?;
                    write!(io::stdout(), "{}\r\n", if shown < choices.len() { " …" } else { "" })?;
                    None
                }
                Done::Line(line) => Some(Typed::Line(line)),
                Done::Cancelled => Some(Typed::Cancelled),
                Done::Left => Some(Typed::Left),
            };
            match ended {
                None => self.draw(prompt)?,
                Some(typed) => {
                    write!(io::stdout(), "\r\n")?;
                    io::stdout().flush()?;
                    drop(raw);
                    return Ok(typed);
                }
            }
        }
    }

    /// Draws the part of the line that is around the cursor.
    fn draw(&self, prompt: &str) -> io::Result<()> {
        let (text, cursor) = self.editor.shown();
        let columns = usize::from(size().map_or(80, |(columns, _)| columns));
        let width = columns.saturating_sub(prompt.chars().count() + 1).max(MIN_WIDTH);
        let first = (cursor + 1).saturating_sub(width);
        let shown: String = text.chars().skip(first).take(width).collect();
        let after = shown.chars().count() - (cursor - first).min(shown.chars().count());
        let mut out = io::stdout();
        write!(out, "\r\x1b[2K{prompt}{}", quorate_protocol::Visible(shown))?;
        if after > 0 {
            write!(out, "\x1b[{after}D")?;
        }
        out.flush()
    }
}

fn known(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let alt = key.modifiers.contains(KeyModifiers::ALT);
    Some(match key.code {
        KeyCode::Char('c') if control => Key::Cancel,
        KeyCode::Char('d') if control => Key::Leave,
        KeyCode::Char('u') if control => Key::CutBefore,
        KeyCode::Char('k') if control => Key::CutAfter,
        KeyCode::Char('w') if control => Key::CutWord,
        KeyCode::Char('l') if control => Key::Clear,
        KeyCode::Char('a') if control => Key::Home,
        KeyCode::Char('e') if control => Key::End,
        KeyCode::Char('b') if alt => Key::WordLeft,
        KeyCode::Char('f') if alt => Key::WordRight,
        KeyCode::Char(_) if control || alt => return None,
        KeyCode::Char(character) => Key::Character(character),
        KeyCode::Left if control || alt => Key::WordLeft,
        KeyCode::Right if control || alt => Key::WordRight,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Delete => Key::Delete,
        KeyCode::Tab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        _ => return None,
    })
}
