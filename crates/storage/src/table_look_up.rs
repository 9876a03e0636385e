//! Looks one key up in the tables of a tree.
//!
//! The engine's own look-up makes an iterator of each index that it asks, copies the keys that it comes to, and copies its
//! list of tables for each key. This one reads the same blocks from the same cache and searches them where they lie.
//!
//! A tree's list of tables is the newest one. A snapshot that is older is read by the engine, which keeps older lists for it;
//! so is a table whose file cannot be read, since it may have gone meanwhile.

use lsm_tree::file::read_exact;
use lsm_tree::table::block::{BlockType, Header};
use lsm_tree::table::filter::block::FilterBlock;
use lsm_tree::table::util::load_block;
use lsm_tree::table::{Block, BlockHandle, BlockOffset};
use lsm_tree::{AbstractTree, AnyTree, Checksum, CompressionType, Slice, Table};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::block_items::Malformed;
use crate::block_search::{Target, block_of, value_of};
use crate::store::Bytes;
use crate::trees::Tree;

/// The tables that a tree has come to by a flush or a merge. A snapshot that is older than they are reads those before
/// them: a merge forgets versions that no later snapshot can see.
pub(crate) struct Tables {
    /// The number of the engine's list.
    pub(crate) version: u64,
    /// Snapshots that show all sequences below this read them.
    pub(crate) since: u64,
    /// Tables that do not overlap, in the order of their keys; the newest runs first.
    runs: Vec<Vec<Table>>,
}

impl Tables {
    pub(crate) fn of(tree: &AnyTree, since: u64) -> Self {
        let version = tree.current_version();
        let runs = version.iter_levels().flat_map(|level| level.iter());
        Self { version: version.id(), since, runs: runs.map(|run| run.to_vec()).collect() }
    }

    /// The tables that may hold a key, the newest first.
    fn around<'t>(&'t self, key: &'t [u8]) -> impl Iterator<Item = &'t Table> {
        self.runs.iter().filter_map(move |run| {
            let begun = run.partition_point(|table| **table.metadata.key_range.max() < *key);
            run.get(begun).filter(|table| **table.metadata.key_range.min() <= *key)
        })
    }
}

fn malformed(Malformed: Malformed) -> lsm_tree::Error {
    lsm_tree::Error::InvalidHeader("Block")
}

impl Tree {
    /// The value of a key in tables that show everything below a sequence. One that is known to be there is in the last
    /// table if it is in none before, whose filter need not be asked.
    pub(crate) fn look_up(
        &self,
        tables: &Tables,
        (key, is_known): (&[u8], bool),
        below: u64,
    ) -> Result<Option<Bytes>, lsm_tree::Error> {
        let mut hash = None;
        let mut around = tables.around(key).peekable();
        while let Some(table) = around.next() {
            let target = Target { key, below: below.saturating_sub(table.global_seqno()) };
            let must_hold = is_known && around.peek().is_none();
            let mut hash = || *hash.get_or_insert_with(|| xxh3_64(key));
            if !must_hold && !self.may_hold(table, &target, hash())? {
                continue;
            }
            if let Some(value) = self.look_into(table, &target)? {
                return Ok(value);
            }
        }
        Ok(None)
    }

    /// Whether the filter of a table lets a key pass.
    fn may_hold(
        &self,
        table: &Table,
        target: &Target<'_>,
        hash: u64,
    ) -> Result<bool, lsm_tree::Error> {
        if let Some(filter) = &table.pinned_filter_block {
            return filter.maybe_contains_hash(hash);
        }
        let handle = match (table.regions.filter_tli, table.regions.filter) {
            (Some(parts), _) => self.next_block(table, &parts, target)?,
            (None, filter) => filter,
        };
        let Some(handle) = handle else { return Ok(true) };
        let filter = self.load(table, &handle, BlockType::Filter)?;
        FilterBlock::new(filter).maybe_contains_hash(hash)
    }

