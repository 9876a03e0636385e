//! How a read preference travels with a command.
//!
//! Follows "Passing read preference to mongos and load balancers", "Topology type: Single" and "Read
//! operations" of the Server Selection specification. The values here know no BSON; the code that builds
//! the command writes them out under the names given with each field.

use std::time::Duration;

use quorate_protocol::{ReadPreference, ReadPreferenceMode, TagSet};

use crate::types::{ServerType, TopologyType};

/// The content of `$readPreference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPreferenceArgument<'a> {
    /// `mode`.
    pub mode: ReadPreferenceMode,
    /// `tags`: an array of documents; left out when empty.
    pub tags: &'a [TagSet],
    /// `maxStalenessSeconds`.
    pub max_staleness_seconds: Option<u64>,
    /// `hedge: {enabled: …}`.
    pub hedge: Option<bool>,
}

impl<'a> ReadPreferenceArgument<'a> {
    /// By "Document structure": mode primary has no other fields, and `tags` is never empty.
    fn of(preference: &'a ReadPreference) -> Self {
        if preference.mode == ReadPreferenceMode::Primary {
            return Self::of_mode(preference.mode);
        }
        let tags: &[TagSet] = match preference.tag_sets.as_slice() {
            // The default, `[{}]`: the same as saying nothing.
            [only] if only.is_empty() => &[],
            tags => tags,
        };
        Self {
            mode: preference.mode,
            tags,
            max_staleness_seconds: preference.max_staleness.map(whole_seconds),
            hedge: preference.hedge,
        }
    }

    const fn of_mode(mode: ReadPreferenceMode) -> Self {
        Self { mode, tags: &[], max_staleness_seconds: None, hedge: None }
    }

    fn is_mode_alone(&self) -> bool {
        self.tags.is_empty() && self.max_staleness_seconds.is_none() && self.hedge.is_none()
    }
}

/// Rounded up: the server must not be stricter than the client was.
fn whole_seconds(staleness: Duration) -> u64 {
    staleness.as_secs().saturating_add(u64::from(staleness.subsec_nanos() > 0))
}

/// How a read preference travels with an OP_QUERY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpQueryReadPreference<'a> {
    /// The wire protocol flag `SecondaryOk`.
    pub secondary_ok: bool,
    /// The `$readPreference` modifier; with it, the query itself goes under `$query`.
    pub argument: Option<ReadPreferenceArgument<'a>>,
}

/// The `$readPreference` of a read sent by OP_MSG to a selected server; `None` to send none.
///
/// Writes never carry one. No preference of the application's means mode primary.
pub fn read_preference_for_op_msg(
    topology_type: TopologyType,
    server_type: ServerType,
    preference: Option<&ReadPreference>,
) -> Option<ReadPreferenceArgument<'_>> {
    let asked = preference.filter(|preference| preference.mode != ReadPreferenceMode::Primary);
    match recipient(topology_type, server_type) {
        Recipient::Standalone => None,
        Recipient::Router | Recipient::Member => asked.map(ReadPreferenceArgument::of),
        // Any member must answer when it is the only one the user wants to talk to.
        Recipient::OnlyMember => Some(asked.map_or(
            ReadPreferenceArgument::of_mode(ReadPreferenceMode::PrimaryPreferred),
            ReadPreferenceArgument::of,
        )),
    }
}

/// The flag and the modifier of a read sent by OP_QUERY to a selected server.
pub fn read_preference_for_op_query(
    topology_type: TopologyType,
    server_type: ServerType,
    preference: Option<&ReadPreference>,
) -> OpQueryReadPreference<'_> {
    let asked = preference.filter(|preference| preference.mode != ReadPreferenceMode::Primary);
    match recipient(topology_type, server_type) {
        Recipient::Standalone => OpQueryReadPreference { secondary_ok: false, argument: None },
        Recipient::Member => {
            OpQueryReadPreference { secondary_ok: asked.is_some(), argument: None }
        }
        Recipient::OnlyMember => OpQueryReadPreference { secondary_ok: true, argument: None },
        Recipient::Router => {
            // Old routers know the flag but not the modifier, and the flag alone means
            // secondaryPreferred to them.
            let argument = asked.map(ReadPreferenceArgument::of).filter(|argument| {
                argument.mode != ReadPreferenceMode::SecondaryPreferred || !argument.is_mode_alone()
            });
            OpQueryReadPreference { secondary_ok: asked.is_some(), argument }
        }
    }
}

enum Recipient {
    /// A mongos, or a load balancer with mongoses behind it.
    Router,
    /// A member chosen from its set.
    Member,
    /// A member connected to directly.
    OnlyMember,
    /// A server that would not understand.
    Standalone,
}

