//! One other member of the set: what it reports, what it asks, and the oplog that it follows.
//!
//! A connection becomes one of these with the first message that only members send. From then on it
//! outlives a step-down, reports of progress go straight to the set, and the oplog can be followed over
//! it. Everything else that a member asks, such as the documents that it copies, takes the way of every
//! command.

use std::sync::Arc;

use quorate_member::EntrySource;
use quorate_protocol::PositionReport;
use quorate_wire::replica_set::read_position_report;
use quorate_wire::{MAX_MESSAGE_SIZE, Message, MsgFlags, Payload, RequestId};
use tokio::io::AsyncReadExt;

use crate::connection::{
    Connection, ConnectionError, Next, Received, error_body, read_more, take_apart,
};
use crate::replica_set::{ReplicaSet, Step};

/// A connection whose other end has proved to be a member, where members must.
pub(crate) struct MemberConnection {
    connection: Connection,
    set: Arc<ReplicaSet>,
}

impl MemberConnection {
    pub(crate) fn new(mut connection: Connection, set: Arc<ReplicaSet>) -> Self {
        connection.decoder.set_limit(MAX_MESSAGE_SIZE);
        Self { connection, set }
    }

    /// Serves the member until it leaves or the server ends. The first message is here already.
    pub(crate) async fn run(mut self, first: Received) -> Result<(), ConnectionError> {
        let mut ending = self.connection.shared.ending.subscribe();
        let mut received = Some(first);
        loop {
            if let Some(received) = received.take() {
                match received.oplog_from(&self.set).map(|from| self.set.open_source(from)) {
                    Some(Ok(source)) => {
                        let cut = self.set.cut();
                        return cut.guard(self.stream_oplog(received.request, source)).await;
                    }
                    Some(Err(error)) => {
                        let (request, body) = (received.request, error_body(&error));
                        self.connection.send(request, false, false, MsgFlags::NONE, &body).await?;
                    }
                    None => {
                        if let Next::Close = self.connection.serve(received).await? {
                            return Ok(());
                        }
                    }
                }
            }
            let Connection { shared, stream, decoder, .. } = &mut self.connection;
            let Some(message) = decoder.next_message()? else {
                tokio::select! {
                    read = read_more(stream, decoder) => if read? == 0 {
                        return Ok(());
                    },
                    _ = ending.wait_for(|ending| *ending) => return Ok(()),
                }
                continue;
            };
            shared.node.count_received(message.header.message_length);
            match report_in(&self.set, &message) {
                Some(report) => {
                    if !self.set.hear_report(report).await {
                        return Ok(());
                    }
                }
                None => received = Some(take_apart(&message)),
            }
        }
    }

    /// Pushes the oplog to the member until it leaves.
    async fn stream_oplog(
        self,
        request: RequestId,
        source: EntrySource,
    ) -> Result<(), ConnectionError> {
        let shared = Arc::clone(&self.connection.shared);
        let mut ending = shared.ending.subscribe();
        let (mut reader, writer, next) = self.connection.into_halves();
        let (stream, _following) = self.set.follow(source, writer, (request, next));
        let mut role = self.set.role();
        loop {
            if let Step::End = stream.step(&shared.node, shared.write_timeout).await? {
                return Ok(());
            }
            tokio::select! {
                () = stream.wait(&shared.node, &mut role) => {}
                // A follower sends nothing on this connection: bytes, an error or the end of the
                // stream end it.
                _ = reader.read_u8() => return Ok(()),
                _ = ending.wait_for(|ending| *ending) => return Ok(()),
            }
        }
    }
}

/// The report of progress that a message is. Every group of writes makes some, nothing answers them, and
/// clients' writes wait for them. What is not as members send it takes the way of every command, which
/// says what is wrong with it.
fn report_in(set: &ReplicaSet, message: &Message<'_>) -> Option<PositionReport> {
    let Payload::Msg(msg) = &message.payload else { return None };
    let is_report = msg.flags() == MsgFlags::MORE_TO_COME && !set.cut().is_cut();
    is_report.then(|| read_position_report(msg.body())).flatten()
}
