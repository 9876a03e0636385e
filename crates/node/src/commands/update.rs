//! `update`: existing documents change, or a new one is made.

use std::cell::OnceCell;
use std::sync::Arc;

use bson::raw::cstr;
use bson::{Bson, DateTime, Document, RawBson, RawDocumentBuf, Timestamp, doc};
use quorate_query::diff::ToldAs;
use quorate_query::expression::Compiler;
use quorate_query::update::Change;
use quorate_query::{Part, PlainChange, PlainUpdate, Update, UpdateContext};

use super::common::{LazyCompiler, WriteConcern, check_collation, count_capped};
use super::insert::{
    KEEP_EMPTY_TIMESTAMPS, REPLY_BYTES, Retried, append_array, check_writable, end_reply,
    plain_reply, retried_statements, statements,
};
use super::steps::{Asked, Query, Search, Steps, Wanted};
use crate::body::CommandBody;
use crate::catalog::Collection;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, check_known, to_raw};
use crate::finder::Found;
use crate::namespace::Namespace;
use crate::repeated_fields::{self, rewrite};
use crate::writer::{Account, Telling, Writer, with_room_for};

/// The fields of a statement.
pub(super) const STATEMENT_FIELDS: [&str; 8] =
    ["q", "u", "c", "multi", "upsert", "collation", "arrayFilters", "hint"];

/// The statements of a command that are read before the write lock is taken. Those after them are read one by one.
const READ_AHEAD: usize = 8;

/// What the result of a statement takes.
const RESULT_BYTES: usize = 64;

/// What constants beside an update that is no pipeline fail with.
const CONSTANTS_WITHOUT_PIPELINE: ErrorCode = ErrorCode(51198);

/// What a pipeline with an unknown stage fails with.
const UNRECOGNIZED_STAGE: ErrorCode = ErrorCode(40324);

/// What came of one statement.
#[derive(Clone, Debug, Default, PartialEq)]
struct Updated {
    matched: u64,
    modified: u64,
    upserted: Option<Bson>,
}

pub(super) fn update(request: &Request<'_>, mut command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let statements = statements(&mut command, "updates", "update")?;
    // Clients decide by the failure of the whole command whether `sort`, which comes with wire version
    // 25, is understood.
    for statement in &statements {
        check_known(statement.keys(), "update.updates", &STATEMENT_FIELDS)?;
    }
    let fields = Fields::new(&command.body, "update");
    let ordered = fields.boolean("ordered")?.unwrap_or(true);
    let concern = WriteConcern::parse(&command)?;

    let read = |statement| read_statement(request, &fields, statement);
    let ahead: Vec<_> = statements.iter().take(READ_AHEAD).map(read).collect();
    let mut ahead = ahead.into_iter();
    count_capped(request, &namespace)?;
    let mut writer = request.write();
    writer.begin_retryable(request.retryable.as_ref(), statements.len())?;
    let retried = retried_statements(&writer, statements.len());
    let mut results = Vec::with_capacity(statements.len());
    for (place, statement) in statements.iter().enumerate() {
        let statement = ahead.next().unwrap_or_else(|| read(statement));
        writer.give_way_if_long()?;
        let result = match writer.earlier_result(place) {
            Some(earlier) => Ok(Updated::from_result(earlier)),
            None => statement.and_then(|mut statement| {
                statement.parsed.context.timestamp = writer.next_timestamp();
                update_statement(request, &mut writer, (&namespace, place), &statement)
            }),
        };
        // A pipeline of stages that do not exist is no update: the command fails, not the write.
        if let (0, Err(error)) = (place, &result)
            && error.code == UNRECOGNIZED_STAGE
        {
            return Err(error.clone());
        }
        let failed = result.is_err();
        results.push(result);
        if failed && ordered {
            break;
        }
    }
    let commit = request.end_writes(writer, results.iter().all(Result::is_ok));
    let done = || results.iter().flatten();
    let counters = request.node.counters();
    counters.updated(done().map(|updated| updated.modified).sum());
    counters.inserted(done().filter(|updated| updated.upserted.is_some()).count() as u64);
    Ok(concern.reply(summary(&results, &retried)?, commit))
}

