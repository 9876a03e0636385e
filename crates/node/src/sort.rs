//! Sorting documents, in memory as far as they fit.
//!
//! A sort key is made of index keys, whose byte order is the comparison order. Of an array the
//! smallest element counts when sorting up and the greatest when sorting down; with inverted bytes
//! for descending fields both are the first key.

use std::cell::Cell;
use std::cmp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{Bson, Document, RawDocument, RawDocumentBuf};
use quorate_query::value::Path;
use quorate_query::{Kept, Meter, QueryError, SortRoom, Sorter};
use quorate_storage::key::FieldOrder;

use quorate_protocol::Lock;

use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::whole_number;
use crate::finder::InterruptSlot;
use crate::index_keys::{IndexField, first_key};
use crate::records::DocumentBytes;
use crate::scratch::{Run, Scratch, damaged};

/// The most fields of a sort.
const MAX_SORT_FIELDS: usize = 32;

/// A parsed sort specification.
#[derive(Clone, Debug)]
pub(crate) struct SortOrder {
    fields: Vec<IndexField>,
}

impl SortOrder {
    pub(crate) fn parse(specification: &Document) -> Result<Self> {
        refuse_if!(specification.len() > MAX_SORT_FIELDS => BAD_VALUE,
            "a sort has at most {MAX_SORT_FIELDS} fields");
        let mut fields = Vec::with_capacity(specification.len());
        for (name, direction) in specification {
            if name.is_empty() || name.starts_with('$') || name.split('.').any(str::is_empty) {
                refuse!(BAD_VALUE, "'{name}' cannot be sorted by");
            }
            let order = match (whole_number(direction), direction) {
                (Some(1), _) => FieldOrder::Ascending,
                (Some(-1), _) => FieldOrder::Descending,
                (_, Bson::Document(_)) => {
                    refuse!(COMMAND_NOT_SUPPORTED, "$meta sort is not supported; sort by fields");
                }
                _ => {
                    refuse!(
                        15975,
                        "$sort key ordering must be 1 (for ascending) or -1 (for descending)"
                    );
                }
            };
            fields.push(IndexField { components: Path::parse(name)?.components().to_vec(), order });
        }
        Ok(Self { fields })
    }

    /// Puts the key of a document in place of what was in `key`.
    fn key(&self, document: &RawDocument, key: &mut Vec<u8>) -> Result<()> {
        first_key(document, &self.fields, key).map_err(|mut error| {
            if error.code == ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS {
                error.code = ErrorCode::BAD_VALUE;
                error.message = "cannot sort with keys that are parallel arrays".to_owned();
            }
            error
        })
    }
}

/// What a document must be below to be among the first of a sort with a limit.
///
/// The sort lowers it as it takes documents in; scans look at it ahead of the sort, from any thread, and keep no document
/// that cannot pass. Of equal keys the earlier one wins, and the sort has always taken in what is earlier.
#[derive(Debug)]
pub(crate) struct Bar {
    order: SortOrder,
    /// The first bytes of the key, which nearly always decide; all ones without a bar.
    first_bytes: AtomicU64,
    key: Lock<Option<Vec<u8>>>,
}

thread_local! {
    /// Room for the key of a document that is compared with a bar.
    static KEY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Bar {
    pub(crate) fn new(order: SortOrder) -> Self {
        Self { order, first_bytes: AtomicU64::new(u64::MAX), key: Lock::default() }
    }

    /// Whether a document that was not taken in yet may be among the first.
    pub(crate) fn may_pass(&self, document: &RawDocument) -> Result<bool> {
        let first_bytes = self.first_bytes.load(Ordering::Relaxed);
        if first_bytes == u64::MAX {
            return Ok(true);
        }
        let mut key = KEY.take();
        self.order.key(document, &mut key)?;
        let passes = match first_bytes_of(&key).cmp(&first_bytes) {
            cmp::Ordering::Less => true,
            cmp::Ordering::Greater => false,
            cmp::Ordering::Equal => self.key.lock().as_ref().is_none_or(|bar| key < *bar),
        };
        KEY.set(key);
        Ok(passes)
    }

    /// Documents with this key, or a greater one, no longer pass.
    fn lower(&self, key: &[u8]) {
        let mut bar = self.key.lock();
        // A sort that has put documents aside begins anew, and may come to a greater key.
        if bar.as_ref().is_some_and(|bar| **bar <= *key) {
            return;
        }
        *bar = Some(key.to_vec());
        // Whatever a thread sees of the two, it keeps what may pass: keys only become smaller.
        self.first_bytes.store(first_bytes_of(key), Ordering::Relaxed);
    }
}

/// The first eight bytes of a key as a number, in the order of keys.
fn first_bytes_of(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let length = key.len().min(first.len());
    first[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(first)
}

struct Sorted<T> {
    key: Vec<u8>,
    /// Keeps equal keys in the order in which they came.
    place: usize,
    value: T,
}

impl<T> PartialEq for Sorted<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Sorted<T> {}

impl<T> PartialOrd for Sorted<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Sorted<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.key, self.place).cmp(&(&other.key, other.place))
    }
}

