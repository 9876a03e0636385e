//! One other member of the set: what it reports, what it asks, and the oplog that it follows.
//!
//! A connection becomes one of these with the first message that only members send. From then on it
//! outlives a step-down, reports of progress go straight to the set, and the oplog can be followed over
//! it. Everything else that a member asks, such as the documents that it copies, takes the way of every
//! command.

use std::sync::Arc;

use quorate_protocol::{OpTime, PositionReport};
use quorate_wire::replica_set::read_position_report;
use quorate_wire::{MAX_MESSAGE_SIZE, Message, MsgFlags, Payload, RequestId};

use crate::connection::{
    Connection, ConnectionError, Next, Received, error_body, read_more, take_apart,
};
use crate::replica_set::{OplogStream, ReplicaSet};

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
        let mut next = self.serve(first).await?;
        while let Next::GoOn = next {
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
            next = match report_in(&self.set, &message) {
                Some(report) => match self.set.hear_report(report).await {
                    true => Next::GoOn,
                    false => Next::Close,
                },
                None => {
                    let received = take_apart(&message);
                    self.serve(received).await?
                }
            };
        }
        Ok(())
    }

    async fn serve(&mut self, received: Received) -> Result<Next, ConnectionError> {
        match received.oplog_from(&self.set) {
            Some(from) => {
                let cut = self.set.cut();
                cut.guard(self.stream_oplog(received.request, from)).await
            }
            None => self.connection.serve(received).await,
        }
    }

    /// Pushes the oplog to the member until it leaves.
    async fn stream_oplog(
        &mut self,
        mut request: RequestId,
        from: OpTime,
    ) -> Result<Next, ConnectionError> {
        let connection = &mut self.connection;
        let node = Arc::clone(&connection.shared.node);
        let mut ending = connection.shared.ending.subscribe();
        let mut stream = match OplogStream::open(&self.set, &node, from) {
            Ok(stream) => stream,
            Err(error) => {
                let body = error_body(&error);
                connection.send(request, false, false, MsgFlags::NONE, &body).await?;
                return Ok(Next::GoOn);
            }
        };
        let mut say_something = true;
        loop {
            match stream.next_batch(&node, say_something) {
                Ok(Some(body)) => {
                    let flags = MsgFlags::MORE_TO_COME;
                    request = connection.send(request, false, false, flags, &body).await?;
                }
                Ok(None) => {}
                Err(error) => {
                    let body = error_body(&error);
                    connection.send(request, false, false, MsgFlags::NONE, &body).await?;
                    return Ok(Next::Close);
                }
            }
            if stream.has_ended() {
                return Ok(Next::Close);
            }
            say_something = tokio::select! {
                due = stream.news() => due,
                // A follower has nothing to say: whatever it does, it is leaving.
                _ = read_more(&mut connection.stream, &mut connection.decoder) => {
                    return Ok(Next::Close);
                }
                _ = ending.wait_for(|ending| *ending) => return Ok(Next::Close),
            };
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
