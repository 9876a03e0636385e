//! The workloads that use transactions: lists and the bank.
//!
//! Each attempt is an operation of its own, so that the history knows exactly what was tried: an error before the
//! commit, or a commit that the server says it aborted, did nothing; any other error of a commit is unknown.

use std::collections::BTreeMap;

use bson::doc;
use quorate_checker::{Action, MicroOperation, Outcome};
use quorate_client::{Client, Error, Session, TransactionOptions, WriteConcern};
use quorate_connection_string::WriteAcknowledgement;

use super::client::Worker;
use super::record::Recorder;
use super::workload::{ACCOUNTS, Site, Workload, integer, list};

/// The most steps of a transaction on lists.
const MAX_STEPS: u64 = 4;

/// The most that is moved at a time.
const MAX_AMOUNT: u64 = 5;

/// The label of an error after which the transaction certainly did nothing.
const TRANSIENT: &str = "TransientTransactionError";

fn begin(client: &Client) -> Result<Session, Error> {
    let mut session = client.start_session();
    session.start_transaction_with(TransactionOptions {
        read_concern: Some("snapshot".to_owned()),
        write_concern: Some(WriteConcern {
            w: Some(WriteAcknowledgement::Majority),
            ..WriteConcern::default()
        }),
        ..TransactionOptions::default()
    })?;
    Ok(session)
}

/// Ends a transaction whose statements went so: commits, or aborts after an error.
async fn finish<T>(mut session: Session, worked: Result<T, Error>) -> (Outcome, Option<T>) {
    let Ok(value) = worked else {
        // Ignore errors: the server forgets a transaction that it does not hear of.
        let _ = session.abort_transaction().await;
        return (Outcome::Fail, None);
    };
    match session.commit_transaction().await {
        Ok(()) => (Outcome::Ok, Some(value)),
        Err(error) if error.has_label(TRANSIENT) => (Outcome::Fail, None),
        Err(_) => (Outcome::Unknown, None),
    }
}

/// Reads and appends to some lists.
pub(super) async fn append(worker: &mut Worker) -> bool {
    let steps: Vec<MicroOperation> = (0..=worker.chance.below(MAX_STEPS))
        .map(|_| {
            let key = worker.key();
            match worker.chance.below(2) {
                0 => MicroOperation::Append { key, value: worker.site.value() },
                _ => MicroOperation::Read { key, list: None },
            }
        })
        .collect();
    let begun = worker.recorder.begin(worker.process, Action::Transaction(steps.clone()));
    let Ok(mut session) = begin(&worker.site.client) else {
        return worker.end(begun, Outcome::Fail, None);
    };
    let worked = run_steps(&worker.site, steps, &mut session).await;
    let (outcome, learnt) = finish(session, worked).await;
    worker.end(begun, outcome, learnt.map(Action::Transaction))
}

async fn run_steps(
    site: &Site,
    steps: Vec<MicroOperation>,
    session: &mut Session,
) -> Result<Vec<MicroOperation>, Error> {
    let collection = site.collection(Workload::Append);
    let mut learnt = Vec::with_capacity(steps.len());
    for step in steps {
        learnt.push(match step {
            MicroOperation::Append { key, value } => {
                let change = doc! { "$push": { "list": value } };
                collection
                    .update_one(doc! { "_id": key }, change)
                    .upsert(true)
                    .session(session)
                    .await?;
                step
            }
            MicroOperation::Read { key, .. } => {
                let found = collection.find_one(doc! { "_id": key }).session(session).await?;
                MicroOperation::Read {
                    key,
                    list: Some(found.as_deref().map(list).unwrap_or_default()),
                }
            }
        });
    }
    Ok(learnt)
}

/// Moves an amount, or reads all accounts.
pub(super) async fn use_bank(worker: &mut Worker) -> bool {
    if worker.chance.below(3) == 0 {
        return read_balances(&worker.site, &worker.recorder, worker.process).await.is_ok();
    }
    let from = worker.chance.below(ACCOUNTS as u64) as i64;
    let to = (from + 1 + worker.chance.below(ACCOUNTS as u64 - 1) as i64) % ACCOUNTS;
    let amount = 1 + worker.chance.below(MAX_AMOUNT) as i64;
    let begun = worker.recorder.begin(worker.process, Action::Transfer { from, to, amount });
    let Ok(mut session) = begin(&worker.site.client) else {
        return worker.end(begun, Outcome::Fail, None);
    };
    let worked = transfer(&worker.site, (from, to, amount), &mut session).await;
    let (outcome, _) = finish(session, worked).await;
    worker.end(begun, outcome, None)
}

async fn transfer(
    site: &Site,
    (from, to, amount): (i64, i64, i64),
    session: &mut Session,
) -> Result<(), Error> {
    let accounts = site.collection(Workload::Bank);
    let found = accounts.find_one(doc! { "_id": from }).session(session).await?;
    if found.as_deref().and_then(|account| integer(account, "balance")).unwrap_or_default() < amount
    {
        return Ok(());
    }
    for (account, change) in [(from, -amount), (to, amount)] {
        let change = doc! { "$inc": { "balance": change } };
        accounts.update_one(doc! { "_id": account }, change).session(session).await?;
    }
    Ok(())
}

/// Reads all accounts at one moment.
pub(super) async fn read_balances(
    site: &Site,
    recorder: &Recorder,
    process: u64,
) -> Result<(), Error> {
    let begun = recorder.begin(process, Action::Balances(None));
    let read = async {
        let mut session = begin(&site.client)?;
        let accounts = site.collection(Workload::Bank);
        let found = match accounts.find(doc! {}).session(&mut session).await {
            Ok(cursor) => cursor.collect().await,
            Err(error) => Err(error),
        };
        let balances = found.map(|documents| {
            let balance = |document: &bson::RawDocumentBuf| {
                Some((integer(document, "_id")?, integer(document, "balance")?))
            };
            documents.iter().filter_map(balance).collect::<BTreeMap<i64, i64>>()
        });
        let failure = balances.as_ref().err().cloned();
        match finish(session, balances).await {
            (Outcome::Ok, balances) => Ok(balances),
            _ => failure.map_or(Ok(None), Err),
        }
    };
    match read.await {
        Ok(Some(balances)) => {
            recorder.end(begun, Outcome::Ok, Some(Action::Balances(Some(balances))));
            Ok(())
        }
        // A read changes nothing, whatever became of its commit.
        Ok(None) => {
            recorder.end(begun, Outcome::Fail, None);
            Ok(())
        }
        Err(error) => {
            recorder.end(begun, Outcome::Fail, None);
            Err(error)
        }
    }
}
