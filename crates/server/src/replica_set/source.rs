//! The sending end of oplog streams: entries are pushed to followers as they are written.
//!
//! Each stream has a task, but the thread that has news for a follower writes it into the socket itself: a thread that
//! appended entries, or one that moved the commit point past those that were sent. That spares an entry a change of
//! threads. What gathers is pushed by a timer that all streams share. The task does what takes time: the first batch,
//! what the socket has no room for, batches that are large, errors, and signs of life.
//!
//! ```text
//!   appended, committed, tick ──▶ push ──▶ written
//!                     ▲            │ │ not all
//!                     │   not now  │ ▼
//!                     └─── pace ◀──┘ task ──▶ written, ended
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_member::{EntrySource, MAX_BATCH_BYTES};
use quorate_node::Node;
use quorate_protocol::Lock;
use quorate_wire::{EncodeError, MsgFlags, MsgWriter, RequestId};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::cut::Cut;
use super::pace::{GATHERING, Pace};
use super::stream::batch_document;
use super::{RoleView, SetView};
use crate::connection::{ConnectionError, error_body};
use crate::net::{self, Stream, WriteHalf};

/// The longest interval between two batches to a follower, which takes a silent source for failed.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Bytes of entries that a thread pushes for its own. What is more is left to the task.
const MAX_PUSHED_BYTES: usize = 64 * 1024;

/// Memory that a stream keeps for its next message after a large one.
const RETAINED_OUTPUT: usize = 64 * 1024;

/// The streams to all followers.
#[derive(Default)]
pub(crate) struct Followers {
    streams: Lock<Arc<Vec<Arc<OplogStream>>>>,
    pace: Pace,
}

impl Followers {
    /// Adds a stream, until the value is dropped.
    pub(crate) fn join(self: &Arc<Self>, stream: &Arc<OplogStream>) -> Following {
        Arc::make_mut(&mut self.streams.lock()).push(Arc::clone(stream));
        Following { followers: Arc::clone(self), stream: Arc::clone(stream) }
    }

    /// The log has grown, or more of it is committed.
    pub(super) fn push(&self, node: &Node) {
        let streams = Arc::clone(&self.streams.lock());
        let gathering = streams.iter().filter(|stream| stream.push(node)).count();
        if gathering > 0 {
            self.pace.ask();
        }
    }

    /// Pushes what has gathered for long enough. Never returns.
    pub(super) async fn keep_pace(&self, node: &Node) -> Infallible {
        self.pace
            .run(|| {
                let streams = Arc::clone(&self.streams.lock());
                for stream in streams.iter() {
                    stream.push(node);
                }
                streams.iter().filter_map(|stream| stream.left_to_gather()).min()
            })
            .await
    }
}

/// A stream among the others.
pub(crate) struct Following {
    followers: Arc<Followers>,
    stream: Arc<OplogStream>,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut streams = self.followers.streams.lock();
        Arc::make_mut(&mut streams).retain(|stream| !Arc::ptr_eq(stream, &self.stream));
    }
}

/// One follower's stream.
pub(crate) struct OplogStream {
    sending: Lock<Sending>,
    /// There may be something to push. A thread that finds another one pushing leaves its news here.
    news: AtomicBool,
    /// Wakes the task.
    wake: Notify,
    view: watch::Receiver<SetView>,
    cut: Cut,
}

struct Sending {
    source: EntrySource,
    /// None while the task writes.
    writer: Option<WriteHalf<Stream>>,
    /// What has yet to be written.
    output: Vec<u8>,
    /// The message that the next one answers, and the number of the next one.
    answers: RequestId,
    next: i32,
    /// Whether the socket holds back what was written.
    is_unflushed: bool,
    /// When the last message was made.
    since: Instant,
    /// Whether a push has met an error. The task meets one of the store again, and tells it.
    has_failed: bool,
    /// Whether entries were lost on their way into a message, so that nothing can follow.
    is_broken: bool,
}

