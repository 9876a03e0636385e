//! The configuration file of `quorate serve`: the options of the command line, written down.
//!
//! Keys are the names of the options without their dashes, so that one definition holds for both. A
//! file becomes options that stand before those of the command line, which therefore win.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, FromArgMatches};
use toml::{Table, Value};

use super::mongod;
use crate::arguments::{self, ServeArguments};
use crate::screen::{Failure, Result};

/// Options about this one run, which make no sense in a file.
const NOT_IN_FILES: [&str; 7] =
    ["config", "print-config", "json", "until-stdin-closes", "help", "fork", "logappend"];

/// Options of which only one can hold; one on the command line puts the other of a file out of force.
const EXCLUSIVE: [&str; 2] = ["data", "memory"];

/// The options of a file, and over them those of the command line; and what the file says in vain.
pub(super) fn with_file(
    path: &Path,
    given: impl Iterator<Item = OsString>,
) -> Result<(ServeArguments, Vec<String>)> {
    let given: Vec<OsString> = given.collect();
    let place_given = EXCLUSIVE.iter().any(|name| is_among(name, &given));
    let text = std::fs::read_to_string(path).map_err(|error| {
        let advice = "check the path, or print one to start from with --print-config";
        misuse!("{} cannot be read: {error}; {advice}", path.display())
    })?;
    let read = match mongod::is_wanted(path) {
        true => options_of_mongod(&text, place_given),
        false => options_of(&text, place_given).map(|options| (options, Vec::new())),
    };
    let (options, ignored) = read.map_err(|why| misuse!("{}: {why}", path.display()))?;
    let all = options.into_iter().map(OsString::from).chain(given);
    let merged = parse(all).map_err(|error| Failure::Misuse(error.to_string()))?;
    Ok((merged, ignored))
}

/// The options that a file of mongod stands for, and what has no counterpart.
fn options_of_mongod(text: &str, place_given: bool) -> Result<(Vec<String>, Vec<String>), String> {
    let read = mongod::read(text)?;
    let mut options = Vec::new();
    for (name, value) in read.options {
        let option = format!("--{name}={value}");
        check(name, &option)?;
        if !(place_given && EXCLUSIVE.contains(&name)) {
            options.push(option);
        }
    }
    Ok((options, read.ignored))
}

/// A file with every key, what it means and its default.
pub(super) fn sample() -> String {
    let mut text = String::from("# The options of quorate serve; those of the command line win.\n");
    for argument in command().get_arguments() {
        let Some(name) = argument.get_long().filter(|name| !NOT_IN_FILES.contains(name)) else {
            continue;
        };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let default = argument.get_default_values().first();
        let default = default.map(|value| value.to_string_lossy().into_owned());
        let value = match (default, argument.get_action().takes_values()) {
            (Some(plain), _) if is_number_or_truth(&plain) => plain,
            (Some(text), _) => format!("{text:?}"),
            (None, true) => "\"\"".to_owned(),
            (None, false) => "false".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n# {help}\n#{name} = {value}\n");
    }
    text
}

fn is_number_or_truth(text: &str) -> bool {
    text.parse::<i64>().is_ok() || text.parse::<bool>().is_ok()
}

fn command() -> clap::Command {
    ServeArguments::augment_args(clap::Command::new("quorate serve"))
        .arg(arguments::json())
        .no_binary_name(true)
        .args_override_self(true)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<ServeArguments, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    ServeArguments::from_arg_matches(&matches)
}

fn is_among(name: &str, given: &[OsString]) -> bool {
    let option = format!("--{name}");
    given.iter().filter_map(|argument| argument.to_str()).any(|argument| {
        argument.strip_prefix(&option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

/// The options that a file stands for.
fn options_of(text: &str, place_given: bool) -> Result<Vec<String>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("it is no TOML in line {line}: {}; see --print-config", error.message())
    })?;
    let mut options = Vec::new();
    for (key, value) in &table {
        let option = match value {
            Value::String(text) => format!("--{key}={text}"),
            Value::Integer(number) => format!("--{key}={number}"),
            Value::Boolean(flag) => format!("--{key}={flag}"),
            Value::Float(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err(format!(
                    "{key} must be a string, a whole number, true or false; see --print-config"
                ));
            }
        };
        if NOT_IN_FILES.contains(&key.as_str()) {
            return Err(format!("{key} is for the command line only; leave it out"));
        }
        check(key, &option)?;
        if !(place_given && EXCLUSIVE.contains(&key.as_str())) {
            options.push(option);
        }
    }
    Ok(options)
}

/// Refuses a key that there is not, or a value that it cannot have.
fn check(key: &str, option: &str) -> Result<(), String> {
    let Err(error) = parse([OsString::from(option)].into_iter()) else { return Ok(()) };
    match error.kind() {
        ErrorKind::UnknownArgument => match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(nearest)) => {
                let nearest = nearest.trim_start_matches('-');
                Err(format!("there is no key {key}; did you mean {nearest}?"))
            }
            _ => Err(format!("there is no key {key}; see --print-config for those there are")),
        },
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let rendered = error.to_string();
            let reason = rendered.lines().next().unwrap_or_default();
            Err(format!("{key}: {}", reason.trim_start_matches("error: ")))
        }
        // Ignore other errors: an option that this one requires may be set by another key.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_a_file_whose_every_key_is_known() {
        let sample = sample();
        let uncommented: String = sample
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with(' ')))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(uncommented.contains("port = 27017") && uncommented.contains("auth = false"));
        let table: Table = uncommented.parse().unwrap();
        assert!(table.len() >= 10, "{uncommented}");
        for key in table.keys() {
            let unknown = check(key, &format!("--{key}=x"));
            assert!(!unknown.is_err_and(|why| why.contains("no key")), "{key}");
        }
    }

    #[test]
    fn the_command_line_wins_and_unknown_keys_name_the_nearest() {
        let read = |text: &str, given: &[&str]| {
            let place_given = given.iter().any(|option| option.starts_with("--memory"));
            let options = options_of(text, place_given)?;
            let given = given.iter().map(OsString::from);
            parse(options.into_iter().map(OsString::from).chain(given))
                .map_err(|error| error.to_string())
        };
        let file = "port = 5000\ndata = \"x\"\nauth = true\n";
        let merged = read(file, &["--port", "6000", "--memory"]).unwrap();
        assert_eq!((merged.port, merged.memory, merged.auth), (6000, true, true));
        assert_eq!(merged.data, None);
        assert!(!read(file, &["--auth=false"]).unwrap().auth);
        let error = read("prot = 1", &[]).unwrap_err();
        assert!(error.contains("did you mean port?"), "{error}");
        let error = read("port = 70000", &[]).unwrap_err();
        assert!(error.contains("port") && error.contains("70000"), "{error}");
        assert!(read("port = [1]", &[]).is_err() && read("json = true", &[]).is_err());
        assert!(read("port =", &[]).unwrap_err().contains("no TOML in line 1"));
        let twice = read("port = 1\n\nport = 2\n", &[]).unwrap_err();
        assert!(twice.contains("line 3: duplicate key"), "{twice}");
    }
}
