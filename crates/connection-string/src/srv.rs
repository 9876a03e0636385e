//! What DNS may add to a `mongodb+srv://` string (the specification "Initial DNS Seedlist
//! Discovery").
//!
//! Asking DNS is left to the caller. Here are the question to ask, the rules that the answers must
//! obey, and what becomes of them.

use std::num::NonZeroU32;

use quorate_protocol::{AddressError, ServerAddress, SplitMix64};

use crate::definitions;
use crate::error::{ParseError, Warning};
use crate::options::Limit;
use crate::read::{OptionReader, split_options};
use crate::{ConnectionString, MAX_SEEDS, Seeds};

/// The longest TXT record that is read, in bytes. The three options it may hold need far less.
pub const MAX_TXT_LENGTH: usize = 4096;

/// The service that is asked for if `srvServiceName` says nothing else.
const DEFAULT_SERVICE_NAME: &str = "mongodb";

/// The only options that a TXT record may set.
const ALLOWED_IN_TXT: [&str; 3] = ["authSource", "replicaSet", "loadBalanced"];

/// Single labels that are kept for testing or for private networks: no registry sells names under
/// them.
const PRIVATE_TOP_LEVELS: [&str; 10] = [
    "test", "localhost", "invalid", "example", "local", "internal", "corp", "home", "lan",
    "private",
];

/// Where an SRV record points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvTarget {
    /// The host, with or without the dot at its end.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// An SRV answer is refused. The zone's operator is at fault, or its answers are forged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SeedListError {
    /// The string names its hosts itself.
    #[error("only mongodb+srv:// takes its hosts from DNS; use the hosts in the connection string")]
    NotSrv,
    /// There is no record.
    #[error("DNS has no SRV record {0}; check the name, or list the hosts with mongodb://")]
    NoRecords(String),
    /// More than [`MAX_SEEDS`].
    #[error("DNS lists {0} hosts; at most {MAX_SEEDS} are accepted; remove records")]
    TooManyRecords(usize),
    /// A host outside the domain that was asked about.
    #[error(
        "the SRV record of {hostname} points to {target}, which is not under {domain}; \
         correct the record, since following it could hand your credentials to a stranger"
    )]
    ForeignHost {
        /// The name asked about.
        hostname: String,
        /// Where the record points.
        target: String,
        /// Where it ought to.
        domain: String,
    },
    /// A target that is no address.
    #[error("an SRV record of {0} is unusable: {1}; correct the record")]
    BadTarget(String, AddressError),
    /// A load balancer is one host.
    #[error("loadBalanced=true needs one host, but DNS lists {0}; remove records or the option")]
    SeveralLoadBalancers(usize),
}

/// A TXT answer is refused. The zone's operator is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxtError {
    /// The string does not use DNS.
    #[error("only mongodb+srv:// takes options from DNS")]
    NotSrv,
    /// More than one record.
    #[error("DNS has {0} TXT records where at most one is allowed; merge them")]
    SeveralRecords(usize),
    /// Longer than [`MAX_TXT_LENGTH`].
    #[error("the TXT record is {0} bytes long; at most {MAX_TXT_LENGTH} are accepted")]
    TooLong(usize),
    /// An option that DNS has no say in.
    #[error("the TXT record sets {0:?}; only authSource, replicaSet and loadBalanced may be set")]
    NotAllowed(String),
    /// The record, alone or together with the string, is refused.
    #[error("the TXT record does not fit: {0}")]
    Refused(#[from] ParseError),
}

impl ConnectionString {
    /// The name to ask DNS for SRV records, as in `_mongodb._tcp.cluster.example.com`. TXT records
    /// are under the host name itself. `None` for a `mongodb://` string.
    pub fn srv_query_name(&self) -> Option<String> {
        let Seeds::Srv(hostname) = self.seeds() else { return None };
        let service = self.options().srv_service_name.as_deref().unwrap_or(DEFAULT_SERVICE_NAME);
        Some(format!("_{service}._tcp.{hostname}"))
    }

