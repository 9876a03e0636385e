//! `cargo xtask site`: the pages under `docs` as a site, with the documentation of the crates, in
//! `target/site`.
//!
//! `docs/SUMMARY.md` is the table of contents, in the form that mdBook reads as well. Debian's cmark-gfm,
//! which is installed if it is missing, turns each page into HTML; here are headings' anchors, links
//! between pages, the frame around a page, and the check that every link of the site leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::Failure;
use crate::process;

/// Where the site goes, below the target directory.
const DIRECTORY: &str = "site";

/// Where the documentation of the crates goes, below the site.
const API: &str = "api";

/// Folders of `docs` that pages show or link to.
const ASSETS: [&str; 2] = ["images", "examples"];

const STYLE: &str = include_str!("site/style.css");

/// One line of the table of contents.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Part(String),
    Page { depth: usize, title: String, path: String },
}

/// Makes the site and checks its links. With `api`, the documentation of the crates is a part of it.
pub(crate) fn run(api: bool) -> Result<String, Failure> {
    quorate_provision::debian(&["cmark-gfm"]).map_err(|error| Failure(error.to_string()))?;
    let (docs, site) = (process::root().join("docs"), process::target_directory().join(DIRECTORY));
    if site.exists() {
        fs::remove_dir_all(&site).map_err(|error| failed(&site, &error))?;
    }
    let crates = if api { document_crates(&site)? } else { Vec::new() };
    let pages = build(&docs, &site, &crates)?;
    let broken = broken_links(&site)?;
    match broken.as_slice() {
        [] => Ok(format!("{pages} pages in {}", site.display())),
        broken => Err(fail!("links that lead nowhere:\n{}", broken.join("\n"))),
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    fail!("{}: {error}", path.display())
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| failed(path, &error))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    fs::write(path, text).map_err(|error| failed(path, &error))
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    for entry in fs::read_dir(from).map_err(|error| failed(from, &error))? {
        let path = entry.map_err(|error| failed(from, &error))?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_folder(&path, &place)?;
        } else {
            fs::copy(&path, &place).map_err(|error| failed(&path, &error))?;
        }
    }
    Ok(())
}

