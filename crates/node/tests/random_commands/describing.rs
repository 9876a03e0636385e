//! Commands about whole collections: what they are, and what takes or joins their documents.

use bson::doc;
use quorate_node::Now;
use quorate_protocol::WallTime;

use crate::model::{Collection, Effects};
use crate::running::{Run, Verdict, expect_ok};
use crate::steps::{Catalog, Filter, database_of, date, name_of, on};
use crate::support::now;

impl Run {
    pub(crate) fn describe(&mut self, collection: usize, change: &Catalog) -> Verdict {
        let target = match change {
            Catalog::Rename { to, .. } | Catalog::Out { to, .. } => *to,
            _ => collection,
        };
        let is_open = self.sessions.iter().any(|session| session.open.is_some());
        if self.is_used(collection)
            || self.is_used(target)
            || (matches!(change, Catalog::DropDatabase) && is_open)
        {
            return self.skip();
        }
        let expected = self.model.describe(collection, change);
        let command = change.command(collection);
        let reply = self.member.run(command.clone());
        let fine = reply.get_f64("ok").ok() == Some(1.0);
        if expected.is_some_and(|expected| expected != fine) {
            return Err(format!("{command}\n  answered {reply}\n  expected {expected:?}"));
        }
        if fine {
            self.end_reading(collection, change);
        }
        self.record(Effects::default(), None);
        Ok(())
    }

    pub(crate) fn expire(&mut self, lives: i64) -> Verdict {
        if self.sessions.iter().any(|session| session.open.is_some()) {
            return self.skip();
        }
        let effects = self.model.expire(date(lives));
        let wall = WallTime(date(lives).timestamp_millis());
        let removed = self.member.node.remove_expired(Now { wall, ..now() });
        let removed = removed.map_err(|error| error.to_string())?;
        if removed != effects.modified.len() as u64 {
            return Err(format!("{removed} documents expire\n  expected {:?}", effects.modified));
        }
        self.record(effects, None);
        Ok(())
    }

    pub(crate) fn merge(
        &mut self,
        collection: usize,
        filter: &Filter,
        to: usize,
        matched: &'static str,
    ) -> Verdict {
        // Where a document is refused or goes, the order of the others counts.
        let is_plain = |known: &Collection| {
            let is_unique = known.indexes.iter().any(|index| index.unique);
            known.capped.is_none() && known.least.is_none() && !is_unique
        };
        let target = self.model.collections.get(&to);
        if collection == to || self.is_used(to) || !target.is_some_and(is_plain) {
            return self.skip();
        }
        let effects = self.model.merge(collection, filter, to, matched);
        let into = doc! { "db": database_of(to), "coll": name_of(to) };
        let into = doc! { "into": into, "whenMatched": matched };
        let stages = vec![doc! { "$match": filter.command() }, doc! { "$merge": into }];
        let command = doc! { "aggregate": name_of(collection), "cursor": {}, "pipeline": stages };
        let command = on(collection, command);
        let reply = self.member.run(command.clone());
        expect_ok(&reply).map_err(|error| format!("{command}: {error}"))?;
        self.record(effects, None);
        Ok(())
    }
}
