//! Figures and checks: `serverStatus`, `collStats`, `dbStats`, `validate`, `dbHash`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{Bson, Document, doc};
use quorate_storage::key::RecordId;
use quorate_storage::{Bytes, Direction, KeyRange, StoreStatistics};
use quorate_wire::to_bson_date_time;

use super::common::reply;
use super::create::not_found;
use crate::catalog::Collection;
use crate::context::{Command, Outcome};
use crate::cursors::CursorStatistics;
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, whole_number};
use crate::index_sizes::index_size;
use crate::namespace::Namespace;
use crate::node::DiskRoom;
use crate::records::{View, index_entry, parse_record};
use crate::replication::append_hello;
use crate::usage::Usage;
use crate::writer::{Totals, index_keys_of};

/// Problems that `validate` lists before it only counts them.
const MAX_LISTED_PROBLEMS: usize = 100;

/// What `serverStatus` always tells; the rest are sections, which a client may leave out.
const BASICS: [&str; 8] =
    ["host", "version", "process", "pid", "uptime", "uptimeMillis", "uptimeEstimate", "localTime"];

pub(super) fn server_status(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let (now, started) = (request.context.now, request.node.started());
    let uptime = now.monotonic.since(started.monotonic);
    let CursorStatistics { open, pinned, no_timeout, timed_out, opened } =
        request.node.cursors().statistics();
    let (current, created) = request.node.operations().connections();
    let available = request.node.options().max_connections as i64 - current;
    let connections = doc! {
        "current": current as i32, "available": available.max(0) as i32, "totalCreated": created,
    };
    let mut metrics = request.node.counters().metrics();
    metrics.insert(
        "cursor",
        doc! {
            "timedOut": timed_out as i64,
            "totalOpened": opened as i64,
            "open": {
                "noTimeout": no_timeout as i64, "pinned": pinned as i64, "total": open as i64,
            },
        },
    );
    if let Some(replication) = request.node.replication() {
        let ahead = replication.prefetch.count.load(Ordering::Relaxed) as i64;
        metrics.insert("repl", doc! { "preload": { "indexes": { "num": ahead } } });
    }
    let mut status = doc! {
        "host": &request.node.options().host,
        "version": "7.0.0",
        "process": "quorate",
        "pid": i64::from(std::process::id()),
        "uptime": uptime.as_secs_f64().floor(),
        "uptimeMillis": uptime.as_millis() as i64,
        "uptimeEstimate": uptime.as_secs() as i64,
        "localTime": to_bson_date_time(now.wall),
        "asserts": { "user": request.node.counters().failures() },
        "connections": connections,
        "fsyncLock": {
            "locked": request.node.write_locks() > 0,
            "lockCount": request.node.write_locks() as i64,
        },
        "globalLock": global_lock(request, uptime.as_micros() as i64),
        "logicalSessionRecordCache": {
            "activeSessionsCount": request.node.sessions().count() as i32,
        },
        "metrics": metrics,
        "transactions": request.node.transaction_statistics(request.context.now),
        "changeStreams": request.node.change_stream_statistics()?,
        "opLatencies": operation_latencies(request, &command)?,
    };
    status.extend(store_sections(request.node.store_statistics()));
    status.extend(request.node.counters().sections());
    if let Some((memory, faults)) = process_figures() {
        status.insert("mem", memory);
        status.insert("extra_info", doc! { "note": "of the process", "page_faults": faults });
    }
    if let Some(replication) = request.node.replication() {
        let mut set = Document::new();
        append_hello(request.node, &request.context.client, false, &mut set);
        set.remove("lastWrite");
        // mongostat knows a primary by this name only.
        set.insert("ismaster", set.get_bool("isWritablePrimary").unwrap_or(false));
        status.insert("repl", set);
        status.insert("flowControl", replication.flow_statistics(now));
    }
    for section in left_out(&command) {
        status.remove(section);
    }
    status.insert("ok", 1.0);
    reply(&status)
}

/// The sections that a client does not want.
fn left_out(command: &Command) -> impl Iterator<Item = &str> {
    let unwanted = |value: &Bson| match value {
        Bson::Boolean(wanted) => !wanted,
        number => whole_number(number) == Some(0),
    };
    let named = command.body.iter().skip(1).filter(move |(_, value)| unwanted(value));
    named.map(|(name, _)| name).filter(|name| !BASICS.contains(name))
}

fn operation_latencies(request: &Request<'_>, command: &Command) -> Result<Document> {
    let histograms = match command.body.get("opLatencies") {
        Some(Bson::Document(options)) => {
            Fields::new(options, "serverStatus.opLatencies").flag("histograms")?
        }
        _ => false,
    };
    Ok(request.node.usage().latencies(histograms))
}

