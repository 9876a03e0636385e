//! Heartbeats, votes and positions.

use std::sync::Arc;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use quorate_protocol::{
    ConfigVersion, ElectionReason, HeartbeatReply, HeartbeatRequest, MemberId, MemberPosition,
    MemberState, OpTime, OpTimeAndWallTime, PositionReport, Term, Veto, VoteReply, VoteRequest,
};

use super::config::{config_document, parse_config};
use super::read::{Reader, ReplicaSetDocumentError, missing};
use crate::conversions::{
    date_time_from, object_id_from, timestamp_from, to_bson_date_time, to_bson_object_id,
    to_bson_timestamp,
};
use crate::field::FieldError;
use crate::raw_fields::RawFields;
use crate::raw_writer::raw_document;

type Read<T> = Result<T, ReplicaSetDocumentError>;

/// `configVersion` of a member that has no configuration yet.
const NO_CONFIG: i64 = -2;
/// `configTerm` of a forced configuration, `primaryId` and `candidate` of no member.
const NONE: i64 = -1;

/// `{ts, t}`.
pub fn optime_document(op_time: OpTime) -> Document {
    doc! { "ts": to_bson_timestamp(op_time.timestamp), "t": op_time.term }
}

/// Reads `{ts, t}`.
///
/// # Errors
///
/// If one of the two is missing or of the wrong type.
pub fn parse_optime(document: &Document) -> Read<OpTime> {
    let reader = Reader::new(document);
    let timestamp = reader.timestamp("ts")?.ok_or_else(|| missing("ts"))?;
    Ok(OpTime::new(reader.integer("t")?.unwrap_or(NONE), timestamp_from(timestamp)))
}

fn put(document: &mut Document, names: (&str, &str), position: OpTimeAndWallTime) {
    document.insert(names.0, optime_document(position.op_time));
    document.insert(names.1, to_bson_date_time(position.wall_time));
}

fn take(reader: Reader<'_>, names: (&'static str, &'static str)) -> Read<OpTimeAndWallTime> {
    let op_time = reader.document(names.0)?.map(parse_optime).transpose()?.unwrap_or(OpTime::NULL);
    let wall_time = reader.date_time(names.1)?.map(date_time_from).unwrap_or_default();
    Ok(OpTimeAndWallTime { op_time, wall_time })
}

fn put_config_version(
    document: &mut Document,
    names: (&str, &str),
    version: Option<ConfigVersion>,
) {
    document.insert(names.0, version.map_or(NO_CONFIG, |config| config.version));
    let term = version.and_then(|config| config.term);
    document.insert(names.1, term.map_or(NONE, |term| term.0));
}

fn take_config_version(
    reader: Reader<'_>,
    names: (&'static str, &'static str),
) -> Read<Option<ConfigVersion>> {
    let version = reader.integer(names.0)?.filter(|version| *version != NO_CONFIG);
    let term = reader.integer(names.1)?.filter(|term| *term != NONE).map(Term);
    Ok(version.map(|version| ConfigVersion { term, version }))
}

fn member_number(member: Option<MemberId>) -> i32 {
    member.map_or(NONE as i32, |id| id.0)
}

fn take_member(reader: Reader<'_>, name: &'static str) -> Read<Option<MemberId>> {
    Ok(reader.int32(name)?.filter(|id| *id >= 0).map(MemberId))
}

/// The command `replSetHeartbeat`.
pub fn heartbeat_request_document(request: &HeartbeatRequest) -> Document {
    let mut document = doc! { "replSetHeartbeat": &request.set_name };
    put_config_version(&mut document, ("configVersion", "configTerm"), request.config);
    document.insert("hbv", 1_i64);
    document.insert("from", request.from.as_ref().map_or("", |address| address.as_str()));
    document.insert("fromId", member_number(request.from_id));
    document.insert("term", request.term.0);
    document.insert("primaryId", member_number(request.primary_id));
    if request.check_empty {
        document.insert("checkEmpty", true);
    }
    document
}

/// Reads `replSetHeartbeat`.
///
/// # Errors
///
/// If a field is missing or of the wrong type.
pub fn parse_heartbeat_request(document: &Document) -> Read<HeartbeatRequest> {
    let reader = Reader::new(document);
    let set_name = reader.text("replSetHeartbeat")?.ok_or_else(|| missing("replSetHeartbeat"))?;
    Ok(HeartbeatRequest {
        set_name: set_name.to_owned(),
        config: take_config_version(reader, ("configVersion", "configTerm"))?,
        from: reader.address("from")?,
        from_id: take_member(reader, "fromId")?,
        term: Term(reader.integer("term")?.unwrap_or_default()),
        primary_id: take_member(reader, "primaryId")?,
        check_empty: reader.flag("checkEmpty")?.unwrap_or(false),
    })
}

