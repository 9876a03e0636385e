//! Whether a configuration document is sound by itself, and sound as the first one of a set.
//!
//! Owns the limits of every field (docs/replication-rules.md#configuration). Whether one configuration may
//! follow another is
//! `reconfig_check`'s to say.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{
    ErrorCode, MAX_VOTERS, MemberConfig, MemberId, ReplicaSetConfig, ServerAddress,
};

/// The most members of a set.
pub(crate) const MAX_MEMBERS: usize = 50;
/// The highest `members[]._id`.
pub(crate) const MAX_MEMBER_ID: i32 = 255;
/// The highest priority.
pub(crate) const MAX_PRIORITY: f64 = 1000.0;
/// The longest `secondaryDelaySecs`: 366 days.
pub(crate) const MAX_SECONDARY_DELAY_SECS: i64 = 31_622_400;
/// The highest `version`.
pub(crate) const MAX_CONFIG_VERSION: i64 = i32::MAX as i64;
/// The horizon that every member has without saying so.
pub(crate) const DEFAULT_HORIZON: &str = "__default";

/// What is wrong with a configuration. Its author is at fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The set name is not the one the member was started for.
    #[error(
        "_id is {found:?} but this member was started with --replset {expected:?}; use one name"
    )]
    SetName {
        /// In the document.
        found: String,
        /// At start-up.
        expected: String,
    },
    /// `version` out of range.
    #[error("version {0} is not from 1 to {MAX_CONFIG_VERSION}")]
    Version(i64),
    /// `version` of a first configuration.
    #[error("version is {0}; the first configuration of a set has version 1")]
    FirstVersion(i64),
    /// `protocolVersion` is not 1.
    #[error("protocolVersion {0} is not supported; only 1 is")]
    ProtocolVersion(i64),
    /// Too few or too many members.
    #[error("{0} members; a set has from 1 to {MAX_MEMBERS}")]
    MemberCount(usize),
    /// Too few or too many voters.
    #[error("{0} voting members; a set has from 1 to {MAX_VOTERS}; set votes: 0 on some")]
    VoterCount(usize),
    /// No member could ever be elected.
    #[error("no member can be elected; give one that is no arbiter a priority above 0")]
    NoElectableMember,
    /// More than one arbiter.
    #[error("{0} arbiters; more than one is refused unless allowMultipleArbiters is set")]
    TooManyArbiters(usize),
    /// `_id` out of range.
    #[error("member _id {0} is not from 0 to {MAX_MEMBER_ID}")]
    MemberIdRange(i32),
    /// Two members of one `_id`.
    #[error("two members have _id {0:?}; each needs its own")]
    DuplicateId(MemberId),
    /// Two members of one host.
    #[error("two members have host {0}; each needs its own")]
    DuplicateHost(ServerAddress),
    /// Some members are at localhost and some are not.
    #[error("either all members are at localhost or none; {0} would not be found by the others")]
    MixedLocalhost(ServerAddress),
    /// `priority` out of range.
    #[error("{0}: priority {1} is not from 0 to {MAX_PRIORITY}")]
    PriorityRange(MemberId, f64),
    /// `votes` is neither 0 nor 1.
    #[error("{0}: votes {1} is neither 0 nor 1")]
    VotesRange(MemberId, i64),
    /// `secondaryDelaySecs` out of range.
    #[error("{0}: secondaryDelaySecs {1} is not from 0 to {MAX_SECONDARY_DELAY_SECS}")]
    DelayRange(MemberId, i64),
    /// An electable member must be ordinary in a certain way.
    #[error("{0}: a member with priority above 0 {1}; set priority: 0 or change that")]
    ElectableMust(MemberId, &'static str),
    /// An arbiter must be plain in a certain way.
    #[error("{0}: an arbiter {1}")]
    ArbiterMust(MemberId, &'static str),
    /// A number in `settings` that must be positive.
    #[error("settings.{0} is {1}; it must be above 0")]
    SettingNotPositive(&'static str, i64),
    /// A number in `settings` that may be −1.
    #[error("settings.{0} is {1}; it must be -1 or more")]
    SettingBelowMinusOne(&'static str, i64),
    /// `replicaSetId` at initiation.
    #[error("settings.replicaSetId is made by the set itself; leave it out")]
    ReplicaSetIdGiven,
    /// A mode that asks for an impossible number of a tag's values.
    #[error("settings.getLastErrorModes.{mode}.{tag} wants {wanted} values; {present} are tagged")]
    ModeUnsatisfiable {
        /// The mode.
        mode: String,
        /// The tag.
        tag: String,
        /// How many it wants.
        wanted: i64,
        /// How many there are.
        present: usize,
    },
    /// The name of a mode that every set already has.
    #[error("settings.getLastErrorModes.{0} is a reserved name; choose another")]
    ModeReserved(String),
    /// Members that do not share one list of horizons.
    #[error("{0}: its horizons differ from those of the other members; give all the same names")]
    HorizonNames(MemberId),
    /// The reserved horizon.
    #[error("{0}: {DEFAULT_HORIZON} is a reserved horizon; the host field is what it means")]
    HorizonReserved(MemberId),
    /// One address twice.
    #[error("{0} is used twice among hosts and horizons; each address names one member")]
    HorizonDuplicate(ServerAddress),
    /// This member is not in the document.
    #[error("none of the members is this one ({0}); list the name the others reach it by")]
    SelfMissing(String),
    /// This member may not be elected.
    #[error("{0} is this member and cannot be elected; send the command to one that can")]
    SelfNotElectable(MemberId),
}

impl ConfigError {
    /// The error code.
    pub const fn code(&self) -> i32 {
        match self {
            Self::SelfMissing(_) => ErrorCode::NODE_NOT_FOUND.0,
            Self::SelfNotElectable(_) => ErrorCode::NODE_NOT_ELECTABLE.0,
            Self::FirstVersion(_) => ErrorCode::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE.0,
            _ => ErrorCode::INVALID_REPLICA_SET_CONFIG.0,
        }
    }
}

/// What the administrator allows beyond the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowances {
    /// `allowMultipleArbiters`.
    pub multiple_arbiters: bool,
}

/// Whether the document is sound by itself. The error is the first thing that is wrong with it.
pub(crate) fn validate(
    config: &ReplicaSetConfig,
    set_name: &str,
    allowances: Allowances,
) -> Result<(), ConfigError> {
    if config.set_name != set_name {
        return Err(ConfigError::SetName {
            found: config.set_name.clone(),
            expected: set_name.to_owned(),
        });
    }
    if !(1..=MAX_CONFIG_VERSION).contains(&config.version) {
        return Err(ConfigError::Version(config.version));
    }
    if config.protocol_version != 1 {
        return Err(ConfigError::ProtocolVersion(config.protocol_version));
    }
    if config.members.is_empty() || config.members.len() > MAX_MEMBERS {
        return Err(ConfigError::MemberCount(config.members.len()));
    }
    config.members.iter().try_for_each(check_member)?;
    check_members_together(config, allowances)?;
    check_settings(config)?;
    check_horizons(config)
}

/// What is allowed and most likely a mistake, in words for an administrator.
pub fn warnings(config: &ReplicaSetConfig) -> Vec<String> {
    let settings = &config.settings;
    let (election, heartbeat) =
        (settings.election_timeout_millis, settings.heartbeat_interval_millis);
    let mut warnings = Vec::new();
    // An idle primary sends one heartbeat per interval.
    if election <= heartbeat {
        warnings.push(format!(
            "electionTimeoutMillis ({election}) is not above heartbeatIntervalMillis ({heartbeat}): \
             a healthy primary that is idle will be challenged between two heartbeats; make it at \
             least twice the interval"
        ));
    }
    warnings
}

/// Whether the document may be the first of a set, and which of its members is this one. The error
/// is the first thing that is wrong with it.
pub(crate) fn validate_for_initiate(
    config: &ReplicaSetConfig,
    set_name: &str,
    allowances: Allowances,
    own_addresses: &[ServerAddress],
) -> Result<MemberId, ConfigError> {
    validate(config, set_name, allowances)?;
    if config.version != 1 {
        return Err(ConfigError::FirstVersion(config.version));
    }
    if config.settings.replica_set_id.is_some() {
        return Err(ConfigError::ReplicaSetIdGiven);
    }
    require_self_electable(config, own_addresses)
}

/// This member in the document. Fails if it is not there or cannot be elected.
pub(crate) fn require_self_electable(
    config: &ReplicaSetConfig,
    own_addresses: &[ServerAddress],
) -> Result<MemberId, ConfigError> {
    let own = find_self(config, own_addresses).ok_or_else(|| {
        let names: Vec<&str> = own_addresses.iter().map(ServerAddress::as_str).collect();
        ConfigError::SelfMissing(names.join(", "))
    })?;
    if own.is_electable() { Ok(own.id) } else { Err(ConfigError::SelfNotElectable(own.id)) }
}

/// The member of the document that listens at one of these addresses.
pub(crate) fn find_self<'a>(
    config: &'a ReplicaSetConfig,
    own_addresses: &[ServerAddress],
) -> Option<&'a MemberConfig> {
    config.members.iter().find(|member| own_addresses.contains(&member.host))
}

