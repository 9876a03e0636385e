//! `aggregate`, and reading through views.
//!
//! Owns where the documents of a pipeline come from and where they go. The leading stages that are
//! a query go through the planner; the rest runs as a stream behind it.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_query::QueryError;
use quorate_query::expression::{Compiler, Variables};
use quorate_query::matcher::Matcher;
use quorate_query::pipeline::{Documents, Environment, Pipeline, StoredDocuments, SystemStage};
use quorate_storage::KeyspaceId;

use super::common::{
    CursorOptions, WriteConcern, check_collation, command_variables, open_change_stream,
    open_cursor, sort_room, system_variables,
};
use super::diagnostics::visible_operations;
use super::find::as_pipeline;
use super::output::Sink;
use super::session_commands::visible_sessions;
use super::statistics;
use crate::catalog::{Catalog, Collection, Index};
use crate::change_stream;
use crate::context::{Command, Outcome, Reply};
use crate::cursors::DocumentStream;
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, to_raw, whole_number};
use crate::finder::InterruptSlot;
use crate::namespace::{Namespace, PROFILE_COLLECTION};
use crate::records::{DocumentBytes, View};
use crate::scratch::{Run as PutAside, damaged};
use crate::select::Selection;
use crate::sort::Room;
use crate::transactions::made_up_collection;
use crate::users::users_namespace;

/// How many views may stand upon each other.
const MAX_VIEW_DEPTH: usize = 20;

/// What stands for the collection if a pipeline runs on the database.
const WHOLE_DATABASE: &str = "$cmd.aggregate";

/// What a pipeline runs on.
pub(crate) struct Target {
    pub(crate) namespace: Namespace,
    /// It runs on the database, for stages that need no collection: `aggregate: 1`.
    pub(crate) whole_database: bool,
}

impl Target {
    /// What the first field of the command names.
    pub(super) fn of(request: &Request<'_>, named: Option<&Bson>) -> Result<Self> {
        let whole_database = named.and_then(whole_number) == Some(1);
        let namespace = match named {
            _ if whole_database => Namespace::new(request.database, WHOLE_DATABASE)?,
            named => request.collection_named(named)?,
        };
        Ok(Self { namespace, whole_database })
    }
}

pub(super) fn aggregate(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "aggregate");
    check_collation(&fields)?;
    let target = Target::of(request, command.body.get("aggregate"))?;
    let stages = fields.array("pipeline")?.ok_or_else(|| {
        fail!(MISSING_FIELD, "BSON field 'aggregate.pipeline' is missing but a required field")
    })?;
    let explain = fields.flag("explain")?;
    let mut options = CursorOptions::new(request);
    match fields.document("cursor")? {
        Some(cursor) => options.batch_size = Fields::new(cursor, "cursor").count("batchSize")?,
        None if explain => {}
        None => {
            refuse!(
                FAILED_TO_PARSE,
                "The 'cursor' option is required, except for aggregate with the explain argument"
            );
        }
    }
    if explain {
        return super::explain::explain_aggregate(
            request, &target, stages, &fields, "queryPlanner",
        );
    }
    let variables = command_variables(request, &fields)?;
    if change_stream::is_change_stream(stages) {
        let stream = change_stream::open(request, &target, stages, variables, &fields)?;
        return open_change_stream(request, target.namespace, stream, options);
    }
    let Target { namespace, whole_database } = target;
    let hint = fields.raw("hint").cloned();
    let reading = Reading::new(request, &namespace, stages, options.interrupt.clone())?
        .with_room(sort_room(request, &fields)?);
    let run = reading.start(&namespace, stages, &variables, hint)?;
    refuse_if!(whole_database && run.pipeline.reads_collection() => INVALID_NAMESPACE,
        "{{aggregate: 1}} is not valid for a pipeline that starts from a collection");
    refuse_if!(!whole_database && run.pipeline.starts_from_documents() => INVALID_NAMESPACE,
        "$documents is only valid as the first stage with {{aggregate: 1}}, not on a collection");
    match run.pipeline.output() {
        Some(output) => {
            let concern = WriteConcern::parse(&command)?;
            let bypass = fields.flag("bypassDocumentValidation")?;
            let sink = Sink { request, variables: &variables, reading: &reading, bypass };
            let commit = sink.write(output, run.documents)?;
            let Outcome::Reply(reply) =
                open_cursor(request, namespace, Box::new(std::iter::empty()), options)?
            else {
                refuse!(INTERNAL_ERROR, "no reply");
            };
            let Reply { body, .. } = reply;
            Ok(concern.reply(body, commit))
        }
        None => open_cursor(request, namespace, raw_stream(request, run.documents), options),
    }
}

