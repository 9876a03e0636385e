//! Plain writes that meet a document of an open transaction, and wait for its end.

use std::sync::Arc;
use std::thread;

use bson::{Document, doc};

use crate::model::Told;
use crate::running::{Run, Verdict, expect_ok, sync};
use crate::steps::Write;
use crate::support::Member;

impl Run {
    /// The session of the open transaction, if there is one only.
    pub(crate) fn holder(&self) -> Option<usize> {
        let open = self.sessions.iter().enumerate().filter(|(_, session)| session.open.is_some());
        let open: Vec<usize> = open.map(|(session, _)| session).collect();
        <[usize; 1]>::try_from(open).ok().map(|[session]| session)
    }

    /// A write meets what a transaction holds. If it waits, the transaction ends, and the write is answered as after
    /// that; otherwise as before.
    pub(crate) fn write_that_waits(
        &mut self,
        collection: usize,
        write: &Write,
        session: Option<usize>,
        command: Document,
    ) -> Verdict {
        let Some(holder) = self.holder() else { return Err("no transaction is open".to_owned()) };
        let (beside, sent) = (Arc::clone(&self.member), command.clone());
        let writer = thread::spawn(move || beside.run(sent));
        let waits = loop {
            match waiting(&self.member) {
                _ if writer.is_finished() => break false,
                0 => thread::yield_now(),
                _ => break true,
            }
        };
        let before = self.model.clone();
        if waits {
            self.figures.waited += 1;
            match self.sessions[holder].number % 2 {
                0 => self.commit(holder)?,
                _ => {
                    self.sessions[holder].open = None;
                    expect_ok(&self.end(holder, "abortTransaction")?)?;
                }
            }
        }
        let reply = writer.join().map_err(|_| "a write that waits panics".to_owned())?;
        let told = Told::of(&reply);
        let mut after = if waits { self.model.clone() } else { before };
        let effects = after.write(collection, write);
        if Some(&told) != effects.told.as_ref() {
            return Err(format!(
                "{command}, which waits: {waits}\n  answered {reply}\n  expected {:?}",
                effects.told
            ));
        }
        // Which of the two came first in the log is not known to the records.
        sync(&self.member)?;
        self.keep(collection, write, session, (command, told), (after, effects));
        self.settle();
        Ok(())
    }
}

fn waiting(member: &Member) -> i64 {
    let status = member.run(doc! { "serverStatus": 1, "$db": "admin" });
    let transactions = status.get_document("transactions");
    transactions.and_then(|shown| shown.get_i64("waitingWrites")).unwrap_or(0)
}
