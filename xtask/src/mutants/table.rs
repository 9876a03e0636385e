//! The table of deliberate bugs: `xtask/mutants/*.txt`.
//!
//! Each entry begins with its name in brackets. `bug` is what it stands for, and `check` the cheapest test
//! that must object: a package, `lib` or the name of a test program, and words of test names. `file` begins a
//! change, of which an entry may have several: `find` and `put` hold the text that is there and the text that
//! the bug puts in its place, each line after `| `.

use std::fs;
use std::ops::Range;
use std::path::Path;

use crate::Failure;

/// Where the entries are.
const FOLDER: &str = "xtask/mutants";

/// The variable by which a built program is told which bug to have.
pub(crate) const VARIABLE: &str = "QUORATE_MUTANT";

/// A deliberate bug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    pub(crate) bug: String,
    pub(crate) check: Check,
    /// It changes what cannot be chosen while the program runs, such as a constant: it is built on its own.
    pub(crate) alone: bool,
    pub(crate) changes: Vec<Change>,
}

/// What a bug changes in one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) file: String,
    pub(crate) find: String,
    pub(crate) put: String,
}

/// A test program and the words that choose its tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Check {
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) words: Vec<String>,
}

impl Mutant {
    fn changes_to<'m>(&'m self, file: &str) -> impl Iterator<Item = &'m Change> {
        self.changes.iter().filter(move |change| change.file == file)
    }

    /// Where the text of a change stands in its file.
    fn place(&self, change: &Change, text: &str) -> Result<Range<usize>, Failure> {
        let stale = |why: &str| {
            let (name, file) = (&self.name, &change.file);
            fail!("the mutant {name:?} does not apply to {file}: {why}; mend {FOLDER}")
        };
        let mut found = text.match_indices(&change.find);
        match (found.next(), found.next()) {
            (Some((start, _)), None) => Ok(start..start + change.find.len()),
            (None, _) => Err(stale("its text is not there any more")),
            (Some(_), Some(_)) => Err(stale("its text is there more than once")),
        }
    }

    /// The replacement text of a change: the bug alone, or both texts with a switch between them.
    fn replacement(&self, change: &Change) -> String {
        let (name, Change { find, put, .. }) = (&self.name, change);
        if self.alone {
            return put.clone();
        }
        let chosen = format!("::std::env::var_os(\"{VARIABLE}\").is_some_and(|m| m == \"{name}\")");
        let choice = format!("if {chosen} {{ {put} }} else {{ {find} }}");
        // A statement stands by itself; what is part of an expression needs parentheses.
        if find.ends_with([';', '}']) { choice } else { format!("({choice})") }
    }
}

/// Every entry of every file, in order.
pub(crate) fn read(root: &Path) -> Result<Vec<Mutant>, Failure> {
    let folder = root.join(FOLDER);
    let unreadable = |error| fail!("{FOLDER} cannot be read: {error}");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .map_err(unreadable)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(unreadable)?;
        all.extend(parse(&text)?);
    }
    let mut names: Vec<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(fail!("two mutants are called {:?}", pair[0])),
        None => Ok(all),
    }
}

/// The entries of one file.
fn parse(text: &str) -> Result<Vec<Mutant>, Failure> {
    let mut all: Vec<Mutant> = Vec::new();
    let mut block = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            all.push(Mutant { name: name.to_owned(), ..Mutant::default() });
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || fail!("{FOLDER}: `{line}` is no line of an entry");
        let mutant = all.last_mut().ok_or_else(wrong)?;
        if let Some(rest) = line.strip_prefix('|') {
            let change = mutant.changes.last_mut().ok_or_else(wrong)?;
            let part = if block == "find" { &mut change.find } else { &mut change.put };
            if !part.is_empty() {
                part.push('\n');
            }
            part.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            continue;
        }
        match line.split_once(':').map(|(key, value)| (key, value.trim())) {
            Some(("file", value)) => {
                mutant.changes.push(Change { file: value.to_owned(), ..Change::default() });
            }
            Some(("bug", value)) => mutant.bug = value.to_owned(),
            Some(("check", value)) => mutant.check = check(value).ok_or_else(wrong)?,
            Some(("alone", "")) => mutant.alone = true,
            Some(("find", "")) => block = "find",
            Some(("put", "")) => block = "put",
            _ => return Err(wrong()),
        }
    }
    let incomplete = |m: &&Mutant| {
        let is_empty = |change: &Change| change.file.is_empty() || change.find.is_empty();
        let lacks_change = m.changes.is_empty() || m.changes.iter().any(is_empty);
        lacks_change || m.bug.is_empty() || m.check.package.is_empty()
    };
    if let Some(mutant) = all.iter().find(incomplete) {
        return Err(fail!("the mutant {:?} lacks a line", mutant.name));
    }
    let is_cut = |change: &Change| !is_whole(&change.find) || !is_whole(&change.put);
    match all.iter().find(|mutant| !mutant.alone && mutant.changes.iter().any(is_cut)) {
        Some(mutant) => Err(fail!(
            "the mutant {:?} opens a bracket that it does not close: choose a whole expression or statement, or say `alone:`",
            mutant.name
        )),
        None => Ok(all),
    }
}

