//! What a tree holds in memory: versions of keys in their order, added by one thread and read by many.
//!
//! ```text
//!   chunks     ┌───────────────┐  ┌───────────────┐  ┌──────────
//!   of versions│ a·7 a·3 b·9 … │  │ k·4 m·8 m·2 … │  │ t·5 …
//!              └───────────────┘  └───────────────┘  └──────────
//! ```
//!
//! Versions of a key follow each other, the newest first. Keys mostly rise, or rise within a collection or an index: a version
//! is looked for in the chunk of the one before it, and rising keys fill chunk after chunk. A search looks at the starts of
//! keys, which lie side by side, and reads few keys themselves: that is what a list of nodes all over the memory cannot do.
//!
//! A key that is written again and again has few versions: one that no snapshot shows gives its place to a newer one.
//!
//! A reader that goes through many versions keeps the chunk that it is in. A writer copies a chunk that a reader keeps. Which
//! memtables a tree has is `trees`'.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::store::{Bytes, KeyRange};
use crate::table_walk::is_before;

/// Versions in a chunk, at most.
const CHUNK: usize = 64;

/// Chunks that are remembered: a power of two.
const LAST: usize = 8;

/// The words at the start of a key that are compared first: whose it is, and what tells it from its neighbours.
const HEAD_WORDS: usize = 3;

/// A key as a commit left it. There is no value if the commit removed it.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) key: Bytes,
    pub(crate) sequence: u64,
    pub(crate) value: Option<Bytes>,
}

/// The start of a key, with zeros behind a short one. Keys with the same start may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head([u64; HEAD_WORDS]);

/// Versions in their order.
#[derive(Clone)]
struct Chunk {
    versions: Vec<Version>,
    /// The start of the key of each.
    heads: Vec<Head>,
}

/// Versions in memory.
#[derive(Default)]
pub(crate) struct Memtable(RwLock<Content>);

#[derive(Default)]
struct Content {
    /// No chunk is empty.
    chunks: Vec<Headed>,
    /// The chunk that was added to last, of keys whose first words are alike. A batch adds to the ends of several
    /// indexes in turn.
    last: [usize; LAST],
    bytes: u64,
    /// The lowest sequence.
    oldest: Option<u64>,
}

/// A chunk, and the start of its first key.
struct Headed {
    head: Head,
    chunk: Arc<Chunk>,
}

/// A place among versions: behind those of smaller keys, and behind those of the key itself with this sequence and higher
/// ones.
#[derive(Clone, Copy)]
struct Target<'k> {
    head: Head,
    key: &'k [u8],
    sequence: u64,
}

/// A version that a reader has come to.
pub(crate) struct Place {
    chunk: Arc<Chunk>,
    at: usize,
}

/// The bytes of a word.
const WORD: usize = size_of::<u64>();

/// The word of a key from a place on, with zeros behind the end of the key.
#[inline]
fn word_at(key: &[u8], start: usize) -> u64 {
    let rest = key.get(start..).unwrap_or_default();
    match (rest.first_chunk(), key.last_chunk()) {
        (Some(whole), _) => u64::from_be_bytes(*whole),
        // The last word of the key without what is in front of the place.
        (None, Some(last)) if !rest.is_empty() => {
            u64::from_be_bytes(*last) << (8 * (WORD - rest.len()))
        }
        _ => rest
            .iter()
            .enumerate()
            .fold(0, |word, (place, byte)| word | u64::from(*byte) << (8 * (WORD - 1 - place))),
    }
}

impl PartialOrd for Head {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    /// Word by word, without the loop that an array is compared in.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let ([first, second, third], [first_of, second_of, third_of]) = (self.0, other.0);
        let order = match first == first_of {
            true if second == second_of => (third, third_of),
            true => (second, second_of),
            false => (first, first_of),
        };
        order.0.cmp(&order.1)
    }
}

impl Head {
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(std::array::from_fn(|place| word_at(key, place * WORD)))
    }

    /// Which keys it is counted among: those of an index or a collection share their first word.
    fn kind(&self) -> usize {
        self.0[0] as usize % LAST
    }
}

