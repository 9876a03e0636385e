//! The conclusion from a failed selection, and the next step.
//!
//! The specification asks only for an error. Which case it is follows from the kinds of servers,
//! their errors and what they say about each other, in the order of [`Verdict::of`]: the first
//! answer that explains everything wins. The words are in `verdict_text.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{MAX_VOTERS, ReadPreferenceMode, ServerAddress, TagSet};

use super::failure_kind::FailureKind;
use super::suitable::{StalenessClock, suitable};
use super::{SelectionCriteria, SelectionRequest};
use crate::fault::ServerFault;
use crate::removal::{Removal, RemovalReason};
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::{ServerType, TopologyType};

/// How many of the members' different tag sets are shown.
const MAX_SHOWN_TAG_SETS: usize = 5;

/// Why no server was found, as far as the client can know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The client does not speak the wire versions of a server.
    Incompatible {
        /// The prescribed text, which names the server.
        error: Arc<str>,
    },
    /// Every server turned out to belong to another set, or to none.
    EmptiedBySetName {
        /// The name that none of them has.
        expected: String,
        /// The names that they have, as far as remembered.
        found: Vec<String>,
    },
    /// There is nothing to connect to.
    NoServers,
    /// No check has ended, neither well nor badly.
    NeverChecked {
        /// How many servers wait for their first check.
        servers: usize,
    },
    /// No server is usable.
    AllFailing {
        /// The ways of failing and how many servers fail so, the most frequent first.
        failures: Vec<(FailureKind, usize)>,
        /// How many were not checked at all.
        never_checked: usize,
    },
    /// A server answered, but its set calls it otherwise; and what the set calls its members is of no
    /// use here.
    AdvertisedUnusable {
        /// The address that answered, and was dropped for it.
        answered: ServerAddress,
        /// What that server calls itself.
        me: ServerAddress,
    },
    /// The members that answer have no configuration.
    NeverInitiated {
        /// The members without a configuration.
        ghosts: Vec<ServerAddress>,
        /// The set's name in the connection string.
        set_name: Option<String>,
    },
    /// The members that answer hold no data.
    OnlyArbiters {
        /// How many they are.
        arbiters: usize,
    },
    /// The members that answer serve no reads at the moment.
    NothingReadable {
        /// How many they are.
        answering: usize,
    },
    /// A member names a primary that cannot be used from here.
    PrimaryUnusable {
        /// The primary.
        primary: ServerAddress,
        /// The member that says so.
        said_by: ServerAddress,
        /// What is wrong with it; `None` if it is not known here, or never checked.
        fault: Option<ServerFault>,
    },
    /// There is no primary.
    NoPrimary {
        /// How many members answer.
        answering: usize,
        /// How many members there are, by the largest list.
        members: usize,
    },
    /// Secondaries are wanted, and only the primary is there.
    NoSecondary,
    /// The members that would do are too stale.
    TooStale {
        /// What is allowed.
        max: Duration,
        /// How stale the freshest may be; `None` if no member tells.
        freshest: Option<Duration>,
    },
    /// The members that would do have other tags.
    TagsMatchNothing {
        /// Some of the tags they have.
        found: Vec<TagSet>,
    },
    /// The application's own selector refused every suitable server.
    RefusedBySelector {
        /// How many it was offered.
        offered: usize,
    },
    /// The servers that answer are no part of such a deployment.
    WrongKind {
        /// What the deployment should be.
        topology_type: TopologyType,
    },
    /// A server has become suitable since.
    SuitableNow {
        /// The server that has become suitable.
        server: ServerAddress,
    },
}

impl Verdict {
    pub(super) fn of(topology: &TopologyDescription, request: &SelectionRequest<'_>) -> Self {
        if let Some(error) = &topology.compatibility_error {
            return Self::Incompatible { error: error.clone() };
        }
        if topology.servers.is_empty() {
            return emptied(topology);
        }
        let suitable = suitable(topology, request.criteria, &[]);
        if let Some(server) = suitable.first() {
            return match request.selector {
                Some(_) => Self::RefusedBySelector { offered: suitable.len() },
                None => Self::SuitableNow { server: server.address().clone() },
            };
        }
        let census = Census::of(topology);
        if census.answering == 0 {
            return nothing_answers(topology);
        }
        if census.ghosts == census.answering {
            return Self::NeverInitiated {
                ghosts: of_kind(topology, ServerType::RsGhost)
                    .map(|ghost| ghost.address().clone())
                    .collect(),
                set_name: topology.set_name().map(str::to_owned),
            };
        }
        if census.arbiters == census.answering {
            return Self::OnlyArbiters { arbiters: census.arbiters };
        }
        if !topology.topology_type.is_replica_set() {
            return Self::WrongKind { topology_type: topology.topology_type };
        }
        match request.criteria {
            criteria if criteria.wants_primary() => no_primary(topology, &census),
            criteria => nothing_eligible(topology, &census, criteria),
        }
    }