fn check_member(member: &MemberConfig) -> Result<(), ConfigError> {
    let id = member.id;
    if !(0..=MAX_MEMBER_ID).contains(&id.0) {
        return Err(ConfigError::MemberIdRange(id.0));
    }
    let priority = member.priority.0;
    if !(0.0..=MAX_PRIORITY).contains(&priority) {
        return Err(ConfigError::PriorityRange(id, priority));
    }
    if !(0..=1).contains(&member.votes) {
        return Err(ConfigError::VotesRange(id, member.votes));
    }
    if !(0..=MAX_SECONDARY_DELAY_SECS).contains(&member.secondary_delay_secs) {
        return Err(ConfigError::DelayRange(id, member.secondary_delay_secs));
    }
    if member.arbiter_only {
        let must = |broken, rule| {
            if broken { Err(ConfigError::ArbiterMust(id, rule)) } else { Ok(()) }
        };
        must(member.votes != 1, "has exactly one vote")?;
        must(!member.tags.is_empty(), "has no tags")?;
        must(priority > 0.0, "has priority 0")?;
        must(member.hidden, "is never hidden")?;
        must(member.secondary_delay_secs > 0, "has no data to delay")?;
        return must(!member.build_indexes, "has no indexes to leave out");
    }
    if priority > 0.0 {
        let must = |broken, rule| {
            if broken { Err(ConfigError::ElectableMust(id, rule)) } else { Ok(()) }
        };
        must(member.votes == 0, "must vote")?;
        must(member.hidden, "must not be hidden")?;
        must(member.secondary_delay_secs > 0, "must not be delayed")?;
        must(!member.build_indexes, "must build indexes")?;
    }
    Ok(())
}

