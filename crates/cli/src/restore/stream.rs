//! Restoring from an archive: one stream, whose blocks go to one task for each collection.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bson::Document;
use bson::raw::RawDocumentBuf;
use flate2::read::MultiGzDecoder;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::collection::{self, Filled};
use super::{Done, Work, indexes_of, views_of};
use crate::screen::{Failure, Outcome, Result, Screen};
use crate::transfer;
use crate::transfer::archive::{Checksum, Next, Reader};
use crate::transfer::layout::Place;

/// How many documents of a collection may wait for their task.
const QUEUE: usize = 256;

/// A collection whose documents come.
struct Open {
    /// None for a collection that is not restored.
    documents: Option<mpsc::Sender<RawDocumentBuf>>,
    sum: Checksum,
}

/// The tasks of the collections that have begun.
type Tasks = JoinSet<Result<(Place, Filled)>>;

impl Work<'_> {
    pub(super) async fn archive(&self, path: &Path, screen: &mut Screen) -> Result<Outcome> {
        let damaged = |error: io::Error| {
            problem!(
                "the archive {} cannot be read: {error}; give a whole one, with --gzip if it is \
                 compressed",
                path.display()
            )
        };
        let reader = self.open_archive(path).and_then(Reader::open).map_err(damaged)?;
        let named = reader.collections.clone();
        let wanted = || {
            named
                .iter()
                .filter(|(place, _)| self.is_wanted(place))
                .map(|(place, metadata)| (place, metadata))
        };
        let mut indexes = indexes_of(wanted());
        let views = views_of(wanted());
        let mut done = Done::default();
        for (place, metadata) in wanted().filter(|(_, metadata)| !metadata.is_view()) {
            collection::prepare(&self.client, place, metadata, self.arguments).await?;
            done.collections += 1;
        }
        let work = self.carry(reader, &mut done, &mut indexes, damaged);
        let changes = self.tally.shown(screen.is_json(), work).await?;
        self.conclude(done, changes, &indexes, &views, screen).await
    }

    fn open_archive(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        let source: Box<dyn Read + Send> = match transfer::is_standard(path) {
            true => Box::new(BufReader::new(io::stdin())),
            false => {
                let file = File::open(path)?;
                self.tally.expect(file.metadata()?.len());
                Box::new(BufReader::new(file))
            }
        };
        Ok(match self.arguments.gzip {
            true => Box::new(BufReader::new(MultiGzDecoder::new(source))),
            false => source,
        })
    }

    /// Takes the stream apart. Returns how many changes of the oplog were applied.
    async fn carry(
        &self,
        mut reader: Reader,
        done: &mut Done,
        indexes: &mut BTreeMap<Place, Vec<Document>>,
        damaged: impl Fn(io::Error) -> Failure,
    ) -> Result<usize> {
        let mut parts = Parts::new(self, &reader, done);
        let mut replay = None;
        let mut indexes = Some(indexes);
        let (mut current, mut within) = (None, false);
        loop {
            match reader.next(&mut within).map_err(&damaged)? {
                Next::End => break,
                Next::Block(place) => {
                    if is_oplog(&place) && replay.is_none() {
                        // The documents come first: mongodump and quorate dump write them first.
                        if parts.expected.iter().any(|place| !is_oplog(place)) {
                            let what = "the changes come before the documents";
                            return Err(damaged(io::Error::other(what)));
                        }
                        parts.gather().await?;
                        replay = indexes.take().map(|indexes| self.replay(indexes));
                    }
                    parts.begin(&place);
                    current = Some(place);
                }
                Next::Document(document) => {
                    self.tally.passed(document.as_bytes().len());
                    let Some(place) = &current else { continue };
                    if let (true, Some(replay)) = (is_oplog(place), &mut replay) {
                        replay.apply(&document).await?;
                    }
                    parts.pass(place, document).await?;
                }
                Next::Whole(place, sum) => {
                    parts.end(&place, sum).map_err(|what| damaged(io::Error::other(what)))?;
                }
            }
        }
        if let Some(place) = parts.expected.first() {
            let what = format!("it ends before {place} is whole");
            return Err(damaged(io::Error::other(what)));
        }
        parts.gather().await?;
        match replay {
            Some(replay) => replay.finish().await,
            None => Ok(0),
        }
    }
}

/// The collections of an archive while it is read.
struct Parts<'a> {
    work: &'a Work<'a>,
    done: &'a mut Done,
    /// Collections that are not whole yet.
    expected: BTreeSet<Place>,
    /// Views, which have no documents.
    views: BTreeSet<Place>,
    open: BTreeMap<Place, Open>,
    tasks: Tasks,
}

impl<'a> Parts<'a> {
    fn new(work: &'a Work<'a>, reader: &Reader, done: &'a mut Done) -> Self {
        let expected = reader
            .collections
            .iter()
            // The documents of a time series are in a collection of another name.
            .filter(|(_, metadata)| {
                !metadata.is_view() && metadata.kind.as_deref() != Some("timeseries")
            })
            .map(|(place, _)| place.clone())
            .collect();
        let views = reader.collections.iter().filter(|(_, metadata)| metadata.is_view());
        let views = views.map(|(place, _)| place.clone()).collect();
        Self { work, done, expected, views, open: BTreeMap::new(), tasks: Tasks::new() }
    }

    /// Documents of this collection come.
    fn begin(&mut self, place: &Place) {
        if self.open.contains_key(place) {
            return;
        }
        let mut documents = None;
        if self.work.is_wanted(place) && !self.views.contains(place) {
            let (sender, mut receiver) = mpsc::channel(QUEUE);
            documents = Some(sender);
            let mut filling = self.work.filling(place);
            let place = place.clone();
            self.tasks.spawn(async move {
                while let Some(document) = receiver.recv().await {
                    filling.add(document).await?;
                }
                Ok((place, filling.finish().await?))
            });
        }
        self.open.insert(place.clone(), Open { documents, sum: Checksum::default() });
    }

    /// Hands a document to the task of its collection.
    async fn pass(&mut self, place: &Place, document: RawDocumentBuf) -> Result<()> {
        let Some(part) = self.open.get_mut(place) else { return Ok(()) };
        part.sum.add(document.as_bytes());
        let Some(documents) = &part.documents else { return Ok(()) };
        // A task that has failed takes no more, and says why.
        if documents.send(document).await.is_err() {
            self.gather().await?;
        }
        Ok(())
    }

    /// The collection has all its documents.
    fn end(&mut self, place: &Place, sum: u64) -> Result<(), String> {
        let found = self.open.remove(place).map_or(0, |part| part.sum.value());
        self.expected.remove(place);
        match found == sum {
            true => Ok(()),
            false => Err(format!("the checksum of {place} is wrong")),
        }
    }

    /// Ends every task and waits for it.
    async fn gather(&mut self) -> Result<()> {
        self.open.clear();
        while let Some(task) = self.tasks.join_next().await {
            match task {
                Ok(Ok((place, filled))) => self.done.add(&place, filled),
                Ok(Err(failure)) => return Err(failure),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        Ok(())
    }
}

fn is_oplog(place: &Place) -> bool {
    place.database.is_empty() && place.collection == "oplog"
}