/// What can be sorted, and put aside while the rest is.
pub(crate) trait Sortable: Sized + Send + 'static {
    fn document(&self) -> &RawDocument;

    /// Everything but the document, in eight bytes each.
    fn numbers(&self) -> [u64; 2];

    fn restore(document: DocumentBytes, numbers: [u64; 2]) -> Self;
}

impl<T: Sortable> Sorted<T> {
    fn size(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.value.document().as_bytes().len()
    }

    /// `<place, 8> <numbers, 16> <length of key, 4> <key> <document>`
    fn to_record(&self) -> Vec<u8> {
        let document = self.value.document().as_bytes();
        let mut record = Vec::with_capacity(28 + self.key.len() + document.len());
        record.extend((self.place as u64).to_be_bytes());
        for number in self.value.numbers() {
            record.extend(number.to_be_bytes());
        }
        record.extend((self.key.len() as u32).to_be_bytes());
        record.extend(&self.key);
        record.extend(document);
        record
    }

    fn from_record(record: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_be_bytes(*record.get(at..)?.first_chunk()?));
        let key_length = u32::from_be_bytes(*record.get(24..)?.first_chunk()?) as usize;
        let (key, document) = record.get(28..)?.split_at_checked(key_length)?;
        let document = DocumentBytes::from(RawDocumentBuf::from_bytes(document.to_vec()).ok()?);
        Some(Self {
            key: key.to_vec(),
            place: number(0)? as usize,
            value: T::restore(document, [number(8)?, number(16)?]),
        })
    }
}

/// How much a sort may hold, and where it may put the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// What the operation's memory is counted on.
    pub(crate) meter: Meter,
    pub(crate) scratch: Option<Arc<dyn Scratch>>,
}

impl Room {
    /// The usual room of an operation that may be interrupted.
    pub(crate) fn of(interrupt: &InterruptSlot) -> Self {
        let meter = Meter::default().with_interrupt(Arc::new(interrupt.clone()));
        Self { meter, scratch: None }
    }
}

impl<T: Sortable> SortRoom<Sorted<T>> for Room {
    type Error = CommandError;
    type Run = Box<dyn Iterator<Item = Result<Sorted<T>>> + Send>;

    const NAME: &'static str = "Sort";

    fn size(sorted: &Sorted<T>) -> usize {
        sorted.size()
    }

    fn sets_aside(&self) -> bool {
        self.scratch.is_some()
    }

    fn set_aside(&self, values: Vec<Sorted<T>>, meter: &Meter) -> Result<Self::Run> {
        let scratch = self.scratch.as_ref().ok_or_else(damaged)?;
        let values = Kept::new(values, meter);
        let records = values.iter().map(|sorted| {
            meter.step()?;
            Ok(sorted.to_record())
        });
        let run = Run::keep(&**scratch, records, |file| meter.leave(file))?;
        Ok(Box::new(run.map(|record| Sorted::from_record(&record?).ok_or_else(damaged))))
    }

    fn outgrown(&self, _error: QueryError, limit: usize) -> CommandError {
        let advice = if self.scratch.is_some() { "" } else { ", or allow disk use" };
        fail!(
            QUERY_EXCEEDED_MEMORY_LIMIT,
            "Sort exceeded memory limit of {limit} bytes; add an index for the sort or a limit{advice}"
        )
    }
}