    /// The newest version of a key that a table shows: its value, or that the key was removed.
    fn look_into(
        &self,
        table: &Table,
        target: &Target<'_>,
    ) -> Result<Option<Option<Bytes>>, lsm_tree::Error> {
        let mut handle = table.regions.tli;
        // The top of an index of two levels leads to the block that leads to the pairs.
        for _ in 0..1 + usize::from(table.regions.index.is_some()) {
            let Some(next) = self.next_block(table, &handle, target)? else { return Ok(None) };
            handle = next;
        }
        let pairs = Bytes(self.load(table, &handle, BlockType::Data)?.data.into());
        let found = value_of(&pairs, target).map_err(malformed)?;
        Ok(found.map(|value| value.map(|value| pairs.slice(value))))
    }

    /// The block that a block of an index leads to.
    fn next_block(
        &self,
        table: &Table,
        index: &BlockHandle,
        target: &Target<'_>,
    ) -> Result<Option<BlockHandle>, lsm_tree::Error> {
        let index = self.load(table, index, BlockType::Index)?.data;
        let found = block_of(&index, target).map_err(malformed)?;
        Ok(found.map(|(offset, length)| BlockHandle::new(BlockOffset(offset), length)))
    }

    /// A block of a table, from the cache if it is there.
    pub(crate) fn load(
        &self,
        table: &Table,
        handle: &BlockHandle,
        kind: BlockType,
    ) -> Result<Block, lsm_tree::Error> {
        let id = self.global_id(table);
        if let Some(block) = table.cache.get_block(id, handle.offset()) {
            return Ok(block);
        }
        if let Some(block) = self.read_whole(table, handle, kind)? {
            table.cache.insert_block(id, handle.offset(), block.clone());
            return Ok(block);
        }
        // The engine says what is wrong with it.
        let compression = match kind {
            BlockType::Data => table.metadata.data_block_compression,
            BlockType::Index => table.metadata.index_block_compression,
            BlockType::Filter | BlockType::Meta => CompressionType::None,
        };
        load_block(id, &table.path, self.files(), &table.cache, handle, kind, compression)
    }

    /// A block as its table has it; none if that is not what it should be.
    fn read_whole(
        &self,
        table: &Table,
        handle: &BlockHandle,
        kind: BlockType,
    ) -> Result<Option<Block>, lsm_tree::Error> {
        const HEADER: usize = Header::serialized_len();
        let file = self.open_table(table)?;
        let bytes = Bytes(read_exact(&file, *handle.offset(), handle.size() as usize)?.into());
        let Some(header) = bytes.first_chunk::<HEADER>().and_then(read_header) else {
            return Ok(None);
        };
        let data = Slice::from(bytes.slice(HEADER..bytes.len()).0);
        let length = data.len() as u64;
        let is_whole = header.block_type == kind
            && u64::from(header.data_length) == length
            && u64::from(header.uncompressed_length) == length
            && header.checksum == Checksum::from_raw(xxh3_128(&data));
        Ok(is_whole.then_some(Block { header, data }))
    }
}

/// The header of a block, if its own checksum is right: a mark of four bytes, the type, the checksum of the block, its
/// length on the disk and in memory, and four bytes of a checksum of all that.
fn read_header(bytes: &[u8; Header::serialized_len()]) -> Option<Header> {
    let (checked, checksum) = bytes.split_last_chunk()?;
    if xxh3_128(checked) as u32 != u32::from_le_bytes(*checksum) || !checked.starts_with(MARK) {
        return None;
    }
    let (kind, rest) = checked[MARK.len()..].split_first()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let (data_length, rest) = rest.split_first_chunk()?;
    Some(Header {
        block_type: BlockType::try_from(*kind).ok()?,
        checksum: Checksum::from_raw(u128::from_le_bytes(*checksum)),
        data_length: u32::from_le_bytes(*data_length),
        uncompressed_length: u32::from_le_bytes(*rest.first_chunk()?),
    })
}

/// What a block begins with.
const MARK: &[u8] = b"LSM\x03";
