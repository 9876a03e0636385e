//! `updateDescription`: what the delta of an oplog entry says, with dotted paths.

use bson::{Bson, Document, doc};

use crate::error::{EventError, Result};

/// The deepest nesting of a delta.
const MAX_DEPTH: usize = 200;

/// One step of a path.
#[derive(Debug, Clone)]
enum Step {
    Field(String),
    Index(usize),
}

/// What a delta touched.
#[derive(Default)]
struct Description {
    updated: Document,
    removed: Vec<Bson>,
    truncated: Vec<Bson>,
    disambiguated: Document,
}

/// The `updateDescription` of a delta `{d, u, i, s…}`. With `expanded`, paths that could be read in more
/// than one way are listed component by component in `disambiguatedPaths`.
///
/// # Errors
///
/// If the delta is malformed.
pub fn update_description(diff: &Document, expanded: bool) -> Result<Document> {
    let mut description = Description::default();
    description.document(diff, &mut Vec::new())?;
    let mut told = doc! {
        "updatedFields": description.updated,
        "removedFields": description.removed,
        "truncatedArrays": description.truncated,
    };
    if expanded {
        told.insert("disambiguatedPaths", description.disambiguated);
    }
    Ok(told)
}

fn malformed(section: &str) -> EventError {
    EventError::entry(format!("its delta has a section '{section}' that is not known"))
}

impl Description {
    fn document(&mut self, diff: &Document, path: &mut Vec<Step>) -> Result<()> {
        if path.len() > MAX_DEPTH {
            return Err(EventError::entry("its delta is nested too deeply"));
        }
        if diff.get("a") == Some(&Bson::Boolean(true)) {
            return self.array(diff, path);
        }
        for (section, content) in diff {
            match (section.as_str(), content) {
                ("d", Bson::Document(fields)) => {
                    for name in fields.keys() {
                        let dotted = self.told(path, Step::Field(name.clone()));
                        self.removed.push(Bson::String(dotted));
                    }
                }
                ("u" | "i", Bson::Document(fields)) => {
                    for (name, value) in fields {
                        let dotted = self.told(path, Step::Field(name.clone()));
                        self.updated.insert(dotted, value.clone());
                    }
                }
                (name, Bson::Document(inner)) if name.starts_with('s') => {
                    path.push(Step::Field(name[1..].to_owned()));
                    self.document(inner, path)?;
                    path.pop();
                }
                (unknown, _) => return Err(malformed(unknown)),
            }
        }
        Ok(())
    }

    fn array(&mut self, diff: &Document, path: &mut Vec<Step>) -> Result<()> {
        for (section, content) in diff {
            match section.as_str() {
                "a" => continue,
                "l" => {
                    let field = match path.pop() {
                        Some(last) => {
                            let field = self.told(path, last.clone());
                            path.push(last);
                            field
                        }
                        None => return Err(malformed(section)),
                    };
                    self.truncated.push(doc! { "field": field, "newSize": content.clone() }.into());
                    continue;
                }
                _ => {}
            }
            let index = section.get(1..).and_then(|digits| digits.parse().ok());
            let index = index.ok_or_else(|| malformed(section))?;
            match (section.as_bytes().first(), content) {
                (Some(b'u'), value) => {
                    let dotted = self.told(path, Step::Index(index));
                    self.updated.insert(dotted, value.clone());
                }
                (Some(b's'), Bson::Document(inner)) => {
                    path.push(Step::Index(index));
                    self.document(inner, path)?;
                    path.pop();
                }
                _ => return Err(malformed(section)),
            }
        }
        Ok(())
    }

    /// The dotted path, noted component by component where dots or numbers make it ambiguous.
    fn told(&mut self, path: &[Step], last: Step) -> String {
        let steps: Vec<&Step> = path.iter().chain([&last]).collect();
        let dotted = steps.iter().map(|step| step.text()).collect::<Vec<_>>().join(".");
        let ambiguous = steps.iter().enumerate().any(|(place, step)| step.is_ambiguous(place == 0));
        if ambiguous {
            let components: Vec<Bson> = steps.iter().map(|step| step.to_bson()).collect();
            self.disambiguated.insert(dotted.clone(), components);
        }
        dotted
    }
}

impl Step {
    fn text(&self) -> String {
        match self {
            Self::Field(name) => name.clone(),
            Self::Index(index) => index.to_string(),
        }
    }

    fn to_bson(&self) -> Bson {
        match self {
            Self::Field(name) => Bson::String(name.clone()),
            Self::Index(index) => Bson::Int32(i32::try_from(*index).unwrap_or(i32::MAX)),
        }
    }

    /// A name with a dot, or one that could be a position: not as the first component, where there is
    /// no array, and not with leading zeros, which no position has. A position makes no doubt.
    fn is_ambiguous(&self, is_first: bool) -> bool {
        let Self::Field(name) = self else { return false };
        let numeric = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        let canonical = name == "0" || !name.starts_with('0');
        name.contains('.') || (numeric && canonical && !is_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(diff: Document) -> Document {
        update_description(&diff, true).unwrap()
    }

    #[test]
    fn every_section_of_a_delta_is_told() {
        let diff = doc! {
            "d": { "gone": false }, "u": { "a": 1 }, "i": { "b": 2 },
            "sc": { "u": { "d": 3 }, "d": { "e": false } },
            "sf": { "a": true, "l": 2, "u0": "x", "s1": { "i": { "g": 4 } } },
        };
        let expected = doc! {
            "updatedFields": { "a": 1, "b": 2, "c.d": 3, "f.0": "x", "f.1.g": 4 },
            "removedFields": ["gone", "c.e"],
            "truncatedArrays": [{ "field": "f", "newSize": 2 }],
            "disambiguatedPaths": {},
        };
        assert_eq!(described(diff), expected);
    }

    #[test]
    fn paths_that_could_be_read_otherwise_are_told_by_component() {
        let dots = described(doc! { "u": { "a.b": 1 } });
        assert_eq!(dots.get_document("disambiguatedPaths").unwrap(), &doc! { "a.b": ["a.b"] });
        let number = described(doc! { "sa": { "u": { "1": 2 } } });
        assert_eq!(number.get_document("disambiguatedPaths").unwrap(), &doc! { "a.1": ["a", "1"] });
        let both = described(doc! { "sr": { "a": true, "s0": { "u": { "0": 1 } } } });
        assert_eq!(
            both.get_document("disambiguatedPaths").unwrap(),
            &doc! { "r.0.0": ["r", 0, "0"] }
        );
        let neither = described(doc! { "u": { "0": 1 }, "sa": { "u": { "01": 1 } } });
        assert_eq!(neither.get_document("disambiguatedPaths").unwrap(), &doc! {});
    }

    #[test]
    fn malformed_deltas_are_refused() {
        for diff in [doc! { "x": 1 }, doc! { "sa": { "a": true, "q1": 1 } }, doc! { "u": 1 }] {
            assert_eq!(update_description(&diff, false).unwrap_err().code, 280);
        }
    }
}
