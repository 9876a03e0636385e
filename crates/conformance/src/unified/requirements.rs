//! Which tests a deployment can run, and why the others are left out.
//!
//! Follows "runOnRequirement" of the unified test format. A test that no deployment of ours can run
//! is skipped for one of the reasons of [`Skip`], each of which `docs/conformance.md` explains.

use bson::{Bson, Document};

use super::deployment::{Deployment, Version};
use super::matching::scalars_are_equal;
use crate::Result;

quorate_protocol::named! {
    /// Why a test is not run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Skip {
        /// The test runs on sharded clusters alone.
        Sharded = "sharded clusters only",
        /// The test runs behind load balancers alone.
        LoadBalanced = "load balancers only",
        /// The test wants a server older than ours says it is.
        OlderServer = "older servers only",
        /// The test wants a server newer than ours says it is.
        NewerServer = "newer servers only",
        /// The test wants fields to be encrypted by the client.
        Encryption = "client-side encryption",
        /// The test wants GridFS.
        GridFs = "GridFS",
        /// The test wants texts compared by the rules of a language.
        Collation = "collations",
        /// The test wants the server to run JavaScript.
        JavaScript = "server-side JavaScript",
        /// The test wants collections of another kind.
        CollectionKind = "time-series and clustered collections",
        /// The test wants a server with other parameters.
        Parameter = "other server parameters",
        /// The test wants commands that other servers have for tests alone.
        TestCommand = "test commands of other servers",
        /// The test wants a helper that the specifications leave to each driver and we do not offer.
        Helper = "optional helpers",
        /// The test wants an option of connection strings that the specifications deprecate.
        DeprecatedOption = "deprecated options",
        /// Its own `skipReason` says so.
        ByAuthor = "skipped by its author",
        /// The test wants users that log in where none do, or none where they do. Another deployment of ours
        /// runs it.
        Login = "users that log in",
    }
}

/// Operations that our client does not offer, and what they are skipped as.
const MISSING_OPERATIONS: [(&str, Skip); 4] = [
    ("mapReduce", Skip::Helper),
    ("listCollectionObjects", Skip::Helper),
    ("listDatabaseObjects", Skip::Helper),
    ("clientBulkWrite", Skip::NewerServer),
];

/// The mechanisms by which our servers let users in, certificates apart.
const MECHANISMS: [&str; 2] = ["SCRAM-SHA-1", "SCRAM-SHA-256"];

/// Commands that other servers have for tests alone.
const TEST_COMMANDS: [&str; 2] = ["testVersion2", "testDeprecationInVersion2"];

/// Options of connection strings that we do not know, and what tests of them are skipped as.
const DEPRECATED_OPTIONS: [&str; 2] = ["waitQueueSize", "waitQueueMultiple"];

/// Whether any of the requirements is met. `Err` says what is missing.
pub(super) fn admits(
    deployment: &Deployment,
    requirements: Option<&Bson>,
) -> Result<Result<(), Skip>> {
    let Some(requirements) = requirements else { return Ok(Ok(())) };
    let list = requirements.as_array().ok_or("runOnRequirements is no list")?;
    let mut reasons = Vec::new();
    for requirement in list {
        let requirement = requirement.as_document().ok_or("a requirement is no document")?;
        match admits_one(deployment, requirement)? {
            Ok(()) => return Ok(Ok(())),
            Err(reason) => reasons.push(reason),
        }
    }
    Ok(Err(reasons.into_iter().max_by_key(|reason| nearness(*reason)).unwrap_or(Skip::ByAuthor)))
}

/// How near a deployment came to running a test. What a version forbids is nearer than what a
/// topology forbids: the latter is checked first.
pub(super) fn nearness(reason: Skip) -> u8 {
    match reason {
        Skip::Login => 0,
        Skip::LoadBalanced => 1,
        Skip::Sharded => 2,
        Skip::Encryption => 3,
        _ => 4,
    }
}