/// What is to be done with what a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// What is new can be sent.
    Now,
    /// The task must see to it.
    Task,
    /// What is new waits for more, but not for long.
    Soon,
}

/// How the task of a stream goes on.
pub(crate) enum Step {
    GoOn,
    /// Nothing follows: the connection is closed.
    End,
}

impl OplogStream {
    /// A stream that writes here. The follower asked for it with this message; the next of ours has this number.
    pub(super) fn new(
        source: EntrySource,
        writer: WriteHalf<Stream>,
        (answers, next): (RequestId, i32),
        view: watch::Receiver<SetView>,
        cut: Cut,
    ) -> Self {
        let sending = Sending {
            source,
            writer: Some(writer),
            output: Vec::new(),
            answers,
            next,
            is_unflushed: false,
            since: Instant::now(),
            has_failed: false,
            is_broken: false,
        };
        let news = AtomicBool::new(false);
        Self { sending: Lock::new(sending), news, wake: Notify::new(), view, cut }
    }

    /// Writes what is due into the socket, without waiting for anything. Returns whether something gathers.
    fn push(&self, node: &Node) -> bool {
        let mut gathers = false;
        self.news.store(true, Ordering::SeqCst);
        while self.news.load(Ordering::SeqCst) {
            // The thread that holds it looks for news again, and so does the task when it has written.
            let Some(mut sending) = self.sending.try_lock() else { return gathers };
            if sending.writer.is_none() {
                return gathers;
            }
            self.news.store(false, Ordering::SeqCst);
            let view = *self.view.borrow();
            let due = sending.due(node, &view);
            gathers = due == Due::Soon;
            let is_task_due = match due {
                Due::Nothing | Due::Soon => false,
                Due::Task => true,
                Due::Now if self.cut.is_cut() => true,
                Due::Now => !sending.push(node, view),
            };
            drop(sending);
            if is_task_due {
                self.wake.notify_one();
            }
        }
        gathers
    }

    /// How much longer something may gather behind the last message.
    fn left_to_gather(&self) -> Option<Duration> {
        let (left, is_writable) = match self.sending.try_lock() {
            Some(sending) => (sending.left_to_gather(), sending.writer.is_some()),
            // A thread makes the next message.
            None => return Some(GATHERING),
        };
        // A thread that met the lock taken has left its news here.
        let has_news = is_writable && self.news.load(Ordering::SeqCst);
        left.or_else(|| has_news.then_some(Duration::ZERO))
    }

