//! The client's view of one server, from its latest check.
//!
//! Follows "ServerDescription" and "Server Description Equality" in the Server Discovery And
//! Monitoring specification.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    AddressList, ElectionId, HelloReply, MonotonicTime, ObjectId, OpTime, ServerAddress,
    SetVersion, TagSet, TopologyVersion, WallTime, WireVersionRange,
};

use crate::fault::{ElectionTuple, ServerError};
use crate::types::ServerType;

/// Everything the client believes about one server. Immutable: news makes a new one.
///
/// The reply it came from is shared, not copied, so that making one costs an allocation and no more.
#[derive(Clone, Debug)]
pub struct ServerDescription {
    address: ServerAddress,
    server_type: ServerType,
    /// The latest reply; `None` while the server is Unknown, and for load balancers.
    reply: Option<Arc<HelloReply>>,
    /// Of the latest reply *or* state change error, so kept apart from the reply.
    topology_version: Option<TopologyVersion>,
    error: Option<ServerError>,
    round_trip_time: Option<Duration>,
    min_round_trip_time: Option<Duration>,
    /// `None` is the specification's "infinity ago".
    last_update_time: Option<MonotonicTime>,
}

impl ServerDescription {
    /// The default description: of type Unknown, never checked, no error.
    pub fn unknown(address: ServerAddress) -> Self {
        Self {
            address,
            server_type: ServerType::Unknown,
            reply: None,
            topology_version: None,
            error: None,
            round_trip_time: None,
            min_round_trip_time: None,
            last_update_time: None,
        }
    }

    /// A load balancer, known by the connection string alone.
    pub fn load_balancer(address: ServerAddress) -> Self {
        Self { server_type: ServerType::LoadBalancer, ..Self::unknown(address) }
    }

    /// What a reply says about a server. A reply without `ok: 1` makes it Unknown.
    pub fn from_reply(
        address: ServerAddress,
        reply: Arc<HelloReply>,
        round_trips: RoundTrips,
        now: MonotonicTime,
    ) -> Self {
        let server_type = ServerType::from_reply(&reply);
        let topology_version = reply.topology_version;
        let known = server_type.is_known();
        Self {
            address,
            server_type,
            reply: known.then_some(reply),
            topology_version,
            error: None,
            round_trip_time: round_trips.average.filter(|_| known),
            min_round_trip_time: round_trips.minimum.filter(|_| known),
            last_update_time: Some(now),
        }
    }

    /// An Unknown server and the reason.
    pub(crate) fn failed(
        address: ServerAddress,
        error: ServerError,
        topology_version: Option<TopologyVersion>,
        last_update_time: Option<MonotonicTime>,
    ) -> Self {
        Self { error: Some(error), topology_version, last_update_time, ..Self::unknown(address) }
    }

    /// The same server, but rumoured to be the primary.
    pub fn into_possible_primary(self) -> Self {
        Self { server_type: ServerType::PossiblePrimary, ..self }
    }

    pub(crate) fn with_round_trips(&self, round_trips: RoundTrips) -> Self {
        Self {
            round_trip_time: round_trips.average,
            min_round_trip_time: round_trips.minimum,
            ..self.clone()
        }
    }

    /// Where the client connects to. Not necessarily what the server calls itself: see
    /// [`me`](Self::me).
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// What kind of server it is.
    pub fn server_type(&self) -> ServerType {
        self.server_type
    }

    /// The last error related to this server.
    pub fn error(&self) -> Option<&ServerError> {
        self.error.as_ref()
    }

    /// The average duration of a hello; `None` while the server is Unknown.
    pub fn round_trip_time(&self) -> Option<Duration> {
        self.round_trip_time
    }

    /// The least of the last ten durations; zero until there are two.
    pub fn min_round_trip_time(&self) -> Option<Duration> {
        self.min_round_trip_time
    }

    /// The date of the member's latest write, by the server's clock.
    pub fn last_write_date(&self) -> Option<WallTime> {
        self.reply().and_then(|reply| reply.last_write).and_then(|write| write.last_write_date)
    }

    /// The position of the member's latest write.
    pub fn op_time(&self) -> Option<OpTime> {
        self.reply().and_then(|reply| reply.last_write).and_then(|write| write.op_time)
    }

    /// The wire versions it speaks; both 0 while it is Unknown.
    pub fn wire_versions(&self) -> WireVersionRange {
        self.reply().map_or_else(WireVersionRange::default, |reply| reply.wire_versions)
    }

