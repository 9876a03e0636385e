use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use bson::{Document, doc};
use quorate_storage::ModelStore;

use super::*;
use crate::context::{Interrupt, Interruption};
use crate::error::Result;
use crate::namespace::Namespace;
use crate::node::{Node, NodeOptions};
use crate::test_support::{now, run};

/// Enough for a reader and many parts.
const DOCUMENTS: u64 = 400;

/// A member with documents from 1 on, of which some are missing.
struct Stage {
    node: Node,
    interrupt: Arc<Interrupt>,
}

impl Stage {
    fn new(documents: impl Iterator<Item = Document>) -> Self {
        let node = Node::open(Arc::new(ModelStore::new()), NodeOptions::default(), now()).unwrap();
        let stage = Self { node, interrupt: Arc::default() };
        let documents: Vec<Document> = documents.collect();
        stage.run(doc! { "insert": "c", "documents": documents });
        stage
    }

    fn numbered() -> Self {
        Self::new((1..=DOCUMENTS).map(|n| doc! { "_id": n as i64, "n": n as i64 }))
    }

    fn run(&self, command: Document) {
        let reply = run(&self.node, command);
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    }

    fn scan<E: Examiner>(&self, examiner: E, helpers: &Arc<Helpers>) -> RecordScan<E> {
        self.interrupt.lend(Arc::clone(helpers));
        let namespace = Namespace { database: "db".to_owned(), collection: "c".to_owned() };
        let (collection, view) = self.node.read(&namespace);
        let records = Records {
            view,
            collection: collection.unwrap().ident,
            after: None,
            direction: Direction::Forward,
        };
        let slot = InterruptSlot::new(Arc::clone(&self.interrupt));
        RecordScan::new(records, examiner, slot).unwrap()
    }
}

/// Takes the numbers that its function wants, and counts what it looks at.
struct Numbers<F> {
    wants: F,
    examined: Arc<AtomicU64>,
}

impl<F: Fn(i64) -> Result<bool> + Send + Sync + 'static> Examiner for Numbers<F> {
    type Item = i64;

    fn examine(&self, _: RecordId, document: LentDocument<'_>) -> Result<Option<i64>> {
        self.examined.fetch_add(1, Ordering::Relaxed);
        let number = document.get_i64("n").unwrap();
        Ok((self.wants)(number)?.then_some(number))
    }
}

fn numbers<F>(wants: F) -> (Numbers<F>, Arc<AtomicU64>) {
    let examined = Arc::new(AtomicU64::new(0));
    (Numbers { wants, examined: Arc::clone(&examined) }, examined)
}

/// Helpers that read as far as they may before the reader goes on.
fn eager() -> Arc<Helpers> {
    Arc::new(Helpers::new(|job| {
        job();
        true
    }))
}

/// Helpers on threads of their own, so many at most over the life of the scan.
fn threads(most: u64) -> Arc<Helpers> {
    let left = AtomicU64::new(most);
    Arc::new(Helpers::new(move |job| {
        let takes = |left: u64| left.checked_sub(1);
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, takes).is_err() {
            return false;
        }
        std::thread::spawn(job);
        true
    }))
}

fn all<E: Examiner>(scan: &mut RecordScan<E>) -> Vec<E::Item> {
    std::iter::from_fn(|| scan.next().unwrap()).collect()
}

#[test]
fn helpers_change_neither_the_items_nor_their_order() {
    let mut stage = Stage::numbered();
    let gone: Vec<i64> =
        (0..DOCUMENTS as i64).filter(|n| n % 5 == 0 || (90..180).contains(n)).collect();
    stage.run(doc! { "delete": "c", "deletes": [{ "q": { "n": { "$in": gone } }, "limit": 0 }] });
    let (alone, _) = numbers(|n| Ok(n % 3 != 0));
    let expected = all(&mut stage.scan(alone, &threads(0)));
    assert!(expected.len() > 100, "{expected:?}");
    for most in 0..200 {
        let helpers = if most == 0 { eager() } else { threads(most % 5) };
        stage.interrupt = Arc::default();
        let (examiner, examined) = numbers(|n| Ok(n % 3 != 0));
        let mut scan = stage.scan(examiner, &helpers);
        assert_eq!(all(&mut scan), expected, "{most}");
        assert_eq!(scan.examined(), examined.load(Ordering::Relaxed));
        assert_eq!(helpers.held(), 0);
    }
}

#[test]
fn helpers_read_parts_that_the_reader_does_not() {
    let stage = Stage::numbered();
    let readers = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&readers);
    let (examiner, _) = numbers(move |_| {
        seen.lock().unwrap().insert(std::thread::current().name().map(ToOwned::to_owned));
        Ok(false)
    });
    let on_a_thread = Arc::new(Helpers::new(|job| {
        std::thread::Builder::new().name("helper".to_owned()).spawn(job).unwrap().join().unwrap();
        true
    }));
    assert!(all(&mut stage.scan(examiner, &on_a_thread)).is_empty());
    assert!(readers.lock().unwrap().contains(&Some("helper".to_owned())));
}

#[test]
fn a_few_records_are_read_alone() {
    let stage = Stage::new((1..=ALONE + PART).map(|n| doc! { "n": n as i64 }));
    let refuses = Arc::new(Helpers::new(|_| panic!("no help is needed")));
    let (examiner, _) = numbers(|_| Ok(true));
    assert_eq!(all(&mut stage.scan(examiner, &refuses)).len() as u64, ALONE + PART);
}