impl Version {
    /// How much memory it takes.
    fn bytes(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, |value| value.len());
        (self.key.len() + value + size_of::<Self>() + size_of::<Head>()) as u64
    }
}

impl<'k> Target<'k> {
    fn new(key: &'k [u8], sequence: u64) -> Self {
        Self { head: Head::of(key), key, sequence }
    }

    /// Whether a version is in front of the place. It is looked at only if its key has the same head.
    #[inline]
    fn follows<'v>(&self, head: &Head, version: impl FnOnce() -> &'v Version) -> bool {
        match head.cmp(&self.head) {
            Ordering::Less => true,
            Ordering::Equal => self.follows_alike(version()),
            Ordering::Greater => false,
        }
    }

    /// The same of a version whose key has the same head.
    fn follows_alike(&self, version: &Version) -> bool {
        match (*version.key).cmp(self.key) {
            Ordering::Less => true,
            Ordering::Equal => version.sequence >= self.sequence,
            Ordering::Greater => false,
        }
    }

    /// Whether the first version of a chunk is in front of the place.
    #[inline]
    fn follows_first(&self, headed: &Headed) -> bool {
        self.follows(&headed.head, || &headed.chunk.versions[0])
    }
}

impl Chunk {
    /// The first version behind a place.
    fn place_of(&self, target: Target<'_>) -> usize {
        let (Some(last), Some(head)) = (self.versions.last(), self.heads.last()) else { return 0 };
        if target.follows(head, || last) {
            return self.versions.len();
        }
        let mut range = 0..self.versions.len() - 1;
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            match target.follows(&self.heads[middle], || &self.versions[middle]) {
                true => range.start = middle + 1,
                false => range.end = middle,
            }
        }
        range.start
    }

    /// The version of a key behind the one at this place, if every snapshot shows that one, or a newer one.
    fn hidden_by(&self, at: usize, key: &Bytes, shown: u64) -> Option<&Version> {
        let [newer, older, ..] = self.versions.get(at..)? else { return None };
        let is_hidden = newer.sequence < shown && newer.key == *key && older.key == *key;
        is_hidden.then_some(older)
    }

    /// Adds a version, whose key has this head.
    fn insert(&mut self, at: usize, head: Head, version: Version) {
        self.heads.insert(at, head);
        self.versions.insert(at, version);
    }

    /// Keeps a half, and gives the other one.
    fn split(&mut self) -> Self {
        let middle = self.versions.len() / 2;
        Self { versions: self.versions.split_off(middle), heads: self.heads.split_off(middle) }
    }
}

impl Content {
    /// The last chunk whose first version is in front of the place; the first one if there is none.
    fn chunk_of(&self, target: Target<'_>) -> usize {
        let place = self.last[target.head.kind()];
        let is_behind = self.chunks.get(place).is_some_and(|chunk| target.follows_first(chunk));
        if is_behind && !self.chunks.get(place + 1).is_some_and(|next| target.follows_first(next)) {
            return place;
        }
        self.chunks.partition_point(|chunk| target.follows_first(chunk)).saturating_sub(1)
    }

    /// The first version behind the place: its chunk and where it is in it.
    fn seek(&self, target: Target<'_>) -> Option<(usize, usize)> {
        let place = self.chunk_of(target);
        let chunk = &self.chunks.get(place)?.chunk;
        let at = chunk.place_of(target);
        match at < chunk.versions.len() {
            true => Some((place, at)),
            false => (place + 1 < self.chunks.len()).then_some((place + 1, 0)),
        }
    }