/// What the store has done, and what it takes on disk.
fn store_sections(store: StoreStatistics) -> Document {
    doc! {
        "storageEngine": {
            "name": "lsm", "persistent": true, "supportsCommittedReads": true,
            "diskBytes": (store.journal_bytes + store.table_bytes) as i64,
        },
        "journal": {
            "commits": store.commits as i64, "syncs": store.syncs as i64,
            "diskBytes": store.journal_bytes as i64,
        },
    }
}

/// What runs, by what it does. Nothing queues here but writers, for each other, for moments.
fn global_lock(request: &Request<'_>, uptime_micros: i64) -> Document {
    let (readers, writers) = request.node.operations().active();
    doc! {
        "totalTime": uptime_micros,
        "currentQueue": { "total": 0, "readers": 0, "writers": 0 },
        "activeClients": { "total": readers + writers, "readers": readers, "writers": writers },
    }
}

/// The memory of this process in megabytes, and how often it had to wait for a page; none where the
/// system does not tell.
fn process_figures() -> Option<(Document, i64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    parse_process(&status, &stat)
}

/// Reads what proc(5) says of a process.
fn parse_process(status: &str, stat: &str) -> Option<(Document, i64)> {
    let megabytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        i32::try_from(kilobytes / 1024).ok()
    };
    let memory = doc! {
        "bits": 64,
        "virtual": megabytes("VmSize:")?,
        "resident": megabytes("VmRSS:")?,
        "supported": true,
    };
    // The second field is a name in parentheses, which may hold anything; the twelfth is meant.
    let behind_name = stat.rsplit_once(')')?.1;
    let faults = behind_name.split_whitespace().nth(9)?.parse().ok()?;
    Some((memory, faults))
}

/// Collections that `top` tells of: more would not fit into a reply.
const MAX_TOLD: usize = 32_768;

/// How often each collection was used, and for how long.
pub(super) fn top(request: &Request<'_>, _: Command) -> Result<Outcome> {
    let mut totals = doc! { "note": "all times in microseconds" };
    for collection in request.node.catalog().collections() {
        let Some(figures) = collection.usage.top() else { continue };
        refuse_if!(totals.len() > MAX_TOLD => BSON_OBJECT_TOO_LARGE,
            "too many collections are in use for one reply; ask for one with $collStats");
        totals.insert(collection.namespace.to_string(), figures);
    }
    reply(&doc! { "totals": totals, "ok": 1.0 })
}