impl Updated {
    /// What is stored for a client that repeats the statement.
    fn result(&self) -> RawDocumentBuf {
        let mut result = with_room_for(RESULT_BYTES);
        result.append(cstr!("n"), self.matched as i32);
        result.append(cstr!("nModified"), self.modified as i32);
        // An identifier that was stored has a form as bytes.
        if let Some(Ok(id)) = self.upserted.clone().map(RawBson::try_from) {
            result.append(cstr!("upserted"), id);
        }
        result
    }

    fn from_result(result: &Document) -> Self {
        let number = |name: &str| result.get_i32(name).map_or(0, i64::from) as u64;
        Self {
            matched: number("n"),
            modified: number("nModified"),
            upserted: result.get("upserted").cloned(),
        }
    }
}

/// A statement of the command.
struct Statement<'s> {
    query: Query<'s>,
    parsed: ParsedUpdate<'s>,
    multi: bool,
    upserts: bool,
    hint: Option<&'s Bson>,
}

fn summary(results: &[Result<Updated>], retried: &[Retried]) -> Result<RawDocumentBuf> {
    let done = || results.iter().flatten();
    let matched: u64 = done().map(|updated| updated.matched).sum();
    let modified: u64 = done().map(|updated| updated.modified).sum();
    let is_plain = |result: &Result<Updated>| result.as_ref().is_ok_and(|it| it.upserted.is_none());
    if retried.is_empty() && results.iter().all(is_plain) {
        return Ok(plain_reply([("n", matched as i32), ("nModified", modified as i32)]));
    }
    let upserted: Vec<Bson> = results
        .iter()
        .enumerate()
        .filter_map(|(place, result)| {
            let id = result.as_ref().ok()?.upserted.clone()?;
            Some(Bson::from(doc! { "index": place as i32, "_id": id }))
        })
        .collect();
    let mut reply = with_room_for(REPLY_BYTES);
    reply.append(cstr!("n"), (matched + upserted.len() as u64) as i32);
    append_array(&mut reply, cstr!("upserted"), upserted)?;
    reply.append(cstr!("nModified"), modified as i32);
    end_reply(&mut reply, results, retried)?;
    Ok(reply)
}

/// What an update makes of a document.
pub(super) struct Changed {
    /// All of the document after the update.
    pub(super) whole: RawDocumentBuf,
    known: Known,
}

/// What is known of the way from one version of a document to the next.
enum Known {
    /// The field `o` of the entry; none if that is the whole document.
    Entry(Option<RawDocumentBuf>),
    /// Both versions, as far as the update looked at them.
    Versions {
        before: Document,
        after: Document,
        told_as: ToldAs,
        /// Whether they are the touched fields alone.
        is_part: bool,
    },
}

/// An update, read as far as it is needed.
pub(super) struct ParsedUpdate<'s> {
    /// For documents that are as most are: they are not parsed.
    plain: Option<PlainUpdate<'s>>,
    /// For all documents; of a plain update, once it is asked for.
    general: OnceCell<GeneralUpdate>,
    pub(super) context: UpdateContext,
    bypass_validation: bool,
    /// The document of an upsert, once it is made: it is the same when the statement is tried again.
    made: OnceCell<Document>,
}

/// An update that any document can be given to.
struct GeneralUpdate {
    update: Update,
    /// The fields that the update can touch; none if it can touch any.
    touched: Option<Vec<String>>,
}

impl From<Update> for GeneralUpdate {
    fn from(update: Update) -> Self {
        Self { touched: update.touched_fields(), update }
    }
}

impl<'s> ParsedUpdate<'s> {
    /// Reads the update of a statement from the field of this name; none if there is no such field.
    pub(super) fn read(
        (statement, body): (&Fields<'_>, &'s CommandBody),
        name: &str,
        compiler: &LazyCompiler<'_>,
        (context, bypass_validation): (UpdateContext, bool),
    ) -> Result<Option<Self>> {
        let is_alone =
            !compiler.has_variables() && !statement.has("arrayFilters") && !statement.has("c");
        let source = body.get_raw_document(name).filter(|_| is_alone);
        let plain = source.and_then(PlainUpdate::parse);
        let general = OnceCell::new();
        if plain.is_none() {
            let Some(change) = statement.raw(name) else { return Ok(None) };
            let filters = statement.documents("arrayFilters")?.unwrap_or_default();
            let constants = pipeline_constants(statement, change, compiler)?;
            let compiler = constants.as_ref().map_or_else(|| compiler.get(), Ok)?;
            let update = Update::parse_with(change, &filters, compiler)?;
            general.get_or_init(|| GeneralUpdate::from(update));
        }
        Ok(Some(Self { plain, general, context, bypass_validation, made: OnceCell::new() }))
    }

