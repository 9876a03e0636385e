//! The end of a world: what every member holds, compared.

use std::collections::BTreeMap;

use bson::{Document, RawDocumentBuf, doc};

use crate::world::{Failure, Figures, World};
use crate::writing::{Deed, SessionKey};

/// What a member holds at the end.
#[derive(Debug, PartialEq)]
struct Holding {
    hash: Document,
    counts: Vec<(String, usize)>,
}

impl World {
    pub(crate) fn judge_the_end(mut self) -> Result<Figures, Failure> {
        let Some((leader, config)) = self.final_config() else {
            return self.fail("the primary vanished at the end".to_owned());
        };
        let leading = match self.holding(leader) {
            Ok(holding) => holding,
            Err(why) => return self.fail(why),
        };
        for listed in config.members.iter().filter(|listed| !listed.arbiter_only) {
            let known = self.index_at(&listed.host);
            let Some(index) = known.filter(|index| !self.gone.contains(index)) else { continue };
            if let Err(why) = self.judge_sessions(index) {
                return self.fail(why);
            }
            match self.holding(index) {
                Ok(holding) if holding == leading => {}
                Ok(holding) => {
                    let what = format!("n{index} holds {holding:?}, its primary {leading:?}");
                    return self.fail(format!("members hold the same in the end: {what}"));
                }
                Err(why) => return self.fail(why),
            }
        }
        if !self.judges.is_forgiving()
            && let Err(why) = self.judge_writes(leader)
        {
            return self.fail(why);
        }
        if let Err(why) = self.judge_accounts(leader, doc! { "level": "local" }) {
            return self.fail(why);
        }
        let judged = self.judge_followers(leader).and_then(|()| self.judge_transactions(leader));
        if let Err(why) = judged {
            return self.fail(why);
        }
        self.figures.terms = self.judges.terms();
        self.figures.committed = self.judges.committed();
        Ok(self.figures)
    }

    /// Every document of a collection.
    pub(crate) fn all_documents(
        &mut self,
        index: usize,
        namespace: (&str, &str),
        concern: Document,
    ) -> Result<Vec<RawDocumentBuf>, String> {
        let (database, collection) = namespace;
        let find = doc! {
            "find": collection, "$db": database, "batchSize": 1_000_000, "readConcern": concern,
            "$readPreference": { "mode": "nearest" },
        };
        let reply = self.run_command(index, find).ok_or("a find does not answer")?;
        let (_, documents) = quorate_member::batch_of(&reply)
            .map_err(|_| format!("n{index} does not answer a find: {reply:?}"))?;
        Ok(documents)
    }

    fn holding(&mut self, index: usize) -> Result<Holding, String> {
        let ask = |command: Document, world: &mut Self| -> Result<Document, String> {
            let name = command.keys().next().cloned().unwrap_or_default();
            let reply = world.run_command(index, command).ok_or("a command does not answer")?;
            let reply = Document::try_from(&*reply).map_err(|error| error.to_string())?;
            match reply.get_f64("ok") {
                Ok(1.0) => Ok(reply),
                _ => Err(format!("n{index} refuses {name}: {reply}")),
            }
        };
        let nearest = doc! { "mode": "nearest" };
        let hash = doc! { "dbHash": 1, "$db": "test", "$readPreference": nearest.clone() };
        let mut hash = ask(hash, self)?;
        for transient in ["timeMillis", "host", "operationTime", "$clusterTime"] {
            hash.remove(transient);
        }
        let names: Vec<String> = match hash.get_document("collections") {
            Ok(collections) => collections.keys().cloned().collect(),
            Err(_) => Vec::new(),
        };
        let mut counts = Vec::new();
        for name in names {
            let local = doc! { "level": "local" };
            let found = self.all_documents(index, ("test", &name), local)?.len();
            let count = doc! {
                "count": &name, "$db": "test", "$readPreference": nearest.clone(),
            };
            let counted = ask(count, self)?.get_i32("n").unwrap_or(-1);
            if usize::try_from(counted).ok() != Some(found) {
                let what = format!("n{index} counts {counted} in {name} and has {found}");
                return Err(format!("a collection has as many documents as it counts: {what}"));
            }
            let validate = doc! {
                "validate": &name, "full": true, "$db": "test", "$readPreference": nearest.clone(),
            };
            let valid = ask(validate, self)?;
            if !valid.get_bool("valid").unwrap_or(false) {
                return Err(format!("documents and indexes agree: n{index}, {name}: {valid}"));
            }
            counts.push((name, found));
        }
        Ok(Holding { hash, counts })
    }

