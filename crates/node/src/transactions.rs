//! Multi-document transactions on a primary, and whole transactions on every member.
//!
//! ```text
//!   first statement ─▶ enter ─▶ Body: snapshot + catalog + Stage (overlay, operations, undo)
//!   statement       ─▶ Writer over the stage: claims keys, changes the overlay, collects operations
//!   commit          ─▶ one batch of the store: keys, applyOps entries, undo row, session row
//!   secondary       ─▶ the operations of the last entry's chain, staged, in one batch
//!   rollback        ─▶ the undo row of the last entry, staged backwards, in one batch
//! ```
//!
//! The verdicts are `quorate-transactions`'; its table is part of what the write lock guards, and every
//! change of it is made under that lock. This module owns what a transaction holds and the oplog format
//! of transactions. Specification: `transactions/transactions.md`; `docs/transactions.md` states the
//! guarantees.

mod chain;
mod commands;
mod commit;
mod enter;
mod expiry;
mod known_rows;
mod made_up;
mod overlay;
mod rows;
mod shown;
mod stage;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bson::Document;
use quorate_protocol::{Lock, WallTime};
use quorate_transactions::{Refusal, TransactionId, Transactions};

pub(crate) use self::chain::{MAX_ENTRY_BYTES, is_abort, is_apply_ops, is_partial, previous_of};
pub(crate) use self::commands::{abort, commit};
pub(crate) use self::enter::{Numbered, check_part, check_target, conclude, enter, label};
use self::expiry::Expiry;
pub(crate) use self::known_rows::{ChangedRows, KnownRows};
pub(crate) use self::made_up::{has_made_up_collections, made_up_collection};
pub(crate) use self::rows::{SessionRow, number_key};
use self::stage::Stage;
pub(crate) use self::stage::{Staging, namespace_key};
pub(crate) use self::waiting::EndQueue;
use crate::catalog::{Catalog, Collection, Ident};
use crate::context::Interrupt;
use crate::error::{CommandError, ErrorCode, Result};
use crate::moments::Moment;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::View;
use crate::sessions::SessionId;

/// What the write lock guards about transactions.
#[derive(Default)]
pub(crate) struct Ongoing {
    pub(crate) table: Transactions<SessionId>,
    pub(crate) bodies: BTreeMap<TransactionId, Arc<Body>>,
    /// How far the removal of old rows has come.
    expiry: Expiry,
    /// What `serverStatus` tells of the transaction that was committed last.
    last_committed: Option<LastCommitted>,
}

#[derive(Clone)]
struct LastCommitted {
    operations: usize,
    bytes: usize,
    write_concern: Option<Document>,
}

/// An open transaction.
pub(crate) struct Body {
    pub(crate) id: TransactionId,
    pub(crate) session: SessionId,
    pub(crate) number: i64,
    /// What its statements read, besides its own changes.
    pub(crate) moment: Arc<Moment>,
    /// Whether the snapshot is older than the transaction: then nothing tells what changed since, and
    /// every write is a conflict.
    pub(crate) is_of_the_past: bool,
    pub(crate) read_concern: Document,
    pub(crate) began: WallTime,
    stage: Arc<Lock<Stage>>,
    /// The collections that it has read or written: changes of their description wait for its end.
    uses: Lock<BTreeSet<Ident>>,
}

impl Body {
    /// All collections as the transaction's next statement sees them.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.stage.lock().catalog)
    }

    /// A collection and the data as the transaction's next statement sees them.
    pub(crate) fn read(
        &self,
        node: &Node,
        interrupt: &Interrupt,
        namespace: &Namespace,
    ) -> Result<(Option<Arc<Collection>>, View)> {
        let collection = self.collection(node, interrupt, namespace)?;
        let snapshot = self.stage.lock().overlay.view(&self.moment.view.snapshot);
        Ok((collection, View { snapshot, ..self.moment.view.clone() }))
    }

    /// A collection as the transaction's next statement sees it.
    fn collection(
        &self,
        node: &Node,
        interrupt: &Interrupt,
        namespace: &Namespace,
    ) -> Result<Option<Arc<Collection>>> {
        let stage = self.stage.lock();
        let collection = stage.catalog.get(namespace).cloned();
        let is_own = stage.created.contains(namespace);
        drop(stage);
        if let Some(used) = collection.as_ref().filter(|used| !is_own && !self.uses(used.ident)) {
            let block = node.options().block;
            node.end_queue().let_changes_pass(block, used.ident, interrupt)?;
        }
        self.check_unchanged(node, namespace, collection.as_deref(), is_own)?;
        Ok(collection)
    }

    /// Refuses a collection that was created, dropped, replaced or given other options after the snapshot. Notes its use.
    pub(crate) fn check_unchanged(
        &self,
        node: &Node,
        namespace: &Namespace,
        seen: Option<&Collection>,
        is_own: bool,
    ) -> Result<()> {
        if let Some(seen) = seen {
            self.uses.lock().insert(seen.ident);
        }
        let now = node.catalog();
        let now = now.get(namespace);
        let is_same = match (now, seen) {
            (Some(now), Some(seen)) => now.uuid == seen.uuid && now.options == seen.options,
            (now, seen) => now.is_none() && seen.is_none(),
        };
        if is_own || is_same {
            return Ok(());
        }
        Err(fail!(
            SNAPSHOT_UNAVAILABLE,
            "Unable to read from a snapshot due to pending collection catalog changes; please \
                 retry the operation. Collection {namespace} was created, dropped or changed after \
                 the snapshot of the transaction"
        ))
    }

    pub(crate) fn uses(&self, ident: Ident) -> bool {
        self.uses.lock().contains(&ident)
    }
}

/// The error of a refusal. Labels are added where the reply is made.
pub(crate) fn refused(refusal: Refusal) -> CommandError {
    CommandError::new(ErrorCode(refusal.code()), refusal.to_string())
}