/// The reply to `replSetHeartbeat`.
pub fn heartbeat_reply_document(reply: &HeartbeatReply) -> Document {
    let mut document = doc! { "ok": 1.0, "set": &reply.set_name, "state": reply.state.number() };
    put_config_version(&mut document, ("v", "configTerm"), reply.config_version);
    document.insert("term", reply.term.0);
    document.insert("primaryId", member_number(reply.primary_id));
    if let Some(source) = &reply.syncing_to {
        document.insert("syncingTo", source.as_str());
    }
    document.insert("electable", reply.electable);
    put(&mut document, ("writtenOpTime", "writtenWallTime"), reply.written);
    put(&mut document, ("opTime", "wallTime"), reply.applied);
    put(&mut document, ("durableOpTime", "durableWallTime"), reply.durable);
    if let Some(time) = reply.election_time {
        document.insert("electionTime", to_bson_timestamp(time));
    }
    if let Some(config) = &reply.config {
        document.insert("config", config_document(config));
    }
    if reply.has_data {
        document.insert("hasData", true);
    }
    if let Some(id) = reply.replica_set_id {
        document.insert("replicaSetId", to_bson_object_id(id));
    }
    let mut data = Document::new();
    put(&mut data, ("lastOpCommitted", "lastCommittedWall"), reply.commit_point);
    data.insert("term", reply.term.0);
    document.insert("$replData", data);
    document
}

/// Reads the reply to `replSetHeartbeat`.
///
/// # Errors
///
/// If a field is missing or of the wrong type.
pub fn parse_heartbeat_reply(document: &Document) -> Read<HeartbeatReply> {
    let reader = Reader::new(document);
    let number = reader.int32("state")?.ok_or_else(|| missing("state"))?;
    let unknown_state = || FieldError::OutOfRange {
        field: "state",
        expected: "the number of a state",
        found: number.to_string(),
    };
    let empty = Document::new();
    let data = Reader::new(reader.document("$replData")?.unwrap_or(&empty));
    Ok(HeartbeatReply {
        set_name: reader.text("set")?.unwrap_or_default().to_owned(),
        state: MemberState::from_number(number).ok_or_else(unknown_state)?,
        config_version: take_config_version(reader, ("v", "configTerm"))?,
        term: Term(reader.integer("term")?.unwrap_or_default()),
        primary_id: take_member(reader, "primaryId")?,
        syncing_to: reader.address("syncingTo")?,
        electable: reader.flag("electable")?.unwrap_or(false),
        written: take(reader, ("writtenOpTime", "writtenWallTime"))?,
        applied: take(reader, ("opTime", "wallTime"))?,
        durable: take(reader, ("durableOpTime", "durableWallTime"))?,
        commit_point: take(data, ("lastOpCommitted", "lastCommittedWall"))?,
        election_time: reader.timestamp("electionTime")?.map(timestamp_from),
        config: reader.document("config")?.map(parse_config).transpose()?.map(Arc::new),
        has_data: reader.flag("hasData")?.unwrap_or(false),
        replica_set_id: reader.object_id("replicaSetId")?.map(object_id_from),
    })
}

/// The command `replSetRequestVotes`. `candidateId` stands for the server's `candidateIndex`: an id
/// stays true when the voter's configuration lists its members in another order.
pub fn vote_request_document(request: &VoteRequest) -> Document {
    let mut document = doc! {
        "replSetRequestVotes": 1,
        "setName": &request.set_name,
        "dryRun": request.dry_run,
        "term": request.term.0,
        "candidateId": request.candidate.0,
        "reason": request.reason.name(),
    };
    put_config_version(&mut document, ("configVersion", "configTerm"), Some(request.config));
    document.insert("lastWrittenOpTime", optime_document(request.last_written));
    document.insert("lastAppliedOpTime", optime_document(request.last_applied));
    document
}

