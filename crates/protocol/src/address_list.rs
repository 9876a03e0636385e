//! A list of addresses that many replies share.
//!
//! Every member of a set lists the same members. Replies that share one list cost no memory for it, and
//! comparing two of them costs a look at two pointers.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::ServerAddress;

/// Addresses in the order in which a server lists them. Cheap to clone.
#[derive(Clone, Default)]
pub struct AddressList(Arc<[ServerAddress]>);

impl AddressList {
    /// Adds an address at the end. The list is copied: this is for short ones.
    pub fn push(&mut self, address: ServerAddress) {
        self.0 = self.0.iter().cloned().chain([address]).collect();
    }

    /// Whether both are one list in memory, or empty. Lists that are not may still be equal.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.is_empty() && other.0.is_empty())
    }
}

impl Deref for AddressList {
    type Target = [ServerAddress];

    fn deref(&self) -> &[ServerAddress] {
        &self.0
    }
}

impl PartialEq for AddressList {
    fn eq(&self, other: &Self) -> bool {
        self.is_shared_with(other) || self.0 == other.0
    }
}

impl Eq for AddressList {}

impl<const N: usize> PartialEq<[ServerAddress; N]> for AddressList {
    fn eq(&self, other: &[ServerAddress; N]) -> bool {
        *self.0 == *other
    }
}

impl fmt::Debug for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

impl From<Vec<ServerAddress>> for AddressList {
    fn from(addresses: Vec<ServerAddress>) -> Self {
        Self(addresses.into())
    }
}

impl FromIterator<ServerAddress> for AddressList {
    fn from_iter<I: IntoIterator<Item = ServerAddress>>(addresses: I) -> Self {
        Self(addresses.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a AddressList {
    type Item = &'a ServerAddress;
    type IntoIter = std::slice::Iter<'a, ServerAddress>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ServerAddress {
        text.parse().unwrap()
    }

    #[test]
    fn copies_are_shared_and_others_are_compared() {
        let list: AddressList = ["a", "b"].map(address).into_iter().collect();
        let copy = list.clone();
        assert!(copy.is_shared_with(&list) && copy == list);
        let other = AddressList::from(vec![address("a"), address("b")]);
        assert!(!other.is_shared_with(&list) && other == list);
        let mut longer = other.clone();
        longer.push(address("c"));
        assert!(longer != list && longer == ["a", "b", "c"].map(address));
        assert_eq!(other.len(), 2, "a copy that grows leaves the others");
    }
}