    /// Adds a version. Every snapshot shows the sequences below `shown`.
    fn put(&mut self, version: Version, shown: u64) {
        let target = Target::new(&version.key, version.sequence);
        let (place, head) = (self.chunk_of(target), target.head);
        let kind = head.kind();
        let Some(headed) = self.chunks.get_mut(place) else {
            return self.begin_chunk(0, head, version);
        };
        // A batch that changes a key twice leaves what it says last.
        let sequence = version.sequence.saturating_add(1);
        let at = headed.chunk.place_of(Target { sequence, ..target });
        let is_same =
            |known: &Version| known.sequence == version.sequence && *known.key == *version.key;
        if headed.chunk.versions.get(at).is_some_and(is_same) {
            let known = &mut Arc::make_mut(&mut headed.chunk).versions[at];
            self.bytes -= known.bytes();
            *known = version;
            return;
        }
        if let Some(hidden) = headed.chunk.hidden_by(at, &version.key, shown) {
            self.bytes -= hidden.bytes();
            let versions = &mut Arc::make_mut(&mut headed.chunk).versions;
            versions[at + 1] = std::mem::replace(&mut versions[at], version);
            return;
        }
        if headed.chunk.versions.len() < CHUNK {
            self.last[kind] = place;
            return headed.insert(at, head, version);
        }
        if at < CHUNK {
            let upper = Arc::make_mut(&mut headed.chunk).split();
            self.chunks.insert(place + 1, Headed::new(upper));
            return self.put(version, shown);
        }
        // Keys that rise leave full chunks behind.
        self.last[kind] = place + 1;
        match self.chunks.get_mut(place + 1) {
            Some(next) if next.chunk.versions.len() < CHUNK => next.insert(0, head, version),
            _ => self.begin_chunk(place + 1, head, version),
        }
    }

    fn begin_chunk(&mut self, place: usize, head: Head, version: Version) {
        let (versions, heads) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
        let mut chunk = Chunk { versions, heads };
        chunk.insert(0, head, version);
        self.chunks.insert(place, Headed::new(chunk));
    }
}

impl Headed {
    fn new(chunk: Chunk) -> Self {
        Self { head: chunk.heads[0], chunk: Arc::new(chunk) }
    }

    fn insert(&mut self, at: usize, head: Head, version: Version) {
        if at == 0 {
            self.head = head;
        }
        Arc::make_mut(&mut self.chunk).insert(at, head, version);
    }
}

impl Memtable {
    fn content(&self) -> RwLockReadGuard<'_, Content> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a version. Every snapshot, those to come included, shows the sequences below `shown`. Returns how many bytes there
    /// are now.
    pub(crate) fn put(&self, version: Version, shown: u64) -> u64 {
        let mut content = self.0.write().unwrap_or_else(PoisonError::into_inner);
        content.bytes += version.bytes();
        content.oldest =
            Some(content.oldest.map_or(version.sequence, |oldest| oldest.min(version.sequence)));
        content.put(version, shown);
        content.bytes
    }

    /// How much memory the versions take.
    pub(crate) fn bytes(&self) -> u64 {
        self.content().bytes
    }

