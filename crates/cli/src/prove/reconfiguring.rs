//! Changes of a configuration, and the way back.
//!
//! Each change touches one member that does not lead, so that it and its reversal are changes of one voter at most,
//! which a set takes without force.

use bson::{Bson, Document};

quorate_protocol::named! {
    /// The change to a member.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Change {
        /// The member has the highest priority, and takes over.
        Preferred = "is preferred",
        /// The member has no vote and never leads.
        Voteless = "loses its vote",
        /// The member leaves the set.
        Removed = "is removed",
    }
}

/// Above every priority of a set that `quorate up` makes.
const PREFERRED: f64 = 5.0;

/// The configuration with a member changed; none if it is no member that holds data.
pub(super) fn changed(config: &Document, host: &str, change: Change) -> Option<Document> {
    let mut members = config.get_array("members").ok()?.clone();
    let is_wanted = |member: &Bson| {
        let member = member.as_document();
        member.is_some_and(|member| {
            member.get_str("host").ok() == Some(host)
                && !member.get_bool("arbiterOnly").unwrap_or(false)
        })
    };
    let place = members.iter().position(is_wanted)?;
    match change {
        Change::Removed => {
            members.remove(place);
        }
        Change::Preferred => {
            members[place].as_document_mut()?.insert("priority", PREFERRED);
        }
        Change::Voteless => {
            let member = members[place].as_document_mut()?;
            member.insert("priority", 0.0);
            member.insert("votes", 0);
        }
    }
    Some(with_members(config, members))
}

/// The configuration with the members of another one; none if it has them already.
pub(super) fn restored(config: &Document, original: &Document) -> Option<Document> {
    let wanted = original.get_array("members").ok()?;
    let there = config.get_array("members").ok()?;
    let same = wanted.len() == there.len()
        && wanted.iter().all(|member| there.iter().any(|other| is_same(member, other)));
    (!same).then(|| with_members(config, wanted.clone()))
}

fn with_members(config: &Document, members: Vec<Bson>) -> Document {
    let mut config = config.clone();
    let version = config.get("version").and_then(number).unwrap_or(1.0) as i64;
    config.insert("version", version.saturating_add(1));
    config.insert("members", members);
    config
}

/// Whether two entries are one member with the same part in the set.
fn is_same(left: &Bson, right: &Bson) -> bool {
    let (Some(left), Some(right)) = (left.as_document(), right.as_document()) else { return false };
    let part = |member: &Document, field: &str| member.get(field).and_then(number).unwrap_or(1.0);
    let equal = |field: &str| (part(left, field) - part(right, field)).abs() < f64::EPSILON;
    left.get("host") == right.get("host") && equal("priority") && equal("votes")
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(value) => Some(f64::from(*value)),
        Bson::Int64(value) => Some(*value as f64),
        Bson::Double(value) => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn config() -> Document {
        let member =
            |id: i32| doc! { "_id": id, "host": format!("h:{id}"), "priority": 1, "votes": 1 };
        let arbiter = doc! { "_id": 3, "host": "h:3", "arbiterOnly": true };
        doc! { "_id": "rs0", "version": 4, "members": [member(0), member(1), member(2), arbiter] }
    }

    #[test]
    fn every_change_is_of_one_member_and_is_undone() {
        for change in Change::ALL {
            let after = changed(&config(), "h:1", change).unwrap();
            assert_eq!(after.get_i64("version").ok(), Some(5), "{change:?}");
            let differs = |number: usize| {
                let member = &config().get_array("members").unwrap()[number].clone();
                !after.get_array("members").unwrap().iter().any(|other| is_same(member, other))
            };
            assert_eq!([0, 1, 2, 3].map(differs), [false, true, false, false], "{change:?}");
            let back = restored(&after, &config()).unwrap();
            assert_eq!(back.get("members"), config().get("members"), "{change:?}");
            assert_eq!(back.get_i64("version").ok(), Some(6), "{change:?}");
            assert_eq!(restored(&back, &config()), None, "{change:?}");
        }
    }

    #[test]
    fn an_arbiter_and_a_stranger_are_left_alone() {
        for host in ["h:3", "h:9"] {
            assert_eq!(changed(&config(), host, Change::Removed), None, "{host}");
        }
    }
}
