//! The specification's two enumerations, and how a reply decides a server's type.

use std::str::FromStr;

use quorate_protocol::HelloReply;

quorate_protocol::named! {
    /// What kind of deployment the client believes it is looking at.
    ///
    /// ```text
    ///            ┌──────────────── Unknown ────────────────┐
    ///   Mongos   │        │ RSPrimary      │ other member  │ Standalone, one seed
    ///            ▼        ▼                ▼               ▼
    ///         Sharded   ReplicaSetWithPrimary ⇄ ReplicaSetNoPrimary     Single
    ///
    ///   Single and LoadBalanced may also be chosen at the start, and then never change.
    /// ```
    ///
    /// [`name`](Self::name) is the specification's name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub enum TopologyType {
        /// Nothing is known yet.
        #[default]
        Unknown = "Unknown",
        /// One server, used whatever it is.
        Single = "Single",
        /// A replica set whose primary is not known.
        ReplicaSetNoPrimary = "ReplicaSetNoPrimary",
        /// A replica set and its primary.
        ReplicaSetWithPrimary = "ReplicaSetWithPrimary",
        /// One or more mongoses.
        Sharded = "Sharded",
        /// A load balancer, which is never checked.
        LoadBalanced = "LoadBalanced",
    }
}

impl TopologyType {
    /// Whether this is a replica set, with or without a primary.
    pub const fn is_replica_set(self) -> bool {
        matches!(self, Self::ReplicaSetNoPrimary | Self::ReplicaSetWithPrimary)
    }
}

quorate_protocol::named! {
    /// What the client believes a server to be.
    ///
    /// [`name`](Self::name) is the specification's name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub enum ServerType {
        /// Not checked yet, or the last check failed.
        #[default]
        Unknown = "Unknown",
        /// Not checked yet, but another member thinks it is the primary.
        PossiblePrimary = "PossiblePrimary",
        /// Neither a member of a set nor a mongos.
        Standalone = "Standalone",
        /// A router of a sharded cluster.
        Mongos = "Mongos",
        /// A member that takes writes.
        RsPrimary = "RSPrimary",
        /// A member that serves reads.
        RsSecondary = "RSSecondary",
        /// A member that only votes.
        RsArbiter = "RSArbiter",
        /// A member that is hidden, starting up or recovering.
        RsOther = "RSOther",
        /// A member without a configuration.
        RsGhost = "RSGhost",
        /// A load balancer; said by the connection string, not by the server.
        LoadBalancer = "LoadBalancer",
    }
}

impl ServerType {
    /// The type that a reply gives a server, by the table in "Parsing a hello or legacy hello
    /// response".
    pub fn from_reply(reply: &HelloReply) -> Self {
        if !reply.ok {
            Self::Unknown
        } else if reply.is_replica_set {
            Self::RsGhost
        } else if reply.is_dbgrid {
            Self::Mongos
        } else if reply.set_name.is_none() {
            Self::Standalone
        } else if reply.hidden {
            Self::RsOther
        } else if reply.is_writable_primary {
            Self::RsPrimary
        } else if reply.secondary {
            Self::RsSecondary
        } else if reply.arbiter_only {
            Self::RsArbiter
        } else {
            Self::RsOther
        }
    }

    /// Whether a client can receive application data from such a server.
    pub const fn is_data_bearing(self) -> bool {
        matches!(
            self,
            Self::Mongos
                | Self::RsPrimary
                | Self::RsSecondary
                | Self::Standalone
                | Self::LoadBalancer
        )
    }

    /// Whether the last check succeeded. PossiblePrimary is a rumour, so it does not count.
    pub const fn is_known(self) -> bool {
        !matches!(self, Self::Unknown | Self::PossiblePrimary)
    }
}

/// A text that names no type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a server or topology type")]
pub struct UnknownTypeName(pub String);

impl FromStr for TopologyType {
    type Err = UnknownTypeName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::from_name(name).ok_or_else(|| UnknownTypeName(name.to_owned()))
    }
}

impl FromStr for ServerType {
    type Err = UnknownTypeName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::from_name(name).ok_or_else(|| UnknownTypeName(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(change: impl FnOnce(&mut HelloReply)) -> HelloReply {
        let mut reply =
            HelloReply { ok: true, set_name: Some("rs".to_owned()), ..HelloReply::default() };
        change(&mut reply);
        reply
    }

    /// Every row of the table in "Parsing a hello or legacy hello response", type.
    #[test]
    fn each_symptom_gives_its_type() {
        let typed = |change: fn(&mut HelloReply)| ServerType::from_reply(&member(change));
        assert_eq!(typed(|r| r.ok = false), ServerType::Unknown);
        assert_eq!(typed(|r| r.set_name = None), ServerType::Standalone);
        assert_eq!(
            typed(|r| {
                r.set_name = None;
                r.is_dbgrid = true;
            }),
            ServerType::Mongos
        );
        assert_eq!(typed(|r| r.is_writable_primary = true), ServerType::RsPrimary);
        assert_eq!(typed(|r| r.secondary = true), ServerType::RsSecondary);
        assert_eq!(typed(|r| r.arbiter_only = true), ServerType::RsArbiter);
        assert_eq!(typed(|_| ()), ServerType::RsOther);
        assert_eq!(
            typed(|r| {
                r.hidden = true;
                r.secondary = true;
            }),
            ServerType::RsOther
        );
        assert_eq!(
            typed(|r| {
                r.set_name = None;
                r.is_replica_set = true;
            }),
            ServerType::RsGhost
        );
    }

    #[test]
    fn names_read_back() {
        for kind in ServerType::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        for kind in TopologyType::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("rsprimary".parse::<ServerType>().is_err());
    }
}
