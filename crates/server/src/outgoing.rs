//! Connections that this member has opened to others, counted for `connPoolStats`.
//!
//! Each belongs to the task that opened it until it closes: none waits in a pool.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bson::{Document, doc};
use quorate_protocol::{Lock, ServerAddress};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::Stream;

/// Addresses that are counted: those of a set's members, and of some that have left it.
const MAX_ADDRESSES: usize = 128;

/// How many connections were opened to one address, and how many of them are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    open: u32,
    created: u64,
}

/// The connections to each address.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(Lock<BTreeMap<ServerAddress, Count>>);

impl Outgoing {
    /// Counts a connection until it is dropped.
    pub(crate) fn count(self: &Arc<Self>, address: &ServerAddress, stream: Stream) -> Stream {
        let mut counts = self.0.lock();
        if counts.len() >= MAX_ADDRESSES && !counts.contains_key(address) {
            counts.retain(|_, count| count.open > 0);
        }
        let count = counts.entry(address.clone()).or_default();
        count.open += 1;
        count.created += 1;
        drop(counts);
        let open = Open { outgoing: Arc::clone(self), address: address.clone() };
        Box::new(Counted { stream, _open: open })
    }

    /// The answer to `connPoolStats`.
    pub(crate) fn document(&self) -> Document {
        let (mut hosts, mut open, mut created) = (Document::new(), 0, 0);
        for (address, count) in &*self.0.lock() {
            open += count.open;
            created += count.created;
            let of_host = doc! {
                "inUse": count.open as i32, "available": 0, "created": count.created as i64,
            };
            hosts.insert(address.to_string(), of_host);
        }
        doc! {
            "numClientConnections": open as i32,
            "totalInUse": open as i32,
            "totalAvailable": 0,
            "totalCreated": created as i64,
            "hosts": hosts,
            "ok": 1.0,
        }
    }
}

/// Counts as an open connection until it is dropped.
struct Open {
    outgoing: Arc<Outgoing>,
    address: ServerAddress,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(count) = self.outgoing.0.lock().get_mut(&self.address) {
            count.open = count.open.saturating_sub(1);
        }
    }
}

/// A connection that is counted.
struct Counted {
    stream: Stream,
    _open: Open,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_until_it_is_dropped_and_addresses_are_bounded() {
        let outgoing: Arc<Outgoing> = Arc::default();
        let address = |port: u16| ServerAddress::tcp("h", 1000 + port).unwrap();
        let open = |port| outgoing.count(&address(port), Box::new(tokio::io::empty()));
        let kept = open(0);
        drop(open(0));
        let told = outgoing.document();
        let host = told.get_document("hosts").unwrap().get_document("h:1000").unwrap().clone();
        assert_eq!(host, doc! { "inUse": 1, "available": 0, "created": 2_i64 });
        for port in 0..=MAX_ADDRESSES as u16 {
            drop(open(port));
        }
        let hosts = outgoing.document().get_document("hosts").unwrap().clone();
        assert!(hosts.len() <= MAX_ADDRESSES && hosts.contains_key("h:1000"));
        drop(kept);
        assert_eq!(outgoing.document().get_i32("totalInUse").unwrap(), 0);
    }
}
