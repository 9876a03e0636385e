//! The configuration document, `local.system.replset`.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};
use quorate_protocol::{
    MemberConfig, MemberId, Priority, ReplicaSetConfig, ReplicaSetSettings, ServerAddress, TagSet,
    Term,
};

use super::read::{Reader, ReplicaSetDocumentError, missing, parse_address, whole, wrong};
use crate::conversions::{object_id_from, to_bson_object_id};

type Read<T> = Result<T, ReplicaSetDocumentError>;

/// The document of a configuration.
pub fn config_document(config: &ReplicaSetConfig) -> Document {
    let members: Vec<Bson> = config.members.iter().map(|m| member_document(m).into()).collect();
    let mut document = doc! { "_id": &config.set_name, "version": number(config.version) };
    if let Some(term) = config.term {
        document.insert("term", term.0);
    }
    document.insert("members", members);
    document.insert("protocolVersion", config.protocol_version);
    document.insert(
        "writeConcernMajorityJournalDefault",
        config.write_concern_majority_journal_default,
    );
    document.insert("settings", settings_document(&config.settings));
    document
}

/// Reads a configuration document.
///
/// # Errors
///
/// If a field is missing, unknown, or of the wrong type. The error names it.
pub fn parse_config(document: &Document) -> Read<ReplicaSetConfig> {
    const KNOWN: [&str; 8] = [
        "_id",
        "version",
        "term",
        "protocolVersion",
        "writeConcernMajorityJournalDefault",
        "members",
        "settings",
        "configsvr",
    ];
    let reader = Reader::new(document);
    reader.only(&KNOWN, "the configuration")?;
    let set_name = reader.text("_id")?.ok_or_else(|| missing("_id"))?;
    let members = reader.documents("members")?.ok_or_else(|| missing("members"))?;
    let members = members.into_iter().map(parse_member).collect::<Read<Vec<_>>>()?;
    let settings = reader.document("settings")?.map(parse_settings).transpose()?;
    let defaults = ReplicaSetConfig::new(set_name, members);
    Ok(ReplicaSetConfig {
        version: reader.integer("version")?.unwrap_or(defaults.version),
        term: reader.integer("term")?.filter(|term| *term >= 0).map(Term),
        protocol_version: reader.integer("protocolVersion")?.unwrap_or(1),
        write_concern_majority_journal_default: reader
            .flag("writeConcernMajorityJournalDefault")?
            .unwrap_or(true),
        settings: settings.unwrap_or_default(),
        ..defaults
    })
}

// Whole numbers that fit are 32-bit, as shells and drivers expect to see them.
fn number(value: i64) -> Bson {
    i32::try_from(value).map_or(Bson::Int64(value), Bson::Int32)
}

fn member_document(member: &MemberConfig) -> Document {
    let tags: Document = member.tags.iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
    let mut document = doc! {
        "_id": member.id.0,
        "host": member.host.as_str(),
        "arbiterOnly": member.arbiter_only,
        "buildIndexes": member.build_indexes,
        "hidden": member.hidden,
        "priority": member.priority.0,
        "tags": tags,
        "secondaryDelaySecs": member.secondary_delay_secs,
        "votes": number(member.votes),
    };
    if member.newly_added {
        document.insert("newlyAdded", true);
    }
    if !member.horizons.is_empty() {
        let horizons: Document = member
            .horizons
            .iter()
            .map(|(name, address)| (name.clone(), address.as_str().into()))
            .collect();
        document.insert("horizons", horizons);
    }
    document
}

