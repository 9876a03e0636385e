//! One line that is typed: what each key does to it, as a pure function.

/// A key that the editor knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Character(char),
    /// Text that was pasted.
    Paste(String),
    Backspace,
    Delete,
    Left,
    Right,
    WordLeft,
    WordRight,
    Home,
    End,
    Up,
    Down,
    Tab,
    Enter,
    /// Ctrl-C: forget the line.
    Cancel,
    /// Ctrl-D: the end, on an empty line.
    Leave,
    /// Ctrl-U: delete the text before the cursor.
    CutBefore,
    /// Ctrl-K: delete the text after the cursor.
    CutAfter,
    /// Ctrl-W: forget the word before it.
    CutWord,
    /// Ctrl-L: clear the screen.
    Clear,
}

/// The action of the shell after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Draw the line anew.
    Draw,
    /// Draw an empty screen, then the line.
    Clear,
    /// The line is whole.
    Line(String),
    /// The line was given up.
    Cancelled,
    /// The shell was left.
    Left,
    /// These words fit, and there is more than one.
    Choices(Vec<String>),
}

/// A line while it is typed.
#[derive(Clone, Debug, Default)]
pub(super) struct Editor {
    text: Vec<char>,
    /// Before which character the cursor stands.
    cursor: usize,
    /// Which line of the history is shown, counted from the newest; 0 is the one that is typed.
    back: usize,
    /// The line that was typed before the history was opened.
    typed: Vec<char>,
}

impl Editor {
    /// The text, and where the cursor is in it.
    pub(super) fn shown(&self) -> (String, usize) {
        (self.text.iter().collect(), self.cursor)
    }

    /// Does what a key says. The history has the newest line last.
    pub(super) fn press(&mut self, key: Key, history: &[String], words: &[String]) -> Done {
        match key {
            Key::Character(character) => self.insert(&[character]),
            Key::Paste(text) => {
                let text: Vec<char> =
                    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                self.insert(&text);
            }
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.cursor);
            }
            Key::Delete if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            Key::Left => self.cursor = self.cursor.saturating_sub(1),
            Key::Right => self.cursor = (self.cursor + 1).min(self.text.len()),
            Key::WordLeft => self.cursor = self.word_start(),
            Key::WordRight => self.cursor = self.word_end(),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.text.len(),
            Key::Up => self.look_back(self.back + 1, history),
            Key::Down => self.look_back(self.back.saturating_sub(1), history),
            Key::CutBefore => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            Key::CutAfter => self.text.truncate(self.cursor),
            Key::CutWord => {
                let start = self.word_start();
                self.text.drain(start..self.cursor);
                self.cursor = start;
            }
            Key::Tab => return self.complete(words),
            Key::Enter => return Done::Line(std::mem::take(self).text.into_iter().collect()),
            Key::Cancel => {
                *self = Self::default();
                return Done::Cancelled;
            }
            Key::Leave if self.text.is_empty() => return Done::Left,
            Key::Clear => return Done::Clear,
            Key::Backspace | Key::Delete | Key::Leave => {}
        }
        Done::Draw
    }

    fn insert(&mut self, text: &[char]) {
        self.text.splice(self.cursor..self.cursor, text.iter().copied());
        self.cursor += text.len();
    }

    fn word_start(&self) -> usize {
        let mut place = self.cursor;
        while place > 0 && !is_word(self.text[place - 1]) {
            place -= 1;
        }
        while place > 0 && is_word(self.text[place - 1]) {
            place -= 1;
        }
        place
    }

    fn word_end(&self) -> usize {
        let mut place = self.cursor;
        while place < self.text.len() && !is_word(self.text[place]) {
            place += 1;
        }
        while place < self.text.len() && is_word(self.text[place]) {
            place += 1;
        }
        place
    }

    fn look_back(&mut self, back: usize, history: &[String]) {
        if back > history.len() || back == self.back {
            return;
        }
        if self.back == 0 {
            self.typed.clone_from(&self.text);
        }
        self.back = back;
        self.text = match back {
            0 => std::mem::take(&mut self.typed),
            back => history[history.len() - back].chars().collect(),
        };
        self.cursor = self.text.len();
    }

    /// Completes the word before the cursor as far as all words that fit agree.
    fn complete(&mut self, words: &[String]) -> Done {
        let mut start = self.cursor;
        while start > 0 && is_word(self.text[start - 1]) {
            start -= 1;
        }
        let begun: String = self.text[start..self.cursor].iter().collect();
        let mut fitting: Vec<&String> =
            words.iter().filter(|word| word.starts_with(&begun)).collect();
        fitting.sort();
        fitting.dedup();
        let Some(first) = fitting.first() else { return Done::Draw };
        let mut common: Vec<char> = first.chars().collect();
        for word in &fitting {
            let same = common.iter().zip(word.chars()).take_while(|(a, b)| **a == *b).count();
            common.truncate(same);
        }
        let length = begun.chars().count();
        if begun.is_empty() || common.len() == length && fitting.len() > 1 {
            return Done::Choices(fitting.into_iter().cloned().collect());
        }
        let rest = common.split_off(length);
        self.insert(&rest);
        Done::Draw
    }
}

