//! The documents that members of a replica set exchange, to values and back.
//!
//! Field names are the server's own (`local.system.replset`, `replSetHeartbeat`,
//! `replSetRequestVotes`, `replSetUpdatePosition`). A field of the wrong type is an error that names
//! it; whether a value is allowed is decided by `quorate-replication`.

mod config;
mod messages;
mod read;

pub use config::{config_document, parse_config};
pub use messages::{
    heartbeat_reply_document, heartbeat_request_document, optime_document, parse_heartbeat_reply,
    parse_heartbeat_request, parse_optime, parse_position_report, parse_vote_reply,
    parse_vote_request, position_report_body, read_optime, read_position_report,
    vote_reply_document, vote_request_document,
};
pub use read::ReplicaSetDocumentError;