fn parse_member(document: &Document) -> Read<MemberConfig> {
    const KNOWN: [&str; 12] = [
        "_id", "host", "arbiterOnly", "buildIndexes", "hidden", "priority", "tags",
        "secondaryDelaySecs", "slaveDelay", "votes", "newlyAdded", "horizons",
    ];
    let reader = Reader::new(document);
    reader.only(&KNOWN, "members")?;
    let id = reader.int32("members._id")?.ok_or_else(|| missing("members._id"))?;
    let host = reader.address("members.host")?.ok_or_else(|| missing("members.host"))?;
    let arbiter_only = reader.flag("members.arbiterOnly")?.unwrap_or(false);
    let member = if arbiter_only {
        MemberConfig::arbiter(MemberId(id), host)
    } else {
        MemberConfig::new(MemberId(id), host)
    };
    let delay = match reader.integer("members.secondaryDelaySecs")? {
        Some(delay) => Some(delay),
        None => reader.integer("members.slaveDelay")?,
    };
    Ok(MemberConfig {
        build_indexes: reader.flag("members.buildIndexes")?.unwrap_or(true),
        hidden: reader.flag("members.hidden")?.unwrap_or(false),
        priority: reader.double("members.priority")?.map_or(member.priority, Priority),
        tags: reader
            .document("members.tags")?
            .map(parse_tags)
            .transpose()?
            .unwrap_or(TagSet::EMPTY),
        secondary_delay_secs: delay.unwrap_or(0),
        votes: reader.integer("members.votes")?.unwrap_or(1),
        newly_added: reader.flag("members.newlyAdded")?.unwrap_or(false),
        horizons: reader
            .document("members.horizons")?
            .map(parse_horizons)
            .transpose()?
            .unwrap_or_default(),
        ..member
    })
}

fn parse_tags(document: &Document) -> Read<TagSet> {
    let tag = |(name, value): (&String, &Bson)| match value {
        Bson::String(text) => Ok((name.clone(), text.clone())),
        other => Err(wrong("members.tags", "a document of strings", other)),
    };
    document.iter().map(tag).collect()
}

fn parse_horizons(document: &Document) -> Read<BTreeMap<String, ServerAddress>> {
    let horizon = |(name, value): (&String, &Bson)| match value {
        Bson::String(text) => Ok((name.clone(), parse_address("members.horizons", text)?)),
        other => Err(wrong("members.horizons", "a document of strings", other)),
    };
    document.iter().map(horizon).collect()
}

fn settings_document(settings: &ReplicaSetSettings) -> Document {
    let modes: Document = settings
        .get_last_error_modes
        .iter()
        .map(|(name, tags)| {
            let tags: Document = tags.iter().map(|(t, n)| (t.clone(), number(*n))).collect();
            (name.clone(), Bson::from(tags))
        })
        .collect();
    let mut document = doc! {
        "chainingAllowed": settings.chaining_allowed,
        "heartbeatIntervalMillis": number(settings.heartbeat_interval_millis),
        "heartbeatTimeoutSecs": number(settings.heartbeat_timeout_secs),
        "electionTimeoutMillis": number(settings.election_timeout_millis),
        "catchUpTimeoutMillis": number(settings.catch_up_timeout_millis),
        "catchUpTakeoverDelayMillis": number(settings.catch_up_takeover_delay_millis),
        "getLastErrorModes": modes,
        "getLastErrorDefaults": { "w": 1, "wtimeout": 0 },
    };
    if let Some(id) = settings.replica_set_id {
        document.insert("replicaSetId", to_bson_object_id(id));
    }
    document
}

fn parse_settings(document: &Document) -> Read<ReplicaSetSettings> {
    const KNOWN: [&str; 9] = [
        "chainingAllowed", "heartbeatIntervalMillis", "heartbeatTimeoutSecs",
        "electionTimeoutMillis", "catchUpTimeoutMillis", "catchUpTakeoverDelayMillis",
        "getLastErrorModes", "getLastErrorDefaults", "replicaSetId",
    ];
    let reader = Reader::new(document);
    reader.only(&KNOWN, "settings")?;
    let defaults = ReplicaSetSettings::default();
    let or =
        |name, default| Ok::<_, ReplicaSetDocumentError>(reader.integer(name)?.unwrap_or(default));
    Ok(ReplicaSetSettings {
        chaining_allowed: reader.flag("settings.chainingAllowed")?.unwrap_or(true),
        heartbeat_interval_millis: or(
            "settings.heartbeatIntervalMillis",
            defaults.heartbeat_interval_millis,
        )?,
        heartbeat_timeout_secs: or(
            "settings.heartbeatTimeoutSecs", defaults.heartbeat_timeout_secs,
        )?,
        election_timeout_millis: or(
            "settings.electionTimeoutMillis", defaults.election_timeout_millis,
        )?,
        catch_up_timeout_millis: or(
            "settings.catchUpTimeoutMillis", defaults.catch_up_timeout_millis,
        )?,
        catch_up_takeover_delay_millis: or(
            "settings.catchUpTakeoverDelayMillis",
            defaults.catch_up_takeover_delay_millis,
        )?,
        get_last_error_modes: reader
            .document("settings.getLastErrorModes")?
            .map(parse_modes)
            .transpose()?
            .unwrap_or_default(),
        replica_set_id: reader.object_id("settings.replicaSetId")?.map(object_id_from),
    })
}

