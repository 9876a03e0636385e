//! Rules of a collection that take long for a document: they are evaluated without the write lock.
//!
//! Under the lock they are given a short while. If that is over, the change is refused like one that a transaction holds up, and
//! [`Writer::wait_if_blocked`] evaluates them aside. The command then tries the change again and finds the verdict.

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use quorate_query::Matcher;
use quorate_query::value::DocumentRef;

use super::Writer;
use crate::catalog::Validator;
use crate::error::Result;

/// Verdicts that are kept: of a document and the one that replaces it.
const MAX_VERDICTS: usize = 2;

/// How often rules are evaluated aside and the verdict is not asked for, because others have changed the document. Then they are
/// evaluated under the lock.
const MAX_LOST_VERDICTS: usize = 3;

/// What is known of documents whose rules take long.
#[derive(Default)]
pub(crate) struct Judging {
    /// The rules as this command has read them.
    read: Option<(Validator, Arc<Matcher>)>,
    /// What is to be judged aside.
    open: Option<(Validator, RawDocumentBuf)>,
    /// An error of the rules is a verdict too: it concerns the document, not the command.
    verdicts: Vec<(Validator, RawDocumentBuf, Result<bool>)>,
    lost: usize,
}

impl Judging {
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    fn verdict(&mut self, validator: &Validator, document: &RawDocument) -> Option<Result<bool>> {
        let mut verdicts = self.verdicts.iter();
        let (.., verdict) = verdicts.find(|(rules, judged, _)| {
            rules.is_same(validator) && judged.as_bytes() == document.as_bytes()
        })?;
        self.lost = 0;
        Some(verdict.clone())
    }

    fn close(&mut self, validator: Validator, document: RawDocumentBuf, verdict: Result<bool>) {
        if self.verdicts.len() == MAX_VERDICTS {
            drop(self.verdicts.remove(0));
        }
        self.verdicts.push((validator, document, verdict));
        self.lost += 1;
    }
}

impl Writer<'_> {
    /// Whether a document follows the rules. Fails if that takes long and is to be evaluated without the lock.
    pub(super) fn judge(&mut self, validator: &Validator, document: &RawDocument) -> Result<bool> {
        if let Some(verdict) = self.judging.verdict(validator, document) {
            return verdict;
        }
        let matcher = self.rules(validator)?;
        let accepts = || Ok(matcher.matches(DocumentRef::Raw(document))?);
        let may_leave = validator.has_expressions()
            && self.waits
            && self.judging.lost < MAX_LOST_VERDICTS
            && !self.is_staging()
            && !self.is_replaying();
        let judged = match may_leave {
            true => self.shortly(accepts),
            false => accepts().map(Some),
        };
        if !matches!(judged, Ok(Some(_))) {
            // Its meter may have ended.
            self.judging.read = None;
        }
        if let Some(accepted) = judged? {
            return Ok(accepted);
        }
        self.judging.open = Some((validator.clone(), document.to_owned()));
        Err(fail!(WRITE_CONFLICT, "the rules of the collection are evaluated while others write"))
    }

    /// The rules, read once for all documents of the command.
    fn rules(&mut self, validator: &Validator) -> Result<Arc<Matcher>> {
        if let Some((known, matcher)) = &self.judging.read
            && known.is_same(validator)
        {
            return Ok(Arc::clone(matcher));
        }
        let matcher = validator.matcher(|| Validator::compiler(Some(self.now()), self.meter()))?;
        self.judging.read = Some((validator.clone(), Arc::clone(&matcher)));
        Ok(matcher)
    }

    /// Evaluates the rules without the lock that held up the last change. False if none did. What they fail with is for
    /// the change that is tried again; only what ends the command is an error here.
    pub(crate) fn judge_aside(&mut self) -> Result<bool> {
        let Some((validator, document)) = self.judging.open.take() else { return Ok(false) };
        let (now, meters) = (self.now(), self.meters());
        let judge = || {
            let matcher = validator.matcher(|| Validator::compiler(Some(now), meters()))?;
            Ok(matcher.matches(DocumentRef::Raw(&document))?)
        };
        let verdict = self.aside(|| Ok(judge()))?;
        self.check_interrupt()?;
        self.judging.close(validator, document, verdict);
        Ok(true)
    }
}