#[test]
fn what_is_read_ahead_is_bounded() {
    let stage = Stage::numbered();
    let helpers = eager();
    let (examiner, examined) = numbers(|_| Ok(true));
    let mut scan = stage.scan(examiner, &helpers);
    for _ in 0..=ALONE {
        scan.next().unwrap();
    }
    let most = ALONE + MAX_AHEAD as u64 * PART;
    assert_eq!(examined.load(Ordering::Relaxed), most, "all that may be read ahead is");
    assert_eq!(scan.examined(), ALONE + PART, "what is not taken over does not count");
    assert!(helpers.held() > 0);
    drop(scan);
    assert_eq!(helpers.held(), 0);
}

#[test]
fn all_scans_together_hold_no_more_than_the_bound() {
    let stage = Stage::numbered();
    let helpers = eager();
    helpers.hold(64 * 1024 * 1024);
    let (examiner, examined) = numbers(|_| Ok(true));
    let mut scan = stage.scan(examiner, &helpers);
    for _ in 0..=ALONE {
        scan.next().unwrap();
    }
    assert_eq!(examined.load(Ordering::Relaxed), ALONE + 1);
    assert_eq!(all(&mut scan).len() as u64, DOCUMENTS - ALONE - 1);
}

#[test]
fn a_helper_leaves_the_rest_of_a_part_with_large_documents() {
    let text = "x".repeat(PART_BYTES);
    let stage = Stage::new((1..=64_i64).map(|n| doc! { "n": n, "text": &text }));
    let helpers = eager();
    let (examiner, examined) = numbers(|_| Ok(true));
    let mut scan = stage.scan(examiner, &helpers);
    for _ in 0..=ALONE {
        scan.next().unwrap();
    }
    // One of each part.
    let ahead = examined.load(Ordering::Relaxed) - ALONE;
    assert!(ahead <= MAX_AHEAD as u64 + 1, "{ahead}");
    assert_eq!(all(&mut scan), (ALONE as i64 + 2..=64).collect::<Vec<i64>>());
}

#[test]
fn an_error_comes_after_the_items_before_it() {
    let refused = DOCUMENTS as i64 / 2;
    for helpers in [eager(), threads(0), threads(3)] {
        let stage = Stage::numbered();
        let (examiner, _) = numbers(move |n| match n == refused {
            true => Err(fail!(BAD_VALUE, "refused")),
            false => Ok(true),
        });
        let mut scan = stage.scan(examiner, &helpers);
        for n in 1..refused {
            assert_eq!(scan.next().unwrap(), Some(n));
        }
        assert_eq!(scan.next().unwrap_err().code, ErrorCode::BAD_VALUE);
    }
}

#[test]
fn a_helper_that_panics_ends_the_scan_with_an_error() {
    let reader = std::thread::current().id();
    let stage = Stage::numbered();
    let (examiner, _) = numbers(move |_| {
        assert_eq!(std::thread::current().id(), reader, "this panic is meant");
        Ok(true)
    });
    let helpers = Arc::new(Helpers::new(|job| {
        // It is waited for: a reader that is faster would meet no panic.
        let helper = std::thread::spawn(move || catch_unwind(AssertUnwindSafe(job)).unwrap_err());
        helper.join().is_ok()
    }));
    let mut scan = stage.scan(examiner, &helpers);
    let failure = std::iter::from_fn(|| scan.next().transpose()).find_map(Result::err).unwrap();
    assert_eq!(failure.code, ErrorCode::INTERNAL_ERROR);
}

#[test]
fn an_interrupt_ends_readers_and_helpers() {
    let stage = Stage::numbered();
    let interrupt = Arc::clone(&stage.interrupt);
    let (examiner, examined) = numbers(move |n| {
        if n == ALONE as i64 + 1 {
            interrupt.set(Interruption::Killed);
        }
        Ok(false)
    });
    let mut scan = stage.scan(examiner, &eager());
    assert_eq!(scan.next().unwrap_err().code, ErrorCode::INTERRUPTED);
    assert!(examined.load(Ordering::Relaxed) < DOCUMENTS);
}

#[test]
fn helpers_stop_when_the_reader_is_gone() {
    let stage = Stage::numbered();
    let (examiner, _) = numbers(|_| Ok(true));
    let jobs: Arc<Mutex<Vec<crate::helpers::Job>>> = Arc::default();
    let kept = Arc::clone(&jobs);
    let helpers = Arc::new(Helpers::new(move |job| {
        kept.lock().unwrap().push(job);
        true
    }));
    let mut scan = stage.scan(examiner, &helpers);
    for _ in 0..ALONE {
        scan.next().unwrap();
    }
    let division = Arc::clone(&scan.parts.as_ref().unwrap().0);
    drop(scan);
    let waiting = std::mem::take(&mut *jobs.lock().unwrap());
    assert_eq!(waiting.len(), MAX_HELPERS);
    for job in waiting {
        job();
    }
    assert_eq!(division.division.lock().helpers, 0);
    assert!(division.division.lock().ahead.is_empty());
    assert_eq!(helpers.held(), 0);
}
