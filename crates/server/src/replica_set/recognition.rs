//! Which of the configured names is this member's: found out by calling each of them.
//!
//! A member knows the addresses that it listens on and the one of `--advertise`. A set may list it by
//! another name: of the host, of a container, or by an address behind which it is reached. The number
//! that every process draws when it starts is in its reply to `hello`, so a name under which our own
//! number answers is ours.

use std::time::Duration;

use bson::{RawDocument, doc};
use quorate_protocol::{ObjectId, ReplicaSetConfig, ServerAddress};
use quorate_replication::Input;
use quorate_wire::parse_topology_version;
use tokio::task::JoinSet;

use super::client::Client;
use super::{Message, ReplicaSet};
use crate::dialer::Dialer;

/// How long a name may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait before names are called again: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The longest such wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl ReplicaSet {
    /// Finds this member among the names of a configuration that is about to be used.
    pub(super) async fn recognise(&self, config: &ReplicaSetConfig) {
        let wanted = config.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.inbox.post(Message::Inspect(Box::new(move |status, _| {
            // Ignore send errors: the caller is gone.
            let _ = sender.send(status.finds_itself_in(&wanted));
        })));
        if !receiver.await.unwrap_or(true) {
            self.call_names(config).await;
        }
    }

    /// Goes on looking for this member in a configuration that does not list it by a name that it
    /// knows: from its disk after a start, or from another member.
    pub(super) async fn recognise_always(&self) {
        let mut role = self.role();
        let mut pause = FIRST_PAUSE;
        loop {
            role.borrow_and_update();
            let (sender, receiver) = tokio::sync::oneshot::channel();
            self.inbox.post(Message::Inspect(Box::new(move |status, _| {
                // The host has ended if this is not received.
                let _ = sender.send((status.strange_config().cloned(), status.config().is_none()));
            })));
            match receiver.await {
                Ok((Some(config), _)) => {
                    self.call_names(&config).await;
                    // A change of role may be the sign of having been found.
                    let _ = tokio::time::timeout(pause, role.changed()).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                // Being told of a set in which it is not does not change the role.
                Ok((None, true)) => tokio::time::sleep(FIRST_PAUSE).await,
                Ok((None, false)) => {
                    pause = FIRST_PAUSE;
                    if role.changed().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    async fn call_names(&self, config: &ReplicaSetConfig) {
        let own = self.node.topology_version().process_id;
        let mut calls = JoinSet::new();
        for member in &config.members {
            let (dialer, name) = (self.dialer.clone(), member.host.clone());
            calls.spawn(async move { is_own(&dialer, &name, own).await.then_some(name) });
        }
        while let Some(called) = calls.join_next().await {
            if let Ok(Some(name)) = called {
                tracing::info!(%name, "the set lists this member by a name that leads here");
                self.inbox.post(Message::Input(Input::ReachedUnder(name)));
            }
        }
    }
}

/// Whether our own process answers under a name.
async fn is_own(dialer: &Dialer, name: &ServerAddress, own: ObjectId) -> bool {
    let called = async {
        let mut client = Client::connect(dialer, name, PATIENCE).await?;
        client.run(&doc! { "hello": 1, "$db": "admin" }).await
    };
    match tokio::time::timeout(PATIENCE, called).await {
        Ok(Ok(reply)) => process_of(&reply) == Some(own),
        Ok(Err(error)) => {
            tracing::debug!(%name, %error, "a name of the set could not be called");
            false
        }
        Err(_) => false,
    }
}

fn process_of(reply: &RawDocument) -> Option<ObjectId> {
    let version = reply.get_document("topologyVersion").ok()?;
    Some(parse_topology_version(version).ok()?.process_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn the_number_of_a_process_is_in_its_hello() {
        let id = bson::oid::ObjectId::from_bytes([7; 12]);
        let reply = rawdoc! { "topologyVersion": { "processId": id, "counter": 1_i64 } };
        assert_eq!(process_of(&reply), Some(ObjectId::from_bytes([7; 12])));
        for other in [rawdoc! {}, rawdoc! { "topologyVersion": { "processId": 7 } }] {
            assert_eq!(process_of(&other), None);
        }
    }
}
