//! File descriptors: how many this process has, and how many connections may take.
//!
//! A store without a descriptor cannot open its next file, and a member without one cannot call the
//! others. So some are kept from clients, whatever the limit is.

use std::num::NonZero;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::server::MAX_CONNECTIONS;

/// The most descriptors that a process asks for. More would only cost the kernel memory.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Kept for the store (tables, journals, what is being compacted), the other members, clients that are
/// turned away, and files of sorts. Never more than half of what there is.
const RESERVED_DESCRIPTORS: u64 = 640;

/// Fewer connections than these are soon too few, and worth a warning.
const FEW_CONNECTIONS: usize = 1000;

/// How many of a process's descriptors are for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// What the process may have.
    pub(crate) limit: u64,
    /// What clients do not get.
    pub(crate) reserved: u64,
}

impl Descriptors {
    fn of(limit: u64) -> Self {
        Self { limit, reserved: RESERVED_DESCRIPTORS.min(limit / 2) }
    }

    /// Raises the soft limit as far as the system lets this process, and says what there is.
    pub(crate) fn claim() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let most = maximum.map_or(MAX_DESCRIPTORS, |most| most.min(MAX_DESCRIPTORS));
        let now = current.unwrap_or(MAX_DESCRIPTORS);
        if now >= most {
            return Self::of(now);
        }
        match setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }) {
            Ok(()) => Self::of(most),
            Err(error) => {
                tracing::warn!(%error, limit = now, "cannot raise the limit of open files");
                Self::of(now)
            }
        }
    }

    /// How many connections there may be, of those that were asked for.
    pub(crate) fn connections(self, wanted: usize) -> usize {
        let free = usize::try_from(self.limit - self.reserved).unwrap_or(usize::MAX);
        // A server without any connection is of no use; the smallest limits are the operator's wish.
        NonZero::new(wanted.min(free)).map_or(1, NonZero::get)
    }

    /// How many connections there may be, told in the log.
    pub(crate) fn grant(self, wanted: usize) -> usize {
        let connections = self.connections(wanted);
        let Self { limit, reserved } = self;
        if is_worth_a_warning(connections, wanted) {
            tracing::warn!(
                limit,
                reserved,
                connections,
                wanted,
                "the limit of open files allows fewer connections than asked for; raise the hard limit \
                 (ulimit -Hn, LimitNOFILE=) or lower --max-connections"
            );
        } else {
            tracing::info!(limit, reserved, connections, wanted, "open files");
        }
        connections
    }
}

/// Fewer connections than the default, where nothing else was asked for, are what most systems give.
fn is_worth_a_warning(connections: usize, wanted: usize) -> bool {
    connections < wanted && (wanted != MAX_CONNECTIONS || connections < FEW_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_keeps_its_share_of_any_limit() {
        assert_eq!(Descriptors::of(1024).connections(20_000), 512);
        assert_eq!(Descriptors::of(100_000).connections(20_000), 20_000);
        assert_eq!(Descriptors::of(20_000).connections(20_000), 20_000 - 640);
        assert_eq!(Descriptors::of(128).connections(20_000), 64);
        assert_eq!(Descriptors::of(128).connections(3), 3);
        assert_eq!(Descriptors::of(0).connections(3), 1);
    }

    #[test]
    fn fewer_connections_than_the_default_are_no_warning_unless_they_are_few() {
        assert!(!is_worth_a_warning(MAX_CONNECTIONS, MAX_CONNECTIONS));
        assert!(!is_worth_a_warning(3456, MAX_CONNECTIONS));
        assert!(is_worth_a_warning(512, MAX_CONNECTIONS));
        assert!(is_worth_a_warning(3456, 4000), "what was asked for is not given");
        assert!(!is_worth_a_warning(30, 30));
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let claimed = Descriptors::claim();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, Some(claimed.limit));
        assert!(
            maximum
                .is_none_or(|most| claimed.limit == most.min(MAX_DESCRIPTORS).max(claimed.limit))
        );
    }
}
