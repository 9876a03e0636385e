//! `$readPreference`, as commands carry it.
//!
//! Follows "Passing read preference" and "Document structure" of the Server Selection specification.

use bson::raw::{CStr, RawArrayBuf, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::ReadPreference;
use quorate_server_discovery::{
    ReadPreferenceArgument, ServerType, TopologyType, read_preference_for_op_msg,
};
use quorate_wire::{AppendSome, CommandFields};

/// Adds the read preference to a command that goes to a server of this type. `preference` is `None`
/// for commands that are bound to their server.
pub fn add_read_preference(
    body: &mut impl CommandFields,
    topology: TopologyType,
    server: ServerType,
    preference: Option<&ReadPreference>,
) {
    let Some(argument) = read_preference_for_op_msg(topology, server, preference) else { return };
    // A command that brings its own keeps it: servers refuse a field that comes twice.
    if !body.has("$readPreference") {
        body.append(cstr!("$readPreference"), document(&argument));
    }
}

fn document(argument: &ReadPreferenceArgument<'_>) -> RawDocumentBuf {
    let mut document = rawdoc! { "mode": argument.mode.name() };
    if !argument.tags.is_empty() {
        let sets = argument.tags.iter().map(|tags| {
            let mut set = RawDocumentBuf::new();
            for (name, value) in tags.iter() {
                // A name with a zero byte cannot come from a connection string, nor be any tag's.
                if let Ok(name) = <&CStr>::try_from(name) {
                    set.append(name, value);
                }
            }
            set
        });
        document.append(cstr!("tags"), RawArrayBuf::from_iter(sets));
    }
    document.append_some(
        cstr!("maxStalenessSeconds"),
        argument.max_staleness_seconds.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)),
    );
    document
        .append_some(cstr!("hedge"), argument.hedge.map(|enabled| rawdoc! { "enabled": enabled }));
    document
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorate_protocol::{ReadPreferenceMode, TagSet};

    use super::*;

    #[test]
    fn every_part_of_a_read_preference_is_written_once() {
        let preference = ReadPreference {
            tag_sets: vec![[("dc", "ny"), ("rack", "2")].into_iter().collect(), TagSet::EMPTY],
            max_staleness: Some(Duration::from_secs(120)),
            hedge: Some(true),
            ..ReadPreference::new(ReadPreferenceMode::Secondary)
        };
        let (topology, server) = (TopologyType::ReplicaSetNoPrimary, ServerType::RsSecondary);
        let mut body = rawdoc! { "ping": 1 };
        add_read_preference(&mut body, topology, server, Some(&preference));
        let expected = rawdoc! {
            "ping": 1,
            "$readPreference": {
                "mode": "secondary",
                "tags": [{ "dc": "ny", "rack": "2" }, {}],
                "maxStalenessSeconds": 120_i64,
                "hedge": { "enabled": true },
            },
        };
        assert_eq!(body, expected);
        add_read_preference(&mut body, topology, server, Some(&preference));
        assert_eq!(body, expected);
    }
}