    fn is_replacement(&self) -> bool {
        let is_general = self.general.get().is_some_and(|general| general.update.is_replacement());
        is_general || self.plain.as_ref().is_some_and(PlainUpdate::is_replacement)
    }

    fn general(&self) -> Result<&GeneralUpdate> {
        if let (None, Some(plain)) = (self.general.get(), &self.plain) {
            let update = plain.general()?;
            return Ok(self.general.get_or_init(|| update.into()));
        }
        self.general.get().ok_or_else(|| fail!(BAD_VALUE, "there is no update"))
    }

    /// The document after the update; none if it stays the same.
    pub(super) fn apply(&self, found: &Found) -> Result<Option<Changed>> {
        let context = self.context.with_array_index(found.details.array_index);
        let plain = self.plain.as_ref().map(|plain| plain.change(&found.document, &context));
        match plain {
            Some(PlainChange::Unchanged) => return Ok(None),
            Some(PlainChange::Changed { after, delta }) => {
                return Ok(Some(Changed { whole: after, known: Known::Entry(delta) }));
            }
            Some(PlainChange::Unusual) | None => {}
        }
        let GeneralUpdate { update, touched } = self.general()?;
        if let Some(part) = touched.as_ref().and_then(|fields| Part::read(&found.document, fields))
        {
            let change = update.change(part.before(), &context)?;
            let Some(Change { after, told_as }) = change else { return Ok(None) };
            if let Some(whole) = part.changed_to(&after) {
                let (before, is_part) = (part.into_before(), true);
                let known = Known::Versions { before, after, told_as, is_part };
                return Ok(Some(Changed { whole, known }));
            }
        }
        let before = repeated_fields::parse(&found.document)?;
        let change = update.change(&before, &context)?;
        let Some(Change { after, told_as }) = change else { return Ok(None) };
        let whole = rewrite(&found.document, (&before, &after), &told_as)?;
        let known = Known::Versions { before, after, told_as, is_part: false };
        Ok(Some(Changed { whole, known }))
    }

    /// The document that the query and the update describe. None if others wrote while it was made: something that
    /// matches may be there, and is to be looked for.
    pub(super) fn upserted(
        &self,
        writer: &mut Writer<'_>,
        query: &Query<'_>,
    ) -> Result<Option<Document>> {
        if let Some(document) = self.made.get() {
            return Ok(Some(document.clone()));
        }
        let (update, matcher) = (&self.general()?.update, query.matcher()?);
        let make = || Ok(update.upsert_document(&matcher, &self.context)?);
        let (mut document, lock_was_free) = writer.evaluate(make)?;
        if !document.contains_key("_id") {
            let wall = writer.now().wall;
            let mut with_id = doc! { "_id": writer.generator().object_id(wall) };
            with_id.extend(document);
            document = with_id;
        }
        let document = self.made.get_or_init(|| document).clone();
        Ok((!lock_was_free).then_some(document))
    }

    /// Inserts the document of an upsert. It does not wait for transactions: once one has ended, a
    /// document that matches may be there.
    pub(super) fn insert(
        &self,
        writer: &mut Writer<'_>,
        namespace: &Namespace,
        document: &Document,
    ) -> Result<()> {
        let raw = vec![to_raw(document)?];
        writer.without_waiting(|writer| {
            let mut collection = writer.collection_or_create(namespace)?;
            let results = writer.insert(&mut collection, raw, true, self.bypass_validation)?;
            results.into_iter().collect()
        })
    }

    /// Replaces a document by what the update made of it.
    pub(super) fn store(
        &self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        found: &Found,
        change: Changed,
    ) -> Result<()> {
        writer.check_interrupt()?;
        let Changed { whole, known } = change;
        let touched = self.general.get().and_then(|general| general.touched.as_ref());
        let touches = |name: &str| match (&known, touched, &self.plain) {
            (Known::Entry(_), _, Some(plain)) => plain.touches(name),
            (Known::Versions { is_part: true, .. }, Some(touched), _) => {
                touched.iter().any(|touched| touched == name)
            }
            _ => true,
        };
        let told = match &known {
            Known::Entry(entry) => Account::Known(entry.as_deref()),
            Known::Versions { before, after, told_as, .. } => {
                Account::Compared { told_as, versions: Some((before, after)) }
            }
        };
        let telling = Telling { account: told, touches: Some(&touches) };
        let (old, bypass) = (&found.document, self.bypass_validation);
        writer.replace(collection, found.record, old, whole, telling, bypass)
    }
}