fn check_members_together(
    config: &ReplicaSetConfig,
    allowances: Allowances,
) -> Result<(), ConfigError> {
    let mut ids = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    for member in &config.members {
        if !ids.insert(member.id) {
            return Err(ConfigError::DuplicateId(member.id));
        }
        if !hosts.insert(&member.host) {
            return Err(ConfigError::DuplicateHost(member.host.clone()));
        }
    }
    let local = |member: &&MemberConfig| is_localhost(&member.host);
    let locals = config.members.iter().filter(local).count();
    if locals != 0
        && locals != config.members.len()
        && let Some(member) = config.members.iter().find(local)
    {
        return Err(ConfigError::MixedLocalhost(member.host.clone()));
    }
    // `newlyAdded` is the set's own business: the limits are about the votes that were asked for.
    let voters = config.members.iter().filter(|member| member.votes > 0).count();
    if voters == 0 || voters > MAX_VOTERS {
        return Err(ConfigError::VoterCount(voters));
    }
    if !config.members.iter().any(MemberConfig::is_electable) {
        return Err(ConfigError::NoElectableMember);
    }
    let arbiters = config.members.iter().filter(|member| member.arbiter_only).count();
    if arbiters > 1 && !allowances.multiple_arbiters {
        return Err(ConfigError::TooManyArbiters(arbiters));
    }
    Ok(())
}

fn is_localhost(address: &ServerAddress) -> bool {
    address.is_unix()
        || matches!(address.host(), "localhost" | "::1" | "ip6-localhost")
        || address.host().starts_with("127.")
}

fn check_settings(config: &ReplicaSetConfig) -> Result<(), ConfigError> {
    let settings = &config.settings;
    for (name, value) in [
        ("heartbeatIntervalMillis", settings.heartbeat_interval_millis),
        ("heartbeatTimeoutSecs", settings.heartbeat_timeout_secs),
        ("electionTimeoutMillis", settings.election_timeout_millis),
    ] {
        if value <= 0 {
            return Err(ConfigError::SettingNotPositive(name, value));
        }
    }
    for (name, value) in [
        ("catchUpTimeoutMillis", settings.catch_up_timeout_millis),
        ("catchUpTakeoverDelayMillis", settings.catch_up_takeover_delay_millis),
    ] {
        if value < -1 {
            return Err(ConfigError::SettingBelowMinusOne(name, value));
        }
    }
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for member in &config.members {
        for (tag, value) in member.tags.iter() {
            values.entry(tag).or_default().insert(value);
        }
    }
    for (mode, tags) in &settings.get_last_error_modes {
        if mode.is_empty() || mode == "majority" {
            return Err(ConfigError::ModeReserved(mode.clone()));
        }
        for (tag, &wanted) in tags {
            let present = values.get(tag.as_str()).map_or(0, BTreeSet::len);
            let possible = wanted > 0 && usize::try_from(wanted).is_ok_and(|n| n <= present);
            if !possible {
                let (mode, tag) = (mode.clone(), tag.clone());
                return Err(ConfigError::ModeUnsatisfiable { mode, tag, wanted, present });
            }
        }
    }
    Ok(())
}

fn check_horizons(config: &ReplicaSetConfig) -> Result<(), ConfigError> {
    let Some(first) = config.members.first() else { return Ok(()) };
    let mut used: BTreeSet<&ServerAddress> = config.members.iter().map(|m| &m.host).collect();
    for member in &config.members {
        if member.horizons.contains_key(DEFAULT_HORIZON) {
            return Err(ConfigError::HorizonReserved(member.id));
        }
        if !member.horizons.keys().eq(first.horizons.keys()) {
            return Err(ConfigError::HorizonNames(member.id));
        }
        for address in member.horizons.values() {
            if !used.insert(address) {
                return Err(ConfigError::HorizonDuplicate(address.clone()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "config_check_tests.rs"]
mod tests;
