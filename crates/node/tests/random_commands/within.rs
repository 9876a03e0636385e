//! What a transaction creates.

use crate::model::{Collection, Model};
use crate::running::{Open, Run, Verdict, WRITE_CONFLICT};
use crate::steps::{Catalog, Index};

const NOT_IN_A_TRANSACTION: i32 = 263;

impl Run {
    /// Whether a collection is neither there nor was at the beginning of the session's transaction: it may create it.
    pub(crate) fn may_create(&self, session: usize, collection: usize) -> bool {
        let exists = |model: &Model| model.collections.contains_key(&collection);
        let open = self.sessions[session].open.as_ref();
        !exists(&self.model) && !open.is_some_and(|open| exists(open.view()))
    }

    /// Whether a creation must, and whether it may, meet another one: of an open transaction, or since this one began.
    pub(crate) fn creation_conflicts(&self, session: usize, collection: usize) -> (bool, bool) {
        let others = self.sessions.iter().enumerate().filter(|(index, _)| *index != session);
        let mut others = others.filter_map(|(_, session)| session.open.as_ref());
        let strong = others.any(|other| other.created.contains(&collection));
        let began = self.sessions[session].open.as_ref().map_or(u64::MAX, Open::began);
        (strong, strong || self.model.named.get(&collection).is_some_and(|at| *at > began))
    }

    pub(crate) fn create_within(
        &mut self,
        session: usize,
        collection: usize,
        index: Option<Index>,
    ) -> Verdict {
        let is_new = self.may_create(session, collection);
        let known = self.model.collections.get(&collection);
        if known.is_some_and(|known| known.capped.is_some()) {
            return self.skip();
        }
        if !is_new && (index.is_none() || !self.enter(session, collection)) {
            return self.skip();
        }
        let command = match index {
            Some(index) => Catalog::CreateIndex(index).command(collection),
            None => Catalog::Create { most: None }.command(collection),
        };
        let reply = self.run_within(session, Some(collection), command.clone());
        let (strong, weak) = self.creation_conflicts(session, collection);
        let Some(open) = &mut self.sessions[session].open else { return Ok(()) };
        let known = open.view().collections.get(&collection);
        let has_index =
            index.is_none_or(|index| known.is_some_and(|known| known.indexes.contains(&index)));
        let is_empty = known.is_none_or(|known| known.documents.is_empty());
        let may_add = is_new || has_index || (open.created.contains(&collection) && is_empty);
        match reply.get_i32("code").ok() {
            Some(WRITE_CONFLICT) if is_new && weak => {
                self.figures.conflicts += 1;
                self.sessions[session].open = None;
                Ok(())
            }
            Some(NOT_IN_A_TRANSACTION) if !may_add => {
                self.figures.errors += 1;
                self.sessions[session].open = None;
                Ok(())
            }
            None if may_add && !(is_new && strong) => {
                self.figures.created += u64::from(is_new);
                if is_new {
                    open.created.insert(collection);
                }
                let known = open.view_mut().collections.entry(collection);
                known.or_insert_with(Collection::default).indexes.extend(index);
                Ok(())
            }
            _ => Err(format!(
                "{command}\n  answered {reply}\n  new: {is_new}, may add: {may_add}, conflicts: {strong}"
            )),
        }
    }

    /// The command is no part of transactions. The one that is open goes on.
    pub(crate) fn drop_within(
        &mut self,
        session: usize,
        collection: usize,
        index: Index,
    ) -> Verdict {
        if self.sessions[session].open.is_none() || !self.enter(session, collection) {
            return self.skip();
        }
        let command = Catalog::DropIndex(index).command(collection);
        let reply = self.run_within(session, Some(collection), command.clone());
        match reply.get_i32("code").ok() {
            Some(NOT_IN_A_TRANSACTION) => Ok(()),
            _ => Err(format!("{command}\n  answered {reply}")),
        }
    }

    /// A commit makes the collections that its transaction has created.
    pub(crate) fn make_created(&mut self, open: &Open) {
        for collection in &open.created {
            let Some(created) = open.view().collections.get(collection) else { continue };
            let described = self.model.clock;
            let indexes = created.indexes.clone();
            let new = Collection { indexes, described, ..Collection::default() };
            self.model.collections.insert(*collection, new);
            self.model.named.insert(*collection, described);
        }
    }
}
