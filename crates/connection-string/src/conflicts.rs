//! Combinations of options that the specifications forbid: "URI Options" (TLS, direct connection),
//! "Load Balancer Support", "Initial DNS Seedlist Discovery", "SOCKS5 Support", "Server Selection",
//! "Max Staleness", "Read and Write Concern" and "Connection Monitoring and Pooling".
//!
//! Checked once after reading a string, and again when TXT records have added to it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use quorate_protocol::{ReadPreferenceMode, TagSet};

use crate::error::ParseError;
use crate::options::{Limit, Options, WriteAcknowledgement};

/// Where the seeds come from, as far as options care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeedKind {
    /// This many hosts.
    Hosts(usize),
    /// DNS.
    Srv,
}

/// TLS options of which no two may appear together, whatever their values.
const EXCLUSIVE_TLS: [(&str, &str); 7] = [
    ("tlsInsecure", "tlsAllowInvalidCertificates"),
    ("tlsInsecure", "tlsAllowInvalidHostnames"),
    ("tlsInsecure", "tlsDisableOCSPEndpointCheck"),
    ("tlsInsecure", "tlsDisableCertificateRevocationCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableOCSPEndpointCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableCertificateRevocationCheck"),
    ("tlsDisableOCSPEndpointCheck", "tlsDisableCertificateRevocationCheck"),
];

/// Options that mean nothing without `mongodb+srv://`.
const ONLY_WITH_SRV: [&str; 3] = ["srvServiceName", "srvMaxHosts", "srvAllowedHostsSuffix"];

/// Refuses options that must not even appear, whether or not their values are any good.
pub(crate) fn check_presence(
    given: &BTreeSet<&'static str>,
    seeds: SeedKind,
) -> Result<(), ParseError> {
    for (one, other) in EXCLUSIVE_TLS {
        if given.contains(one) && given.contains(other) {
            return Err(ParseError::Conflict(one, other));
        }
    }
    match ONLY_WITH_SRV.into_iter().find(|name| given.contains(name)) {
        Some(name) if seeds != SeedKind::Srv => Err(ParseError::OnlyWithSrv(name)),
        _ => Ok(()),
    }
}

/// Refuses what must not stand together.
pub(crate) fn check(options: &Options, seeds: SeedKind) -> Result<(), ParseError> {
    check_topology(options, seeds)?;
    check_srv(options, seeds)?;
    check_proxy(options)?;
    check_read_preference(options)?;
    check_write_concern(options)?;
    check_pool(options)
}

fn check_topology(options: &Options, seeds: SeedKind) -> Result<(), ParseError> {
    let direct = options.direct_connection == Some(true);
    let load_balanced = options.load_balanced == Some(true);
    let several = matches!(seeds, SeedKind::Hosts(count) if count > 1);
    let forbidden = [
        (direct && several, "directConnection=true", "a list of several hosts"),
        (direct && seeds == SeedKind::Srv, "directConnection=true", "mongodb+srv://"),
        (load_balanced && several, "loadBalanced=true", "a list of several hosts"),
        (load_balanced && direct, "loadBalanced=true", "directConnection=true"),
        (load_balanced && options.replica_set.is_some(), "loadBalanced=true", "replicaSet"),
    ];
    refuse_first(&forbidden)
}

fn check_srv(options: &Options, seeds: SeedKind) -> Result<(), ParseError> {
    if seeds != SeedKind::Srv {
        return Ok(());
    }
    let limited = options.srv_max_hosts.and_then(Limit::bound).is_some();
    let load_balanced = options.load_balanced == Some(true);
    refuse_first(&[
        (limited && options.replica_set.is_some(), "srvMaxHosts", "replicaSet"),
        (limited && load_balanced, "srvMaxHosts", "loadBalanced=true"),
    ])
}

fn check_proxy(options: &Options) -> Result<(), ParseError> {
    let host = options.proxy_host.is_some();
    let user_name = options.proxy_username.is_some();
    let password = options.proxy_password.is_some();
    let needs = [
        (options.proxy_port.is_some() && !host, "proxyPort", "proxyHost"),
        (user_name && !host, "proxyUsername", "proxyHost"),
        (password && !host, "proxyPassword", "proxyHost"),
        (user_name && !password, "proxyUsername", "proxyPassword"),
        (password && !user_name, "proxyPassword", "proxyUsername"),
    ];
    match needs.into_iter().find(|(missing, ..)| *missing) {
        Some((_, option, needed)) => Err(ParseError::Requires(option, needed)),
        None => Ok(()),
    }
}

fn check_read_preference(options: &Options) -> Result<(), ParseError> {
    let mode = options.read_preference.unwrap_or(ReadPreferenceMode::Primary);
    let primary = mode == ReadPreferenceMode::Primary;
    let stale = options.max_staleness.and_then(Limit::bound).is_some();
    let tagged = options.read_preference_tags.iter().any(|tags| *tags != TagSet::EMPTY);
    let primary_text = "readPreference=primary (the default)";
    refuse_first(&[
        (primary && stale, "maxStalenessSeconds", primary_text),
        (primary && tagged, "readPreferenceTags", primary_text),
    ])
}

fn check_write_concern(options: &Options) -> Result<(), ParseError> {
    let unacknowledged = options.w == Some(WriteAcknowledgement::Members(0));
    refuse_first(&[(unacknowledged && options.journal == Some(true), "w=0", "journal=true")])
}

fn check_pool(options: &Options) -> Result<(), ParseError> {
    let max = options.max_pool_size.and_then(Limit::bound).map(NonZeroU32::get);
    match (options.min_pool_size, max) {
        (Some(min), Some(max)) if min > max => Err(ParseError::PoolBounds { min, max }),
        _ => Ok(()),
    }
}

fn refuse_first(forbidden: &[(bool, &'static str, &'static str)]) -> Result<(), ParseError> {
    match forbidden.iter().find(|(present, ..)| *present) {
        Some((_, one, other)) => Err(ParseError::Conflict(one, other)),
        None => Ok(()),
    }
}