/// Sorts values by the documents they carry. With a limit only the first ones are kept. What does not
/// fit into memory is put aside in sorted runs, which are merged as they are read.
pub(crate) fn sort<T: Sortable>(
    bar: &Bar,
    values: impl Iterator<Item = Result<T>>,
    limit: Option<usize>,
    room: &Room,
) -> Result<Box<dyn Iterator<Item = Result<T>> + Send>> {
    let mut sorter = Sorter::new(room.clone(), limit.unwrap_or(usize::MAX), &room.meter);
    let mut key = Vec::new();
    let taken = values.enumerate().try_for_each(|(place, value)| {
        let value = value?;
        bar.order.key(value.document(), &mut key)?;
        // Of equal keys the earlier one stays. Most documents of a large collection end here.
        if sorter.bar().is_some_and(|greatest: &Sorted<T>| key >= greatest.key) {
            return Ok(());
        }
        sorter.take(Sorted { key: key.clone(), place, value })?;
        if let Some(greatest) = sorter.bar() {
            bar.lower(&greatest.key);
        }
        Ok(())
    });
    let sorted = sorter.finish(taken)?;
    Ok(Box::new(sorted.map(|sorted| Ok(sorted?.value))))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::scratch::ScratchFile;
    use bson::doc;

    impl Sortable for RawDocumentBuf {
        fn document(&self) -> &RawDocument {
            self
        }

        fn numbers(&self) -> [u64; 2] {
            [7, 8]
        }

        fn restore(document: DocumentBytes, numbers: [u64; 2]) -> Self {
            assert_eq!(numbers, [7, 8]);
            (*document).to_owned()
        }
    }

    /// Files in memory, and how many there were.
    #[derive(Debug, Default)]
    struct Buffers(AtomicUsize);

    impl Scratch for Buffers {
        fn create(&self) -> std::io::Result<Box<dyn ScratchFile>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(std::io::Cursor::new(Vec::new())))
        }
    }

    fn sorted(specification: Document, documents: &[Document], limit: Option<usize>) -> Vec<i32> {
        sorted_within(&specification, documents, limit, &Room::default()).unwrap()
    }

    fn sorted_within(
        specification: &Document,
        documents: &[Document],
        limit: Option<usize>,
        room: &Room,
    ) -> Result<Vec<i32>> {
        let order = SortOrder::parse(specification).unwrap();
        let raw = documents.iter().map(|document| Ok(RawDocumentBuf::try_from(document).unwrap()));
        let sorted = sort(&Bar::new(order), raw, limit, room)?;
        sorted.map(|document| Ok(document?.get_i32("_id").unwrap())).collect()
    }

    /// As a scan does it that looks at the bar before it keeps a document.
    #[test]
    fn a_bar_stops_only_what_would_not_be_among_the_first() {
        for (modulus, limit) in [(1, 3), (2, 3), (7, 1), (7, 20), (499, 10), (499, 499)] {
            let documents: Vec<_> =
                (0..500).map(|n| doc! {"_id": n, "a": (n * 7919) % modulus}).collect();
            for specification in [doc! {"a": 1}, doc! {"a": -1, "_id": -1}] {
                let bar = Bar::new(SortOrder::parse(&specification).unwrap());
                let mut passed = 0;
                let raw =
                    documents.iter().map(|document| RawDocumentBuf::try_from(document).unwrap());
                let passing =
                    raw.filter(|document| bar.may_pass(document).unwrap()).map(|document| {
                        passed += 1;
                        Ok(document)
                    });
                let first = sort(&bar, passing, Some(limit), &Room::default()).unwrap();
                let first: Vec<_> =
                    first.map(|found| found.unwrap().get_i32("_id").unwrap()).collect();
                let expected = sorted(specification.clone(), &documents, None);
                assert_eq!(first, expected[..limit], "{specification} {modulus}");
                // Documents that come in the reverse order all pass.
                let rises = specification.contains_key("_id");
                assert!(
                    rises || limit == 499 || passed < 250,
                    "{passed}, {specification} {modulus}"
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_put_aside_and_comes_back_in_the_same_order() {
        let documents: Vec<_> = (0..500).map(|n| doc! {"_id": n, "a": (n * 7919) % 13}).collect();
        for limit in [None, Some(1), Some(120), Some(400)] {
            let expected = sorted(doc! {"a": -1}, &documents, limit);
            let buffers = Arc::new(Buffers::default());
            let room = Room { meter: Meter::new(10_000), scratch: Some(Arc::clone(&buffers) as _) };
            let found = sorted_within(&doc! {"a": -1}, &documents, limit, &room).unwrap();
            assert_eq!(found, expected);
            let aside = buffers.0.load(Ordering::Relaxed);
            assert_eq!(aside > 1, limit != Some(1), "{aside} runs with limit {limit:?}");
        }
        let nowhere = Room { meter: Meter::new(10_000), scratch: None };
        let refusal = sorted_within(&doc! {"a": -1}, &documents, None, &nowhere).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT);
    }

    #[test]
    fn arrays_sort_by_their_smallest_or_greatest_element() {
        let documents = [
            doc! {"_id": 1, "a": [5, 1]},
            doc! {"_id": 2, "a": 3},
            doc! {"_id": 3},
            doc! {"_id": 4, "a": []},
        ];
        assert_eq!(sorted(doc! {"a": 1}, &documents, None), [4, 3, 1, 2]);
        assert_eq!(sorted(doc! {"a": -1}, &documents, None), [1, 2, 3, 4]);
    }

    #[test]
    fn equal_keys_keep_their_order_with_and_without_a_limit() {
        let documents: Vec<_> = (0..20).map(|n| doc! {"_id": n, "a": n % 2}).collect();
        let all = sorted(doc! {"a": -1}, &documents, None);
        assert_eq!(all[..3], [1, 3, 5]);
        assert_eq!(sorted(doc! {"a": -1}, &documents, Some(3)), all[..3]);
    }

    #[test]
    fn directions_other_than_one_are_refused() {
        assert_eq!(SortOrder::parse(&doc! {"a": 2}).unwrap_err().code.0, 15975);
        assert!(SortOrder::parse(&doc! {"a": "up"}).is_err());
        assert!(SortOrder::parse(&doc! {"": 1}).is_err());
    }
}
