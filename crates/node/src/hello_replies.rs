//! Replies to `hello` as bytes, so that a change of state is encoded once for all clients that wait.
//!
//! Owns what the replies of one state have in common, which is all but the time and the number of the
//! connection. What a reply says is decided in `commands/hello.rs` and `replication/role.rs`.

use std::sync::Arc;

use bson::{DateTime, RawDocument, RawDocumentBuf};

use quorate_protocol::Lock;

use crate::context::Client;
use crate::replication::{Published, Standing};

/// How a client asks, as far as the reply shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// By the older name.
    pub(crate) legacy: bool,
    /// With `helloOk`.
    pub(crate) hello_ok: bool,
}

impl Form {
    const COUNT: usize = 4;

    fn place(self) -> usize {
        usize::from(self.legacy) * 2 + usize::from(self.hello_ok)
    }
}

/// What a reply tells of the member.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) published: Arc<Published>,
    pub(crate) standing: Standing,
}

impl Told {
    /// Whether the client comes by a horizon, where members have other names.
    pub(crate) fn names_differ_for(&self, client: &Client) -> bool {
        let Published { hello, horizons, .. } = &*self.published;
        horizons.seen_by(client, hello.reply.me.as_ref()).is_some()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let write = |told: &Self| (told.standing.last, told.standing.commit_point);
        Arc::ptr_eq(&self.published, &other.published) && write(self) == write(other)
    }
}

/// The newest reply of each form.
#[derive(Default)]
pub(crate) struct HelloReplies(Lock<[Option<Arc<Encoded>>; Form::COUNT]>);

struct Encoded {
    told: Told,
    bytes: Vec<u8>,
    time_at: usize,
    /// Where the number of the connection is.
    connection_at: usize,
}

impl HelloReplies {
    /// The reply to a client, if the one before it in this form told the same.
    pub(crate) fn get(
        &self,
        form: Form,
        told: &Told,
        now: DateTime,
        connection: i32,
    ) -> Option<RawDocumentBuf> {
        let known = self.0.lock()[form.place()].clone().filter(|known| known.told.is_same(told))?;
        let mut bytes = known.bytes.clone();
        put(&mut bytes, known.time_at, &now.timestamp_millis().to_le_bytes())?;
        put(&mut bytes, known.connection_at, &connection.to_le_bytes())?;
        RawDocumentBuf::from_bytes(bytes).ok()
    }

    /// Keeps a reply for the clients that ask next.
    pub(crate) fn keep(&self, form: Form, told: Told, reply: &RawDocument) {
        if let Some(encoded) = Encoded::of(told, reply) {
            self.0.lock()[form.place()] = Some(Arc::new(encoded));
        }
    }
}

impl Encoded {
    fn of(told: Told, reply: &RawDocument) -> Option<Self> {
        let bytes = reply.as_bytes().to_vec();
        // Both come before every field that depends on a configuration.
        let time_at = behind(&bytes, b"\x09localTime\0")?;
        let connection_at = behind(&bytes, b"\x10connectionId\0")?;
        let (time, connection) =
            (reply.get_datetime("localTime").ok()?, reply.get_i32("connectionId").ok()?);
        let found = bytes[time_at..].starts_with(&time.timestamp_millis().to_le_bytes())
            && bytes[connection_at..].starts_with(&connection.to_le_bytes());
        found.then_some(Self { told, bytes, time_at, connection_at })
    }
}

/// Where the first occurrence ends.
fn behind(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let at = bytes.windows(wanted.len()).position(|window| window == wanted)?;
    Some(at + wanted.len())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes.get_mut(at..at + value.len())?.copy_from_slice(value);
    Some(())
}
