//! A queue that forgets its oldest item when it is full.

use std::collections::VecDeque;
use std::collections::vec_deque;

/// The last items, the oldest first; never more than its bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ring<T> {
    items: VecDeque<T>,
    bound: usize,
}

impl<T> Ring<T> {
    /// An empty one that keeps this many.
    pub(crate) const fn new(bound: usize) -> Self {
        Self { items: VecDeque::new(), bound }
    }

    /// Adds the newest item.
    pub(crate) fn push(&mut self, item: T) {
        if self.items.len() >= self.bound {
            self.items.pop_front();
        }
        self.items.push_back(item);
    }

    /// From the oldest to the newest.
    pub(crate) fn iter(&self) -> vec_deque::Iter<'_, T> {
        self.items.iter()
    }

    /// The newest.
    pub(crate) fn last(&self) -> Option<&T> {
        self.items.back()
    }

    /// The newest, to be changed.
    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        self.items.back_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut ring = Ring::new(2);
        for number in 1..=3 {
            ring.push(number);
        }
        assert_eq!(ring.iter().copied().collect::<Vec<_>>(), [2, 3]);
        assert_eq!((ring.last(), ring.len()), (Some(&3), 2));
    }
}