/// Field paths and operators are one word.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '.' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<String> {
        ["find", "findAndModify", "ping", "orders"].map(str::to_owned).to_vec()
    }

    fn typed(keys: &[Key]) -> (String, usize) {
        let history = ["{ping: 1}".to_owned(), "use shop".to_owned()];
        let mut editor = Editor::default();
        for key in keys {
            editor.press(key.clone(), &history, &words());
        }
        editor.shown()
    }

    fn text(text: &str) -> Vec<Key> {
        text.chars().map(Key::Character).collect()
    }

    #[test]
    fn keys_move_and_cut() {
        let with = |more: &[Key]| typed(&[text("{find: \"a.b\"}"), more.to_vec()].concat());
        assert_eq!(with(&[Key::Home, Key::Delete]), ("find: \"a.b\"}".to_owned(), 0));
        assert_eq!(with(&[Key::Left, Key::Backspace]).0, "{find: \"a.b}");
        assert_eq!(with(&[Key::WordLeft, Key::CutAfter]).0, "{find: \"");
        assert_eq!(with(&[Key::WordLeft, Key::CutBefore]), ("a.b\"}".to_owned(), 0));
        assert_eq!(with(&[Key::Home, Key::WordRight, Key::CutAfter]).0, "{find");
        assert_eq!(with(&[Key::CutWord]).0, "{find: \"");
        assert_eq!(with(&[Key::Home, Key::Left, Key::Backspace, Key::End, Key::Right]).1, 13);
        assert_eq!(typed(&[Key::Paste("a\nb".to_owned())]).0, "a b");
    }

    #[test]
    fn the_history_is_looked_at_and_left_again() {
        let with = |more: &[Key]| typed(&[text("x"), more.to_vec()].concat()).0;
        assert_eq!(with(&[Key::Up]), "use shop");
        assert_eq!(with(&[Key::Up, Key::Up]), "{ping: 1}");
        assert_eq!(with(&[Key::Up, Key::Up, Key::Up]), "{ping: 1}");
        assert_eq!(with(&[Key::Up, Key::Up, Key::Down]), "use shop");
        assert_eq!(with(&[Key::Up, Key::Down]), "x");
        assert_eq!(with(&[Key::Down]), "x");
    }

    #[test]
    fn words_are_completed_as_far_as_they_agree() {
        let mut editor = Editor::default();
        let mut press = |key| editor.press(key, &[], &words());
        for key in text("{fi") {
            press(key);
        }
        assert_eq!(press(Key::Tab), Done::Draw);
        let choices = ["find", "findAndModify"].map(str::to_owned).to_vec();
        assert_eq!(press(Key::Tab), Done::Choices(choices));
        for key in text("A") {
            press(key);
        }
        assert_eq!(press(Key::Tab), Done::Draw);
        assert_eq!(press(Key::Enter), Done::Line("{findAndModify".to_owned()));
        assert_eq!(press(Key::Leave), Done::Left);
        press(Key::Character('x'));
        assert_eq!(press(Key::Leave), Done::Draw);
        assert_eq!(press(Key::Cancel), Done::Cancelled);
        assert!(matches!(press(Key::Tab), Done::Choices(all) if all.len() == 4));
    }
}