    /// Takes over the options of the TXT answer, each record a list of character strings. What the
    /// connection string says itself is kept. Either all is taken over or nothing changes.
    ///
    /// # Errors
    ///
    /// If there is more than one record, if it is malformed or sets anything but the three options
    /// that it may, or if the outcome is a forbidden combination.
    pub fn apply_txt_records<S: AsRef<str>>(&mut self, records: &[Vec<S>]) -> Result<(), TxtError> {
        if !matches!(self.seeds(), Seeds::Srv(_)) {
            return Err(TxtError::NotSrv);
        }
        let record = match records {
            [] => return Ok(()),
            [record] => record,
            several => return Err(TxtError::SeveralRecords(several.len())),
        };
        let length = record.iter().map(|string| string.as_ref().len()).sum();
        if length > MAX_TXT_LENGTH {
            return Err(TxtError::TooLong(length));
        }
        let text: String = record.iter().map(AsRef::as_ref).collect();

        let mut reader = OptionReader::default();
        let mut given = Vec::new();
        for (name, value) in split_options(&text, &mut reader.warnings)? {
            let definition = definitions::find(&name)
                .filter(|definition| ALLOWED_IN_TXT.contains(&definition.name))
                .ok_or(TxtError::NotAllowed(name))?;
            if given.contains(&definition.name) {
                reader.warnings.push(Warning::RepeatedOption(definition.name));
            }
            given.push(definition.name);
            reader.read_value(definition, &value)?;
        }
        let mut merged = self.options().clone();
        merged.auth_source = merged.auth_source.or(reader.options.auth_source);
        merged.replica_set = merged.replica_set.or(reader.options.replica_set);
        merged.load_balanced = merged.load_balanced.or(reader.options.load_balanced);
        *self = self.with_options(merged, reader.warnings)?;
        Ok(())
    }

    /// The seeds that an SRV answer stands for, after [`Self::apply_txt_records`]. If there are more
    /// than `srvMaxHosts`, `seed` decides which are taken.
    ///
    /// # Errors
    ///
    /// If there is no record, if any points outside the domain, or if there are too many.
    pub fn seed_list(
        &self,
        targets: &[SrvTarget],
        seed: u64,
    ) -> Result<Vec<ServerAddress>, SeedListError> {
        let query = self.srv_query_name().ok_or(SeedListError::NotSrv)?;
        if targets.is_empty() {
            return Err(SeedListError::NoRecords(query));
        }
        if targets.len() > MAX_SEEDS {
            return Err(SeedListError::TooManyRecords(targets.len()));
        }
        let mut hosts = Vec::with_capacity(targets.len());
        for target in targets {
            let host = self.check_srv_target(target)?;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        if self.options().load_balanced == Some(true) && hosts.len() > 1 {
            return Err(SeedListError::SeveralLoadBalancers(hosts.len()));
        }
        let limit = self.options().srv_max_hosts.and_then(Limit::bound).map(NonZeroU32::get);
        if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
            choose(&mut hosts, limit, seed);
        }
        Ok(hosts)
    }

    /// Whether an SRV record may be followed, and to where. Also for answers polled later on, where
    /// a record that may not is skipped instead of failing them all.
    ///
    /// # Errors
    ///
    /// If the target is outside the domain that was asked about, or no address at all.
    pub fn check_srv_target(&self, target: &SrvTarget) -> Result<ServerAddress, SeedListError> {
        let Seeds::Srv(hostname) = self.seeds() else { return Err(SeedListError::NotSrv) };
        let host = target.host.strip_suffix('.').unwrap_or(&target.host).to_lowercase();
        let domain = match self.options().srv_allowed_hosts_suffix.as_deref() {
            Some(suffix) => suffix,
            None => domain_name(hostname),
        };
        // The dot keeps `evilexample.com` out of `example.com`, and a host in front of it is what
        // makes the target longer than the domain.
        let below = host
            .strip_suffix(domain)
            .and_then(|front| front.strip_suffix('.'))
            .is_some_and(|front| !front.is_empty());
        if !below {
            return Err(SeedListError::ForeignHost {
                hostname: hostname.clone(),
                target: host,
                domain: domain.to_owned(),
            });
        }
        ServerAddress::tcp(&host, target.port)
            .map_err(|error| SeedListError::BadTarget(hostname.clone(), error))
    }
}

/// `{domainname}`: the host name without its first label, or all of it if there are fewer than
/// three.
fn domain_name(hostname: &str) -> &str {
    match hostname.split_once('.') {
        Some((_, domain)) if domain.contains('.') => domain,
        _ => hostname,
    }
}

/// Keeps `limit` of the hosts, each choice as likely as the other (Fisher and Yates).
fn choose(hosts: &mut Vec<ServerAddress>, limit: usize, seed: u64) {
    if limit >= hosts.len() {
        return;
    }
    let mut random = SplitMix64::new(seed);
    for position in 0..limit {
        let remaining = hosts.len() - position;
        let offset = usize::try_from(random.next_u64() % remaining as u64).unwrap_or(0);
        hosts.swap(position, position + offset);
    }
    hosts.truncate(limit);
}

/// `srvAllowedHostsSuffix` without dots around it, in lower case. A single label is refused unless
/// no names can be registered under it. We carry no list of public suffixes, so one of several
/// labels (`co.uk`) is not recognised as such.
pub(crate) fn normalise_suffix(text: &str) -> Result<String, ParseError> {
    let suffix = text.trim_matches('.').to_lowercase();
    let labels = suffix.split('.').count();
    let wide = labels < 2 && !PRIVATE_TOP_LEVELS.contains(&suffix.as_str());
    if wide || suffix.split('.').any(str::is_empty) {
        return Err(ParseError::BadAllowedSuffix(text.to_owned()));
    }
    Ok(suffix)
}