fn admits_one(deployment: &Deployment, requirement: &Document) -> Result<Result<(), Skip>> {
    let mut skip = None;
    for (key, value) in requirement {
        let reason = match (key.as_str(), value) {
            ("topologies", Bson::Array(names)) => {
                let names: Vec<&str> = names.iter().filter_map(Bson::as_str).collect();
                topology_skip(deployment.shape.topology, &names)?
            }
            ("minServerVersion", Bson::String(least)) => {
                (deployment.version < Version::parse(least)?).then_some(Skip::NewerServer)
            }
            ("maxServerVersion", Bson::String(most)) => {
                (deployment.version > Version::parse(most)?).then_some(Skip::OlderServer)
            }
            ("auth", Bson::Boolean(wanted)) => {
                (*wanted != deployment.shape.authentication).then_some(Skip::Login)
            }
            ("serverless", Bson::String(word)) if word == "forbid" || word == "allow" => None,
            ("serverParameters", Bson::Document(wanted)) => {
                let differs = wanted.iter().any(|(name, value)| {
                    let own = deployment.parameters.get(name);
                    own.is_none_or(|own| !scalars_are_equal(value, own))
                });
                differs.then_some(Skip::Parameter)
            }
            ("authMechanism", Bson::String(name)) => {
                (!MECHANISMS.contains(&name.as_str())).then_some(Skip::Parameter)
            }
            ("csfle", Bson::Boolean(true) | Bson::Document(_)) => Some(Skip::Encryption),
            ("csfle", Bson::Boolean(false)) => None,
            _ => bail!("unknown requirement {key}: {value}"),
        };
        skip = match (skip, reason) {
            (Some(known), Some(new)) if nearness(known) < nearness(new) => Some(known),
            (known, None) => known,
            (_, new) => new,
        };
    }
    Ok(skip.map_or(Ok(()), Err))
}

fn topology_skip(own: &str, wanted: &[&str]) -> Result<Option<Skip>> {
    for name in wanted {
        if !["single", "replicaset", "sharded", "sharded-replicaset", "load-balanced"]
            .contains(name)
        {
            bail!("unknown topology {name}");
        }
    }
    if wanted.contains(&own) {
        return Ok(None);
    }
    let balanced_only = wanted.iter().all(|name| *name == "load-balanced");
    Ok(Some(if balanced_only { Skip::LoadBalanced } else { Skip::Sharded }))
}

/// Whether a file gives its clients so little time that a busy machine can make it fail.
pub(super) fn has_tight_limit(file: &Document) -> bool {
    ["connectTimeoutMS", "socketTimeoutMS", "timeoutMS"].iter().any(|limit| has_key(file, limit))
}

/// What our client or server does not offer and a file or one of its tests cannot do without.
pub(super) fn missing_feature(file: &Document, test: &Document) -> Option<Skip> {
    if test.contains_key("skipReason") {
        return Some(Skip::ByAuthor);
    }
    let operations = test.get_array("operations").ok().into_iter().flatten();
    let mut found = operations.clone().find_map(in_operation);
    if found.is_none() {
        let entities = file.get_array("createEntities").ok().into_iter().flatten();
        found = entities.chain(operations.filter_map(created)).find_map(in_entity);
    }
    found
}

/// The entities that an operation makes, as one value to search.
fn created(operation: &Bson) -> Option<&Bson> {
    operation.as_document()?.get_document("arguments").ok()?.get("entities")
}

fn in_operation(operation: &Bson) -> Option<Skip> {
    let operation = operation.as_document()?;
    let name = operation.get_str("name").ok()?;
    if let Some((_, skip)) = MISSING_OPERATIONS.iter().find(|(known, _)| *known == name) {
        return Some(*skip);
    }
    let arguments = operation.get_document("arguments").ok()?;
    if arguments.get_str("commandName").is_ok_and(|name| TEST_COMMANDS.contains(&name)) {
        return Some(Skip::TestCommand);
    }
    if has_key(arguments, "$where") {
        return Some(Skip::JavaScript);
    }
    if has_key(arguments, "collation") {
        return Some(Skip::Collation);
    }
    if name == "createCollection"
        && (arguments.contains_key("timeseries") || arguments.contains_key("clusteredIndex"))
    {
        return Some(Skip::CollectionKind);
    }
    in_operation(arguments.get("operation")?)
}

/// Whether a key is anywhere in a document.
fn has_key(document: &Document, sought: &str) -> bool {
    fn in_value(value: &Bson, sought: &str) -> bool {
        match value {
            Bson::Document(document) => has_key(document, sought),
            Bson::Array(items) => items.iter().any(|item| in_value(item, sought)),
            _ => false,
        }
    }
    document.iter().any(|(key, value)| key == sought || in_value(value, sought))
}

fn in_entity(entity: &Bson) -> Option<Skip> {
    match entity {
        Bson::Array(entities) => entities.iter().find_map(in_entity),
        Bson::Document(entity) => {
            if entity.contains_key("bucket") {
                return Some(Skip::GridFs);
            }
            if entity.contains_key("clientEncryption") {
                return Some(Skip::Encryption);
            }
            let client = entity.get_document("client").ok()?;
            if client.contains_key("autoEncryptOpts") {
                return Some(Skip::Encryption);
            }
            let options = client.get_document("uriOptions").ok()?;
            let deprecated = DEPRECATED_OPTIONS.iter().any(|name| options.contains_key(name));
            deprecated.then_some(Skip::DeprecatedOption)
        }
        _ => None,
    }
}