/// A find on a view, as the pipeline that does the same.
pub(super) fn find_in_view(
    request: &Request<'_>,
    namespace: Namespace,
    fields: &Fields<'_>,
    options: CursorOptions,
) -> Result<Outcome> {
    let stages = as_pipeline(fields)?;
    let variables = command_variables(request, fields)?;
    let reading = Reading::new(request, &namespace, &stages, options.interrupt.clone())?
        .with_room(sort_room(request, fields)?);
    let run = reading.start(&namespace, &stages, &variables, None)?;
    open_cursor(request, namespace, raw_stream(request, run.documents), options)
}

/// The documents of a view that match a filter.
pub(super) fn read_view(
    request: &Request<'_>,
    namespace: &Namespace,
    stages: &[Bson],
) -> Result<Documents> {
    let interrupt = request.interrupt.clone();
    let variables = system_variables(request);
    let room = Room { meter: request.meter().clone(), scratch: None };
    let reading = Reading::new(request, namespace, stages, interrupt)?.with_room(room);
    Ok(reading.start(namespace, stages, &variables, None)?.documents)
}

fn raw_stream(request: &Request<'_>, documents: Documents) -> DocumentStream {
    let meter = request.meter().clone();
    Box::new(documents.map(move |document| {
        let document = document?;
        let bytes = quorate_query::value::measure(&document).bytes;
        if bytes <= LARGE_RESULT_BYTES {
            return to_raw(&document).map(DocumentBytes::from);
        }
        // It may hold all that the operation may: to write it would take long for nothing, and so does to free it.
        let written = match bytes <= MAX_RESULT_BYTES {
            true => meter.check().map_err(CommandError::from).and_then(|()| to_raw(&document)),
            false => Err(too_large(bytes)),
        };
        let asked = meter.check();
        meter.free_value(Bson::Document(document));
        asked?;
        written.map(DocumentBytes::from)
    }))
}

fn too_large(bytes: usize) -> CommandError {
    fail!(
        BSON_OBJECT_TOO_LARGE,
        "BSONObj size: {bytes} is invalid: a result may have {MAX_RESULT_BYTES} bytes; project fewer \
             fields, or give the parts as documents of their own with $unwind"
    )
}

/// To measure, to write and to free a document above this takes so long that an interrupt is asked in between.
const LARGE_RESULT_BYTES: usize = 256 * 1024;

/// The largest document that a pipeline may yield: one that could be stored, and room for what commands put around it.
const MAX_RESULT_BYTES: usize = 16 * 1024 * 1024 + 16 * 1024;

/// A pipeline on its way.
struct Run {
    pipeline: Pipeline,
    documents: Documents,
}

/// The data that one aggregate reads: all collections at one moment.
#[derive(Clone)]
pub(super) struct Reading {
    catalog: Arc<Catalog>,
    view: View,
    /// Where the images for change streams are, if the member keeps them.
    images: Option<KeyspaceId>,
    database: String,
    interrupt: InterruptSlot,
    facts: Arc<SystemFacts>,
    /// Whether credentials must be kept from pipelines.
    guarded: bool,
    room: Room,
    /// What the stages of a joined view see.
    variables: Variables,
}

/// What a stage about the server itself starts from. Gathered only for pipelines with one.
#[derive(Default)]
struct SystemFacts(Vec<Document>);