/// Reads `replSetRequestVotes`.
///
/// # Errors
///
/// If a field is missing or of the wrong type.
pub fn parse_vote_request(document: &Document) -> Read<VoteRequest> {
    let reader = Reader::new(document);
    let reason = reader.text("reason")?.unwrap_or_default();
    let known = ElectionReason::from_name(reason);
    let config = take_config_version(reader, ("configVersion", "configTerm"))?;
    let op_time = |name| match reader.document(name)? {
        Some(document) => parse_optime(document),
        None => Err(missing(name)),
    };
    Ok(VoteRequest {
        set_name: reader.text("setName")?.ok_or_else(|| missing("setName"))?.to_owned(),
        dry_run: reader.flag("dryRun")?.unwrap_or(false),
        term: Term(reader.integer("term")?.ok_or_else(|| missing("term"))?),
        candidate: take_member(reader, "candidateId")?.ok_or_else(|| missing("candidateId"))?,
        reason: known.unwrap_or(ElectionReason::ElectionTimeout),
        config: config.ok_or_else(|| missing("configVersion"))?,
        last_written: op_time("lastWrittenOpTime")?,
        last_applied: op_time("lastAppliedOpTime")?,
    })
}

/// The reply to `replSetRequestVotes`.
pub fn vote_reply_document(reply: &VoteReply) -> Document {
    let mut document = doc! {
        "ok": 1.0,
        "term": reply.term.0,
        "voteGranted": reply.vote_granted,
        "reason": &reply.reason,
    };
    if let Some(veto) = reply.veto {
        let (kind, member) = veto_parts(veto);
        document.insert("veto", doc! { "kind": kind, "memberId": member_number(member) });
    }
    document
}

fn veto_parts(veto: Veto) -> (&'static str, Option<MemberId>) {
    match veto {
        Veto::NotAMember => ("notAMember", None),
        Veto::FresherMember(id) => ("fresherMember", Some(id)),
        Veto::FresherSecondaryOnlyMember(id) => ("fresherSecondaryOnlyMember", Some(id)),
        Veto::FresherPrimary(id) => ("fresherPrimary", Some(id)),
        Veto::IAmPrimary => ("iAmPrimary", None),
        Veto::BetterPriority(id) => ("betterPriority", Some(id)),
    }
}

/// Reads the reply to `replSetRequestVotes`.
///
/// # Errors
///
/// If a field is missing or of the wrong type.
pub fn parse_vote_reply(document: &Document) -> Read<VoteReply> {
    let reader = Reader::new(document);
    Ok(VoteReply {
        term: Term(reader.integer("term")?.ok_or_else(|| missing("term"))?),
        vote_granted: reader.flag("voteGranted")?.ok_or_else(|| missing("voteGranted"))?,
        reason: reader.text("reason")?.unwrap_or_default().to_owned(),
        veto: reader.document("veto")?.map(parse_veto).transpose()?,
    })
}

fn parse_veto(document: &Document) -> Read<Veto> {
    let reader = Reader::new(document);
    let member = take_member(reader, "veto.memberId")?;
    let kind = reader.text("veto.kind")?.unwrap_or_default();
    let named = || member.ok_or_else(|| missing("veto.memberId"));
    Ok(match kind {
        "notAMember" => Veto::NotAMember,
        "fresherMember" => Veto::FresherMember(named()?),
        "fresherSecondaryOnlyMember" => Veto::FresherSecondaryOnlyMember(named()?),
        "fresherPrimary" => Veto::FresherPrimary(named()?),
        "iAmPrimary" => Veto::IAmPrimary,
        "betterPriority" => Veto::BetterPriority(named()?),
        other => {
            return Err(FieldError::OutOfRange {
                field: "veto.kind",
                expected: "the name of a veto",
                found: other.to_owned(),
            }
            .into());
        }
    })
}

/// The command `replSetUpdatePosition`, encoded. A report goes with every group of writes, so that no
/// document is built for it.
pub fn position_report_body(report: &PositionReport) -> RawDocumentBuf {
    raw_document(report.positions.len() * POSITION_BYTES + 128, |fields| {
        fields.int32("replSetUpdatePosition", 1);
        fields.documents("optimes", &report.positions, |fields, position| {
            fields.op_time("durableOpTime", position.durable.op_time);
            fields.date("durableWallTime", position.durable.wall_time);
            fields.op_time("appliedOpTime", position.applied.op_time);
            fields.date("appliedWallTime", position.applied.wall_time);
            fields.op_time("writtenOpTime", position.written.op_time);
            fields.date("writtenWallTime", position.written.wall_time);
            fields.int32("memberId", position.member.0);
            fields.int64("cfgver", position.config_version);
        });
        fields.document("$replData", |fields| fields.int64("term", report.term.0));
        fields.text("$db", &["admin"]);
    })
}

/// What the position of one member takes in a report, about.
const POSITION_BYTES: usize = 256;