/// The time as updates see it, and what the command says of empty timestamps. The timestamp follows once the write lock
/// is held.
pub(super) fn update_context(request: &Request<'_>, command: &Fields<'_>) -> Result<UpdateContext> {
    let now = DateTime::from_millis(request.context.now.wall.as_millis());
    let timestamp = Timestamp { time: 0, increment: 0 };
    let keep_empty_timestamps = command.flag(KEEP_EMPTY_TIMESTAMPS)?;
    // A member without a set keeps no entry that would need it.
    let tells_delta = request.node.oplog().is_some();
    Ok(UpdateContext { keep_empty_timestamps, tells_delta, ..UpdateContext::new(now, timestamp) })
}

fn update_statement(
    request: &Request<'_>,
    writer: &mut Writer<'_>,
    (namespace, place): (&Namespace, usize),
    statement: &Statement<'_>,
) -> Result<Updated> {
    loop {
        match try_update_statement(request, writer, (namespace, place), statement) {
            // Nothing matched. Now that others have written, something may.
            Ok(None) => {}
            Err(error) if !writer.wait_if_blocked()? => return Err(error),
            Err(_) => {}
            Ok(Some(updated)) => return Ok(updated),
        }
        if let Some(earlier) = writer.earlier_result(place) {
            return Ok(Updated::from_result(earlier));
        }
    }
}

fn try_update_statement(
    request: &Request<'_>,
    writer: &mut Writer<'_>,
    (namespace, place): (&Namespace, usize),
    statement: &Statement<'_>,
) -> Result<Option<Updated>> {
    let Statement { query, parsed, multi, upserts, hint } = statement;
    let mut updated = Updated::default();
    if let Some(mut collection) = writer.collection(namespace) {
        if collection.view.is_some() {
            // Gives the error for views.
            writer.collection_or_create(namespace)?;
        }
        // The search sees the state before the statement; every document is met once.
        let wanted = if *multi { Wanted::All } else { Wanted::One };
        let (hint, upserts) = (*hint, *upserts);
        let asked = Asked { query, hint, sort: None, wanted, upserts, statement: place };
        let search = Search::new(writer, &collection, &asked, request.interrupt.clone())?;
        let mut steps = Steps::begin(writer, &collection, wanted);
        let evaluate = |found: &Found| parsed.apply(found);
        let change = |writer: &mut Writer<'_>,
                      collection: &mut Arc<Collection>,
                      found: &Found,
                      after: Option<Changed>| {
            let next = Updated {
                matched: updated.matched + 1,
                modified: updated.modified + u64::from(after.is_some()),
                upserted: None,
            };
            if let Some(after) = after {
                writer.enter_statement(place, || next.result());
                parsed.store(writer, collection, found, after)?;
            }
            updated = next;
            Ok(())
        };
        let result = steps.each(writer, &mut collection, search, evaluate, change);
        Steps::end(writer, result)?;
        if let Some(done) = writer.earlier_result(place) {
            // By this command, or by a repetition of it while others had their turn.
            return Ok(Some(Updated::from_result(done)));
        }
    }
    if updated.matched == 0 && *upserts {
        let Some(document) = parsed.upserted(writer, query)? else { return Ok(None) };
        updated.upserted = Some(document.get("_id").cloned().unwrap_or(Bson::Null));
        writer.enter_statement(place, || updated.result());
        parsed.insert(writer, namespace, &document)?;
    }
    Ok(Some(updated))
}

