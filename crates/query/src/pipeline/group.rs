//! `$group` and `$bucket`: documents that share a key become one.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use bson::{Bson, Document, RawDocument};

use super::accumulator::{Accumulator, State};
use super::memory::Memory;
use super::stage::deferred_stream;
use super::{Decoder, Documents, Run, StoredDocuments};
use crate::error::Result;
use crate::expression::{Dependencies, Expression, Frame, Operand, ParseContext};
use crate::meter::{Kept, Meter, push};
use crate::value::{GroupKey, PARTS, compare};

/// The bytes of a group besides its key and values.
const GROUP_OVERHEAD: usize = 128;

/// A `$group` or `$bucket` stage.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) by: By,
    pub(super) accumulators: Vec<Accumulator>,
}

/// The key that documents are grouped by.
#[derive(Clone, Debug)]
pub(super) enum By {
    /// The value itself.
    Value(Expression),
    /// The largest boundary that is not above the value.
    Bucket { value: Expression, boundaries: Vec<Bson>, default: Option<Bson> },
}

impl Group {
    pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Self> {
        let Bson::Document(spec) = spec else {
            refuse!(15947, "a group's fields must be specified in an object");
        };
        let Some(id) = spec.get("_id") else {
            refuse!(15955, "a group specification must include an _id");
        };
        let accumulators = spec
            .iter()
            .filter(|(field, _)| *field != "_id")
            .map(|(field, accumulator)| Accumulator::parse(field, accumulator, context))
            .collect::<Result<_, _>>()?;
        Ok(Self { by: By::Value(Expression::parse(id, context)?), accumulators })
    }
}

impl Group {
    /// Counts what the stage reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        match &self.by {
            By::Value(value) | By::Bucket { value, .. } => needed.expression(value),
        }
        self.accumulators.iter().for_each(|accumulator| accumulator.depend(needed));
    }
}

impl By {
    fn key<'a>(&'a self, frame: Frame<'a>) -> Result<Operand<'a>> {
        match self {
            Self::Value(expression) => expression.operand(frame),
            Self::Bucket { value, boundaries, default } => {
                let value = value.operand(frame)?;
                let above = boundaries
                    .partition_point(|boundary| compare(boundary, value.or_null()).is_le());
                // The last boundary is excluded from the last bucket.
                let bucket = match above.checked_sub(1) {
                    Some(place) if above < boundaries.len() => boundaries.get(place),
                    _ => None,
                };
                bucket.or(default.as_ref()).map(Operand::borrowed).ok_or_else(|| {
                    fail!(
                        40066,
                        "$switch could not find a matching branch for an input, and no default \
                         was specified."
                    )
                })
            }
        }
    }
}

/// A group that is being made: its `_id` and what its accumulators hold.
type Growing = (Bson, Vec<State>);

/// Where the group of a key is. One large table would move all of its keys at once when it grows, which takes
/// longer than an operation may go on after it was told to end.
#[derive(Default)]
struct Places(Vec<HashMap<GroupKey, usize>>);

impl Places {
    fn new() -> Self {
        Self((0..PARTS).map(|_| HashMap::new()).collect())
    }

    fn get(&self, key: &GroupKey) -> Option<usize> {
        self.0.get(key.part())?.get(key).copied()
    }

    fn insert(&mut self, key: GroupKey, place: usize) {
        if let Some(part) = self.0.get_mut(key.part()) {
            part.insert(key, place);
        }
    }
}

impl IntoIterator for Places {
    type Item = (GroupKey, usize);
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<HashMap<GroupKey, usize>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

struct Groups<'a> {
    stage: &'a Group,
    places: Kept<Places>,
    groups: Kept<Vec<Growing>>,
    /// The key of the last document, whose room the next one takes.
    key: GroupKey,
    memory: Memory,
}

impl<'a> Groups<'a> {
    fn new(stage: &'a Group, run: &Run) -> Self {
        Self {
            stage,
            places: Kept::new(Places::new(), run.variables.meter()),
            groups: Kept::new(Vec::new(), run.variables.meter()),
            key: GroupKey::default(),
            memory: Memory::new("$group", run),
        }
    }

    fn add(&mut self, frame: Frame<'_>) -> Result<()> {
        let id = self.stage.by.key(frame)?;
        self.key.refill(id.or_null());
        let place = match self.places.get(&self.key) {
            Some(place) => place,
            None => {
                let (id, key) = (id.into_bson().unwrap_or(Bson::Null), self.key.clone());
                let states = self.stage.accumulators.len() * size_of::<State>();
                self.memory.hold(GROUP_OVERHEAD + key.size() + states)?;
                self.memory.hold_value(&id)?;
                let mut states = Vec::with_capacity(self.stage.accumulators.len());
                for accumulator in &self.stage.accumulators {
                    states.push(accumulator.start(&id, frame)?);
                }
                let place = self.groups.len();
                push(&mut self.groups, (id, states));
                self.places.insert(key, place);
                place
            }
        };
        let Some((_, states)) = self.groups.get_mut(place) else { return Ok(()) };
        for (accumulator, state) in self.stage.accumulators.iter().zip(states) {
            accumulator.add(state, frame, &mut self.memory)?;
        }
        Ok(())
    }

    /// The groups in the order their first documents came, buckets by their boundaries.
    fn finish(mut self, stage: &Arc<Group>, meter: &Meter) -> Documents {
        if matches!(self.stage.by, By::Bucket { .. }) {
            self.groups.sort_by(|(left, _), (right, _)| compare(left, right));
        }
        let groups = Kept::new(self.groups.into_inner().into_iter(), meter);
        Box::new(Finished {
            stage: Arc::clone(stage),
            groups,
            meter: meter.clone(),
            _memory: self.memory,
        })
    }
}

/// Groups that become documents one by one, as they are asked for: as documents they take more memory.
struct Finished {
    stage: Arc<Group>,
    groups: Kept<std::vec::IntoIter<Growing>>,
    meter: Meter,
    /// The memory of the groups, given back with the last of them.
    _memory: Memory,
}

impl Finished {
    fn document(&self, (id, states): Growing) -> Result<Document> {
        let mut document = Document::new();
        document.insert("_id", id);
        for (accumulator, state) in self.stage.accumulators.iter().zip(states) {
            document.insert(accumulator.field.as_str(), accumulator.finish(state, &self.meter)?);
        }
        self.meter.step().map(|()| document)
    }
}

impl Iterator for Finished {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.groups.next()?;
        Some(self.document(group))
    }
}

pub(super) fn run(group: Arc<Group>, mut input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred_stream(move || {
        let mut groups = Groups::new(&group, &run);
        let add = |document: Result<Document>| groups.add(Frame::new(&document?, &run.variables));
        input.try_for_each(add)?;
        Ok(groups.finish(&group, run.variables.meter()))
    })
}

/// The same over stored documents. All of them are read into one document, one after the other.
pub(super) fn run_stored<D>(
    group: Arc<Group>,
    mut input: StoredDocuments<D>,
    decoder: Decoder,
    run: &Run,
) -> Documents
where
    D: Deref<Target = RawDocument> + 'static,
{
    let run = run.clone();
    deferred_stream(move || {
        let mut groups = Groups::new(&group, &run);
        let mut document = Document::new();
        input.try_for_each(|stored| {
            run.variables.step()?;
            decoder.refill(&mut document, &stored?)?;
            groups.add(Frame::new(&document, &run.variables))
        })?;
        Ok(groups.finish(&group, run.variables.meter()))
    })
}