impl SystemFacts {
    fn gather(
        request: &Request<'_>,
        stage: &Document,
        namespace: &Namespace,
        collection: Option<&Arc<Collection>>,
    ) -> Result<Self> {
        let host = &request.node.options().host;
        let Some((name, options)) = stage.iter().next() else { return Ok(Self::default()) };
        if let ("$collStats" | "$indexStats", Some(found)) = (name.as_str(), collection) {
            found.refuse_view()?;
        }
        Ok(Self(match (name.as_str(), collection) {
            ("$collStats", found) => {
                // Options that are no document are refused when the pipeline is parsed.
                let Some(options) = options.as_document() else { return Ok(Self::default()) };
                vec![statistics::stage_figures(request, namespace, found, options)?]
            }
            ("$indexStats", Some(found)) => {
                let since = bson::DateTime::from_millis(request.node.started().wall.as_millis());
                let describe = |index: &Arc<Index>| {
                    doc! {
                        "name": &index.name,
                        "key": index.key(),
                        "host": host,
                        "accesses": { "ops": index.uses() as i64, "since": since },
                        "spec": index.spec.clone(),
                    }
                };
                found.indexes.iter().map(describe).collect()
            }
            ("$listLocalSessions", _) if namespace.collection != WHOLE_DATABASE => {
                refuse!(
                    INVALID_NAMESPACE,
                    "$listLocalSessions must be run against the database with {{aggregate: 1}}, not a \
                     collection"
                );
            }
            ("$listSessions" | "$listLocalSessions", _) => visible_sessions(request, stage)?,
            ("$currentOp", _) if request.database != "admin" => {
                refuse!(
                    INVALID_NAMESPACE,
                    "$currentOp must be run against the 'admin' database with {{aggregate: 1}}"
                );
            }
            ("$currentOp", _) => visible_operations(request, stage)?,
            _ => Vec::new(),
        }))
    }
}

impl Reading {
    fn new(
        request: &Request<'_>,
        namespace: &Namespace,
        stages: &[Bson],
        interrupt: InterruptSlot,
    ) -> Result<Self> {
        let (collection, view) = request.read(namespace)?;
        let facts = match stages.first().and_then(Bson::as_document) {
            Some(stage) => SystemFacts::gather(request, stage, namespace, collection.as_ref())?,
            None => SystemFacts::default(),
        };
        Ok(Self {
            catalog: request.catalog(),
            view,
            images: request.node.facts_keyspace(),
            database: namespace.database.clone(),
            interrupt,
            facts: Arc::new(facts),
            guarded: request.node.options().authentication,
            room: Room::default(),
            variables: system_variables(request),
        })
    }

    /// The same, with room for what sorts cannot hold.
    fn with_room(self, room: Room) -> Self {
        Self { room, ..self }
    }

    /// Runs stages over a collection or a view.
    fn start(
        &self,
        namespace: &Namespace,
        stages: &[Bson],
        variables: &Variables,
        hint: Option<Bson>,
    ) -> Result<Run> {
        let (source, stages) = follow_views(&self.catalog, self.guarded, namespace, stages)?;
        let pipeline = Pipeline::parse(&stages, variables)?;
        check_joins(&namespace.database, &pipeline)?;
        let environment: Arc<dyn Environment> = Arc::new(self.clone());
        if !pipeline.reads_collection() {
            let documents = pipeline.run(Box::new(std::iter::empty()), environment, variables);
            return Ok(Run { pipeline, documents });
        }
        let down = pipeline.push_down();
        let filter = down.filter.unwrap_or_default();
        let compiler = Compiler::new(variables.clone());
        let matcher = Arc::new(Matcher::parse_with(&filter, &compiler)?);
        let input: StoredDocuments<DocumentBytes> = match self.collection(&source)? {
            (None, _) => Box::new(std::iter::empty()),
            (Some(collection), view) => {
                let selection = Selection {
                    sort: down.sort,
                    hint,
                    skip: down.skip.unwrap_or(0),
                    limit: down.limit,
                    room: Some(self.room.clone()),
                    ..Selection::new(collection, view, matcher, self.interrupt.clone())
                };
                let found = selection.run()?;
                Box::new(found.map(|found| Ok(found.map_err(QueryError::from)?.document)))
            }
        };
        let documents = down.rest.run_stored(input, environment, variables);
        Ok(Run { pipeline, documents })
    }

    /// A collection as the command sees it, which may be made of the member's own rows.
    fn collection(&self, namespace: &Namespace) -> Result<(Option<Arc<Collection>>, View)> {
        match made_up_collection(self.images, namespace, &self.view)? {
            Some((collection, view)) => Ok((Some(collection), view)),
            None => Ok((self.catalog.get(namespace).cloned(), self.view.clone())),
        }
    }

