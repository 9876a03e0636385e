//! `explain`: how a query would be answered.

use bson::{Bson, Document, doc};
use quorate_query::matcher::{Bounds, Interval, Matcher};
use quorate_query::pipeline::Pipeline;
use quorate_query::value::ValueRef;
use quorate_storage::Direction;
use std::ops::Bound;
use std::sync::Arc;

use super::aggregate::{Target, check_joins, resolve_view};
use super::common::{command_compiler, command_variables, reply};
use super::find::as_pipeline;
use super::{delete, update};
use crate::body::CommandBody;
use crate::change_stream;
use crate::command_table;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, check_known, whole_number};
use crate::generic_arguments;
use crate::namespace::Namespace;
use crate::plan::{Access, Plan};
use crate::select::Selection;

/// Where the query of a command is, by the command's name.
const EXPLAINABLE: [(&str, &str); 6] = [
    ("find", "filter"),
    ("count", "query"),
    ("distinct", "query"),
    ("findAndModify", "query"),
    ("delete", "q"),
    ("update", "q"),
];

/// How much may be told.
const VERBOSITIES: [&str; 3] = ["queryPlanner", "executionStats", "allPlansExecution"];

pub(super) fn explain(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "explain");
    let inner = fields.document("explain")?.cloned().unwrap_or_default();
    let verbosity = fields.one_of("verbosity", &VERBOSITIES)?.unwrap_or("allPlansExecution");
    let (name, argument) = inner
        .iter()
        .next()
        .map(|(name, argument)| (name.clone(), argument.clone()))
        .ok_or_else(|| fail!(BAD_VALUE, "explain needs a command"))?;
    let facts = command_table::find(&name)
        .ok_or_else(|| fail!(COMMAND_NOT_FOUND, "Explain failed due to unknown command: {name}"))?;
    generic_arguments::check_fields(facts, &CommandBody::from(inner.clone()))?;
    check_inner_database(request, &inner)?;
    let inner_fields = Fields::new(&inner, &name);
    if name == "aggregate" {
        let target = Target::of(request, Some(&argument))?;
        let stages = inner_fields.array("pipeline")?.unwrap_or_default();
        return explain_aggregate(request, &target, stages, &inner_fields, verbosity);
    }
    let Some((_, query_field)) = EXPLAINABLE.iter().find(|(known, _)| *known == facts.name) else {
        refuse!(ILLEGAL_OPERATION, "Cannot explain cmd: {name}");
    };
    let namespace = Namespace::new(request.database, argument.as_str().unwrap_or(""))?;
    if name == "find" && is_view(request, &namespace) {
        let target = Target { namespace, whole_database: false };
        let stages = as_pipeline(&inner_fields)?;
        return explain_aggregate(request, &target, &stages, &inner_fields, verbosity);
    }
    let statement = match name.as_str() {
        "update" => inner_fields.documents("updates")?.and_then(|mut all| all.pop()),
        "delete" => inner_fields.documents("deletes")?.and_then(|mut all| all.pop()),
        _ => Some(inner.clone()),
    };
    let statement = statement.ok_or_else(|| fail!(BAD_VALUE, "nothing to explain"))?;
    match name.as_str() {
        "update" => check_known(statement.keys(), "update.updates", &update::STATEMENT_FIELDS)?,
        "delete" => check_known(statement.keys(), "delete.deletes", &delete::STATEMENT_FIELDS)?,
        _ => {}
    }
    let statement_fields = Fields::new(&statement, &name);
    let compiler = command_compiler(request, &inner_fields)?;
    let filter = statement_fields.document(query_field)?.cloned().unwrap_or_default();
    let matcher = Arc::new(Matcher::parse_with(&filter, &compiler)?);
    let query = Query { doing: facts.name, filter: &filter, matcher, fields: &statement_fields };
    let mut answer = describe(request, &namespace, query, verbosity)?;
    answer.insert("command", inner.clone());
    answer.insert("serverInfo", server(request));
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// Refuses a command for another database than that of the `explain` around it.
fn check_inner_database(request: &Request<'_>, inner: &Document) -> Result<()> {
    match inner.get("$db") {
        None => Ok(()),
        Some(Bson::String(database)) if *database == request.database => Ok(()),
        Some(other) => Err(fail!(
            INVALID_NAMESPACE,
            "Mismatched $db in explain command. Expected {} but got {other}",
            request.database
        )),
    }
}

