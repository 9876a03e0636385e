//! Opening a stream: the options of `$changeStream`, what may follow it, and where it starts.

use bson::{Bson, Document};
use quorate_change_events::{FullDocument, FullDocumentBeforeChange, Options, ResumeToken, Scope};
use quorate_query::expression::Variables;
use quorate_query::pipeline::Pipeline;
use quorate_wire::timestamp_from;

use super::{ChangeStream, Start, event_error, fatal};
use crate::commands::Target;
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::Fields;

/// The stages that may follow.
const ALLOWED: [&str; 8] = [
    "$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact",
];

/// The options of `$changeStream`.
const OPTIONS: [&str; 7] = [
    "fullDocument", "fullDocumentBeforeChange", "showExpandedEvents", "allChangesForCluster",
    "resumeAfter", "startAfter", "startAtOperationTime",
];

/// The stage that lets large events come in fragments; it comes last.
const SPLIT: &str = "$changeStreamSplitLargeEvent";

/// Whether a pipeline starts with `$changeStream`.
pub(crate) fn is_change_stream(stages: &[Bson]) -> bool {
    let first = stages.first().and_then(Bson::as_document);
    first.is_some_and(|stage| stage.contains_key("$changeStream"))
}

/// Opens a stream. Nothing has been read yet.
pub(crate) fn open(
    request: &Request<'_>,
    target: &Target,
    stages: &[Bson],
    variables: Variables,
    fields: &Fields<'_>,
) -> Result<ChangeStream> {
    refuse_if!(request.node.oplog().is_none() || request.node.replication().is_none() => 40573,
        "The $changeStream stage is only supported on replica sets");
    check_read_concern(fields)?;
    let (first, rest) = stages.split_first().ok_or_else(|| specification("is missing"))?;
    let first = first.as_document().filter(|stage| stage.len() == 1);
    let Some(Bson::Document(spec)) = first.and_then(|stage| stage.get("$changeStream")) else {
        return Err(specification("must be an object, alone in its stage"));
    };
    let parsed = Parsed::of(spec)?;
    let scope = scope(request, target, parsed.whole_deployment)?;
    let (rest, splits) = following(rest)?;
    let pipeline = Pipeline::parse(rest, &variables)?;
    check_fragment(&parsed.start, splits)?;
    let standing = request.node.standing();
    let (position, resume_after) = match parsed.start {
        Start::Now => (standing.last.op_time.timestamp.as_u64(), None),
        Start::At(time) => (time.as_u64().saturating_sub(1), None),
        Start::After(token) => {
            let time = timestamp_from(token.cluster_time).as_u64();
            (time.saturating_sub(1), Some(*token))
        }
    };
    Ok(ChangeStream {
        options: Options { scope, ..parsed.options },
        pipeline,
        variables,
        splits,
        started_at: position,
        position,
        resume_after,
        unfinished: Default::default(),
        waiting: Default::default(),
        waiting_bytes: 0,
        partly: None,
        last_sent: None,
        caught_up: false,
        ended: false,
        passed: None,
    })
}

/// A stream without fragments shows all of an event or nothing of it.
fn check_fragment(start: &Start, splits: bool) -> Result<()> {
    match start {
        Start::After(token) if token.fragment.is_some() && !splits => Err(fatal(format!(
            "to resume within a split event, the pipeline has to end with {SPLIT}"
        ))),
        _ => Ok(()),
    }
}

fn specification(reason: &str) -> CommandError {
    fail!(50808, "the $changeStream stage specification {reason}")
}

fn check_read_concern(fields: &Fields<'_>) -> Result<()> {
    let Some(concern) = fields.document("readConcern")? else { return Ok(()) };
    match concern.get_str("level") {
        Err(_) | Ok("majority") => Ok(()),
        Ok(level) => Err(fail!(
            INVALID_OPTIONS,
            "$changeStream cannot run with readConcern '{level}'; use majority"
        )),
    }
}

/// What the options say.
struct Parsed {
    options: Options,
    start: Start,
    whole_deployment: bool,
}