/// Runs rustdoc and puts what it wrote into the site. Returns the crates by name.
fn document_crates(site: &Path) -> Result<Vec<String>, Failure> {
    process::run(process::cargo().args(["doc", "--workspace", "--no-deps", "--lib", "--quiet"]))?;
    let made = process::target_directory().join("doc");
    copy_folder(&made, &site.join(API))?;
    let entries = fs::read_dir(&made).map_err(|error| failed(&made, &error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("quorate") && made.join(name).join("index.html").exists())
        .collect();
    names.sort();
    Ok(names)
}

/// Writes every page of the table of contents, and what pages show.
fn build(docs: &Path, site: &Path, crates: &[String]) -> Result<usize, Failure> {
    let contents = contents(&read(&docs.join("SUMMARY.md"))?);
    let listed: Vec<&str> = contents
        .iter()
        .filter_map(|line| match line {
            Line::Page { path, .. } => Some(path.as_str()),
            Line::Part(_) => None,
        })
        .collect();
    for path in &listed {
        let file = docs.join(path);
        let mut cmark = process::program("cmark-gfm");
        cmark.args(["--unsafe", "-e", "table", "-e", "strikethrough", "-e", "autolink"]);
        let body = with_anchors(&with_page_links(&process::read(cmark.arg(&file))?, path, &listed));
        write(&site.join(place(path)), &framed(&body, path, &contents, crates))?;
    }
    for folder in ASSETS {
        copy_folder(&docs.join(folder), &site.join(folder))?;
    }
    write(&site.join("style.css"), STYLE)?;
    if let Some(first) = listed.first() {
        let go = format!(
            "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={}\">\n",
            place(first)
        );
        write(&site.join("index.html"), &go)?;
    }
    Ok(listed.len())
}

/// The table of contents: headings are parts, list items are pages.
fn contents(summary: &str) -> Vec<Line> {
    let line = |line: &str| {
        let trimmed = line.trim_start();
        if let Some(part) = trimmed.strip_prefix("# ") {
            return Some(Line::Part(part.to_owned()));
        }
        let (title, rest) = trimmed.strip_prefix("- [")?.split_once("](")?;
        let depth = (line.len() - trimmed.len()) / 2;
        let path = rest.strip_suffix(')')?.to_owned();
        Some(Line::Page { depth, title: title.to_owned(), path })
    };
    summary.lines().filter_map(line).collect()
}

/// Where a page stands on the site.
fn place(path: &str) -> String {
    match path.strip_suffix("README.md") {
        Some(folder) => format!("{folder}index.html"),
        None => path.strip_suffix(".md").map_or(path.to_owned(), |page| format!("{page}.html")),
    }
}

/// How a page refers to another place of the site.
fn relative(from: &str, to: &str) -> String {
    "../".repeat(from.matches('/').count()) + to
}

/// A path without `.` and `..`; none if it leaves the folder.
fn resolved(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Links to other pages lead to their places. What is in the repository and not on the site is named
/// without a link.
fn with_page_links(html: &str, page: &str, listed: &[&str]) -> String {
    let mut out = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, after)) = rest.split_once("<a href=\"") {
        out.push_str(before);
        let (link, after) = after.split_once('"').unwrap_or((after, ""));
        let (text, after) = after.split_once("</a>").unwrap_or((after, ""));
        let (file, anchor) = match link.split_once('#') {
            Some((file, anchor)) => (file, format!("#{anchor}")),
            None => (link, String::new()),
        };
        let target = resolved(page, file).filter(|path| {
            listed.contains(&path.as_str()) || ASSETS.iter().any(|folder| path.starts_with(folder))
        });
        match target {
            _ if file.is_empty() || link.contains("://") => {
                out.push_str(&format!("<a href=\"{link}\"{text}</a>"));
            }
            Some(path) => {
                let link = relative(page, &place(&path));
                out.push_str(&format!("<a href=\"{link}{anchor}\"{text}</a>"));
            }
            None => out.push_str(text.split_once('>').map_or("", |(_, text)| text)),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Headings get the anchors by which pages link to them.
fn with_anchors(html: &str) -> String {
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    let mut line_with_anchor = |line: &str| {
        let level = line.strip_prefix("<h").and_then(|rest| rest.split_once('>'));
        let Some((level, rest)) = level.filter(|(level, _)| level.len() == 1) else {
            return line.to_owned();
        };
        let anchor = slug(rest);
        let count = used.entry(anchor.clone()).or_default();
        let unique = if *count == 0 { anchor } else { format!("{anchor}-{count}") };
        *count += 1;
        format!("<h{level} id=\"{unique}\">{rest}")
    };
    html.lines().map(|line| line_with_anchor(line) + "\n").collect()
}

/// The anchor of a heading: its text in small letters, with `-` for blanks and without punctuation.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for character in heading.chars() {
        match character {
            '<' => inside = true,
            '>' => inside = false,
            character if !inside => text.push(character),
            _ => {}
        }
    }
    for entity in ["&amp;", "&lt;", "&gt;", "&quot;"] {
        text = text.replace(entity, "");
    }
    let kept = text.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The page with the table of contents beside it.
fn framed(body: &str, page: &str, contents: &[Line], crates: &[String]) -> String {
    let mut beside = String::new();
    let mut heading = "Quorate";
    for line in contents {
        match line {
            Line::Part(title) => beside.push_str(&format!("<h2>{title}</h2>\n")),
            Line::Page { depth, title, path } => {
                let here = if path == page { " aria-current=\"page\"" } else { "" };
                let link = relative(page, &place(path));
                beside.push_str(&format!(
                    "<a class=\"depth-{depth}\" href=\"{link}\"{here}>{title}</a>\n"
                ));
                if path == page {
                    heading = title;
                }
            }
        }
    }
    if !crates.is_empty() {
        beside.push_str("<h2>Crates</h2>\n");
    }
    for name in crates {
        let link = relative(page, &format!("{API}/{name}/index.html"));
        beside.push_str(&format!("<a class=\"depth-0\" href=\"{link}\">{name}</a>\n"));
    }
    let style = relative(page, "style.css");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{heading} · Quorate</title>\n<link rel=\"stylesheet\" href=\"{style}\">\n</head>\n\
         <body>\n<nav>\n{beside}</nav>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// The links of our own pages that lead to no file or no anchor of the site.
fn broken_links(site: &Path) -> Result<Vec<String>, Failure> {
    let mut pages = Vec::new();
    find_pages(site, &mut pages)?;
    let mut broken = Vec::new();
    for page in &pages {
        let html = read(page)?;
        for link in targets(&html) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = page.parent().unwrap_or(page);
            let target = if file.is_empty() { page.clone() } else { normal(&folder.join(file)) };
            let is_there = target.is_file()
                && (anchor.is_empty() || anchors(&read(&target)?).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// Every page but those of rustdoc, which checks its own.
fn find_pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, &error))? {
        let path = entry.map_err(|error| failed(folder, &error))?.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != API) {
            find_pages(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
    Ok(())
}

fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

fn targets(html: &str) -> Vec<String> {
    let after = ["href=\"", "src=\""].map(|start| html.split(start).skip(1));
    after
        .into_iter()
        .flatten()
        .filter_map(|rest| Some(rest.split('"').next()?.to_owned()))
        .collect()
}

fn anchors(html: &str) -> BTreeSet<&str> {
    html.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_is_made_and_its_links_lead_somewhere() {
        let told = run(false);
        assert!(told.as_ref().is_ok_and(|told| told.contains("pages in")), "{told:?}");
        let page = process::target_directory().join(DIRECTORY).join("tutorial/1-majority.html");
        let page = read(&page).unwrap_or_else(|Failure(why)| panic!("{why}"));
        assert!(page.contains("href=\"../style.css\"") && page.contains("aria-current"), "{page}");
    }

    #[test]
    fn contents_are_parts_and_pages() {
        let summary = "# Learn\n\n- [Tutorial](tutorial/README.md)\n  - [One](tutorial/1.md)\n";
        let page = |depth, title: &str, path: &str| Line::Page {
            depth,
            title: title.to_owned(),
            path: path.to_owned(),
        };
        let expected = [
            Line::Part("Learn".to_owned()),
            page(0, "Tutorial", "tutorial/README.md"),
            page(1, "One", "tutorial/1.md"),
        ];
        assert_eq!(contents(summary), expected);
    }

    #[test]
    fn links_lead_to_pages_or_are_left_out() {
        let listed = ["a.md", "b/README.md", "b/c.md"];
        let linked = |link: &str| {
            with_page_links(&format!("<p><a href=\"{link}\">text</a>.</p>"), "b/c.md", &listed)
        };
        assert_eq!(linked("../a.md#x"), "<p><a href=\"../a.html#x\">text</a>.</p>");
        assert_eq!(linked("README.md"), "<p><a href=\"../b/index.html\">text</a>.</p>");
        assert_eq!(linked("#here"), "<p><a href=\"#here\">text</a>.</p>");
        assert_eq!(linked("https://a.example/"), "<p><a href=\"https://a.example/\">text</a>.</p>");
        assert_eq!(linked("../../CHANGELOG.md"), "<p>text.</p>");
    }

    #[test]
    fn headings_have_anchors_of_their_own() {
        let html =
            "<h2>A <code>b_c</code> &amp; D</h2>\n<p>x</p>\n<h3>Again</h3>\n<h3>Again</h3>\n";
        let expected = "<h2 id=\"a-b_c--d\">A <code>b_c</code> &amp; D</h2>\n<p>x</p>\n\
                        <h3 id=\"again\">Again</h3>\n<h3 id=\"again-1\">Again</h3>\n";
        assert_eq!(with_anchors(html), expected);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let site = process::target_directory().join("site-test");
        let page = "<h1 id=\"top\">A</h1><a href=\"b.html\">b</a><a href=\"#top\">t</a><a href=\"#no\">n</a>";
        write(&site.join("a.html"), page).unwrap_or_else(|Failure(why)| panic!("{why}"));
        let broken = broken_links(&site).unwrap_or_else(|Failure(why)| panic!("{why}"));
        fs::remove_dir_all(&site).unwrap_or_else(|error| panic!("{error}"));
        let broken: Vec<&str> = broken.iter().filter_map(|told| told.split(": ").nth(1)).collect();
        assert_eq!(broken, ["b.html", "#no"]);
    }
}
