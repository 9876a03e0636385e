//! The changes during a dump: entries of the oplog from before its first read to after its last.

use bson::raw::RawDocumentBuf;
use bson::{Timestamp, doc};
use quorate_client::{Client, Error};

use super::progress::Left;
use super::target::{Target, unwritable};
use crate::connect;
use crate::screen::Result;

/// The entry before the first read: that of an earlier run of the dump as long as the oplog has it, else the newest.
pub(super) async fn start(client: &Client, left: &mut Option<Left>) -> Result<Timestamp> {
    let newest = last_entry(client).await?;
    if let Some(start) = left.as_ref().and_then(|left| left.start) {
        let oplog = client.collection("local", "oplog.rs");
        if let Ok(Some(_)) = oplog.find_one(doc! { "ts": start }).await {
            return Ok(start);
        }
    }
    // Collections that were read before are of no use without the changes since.
    *left = None;
    Ok(newest)
}

/// The newest entry that a majority has.
async fn last_entry(client: &Client) -> Result<Timestamp> {
    let oplog = client.collection("local", "oplog.rs");
    let newest = oplog.find_one(doc! {}).sort(doc! { "$natural": -1 }).await;
    let time = match &newest {
        Ok(Some(entry)) => entry.get_timestamp("ts").ok(),
        Ok(None) => None,
        Err(error) => {
            return Err(problem!(
                "the oplog cannot be read: {error}; --oplog takes a member of a replica set and a \
                 user who may read local"
            ));
        }
    };
    time.ok_or_else(|| {
        problem!(
            "there is no oplog: --oplog is for replica sets; leave it out, or give a member of one"
        )
    })
}

/// Writes every entry from the start on. Returns how many.
pub(super) async fn write(
    client: &Client,
    target: &Target,
    start: Timestamp,
    uri: &str,
) -> Result<usize> {
    let failed = |error: Error| connect::failed(&error, uri);
    let mut sink = target.oplog()?;
    // After a failover the new primary may not know yet that a majority has what was read before. What the primary has
    // now is later than all of that, and a read after it in one session waits until a majority has it.
    let mut session = client.start_session();
    let ping = bson::rawdoc! { "ping": 1 };
    client.database("admin").run_command(ping).session(&mut session).await.map_err(failed)?;
    let oplog = client.collection("local", "oplog.rs");
    let newest = oplog.find_one(doc! {}).sort(doc! { "$natural": -1 }).session(&mut session).await;
    let end = newest.map_err(failed)?.and_then(|entry| entry.get_timestamp("ts").ok());
    let end = end.unwrap_or(start);
    let filter = doc! { "ts": { "$gte": start, "$lte": end } };
    let mut entries = oplog.find(filter).session(&mut session).await.map_err(failed)?;
    let mut written = 0;
    let mut is_first = true;
    while let Some(entry) = entries.next().await.map_err(failed)? {
        if std::mem::take(&mut is_first) && entry.get_timestamp("ts").ok() != Some(start) {
            target.forget();
            return Err(problem!(
                "the oplog no longer has the changes since the dump began; give the members a \
                 longer oplog, or dump when less is written"
            ));
        }
        if renames(&entry) {
            target.forget();
            return Err(problem!(
                "a collection was renamed during the dump, which may have missed it; dump again"
            ));
        }
        if entry.get_str("op").ok() != Some("n") {
            sink.write(entry.as_bytes()).map_err(unwritable)?;
            written += 1;
        }
    }
    sink.finish().map_err(unwritable)?;
    Ok(written)
}

fn renames(entry: &RawDocumentBuf) -> bool {
    entry
        .get_document("o")
        .is_ok_and(|change| change.get("renameCollection").ok().flatten().is_some())
        && entry.get_str("op").ok() == Some("c")
}
