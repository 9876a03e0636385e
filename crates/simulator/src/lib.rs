//! A seeded, single-threaded world of replica set members.
//!
//! It runs the production [`Replica`](quorate_member::Replica), the rules of a member joined to its
//! documents, indexes, sessions and oplog, around a virtual clock, a network that delays, reorders,
//! duplicates, drops and partitions, disks that lose what was not synced, clients that write and read
//! with real commands, and clients that watch with the discovery core. Judges outside the members watch
//! every step ([`judges`]) and compare all that the members hold in the end. The same seed gives the
//! same world, event by event.

mod cluster;
mod copying;
mod data;
mod disk;
mod ending;
mod faults;
mod following;
mod hardship;
mod judges;
mod machines;
mod network;
mod process;
mod reading;
mod story;
mod transacting;
mod upgrading;
mod watching;
mod world;
mod writing;

pub use disk::Entry;
pub use story::Story;
pub use world::{Failure, Figures, Scale, Trace, World, replay, run};
