//! The files of the page, as they were written by hand and built into the program.

/// One file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asset {
    /// Its content type.
    pub(super) kind: &'static str,
    /// Its content.
    pub(super) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The file at this path.
pub(super) fn find(path: &str) -> Option<Asset> {
    let (kind, text) = match path {
        "/" => (HTML, include_str!("assets/index.html")),
        "/style.css" => (STYLE, include_str!("assets/style.css")),
        "/app.js" => (SCRIPT, include_str!("assets/app.js")),
        "/graph.js" => (SCRIPT, include_str!("assets/graph.js")),
        "/members.js" => (SCRIPT, include_str!("assets/members.js")),
        "/plots.js" => (SCRIPT, include_str!("assets/plots.js")),
        "/words.js" => (SCRIPT, include_str!("assets/words.js")),
        "/icon.svg" => ("image/svg+xml", include_str!("assets/icon.svg")),
        _ => return None,
    };
    Some(Asset { kind, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content security policy blocks other origins, so a missing file breaks the page.
    #[test]
    fn whatever_the_page_names_is_there_and_nothing_is_elsewhere() {
        let names = regex_lite::Regex::new(r#"(?:href|src)="(/[^"]*)"|from "(/[^"]*)""#).unwrap();
        let mut waiting = vec!["/".to_owned()];
        let mut seen = std::collections::BTreeSet::new();
        while let Some(path) = waiting.pop() {
            if path == "/metrics" || !seen.insert(path.clone()) {
                continue;
            }
            let asset = find(&path).unwrap_or_else(|| panic!("{path} is missing"));
            for found in names.captures_iter(asset.text) {
                let name = found.get(1).or(found.get(2)).unwrap().as_str();
                waiting.push(name.to_owned());
            }
            let elsewhere = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("://"), "{path} names another host");
            assert!(!asset.text.contains("style=\""), "{path}: the policy forbids inline styles");
        }
        assert!(seen.len() >= 8, "{seen:?}");
        assert!(find("/Cargo.toml").is_none() && find("/../app.js").is_none());
    }
}
