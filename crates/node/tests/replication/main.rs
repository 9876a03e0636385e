//! The log of a member: what is written, applied elsewhere, and undone.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod applying;
mod oplog;
mod retried;
mod role;
mod rollback;
#[path = "../support/mod.rs"]
mod support;

use bson::doc;
use support::Member;

fn write_more(member: &Member) {
    member.insert("a", vec![doc! {"_id": "more", "n": 1}]);
}