fn parse_modes(document: &Document) -> Read<BTreeMap<String, BTreeMap<String, i64>>> {
    const NAME: &str = "settings.getLastErrorModes";
    let mode = |(name, tags): (&String, &Bson)| {
        let Bson::Document(tags) = tags else {
            return Err(wrong(NAME, "a document of documents", tags));
        };
        let count = |(tag, count): (&String, &Bson)| match whole(count) {
            Some(count) => Ok((tag.clone(), count)),
            None => Err(wrong(NAME, "whole numbers", count)),
        };
        Ok((name.clone(), tags.iter().map(count).collect::<Read<_>>()?))
    };
    document.iter().map(mode).collect()
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn every_field() -> Document {
        doc! {
            "_id": "rs0", "version": 7, "term": 3_i64,
            "members": [
                {
                    "_id": 0, "host": "A.example:27017", "arbiterOnly": false,
                    "buildIndexes": false, "hidden": true, "priority": 0, "tags": {"dc": "east"},
                    "secondaryDelaySecs": 60_i64, "votes": 0, "newlyAdded": true,
                    "horizons": {"outside": "public.example:1"},
                },
                { "_id": 1, "host": "b:2" },
                { "_id": 2, "host": "c:3", "arbiterOnly": true },
            ],
            "protocolVersion": 1_i64, "writeConcernMajorityJournalDefault": false,
            "settings": {
                "chainingAllowed": false, "heartbeatIntervalMillis": 1, "heartbeatTimeoutSecs": 2,
                "electionTimeoutMillis": 3, "catchUpTimeoutMillis": 4,
                "catchUpTakeoverDelayMillis": 5, "getLastErrorModes": {"far": {"dc": 2}},
                "replicaSetId": bson::oid::ObjectId::from_bytes([7; 12]),
            },
        }
    }

    #[test]
    fn every_field_of_rules_section_2_survives_a_round_trip() {
        let config = parse_config(&every_field()).unwrap();
        assert_eq!(config.members[0].host.as_str(), "a.example:27017");
        assert_eq!(config.members[1].votes, 1);
        assert!(!config.members[2].priority.is_electable());
        assert_eq!(config.settings.get_last_error_modes["far"]["dc"], 2);
        assert_eq!(parse_config(&config_document(&config)).unwrap(), config);
    }

    #[test]
    fn a_wrong_type_is_an_error_that_names_the_field() {
        for (path, value) in [
            ("_id", Bson::from(1)),
            ("version", "1".into()),
            ("members", "x".into()),
            ("settings", 1.into()),
            ("protocolVersion", doc! {}.into()),
        ] {
            let mut document = every_field();
            document.insert(path, value);
            let error = parse_config(&document).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
        for (field, value) in [
            ("_id", Bson::from("x")),
            ("host", 1.into()),
            ("priority", "high".into()),
            ("votes", true.into()),
            ("tags", doc! {"dc": 1}.into()),
            ("hidden", "yes".into()),
            ("surprise", 1.into()),
        ] {
            let mut member = doc! { "_id": 0, "host": "a:1" };
            member.insert(field, value);
            let document = doc! { "_id": "rs0", "version": 1, "members": [member] };
            let error = parse_config(&document).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