    /// A short name for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Incompatible { .. } => "incompatible",
            Self::EmptiedBySetName { .. } => "emptied_by_set_name",
            Self::NoServers => "no_servers",
            Self::NeverChecked { .. } => "never_checked",
            Self::AllFailing { failures, .. } if failures.len() == 1 => "all_failing_alike",
            Self::AllFailing { .. } => "all_failing_differently",
            Self::AdvertisedUnusable { .. } => "advertised_unusable",
            Self::NeverInitiated { .. } => "never_initiated",
            Self::OnlyArbiters { .. } => "only_arbiters",
            Self::NothingReadable { .. } => "nothing_readable",
            Self::PrimaryUnusable { .. } => "primary_unusable",
            Self::NoPrimary { answering, members } => match *answering >= majority(*members) {
                true => "no_primary_elected",
                false => "no_majority",
            },
            Self::NoSecondary => "no_secondary",
            Self::TooStale { .. } => "too_stale",
            Self::TagsMatchNothing { .. } => "tags_match_nothing",
            Self::RefusedBySelector { .. } => "refused_by_selector",
            Self::WrongKind { .. } => "wrong_kind",
            Self::SuitableNow { .. } => "suitable_now",
        }
    }
}

/// How many servers there are of each sort that matters here.
#[derive(Default)]
struct Census {
    answering: usize,
    primaries: usize,
    secondaries: usize,
    arbiters: usize,
    ghosts: usize,
}

impl Census {
    fn of(topology: &TopologyDescription) -> Self {
        let mut census = Self::default();
        for server in topology.servers.iter() {
            let kind = server.server_type();
            census.answering += usize::from(kind.is_known());
            census.primaries += usize::from(kind == ServerType::RsPrimary);
            census.secondaries += usize::from(kind == ServerType::RsSecondary);
            census.arbiters += usize::from(kind == ServerType::RsArbiter);
            census.ghosts += usize::from(kind == ServerType::RsGhost);
        }
        census
    }
}

