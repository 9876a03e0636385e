//! Rules of a collection that take long for a document: they are evaluated without the write lock.
//!
//! Under the lock they are given a short while. If that is over, the change is refused like one that a transaction holds up, and
//! [`Writer::wait_if_blocked`] evaluates them aside. The command then tries the change again and finds the verdict.

use bson::{RawDocument, RawDocumentBuf};

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
    /// What is to be judged aside.
    open: Option<(Validator, RawDocumentBuf)>,
    verdicts: Vec<(Validator, RawDocumentBuf, bool)>,
    lost: usize,
}

impl Judging {
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    fn verdict(&mut self, validator: &Validator, document: &RawDocument) -> Option<bool> {
        let mut verdicts = self.verdicts.iter();
        let (.., accepted) = verdicts.find(|(rules, judged, _)| {
            rules.is_same(validator) && judged.as_bytes() == document.as_bytes()
        })?;
        self.lost = 0;
        Some(*accepted)
    }

    fn close(&mut self, validator: Validator, document: RawDocumentBuf, accepted: bool) {
        if self.verdicts.len() == MAX_VERDICTS {
            self.verdicts.remove(0);
        }
        self.verdicts.push((validator, document, accepted));
        self.lost += 1;
    }
}

impl Writer<'_> {
    /// Whether a document follows the rules. Fails if that takes long and is to be evaluated without the lock.
    pub(super) fn judge(&mut self, validator: &Validator, document: &RawDocument) -> Result<bool> {
        if let Some(accepted) = self.judging.verdict(validator, document) {
            return Ok(accepted);
        }
        let compiler = || Validator::compiler(Some(self.now()), self.meter());
        let may_leave = validator.is_costly
            && self.waits
            && self.judging.lost < MAX_LOST_VERDICTS
            && !self.is_staging()
            && !self.is_replaying();
        if !may_leave {
            return validator.accepts(document, compiler);
        }
        if let Some(accepted) = self.shortly(|| validator.accepts(document, compiler))? {
            return Ok(accepted);
        }
        self.judging.open = Some((validator.clone(), document.to_owned()));
        Err(fail!(WRITE_CONFLICT, "the rules of the collection are evaluated while others write"))
    }

    /// Evaluates the rules without the lock that held up the last change. False if none did.
    pub(crate) fn judge_aside(&mut self) -> Result<bool> {
        let Some((validator, document)) = self.judging.open.take() else { return Ok(false) };
        let (now, meters) = (self.now(), self.meters());
        let accepted = self
            .aside(|| validator.accepts(&document, || Validator::compiler(Some(now), meters())))?;
        self.judging.close(validator, document, accepted);
        Ok(true)
    }
}
