//! Finds the seeds and options of `mongodb+srv://` connection strings in DNS.
//!
//! Owns the questions: SRV records for the hosts, TXT records for options, and when to ask again. The
//! rules about the answers (which hosts are believed, which options count) are those of
//! `quorate-connection-string`; what a changed list does to a topology is the discovery core's.
//!
//! Follows "Initial DNS Seedlist Discovery" and "Polling SRV Records for mongos Discovery". Names are
//! asked for as fully qualified: search domains could send credentials astray.

pub mod blocking;

use std::net::SocketAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use quorate_connection_string::{
    ConnectionString, MAX_SEEDS, SeedListError, Seeds, SrvTarget, TxtError,
};
use quorate_protocol::ServerAddress;

/// The shortest time between two questions for the same records, whatever their TTL says.
pub const MIN_RESCAN_INTERVAL: Duration = Duration::from_secs(60);

/// Asks DNS. Needs a tokio runtime to run in.
#[derive(Clone, Debug)]
pub struct SeedListResolver {
    resolver: TokioResolver,
}

/// What DNS said about a connection string.
#[derive(Clone, Debug, PartialEq)]
pub struct SeedList {
    /// The connection string with the options of its TXT record.
    pub connection_string: ConnectionString,
    /// The hosts, at most `srvMaxHosts` of them.
    pub seeds: Vec<ServerAddress>,
    /// When to ask again.
    pub rescan_after: Duration,
}

/// What DNS says about the hosts of a deployment that is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Rescan {
    /// The hosts that may be used: never none.
    pub hosts: Vec<ServerAddress>,
    /// Records that were not believed; to be logged.
    pub refused: Vec<SeedListError>,
    /// When to ask again.
    pub rescan_after: Duration,
}

/// The seeds could not be found.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    /// This machine's DNS configuration could not be read.
    #[error("the DNS configuration of this machine cannot be used: {0}; check /etc/resolv.conf")]
    SetUp(String),
    /// DNS did not answer the question.
    #[error(
        "DNS did not answer for {question}: {reason}; check the name and this machine's name \
         server, or list the hosts with mongodb://"
    )]
    NoAnswer {
        /// What was asked for.
        question: String,
        /// What the resolver says.
        reason: String,
    },
    /// The SRV answer is refused.
    #[error(transparent)]
    Seeds(#[from] SeedListError),
    /// The TXT answer is refused.
    #[error(transparent)]
    Options(#[from] TxtError),
}

impl SeedListResolver {
    /// Asks the name servers that this machine is configured to ask.
    ///
    /// # Errors
    ///
    /// If the machine's configuration cannot be read.
    pub fn from_system() -> Result<Self, ResolveError> {
        let build = || TokioResolver::builder_tokio()?.build();
        let resolver = build().map_err(|error: NetError| ResolveError::SetUp(error.to_string()))?;
        Ok(Self { resolver })
    }

    /// Asks this name server alone.
    ///
    /// # Errors
    ///
    /// If the resolver cannot be set up.
    pub fn with_name_server(server: SocketAddr) -> Result<Self, ResolveError> {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].into_iter();
        let connections = connections.map(|mut connection| {
            connection.port = server.port();
            connection
        });
        let name_server = NameServerConfig::new(server.ip(), true, connections.collect());
        let config = ResolverConfig::from_name_servers(vec![name_server]);
        let mut options = ResolverOpts::default();
        options.cache_size = 0;
        let resolver = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(options)
            .build()
            .map_err(|error| ResolveError::SetUp(error.to_string()))?;
        Ok(Self { resolver })
    }

    /// The hosts and options of a `mongodb+srv://` string. The seed decides which hosts are taken if
    /// there are more than `srvMaxHosts`.
    ///
    /// # Errors
    ///
    /// If DNS does not answer, or its answer must not be believed.
    pub async fn resolve(
        &self,
        connection_string: &ConnectionString,
        seed: u64,
    ) -> Result<SeedList, ResolveError> {
        let mut connection_string = connection_string.clone();
        let (question, hostname) = questions(&connection_string)?;
        let (targets, rescan_after) = self.srv(&question).await?;
        let records = self.txt(&hostname).await?;
        connection_string.apply_txt_records(&records)?;
        let seeds = connection_string.seed_list(&targets, seed)?;
        Ok(SeedList { connection_string, seeds, rescan_after })
    }

    /// The hosts as they are now. Options do not change under a running client, so only SRV records
    /// are asked for; a host that must not be believed is left out, not an error.
    ///
    /// # Errors
    ///
    /// If there is no host to believe. The topology stays as it is; ask again after
    /// `heartbeatFrequencyMS`.
    pub async fn rescan(
        &self,
        connection_string: &ConnectionString,
    ) -> Result<Rescan, ResolveError> {
        let (question, _) = questions(connection_string)?;
        let (targets, rescan_after) = self.srv(&question).await?;
        if targets.len() > MAX_SEEDS {
            return Err(SeedListError::TooManyRecords(targets.len()).into());
        }
        let mut hosts = Vec::new();
        let mut refused = Vec::new();
        for target in &targets {
            match connection_string.check_srv_target(target) {
                Ok(host) if !hosts.contains(&host) => hosts.push(host),
                Ok(_) => {}
                Err(error) => refused.push(error),
            }
        }
        if hosts.is_empty() {
            let error = refused.into_iter().next();
            return Err(error.unwrap_or(SeedListError::NoRecords(question)).into());
        }
        Ok(Rescan { hosts, refused, rescan_after })
    }

    async fn srv(&self, question: &str) -> Result<(Vec<SrvTarget>, Duration), ResolveError> {
        let answer = match self.resolver.srv_lookup(qualified(question)).await {
            Ok(answer) => answer,
            Err(error) if error.is_no_records_found() => {
                return Err(SeedListError::NoRecords(question.to_owned()).into());
            }
            Err(error) => return Err(no_answer(question, &error)),
        };
        let mut targets = Vec::new();
        let mut shortest = Duration::MAX;
        for record in answer.answers() {
            if let RData::SRV(srv) = &record.data {
                shortest = shortest.min(Duration::from_secs(record.ttl.into()));
                targets.push(SrvTarget { host: srv.target.to_utf8(), port: srv.port });
            }
        }
        let rescan_after = if targets.is_empty() { MIN_RESCAN_INTERVAL } else { shortest };
        Ok((targets, rescan_after.max(MIN_RESCAN_INTERVAL)))
    }

    async fn txt(&self, hostname: &str) -> Result<Vec<Vec<String>>, ResolveError> {
        let answer = match self.resolver.txt_lookup(qualified(hostname)).await {
            Ok(answer) => answer,
            // TXT records are optional.
            Err(error) if error.is_no_records_found() => return Ok(Vec::new()),
            Err(error) => return Err(no_answer(hostname, &error)),
        };
        let records = answer.answers().iter().filter_map(|record| match &record.data {
            RData::TXT(txt) => {
                let strings = txt.txt_data.iter();
                Some(strings.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
            }
            _ => None,
        });
        Ok(records.collect())
    }
}

/// The names to ask for SRV and for TXT records.
fn questions(connection_string: &ConnectionString) -> Result<(String, String), ResolveError> {
    match (connection_string.srv_query_name(), connection_string.seeds()) {
        (Some(question), Seeds::Srv(hostname)) => Ok((question, hostname.clone())),
        _ => Err(SeedListError::NotSrv.into()),
    }
}

fn qualified(name: &str) -> String {
    format!("{name}.")
}

fn no_answer(question: &str, error: &NetError) -> ResolveError {
    ResolveError::NoAnswer { question: question.to_owned(), reason: error.to_string() }
}
