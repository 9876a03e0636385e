#![doc = include_str!("../README.md")]
//!
//! Owns the questions: SRV records for the hosts, TXT records for options, and when to ask again. The
//! rules about the answers (which hosts are believed, which options count) are those of
//! `quorate-connection-string`; what a changed list does to a topology is the discovery core's.
//!
//! Follows "Initial DNS Seedlist Discovery" and "Polling SRV Records for mongos Discovery". Names are
//! asked for as fully qualified: search domains could send credentials astray.

pub mod blocking;
mod message;
mod resolver;

use std::net::SocketAddr;
use std::time::Duration;

use quorate_connection_string::{
    ConnectionString, MAX_SEEDS, SeedListError, Seeds, SrvTarget, TxtError,
};
use quorate_protocol::ServerAddress;

use crate::message::{Data, Kind};
use crate::resolver::Resolver;

/// The shortest time between two questions for the same records, whatever their TTL says.
pub const MIN_RESCAN_INTERVAL: Duration = Duration::from_secs(60);

/// Asks DNS. Needs a tokio runtime to run in.
#[derive(Clone, Debug)]
pub struct SeedListResolver {
    resolver: Resolver,
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
#[non_exhaustive]
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
        let resolver =
            Resolver::from_system().map_err(|error| ResolveError::SetUp(error.to_string()))?;
        Ok(Self { resolver })
    }

    /// Asks this name server alone.
    ///
    /// ```
    /// # use hickory_proto::op::{Message, MessageType};
    /// # use hickory_proto::rr::{RData, Record, RecordType, rdata::SRV};
    /// use quorate_connection_string::ConnectionString;
    /// use quorate_seed_list::SeedListResolver;
    /// # use tokio::net::UdpSocket;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let socket = UdpSocket::bind("127.0.0.1:0").await?;
    /// # let name_server = socket.local_addr()?;
    /// # let answering = tokio::spawn(async move {
    /// #     let mut buffer = [0; 512];
    /// #     while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
    /// #         let request = Message::from_vec(&buffer[..length]).unwrap();
    /// #         let query = request.queries.first().unwrap().clone();
    /// #         let (id, code) = (request.metadata.id, request.metadata.op_code);
    /// #         let mut reply = Message::new(id, MessageType::Response, code);
    /// #         if query.query_type() == RecordType::SRV {
    /// #             let target = "a.cluster.example.com.".parse().unwrap();
    /// #             let record = RData::SRV(SRV::new(0, 0, 27017, target));
    /// #             reply.add_answer(Record::from_rdata(query.name().clone(), 300, record));
    /// #         }
    /// #         reply.add_query(query);
    /// #         socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    /// #     }
    /// # });
    /// let uri: ConnectionString = "mongodb+srv://cluster.example.com/shop".parse()?;
    /// let found = SeedListResolver::with_name_server(name_server).resolve(&uri, 42).await?;
    /// assert_eq!(found.seeds, ["a.cluster.example.com:27017".parse()?]);
    /// # answering.abort();
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_name_server(server: SocketAddr) -> Self {
        Self { resolver: Resolver::with_server(server) }
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
        let records = self.resolver.ask(question, Kind::Srv).await;
        let records = records.map_err(|reason| no_answer(question, reason))?;
        if records.is_empty() {
            return Err(SeedListError::NoRecords(question.to_owned()).into());
        }
        let mut targets = Vec::new();
        let mut shortest = Duration::MAX;
        for record in records {
            if let Data::Srv { target: host, port } = record.data {
                shortest = shortest.min(Duration::from_secs(record.ttl.into()));
                targets.push(SrvTarget { host, port });
            }
        }
        Ok((targets, shortest.max(MIN_RESCAN_INTERVAL)))
    }

    /// TXT records are optional.
    async fn txt(&self, hostname: &str) -> Result<Vec<Vec<String>>, ResolveError> {
        let records = self.resolver.ask(hostname, Kind::Txt).await;
        let records = records.map_err(|reason| no_answer(hostname, reason))?;
        let texts = records.into_iter().filter_map(|record| match record.data {
            Data::Txt(texts) => Some(texts),
            Data::Srv { .. } => None,
        });
        let shown = |text: Vec<u8>| String::from_utf8_lossy(&text).into_owned();
        Ok(texts.map(|texts| texts.into_iter().map(shown).collect()).collect())
    }
}

/// The names to ask for SRV and for TXT records.
fn questions(connection_string: &ConnectionString) -> Result<(String, String), ResolveError> {
    match (connection_string.srv_query_name(), connection_string.seeds()) {
        (Some(question), Seeds::Srv(hostname)) => Ok((question, hostname.clone())),
        _ => Err(SeedListError::NotSrv.into()),
    }
}

fn no_answer(question: &str, reason: String) -> ResolveError {
    ResolveError::NoAnswer { question: question.to_owned(), reason }
}