impl Parsed {
    fn of(spec: &Document) -> Result<Self> {
        let mut parsed =
            Self { options: Options::default(), start: Start::Now, whole_deployment: false };
        let mut starts = 0;
        for (name, value) in spec {
            match (name.as_str(), value) {
                // As MongoDB has it: a driver may send null for what was not given.
                (name, Bson::Null | Bson::Undefined) if OPTIONS.contains(&name) => {}
                ("fullDocument", Bson::String(text)) => {
                    parsed.options.full_document = full_document(text)?;
                }
                ("fullDocumentBeforeChange", Bson::String(text)) => {
                    parsed.options.before_change = before_change(text)?;
                }
                ("showExpandedEvents", Bson::Boolean(shows)) => {
                    parsed.options.show_expanded_events = *shows;
                }
                ("allChangesForCluster", Bson::Boolean(all)) => parsed.whole_deployment = *all,
                ("resumeAfter" | "startAfter", Bson::Document(token)) => {
                    starts += 1;
                    let token = ResumeToken::from_document(token).map_err(event_error)?;
                    if name == "resumeAfter" && token.after_invalidate {
                        refuse!(
                            INVALID_RESUME_TOKEN,
                            "Attempting to resume a change stream using 'resumeAfter' is not allowed \
                             from an invalidate notification; use startAfter"
                        );
                    }
                    parsed.start = Start::of_token(token);
                }
                ("startAtOperationTime", Bson::Timestamp(time)) => {
                    starts += 1;
                    parsed.start = Start::At(timestamp_from(*time));
                }
                (name, other) if OPTIONS.contains(&name) => {
                    refuse!(
                        TYPE_MISMATCH,
                        "BSON field '$changeStream.{name}' has the wrong type {:?}",
                        other.element_type()
                    );
                }
                (unknown, _) => {
                    refuse!(40415, "BSON field '$changeStream.{unknown}' is an unknown field.");
                }
            }
        }
        refuse_if!(starts > 1 => 40674,
            "Only one type of resume option is allowed, but multiple were found: use one of \
             resumeAfter, startAfter and startAtOperationTime");
        Ok(parsed)
    }
}

fn full_document(text: &str) -> Result<FullDocument> {
    Ok(match text {
        "default" => FullDocument::Default,
        "updateLookup" => FullDocument::UpdateLookup,
        "whenAvailable" => FullDocument::WhenAvailable,
        "required" => FullDocument::Required,
        other => return Err(unknown_value("fullDocument", other)),
    })
}

fn before_change(text: &str) -> Result<FullDocumentBeforeChange> {
    Ok(match text {
        "off" => FullDocumentBeforeChange::Off,
        "whenAvailable" => FullDocumentBeforeChange::WhenAvailable,
        "required" => FullDocumentBeforeChange::Required,
        other => return Err(unknown_value("fullDocumentBeforeChange", other)),
    })
}

fn unknown_value(field: &str, value: &str) -> CommandError {
    fail!(
        BAD_VALUE,
        "Enumeration value '{value}' for field '$changeStream.{field}' is not a valid value."
    )
}

fn scope(
    request: &Request<'_>,
    Target { namespace, whole_database }: &Target,
    whole_deployment: bool,
) -> Result<Scope> {
    let invalid = |message: String| CommandError::new(ErrorCode::INVALID_NAMESPACE, message);
    if whole_deployment {
        refuse_if!(!*whole_database || namespace.database != "admin" => INVALID_OPTIONS,
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' \
             database, and with no collection name");
        return Ok(Scope::Deployment);
    }
    if matches!(namespace.database.as_str(), "admin" | "config" | "local") {
        return Err(invalid(format!(
            "$changeStream may not be opened on the internal {} database",
            namespace.database
        )));
    }
    if *whole_database {
        return Ok(Scope::Database(namespace.database.clone()));
    }
    if namespace.is_system() {
        return Err(invalid(format!(
            "$changeStream may not be opened on the internal {namespace} collection"
        )));
    }
    let (collection, _) = request.read(namespace)?;
    if collection.is_some_and(|collection| collection.view.is_some()) {
        refuse!(
            COMMAND_NOT_SUPPORTED_ON_VIEW,
            "Namespace {namespace} is a view, not a collection; watch what it reads"
        );
    }
    Ok(Scope::Collection {
        database: namespace.database.clone(),
        collection: namespace.collection.clone(),
    })
}

/// The stages after the first, and whether the last of them splits large events.
fn following(stages: &[Bson]) -> Result<(&[Bson], bool)> {
    let name = |stage: &Bson| {
        let stage = stage.as_document()?;
        stage.keys().next().cloned()
    };
    let (stages, splits) = match stages.split_last() {
        Some((last, before)) if name(last).as_deref() == Some(SPLIT) => (before, true),
        _ => (stages, false),
    };
    for stage in stages {
        match name(stage).as_deref() {
            Some(SPLIT) => {
                refuse!(7182802, "{SPLIT} must be the last stage in the pipeline");
            }
            Some("$changeStream") => {
                refuse!(40602, "$changeStream is only valid as the first stage in a pipeline.");
            }
            Some(known) if ALLOWED.contains(&known) => {}
            Some(other) => {
                // A stage that does not exist at all is refused by its name first.
                Pipeline::parse(std::slice::from_ref(stage), &Variables::new(0))?;
                refuse!(ILLEGAL_OPERATION, "{other} is not permitted in a $changeStream pipeline");
            }
            None => {}
        }
    }
    Ok((stages, splits))
}