    /// Returns when the task may have something to do.
    pub(crate) async fn wait(&self, node: &Node, role: &mut watch::Receiver<RoleView>) {
        let until = {
            let sending = self.sending.lock();
            if sending.is_work_left() {
                return;
            }
            let rests = sending.due(node, &self.view.borrow()) == Due::Nothing;
            sending.since + if rests { KEEP_ALIVE } else { GATHERING }
        };
        // A thread that met the lock taken has left its news here.
        if self.news.load(Ordering::SeqCst) {
            return;
        }
        tokio::select! {
            biased;
            () = self.wake.notified() => {}
            Ok(()) = role.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    /// Sends what is due, and waits until the socket has taken it.
    pub(crate) async fn step(
        &self,
        node: &Node,
        timeout: Duration,
    ) -> Result<Step, ConnectionError> {
        let (mut writer, bytes, step) = {
            let mut sending = self.sending.lock();
            self.news.store(false, Ordering::SeqCst);
            let step = sending.prepare(node, *self.view.borrow())?;
            if sending.output.is_empty() && !std::mem::take(&mut sending.is_unflushed) {
                return Ok(step);
            }
            let Some(writer) = sending.writer.take() else { return Ok(Step::End) };
            (writer, std::mem::take(&mut sending.output), step)
        };
        let writing = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        let written = tokio::time::timeout(timeout, writing).await;
        written.map_err(|_| ConnectionError::SlowClient)??;
        let mut sending = self.sending.lock();
        sending.writer = Some(writer);
        sending.keep_room(bytes);
        Ok(step)
    }
}

impl Sending {
    /// Whether the task has work that does not wait for anything.
    fn is_work_left(&self) -> bool {
        self.source.is_behind()
            || self.source.has_ended()
            || !self.output.is_empty()
            || self.is_unflushed
            || self.has_failed
            || self.is_broken
    }

    /// What is to be done now. While the last entries that were sent are not committed, the next ones gather: under load
    /// that makes few large messages, applies, syncs and reports out of many small ones. A lone writer never waits
    /// here, because its last write was acknowledged before it sends the next. A commit point travels with the next
    /// entry, unless none comes soon.
    fn due(&self, node: &Node, view: &SetView) -> Due {
        let (Some(sent), Some(told)) = (self.source.sent(), self.source.told()) else {
            return Due::Task;
        };
        if self.is_work_left() {
            return Due::Task;
        }
        if told.role() != view.role() {
            return Due::Now;
        }
        let has_grown = node.log_positions().written.op_time != sent;
        if has_grown && view.commit_point.op_time >= sent {
            return Due::Now;
        }
        if !has_grown && told.commit_point == view.commit_point {
            return Due::Nothing;
        }
        if self.left_to_gather().is_some() { Due::Soon } else { Due::Now }
    }

    fn left_to_gather(&self) -> Option<Duration> {
        GATHERING.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Makes the next message and writes it. False if the task must go on with it.
    fn push(&mut self, node: &Node, view: SetView) -> bool {
        match self.source.next_batch_of(node, view, false, MAX_PUSHED_BYTES) {
            Ok(Some(batch)) => {
                let body = batch_document(&batch);
                self.is_broken = self.encode(node, MsgFlags::MORE_TO_COME, &body).is_err();
            }
            Ok(None) => {}
            Err(_) => self.has_failed = true,
        }
        self.write_now();
        !self.is_work_left()
    }

    /// Makes the next message if one is due, unless another waits to be written.
    fn prepare(&mut self, node: &Node, view: SetView) -> Result<Step, EncodeError> {
        if self.is_broken {
            return Ok(Step::End);
        }
        if !self.output.is_empty() {
            return Ok(Step::GoOn);
        }
        if self.source.has_ended() {
            return Ok(Step::End);
        }
        let silence = self.since.elapsed();
        let is_silent = silence >= KEEP_ALIVE;
        match self.due(node, &view) {
            Due::Now | Due::Task => {}
            Due::Nothing if is_silent => {}
            Due::Nothing | Due::Soon => return Ok(Step::GoOn),
        }
        self.since = Instant::now();
        self.has_failed = false;
        match self.source.next_batch_of(node, view, is_silent, MAX_BATCH_BYTES) {
            Ok(None) => {}
            Ok(Some(batch)) => {
                self.encode(node, MsgFlags::MORE_TO_COME, &batch_document(&batch))?;
            }
            Err(error) => {
                self.encode(node, MsgFlags::NONE, &error_body(&error))?;
                return Ok(Step::End);
            }
        }
        Ok(if self.source.has_ended() { Step::End } else { Step::GoOn })
    }

    fn encode(
        &mut self,
        node: &Node,
        flags: MsgFlags,
        body: &RawDocumentBuf,
    ) -> Result<(), EncodeError> {
        let id = RequestId(self.next);
        self.next = self.next.wrapping_add(1);
        MsgWriter::new(&mut self.output, id, self.answers, flags, body).finish(None)?;
        node.count_sent(self.output.len());
        // Each streamed reply answers the one before it.
        self.answers = id;
        self.since = Instant::now();
        Ok(())
    }

    /// Writes as much as the socket takes. What is left, and an error of the socket, is for the task.
    fn write_now(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let (written, is_flushed) = net::write_now(writer, &self.output);
        if written < self.output.len() {
            return drop(self.output.drain(..written));
        }
        self.is_unflushed = !is_flushed;
        let output = std::mem::take(&mut self.output);
        self.keep_room(output);
    }

    /// Keeps the memory of a message that was written, unless it is much.
    fn keep_room(&mut self, mut written: Vec<u8>) {
        written.clear();
        if written.capacity() <= RETAINED_OUTPUT && self.output.capacity() == 0 {
            self.output = written;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use bson::{DateTime, Timestamp, rawdoc};
    use quorate_node::NodeOptions;
    use quorate_protocol::{MemberState, OpTime, OpTimeAndWallTime, Term};
    use quorate_storage::ModelStore;
    use quorate_wire::{Decoder, Payload};
    use tokio::io::AsyncReadExt;

    use super::super::stream::parse_batch;
    use super::*;
    use crate::clock::Clock;
    use crate::net::{TcpListener, TcpStream};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A source without a task for its stream, and the follower's end of the socket.
    struct Pair {
        node: Arc<Node>,
        view: watch::Sender<SetView>,
        followers: Arc<Followers>,
        stream: Arc<OplogStream>,
        following: Following,
        cut: Cut,
        socket: TcpStream,
        decoder: Decoder,
        entries: u32,
    }

    fn op_time(number: u32) -> OpTime {
        OpTime::new(1, quorate_protocol::Timestamp::new(1, number))
    }

    fn view() -> SetView {
        SetView {
            term: Term(1),
            state: MemberState::Primary,
            is_primary: true,
            commit_point: OpTimeAndWallTime::default(),
            rollback_id: 1,
            knows_primary: true,
            majority_by_default: true,
        }
    }

    impl Pair {
        async fn new() -> Self {
            let clock = Clock::new();
            let options = NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() };
            let node = Node::open(Arc::new(ModelStore::new()), options, clock.now()).unwrap();
            let node = Arc::new(node);
            node.join_replica_set(clock.now()).unwrap();
            let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (_, writer) = Stream::from(listener.accept().await.unwrap().0).into_split();
            let (sender, receiver) = watch::channel(view());
            let cut = Cut::default();
            append(&node, 0, 10);
            let source = EntrySource::open(&view(), &node, op_time(1)).unwrap();
            let numbers = (RequestId(7), 1);
            let stream = OplogStream::new(source, writer, numbers, receiver, cut.clone());
            let (stream, followers) = (Arc::new(stream), Arc::<Followers>::default());
            let following = followers.join(&stream);
            let (decoder, entries) = (Decoder::new(), 1);
            Self { node, view: sender, followers, stream, following, cut, socket, decoder, entries }
        }

        /// Appends an entry with a text of this length.
        fn append(&mut self, length: usize) {
            append(&self.node, self.entries, length);
            self.entries += 1;
        }

        fn commit(&mut self) {
            let op_time = op_time(self.entries);
            let commit_point = OpTimeAndWallTime { op_time, ..OpTimeAndWallTime::default() };
            self.view.send_modify(|view| view.commit_point = commit_point);
        }

        fn push(&self) {
            self.followers.push(&self.node);
        }

        async fn step(&self) {
            let step = self.stream.step(&self.node, PATIENCE).await.unwrap();
            assert!(matches!(step, Step::GoOn));
        }

        /// How many entries the next message has, once it has come.
        async fn received(&mut self) -> usize {
            loop {
                if let Some(message) = self.decoder.next_message().unwrap() {
                    let Payload::Msg(message) = message.payload else { panic!("no OP_MSG") };
                    return parse_batch(message.body()).unwrap().entries.len();
                }
                let reading = self.socket.read_buf(self.decoder.input());
                assert!(tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap() > 0);
            }
        }

        /// How many entries the next message has. The timer of the streams runs meanwhile, and no task.
        async fn received_in_time(&mut self) -> usize {
            let (followers, node) = (Arc::clone(&self.followers), Arc::clone(&self.node));
            tokio::select! {
                count = self.received() => count,
                never = followers.keep_pace(&node) => match never {},
            }
        }

        fn has_sent(&self) -> Option<OpTime> {
            self.stream.sending.lock().source.sent()
        }
    }

    fn append(node: &Node, last: u32, length: usize) {
        let entry = rawdoc! {
            "op": "n", "ns": "", "o": { "msg": "x".repeat(length) },
            "ts": Timestamp { time: 1, increment: last + 1 }, "t": 1_i64, "v": 2_i64,
            "wall": DateTime::from_millis(1),
        };
        let previous = if last == 0 { OpTime::NULL } else { op_time(last) };
        node.apply(previous, vec![entry], Clock::new().now()).unwrap();
    }

    /// The first batch is the task's. From then on the thread that appends sends, without the task.
    #[tokio::test]
    async fn the_thread_that_appends_sends_to_followers_that_have_all() {
        let mut pair = Pair::new().await;
        pair.push();
        assert_eq!(pair.has_sent(), None, "nothing is pushed before the first batch");
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        for _ in 0..3 {
            pair.commit();
            pair.append(10);
            pair.push();
            assert_eq!(pair.received().await, 1);
        }
        // A stream that has ended is pushed nothing.
        drop(std::mem::replace(
            &mut pair.following,
            Followers::join(&Arc::default(), &pair.stream),
        ));
        pair.commit();
        pair.append(10);
        pair.push();
        assert_eq!(pair.has_sent(), Some(op_time(4)));
    }

    /// What comes while the last entries are not committed gathers, until they are or the time is up.
    #[tokio::test]
    async fn entries_gather_behind_what_is_not_committed() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        for _ in 0..2 {
            pair.append(10);
            pair.push();
        }
        assert_eq!(pair.has_sent(), Some(op_time(1)));
        // A commit point beyond what was sent lets them go.
        let committed = OpTimeAndWallTime { op_time: op_time(1), ..OpTimeAndWallTime::default() };
        pair.view.send_modify(|view| view.commit_point = committed);
        pair.push();
        assert_eq!(pair.received().await, 2);
        // So does time.
        pair.append(10);
        pair.push();
        assert_eq!(pair.has_sent(), Some(op_time(3)));
        assert_eq!(pair.received_in_time().await, 1);
    }

    /// A commit point that moves alone is told within a few milliseconds.
    #[tokio::test]
    async fn a_commit_point_alone_is_told_soon() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        pair.commit();
        pair.push();
        assert_eq!(pair.received_in_time().await, 0);
        assert_eq!(pair.stream.sending.lock().source.told(), Some(*pair.view.borrow()));
    }

    /// News that came while the task was writing gathers as well: no thread has asked the timer for it.
    #[tokio::test]
    async fn the_task_sends_what_gathered_while_it_was_writing() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        let writer = pair.stream.sending.lock().writer.take();
        pair.append(10);
        pair.push();
        pair.stream.sending.lock().writer = writer;
        let (_role, mut role) = watch::channel(view().role());
        while pair.has_sent() == Some(op_time(1)) {
            let waiting = pair.stream.wait(&pair.node, &mut role);
            tokio::time::timeout(KEEP_ALIVE / 2, waiting).await.expect("the task wakes by itself");
            pair.step().await;
        }
        assert_eq!(pair.received().await, 1);
    }

    /// The time of what gathered may be up when the task begins to wait.
    #[tokio::test]
    async fn the_task_does_not_rest_on_what_is_due() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        pair.commit();
        pair.append(10);
        let (_role, mut role) = watch::channel(view().role());
        let waiting = pair.stream.wait(&pair.node, &mut role);
        tokio::time::timeout(KEEP_ALIVE / 2, waiting).await.expect("the task wakes by itself");
    }

