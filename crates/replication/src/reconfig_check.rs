//! Whether one configuration may follow another.
//!
//! Owns the rules that compare two documents and those about the set's present state
//! (docs/replication-rules.md#reconfiguration, MongoRaftReconfig). The quorum poll, the writing and the waiting are `reconfiguring`'s.

use std::collections::BTreeSet;

use quorate_protocol::{
    ConfigVersion, ErrorCode, MemberConfig, MemberId, OpTime, OpTimeAndWallTime, ReplicaSetConfig,
    ServerAddress, Term,
};

use crate::commit_point::{Acknowledged, majority_position};
use crate::config_check::{Allowances, ConfigError, require_self_electable, validate};
use crate::quorum::{Counts, implicit_default_write_concern, is_vote_majority};

/// Why a configuration may not follow the present one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReconfigError {
    /// The document itself is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `version` does not rise.
    #[error("version {new} does not follow {old}; read rs.conf() again and add one")]
    VersionNotNewer {
        /// The proposed one.
        new: i64,
        /// The present one.
        old: i64,
    },
    /// `replicaSetId` differs.
    #[error("settings.replicaSetId differs from that of this set; keep it as rs.conf() shows it")]
    ReplicaSetIdChanged,
    /// A host would get another `_id`.
    #[error("{host} is {old:?} and would become {new:?}; a host keeps its _id, or leaves first")]
    HostChangedId {
        /// The host.
        host: ServerAddress,
        /// Its present id.
        old: MemberId,
        /// The proposed id.
        new: MemberId,
    },
    /// `buildIndexes` or `arbiterOnly` would change.
    #[error("{0}: {1} never changes; remove the member and add it again")]
    Immutable(MemberId, &'static str),
    /// More than one vote would come or go.
    #[error("{0} voting members would be added or removed; change one at a time, or use force")]
    TooManyVotersChanged(usize),
    /// The implicit default write concern would change under the clients.
    #[error(
        "the implicit default write concern would change; set one with setDefaultRWConcern first"
    )]
    DefaultWriteConcernChanged,
    /// One data-bearing voter and an arbiter would get an electable secondary at once.
    #[error(
        "add the member with votes: 0 and priority: 0 first, then let it vote once it is copied"
    )]
    UnsafePsa,
    /// Rule 1 and 2: the present configuration is not on a majority.
    #[error("the present configuration {0} is not yet on a majority of voters of this term; wait")]
    NotInstalledOnMajority(ConfigVersion),
    /// Rule 3: entries committed before are not yet committed under the present configuration.
    #[error("{0} is not yet committed under the present configuration; wait for replication")]
    NotCommittedUnderConfig(OpTime),
    /// A member would vote that lacks what was committed with the votes of arbiters.
    #[error("{0} would vote and does not have {1} yet, which is committed; wait for replication")]
    NewVoterBehind(MemberId, OpTime),
    /// This member is not (yet, any more) a primary that accepts writes.
    #[error("only a primary that accepts writes changes the configuration; find it, or use force")]
    NotWritablePrimary,
    /// Another change is being made.
    #[error("another configuration is being installed; wait for it")]
    InProgress,
    /// There is no configuration to change.
    #[error("no configuration has been received; run rs.initiate() first")]
    NotYetInitialized,
    /// The poll of the members did not find enough of them.
    #[error("{0}; check that the listed members are up and reachable by those names")]
    QuorumNotFound(String),
    /// The member stopped being primary meanwhile.
    #[error("this member lost its office while it changed the configuration; find the new primary")]
    SteppedDown,
    /// The bound on the wait for a majority passed. The configuration stays.
    #[error("the new configuration is in force here but not yet on a majority; it was not undone")]
    MajorityInstallTimedOut,
}

impl ReconfigError {
    /// The error code.
    pub const fn code(&self) -> i32 {
        match self {
            Self::Config(error) => error.code(),
            Self::NotInstalledOnMajority(_)
            | Self::NotCommittedUnderConfig(_)
            | Self::NewVoterBehind(..) => ErrorCode::CURRENT_CONFIG_NOT_COMMITTED_YET.0,
            Self::NotWritablePrimary => ErrorCode::NOT_WRITABLE_PRIMARY.0,
            Self::InProgress => ErrorCode::CONFIGURATION_IN_PROGRESS.0,
            Self::NotYetInitialized => ErrorCode::NOT_YET_INITIALIZED.0,
            Self::QuorumNotFound(_) => ErrorCode::NODE_NOT_FOUND.0,
            Self::SteppedDown => ErrorCode::PRIMARY_STEPPED_DOWN.0,
            Self::MajorityInstallTimedOut => ErrorCode::MAX_TIME_MS_EXPIRED.0,
            _ => ErrorCode::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE.0,
        }
    }
}

/// How a reconfiguration was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal<'a> {
    /// The present configuration.
    pub old: &'a ReplicaSetConfig,
    /// The proposed one.
    pub new: &'a ReplicaSetConfig,
    /// `force: true`.
    pub force: bool,
    /// Whether a cluster-wide default write concern was set.
    pub default_write_concern_set: bool,
}