/// Reads a report as [`position_report_body`] makes it; none if this is another command, or a report of
/// another shape, which [`parse_position_report`] reads or refuses.
pub fn read_position_report(body: &RawDocument) -> Option<PositionReport> {
    let mut fields = RawFields::of(body);
    fields.next_of("replSetUpdatePosition")?;
    let positions = fields.next_of("optimes")?.documents()?;
    let positions = positions.into_iter().map(read_position).collect::<Option<_>>()?;
    let term = fields.next_of("$replData")?.document()?;
    let term = RawFields::of(term).next_of("term")?.int64()?;
    fields.next_of("$db")?;
    fields.is_at_end().then_some(PositionReport { term: Term(term), positions })
}

fn read_position(document: &RawDocument) -> Option<MemberPosition> {
    let mut fields = RawFields::of(document);
    let mut at = |op_time: &str, wall_time: &str| {
        Some(OpTimeAndWallTime {
            op_time: read_optime(fields.next_of(op_time)?.document()?)?,
            wall_time: date_time_from(fields.next_of(wall_time)?.date_time()?),
        })
    };
    let durable = at("durableOpTime", "durableWallTime")?;
    let applied = at("appliedOpTime", "appliedWallTime")?;
    let written = at("writtenOpTime", "writtenWallTime")?;
    let member = fields.next_of("memberId")?.int32().filter(|id| *id >= 0).map(MemberId)?;
    let config_version = fields.next_of("cfgver")?.int64()?;
    let position = MemberPosition { member, config_version, written, applied, durable };
    fields.is_at_end().then_some(position)
}

/// Reads `{ts, t}` without a document; none if it is none.
pub fn read_optime(document: &RawDocument) -> Option<OpTime> {
    let mut fields = RawFields::of(document);
    let timestamp = fields.next_of("ts")?.timestamp()?;
    let term = fields.next_of("t")?.int64()?;
    fields.is_at_end().then_some(OpTime::new(term, timestamp_from(timestamp)))
}