    fn read_collection(&self, collection: &str, filter: Option<&Document>) -> Result<Documents> {
        let namespace = Namespace::new(&self.database, collection)?;
        if self.guarded && is_secret(&namespace) {
            return Err(not_for_pipelines(&namespace));
        }
        let stages: Vec<Bson> = filter
            .map(|filter| Bson::from(doc! { "$match": filter.clone() }))
            .into_iter()
            .collect();
        Ok(self.start(&namespace, &stages, &self.variables, None)?.documents)
    }
}

/// What a view stands on, with the view's stages before the given ones; a collection as it is.
pub(super) fn resolve_view(
    request: &Request<'_>,
    namespace: &Namespace,
    stages: &[Bson],
) -> Result<(Namespace, Vec<Bson>)> {
    let guarded = request.node.options().authentication;
    follow_views(&request.catalog(), guarded, namespace, stages)
}

/// Follows views down to a collection, which may not exist.
fn follow_views(
    catalog: &Catalog,
    guarded: bool,
    namespace: &Namespace,
    stages: &[Bson],
) -> Result<(Namespace, Vec<Bson>)> {
    let mut stages = stages.to_vec();
    let mut name = namespace.clone();
    for _ in 0..MAX_VIEW_DEPTH {
        let view = catalog.get(&name).and_then(|collection| collection.view.as_ref());
        let Some(view) = view else { return Ok((name, stages)) };
        name = Namespace::new(&name.database, &view.on)?;
        if guarded && is_secret(&name) {
            return Err(not_for_pipelines(&name));
        }
        let own = view.pipeline.iter().cloned().map(Bson::Document);
        stages = own.chain(stages).collect();
    }
    Err(fail!(
        VIEW_DEPTH_LIMIT_EXCEEDED,
        "views may stand upon each other at most {MAX_VIEW_DEPTH} deep"
    ))
}

/// Whether a collection tells more than the right to read its database gives: credentials, and what
/// others did.
fn is_secret(namespace: &Namespace) -> bool {
    *namespace == users_namespace() || namespace.collection == PROFILE_COLLECTION
}

/// Refuses a pipeline that joins such a collection, before it runs or is explained.
pub(super) fn check_joins(database: &str, pipeline: &Pipeline) -> Result<()> {
    for name in pipeline.other_collections() {
        let namespace = Namespace { database: database.to_owned(), collection: name.to_owned() };
        if is_secret(&namespace) {
            return Err(not_for_pipelines(&namespace));
        }
    }
    Ok(())
}

/// Who may read such a collection is decided for the one that a command names.
fn not_for_pipelines(namespace: &Namespace) -> CommandError {
    fail!(UNAUTHORIZED, "not authorized to read {namespace} from a pipeline; read it by itself")
}

impl Environment for Reading {
    fn read(&self, collection: &str, filter: Option<&Document>) -> Result<Documents, QueryError> {
        self.read_collection(collection, filter).map_err(Into::into)
    }

    fn has_index(&self, collection: &str, field: &str) -> bool {
        let namespace = Namespace::new(&self.database, collection);
        let found = namespace.ok().and_then(|namespace| self.catalog.get(&namespace));
        found.is_some_and(|found| found.index_on(field).is_some())
    }

    fn sets_aside(&self) -> bool {
        self.room.scratch.is_some()
    }

    fn set_aside(&self, documents: Vec<Document>) -> Result<Documents, QueryError> {
        let scratch = self.room.scratch.as_ref().ok_or_else(damaged)?;
        let meter = &self.room.meter;
        let mut documents = documents.into_iter();
        let records = documents.by_ref().map(|document| {
            meter.check()?;
            Ok(to_raw(&document)?.into_bytes())
        });
        let kept = PutAside::keep(&**scratch, records, |file| meter.leave(file));
        if meter.has_ended() {
            meter.leave(documents);
        }
        let run = kept?;
        Ok(Box::new(run.map(|record| {
            let parsed = Document::from_reader(&record?[..]);
            parsed.map_err(|error| CommandError::from(error).into())
        })))
    }

    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>, QueryError> {
        match stage {
            SystemStage::CollStats(_)
            | SystemStage::IndexStats
            | SystemStage::CurrentOp(_)
            | SystemStage::ListSessions(_)
            | SystemStage::ListLocalSessions(_) => Ok(self.facts.0.clone()),
            other => Err(QueryError::new(
                ErrorCode::COMMAND_NOT_SUPPORTED,
                format!("{} is not supported", other.name()),
            )),
        }
    }
}