    /// The timer may hold a stream while a thread has news for it.
    #[tokio::test]
    async fn the_timer_looks_at_news_that_came_while_it_looked() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        let long_ago = Instant::now() - KEEP_ALIVE;
        pair.stream.sending.lock().since = long_ago;
        assert_eq!(pair.stream.left_to_gather(), None);
        pair.commit();
        pair.append(10);
        let held = pair.stream.sending.lock();
        pair.push();
        drop(held);
        assert_eq!(pair.stream.left_to_gather(), Some(Duration::ZERO));
        let writer = pair.stream.sending.lock().writer.take();
        assert_eq!(pair.stream.left_to_gather(), None, "the task looks when it has written");
        pair.stream.sending.lock().writer = writer;
        pair.followers.pace.ask();
        assert_eq!(pair.received_in_time().await, 1);
    }

    /// What the socket does not take at once, and what is too much for a push, is left to the task, in its order.
    #[tokio::test]
    async fn what_the_socket_does_not_take_is_left_to_the_task() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        let (mut pushed, mut got) = (0, 0);
        while pair.stream.sending.lock().output.is_empty() {
            pair.commit();
            for _ in 0..3 {
                pair.append(16 * 1024);
                pushed += 1;
            }
            pair.push();
        }
        // Nothing is pushed past it.
        let (sent, owed) = (pair.has_sent(), pair.stream.sending.lock().output.len());
        pair.commit();
        pair.append(10);
        pushed += 1;
        pair.push();
        assert_eq!((pair.has_sent(), pair.stream.sending.lock().output.len()), (sent, owed));
        let (stream, node, last) = (Arc::clone(&pair.stream), &pair.node, op_time(pair.entries));
        let sending = async {
            while stream.sending.lock().source.sent() != Some(last)
                || stream.sending.lock().is_work_left()
            {
                stream.step(node, PATIENCE).await.map(drop).unwrap();
            }
        };
        let (socket, decoder) = (&mut pair.socket, &mut pair.decoder);
        let reading = async {
            while got < pushed {
                assert!(socket.read_buf(decoder.input()).await.unwrap() > 0);
                while let Some(message) = decoder.next_message().unwrap() {
                    let Payload::Msg(message) = message.payload else { panic!("no OP_MSG") };
                    got += parse_batch(message.body()).unwrap().entries.len();
                }
            }
        };
        let both = async { tokio::join!(sending, reading) };
        tokio::time::timeout(PATIENCE, both).await.expect("the follower gets everything");
        assert_eq!(got, pushed);
    }

    /// During a cut nothing is sent by any thread.
    #[tokio::test]
    async fn nothing_is_pushed_during_a_cut() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        pair.cut.set(true);
        pair.commit();
        pair.append(10);
        pair.push();
        assert_eq!(pair.has_sent(), Some(op_time(1)));
        pair.cut.set(false);
        pair.push();
        assert_eq!(pair.received().await, 1);
    }

    /// News that comes while the task or another thread is sending is looked at by that one.
    #[tokio::test]
    async fn news_is_not_lost_while_another_thread_sends() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        pair.commit();
        pair.append(10);
        let held = pair.stream.sending.lock();
        pair.push();
        drop(held);
        let (_role, mut role) = watch::channel(view().role());
        let mut waiting = Box::pin(pair.stream.wait(&pair.node, &mut role));
        let looked = std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context)));
        assert_eq!(looked.await, Poll::Ready(()), "the news is there, and no time passes");
        drop(waiting);
        pair.step().await;
        assert_eq!(pair.received().await, 1);
    }

    /// A push takes no more than a thread can spare. The task sends the rest.
    #[tokio::test]
    async fn a_push_leaves_large_batches_to_the_task() {
        let mut pair = Pair::new().await;
        pair.step().await;
        assert_eq!(pair.received().await, 1);
        pair.commit();
        (0..8).for_each(|_| pair.append(16 * 1024));
        pair.push();
        let first = pair.received().await;
        assert!((1..8).contains(&first), "{first} of 8");
        pair.step().await;
        assert_eq!(first + pair.received().await, 8);
    }
}
