//! `mongodb+srv://`: seeds from DNS, and again as long as that makes sense.
//!
//! Asking DNS is `quorate-seed-list`'s, what a new list does to the topology the discovery core's.
//! This file owns when to ask: once at the start, and for deployments that may be sharded again and
//! again, as "Polling SRV Records for mongos Discovery" has it.

use std::sync::Weak;
use std::time::Duration;

use quorate_connection_string::{ConnectionString, Seeds};
use quorate_seed_list::SeedListResolver;
use quorate_server_discovery::{Input, TopologyType};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, random_seed};
use crate::discovery::Discovery;
use crate::error::ClientError;
use crate::options::ClientOptions;

impl Client {
    /// A client for any connection string. For `mongodb+srv://`, DNS is asked for the seeds first;
    /// servers are contacted in the background.
    ///
    /// # Errors
    ///
    /// If the string cannot be read or contradicts itself, or DNS has no answer to believe.
    pub async fn connect(uri: &str) -> Result<Self, ClientError> {
        let string = ConnectionString::parse(uri)?;
        match string.seeds() {
            Seeds::Hosts(_) => Self::with_options(ClientOptions::from_connection_string(&string)),
            Seeds::Srv(_) => {
                let resolver = SeedListResolver::from_system()?;
                Self::connect_with_resolver(&string, resolver, |_| ()).await
            }
        }
    }

    /// As [`connect`](Self::connect) for a `mongodb+srv://` string, with a resolver of the caller's
    /// and a chance to change the options that the string and DNS led to.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with_resolver(
        string: &ConnectionString,
        resolver: SeedListResolver,
        change: impl FnOnce(&mut ClientOptions),
    ) -> Result<Self, ClientError> {
        let list = resolver.resolve(string, random_seed()?).await?;
        let mut options = ClientOptions::from_connection_string(&list.connection_string);
        options.discovery.seeds = list.seeds;
        change(&mut options);
        Self::asking_again(resolver, list.connection_string, list.rescan_after, options)
    }

    /// A client that asks DNS again from time to time.
    fn asking_again(
        resolver: SeedListResolver,
        string: ConnectionString,
        rescan_after: Duration,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let heartbeat_frequency = options.discovery.heartbeat_frequency();
        let client = Self::with_options(options)?;
        let discovery = &client.inner().discovery;
        discovery.spawn(poll(
            std::sync::Arc::downgrade(discovery),
            discovery.subscribe(),
            Poll { resolver, string, rescan_after, heartbeat_frequency },
        ));
        Ok(client)
    }
}

struct Poll {
    resolver: SeedListResolver,
    string: ConnectionString,
    rescan_after: Duration,
    heartbeat_frequency: Duration,
}

/// Asks DNS again until the client is closed or the deployment turns out not to be sharded.
async fn poll(discovery: Weak<Discovery>, mut revisions: watch::Receiver<u64>, poll: Poll) {
    let mut wait = poll.rescan_after;
    loop {
        if !sleep_unless_over(&discovery, &mut revisions, wait).await {
            return;
        }
        wait = match poll.resolver.rescan(&poll.string).await {
            Ok(rescan) => {
                let Some(discovery) = discovery.upgrade() else { return };
                discovery.handle(Input::SeedsResolved(rescan.hosts));
                rescan.rescan_after
            }
            // The list stays as it is; the specification wants the next question this soon.
            Err(_) => poll.heartbeat_frequency,
        };
    }
}

/// Waits, and says whether there is still a reason to ask.
async fn sleep_unless_over(
    discovery: &Weak<Discovery>,
    revisions: &mut watch::Receiver<u64>,
    wait: Duration,
) -> bool {
    let due = Instant::now() + wait;
    loop {
        match discovery.upgrade() {
            Some(discovery) if !discovery.is_closed() => {
                let kind = discovery.description().topology_type();
                if !matches!(kind, TopologyType::Unknown | TopologyType::Sharded) {
                    return false;
                }
            }
            _ => return false,
        }
        tokio::select! {
            () = sleep_until(due) => return true,
            changed = revisions.changed() => {
                if changed.is_err() {
                    return false;
                }
            }
        }
    }
}