    /// The lowest sequence; none if it is empty.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.content().oldest
    }

    /// Its first and its last key; none if it is empty.
    pub(crate) fn span(&self) -> Option<(Bytes, Bytes)> {
        let content = self.content();
        let first = content.chunks.first()?.chunk.versions.first()?.key.clone();
        let last = content.chunks.last()?.chunk.versions.last()?.key.clone();
        Some((first, last))
    }

    /// The newest version of a key below a sequence: its value, or that the key was removed.
    pub(crate) fn get(&self, key: &[u8], below: u64) -> Option<Option<Bytes>> {
        let content = self.content();
        let (place, at) = content.seek(Target::new(key, below))?;
        let version = &content.chunks[place].chunk.versions[at];
        (*version.key == *key).then(|| version.value.clone())
    }

    /// The first version of a key from here on.
    pub(crate) fn first(&self, start: &Bound<Vec<u8>>) -> Option<Place> {
        match start {
            Bound::Included(key) => self.place(Target::new(key, u64::MAX)),
            Bound::Excluded(key) => self.place(Target::new(key, 0)),
            Bound::Unbounded => self.place(Target::new(&[], u64::MAX)),
        }
    }

    /// The version behind another one.
    pub(crate) fn after(&self, mut place: Place) -> Option<Place> {
        if place.at + 1 < place.chunk.versions.len() {
            place.at += 1;
            return Some(place);
        }
        let Version { key, sequence, .. } = place.version();
        self.place(Target::new(key, *sequence))
    }

    /// The newest version of the key behind that of a place.
    pub(crate) fn after_key(&self, mut place: Place) -> Option<Place> {
        let key = &place.version().key;
        let rest = &place.chunk.versions[place.at + 1..];
        if let Some(next) = rest.iter().position(|version| version.key != *key) {
            place.at += 1 + next;
            return Some(place);
        }
        let behind_all = Target::new(key, 0);
        self.place(behind_all)
    }

    fn place(&self, target: Target<'_>) -> Option<Place> {
        let content = self.content();
        let (place, at) = content.seek(target)?;
        Some(Place { chunk: Arc::clone(&content.chunks[place].chunk), at })
    }

    /// The last key of a range that has a version below a sequence, and the newest of these.
    pub(crate) fn last(&self, range: &KeyRange, below: u64) -> Option<(Bytes, Option<Bytes>)> {
        let content = self.content();
        let target = match &range.end {
            Bound::Included(key) => Some(Target::new(key, 0)),
            Bound::Excluded(key) => Some(Target::new(key, u64::MAX)),
            Bound::Unbounded => None,
        };
        let end = target.map_or(Some((content.chunks.len(), 0)), |target| {
            let place = content.chunk_of(target);
            let chunk = &content.chunks.get(place)?.chunk;
            Some((place, chunk.place_of(target)))
        });
        let (mut place, mut at) = end?;
        let mut found: Option<&Version> = None;
        loop {
            if at == 0 {
                place = match place.checked_sub(1) {
                    Some(place) => place,
                    None => break,
                };
                at = content.chunks[place].chunk.versions.len();
                continue;
            }
            at -= 1;
            // The oldest version comes first on the way back.
            let version = &content.chunks[place].chunk.versions[at];
            match found {
                Some(found) if found.key != version.key => break,
                // A writer waits meanwhile: a memtable may be full of versions that are not shown.
                _ if is_before(&version.key, &range.start) => break,
                _ if version.sequence < below => found = Some(version),
                _ => {}
            }
        }
        found.map(|version| (version.key.clone(), version.value.clone()))
    }

    /// Looks at each version, in their order.
    pub(crate) fn for_each(&self, look: impl FnMut(&Version)) {
        self.content().chunks.iter().flat_map(|headed| &headed.chunk.versions).for_each(look);
    }

    /// All versions in their order. No other is added any more.
    pub(crate) fn versions(&self) -> impl Iterator<Item = Version> {
        let content = self.content();
        let chunks: Vec<Arc<Chunk>> =
            content.chunks.iter().map(|headed| Arc::clone(&headed.chunk)).collect();
        let each =
            |chunk: Arc<Chunk>| (0..chunk.versions.len()).map(move |at| chunk.versions[at].clone());
        chunks.into_iter().flat_map(each)
    }
}

