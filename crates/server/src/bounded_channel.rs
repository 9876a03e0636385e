//! A channel between threads with a bound, which takes memory as it fills.
//!
//! The channel of the standard library with a bound makes every place when it is made itself: the 65,536 places of the
//! queue for the disk were 1.5 MiB of a server that did nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvError, SendError, TrySendError};

/// A channel for at most this many values at a time.
pub(crate) fn bounded_channel<T>(limit: usize) -> (BoundedSender<T>, BoundedReceiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::<AtomicUsize>::default();
    let taken = Arc::clone(&waiting);
    (BoundedSender { sender, waiting, limit }, BoundedReceiver { receiver, waiting: taken })
}

pub(crate) struct BoundedSender<T> {
    sender: mpsc::Sender<T>,
    /// How many values are in the channel, or are about to be.
    waiting: Arc<AtomicUsize>,
    limit: usize,
}

impl<T> Clone for BoundedSender<T> {
    fn clone(&self) -> Self {
        let (sender, waiting) = (self.sender.clone(), Arc::clone(&self.waiting));
        Self { sender, waiting, limit: self.limit }
    }
}

impl<T> BoundedSender<T> {
    /// Sends a value without waiting. Fails if the channel is full or its receiver is gone.
    pub(crate) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(TrySendError::Full(value));
        }
        self.sender.send(value).map_err(|SendError(value)| TrySendError::Disconnected(value))
    }
}

pub(crate) struct BoundedReceiver<T> {
    receiver: mpsc::Receiver<T>,
    waiting: Arc<AtomicUsize>,
}

impl<T> BoundedReceiver<T> {
    fn took(&self, value: T) -> T {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        value
    }

    /// Waits for a value. Fails once all senders are gone and their values are taken.
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        self.receiver.recv().map(|value| self.took(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_channel_refuses_until_a_value_is_taken() {
        let (sender, receiver) = bounded_channel(2);
        assert_eq!((sender.try_send(1), sender.clone().try_send(2)), (Ok(()), Ok(())));
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        assert_eq!(
            sender.try_send(4),
            Err(TrySendError::Full(4)),
            "a refused value takes no place"
        );
        assert_eq!(receiver.recv(), Ok(1));
        assert_eq!(sender.try_send(5), Ok(()));
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(2), Ok(5)));
        assert_eq!((sender.try_send(6), sender.try_send(7)), (Ok(()), Ok(())));
        drop(receiver);
        assert_eq!(sender.clone().try_send(8), Err(TrySendError::Full(8)));
    }

    #[test]
    fn what_was_sent_is_received_after_the_senders_are_gone() {
        let (sender, receiver) = bounded_channel(2);
        assert_eq!(sender.try_send(1), Ok(()));
        drop(sender);
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(1), Err(RecvError)));
    }

    #[test]
    fn a_receiver_that_is_gone_refuses() {
        let (sender, receiver) = bounded_channel(2);
        drop(receiver);
        assert_eq!(sender.try_send(1), Err(TrySendError::Disconnected(1)));
    }

    /// A channel that makes its places first has no memory for so many.
    #[test]
    fn a_channel_takes_no_memory_for_values_that_are_not_there() {
        let (sender, receiver) = bounded_channel(usize::MAX);
        assert_eq!(sender.try_send([0_u8; 64]), Ok(()));
        assert!(receiver.recv().is_ok());
    }
}