    /// What the server calls itself.
    pub fn me(&self) -> Option<&ServerAddress> {
        self.reply().and_then(|reply| reply.me.as_ref())
    }

    /// All lists of members, in the server's opinion.
    pub(crate) fn lists(&self) -> Option<[AddressList; 3]> {
        let reply = self.reply()?;
        Some([reply.hosts.clone(), reply.passives.clone(), reply.arbiters.clone()])
    }

    /// The members that can become primary, in the server's opinion.
    pub fn hosts(&self) -> &[ServerAddress] {
        self.reply().map_or(&[], |reply| &*reply.hosts)
    }

    /// The members with priority 0, in the server's opinion.
    pub fn passives(&self) -> &[ServerAddress] {
        self.reply().map_or(&[], |reply| &*reply.passives)
    }

    /// The arbiters, in the server's opinion.
    pub fn arbiters(&self) -> &[ServerAddress] {
        self.reply().map_or(&[], |reply| &*reply.arbiters)
    }

    /// Every member the server lists: hosts, passives and arbiters.
    pub fn members(&self) -> impl Iterator<Item = &ServerAddress> + Clone {
        self.hosts().iter().chain(self.passives()).chain(self.arbiters())
    }

    /// The member's tags.
    pub fn tags(&self) -> &TagSet {
        static NONE: TagSet = TagSet::EMPTY;
        self.reply().map_or(&NONE, |reply| &reply.tags)
    }

    /// The name of its set.
    pub fn set_name(&self) -> Option<&str> {
        self.reply().and_then(|reply| reply.set_name.as_deref())
    }

    /// The version of its configuration.
    pub fn set_version(&self) -> Option<SetVersion> {
        self.reply().and_then(|reply| reply.set_version)
    }

    /// The election that made it primary.
    pub fn election_id(&self) -> Option<ElectionId> {
        self.reply().and_then(|reply| reply.election_id)
    }

    pub(crate) fn election_tuple(&self) -> ElectionTuple {
        ElectionTuple { election_id: self.election_id(), set_version: self.set_version() }
    }

    /// The primary, in the server's opinion.
    pub fn primary(&self) -> Option<&ServerAddress> {
        self.reply().and_then(|reply| reply.primary.as_ref())
    }

    /// When the server was last checked; `None` if never.
    pub fn last_update_time(&self) -> Option<MonotonicTime> {
        self.last_update_time
    }

    /// How long a session lives without use.
    pub fn logical_session_timeout_minutes(&self) -> Option<i64> {
        self.reply().and_then(|reply| reply.logical_session_timeout_minutes)
    }

    /// How fresh this knowledge is, by the server's own count.
    pub fn topology_version(&self) -> Option<TopologyVersion> {
        self.topology_version
    }

    /// Whether it is a mongocryptd.
    pub fn iscryptd(&self) -> bool {
        self.reply().is_some_and(|reply| reply.iscryptd)
    }

    /// The service behind a load balancer.
    pub fn service_id(&self) -> Option<ObjectId> {
        self.reply().and_then(|reply| reply.service_id)
    }

    /// The reply this came from; `None` while the server is Unknown.
    pub fn reply(&self) -> Option<&HelloReply> {
        self.reply.as_deref()
    }

    /// Whether the two are equal by the specification's rule, which decides about events.
    ///
    /// Two differences from comparing every field marked (=): a PossiblePrimary is a rumour about an
    /// Unknown server and equals it, and addresses are not compared at all.
    pub fn is_equal(&self, other: &Self) -> bool {
        let rumourless = |kind| match kind {
            ServerType::PossiblePrimary => ServerType::Unknown,
            kind => kind,
        };
        rumourless(self.server_type) == rumourless(other.server_type)
            && self.topology_version == other.topology_version
            && self.error == other.error
            && match (&self.reply, &other.reply) {
                (None, None) => true,
                (Some(mine), Some(theirs)) => {
                    Arc::ptr_eq(mine, theirs) || replies_are_equal(mine, theirs)
                }
                _ => false,
            }
    }
}

/// The fields marked (=) that come from the reply. Cheap ones first: the lists almost never differ.
fn replies_are_equal(mine: &HelloReply, theirs: &HelloReply) -> bool {
    mine.wire_versions == theirs.wire_versions
        && mine.set_version == theirs.set_version
        && mine.election_id == theirs.election_id
        && mine.logical_session_timeout_minutes == theirs.logical_session_timeout_minutes
        && mine.iscryptd == theirs.iscryptd
        && mine.primary == theirs.primary
        && mine.me == theirs.me
        && mine.set_name == theirs.set_name
        && mine.hosts == theirs.hosts
        && mine.passives == theirs.passives
        && mine.arbiters == theirs.arbiters
        && mine.tags == theirs.tags
}