fn emptied(topology: &TopologyDescription) -> Verdict {
    let mut names: Vec<String> = Vec::new();
    let mut wanted = None;
    for removal in topology.removals() {
        if let RemovalReason::WrongSetName { expected, found } = &removal.reason {
            wanted = Some(expected);
            if let Some(name) = found
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
    }
    match wanted {
        Some(expected) => Verdict::EmptiedBySetName { expected: expected.clone(), found: names },
        None => Verdict::NoServers,
    }
}

fn nothing_answers(topology: &TopologyDescription) -> Verdict {
    let mut kinds = BTreeMap::new();
    let mut never_checked = 0;
    for server in topology.servers.iter() {
        match (server.error(), server.last_update_time()) {
            (None, None) => never_checked += 1,
            (error, _) => {
                let kind = FailureKind::of(error.map(|error| error.fault()));
                *kinds.entry(kind).or_insert(0) += 1;
            }
        }
    }
    if kinds.is_empty() {
        return Verdict::NeverChecked { servers: never_checked };
    }
    let gone = |removal: &&Removal| !topology.servers.contains(&removal.address);
    let renamed = topology.removals().iter().rev().filter(gone).find_map(known_otherwise);
    if let Some((answered, me)) = renamed {
        return Verdict::AdvertisedUnusable { answered: answered.clone(), me: me.clone() };
    }
    let mut failures: Vec<_> = kinds.into_iter().collect();
    failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Verdict::AllFailing { failures, never_checked }
}

/// A server that answered under one name and is a member under another: both names.
pub(super) fn known_otherwise(removal: &Removal) -> Option<(&ServerAddress, &ServerAddress)> {
    match &removal.reason {
        RemovalReason::CalledOtherwise { me } => Some((&removal.address, me)),
        RemovalReason::NotListedByPrimary { primary, me: Some(me) }
            if *primary == removal.address =>
        {
            Some((&removal.address, me))
        }
        _ => None,
    }
}

fn of_kind(
    topology: &TopologyDescription,
    kind: ServerType,
) -> impl Iterator<Item = &Arc<ServerDescription>> {
    topology.servers.iter().filter(move |server| server.server_type() == kind)
}

fn no_primary(topology: &TopologyDescription, census: &Census) -> Verdict {
    // The member checked last knows best.
    let rumour = topology
        .servers
        .iter()
        .filter_map(|server| server.primary().map(|primary| (server, primary)))
        .max_by_key(|(server, _)| server.last_update_time());
    if let Some((member, primary)) = rumour {
        let named = topology.server(primary);
        // A named primary that answers as something else has stepped down since.
        if named.is_none_or(|server| !server.server_type().is_known()) {
            return Verdict::PrimaryUnusable {
                primary: primary.clone(),
                said_by: member.address().clone(),
                fault: named.and_then(|server| server.error()).map(|error| error.fault().clone()),
            };
        }
    }
    let listed = topology.servers.iter().map(|server| server.members().count()).max();
    Verdict::NoPrimary {
        answering: census.answering,
        members: listed.unwrap_or(0).max(topology.servers.len()),
    }
}

fn nothing_eligible(
    topology: &TopologyDescription,
    census: &Census,
    criteria: SelectionCriteria<'_>,
) -> Verdict {
    let Some(preference) = criteria.read_preference() else {
        return no_primary(topology, census);
    };
    let with_primary = preference.mode == ReadPreferenceMode::Nearest;
    let candidates: Vec<_> = of_kind(topology, ServerType::RsSecondary)
        .chain(of_kind(topology, ServerType::RsPrimary).filter(|_| with_primary))
        .collect();
    if candidates.is_empty() {
        return match census.primaries {
            0 => Verdict::NothingReadable { answering: census.answering },
            _ => Verdict::NoSecondary,
        };
    }
    let clock = StalenessClock::of(topology);
    if let Some(max) = preference.max_staleness
        && !candidates.iter().any(|server| clock.admits(server, max))
    {
        let freshest = candidates.iter().filter_map(|server| clock.told(server)).min();
        return Verdict::TooStale { max, freshest };
    }
    let mut found: Vec<TagSet> = Vec::new();
    for server in candidates {
        if found.len() < MAX_SHOWN_TAG_SETS && !found.contains(server.tags()) {
            found.push(server.tags().clone());
        }
    }
    Verdict::TagsMatchNothing { found }
}

/// The votes a primary needs, if every member has one, of which there are at most seven.
pub(super) fn majority(members: usize) -> usize {
    members.min(MAX_VOTERS) / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::super::test_topology::{Member, address, failed, member, topology};
    use super::*;
    use crate::fault::CheckFailureKind;
    use quorate_protocol::ReadPreference;

    fn judged(
        kind: TopologyType,
        servers: impl IntoIterator<Item = ServerDescription>,
        request: SelectionRequest<'_>,
    ) -> (&'static str, String) {
        let verdict = Verdict::of(&topology(kind, servers), &request);
        (verdict.name(), verdict.to_string())
    }

    fn refused(host: &str) -> ServerDescription {
        failed(host, CheckFailureKind::Network, &format!("connect to {host}: refused"), 0)
    }

    fn secondary(host: &str) -> Member {
        member(host, ServerType::RsSecondary)
    }

    const NO_PRIMARY: TopologyType = TopologyType::ReplicaSetNoPrimary;
    const WITH_PRIMARY: TopologyType = TopologyType::ReplicaSetWithPrimary;

    #[test]
    fn never_checked_is_not_failed() {
        let unknown = |host| ServerDescription::unknown(address(host));
        let (name, text) =
            judged(TopologyType::Unknown, [unknown("a"), unknown("b")], SelectionRequest::WRITE);
        assert_eq!(name, "never_checked");
        assert!(text.starts_with("0 checks completed for 2 servers; is the runtime shut down?"));
    }

    #[test]
    fn the_same_failure_everywhere_has_one_remedy() {
        let down = [refused("a"), refused("b")];
        let (name, text) = judged(TopologyType::Unknown, down, SelectionRequest::WRITE);
        assert_eq!(name, "all_failing_alike");
        assert!(text.starts_with("each of the 2 servers cannot be reached; check that it runs"));
        let single = judged(TopologyType::Single, [refused("a")], SelectionRequest::WRITE);
        assert!(single.1.starts_with("the only server cannot be reached; "), "{}", single.1);
    }

    fn removed(host: &str, reason: RemovalReason) -> Removal {
        Removal { address: address(host), reason, at: quorate_protocol::MonotonicTime::ZERO }
    }

    /// Drivers drop the seeds and dial the advertised names, which may mean nothing here.
    #[test]
    fn a_seed_that_answered_and_was_dropped_for_its_name_is_told() {
        let mut set = topology(NO_PRIMARY, [refused("508be0425c52")]);
        let me = address("508be0425c52");
        for reason in [
            RemovalReason::CalledOtherwise { me: me.clone() },
            RemovalReason::NotListedByPrimary { primary: address("localhost"), me: Some(me) },
        ] {
            set.removals = Arc::new([removed("localhost", reason)]);
            let verdict = Verdict::of(&set, &SelectionRequest::WRITE);
            assert_eq!(verdict.name(), "advertised_unusable");
            let start = "localhost:27017 answered, but its set knows it as 508be0425c52:27017";
            assert!(verdict.to_string().starts_with(start), "{verdict}");
        }
        let other = RemovalReason::NotListedByPrimary { primary: address("p"), me: None };
        set.removals = Arc::new([removed("localhost", other)]);
        assert_eq!(Verdict::of(&set, &SelectionRequest::WRITE).name(), "all_failing_alike");
    }

    #[test]
    fn different_failures_are_counted() {
        let down = [
            failed("a", CheckFailureKind::NetworkTimeout, "timed out", 0),
            refused("b"),
            refused("c"),
            ServerDescription::unknown(address("d")),
        ];
        let (name, text) = judged(TopologyType::Unknown, down, SelectionRequest::WRITE);
        assert_eq!(name, "all_failing_differently");
        let told = "no server is usable: 2 × cannot be reached, 1 × does not answer in time, 1 × \
                    never checked; check that it runs";
        assert!(text.starts_with(told), "{text}");
    }

    #[test]
    fn a_minority_cannot_elect_and_a_majority_can() {
        let listing = |host: &str| {
            let members = ["a", "b", "c"].map(address).to_vec();
            secondary(host).reply(|reply| reply.hosts = members.into()).build()
        };
        let minority = [listing("a"), refused("b"), refused("c")];
        let (name, text) = judged(NO_PRIMARY, minority, SelectionRequest::WRITE);
        assert_eq!(name, "no_majority");
        assert!(text.contains("1 of 3 members answer, and an election needs 2 votes"), "{text}");
        let majority = [listing("a"), listing("b"), refused("c")];
        let (name, text) = judged(NO_PRIMARY, majority, SelectionRequest::WRITE);
        assert_eq!(name, "no_primary_elected");
        assert!(text.contains("2 of 3 members answer, enough to elect one (2 votes)"), "{text}");
    }

    #[test]
    fn a_primary_that_only_others_can_reach_is_named() {
        let told = secondary("a").reply(|reply| reply.primary = Some(address("p"))).build();
        let (name, text) = judged(NO_PRIMARY, [told, refused("p")], SelectionRequest::WRITE);
        assert_eq!(name, "primary_unusable");
        let start = "a:27017 says that p:27017 is the primary, which cannot be reached (connect to \
                     p: refused); check";
        assert!(text.starts_with(start), "{text}");
        // One that answers as a secondary has stepped down: an election, not a broken network.
        let told = secondary("a").reply(|reply| reply.primary = Some(address("b"))).build();
        let stepped_down = [told, secondary("b").build()];
        assert_eq!(
            judged(NO_PRIMARY, stepped_down, SelectionRequest::WRITE).0,
            "no_primary_elected"
        );
    }

    #[test]
    fn tags_that_match_nothing_are_told_beside_those_that_exist() {
        let preference = ReadPreference {
            tag_sets: vec![[("dc", "tokyo")].into_iter().collect()],
            ..ReadPreference::new(ReadPreferenceMode::Nearest)
        };
        let members = [
            member("a", ServerType::RsPrimary).tag("dc", "ny").build(),
            secondary("b").tag("dc", "sf").build(),
            secondary("c").tag("dc", "sf").build(),
        ];
        let (name, text) = judged(WITH_PRIMARY, members, SelectionRequest::read(&preference));
        assert_eq!(name, "tags_match_nothing");
        assert!(text.contains("they have {dc: sf} or {dc: ny}; correct the tags"), "{text}");
    }

    #[test]
    fn the_freshest_of_the_stale_is_told() {
        let preference = ReadPreference {
            max_staleness: Some(Duration::from_secs(90)),
            ..ReadPreference::new(ReadPreferenceMode::Secondary)
        };
        let primary = || member("a", ServerType::RsPrimary).wrote(1000).build();
        let members =
            [primary(), secondary("b").wrote(900).build(), secondary("c").wrote(1).build()];
        let (name, text) = judged(WITH_PRIMARY, members, SelectionRequest::read(&preference));
        assert_eq!(name, "too_stale");
        assert!(text.contains("the freshest may be 110 s behind; raise maxStaleness"), "{text}");
        let silent = [primary(), secondary("b").build()];
        let (_, text) = judged(WITH_PRIMARY, silent, SelectionRequest::read(&preference));
        assert!(
            text.ends_with("none tells when it last wrote; drop maxStalenessSeconds"),
            "{text}"
        );
    }

    #[test]
    fn a_set_that_was_never_initiated_gets_the_command() {
        let ghosts = ["a", "b"].map(|host| member(host, ServerType::RsGhost).build());
        let mut named = topology(TopologyType::Unknown, ghosts.clone());
        named.set_name = Some("rs0".into());
        let text = Verdict::of(&named, &SelectionRequest::WRITE).to_string();
        let command = "rs.initiate({_id: \"rs0\", members: [{_id: 0, host: \"a:27017\"}, {_id: 1, \
                       host: \"b:27017\"}]})";
        assert!(text.ends_with(command), "{text}");
        let (name, text) = judged(TopologyType::Unknown, ghosts, SelectionRequest::WRITE);
        assert_eq!(name, "never_initiated");
        assert!(text.ends_with("with the name they were started with (--replSet) for NAME"));
        let many = (0..9).map(|n| member(&format!("h{n}"), ServerType::RsGhost).build());
        let (_, text) = judged(TopologyType::Unknown, many, SelectionRequest::WRITE);
        assert!(text.ends_with("then rs.add(\"host:port\") for each of the 2 others"), "{text}");
    }

    #[test]
    fn members_without_data_are_told_apart() {
        let nearest = ReadPreference::new(ReadPreferenceMode::Nearest);
        let read = SelectionRequest::read(&nearest);
        let arbiter = member("a", ServerType::RsArbiter).build();
        assert_eq!(judged(NO_PRIMARY, [arbiter.clone(), refused("b")], read).0, "only_arbiters");
        let other = member("b", ServerType::RsOther).build();
        assert_eq!(judged(NO_PRIMARY, [arbiter, other], read).0, "nothing_readable");
        let only = ReadPreference::new(ReadPreferenceMode::Secondary);
        let primary = member("p", ServerType::RsPrimary).build();
        let read = SelectionRequest::read(&only);
        assert_eq!(judged(WITH_PRIMARY, [primary], read).0, "no_secondary");
    }

    #[test]
    fn an_empty_topology_is_explained_by_its_removals() {
        let mut emptied = topology(NO_PRIMARY, []);
        assert_eq!(Verdict::of(&emptied, &SelectionRequest::WRITE), Verdict::NoServers);
        let wrong = |found: Option<&str>| RemovalReason::WrongSetName {
            expected: "rs_dev".to_owned(),
            found: found.map(str::to_owned),
        };
        let names = [Some("rs0"), Some("rs0"), None];
        emptied.removals = names.map(|found| removed("a", wrong(found))).into();
        let text = Verdict::of(&emptied, &SelectionRequest::WRITE).to_string();
        let start = "every server was removed: replicaSet=rs_dev is wanted, they belong to rs0; ";
        assert!(text.starts_with(start), "{text}");
        emptied.removals = [removed("a", wrong(None))].into();
        let text = Verdict::of(&emptied, &SelectionRequest::WRITE).to_string();
        assert!(text.contains("replicaSet=rs_dev is wanted, they belong to no set; "), "{text}");
    }

    #[test]
    fn whoever_is_to_blame_is_named() {
        let mongos = member("m", ServerType::Mongos).build();
        let request =
            SelectionRequest { selector: Some(&|_| Vec::new()), ..SelectionRequest::WRITE };
        let (name, text) = judged(TopologyType::Sharded, [mongos.clone()], request);
        assert_eq!(name, "refused_by_selector");
        assert!(text.contains("refused all of 1 suitable server"), "{text}");
        let (name, _) = judged(TopologyType::Sharded, [mongos.clone()], SelectionRequest::WRITE);
        assert_eq!(name, "suitable_now");
        let standalone = member("s", ServerType::Standalone).build();
        let misplaced = judged(TopologyType::Sharded, [standalone], SelectionRequest::WRITE);
        assert_eq!(misplaced.0, "wrong_kind");
        let mut incompatible = topology(TopologyType::Sharded, [mongos]);
        incompatible.compatibility_error = Some("Server at m is too new".into());
        assert_eq!(Verdict::of(&incompatible, &SelectionRequest::WRITE).name(), "incompatible");
    }
}
