//! `cargo xtask map`: the dependencies between our crates, as `docs/architecture.md` shows them.
//!
//! The block between the two markers is made from the manifests. CI only compares, so that the page cannot draw a
//! dependency that does not exist, nor leave one out. Every library of a manifest has its reason in
//! `docs/dependencies.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::Failure;
use crate::process;

const PAGE: &str = "docs/architecture.md";
const LIBRARIES: &str = "docs/dependencies.md";
const BEGIN: &str = "<!-- made by `cargo xtask map` -->\n";
const END: &str = "<!-- end -->\n";

/// The crates that each crate depends on in production.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Compares the page with the manifests; with `write`, puts it right.
pub(crate) fn run(write: bool) -> Result<String, Failure> {
    let graph = graph()?;
    check_libraries(&graph)?;
    let page = process::root().join(PAGE);
    let unreadable = |error| fail!("{PAGE}: {error}");
    let text = fs::read_to_string(&page).map_err(unreadable)?;
    let drawn = redrawn(&text, &drawing(&graph)?).ok_or_else(|| {
        fail!("{PAGE} has lost the markers `{}` and `{}`", BEGIN.trim(), END.trim())
    })?;
    if drawn == text {
        return Ok(format!("{} crates", graph.len()));
    }
    fail_if!(!write => "{PAGE} does not show the crates as they are; run: cargo xtask map");
    fs::write(&page, drawn).map_err(unreadable)?;
    Ok(format!("{PAGE} was redrawn"))
}

fn graph() -> Result<Graph, Failure> {
    let folder = process::root().join("crates");
    let unreadable = |error| fail!("crates: {error}");
    let mut graph = Graph::new();
    for entry in fs::read_dir(&folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        graph.insert(entry.file_name().to_string_lossy().into_owned(), dependencies(&manifest));
    }
    Ok(graph)
}

/// Every library that a crate names has its reason on the page.
fn check_libraries(graph: &Graph) -> Result<(), Failure> {
    let read = |path: &str| {
        fs::read_to_string(process::root().join(path)).map_err(|error| fail!("{path}: {error}"))
    };
    let page = read(LIBRARIES)?;
    for name in graph.keys() {
        let path = format!("crates/{name}/Cargo.toml");
        let manifest = read(&path)?;
        let unknown = entries(&manifest, |section| section.ends_with("dependencies]"))
            .find(|entry| !entry.starts_with("quorate") && !page.contains(&format!("`{entry}`")));
        if let Some(library) = unknown {
            return Err(fail!("{LIBRARIES} does not say why {path} has {library}; add a line"));
        }
    }
    Ok(())
}

/// Our crates among the `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let production = |section: &str| {
        section == "[dependencies]"
            || (section.starts_with("[target.") && section.ends_with(".dependencies]"))
    };
    let ours = entries(manifest, production).filter_map(|name| name.strip_prefix("quorate-"));
    ours.map(str::to_owned).collect()
}

/// The names that are set in some sections of a manifest.
fn entries<'m>(
    manifest: &'m str,
    wanted: impl Fn(&str) -> bool + 'm,
) -> impl Iterator<Item = &'m str> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            inside = wanted(line.trim());
        }
        let end = line.find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c))?;
        (inside && end > 0).then(|| &line[..end])
    })
}

/// One line a crate, those that nothing depends on first. A crate stands above all that it depends on.
fn drawing(graph: &Graph) -> Result<String, Failure> {
    let mut levels: BTreeMap<&str, usize> = BTreeMap::new();
    // Each round settles at least one crate, unless there is a cycle.
    for _ in 0..=graph.len() {
        for (name, dependencies) in graph {
            let known: Option<Vec<usize>> = dependencies
                .iter()
                .map(|dependency| levels.get(dependency.as_str()).copied())
                .collect();
            if let Some(known) = known {
                levels.insert(name, known.into_iter().max().map_or(0, |level| level + 1));
            }
        }
    }
    fail_if!(levels.len() < graph.len() => "our crates depend on each other in a circle");
    let width = graph.keys().map(String::len).max().unwrap_or_default();
    let mut rows: Vec<_> = graph.iter().collect();
    rows.sort_by_key(|(name, _)| (std::cmp::Reverse(levels[name.as_str()]), name.as_str()));
    let mut text = "```text\n".to_owned();
    for (name, dependencies) in rows {
        let dependencies: Vec<&str> = dependencies.iter().map(String::as_str).collect();
        let line = format!("{name:<width$}  {}", dependencies.join(" "));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str("```\n");
    Ok(text)
}

/// The page with another drawing between the markers.
fn redrawn(page: &str, drawing: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{drawing}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        edges.iter().map(|(name, dependencies)| ((*name).to_owned(), owned(dependencies))).collect()
    }

    #[test]
    fn only_production_dependencies_of_ours_count() {
        let manifest = "[dependencies]\nbson = \"3\"\nquorate-wire.workspace = true\n\
                        [dev-dependencies]\nquorate-server = { path = \"x\" }\n";
        assert_eq!(dependencies(manifest), BTreeSet::from(["wire".to_owned()]));
    }

    #[test]
    fn a_crate_stands_above_what_it_depends_on() {
        let drawn = drawing(&graph(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"])])).unwrap();
        assert_eq!(drawn, "```text\nc  a b\nb  a\na\n```\n");
    }

    #[test]
    fn a_circle_is_an_error() {
        assert!(drawing(&graph(&[("a", &["b"]), ("b", &["a"])])).is_err());
    }

    #[test]
    fn only_the_block_between_the_markers_changes() {
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(redrawn(&page, "new\n").unwrap(), format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(redrawn("no markers", "new\n").is_none());
    }
}
