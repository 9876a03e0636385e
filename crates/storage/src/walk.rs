//! Reading through a range whose pairs are lent, not handed over.
//!
//! A reader that throws most pairs away, as a filter does, pays nothing for those. One that keeps a value says so
//! with [`Value::keep`].

use std::ops::Deref;

use crate::store::{Bytes, ReadError, Scan};

/// Pairs in key order, each lent until the next is asked for. After an error the walk is over.
pub trait Walk: Send {
    /// Goes to the next pair. False after the last one.
    fn advance(&mut self) -> Result<bool, ReadError>;

    /// The pair that the walk has come to; none before the first and after the last.
    fn lent(&self) -> Option<(&[u8], Value<'_>)>;

    /// Goes to the next pair, and lends it.
    fn next(&mut self) -> Result<Option<(&[u8], Value<'_>)>, ReadError> {
        Ok(if self.advance()? { self.lent() } else { None })
    }
}

/// A value that is lent.
#[derive(Clone, Copy, Debug)]
pub struct Value<'w> {
    bytes: &'w [u8],
    /// What holds the bytes, if keeping them costs less than a copy.
    holder: Option<&'w Bytes>,
}

impl<'w> Value<'w> {
    /// A value inside a buffer that the walk uses again.
    pub fn copied(bytes: &'w [u8]) -> Self {
        Self { bytes, holder: None }
    }

    /// A value that can be shared.
    pub fn shared(bytes: &'w Bytes) -> Self {
        Self { bytes, holder: Some(bytes) }
    }

    /// The bytes, for longer than the walk lends them.
    pub fn keep(&self) -> Bytes {
        match self.holder {
            Some(holder) => holder.clone(),
            None => Bytes::from(self.bytes),
        }
    }

    /// The bytes, for as long as the walk lends them.
    pub fn bytes(&self) -> &'w [u8] {
        self.bytes
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// A walk along a scan.
pub struct ScanWalk {
    scan: Scan,
    /// The pair that is lent.
    lent: Option<(Bytes, Bytes)>,
}

impl From<Scan> for ScanWalk {
    fn from(scan: Scan) -> Self {
        Self { scan, lent: None }
    }
}

impl Walk for ScanWalk {
    fn advance(&mut self) -> Result<bool, ReadError> {
        self.lent = self.scan.next().transpose()?;
        Ok(self.lent.is_some())
    }

    fn lent(&self) -> Option<(&[u8], Value<'_>)> {
        self.lent.as_ref().map(|(key, value)| (&**key, Value::shared(value)))
    }
}