/// Whether the documents allow it: rules 4 and 5, and the immutable fields.
///
/// # Errors
///
/// The first rule that is broken.
pub fn check_documents(
    proposal: Proposal<'_>,
    set_name: &str,
    allowances: Allowances,
    own_addresses: &[ServerAddress],
) -> Result<(), ReconfigError> {
    let Proposal { old, new, force, default_write_concern_set } = proposal;
    validate(new, set_name, allowances)?;
    if new.version <= old.version {
        return Err(ReconfigError::VersionNotNewer { new: new.version, old: old.version });
    }
    if old.settings.replica_set_id != new.settings.replica_set_id {
        return Err(ReconfigError::ReplicaSetIdChanged);
    }
    for member in &new.members {
        if let Some(before) = old.member_at(&member.host) {
            if before.id != member.id {
                let (host, old, new) = (member.host.clone(), before.id, member.id);
                return Err(ReconfigError::HostChangedId { host, old, new });
            }
            if before.build_indexes != member.build_indexes {
                return Err(ReconfigError::Immutable(member.id, "buildIndexes"));
            }
            if before.arbiter_only != member.arbiter_only {
                return Err(ReconfigError::Immutable(member.id, "arbiterOnly"));
            }
        }
    }
    if force {
        return Ok(());
    }
    let changed = voters_changed(old, new);
    if changed > 1 {
        return Err(ReconfigError::TooManyVotersChanged(changed));
    }
    // Judged by the votes that were asked for: a change that is refused is refused when it is made,
    // not when the mark of a newly added member is cleared.
    let (before, after) = (without_marks(old), without_marks(new));
    if !default_write_concern_set
        && implicit_default_write_concern(&before) != implicit_default_write_concern(&after)
    {
        return Err(ReconfigError::DefaultWriteConcernChanged);
    }
    if makes_unsafe_psa(&before, &after) {
        return Err(ReconfigError::UnsafePsa);
    }
    require_self_electable(new, own_addresses)?;
    Ok(())
}

fn without_marks(config: &ReplicaSetConfig) -> ReplicaSetConfig {
    let mut config = config.clone();
    for member in &mut config.members {
        member.newly_added = false;
    }
    config
}

/// How many voters, by id, come or go: by the votes that count, or by those that were asked for,
/// whichever are more. A member marked `newlyAdded` asks for a vote that does not count yet, so both
/// the adding and the later clearing of the mark are one change each.
pub(crate) fn voters_changed(old: &ReplicaSetConfig, new: &ReplicaSetConfig) -> usize {
    let count = |votes: fn(&MemberConfig) -> bool| {
        let ids = |config: &ReplicaSetConfig| -> BTreeSet<MemberId> {
            config.members.iter().filter(|member| votes(member)).map(|member| member.id).collect()
        };
        ids(old).symmetric_difference(&ids(new)).count()
    };
    count(MemberConfig::is_voter).max(count(|member| member.votes > 0))
}

/// The members with data whose votes begin to count where arbiters make fewer copies commit than votes elect. Such a member
/// and the arbiters can elect it, and no copy that committed need be among them.
pub(crate) fn voters_gained_beside_arbiters(
    old: &ReplicaSetConfig,
    new: &ReplicaSetConfig,
) -> Vec<MemberId> {
    let counts = Counts::of(old);
    if counts.write_majority >= counts.majority_vote {
        return Vec::new();
    }
    let voted = |id: MemberId| old.member(id).is_some_and(MemberConfig::is_voter);
    let gained = new.voters().filter(|member| !member.arbiter_only && !voted(member.id));
    gained.map(|member| member.id).collect()
}

// A committed write of the one data-bearing voter is on one member only. Were a second, empty one
// electable at once, it could be elected with the arbiter's vote and lose that write.
fn makes_unsafe_psa(old: &ReplicaSetConfig, new: &ReplicaSetConfig) -> bool {
    let shape = |config: &ReplicaSetConfig| {
        let data: Vec<MemberId> =
            config.voters().filter(|m| !m.arbiter_only).map(|m| m.id).collect();
        let arbiters = config.voters().filter(|m| m.arbiter_only).count();
        (data, arbiters)
    };
    let (old_data, _) = shape(old);
    let (new_data, new_arbiters) = shape(new);
    old_data.len() == 1
        && new_data.len() == 2
        && new_arbiters == 1
        && new.voters().any(|member| !old_data.contains(&member.id) && member.is_electable())
}

/// What the primary knows of the set when it is asked for a safe reconfiguration.
pub(crate) struct SetState<'a> {
    /// The present configuration.
    pub config: &'a ReplicaSetConfig,
    /// The primary's term.
    pub term: Term,
    /// What was committed when the present configuration was installed.
    pub committed_at_install: OpTimeAndWallTime,
    /// The primary's new-primary no-op.
    pub first_of_term: OpTime,
}

/// Whether the set has settled on the present configuration: rules 1 to 3.
///
/// `installed` gives each voter's configuration and term, as last heard. The error is 308 with what
/// is still to be waited for.
pub(crate) fn check_settled(
    state: &SetState<'_>,
    installed: impl Fn(MemberId) -> Option<(ConfigVersion, Term)>,
    position: impl Fn(MemberId) -> Acknowledged,
) -> Result<(), ReconfigError> {
    let wanted = state.config.config_version();
    // The true majority: two stored server versions halve it twice, which the proof does not carry.
    let on_majority =
        is_vote_majority(state.config, |member| installed(member.id) == Some((wanted, state.term)));
    if !on_majority {
        return Err(ReconfigError::NotInstalledOnMajority(wanted));
    }
    let floor = state.committed_at_install.op_time.max(state.first_of_term);
    if majority_position(state.config, position).op_time < floor {
        return Err(ReconfigError::NotCommittedUnderConfig(floor));
    }
    Ok(())
}

#[cfg(test)]
#[path = "reconfig_check_tests.rs"]
mod tests;