/// Whether a switch may stand around the text, as far as its brackets tell.
fn is_whole(text: &str) -> bool {
    let count = |bracket| text.matches(bracket).count();
    count('{') == count('}') && count('(') == count(')') && count('[') == count(']')
}

fn check(value: &str) -> Option<Check> {
    let mut words = value.split_whitespace().map(str::to_owned);
    Some(Check { package: words.next()?, target: words.next()?, words: words.collect() })
}

/// A file with these bugs in it, which must not touch each other.
pub(crate) fn mutated(file: &str, text: &str, mutants: &[&Mutant]) -> Result<String, Failure> {
    let mut places = Vec::new();
    for mutant in mutants {
        for change in mutant.changes_to(file) {
            places.push((mutant.place(change, text)?, mutant.replacement(change)));
        }
    }
    places.sort_by_key(|(place, _)| place.start);
    let mut changed = String::with_capacity(text.len());
    let mut end = 0;
    for (place, replacement) in places {
        fail_if!(place.start < end =>
            "two mutants change {:?}: make one of them alone", &text[place]);
        changed.push_str(&text[end..place.start]);
        changed.push_str(&replacement);
        end = place.end;
    }
    changed.push_str(&text[end..]);
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn every_mutant_still_applies() {
        let root = process::root();
        let all = read(&root).unwrap_or_else(|Failure(why)| panic!("{why}"));
        assert!(all.len() >= 40, "only {} mutants", all.len());
        let (alone, chosen): (Vec<&Mutant>, _) = all.iter().partition(|mutant| mutant.alone);
        for file in all.iter().flat_map(|mutant| &mutant.changes).map(|change| &change.file) {
            let text =
                fs::read_to_string(root.join(file)).unwrap_or_else(|why| panic!("{file}: {why}"));
            for mutants in alone.iter().map(std::slice::from_ref).chain([chosen.as_slice()]) {
                mutated(file, &text, mutants).unwrap_or_else(|Failure(why)| panic!("{why}"));
            }
        }
    }

    #[test]
    fn an_entry_is_read_and_applied() {
        let text = "# why\n[late yes]\nfile: a.rs\nbug: a late yes counts\ncheck: p lib one two\nfind:\n| a < b\nput:\n| a <= b\n";
        let all = parse(text).unwrap_or_default();
        assert_eq!(all[0].check.words, ["one", "two"]);
        let changed = mutated("a.rs", "if a < b { c }", &[&all[0]]).unwrap_or_default();
        assert!(
            changed.starts_with("if (if ::std::env") && changed.ends_with("{ a < b }) { c }"),
            "{changed}"
        );
        assert!(mutated("a.rs", "a < b; a < b", &[&all[0]]).is_err(), "twice");
        assert!(mutated("a.rs", "", &[&all[0]]).is_err(), "gone");
        let alone = Mutant { alone: true, ..all[0].clone() };
        assert_eq!(mutated("a.rs", "if a < b {}", &[&alone]).unwrap_or_default(), "if a <= b {}");
    }

    #[test]
    fn a_line_that_is_none_and_an_entry_without_a_file_are_refused() {
        assert!(parse("file: a.rs\n").is_err());
        assert!(parse("[a]\n| x\n").is_err());
        assert!(parse("[a]\nbug: b\ncheck: p lib\nfind:\n| x\n").is_err());
        assert!(parse("[a]\nnonsense\n").is_err());
        let cut = "[a]\nfile: a.rs\nbug: b\ncheck: p lib\nfind:\n| if c {\nput:\n| if d {\n";
        assert!(parse(cut).is_err());
        assert!(parse(&cut.replace("bug", "alone:\nbug")).is_ok());
    }
}
