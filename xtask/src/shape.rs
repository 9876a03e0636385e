//! `cargo xtask shape`: files and functions keep the bounds that CONTRIBUTING.md states, and no test is skipped.
//!
//! The sources are formatted, so a function ends at the first line that closes a brace at the depth of its first line.
//! What is over a bound is on a list with its reason, and an entry that is no longer needed is an error too: the list
//! only shrinks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::Failure;
use crate::process;

/// The most lines of a file.
const MAX_FILE_LINES: usize = 800;

/// The most lines of a function, from its `fn` to its closing brace.
const MAX_FUNCTION_LINES: usize = 70;

/// The known exceptions, one `path` or `path function` a line, with the reason after `#`.
const EXCEPTIONS: &str = "xtask/shape-exceptions.txt";

/// Checks every source file that git knows.
pub(crate) fn run() -> Result<String, Failure> {
    let listed = process::read(process::program("git").args(["ls-files", "--", "*.rs"]))?;
    let root = process::root();
    let mut found = BTreeSet::new();
    let mut wrong: Vec<String> = Vec::new();
    let mut files = 0;
    for path in listed.lines() {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        files += 1;
        found.extend(excesses(path, &text));
        if path.contains("/src/") && path.ends_with("/mod.rs") {
            wrong.push(format!("{path}: a module stands in a file of its name, beside its folder"));
        }
        if leaves_a_test_out(&text) {
            wrong.push(format!("{path} has a test that every run skips: run or remove it"));
        }
    }
    let known = exceptions(&root)?;
    wrong
        .extend(found.difference(&known).map(|name| format!("{name} is over its bound: split it")));
    wrong.extend(
        known
            .difference(&found)
            .map(|name| format!("{name} is within its bound: take it off {EXCEPTIONS}")),
    );
    if wrong.is_empty() {
        return Ok(format!("{files} files, {} exceptions", known.len()));
    }
    Err(fail!(
        "files have at most {MAX_FILE_LINES} lines, functions {MAX_FUNCTION_LINES}, and every test runs:\n  {}",
        wrong.join("\n  ")
    ))
}

fn exceptions(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let text = fs::read_to_string(root.join(EXCEPTIONS))
        .map_err(|error| fail!("{EXCEPTIONS} cannot be read: {error}"))?;
    let mut known = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((name, reason)) = line.split_once('#') else {
            return Err(fail!("{EXCEPTIONS}: `{line}` has no reason; add one after #"));
        };
        fail_if!(reason.trim().is_empty() =>
            "{EXCEPTIONS}: `{line}` has no reason; add one after #");
        known.insert(name.trim().to_owned());
    }
    Ok(known)
}

/// Whether a test is marked to be skipped, which the tests' own step would find only after it has run all others.
fn leaves_a_test_out(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("#[ignore"))
}

/// The names of the too long functions in one file, and the file itself.
fn excesses(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    if lines.len() > MAX_FILE_LINES {
        found.push(path.to_owned());
    }
    for (place, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let depth = line.len() - line.trim_start().len();
        let closing = format!("{}}}", &line[..depth]);
        let end = lines[place..].iter().position(|line| *line == closing);
        if end.is_some_and(|length| length + 1 > MAX_FUNCTION_LINES) {
            found.push(format!("{path} {name}"));
        }
    }
    found
}

/// The name of the function that a line begins, unless the line ends it as well.
fn function_name(line: &str) -> Option<&str> {
    let trimmed = line.trim_start();
    if trimmed.ends_with(';') || trimmed.ends_with('}') {
        return None;
    }
    let mut words = trimmed.split_whitespace();
    loop {
        match words.next()? {
            "fn" => break,
            "pub" | "async" | "const" | "unsafe" | "extern" | "\"C\"" => {}
            word if word.starts_with("pub(") => {}
            "super)" | "crate)" => {}
            _ => return None,
        }
    }
    words.next()?.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!(
            "impl A {{\n    pub(crate) async fn long(&self) {{\n{}    }}\n}}\n",
            "        x();\n".repeat(lines)
        )
    }

    #[test]
    fn a_function_over_its_bound_is_named() {
        assert!(excesses("a.rs", &function(MAX_FUNCTION_LINES - 2)).is_empty());
        assert_eq!(excesses("a.rs", &function(MAX_FUNCTION_LINES - 1)), ["a.rs long"]);
    }

    #[test]
    fn a_file_over_its_bound_is_named() {
        assert!(excesses("a.rs", &"\n".repeat(MAX_FILE_LINES)).is_empty());
        assert_eq!(excesses("a.rs", &"\n".repeat(MAX_FILE_LINES + 1)), ["a.rs"]);
    }

    #[test]
    fn a_test_that_is_skipped_is_noticed() {
        assert!(leaves_a_test_out("    #[test]\n    #[ignore = \"slow\"]\n    fn a() {}\n"));
        assert!(!leaves_a_test_out("    // not `#[ignore]`\n    #[test]\n    fn a() {}\n"));
    }

    #[test]
    fn declarations_and_calls_are_no_functions() {
        assert_eq!(function_name("    pub(in crate::a) fn b("), None, "an odd form is not known");
        assert_eq!(function_name("    fn size(&self) -> usize;"), None);
        assert_eq!(function_name("    fn size(&self) -> usize { 1 }"), None);
        assert_eq!(function_name("const fn one<T>("), Some("one"));
        assert_eq!(function_name("let a = f(|x| {"), None);
    }
}
