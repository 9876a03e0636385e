//! Files that tests compare what they see with.

use std::path::Path;
use std::{env, fs};

/// The variable that makes tests write their files anew, for a person to review as a diff.
const UPDATE: &str = "QUORATE_UPDATE_SNAPSHOTS";

/// Compares a file with what a test found. With `QUORATE_UPDATE_SNAPSHOTS` in the environment, the
/// file is written instead. The error is the first line that differs, in words.
pub fn snapshot(path: &Path, found: &str) -> Result<(), String> {
    if env::var_os(UPDATE).is_some() {
        let folder = path.parent().unwrap_or(path);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, found));
        return written.map_err(|error| format!("{}: {error}", path.display()));
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    let Some(difference) = first_difference(&expected, found) else { return Ok(()) };
    Err(format!("{} differs, {difference}\nAccept with {UPDATE}=1", path.display()))
}

fn first_difference(expected: &str, found: &str) -> Option<String> {
    if expected == found {
        return None;
    }
    let (mut left, mut right) = (expected.lines(), found.lines());
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (left, right) if left == right => {}
            (left, right) => {
                let (left, right) = (left.unwrap_or("(end)"), right.unwrap_or("(end)"));
                return Some(format!("line {number}\nexpected {left}\nfound    {right}"));
            }
        }
    }
    Some("the last line ends in another way".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_told() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        let told = |expected, found| first_difference(expected, found).unwrap_or_default();
        assert_eq!(told("a\nb\n", "a\nc\n"), "line 2\nexpected b\nfound    c");
        assert_eq!(told("a\n", "a\nb\n"), "line 2\nexpected (end)\nfound    b");
        assert!(told("a\n", "a").contains("last line"));
    }
}