fn read_statement<'s>(
    request: &Request<'_>,
    command: &Fields<'_>,
    statement: &'s CommandBody,
) -> Result<Statement<'s>> {
    let fields = Fields::new(statement, "update.updates");
    check_collation(&fields)?;
    let missing = |name: &str| {
        fail!(MISSING_FIELD, "BSON field 'update.updates.{name}' is missing but a required field")
    };
    if statement.get_raw_document("q").is_none() {
        fields.document("q")?.ok_or_else(|| missing("q"))?;
    }
    if !fields.has("u") {
        return Err(missing("u"));
    }
    let compiler = LazyCompiler::new(request, *command);
    let source = (&fields, statement);
    let query = Query::read(source, "q", &compiler)?.ok_or_else(|| missing("q"))?;
    let options = (update_context(request, command)?, command.flag("bypassDocumentValidation")?);
    let parsed =
        ParsedUpdate::read(source, "u", &compiler, options)?.ok_or_else(|| missing("u"))?;
    let multi = fields.flag("multi")?;
    refuse_if!(multi && request.retryable.is_some() => INVALID_OPTIONS,
        "Cannot use (or request) retryable writes with multi=true");
    refuse_if!(multi && parsed.is_replacement() => FAILED_TO_PARSE,
        "multi update is not supported for replacement-style update");
    let (upserts, hint) = (fields.flag("upsert")?, fields.raw("hint"));
    Ok(Statement { query, parsed, multi, upserts, hint })
}

/// What compiles the pipeline of a statement that brings constants (`c`): it sees them as variables beside those of the
/// command.
fn pipeline_constants(
    statement: &Fields<'_>,
    change: &Bson,
    compiler: &LazyCompiler<'_>,
) -> Result<Option<Compiler>> {
    let Some(constants) = statement.document("c")? else { return Ok(None) };
    if !matches!(change, Bson::Array(_)) {
        return Err(CommandError::new(
            CONSTANTS_WITHOUT_PIPELINE,
            "Constant values may only be specified for pipeline updates",
        ));
    }
    compiler.with_constants(constants).map(Some)
}

#[cfg(test)]
mod tests {
    use bson::RawDocument;
    use bson::raw::CString;
    use quorate_protocol::SplitMix64;
    use quorate_query::PlainDelta;
    use quorate_query::diff::{Told, told};
    use quorate_query::matcher::MatchDetails;
    use quorate_storage::key::RecordId;

    use super::*;
    use crate::fields::to_raw;

    /// Rounds of the comparison.
    const ROUNDS: usize = 20_000;

    struct Drawing(SplitMix64);

    impl Drawing {
        fn below(&mut self, end: usize) -> usize {
            (self.0.next_u64() % end as u64) as usize
        }

        fn name(&mut self) -> String {
            ["a", "b", "c", "d", "e", "0"][self.below(6)].to_owned()
        }

        fn path(&mut self) -> String {
            let length = [1, 1, 1, 2, 2, 3][self.below(6)];
            let mut path: Vec<_> = (0..length).map(|_| self.name()).collect();
            if self.below(20) == 0 {
                path[0] = "_id".to_owned();
            }
            path.join(".")
        }

        fn value(&mut self, depth: usize) -> RawBson {
            match self.below(if depth < 3 { 13 } else { 9 }) {
                0 | 1 => RawBson::Int32(self.below(4) as i32),
                2 => RawBson::Int64(self.below(4) as i64),
                3 => RawBson::Double([0.5, -0.0, f64::NAN, 2.0][self.below(4)]),
                4 => RawBson::String(["", "x", "long text"][self.below(3)].to_owned()),
                5 => RawBson::Null,
                6 => RawBson::Boolean(true),
                7 => RawBson::Decimal128(["1.5", "1.50"][self.below(2)].parse().unwrap()),
                8 => [RawBson::MinKey, RawBson::Undefined][self.below(2)].clone(),
                9 | 10 => RawBson::Document(self.document(depth + 1, 8)),
                11 => RawBson::Array((0..self.below(3)).map(|_| self.value(depth + 1)).collect()),
                _ => self.odd_array(depth + 1),
            }
        }

        /// An array whose items are not numbered as they should be.
        fn odd_array(&mut self, depth: usize) -> RawBson {
            let mut items = RawDocumentBuf::new();
            items.append(cstr!("1"), self.value(depth));
            let holder = doc_bytes(0x04, &items);
            RawBson::from(holder.get("x").unwrap().unwrap())
        }

        /// Fields of which one in so many may be there twice.
        fn document(&mut self, depth: usize, rarely: usize) -> RawDocumentBuf {
            let mut document = RawDocumentBuf::new();
            for _ in 0..self.below(5) {
                let name = self.name();
                if document.get(&name).unwrap().is_none() || self.below(rarely) == 0 {
                    document.append(CString::try_from(name).unwrap(), self.value(depth));
                }
            }
            document
        }

