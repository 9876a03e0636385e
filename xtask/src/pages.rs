//! `cargo xtask pages`: pages and sources name each other truly.
//!
//! The walks of `docs/architecture.md` name a file and what it has at every hop; each must be there. Comments cite pages
//! under `docs`, and their sections by the anchors that the pages state (`<a id="…"></a>`), which stay when a heading is
//! reworded or moved; each must be there too.

use std::fs;

use crate::Failure;
use crate::process;

/// The page of the walks.
const WALKS: &str = "docs/architecture.md";

/// How the heading of a walk begins.
const WALK_HEADING: &str = "## The walk of ";

/// Where pages stand, as sources cite them.
const FOLDER: &str = "docs/";

/// Checks every walk, and every source file that git knows.
pub(crate) fn run() -> Result<String, Failure> {
    let root = process::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let page = read(WALKS).ok_or_else(|| fail!("{WALKS} cannot be read"))?;
    let (hops, mut wrong) = walks(&page, read);
    let listed = process::read(process::program("git").args(["ls-files", "--", "*.rs", "*.txt"]))?;
    let mut cited = 0;
    // The tests here cite pages that do not exist.
    for path in listed.lines().filter(|path| *path != file!()) {
        for citation in read(path).iter().flat_map(|text| citations(text)) {
            cited += 1;
            wrong.extend(fault(&citation, read).map(|fault| format!("{path}: {fault}")));
        }
    }
    if wrong.is_empty() {
        return Ok(format!("{hops} hops, {cited} citations"));
    }
    Err(fail!("pages and sources disagree:\n  {}", wrong.join("\n  ")))
}

/// How many hops the walks of a page have, and their errors.
fn walks(page: &str, read: impl Fn(&str) -> Option<String>) -> (usize, Vec<String>) {
    let (mut hops, mut wrong) = (0, Vec::new());
    let mut walk = None;
    for line in page.lines() {
        if line.starts_with("## ") {
            walk = line.strip_prefix(WALK_HEADING);
        }
        let Some(walk) = walk else { continue };
        let Some((hop, places)) =
            line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")?.rsplit_once(" | "))
        else {
            continue;
        };
        if places == "where" {
            continue;
        }
        hops += 1;
        let faults = hop_faults(places, &read);
        wrong.extend(faults.into_iter().map(|fault| format!("{WALKS}, {walk}, {hop}: {fault}")));
    }
    (hops, wrong)
}

/// The errors in the places of one hop: files, each followed by the names it must hold.
fn hop_faults(places: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    // The file that the names belong to: its path, its text, and how many names it got.
    let mut file: Option<(&str, String, usize)> = None;
    let nameless = |file: Option<(&str, String, usize)>| {
        file.filter(|(_, _, names)| *names == 0).map(|(path, ..)| format!("what of {path}?"))
    };
    for word in places.split('`').skip(1).step_by(2) {
        if word.ends_with(".rs") {
            let text = read(&format!("crates/{word}"));
            if text.is_none() {
                wrong.push(format!("there is no crates/{word}"));
            }
            wrong.extend(nameless(file.replace((word, text.unwrap_or_default(), 0))));
        } else if let Some((path, text, names)) = &mut file {
            *names += 1;
            if !text.is_empty() && !has(text, word) {
                wrong.push(format!("{path} has no {word}"));
            }
        } else {
            wrong.push(format!("{word} is of no file"));
        }
    }
    if file.is_none() {
        wrong.push("no file".to_owned());
    }
    wrong.extend(nameless(file));
    wrong
}

/// Whether a source has this function, type, method of a type, or variant of an enum.
fn has(source: &str, name: &str) -> bool {
    let names_a_type = |name: &str| name.starts_with(char::is_uppercase);
    let begins = |keyword: &str, name: &str| {
        let begun = format!("{keyword} {name}");
        let continues = |c: char| c.is_alphanumeric() || c == '_';
        source
            .match_indices(&begun)
            .any(|(at, found)| !source[at + found.len()..].starts_with(continues))
    };
    match name.rsplit_once("::") {
        Some((_, variant)) if names_a_type(variant) => source.contains(name),
        Some((owner, method)) => source.contains(owner) && begins("fn", method),
        None if names_a_type(name) => {
            ["struct", "enum", "trait", "type"].iter().any(|keyword| begins(keyword, name))
        }
        None => begins("fn", name),
    }
}