pub(super) fn collection_statistics(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let scale = scale(&Fields::new(&command.body, "collStats"))?;
    let (Some(collection), _) = request.read(&namespace)? else {
        return reply(&doc! {
            "ns": namespace.to_string(), "size": 0, "count": 0, "storageSize": 0, "nindexes": 0,
            "indexSizes": {}, "totalIndexSize": 0, "totalSize": 0, "scaleFactor": scale,
            "ok": 1.0,
        });
    };
    collection.refuse_view()?;
    let totals = request.totals(&collection)?;
    let mut answer = doc! { "ns": namespace.to_string() };
    answer.extend(figures(request, &collection, totals, scale)?);
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// What `$collStats` starts from: the sections that are asked for.
pub(super) fn stage_figures(
    request: &Request<'_>,
    namespace: &Namespace,
    collection: Option<&Arc<Collection>>,
    options: &Document,
) -> Result<Document> {
    let fields = Fields::new(options, "$collStats");
    let mut answer = doc! {
        "ns": namespace.to_string(),
        "host": &request.node.options().host,
        "localTime": to_bson_date_time(request.context.now.wall),
    };
    refuse_if!(fields.has("queryExecStats") => COMMAND_NOT_SUPPORTED,
        "$collStats with queryExecStats is not offered; use profile and system.profile");
    if let Some(options) = fields.document("latencyStats")? {
        let options = Fields::new(options, "$collStats.latencyStats");
        let idle = Usage::default();
        let usage = collection.map_or(&idle, |found| &*found.usage);
        answer.insert("latencyStats", usage.latencies(options.flag("histograms")?));
    }
    let (storage, count) = (fields.document("storageStats")?, fields.document("count")?);
    if storage.is_none() && count.is_none() {
        return Ok(answer);
    }
    let collection = collection.ok_or_else(|| not_found(namespace))?;
    let totals = request.totals(collection)?;
    if let Some(storage) = storage {
        let scale = scale(&Fields::new(storage, "$collStats.storageStats"))?;
        answer.insert("storageStats", figures(request, collection, totals, scale)?);
    }
    if count.is_some() {
        answer.insert("count", totals.documents as i64);
    }
    Ok(answer)
}

fn figures(
    request: &Request<'_>,
    collection: &Collection,
    totals: Totals,
    scale: i64,
) -> Result<Document> {
    let mut sizes = Document::new();
    let mut index_bytes = 0;
    for index in &collection.indexes {
        let bytes = index_size(request, collection, index, totals)?;
        index_bytes += bytes;
        sizes.insert(&index.name, bytes / scale);
    }
    let bytes = totals.bytes as i64;
    let average = totals.bytes.checked_div(totals.documents).unwrap_or(0);
    let mut figures = doc! {
        "size": bytes / scale,
        "count": totals.documents as i64,
        "avgObjSize": average as i64,
        "storageSize": bytes / scale,
        "freeStorageSize": 0,
        "capped": collection.capped.is_some(),
        "nindexes": collection.indexes.len() as i32,
        "indexSizes": sizes,
        "totalIndexSize": index_bytes / scale,
        "totalSize": (bytes + index_bytes) / scale,
        "scaleFactor": scale,
    };
    if let Some(capped) = collection.capped {
        figures.insert("max", capped.documents.unwrap_or(0) as i64);
        figures.insert("maxSize", capped.bytes as i64 / scale);
    }
    Ok(figures)
}

fn scale(fields: &Fields<'_>) -> Result<i64> {
    match fields.integer("scale")? {
        Some(scale) if scale < 1 => Err(fail!(BAD_VALUE, "scale has to be > 0")),
        Some(scale) => Ok(scale),
        None => Ok(1),
    }
}

pub(super) fn database_statistics(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let scale = scale(&Fields::new(&command.body, "dbStats"))?;
    let catalog = request.node.catalog();
    let (mut totals, mut indexes, mut index_bytes) = (Totals::default(), 0, 0);
    let (mut collections, mut views) = (0, 0);
    for collection in catalog.in_database(request.database) {
        if collection.view.is_some() {
            views += 1;
            continue;
        }
        collections += 1;
        let own = request.totals(collection)?;
        totals.documents += own.documents;
        totals.bytes += own.bytes;
        indexes += collection.indexes.len() as i32;
        for index in &collection.indexes {
            index_bytes += index_size(request, collection, index, own)?;
        }
    }
    let bytes = totals.bytes as i64;
    let average = totals.bytes.checked_div(totals.documents).unwrap_or(0);
    let mut answer = doc! {
        "db": request.database,
        "collections": collections,
        "views": views,
        "objects": totals.documents as i64,
        "avgObjSize": average as f64,
        "dataSize": bytes as f64 / scale as f64,
        "storageSize": bytes as f64 / scale as f64,
        "indexes": indexes,
        "indexSize": index_bytes as f64 / scale as f64,
        "totalSize": (bytes + index_bytes) as f64 / scale as f64,
        "scaleFactor": scale as f64,
    };
    // A member in memory has no disk.
    if let Some(DiskRoom { total, free }) = request.node.disk_room() {
        let used = total.saturating_sub(free);
        answer.insert("fsUsedSize", used as f64 / scale as f64);
        answer.insert("fsTotalSize", total as f64 / scale as f64);
    }
    answer.insert("ok", 1.0);
    reply(&answer)
}

pub(super) fn validate(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "validate");
    refuse_if!(fields.flag("background")? && fields.flag("full")? => COMMAND_NOT_SUPPORTED,
        "validate with background and full is not supported; leave one of them out");
    if let Some(collection) = request.node.catalog().get(&namespace) {
        collection.refuse_view()?;
        request.totals(collection)?;
    }
    // No writer commits meanwhile: documents, entries and totals are of one moment.
    let mut writer = request.node.write(request.context.now);
    let collection = writer.collection(&namespace).ok_or_else(|| not_found(&namespace))?;
    let counted = writer.totals(&collection)?;
    let view = writer.view().clone();
    drop(writer);
    let mut findings = Findings::default();
    if fields.flag("full")? {
        for damage in request.node.verify_store()? {
            findings.problem(damage.to_string());
        }
        if findings.count > 0 {
            // What lies in damaged files cannot be judged.
            return reply(&doc! {
                "ns": namespace.to_string(),
                "nrecords": counted.documents as i64,
                "nIndexes": collection.indexes.len() as i32,
                "valid": false,
                "warnings": [],
                "errors": findings.problems,
                "ok": 1.0,
            });
        }
    }
    let documents = check_records(request, &collection, &view, &mut findings)?;
    let mut keys_per_index = Document::new();
    let mut missing = findings.expected.len();
    for index in &collection.indexes {
        let found = check_entries(index.ident.prefix(), &view, &findings.expected)?;
        keys_per_index.insert(&index.name, found.present as i64);
        missing -= found.present - found.unexpected;
        if found.unexpected > 0 {
            let count = found.unexpected;
            findings
                .problem(format!("index {} has {count} entries without a document", index.name));
        }
    }
    if missing > 0 {
        findings.problem(format!("{missing} index entries are missing"));
    }
    if documents != counted.documents {
        findings.problem(format!("{} documents counted, {documents} found", counted.documents));
    }
    reply(&doc! {
        "ns": namespace.to_string(),
        "nInvalidDocuments": findings.invalid_documents,
        "nrecords": documents as i64,
        "nIndexes": collection.indexes.len() as i32,
        "keysPerIndex": keys_per_index,
        "valid": findings.count == 0,
        "warnings": [],
        "errors": findings.problems,
        "ok": 1.0,
    })
}

