//! A seeded, single-threaded world of replica set members.
//!
//! It runs the production [`Member`](quorate_replication::Member) around a virtual clock, a network
//! that delays, reorders, duplicates, drops and partitions, disks that lose what was not synced, and
//! clients that write, and clients that watch with the discovery core. Judges outside the members watch every step ([`judges`]). The same seed gives
//! the same world, event by event.
//!
//! What a member needs of its host is behind [`Host`], so that the real storage can take the place of
//! [`ModelHost`].

mod cluster;
mod data;
mod faults;
mod hardship;
mod host;
pub mod judges;
mod network;
mod node;
mod reading;
mod story;
mod watching;
mod world;

pub use host::{Entry, Host, ModelHost, Operation};
pub use story::Story;
pub use world::{Failure, Figures, Scale, Trace, World, replay, run};