/// Reads `replSetUpdatePosition`.
///
/// # Errors
///
/// If a field is missing or of the wrong type.
pub fn parse_position_report(document: &Document) -> Read<PositionReport> {
    let reader = Reader::new(document);
    let data = reader.document("$replData")?.ok_or_else(|| missing("$replData"))?;
    let term = Reader::new(data).integer("$replData.term")?;
    let positions = reader.documents("optimes")?.ok_or_else(|| missing("optimes"))?;
    let position = |document: &Document| {
        let reader = Reader::new(document);
        let id = take_member(reader, "optimes.memberId")?;
        Ok(MemberPosition {
            member: id.ok_or_else(|| missing("optimes.memberId"))?,
            config_version: reader.integer("optimes.cfgver")?.unwrap_or_default(),
            written: take(reader, ("writtenOpTime", "writtenWallTime"))?,
            applied: take(reader, ("appliedOpTime", "appliedWallTime"))?,
            durable: take(reader, ("durableOpTime", "durableWallTime"))?,
        })
    };
    Ok(PositionReport {
        term: Term(term.ok_or_else(|| missing("$replData.term"))?),
        positions: positions.into_iter().map(position).collect::<Read<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{
        MemberConfig, ObjectId, ReplicaSetConfig, ServerAddress, Timestamp, WallTime,
    };

    use super::*;

    fn at(term: i64, seconds: u32) -> OpTimeAndWallTime {
        OpTimeAndWallTime {
            op_time: OpTime::new(term, Timestamp::new(seconds, 1)),
            wall_time: WallTime(i64::from(seconds) * 1000),
        }
    }

    fn address() -> ServerAddress {
        ServerAddress::tcp("a", 1).unwrap()
    }

    #[test]
    fn heartbeats_survive_a_round_trip() {
        let version = ConfigVersion { term: Some(Term(2)), version: 5 };
        for config in [None, Some(version), Some(ConfigVersion { term: None, ..version })] {
            let request = HeartbeatRequest {
                set_name: "rs0".into(),
                config,
                from: Some(address()),
                from_id: Some(MemberId(0)),
                term: Term(9),
                primary_id: None,
                check_empty: true,
            };
            let document = heartbeat_request_document(&request);
            assert_eq!(parse_heartbeat_request(&document).unwrap(), request);
        }
        let reply = HeartbeatReply {
            set_name: "rs0".into(),
            state: MemberState::Secondary,
            config_version: Some(version),
            term: Term(9),
            primary_id: Some(MemberId(3)),
            syncing_to: Some(address()),
            electable: true,
            written: at(2, 30),
            applied: at(2, 20),
            durable: OpTimeAndWallTime::default(),
            commit_point: at(1, 10),
            election_time: Some(Timestamp::new(3, 4)),
            config: Some(Arc::new(ReplicaSetConfig::new(
                "rs0",
                vec![MemberConfig::new(MemberId(0), address())],
            ))),
            has_data: true,
            replica_set_id: Some(ObjectId::from_bytes([1; 12])),
        };
        assert_eq!(parse_heartbeat_reply(&heartbeat_reply_document(&reply)).unwrap(), reply);
    }

    #[test]
    fn votes_survive_a_round_trip_with_every_reason_and_veto() {
        for reason in ElectionReason::ALL {
            let request = VoteRequest {
                set_name: "rs0".into(),
                dry_run: true,
                term: Term(4),
                candidate: MemberId(2),
                reason,
                config: ConfigVersion { term: None, version: 1 },
                last_written: at(3, 1).op_time,
                last_applied: OpTime::NULL,
            };
            assert_eq!(parse_vote_request(&vote_request_document(&request)).unwrap(), request);
        }
        let one = MemberId(1);
        for veto in [
            Veto::NotAMember,
            Veto::FresherMember(one),
            Veto::FresherSecondaryOnlyMember(one),
            Veto::FresherPrimary(one),
            Veto::IAmPrimary,
            Veto::BetterPriority(one),
        ] {
            let reply = VoteReply {
                term: Term(4),
                vote_granted: false,
                reason: "no".into(),
                veto: Some(veto),
            };
            assert_eq!(parse_vote_reply(&vote_reply_document(&reply)).unwrap(), reply);
        }
    }

    #[test]
    fn positions_survive_a_round_trip_and_need_a_term() {
        let position = MemberPosition {
            member: MemberId(1),
            config_version: 3,
            written: at(1, 3),
            applied: at(1, 2),
            durable: at(1, 1),
        };
        let report = PositionReport { term: Term(1), positions: vec![position] };
        let body = position_report_body(&report);
        assert_eq!(read_position_report(&body).unwrap(), report);
        let mut document = Document::try_from(&*body).unwrap();
        assert_eq!(parse_position_report(&document).unwrap(), report);
        document.remove("$replData");
        assert!(parse_position_report(&document).unwrap_err().to_string().contains("$replData"));
        let without = RawDocumentBuf::try_from(&document).unwrap();
        assert_eq!(read_position_report(&without), None);
    }

    #[test]
    fn only_a_report_as_members_send_it_is_read_without_a_document() {
        let position = MemberPosition {
            member: MemberId(1),
            config_version: 3,
            written: at(1, 3),
            applied: at(1, 2),
            durable: at(1, 1),
        };
        let report = PositionReport { term: Term(1), positions: vec![position] };
        let sent = Document::try_from(&*position_report_body(&report)).unwrap();
        let read = |document: &Document| {
            read_position_report(&RawDocumentBuf::try_from(document).unwrap())
        };
        assert_eq!(read(&sent), Some(report));
        // Without one of its fields, with another type there, and with one more, it is left to the other reader.
        for name in sent.keys() {
            let mut other = sent.clone();
            other.remove(name);
            assert_eq!(read(&other), None, "without {name}");
        }
        assert_eq!(read(&with(&sent, "more", 1)), None);
        let inner = sent.get_array("optimes").unwrap()[0].as_document().unwrap();
        for name in inner.keys() {
            let changed = with(inner, name, "text");
            assert_eq!(read(&with(&sent, "optimes", vec![changed])), None, "{name} as text");
        }
        let more = with(inner, "more", 1);
        assert_eq!(read(&with(&sent, "optimes", vec![more])), None);
        assert_eq!(read(&with(&sent, "$replData", doc! { "term": "text" })), None);
        assert!(read(&with(&sent, "optimes", Vec::<Document>::new())).is_some());
    }

    fn with(document: &Document, name: &str, value: impl Into<bson::Bson>) -> Document {
        let mut changed = document.clone();
        changed.insert(name, value);
        changed
    }

    #[test]
    fn a_wrong_type_is_an_error_that_names_the_field() {
        let error = parse_heartbeat_request(&doc! { "replSetHeartbeat": "a", "term": "x" });
        assert!(error.unwrap_err().to_string().contains("term"));
        let error = parse_heartbeat_reply(&doc! { "state": 4 });
        assert!(error.unwrap_err().to_string().contains("state"));
        let error = parse_vote_reply(&doc! { "term": 1, "voteGranted": "perhaps" });
        assert!(error.unwrap_err().to_string().contains("voteGranted"));
    }
}