impl fmt::Display for ServerDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.address, self.server_type)?;
        if let Some(round_trip) = self.round_trip_time {
            write!(f, " rtt {:.1} ms", round_trip.as_secs_f64() * 1e3)?;
        }
        if let Some(error) = &self.error {
            write!(f, " ({error})")?;
        }
        Ok(())
    }
}

/// What is known about the durations of a server's hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RoundTrips {
    /// The exponentially weighted average.
    pub average: Option<Duration>,
    /// The minimum of the last ten; zero until there are two.
    pub minimum: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{CheckFailure, CheckFailureKind, ServerFault};
    use quorate_protocol::LastWrite;

    fn address(text: &str) -> ServerAddress {
        text.parse().unwrap()
    }

    fn secondary() -> HelloReply {
        HelloReply {
            ok: true,
            secondary: true,
            set_name: Some("rs".to_owned()),
            hosts: vec![address("a"), address("b")].into(),
            ..HelloReply::default()
        }
    }

    fn described(reply: HelloReply, at: u64) -> ServerDescription {
        let round_trips = RoundTrips {
            average: Some(Duration::from_millis(at)),
            minimum: Some(Duration::from_millis(at)),
        };
        ServerDescription::from_reply(
            address("a"),
            Arc::new(reply),
            round_trips,
            MonotonicTime::from_millis(at),
        )
    }

    /// "Server Description Equality": fields not marked (=) do not count.
    #[test]
    fn round_trips_times_and_last_writes_do_not_count() {
        let mut later = secondary();
        later.last_write =
            Some(LastWrite { op_time: None, last_write_date: Some(WallTime(1_000_000)) });
        assert!(described(secondary(), 1).is_equal(&described(later, 2)));
    }

    /// "Server Description Equality": every field marked (=) counts.
    #[test]
    fn each_marked_field_counts() {
        type Change = fn(&mut HelloReply);
        let changes: [(&str, Change); 14] = [
            ("type", |r| r.secondary = false),
            ("minWireVersion", |r| r.wire_versions.min = 1),
            ("maxWireVersion", |r| r.wire_versions.max = 21),
            ("me", |r| r.me = Some("a".parse().unwrap())),
            ("hosts", |r| r.hosts = r.hosts.iter().take(1).cloned().collect()),
            ("passives", |r| r.passives = vec!["c".parse().unwrap()].into()),
            ("arbiters", |r| r.arbiters = vec!["c".parse().unwrap()].into()),
            ("tags", |r| r.tags.insert("dc", "ny")),
            ("setName", |r| r.set_name = Some("other".to_owned())),
            ("electionId", |r| r.election_id = Some(ElectionId::from_term(1))),
            ("setVersion", |r| r.set_version = Some(SetVersion(2))),
            ("primary", |r| r.primary = Some("b".parse().unwrap())),
            ("logicalSessionTimeoutMinutes", |r| r.logical_session_timeout_minutes = Some(30)),
            ("topologyVersion", |r| {
                r.topology_version =
                    Some(TopologyVersion { process_id: ObjectId::default(), counter: 1 });
            }),
        ];
        for (field, change) in changes {
            let mut changed = secondary();
            change(&mut changed);
            assert!(!described(secondary(), 1).is_equal(&described(changed, 1)), "{field}");
        }
        let mut cryptd = secondary();
        cryptd.iscryptd = true;
        assert!(!described(secondary(), 1).is_equal(&described(cryptd, 1)));

        let failure = CheckFailure::new(CheckFailureKind::Network, "refused");
        let error = ServerError::new(ServerFault::Check(failure), MonotonicTime::ZERO);
        let failed = ServerDescription::failed(address("a"), error, None, None);
        assert!(!failed.is_equal(&ServerDescription::unknown(address("a"))));
    }

    #[test]
    fn a_rumoured_primary_equals_an_unknown_server() {
        let unknown = ServerDescription::unknown(address("a"));
        assert!(unknown.is_equal(&unknown.clone().into_possible_primary()));
    }

    #[test]
    fn a_reply_that_is_not_ok_leaves_nothing_but_unknown() {
        let mut reply = secondary();
        reply.ok = false;
        let description = described(reply, 1);
        assert_eq!(description.server_type(), ServerType::Unknown);
        assert_eq!(description.round_trip_time(), None);
        assert!(description.hosts().is_empty() && description.set_name().is_none());
    }
}
