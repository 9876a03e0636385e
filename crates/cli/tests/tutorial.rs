//! The lessons of `docs/tutorial`: every command is run, and prints what the page shows. And the links of all pages
//! lead somewhere.

#![allow(clippy::unwrap_used, reason = "a panic here is the report")]

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Precedes the output of each command.
const MARK: char = '\u{1}';

/// Stands for anything in a line, or alone for any lines.
const ANYTHING: char = '…';

/// A lesson that takes longer hangs.
const LIMIT_SECONDS: &str = "240";

/// The ports on the pages.
const PORTS: [u16; 3] = [27017, 27018, 27019];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command of a page, and the lines below it.
struct Step {
    command: String,
    expected: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match line.strip_prefix("$ ") {
                Some(command) => {
                    steps.push(Step { command: command.to_owned(), expected: Vec::new() });
                }
                None => steps.last_mut().unwrap().expected.push(line.trim_end().to_owned()),
            },
            _ => {}
        }
    }
    steps
}

/// Whether lines are as expected.
fn fits(expected: &[String], lines: &[&str]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((first, later)), _) if *first == ANYTHING.to_string() => {
            (0..=lines.len()).any(|skipped| fits(later, &lines[skipped..]))
        }
        (Some(_), None) => false,
        (Some((first, later)), Some((line, rest))) => line_fits(first, line) && fits(later, rest),
    }
}

fn line_fits(expected: &str, line: &str) -> bool {
    let mut parts = expected.split(ANYTHING);
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap()) else { return false };
    let Some(last) = expected.split(ANYTHING).skip(1).last() else { return rest.is_empty() };
    let middle: Vec<&str> = parts.collect();
    for part in &middle[..middle.len() - 1] {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The first of three ports in a row that are free.
fn free_ports() -> u16 {
    loop {
        let first = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let next = |more| TcpListener::bind(("127.0.0.1", port.saturating_add(more)));
        if port < 65_000 && next(1).is_ok() && next(2).is_ok() {
            return port;
        }
    }
}

/// Runs a lesson in an empty directory, at ports of its own, and compares.
fn lesson(name: &str) {
    let page = fs::read_to_string(repository().join("docs/tutorial").join(name)).unwrap();
    let steps = steps(&page);
    assert!(steps.len() > 4, "{name} has commands");
    let first = free_ports();
    let moved = |text: &str| {
        let mut text = text.to_owned();
        for (offset, port) in PORTS.iter().enumerate() {
            text = text.replace(&port.to_string(), &(first + offset as u16).to_string());
        }
        text
    };
    let mut script = "exec 2>&1\n".to_owned();
    for step in &steps {
        let command = moved(&step.command)
            .replace("quorate up --detach", &format!("quorate up --detach --port {first}"));
        script.push_str(&format!("printf '{MARK}'\n{command}\n"));
    }
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    fs::create_dir(&run).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_quorate")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    shell.args([LIMIT_SECONDS, "bash", "-c", &script]).env("PATH", path);
    shell.env("XDG_RUNTIME_DIR", &run).env("NO_COLOR", "1").stdin(Stdio::null());
    let output = shell.current_dir(directory.path()).output().unwrap();
    // A lesson that failed half-way leaves its set.
    for left in [["down", "--data", "lesson"], ["down", "--port", &first.to_string()]] {
        let mut down = Command::new(env!("CARGO_BIN_EXE_quorate"));
        let _ = down.args(left).env("XDG_RUNTIME_DIR", &run).current_dir(directory.path()).output();
    }
    let told = String::from_utf8(output.stdout).unwrap();
    let mut outputs = told.split(MARK).skip(1);
    for step in &steps {
        let printed = outputs.next().unwrap_or("(it was not run)");
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        let expected: Vec<String> = step.expected.iter().map(|line| moved(line)).collect();
        assert!(
            fits(&expected, &lines),
            "{name}: {}\nprints\n{printed}\nand not\n{}",
            step.command,
            expected.join("\n")
        );
    }
}

macro_rules! lessons {
    ($($test:ident: $page:literal,)*) => {
        $(#[test]
        fn $test() {
            lesson($page);
        })*

        #[test]
        fn every_lesson_is_run_and_listed() {
            let folder = repository().join("docs/tutorial");
            let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
            let mut files: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
            files.retain(|name| name != "README.md");
            files.sort();
            assert_eq!(files, [$($page),*]);
            let list = fs::read_to_string(folder.join("README.md")).unwrap();
            for page in files {
                assert!(list.contains(&format!("]({page})")), "{page} is not listed");
            }
        }
    };
}

lessons! {
    what_a_majority_is: "1-majority.md",
    kill_pause_part: "2-kill-pause-part.md",
    write_concerns: "3-write-concerns.md",
    stale_reads: "4-stale-reads.md",
    rollback: "5-rollback.md",
    priorities: "6-priorities.md",
    delayed_members: "7-delayed-members.md",
    a_transaction_through_a_failover: "8-transactions.md",
}

#[test]
fn what_is_shown_is_compared_line_by_line() {
    let expected = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(fits(&expected(&["a … c", "…", "z"]), &["a bb c", "1", "2", "z"]));
    assert!(fits(&expected(&["…"]), &[]));
    assert!(!fits(&expected(&["a"]), &["a", "b"]));
    assert!(!fits(&expected(&["a…b"]), &["ab c"]));
    assert!(line_fits("x … y … z", "x 1 y 2 z") && !line_fits("x … y … z", "x 1 z"));
}

/// All pages: those of the repository, not of what it builds or fetches.
fn pages() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(repository()).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    listed.lines().map(|line| repository().join(line)).collect()
}

/// The anchors of a page, as they are made from its headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The targets of the links of a page, outside blocks of code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        }
        if !inside {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(targets.map(str::to_owned));
        }
    }
    found
}

/// The site has every page of the folder.
#[test]
fn the_summary_of_the_site_lists_every_page() {
    let summary = fs::read_to_string(repository().join("docs/SUMMARY.md")).unwrap();
    for folder in ["docs", "docs/tutorial"] {
        for file in fs::read_dir(repository().join(folder)).unwrap() {
            let path = file.unwrap().path();
            let listed =
                path.strip_prefix(repository().join("docs")).unwrap().display().to_string();
            if listed.ends_with(".md") && listed != "SUMMARY.md" {
                assert!(summary.contains(&format!("]({listed})")), "{listed} is not on the site");
            }
        }
    }
}

#[test]
fn the_links_of_all_pages_lead_somewhere() {
    let mut broken = Vec::new();
    let pages = pages();
    assert!(pages.len() > 20, "{pages:?}");
    for path in pages {
        let page = fs::read_to_string(&path).unwrap();
        for link in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = match (target.exists(), anchor) {
                (found, "") => found,
                (false, _) => false,
                (true, anchor) => anchors(&fs::read_to_string(&target).unwrap()).contains(anchor),
            };
            if !is_there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