/// The plan of the leading stages that are a query, and the stages behind it. A pipeline that is nothing but
/// a query is explained as one.
pub(super) fn explain_aggregate(
    request: &Request<'_>,
    target: &Target,
    stages: &[Bson],
    fields: &Fields<'_>,
    verbosity: &str,
) -> Result<Outcome> {
    let variables = command_variables(request, fields)?;
    if change_stream::is_change_stream(stages) {
        // Opened to be checked; it has read nothing.
        change_stream::open(request, target, stages, variables, fields)?;
        return reply(&doc! { "stages": stages, "serverInfo": server(request), "ok": 1.0 });
    }
    let command =
        doc! { "aggregate": &target.namespace.collection, "pipeline": stages, "cursor": {} };
    let (namespace, stages) = &resolve_view(request, &target.namespace, stages)?;
    let pipeline = Pipeline::parse(stages, &variables)?;
    check_joins(&namespace.database, &pipeline)?;
    let down = pipeline.push_down();
    let filter = down.filter.unwrap_or_default();
    let compiler = command_compiler(request, fields)?;
    let matcher = Arc::new(Matcher::parse_with(&filter, &compiler)?);
    let mut query = Document::new();
    if let Some(sort) = down.sort {
        query.insert("sort", sort);
    }
    for (name, count) in [("skip", down.skip), ("limit", down.limit)] {
        if let Some(count) = count {
            query.insert(name, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    let fields = Fields::new(&query, "aggregate");
    let query = Query { doing: "aggregate", filter: &filter, matcher, fields: &fields };
    let plan = describe(request, namespace, query, verbosity)?;
    let rest = behind_query(stages);
    let mut answer = plan.clone();
    if !rest.is_empty() {
        let mut listed = vec![Bson::from(doc! { "$cursor": plan })];
        listed.extend(rest.into_iter().map(|stage| explained(request, stage)));
        answer = doc! { "explainVersion": "1", "stages": listed };
    }
    answer.insert("command", command);
    answer.insert("serverInfo", server(request));
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// The stages that are left when [`Pipeline::push_down`] has taken the query: each `$match` goes before the
/// `$sort` that it stands behind, then leading `$match`, one `$sort`, one `$skip` and one `$limit` are the query.
fn behind_query(stages: &[Bson]) -> Vec<&Bson> {
    let is = |stage: &Bson, name: &str| {
        stage.as_document().is_some_and(|stage| stage.keys().next().is_some_and(|key| key == name))
    };
    let mut ordered: Vec<&Bson> = stages.iter().collect();
    let mut sorts = 0;
    for place in 0..ordered.len() {
        if is(ordered[place], "$match") {
            ordered[place - sorts..=place].rotate_right(1);
        } else {
            sorts = if is(ordered[place], "$sort") { sorts + 1 } else { 0 };
        }
    }
    let mut taken = ordered.iter().take_while(|stage| is(stage, "$match")).count();
    for name in ["$sort", "$skip", "$limit"] {
        taken += usize::from(ordered.get(taken).is_some_and(|stage| is(stage, name)));
    }
    ordered.split_off(taken)
}

/// A stage, and for a `$lookup` by equality how it finds the other documents.
fn explained(request: &Request<'_>, stage: &Bson) -> Bson {
    let lookup = stage.as_document().and_then(|stage| stage.get_document("$lookup").ok());
    let Some(lookup) = lookup else { return stage.clone() };
    let (Ok(from), Ok(field)) = (lookup.get_str("from"), lookup.get_str("foreignField")) else {
        return stage.clone();
    };
    let catalog = request.node.catalog();
    let namespace = Namespace::new(request.database, from).ok();
    let collection = namespace.and_then(|namespace| catalog.get(&namespace));
    let index = collection.and_then(|collection| collection.index_on(field));
    let mut explained = doc! { "$lookup": lookup.clone() };
    match index {
        Some(index) => {
            explained.insert("strategy", "IndexedLoopJoin");
            explained.insert("indexName", &index.name);
        }
        None => drop(explained.insert("strategy", "HashJoin")),
    }
    explained.into()
}

fn is_view(request: &Request<'_>, namespace: &Namespace) -> bool {
    request.catalog().get(namespace).is_some_and(|found| found.view.is_some())
}

/// The query that a command makes.
struct Query<'a> {
    /// The name of the command.
    doing: &'a str,
    filter: &'a Document,
    matcher: Arc<Matcher>,
    /// The fields of the command, or of its statement.
    fields: &'a Fields<'a>,
}

impl Query<'_> {
    /// How many documents the command wants at most.
    fn limit(&self) -> Result<Option<u64>> {
        match self.doing {
            "findAndModify" => Ok(Some(1)),
            "update" => Ok((!self.fields.flag("multi")?).then_some(1)),
            _ => Ok(self.fields.count("limit")?.filter(|&limit| limit > 0)),
        }
    }

    /// The stage that does something with what the others found.
    fn done_with(&self, found: Document) -> Result<Document> {
        let stage = match self.doing {
            "update" => "UPDATE",
            "findAndModify" if !self.fields.flag("remove")? => "UPDATE",
            "delete" | "findAndModify" => "DELETE",
            "count" => "COUNT",
            _ => {
                return Ok(match self.fields.document("projection")? {
                    Some(projection) if !projection.is_empty() => projected(projection, found),
                    _ => found,
                });
            }
        };
        Ok(doc! { "stage": stage, "inputStage": found })
    }
}

fn describe(
    request: &Request<'_>,
    namespace: &Namespace,
    query: Query<'_>,
    verbosity: &str,
) -> Result<Document> {
    let (collection, view) = request.read(namespace)?;
    let mut planner = doc! {
        "namespace": namespace.to_string(),
        "indexFilterSet": false,
        "parsedQuery": query.filter.clone(),
        "rejectedPlans": [],
    };
    let Some(collection) = collection else {
        let winning = query.done_with(doc! { "stage": "EOF" })?;
        planner.insert("winningPlan", winning.clone());
        let mut answer = doc! { "explainVersion": "1", "queryPlanner": planner };
        tell_execution(&mut answer, &winning, &Figures::default(), verbosity);
        return Ok(answer);
    };
    let fields = query.fields;
    let interrupt = request.interrupt.clone();
    let selection = Selection {
        sort: fields.document("sort")?.cloned(),
        hint: fields.raw("hint").cloned(),
        min: fields.document("min")?.cloned(),
        max: fields.document("max")?.cloned(),
        skip: fields.count("skip")?.unwrap_or(0),
        limit: query.limit()?,
        ..Selection::new(collection, view, Arc::clone(&query.matcher), interrupt)
    };
    let plan = selection.plan()?;
    let sorts = selection.sort_order()?.is_some() && !plan.sorted;
    let winning = query.done_with(stages(&plan, query.filter, &selection, sorts))?;
    planner.insert("winningPlan", winning.clone());
    let mut answer = doc! { "explainVersion": "1", "queryPlanner": planner };
    if verbosity != VERBOSITIES[0] {
        let figures = execute(selection, plan, sorts)?;
        tell_execution(&mut answer, &winning, &figures, verbosity);
    }
    Ok(answer)
}

/// What came of running a query.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// Documents that match.
    matched: u64,
    /// Those that are left after `skip` and `limit`.
    returned: u64,
    keys: u64,
    documents: u64,
}

/// Runs the query, and throws away what it finds.
fn execute(selection: Selection, plan: Plan, sorts: bool) -> Result<Figures> {
    let (skip, limit) = (selection.skip, selection.limit);
    let mut finder = selection.finder(plan, None)?;
    let mut matched: u64 = 0;
    let most = match limit {
        Some(limit) if !sorts => limit.saturating_add(skip),
        _ => u64::MAX,
    };
    while matched < most && finder.next().transpose()?.is_some() {
        matched += 1;
    }
    let returned = matched.saturating_sub(skip);
    let returned = limit.map_or(returned, |limit| returned.min(limit));
    let (keys, documents) = (finder.examined.keys, finder.examined.documents);
    Ok(Figures { matched, returned, keys, documents })
}

/// Adds what came of running the query, as far as it was asked for.
fn tell_execution(answer: &mut Document, winning: &Document, figures: &Figures, verbosity: &str) {
    if verbosity == VERBOSITIES[0] {
        return;
    }
    let stages = executed(winning, figures);
    let mut stats = doc! {
        "executionSuccess": true,
        "nReturned": stages.get("nReturned").cloned().unwrap_or(Bson::Int64(0)),
        "totalKeysExamined": figures.keys as i64,
        "totalDocsExamined": figures.documents as i64,
        "executionStages": stages,
    };
    if verbosity == VERBOSITIES[2] {
        // Only one plan is ever run.
        stats.insert("allPlansExecution", Bson::Array(Vec::new()));
    }
    answer.insert("executionStats", stats);
}

/// A stage of the plan, and those that it takes its documents from, with what came of each.
fn executed(stage: &Document, figures: &Figures) -> Document {
    let mut told = stage.clone();
    let input = told.remove("inputStage");
    let (matched, returned) = (figures.matched as i64, figures.returned as i64);
    let (keys, documents) = (figures.keys as i64, figures.documents as i64);
    told.extend(match stage.get_str("stage").unwrap_or_default() {
        "UPDATE" => doc! { "nReturned": 0_i64, "nMatched": returned },
        "DELETE" => doc! { "nReturned": 0_i64, "nWouldDelete": returned },
        "COUNT" => doc! { "nReturned": 0_i64, "nCounted": returned },
        "COLLSCAN" | "FETCH" => doc! { "nReturned": matched, "docsExamined": documents },
        "IDHACK" => {
            doc! { "nReturned": matched, "keysExamined": keys, "docsExamined": documents }
        }
        "IXSCAN" => doc! { "nReturned": documents, "keysExamined": keys },
        _ => doc! { "nReturned": returned },
    });
    if let Some(Bson::Document(input)) = input {
        told.insert("inputStage", executed(&input, figures));
    }
    told
}

fn stages(plan: &Plan, filter: &Document, selection: &Selection, sorts: bool) -> Document {
    let mut stage = match &plan.access {
        Access::Collection(direction) => doc! {
            "stage": "COLLSCAN", "filter": filter.clone(), "direction": shown(*direction),
        },
        Access::After(_) => doc! { "stage": "COLLSCAN", "direction": "forward" },
        Access::Index(access) if access.is_by_id() && !sorts && filter.len() == 1 => {
            doc! { "stage": "IDHACK" }
        }
        Access::Index(access) => {
            let mut bounds = Document::new();
            for (path, known) in access.index.paths.iter().zip(&access.bounds) {
                bounds.insert(path.as_str(), shown_bounds(known.as_ref()));
            }
            let scan = doc! {
                "stage": "IXSCAN",
                "keyPattern": access.index.key(),
                "indexName": &access.index.name,
                "isMultiKey": access.index.multikey,
                "isUnique": access.index.unique,
                "isSparse": access.index.sparse,
                "isPartial": access.index.partial.is_some(),
                "direction": shown(access.direction),
                "indexBounds": bounds,
            };
            doc! { "stage": "FETCH", "filter": filter.clone(), "inputStage": scan }
        }
    };
    if sorts {
        let sort = selection.sort.clone().unwrap_or_default();
        stage = doc! { "stage": "SORT", "sortPattern": sort, "inputStage": stage };
    }
    if selection.skip > 0 {
        let skip = selection.skip as i64;
        stage = doc! { "stage": "SKIP", "skipAmount": skip, "inputStage": stage };
    }
    if let Some(limit) = selection.limit {
        stage = doc! { "stage": "LIMIT", "limitAmount": limit as i64, "inputStage": stage };
    }
    stage
}

/// The stage that shapes what the others found.
fn projected(projection: &Document, found: Document) -> Document {
    let is_plain = |(name, value): (&String, &Bson)| {
        !name.contains('.') && (matches!(value, Bson::Boolean(_)) || whole_number(value).is_some())
    };
    let stage = match projection.iter().all(is_plain) {
        true => "PROJECTION_SIMPLE",
        false => "PROJECTION_DEFAULT",
    };
    doc! { "stage": stage, "transformBy": projection.clone(), "inputStage": found }
}

fn shown(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

fn shown_bounds(bounds: Option<&Bounds>) -> Vec<Bson> {
    let Some(bounds) = bounds else { return vec!["[MinKey, MaxKey]".into()] };
    bounds.intervals().iter().map(|interval| shown_interval(interval).into()).collect()
}

fn shown_interval(interval: &Interval) -> String {
    let low = match interval.lower().map(ValueRef::to_bson) {
        Bound::Included(value) => format!("[{value}"),
        Bound::Excluded(value) => format!("({value}"),
        Bound::Unbounded => "[MinKey".to_owned(),
    };
    let high = match interval.upper().map(ValueRef::to_bson) {
        Bound::Included(value) => format!("{value}]"),
        Bound::Excluded(value) => format!("{value})"),
        Bound::Unbounded => "MaxKey]".to_owned(),
    };
    format!("{low}, {high}")
}

fn server(request: &Request<'_>) -> Document {
    doc! { "host": &request.node.options().host, "version": "7.0.0" }
}
