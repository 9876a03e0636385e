//! One look at a deployment: every server asked once, and one of them for what it says of its set.
//!
//! The first stages of `doctor`, for the commands that show a deployment or act on it.

use quorate_connection_string::ConnectionString;
use quorate_protocol::ServerAddress;

use super::examination::{Examination, ExaminationError, examine};
use super::inside::Inside;
use super::login::{self, Login};
use crate::connect;
use crate::explain::Election;
use crate::finding::Finding;
use crate::screen::{Failure, Result};

/// The facts about a deployment.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Every server, and what a client believes.
    pub(crate) seen: Examination,
    login: Option<Login>,
}

impl Survey {
    /// Asks the deployment. Fails if the connection string contradicts itself or its names cannot
    /// be looked up.
    pub(crate) async fn take(uri: ConnectionString) -> Result<Self> {
        let (uri, seeds) = connect::find_seeds(uri).await?;
        let prober = super::prober_for(&uri)?;
        let seen = examine(uri, seeds, &prober, &mut |_| Ok(())).await;
        let seen = seen.map_err(|error| match error {
            ExaminationError::Output(error) => Failure::Output(error),
            ExaminationError::Options(error) => {
                misuse!("{error}; correct the connection string")
            }
        })?;
        let login = login::log_in(&seen, &prober).await;
        Ok(Self { seen, login })
    }

    /// The report of the asked member about its set.
    pub(crate) fn inside(&self) -> Option<&Inside> {
        self.login.as_ref()?.inside.as_ref()
    }

    /// Whether the asked member is a server of ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.inside().is_some_and(|inside| inside.is_ours)
    }

    /// Which member leads, or why none does.
    pub(crate) fn election(&self) -> Option<&Election> {
        self.inside()?.election.as_ref()
    }

    /// The finding about the login, if there is one.
    pub(crate) fn login_finding(&self) -> Option<&Finding> {
        let codes = ["authentication_failed", "login_needed", "mechanism"];
        self.login.as_ref()?.findings.iter().find(|finding| codes.contains(&finding.code))
    }

    /// Whether the server that was asked is locked.
    pub(crate) fn is_locked(&self) -> bool {
        let findings = self.login.iter().flat_map(|login| &login.findings);
        findings.into_iter().any(|finding| finding.code == "fsync_locked")
    }

    /// Every member that anything is known of, in order.
    pub(crate) fn members(&self) -> Vec<ServerAddress> {
        let mut members: Vec<ServerAddress> = self.seen.probes.keys().cloned().collect();
        let told = self.inside().and_then(|inside| inside.status.as_ref());
        members.extend(told.iter().flat_map(|status| &status.members).map(|m| m.address.clone()));
        // A name that the set does not use is a way in, and no member.
        if let Some(settings) = self.inside().and_then(|inside| inside.settings.as_ref()) {
            members.retain(|member| settings.members.contains_key(member));
            members.extend(settings.members.keys().cloned());
        }
        members.sort();
        members.dedup();
        members
    }
}