        fn update(&mut self) -> RawDocumentBuf {
            const OPERATORS: [&str; 9] =
                ["$set", "$set", "$unset", "$inc", "$mul", "$min", "$max", "$setOnInsert", "$push"];
            if self.below(8) == 0 {
                return self.document(0, 20);
            }
            let mut update = RawDocumentBuf::new();
            for _ in 0..=self.below(3) {
                let mut arguments = RawDocumentBuf::new();
                for _ in 0..=self.below(2) {
                    let path = CString::try_from(self.path()).unwrap();
                    arguments.append(path, self.value(1));
                }
                let operator = OPERATORS[self.below(OPERATORS.len())];
                if update.get(operator).unwrap().is_none() {
                    update.append(CString::try_from(operator).unwrap(), arguments);
                }
            }
            update
        }
    }

    /// `{x: …}` with a value of this type.
    fn doc_bytes(kind: u8, value: &RawDocumentBuf) -> RawDocumentBuf {
        let mut bytes = vec![0; 4];
        bytes.extend([kind, b'x', 0]);
        bytes.extend(value.as_bytes());
        bytes.push(0);
        let length = bytes.len() as u8;
        bytes[0] = length;
        RawDocumentBuf::from_bytes(bytes).unwrap()
    }

    /// The document after an update, and the field `o` of its entry unless that is the document.
    type Applied = Result<Option<(Vec<u8>, Option<Vec<u8>>)>, String>;

    fn applied(parsed: &ParsedUpdate<'_>, found: &Found) -> Applied {
        let changed = parsed.apply(found).map_err(|error| error.to_string())?;
        let Some(Changed { whole, known }) = changed else { return Ok(None) };
        let delta = match known {
            Known::Entry(delta) => delta,
            Known::Versions { before, after, told_as, .. } => {
                match told(&before, &after, &told_as) {
                    Told::Nothing => panic!("a change must be told"),
                    Told::Whole => None,
                    Told::Delta(delta) => Some(to_raw(&delta).unwrap()),
                }
            }
        };
        Ok(Some((whole.into_bytes(), delta.map(RawDocumentBuf::into_bytes))))
    }

    fn parsed(
        plain: Option<PlainUpdate<'_>>,
        update: Update,
        context: UpdateContext,
    ) -> ParsedUpdate<'_> {
        let general = OnceCell::from(GeneralUpdate::from(update));
        ParsedUpdate { plain, general, context, bypass_validation: false, made: OnceCell::new() }
    }

    /// An update that is worked out on bytes does what it would do with parsed documents, whatever they look like.
    #[test]
    fn plain_updates_do_what_they_would_do_with_parsed_documents() {
        let mut drawing = Drawing(SplitMix64::new(0x5eed));
        let context =
            UpdateContext::new(DateTime::from_millis(1), Timestamp { time: 1, increment: 1 });
        let (mut on_bytes, mut changed, mut refused, mut followed) = (0, 0, 0, 0);
        for round in 0..ROUNDS {
            let update = drawing.update();
            let Some(plain) = PlainUpdate::parse(&update) else { continue };
            let mut document = bson::rawdoc! { "_id": 1 };
            for field in &drawing.document(0, 4) {
                let (name, value) = field.unwrap();
                document.append(name, value);
            }
            let found = Found {
                record: RecordId(1),
                document: document.clone().into(),
                details: MatchDetails::default(),
            };
            on_bytes += usize::from(plain.change(&document, &context) != PlainChange::Unusual);
            let source = Bson::Document(Document::try_from(&*update).unwrap());
            let general = || Update::parse(&source).unwrap();
            let expected = applied(&parsed(None, general(), context), &found);
            let given = applied(&parsed(Some(plain), general(), context), &found);
            assert_eq!(given, expected, "round {round}: {update:?} of {document:?}");
            // Another member makes the same bytes of the entry.
            if let Ok(Some((whole, Some(delta)))) = &given {
                let entry = RawDocument::from_bytes(delta).unwrap();
                let after = PlainDelta::read(entry).and_then(|delta| delta.apply(&document));
                followed += usize::from(after.is_some());
                let after = after.map_or_else(|| whole.clone(), RawDocumentBuf::into_bytes);
                assert_eq!(after, *whole, "round {round}: {entry:?} of {document:?}");
            }
            changed += usize::from(matches!(given, Ok(Some(_))));
            refused += usize::from(given.is_err());
        }
        let enough = ROUNDS / 20;
        assert!(on_bytes > enough && changed > enough && refused > enough / 10);
        assert!(followed > enough);
    }
}