/// A page that a source cites, and its anchors.
#[derive(Debug, PartialEq, Eq)]
struct Citation {
    page: String,
    anchors: Vec<String>,
    /// Whether it goes on with the number of a section, which changes when a page does.
    numbered: bool,
}

/// What a source cites: `docs/page.md`, with `#anchor`, `#one and #other` or `#one, #other` behind it.
fn citations(source: &str) -> Vec<Citation> {
    let mut found = Vec::new();
    for (at, _) in source.match_indices(FOLDER) {
        let before = source[..at].chars().next_back();
        // Part of a longer path or an address.
        if before.is_some_and(|c| c == '/' || c == '.' || c.is_alphanumeric()) {
            continue;
        }
        let word = |text: &str| {
            text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').count()
        };
        let name = word(&source[at + FOLDER.len()..]);
        let page = &source[at..at + FOLDER.len() + name];
        let Some(mut rest) = source[at + page.len()..].strip_prefix(".md") else { continue };
        let mut anchors = Vec::new();
        let links = ["#", ", #", " and #"];
        while let Some(after) = links.iter().find_map(|link| rest.strip_prefix(link)) {
            let length = word(after);
            anchors.push(after[..length].to_owned());
            rest = &after[length..];
        }
        let numbered = rest.trim_start_matches(['`', ',', ' ']).starts_with('§');
        found.push(Citation { page: format!("{page}.md"), anchors, numbered });
    }
    found
}

/// The error of a citation.
fn fault(citation: &Citation, read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let Citation { page, anchors, numbered } = citation;
    let Some(text) = read(page) else { return Some(format!("there is no {page}")) };
    if *numbered {
        return Some(format!("{page} is cited by a number; cite an anchor"));
    }
    let missing =
        anchors.iter().find(|anchor| !text.contains(&format!("<a id=\"{anchor}\"></a>")))?;
    Some(format!("{page} has no anchor {missing}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "enum Order { Send }\nimpl Replica {\n    pub fn show(&self) {}\n}\nfn shown_to() {}\n";

    fn tree(path: &str) -> Option<String> {
        match path {
            "crates/member/src/replica.rs" => Some(SOURCE.to_owned()),
            "docs/rules.md" => Some("<a id=\"elections\"></a>\n## 5 Elections\n".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn the_walks_and_citations_of_the_repository_are_true() {
        run().map(|_| ()).unwrap();
    }

    #[test]
    fn a_hop_names_files_and_what_they_have() {
        let fine = "`member/src/replica.rs` `Replica::show`, `shown_to`; `Order`";
        assert!(hop_faults(fine, tree).is_empty());
        let faults = |places: &str| hop_faults(places, tree).join("; ");
        assert_eq!(faults("`member/src/gone.rs` `show`"), "there is no crates/member/src/gone.rs");
        assert_eq!(faults("`member/src/replica.rs` `shown`"), "member/src/replica.rs has no shown");
        assert_eq!(faults("`member/src/replica.rs`"), "what of member/src/replica.rs?");
        assert_eq!(faults("`show`"), "show is of no file; no file");
        let gone = "member/src/replica.rs has no Host::show";
        assert_eq!(faults("`member/src/replica.rs` `Host::show`"), gone);
    }

    #[test]
    fn rows_of_walks_alone_are_hops() {
        let page = "## Crates\n| a | `b` |\n## The walk of a vote\n| hop | where |\n|---|---|\n\
                    | it \\| is shown | `member/src/replica.rs` `show` |\n| asked | `gone` |\n";
        let (hops, wrong) = walks(page, tree);
        assert_eq!((hops, wrong.len()), (2, 2));
        assert!(wrong[0].contains("a vote, asked: gone is of no file"), "{wrong:?}");
    }

    #[test]
    fn a_citation_needs_its_page_and_anchors() {
        let faults = |source: &str| -> Vec<String> {
            citations(source).iter().filter_map(|citation| fault(citation, tree)).collect()
        };
        assert!(faults("//! docs/rules.md#elections. See `docs/rules.md`.").is_empty());
        assert_eq!(
            faults("//! docs/rules.md#elections and #votes"),
            ["docs/rules.md has no anchor votes"]
        );
        assert_eq!(faults("/// docs/gone.md"), ["there is no docs/gone.md"]);
        assert_eq!(faults("/// docs/rules.md §5").len(), 1);
        assert!(citations("https://example.org/docs/gone.md ../docs/gone.md").is_empty());
    }
}