    /// Every member knows what sessions did in its history, or a repeated write would be done twice.
    fn judge_sessions(&mut self, index: usize) -> Result<(), String> {
        if self.judges.is_forgiving() {
            return Ok(());
        }
        let history = self.judges.history(self.nodes[index].disk.last().op_time);
        let mut done: BTreeMap<SessionKey, i64> = BTreeMap::new();
        for attempt in &self.writers.attempts {
            if let Some((session, number)) = attempt.session
                && history.contains(&attempt.op_time)
            {
                let newest = done.entry(session).or_insert(number);
                *newest = number.max(*newest);
            }
        }
        let mut known: BTreeMap<SessionKey, i64> = BTreeMap::new();
        let local = doc! { "level": "local" };
        for row in self.all_documents(index, ("config", "transactions"), local)? {
            let id = row.get_document("_id").and_then(|id| id.get_binary("id"));
            let bytes = id.map(|id| id.bytes.to_vec()).unwrap_or_default();
            let session = (bytes.first().copied().unwrap_or(0), bytes.get(1).copied().unwrap_or(0));
            known.insert(session, row.get_i64("txnNum").unwrap_or(-1));
        }
        // The stored number may be higher than the last one that survived a rollback.
        let lacking = done.iter().find(|(session, number)| known.get(*session) < Some(*number));
        match lacking {
            Some((session, number)) => {
                let what = format!("n{index} has {:?} of {session:?}, {number} was done", known);
                Err(format!("members know what sessions did: {what}"))
            }
            None => Ok(()),
        }
    }

    /// What clients were told is there, once, and nothing else is.
    fn judge_writes(&mut self, leader: usize) -> Result<(), String> {
        let history = self.judges.history(self.nodes[leader].disk.last().op_time);
        let lost = self.writers.attempts.iter().position(|attempt| {
            attempt.acknowledged && attempt.majority && !history.contains(&attempt.op_time)
        });
        if let Some(lost) = lost {
            let attempt = self.writers.attempts[lost];
            return Err(format!("acknowledged majority writes are present: {lost}, {attempt:?}"));
        }
        let local = || doc! { "level": "local" };
        let mut expected: BTreeMap<i64, (quorate_protocol::OpTime, i64)> = BTreeMap::new();
        for (value, attempt) in self.writers.attempts.iter().enumerate() {
            let Deed::Set { key } = attempt.deed else { continue };
            if history.contains(&attempt.op_time) {
                let newest = expected.entry(key as i64).or_insert((attempt.op_time, value as i64));
                *newest = (*newest).max((attempt.op_time, value as i64));
            }
        }
        let expected: BTreeMap<i64, i64> =
            expected.into_iter().map(|(key, (_, value))| (key, value)).collect();
        let mut found = BTreeMap::new();
        for document in self.all_documents(leader, ("test", "keys"), local())? {
            let key = document.get_i64("_id").unwrap_or(-1);
            found.insert(key, document.get_i64("value").unwrap_or(-1));
        }
        if found != expected {
            return Err(format!("keys have their last values: {found:?}, not {expected:?}"));
        }
        let mut counters = BTreeMap::new();
        for document in self.all_documents(leader, ("test", "counters"), local())? {
            let client = document.get_i64("_id").unwrap_or(-1);
            counters.insert(client, document.get_i64("n").unwrap_or(-1));
        }
        for (client, counting) in self.writers.counting.iter().enumerate() {
            let n = counters.get(&(client as i64)).copied().unwrap_or(0);
            let most = counting.counted + i64::from(counting.open.is_some());
            if n < counting.counted || n > most {
                let what = format!("client {client} was told {}, {n} is there", counting.counted);
                return Err(format!("a repeated write counts once: {what}"));
            }
        }
        Ok(())
    }

    /// Money is neither made nor lost, whenever the accounts are read.
    pub(crate) fn judge_accounts(&mut self, index: usize, concern: Document) -> Result<(), String> {
        let accounts = self.all_documents(index, ("test", "accounts"), concern.clone())?;
        let sum: i64 = accounts.iter().map(|account| account.get_i64("n").unwrap_or(0)).sum();
        if sum == 0 {
            return Ok(());
        }
        Err(format!("transfers are whole: the accounts of n{index} hold {sum} at {concern}"))
    }
}
