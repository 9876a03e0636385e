//! Transfers keep the sum of all accounts.

/// All accounts as one transaction read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankRead {
    /// The balances.
    pub balances: Vec<i64>,
}

/// What is wrong with a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BankAnomaly {
    /// The balances of this read do not add up.
    WrongTotal {
        /// Its place among the reads.
        read: usize,
        /// What they add up to.
        found: i64,
    },
    /// An account of this read is overdrawn.
    Overdrawn {
        /// Its place among the reads.
        read: usize,
        /// The account.
        account: usize,
    },
    /// This read has too few or too many accounts.
    WrongAccounts {
        /// Its place among the reads.
        read: usize,
    },
}

/// Judges reads of this many accounts, whose balances add up to `total`.
pub fn bank(accounts: usize, total: i64, reads: &[BankRead]) -> Vec<BankAnomaly> {
    let mut found = Vec::new();
    for (read, BankRead { balances }) in reads.iter().enumerate() {
        if balances.len() != accounts {
            found.push(BankAnomaly::WrongAccounts { read });
        }
        let sum = balances.iter().fold(0_i64, |sum, balance| sum.saturating_add(*balance));
        if sum != total {
            found.push(BankAnomaly::WrongTotal { read, found: sum });
        }
        let overdrawn = balances.iter().position(|balance| *balance < 0);
        found.extend(overdrawn.map(|account| BankAnomaly::Overdrawn { read, account }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_read_adds_up() {
        let read = |balances: &[i64]| BankRead { balances: balances.to_vec() };
        assert_eq!(bank(2, 10, &[read(&[5, 5]), read(&[0, 10])]), []);
        let found = bank(2, 10, &[read(&[5, 5]), read(&[4, 5]), read(&[-1, 11]), read(&[10])]);
        let expected = [
            BankAnomaly::WrongTotal { read: 1, found: 9 },
            BankAnomaly::Overdrawn { read: 2, account: 0 },
            BankAnomaly::WrongAccounts { read: 3 },
        ];
        assert_eq!(found, expected);
    }
}
