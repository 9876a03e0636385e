//! Accounts whose total never changes.

use crate::history::{Action, History, Outcome};
use crate::verdict::{Anomaly, Step, Verdict};

/// Checks that every read of all accounts shows the total, and no account below zero.
pub fn check(history: &History, total: i64) -> Verdict {
    let mut verdict = Verdict::default();
    for operation in history.operations() {
        let Action::Balances(balances) = &operation.action else {
            verdict.operations += usize::from(matches!(operation.action, Action::Transfer { .. }));
            continue;
        };
        verdict.operations += 1;
        let (Some(balances), Outcome::Ok) = (balances, operation.outcome) else { continue };
        let (name, sum) =
            (format!("operation {}", operation.index), balances.values().sum::<i64>());
        if sum != total {
            let sentence =
                format!("{name} of process {} reads {balances:?}, in all {sum}", operation.process);
            let summary = format!("a read shows a total of {sum} where there are {total}");
            verdict.add(Anomaly::new(
                "wrong-total",
                summary,
                vec![Step::fact(name.clone(), sentence)],
            ));
        }
        if let Some((account, balance)) = balances.iter().find(|(_, balance)| **balance < 0) {
            let sentence = format!(
                "{name} of process {} reads {balance} in account {account}",
                operation.process
            );
            let summary = format!("account {account} is below zero, which no transfer allows");
            verdict.add(Anomaly::new(
                "negative-balance",
                summary,
                vec![Step::fact(name, sentence)],
            ));
        }
    }
    verdict
}