impl Place {
    pub(crate) fn version(&self) -> &Version {
        &self.chunk.versions[self.at]
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::merge_walk::MemoryWalk;
    use crate::table_walk::is_behind;

    /// The same as a map.
    type Model = BTreeMap<Key, Option<Vec<u8>>>;
    type Key = (Vec<u8>, Reverse<u64>);

    /// How the keys of a memtable follow each other.
    #[derive(Clone, Copy, Debug)]
    enum Order {
        Rising,
        Falling,
        /// Rising in each of three collections, in turn.
        RisingInTurn,
        Anyhow,
        /// Few keys with many versions.
        Again,
    }

    fn key(order: Order, number: u32, chance: u32) -> Vec<u8> {
        // Keys of one collection have the same start, longer than what is compared first.
        let numbered = |owner: u8, number: u32| {
            let mut key = vec![owner; 1 + 8 * (HEAD_WORDS + 1) * usize::from(owner % 2)];
            key.extend(number.to_be_bytes());
            key
        };
        match order {
            Order::Rising => numbered(1, number),
            Order::Falling => numbered(1, u32::MAX - number),
            Order::RisingInTurn => numbered((number % 3) as u8, number),
            Order::Anyhow => numbered((chance % 3) as u8, chance),
            Order::Again => numbered(2, chance % 5),
        }
    }

    fn fill(order: Order, chances: &[(u32, bool, bool)]) -> (Memtable, Model) {
        let (memtable, mut model, mut sequence) = (Memtable::default(), Model::new(), 1);
        for (number, &(chance, is_removed, is_next)) in chances.iter().enumerate() {
            sequence += u64::from(is_next);
            let key = key(order, number as u32, chance);
            let value = (!is_removed).then(|| number.to_be_bytes().to_vec());
            model.insert((key.clone(), Reverse(sequence)), value.clone());
            let (key, value) = (Bytes::from(key), value.map(Bytes::from));
            memtable.put(Version { key, sequence, value }, 0);
        }
        (memtable, model)
    }

    #[test]
    fn a_head_is_the_start_of_a_key_with_zeros_behind_it() {
        let bytes: Vec<u8> = (1..=40_u8).map(|byte| byte.wrapping_mul(7)).collect();
        let heads = (0..=bytes.len()).map(|length| {
            let mut padded = [0; HEAD_WORDS * WORD];
            let known = length.min(padded.len());
            padded[..known].copy_from_slice(&bytes[..known]);
            let (words, _) = padded.as_chunks();
            let expected = Head(std::array::from_fn(|place| u64::from_be_bytes(words[place])));
            let head = Head::of(&bytes[..length]);
            assert_eq!(head, expected, "{length}");
            head
        });
        let heads: Vec<Head> = heads.collect();
        for pair in heads.windows(2) {
            assert_eq!(pair[0].cmp(&pair[1]), pair[0].0.cmp(&pair[1].0));
        }
        assert!(heads.is_sorted());
    }

    fn parted(version: &Version) -> (Key, Option<Vec<u8>>) {
        let value = version.value.as_ref().map(|value| value.to_vec());
        ((version.key.to_vec(), Reverse(version.sequence)), value)
    }

    fn orders() -> impl Strategy<Value = Order> {
        use Order::*;
        prop_oneof![Just(Rising), Just(Falling), Just(RisingInTurn), Just(Anyhow), Just(Again)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_behaves_like_a_map(
            order in orders(),
            chances in proptest::collection::vec((0_u32..2_000, any::<bool>(), any::<bool>()), 1..900),
            below in 0_u64..500,
            looked_for in 0_usize..900,
        ) {
            let (memtable, model) = fill(order, &chances);
            let all: Vec<_> = memtable.versions().map(|version| parted(&version)).collect();
            prop_assert_eq!(&all, &model.clone().into_iter().collect::<Vec<_>>());
            let lengths = memtable.content().chunks.iter().map(|headed| headed.chunk.versions.len()).collect::<Vec<_>>();
            prop_assert!(lengths.iter().all(|length| (1..=CHUNK).contains(length)));
            prop_assert!(lengths.len() <= 2 + 3 * all.len() / CHUNK, "{} chunks of {}", lengths.len(), all.len());
            prop_assert_eq!(memtable.oldest(), model.keys().map(|(_, sequence)| sequence.0).min());
            let (first, last) = memtable.span().unwrap();
            prop_assert_eq!(&*first, &*all[0].0.0);
            prop_assert_eq!(&*last, &*all[all.len() - 1].0.0);
            // One key, whether it is there or not.
            for key in [all[looked_for % all.len()].0.0.clone(), vec![0], vec![1; 40], vec![9]] {
                let shown = |start: Bound<Key>| {
                    model.range((start, Bound::Unbounded)).find(|((_, sequence), _)| sequence.0 < below)
                };
                let of_key = shown(Bound::Included((key.clone(), Reverse(below))))
                    .filter(|((found, _), _)| *found == key);
                let found = memtable.get(&key, below).map(|value| value.map(|value| value.to_vec()));
                prop_assert_eq!(found, of_key.map(|(_, value)| value.clone()));
                for start in [Bound::Included(key.clone()), Bound::Excluded(key.clone()), Bound::Unbounded] {
                    let expected = model.iter().filter(|((found, _), _)| match &start {
                        Bound::Included(start) => found >= start,
                        Bound::Excluded(start) => found > start,
                        Bound::Unbounded => true,
                    });
                    let mut place = memtable.first(&start);
                    for ((key, sequence), value) in expected {
                        let at = place.take().unwrap();
                        prop_assert_eq!(parted(at.version()), ((key.clone(), *sequence), value.clone()));
                        place = memtable.after(at);
                    }
                    prop_assert!(place.is_none());
                }
                let other = all[looked_for / 2 % all.len()].0.0.clone();
                let starts = [Bound::Included(other.clone()), Bound::Excluded(other), Bound::Unbounded];
                let ends = [Bound::Included(key.clone()), Bound::Excluded(key.clone()), Bound::Unbounded];
                let ranges = starts.iter().flat_map(|start| ends.iter().map(move |end| (start, end)));
                for (start, end) in ranges {
                    let range = KeyRange { start: start.clone(), end: end.clone() };
                    let mut expected: BTreeMap<_, _> = BTreeMap::new();
                    for ((found, sequence), value) in &model {
                        let is_within = !is_before(found, start) && !is_behind(found, end);
                        if is_within && sequence.0 < below {
                            expected.entry(found.clone()).or_insert_with(|| value.clone());
                        }
                    }
                    let last = memtable.last(&range, below);
                    let last = last.map(|(key, value)| (key.to_vec(), value.map(|value| value.to_vec())));
                    prop_assert_eq!(last, expected.pop_last());
                }
            }
        }
    }

    fn put(memtable: &Memtable, key: u32, sequence: u64) {
        let (key, value) = (Bytes::from(&key.to_be_bytes()), Some(Bytes::from(b"v")));
        memtable.put(Version { key, sequence, value }, 0);
    }

    /// A reader between two keys finds all that were there, though the chunk that it keeps is parted meanwhile.
    #[test]
    fn a_reader_keeps_its_place_while_versions_are_added() {
        const KEYS: u32 = 4 * CHUNK as u32;
        let memtable = Arc::new(Memtable::default());
        (0..KEYS).for_each(|number| put(&memtable, 10 * number, 1));
        let mut walk = MemoryWalk::new(Arc::clone(&memtable), KeyRange::all(), 2);
        let mut found = Vec::new();
        while walk.advance() {
            let key = u32::from_be_bytes(*walk.version().unwrap().key.first_chunk().unwrap());
            found.push(key);
            assert!(found.len() <= KEYS as usize, "{key} is shown again");
            // In front of it, behind it, and newer versions of it and of the next one.
            for key in [key.saturating_sub(5), key + 5, key, key + 10] {
                put(&memtable, key, 2 + u64::from(key));
            }
        }
        assert_eq!(found, (0..KEYS).map(|number| 10 * number).collect::<Vec<_>>());
    }

    /// Versions of one key may fill several chunks.
    #[test]
    fn each_key_is_shown_once_however_many_versions_it_has() {
        let memtable = Arc::new(Memtable::default());
        (1..=3 * CHUNK as u64).for_each(|sequence| put(&memtable, 5, sequence));
        put(&memtable, 6, 1);
        for below in [2, CHUNK as u64, u64::MAX] {
            let mut walk = MemoryWalk::new(Arc::clone(&memtable), KeyRange::all(), below);
            assert!(walk.advance());
            let first = walk.version().unwrap();
            assert_eq!(
                (&*first.key, first.sequence),
                (&[0, 0, 0, 5][..], below.min(3 * CHUNK as u64 + 1) - 1)
            );
            assert!(walk.advance());
            assert_eq!(*walk.version().unwrap().key, [0, 0, 0, 6]);
            assert!(!walk.advance());
        }
    }

    /// Writers of the same few keys, such as the rows of sessions, do not fill a memtable.
    #[test]
    fn a_key_that_is_written_again_and_again_keeps_two_versions() {
        let memtable = Memtable::default();
        let again = |sequence: u64, shown: u64| {
            for key in [5_u32, 6] {
                let (key, value) = (Bytes::from(&key.to_be_bytes()), Some(Bytes::from(b"v")));
                memtable.put(Version { key, sequence, value }, shown);
            }
        };
        again(1, 1);
        again(2, 2);
        let bytes = memtable.bytes();
        (3..1_000).for_each(|sequence| again(sequence, sequence));
        assert_eq!(memtable.versions().count(), 4);
        assert_eq!(memtable.bytes(), bytes);
        assert_eq!(memtable.oldest(), Some(1), "what is before it in the journal is needed");
        // A snapshot of this moment keeps what it shows.
        let below = 1_000;
        (below..2_000).for_each(|sequence| again(sequence, below));
        let shown = |below| memtable.place(Target::new(&5_u32.to_be_bytes(), below)).unwrap();
        assert_eq!(shown(below).version().sequence, below - 1);
        assert_eq!(shown(u64::MAX).version().sequence, 1_999);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn snapshots_show_the_same_whether_or_not_hidden_versions_are_kept(
            order in orders(),
            chances in proptest::collection::vec((0_u32..200, any::<bool>(), 0_u64..20), 1..900),
        ) {
            let (memtable, all, mut shown) = (Memtable::default(), Memtable::default(), 0);
            for (number, &(chance, is_removed, back)) in chances.iter().enumerate() {
                let sequence = 1 + number as u64;
                shown = shown.max(sequence.saturating_sub(back));
                let key = Bytes::from(key(order, number as u32, chance));
                let value = (!is_removed).then(|| Bytes::from(&sequence.to_be_bytes()));
                let version = Version { key, sequence, value };
                all.put(version.clone(), 0);
                memtable.put(version, shown);
            }
            prop_assert!(memtable.versions().count() <= all.versions().count());
            prop_assert_eq!(memtable.bytes(), memtable.versions().map(|version| version.bytes()).sum::<u64>());
            for below in (shown..=chances.len() as u64 + 1).step_by(3) {
                let (mut few, mut many) = (
                    MemoryWalk::new(Arc::new(copy(&memtable)), KeyRange::all(), below),
                    MemoryWalk::new(Arc::new(copy(&all)), KeyRange::all(), below),
                );
                while many.advance() {
                    prop_assert!(few.advance());
                    prop_assert_eq!(parted(few.version().unwrap()), parted(many.version().unwrap()));
                }
                prop_assert!(!few.advance());
            }
        }
    }

    fn copy(memtable: &Memtable) -> Memtable {
        let copy = Memtable::default();
        for version in memtable.versions() {
            copy.put(version, 0);
        }
        copy
    }

    /// Keys between a full chunk and the next one come to the front of that, each in its place.
    #[test]
    fn keys_between_two_chunks_keep_their_order() {
        let memtable = Memtable::default();
        (0..CHUNK as u32).for_each(|number| put(&memtable, number, 1));
        let between = [10_000, 5_000, 7_000, 6_000, 8_000];
        between.iter().for_each(|number| put(&memtable, *number, 1));
        let keys: Vec<Bytes> = memtable.versions().map(|version| version.key).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        for number in between {
            assert!(memtable.get(&u32::to_be_bytes(number), 2).is_some(), "{number}");
        }
    }

    /// Rising keys leave no half-empty chunks behind.
    #[test]
    fn rising_keys_fill_their_chunks() {
        let memtable = Memtable::default();
        (0..10 * CHUNK as u32).for_each(|number| put(&memtable, number, 1));
        assert!(
            memtable.content().chunks.iter().all(|headed| headed.chunk.versions.len() == CHUNK)
        );
    }
}
