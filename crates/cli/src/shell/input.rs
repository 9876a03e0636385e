//! The meaning of a typed line.

use crate::run::relaxed;

/// The request of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wanted {
    Nothing,
    /// The document goes on in the next line.
    More,
    /// A command, as JSON.
    Command(serde_json::Value),
    /// Another database.
    Use(String),
    Databases,
    Collections,
    /// More results of the last command.
    Further,
    Help,
    Leave,
    /// JavaScript, for another program.
    JavaScript,
    /// Invalid input, and the reason.
    Wrong(String),
}

/// Reads a line, or several that belong together.
pub(super) fn read(text: &str) -> Wanted {
    let text = text.trim().trim_end_matches(';').trim_end();
    let mut words = text.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (None, ..) => Wanted::Nothing,
        (Some("exit" | "quit"), None, _) => Wanted::Leave,
        (Some("help" | "?"), None, _) => Wanted::Help,
        (Some("it"), None, _) => Wanted::Further,
        (Some("use"), Some(database), None) => Wanted::Use(database.to_owned()),
        (Some("show"), Some("dbs" | "databases"), None) => Wanted::Databases,
        (Some("show"), Some("collections" | "tables"), None) => Wanted::Collections,
        _ if text.starts_with('{') => document(text),
        (Some(word), ..) if is_javascript(word) => Wanted::JavaScript,
        _ => Wanted::Wrong(format!("{text:?} is no command")),
    }
}

fn document(text: &str) -> Wanted {
    if is_open(text) {
        return Wanted::More;
    }
    match relaxed::parse(text) {
        Ok(value) => Wanted::Command(value),
        Err(error) => Wanted::Wrong(error.to_string()),
    }
}

/// Whether brackets or quotes are open at the end.
fn is_open(text: &str) -> bool {
    let (mut depth, mut quote, mut escaped) = (0_i32, None, false);
    for c in text.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None => match c {
                '"' | '\'' => quote = Some(c),
                '{' | '[' | '(' => depth += 1,
                '}' | ']' | ')' => depth -= 1,
                _ => {}
            },
        }
    }
    depth > 0 || quote.is_some()
}

fn is_javascript(word: &str) -> bool {
    const BEGINNINGS: [&str; 11] =
        ["db.", "rs.", "sh.", "var", "let", "const", "function", "print", "for", "if", "await"];
    BEGINNINGS.iter().any(|beginning| word.starts_with(beginning)) || word.contains("=>")
}

/// Whether a line holds a secret, which is not kept.
pub(super) fn is_secret(text: &str) -> bool {
    let lower = text.to_lowercase();
    ["pwd", "password", "createuser", "updateuser", "saslstart", "saslcontinue", "authenticate"]
        .iter()
        .any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_commands_or_words() {
        for (line, wanted) in [
            ("", Wanted::Nothing),
            ("  use shop ;", Wanted::Use("shop".to_owned())),
            ("show dbs", Wanted::Databases),
            ("show collections", Wanted::Collections),
            ("it", Wanted::Further),
            ("help", Wanted::Help),
            ("exit", Wanted::Leave),
            ("{ping: 1};", Wanted::Command(json!({"ping": 1}))),
            ("{find: 'a',", Wanted::More),
            ("{find: 'a}", Wanted::More),
            ("{a: '}\\'', b: [", Wanted::More),
            ("db.orders.find()", Wanted::JavaScript),
            ("const x = 5", Wanted::JavaScript),
            ("rs.status()", Wanted::JavaScript),
        ] {
            assert_eq!(read(line), wanted, "{line}");
        }
        assert!(matches!(read("orders"), Wanted::Wrong(_)));
        assert!(matches!(read("{a 1}"), Wanted::Wrong(_)));
    }

    #[test]
    fn secrets_are_not_kept() {
        assert!(is_secret("{createUser: 'a', PWD: 'b'}") && !is_secret("{ping: 1}"));
    }
}