fn recipient(topology_type: TopologyType, server_type: ServerType) -> Recipient {
    match (topology_type, server_type) {
        (_, ServerType::Mongos | ServerType::LoadBalancer) => Recipient::Router,
        (_, ServerType::Standalone) => Recipient::Standalone,
        (TopologyType::Single, _) => Recipient::OnlyMember,
        _ => Recipient::Member,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReadPreferenceMode as Mode;

    fn tagged(mode: Mode) -> ReadPreference {
        ReadPreference {
            tag_sets: vec![[("dc", "ny")].into_iter().collect()],
            ..ReadPreference::new(mode)
        }
    }

    /// "For OP_MSG": primary sets nothing, every other mode sets `$readPreference`.
    #[test]
    fn routers_are_told_every_mode_but_primary() {
        for (topology, server) in [
            (TopologyType::Sharded, ServerType::Mongos),
            (TopologyType::Single, ServerType::Mongos),
            (TopologyType::LoadBalanced, ServerType::LoadBalancer),
        ] {
            assert_eq!(read_preference_for_op_msg(topology, server, None), None);
            for mode in Mode::ALL {
                let preference = ReadPreference::new(mode);
                let sent = read_preference_for_op_msg(topology, server, Some(&preference));
                assert_eq!(sent.map(|sent| sent.mode), Some(mode).filter(|m| *m != Mode::Primary));
            }
        }
    }

    /// "For OP_QUERY": the five rules.
    #[test]
    fn old_routers_get_the_flag_and_seldom_the_modifier() {
        let sent = |preference: &ReadPreference| {
            let sent = read_preference_for_op_query(
                TopologyType::Sharded,
                ServerType::Mongos,
                Some(preference),
            );
            (sent.secondary_ok, sent.argument.map(|argument| argument.mode))
        };
        let plain = |mode| sent(&ReadPreference::new(mode));
        assert_eq!(plain(Mode::Primary), (false, None));
        assert_eq!(plain(Mode::Secondary), (true, Some(Mode::Secondary)));
        assert_eq!(plain(Mode::PrimaryPreferred), (true, Some(Mode::PrimaryPreferred)));
        assert_eq!(plain(Mode::SecondaryPreferred), (true, None));
        assert_eq!(plain(Mode::Nearest), (true, Some(Mode::Nearest)));

        let modified = (true, Some(Mode::SecondaryPreferred));
        assert_eq!(sent(&tagged(Mode::SecondaryPreferred)), modified);
        let plain = ReadPreference::new(Mode::SecondaryPreferred);
        let stale =
            ReadPreference { max_staleness: Some(Duration::from_secs(120)), ..plain.clone() };
        assert_eq!(sent(&stale), modified);
        assert_eq!(sent(&ReadPreference { hedge: Some(false), ..plain.clone() }), modified);
        assert_eq!(sent(&ReadPreference { tag_sets: vec![TagSet::EMPTY], ..plain }), (true, None));
    }

    /// "Topology type: Single".
    #[test]
    fn a_direct_connection_reads_from_whatever_is_there() {
        let primary = ReadPreference::PRIMARY;
        for server in [ServerType::RsPrimary, ServerType::RsSecondary, ServerType::RsOther] {
            for asked in [None, Some(&primary)] {
                let sent = read_preference_for_op_msg(TopologyType::Single, server, asked);
                let told = ReadPreferenceArgument::of_mode(Mode::PrimaryPreferred);
                assert_eq!(sent, Some(told));
                let query = read_preference_for_op_query(TopologyType::Single, server, asked);
                assert_eq!((query.secondary_ok, query.argument), (true, None));
            }
            let nearest = tagged(Mode::Nearest);
            let sent = read_preference_for_op_msg(TopologyType::Single, server, Some(&nearest));
            assert_eq!(sent.map(|sent| (sent.mode, sent.tags.len())), Some((Mode::Nearest, 1)));
        }
    }

    #[test]
    fn a_standalone_is_told_nothing() {
        let nearest = ReadPreference::new(Mode::Nearest);
        let (topology, server) = (TopologyType::Single, ServerType::Standalone);
        assert_eq!(read_preference_for_op_msg(topology, server, Some(&nearest)), None);
        let query = read_preference_for_op_query(topology, server, Some(&nearest));
        assert_eq!((query.secondary_ok, query.argument), (false, None));
    }

    /// "Read operations": set for every mode but primary, on OP_QUERY by the flag alone.
    #[test]
    fn members_of_a_set_are_told_every_mode_but_primary() {
        let (topology, server) = (TopologyType::ReplicaSetWithPrimary, ServerType::RsSecondary);
        for mode in Mode::ALL {
            let preference = ReadPreference::new(mode);
            let told = mode != Mode::Primary;
            let sent = read_preference_for_op_msg(topology, server, Some(&preference));
            assert_eq!(sent.is_some(), told);
            let query = read_preference_for_op_query(topology, server, Some(&preference));
            assert_eq!((query.secondary_ok, query.argument), (told, None));
        }
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(90_000)), 90);
        assert_eq!(whole_seconds(Duration::from_millis(90_001)), 91);
    }
}
