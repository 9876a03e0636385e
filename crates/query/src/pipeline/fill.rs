//! `$fill`: values for fields that are null or missing, read as the stages that do the same.

use bson::{Bson, Document};

use super::output::check_known;
use super::stage::Stage;
use super::window::WindowStage;
use crate::error::{ErrorCode, Result};
use crate::expression::{FieldPath, ParseContext};
use crate::projection::AddFields;
use crate::typed::Typed;

/// Reads the stage as a `$setWindowFields` for the methods and an `$addFields` for the values.
pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Vec<Stage>> {
    let spec = spec.document(
        ErrorCode::FAILED_TO_PARSE,
        "the $fill stage specification must be an object, found",
    )?;
    check_known("$fill", spec, &["partitionBy", "partitionByFields", "sortBy", "output"])?;
    let output = match spec.get("output") {
        Some(Bson::Document(output)) if !output.is_empty() => output,
        _ => {
            refuse!(MISSING_FIELD, "BSON field '$fill.output' must name at least one field");
        }
    };
    let (mut methods, mut values) = (Document::new(), Document::new());
    for (field, how) in output {
        FieldPath::parse(field)?;
        let path = Bson::String(format!("${field}"));
        let how = how.as_document().and_then(|how| match how.len() {
            1 => how.iter().next(),
            _ => None,
        });
        match how.map(|(name, value)| (name.as_str(), value)) {
            Some(("value", value)) => {
                let first = bson::doc! { "$ifNull": [path, value.clone()] };
                values.insert(field.as_str(), first);
            }
            Some(("method", Bson::String(method))) if method == "locf" => {
                methods.insert(field.as_str(), bson::doc! { "$locf": path });
            }
            Some(("method", Bson::String(method))) if method == "linear" => {
                methods.insert(field.as_str(), bson::doc! { "$linearFill": path });
            }
            _ => {
                refuse!(
                    6050202,
                    "The $fill output '{field}' must be {{ value: … }} or {{ method: 'linear' \
                         or 'locf' }}"
                );
            }
        }
    }
    let mut stages = Vec::with_capacity(2);
    if !methods.is_empty() {
        let window = Bson::Document(window_of(spec, methods)?);
        stages.push(Stage::Window(WindowStage::parse(&window, context)?.into()));
    }
    if !values.is_empty() {
        let fields = AddFields::parse("$fill", &Bson::Document(values), context)?;
        stages.push(Stage::AddFields(fields));
    }
    Ok(stages)
}

fn window_of(spec: &Document, methods: Document) -> Result<Document> {
    let mut window = Document::new();
    match (spec.get("partitionBy"), spec.get("partitionByFields")) {
        (Some(_), Some(_)) => {
            refuse!(
                6050204,
                "Maximum one of 'partitionBy' and 'partitionByFields can be specified in '$fill'"
            );
        }
        (Some(by), None) => {
            window.insert("partitionBy", by.clone());
        }
        (None, Some(Bson::Array(fields))) => {
            let path = |field: &Bson| match field {
                Bson::String(field) => Ok(Bson::String(format!("${field}"))),
                _ => Err(fail!(TYPE_MISMATCH, "'partitionByFields' must be an array of strings")),
            };
            let paths = fields.iter().map(path).collect::<Result<Vec<_>, _>>()?;
            window.insert("partitionBy", paths);
        }
        (None, Some(_)) => {
            refuse!(TYPE_MISMATCH, "'partitionByFields' must be an array of strings");
        }
        (None, None) => {}
    }
    let Some(sort) = spec.get("sortBy") else {
        refuse!(6050203, "The sortBy field is required to fill by a method");
    };
    window.insert("sortBy", sort.clone());
    window.insert("output", methods);
    Ok(window)
}