#[derive(Default)]
struct Findings {
    expected: BTreeSet<Bytes>,
    problems: Vec<Bson>,
    count: usize,
    invalid_documents: i32,
}

impl Findings {
    fn problem(&mut self, text: String) {
        self.count += 1;
        if self.problems.len() < MAX_LISTED_PROBLEMS {
            self.problems.push(text.into());
        }
    }
}

/// Reads every document and notes the entries that its indexes should have.
fn check_records(
    request: &Request<'_>,
    collection: &Arc<Collection>,
    view: &View,
    findings: &mut Findings,
) -> Result<u64> {
    let mut documents = 0;
    for pair in view.scan_records(collection.ident, Direction::Forward)? {
        request.context.interrupt.check()?;
        let (key, value) = pair?;
        documents += 1;
        let record = RecordId::from_suffix(&key).unwrap_or(RecordId(0));
        let checked = parse_record(&value)
            .and_then(|document| crate::writer::check_document(&document).map(|()| document));
        let document = match checked {
            Ok(document) => document,
            Err(error) => {
                findings.invalid_documents += 1;
                findings.problem(format!("record {}: {error}", record.0));
                continue;
            }
        };
        for index in &collection.indexes {
            for key in &index_keys_of(index, &document)?.keys {
                findings.expected.insert(index_entry(index, key, record).0);
            }
        }
    }
    Ok(documents)
}

struct Entries {
    present: usize,
    unexpected: usize,
}

fn check_entries(prefix: [u8; 8], view: &View, expected: &BTreeSet<Bytes>) -> Result<Entries> {
    let mut entries = Entries { present: 0, unexpected: 0 };
    for pair in view.scan_index(KeyRange::prefix(&prefix), Direction::Forward)? {
        entries.present += 1;
        if !expected.contains(&pair?.0) {
            entries.unexpected += 1;
        }
    }
    Ok(entries)
}

/// A fingerprint that two members with the same documents share, whatever order they came in.
pub(super) fn database_hash(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "dbHash");
    let wanted = fields.array("collections")?.unwrap_or_default();
    let mut hashes = Document::new();
    let mut all = Fingerprint::default();
    let view = request.node.view();
    for collection in request.node.catalog().in_database(request.database) {
        let name = &collection.namespace.collection;
        if collection.namespace.is_unreplicated() && request.database != "local" {
            continue;
        }
        if !wanted.is_empty() && !wanted.iter().any(|item| item.as_str() == Some(name)) {
            continue;
        }
        let mut own = Fingerprint::default();
        for pair in view.scan_records(collection.ident, Direction::Forward)? {
            request.context.interrupt.check()?;
            own.add(&pair?.1);
        }
        all.add(name.as_bytes());
        all.add(own.to_string().as_bytes());
        hashes.insert(name, own.to_string());
    }
    reply(&doc! {
        "host": &request.node.options().host,
        "collections": hashes,
        "md5": all.to_string(),
        "ok": 1.0,
    })
}

/// The sum of the 128-bit FNV-1a hashes of the parts: order does not matter.
#[derive(Default)]
struct Fingerprint(u128);

impl Fingerprint {
    fn add(&mut self, bytes: &[u8]) {
        const OFFSET: u128 = 0x6c62272e07bb014262b821756295c58d;
        const PRIME: u128 = 0x0000000001000000000000000000013b;
        let hash = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        self.0 = self.0.wrapping_add(bytes.iter().fold(OFFSET, hash));
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_process_are_read_past_any_name() {
        let status = "Name:\tquorate\nVmSize:\t  102400 kB\nVmRSS:\t   10240 kB\nThreads:\t7\n";
        let stat = "7 (odd) name)) S 1 7 7 0 -1 4194560 100 0 42 0 5 6 0 0 20 0 1 0 1 1 1";
        let (memory, faults) = parse_process(status, stat).unwrap();
        assert_eq!(
            (memory.get_i32("virtual").unwrap(), memory.get_i32("resident").unwrap()),
            (100, 10)
        );
        assert_eq!(faults, 42);
        assert!(parse_process("", stat).is_none() && parse_process(status, "7").is_none());
    }
}
