//! What one submission of a copy uses.

use std::num::NonZero;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{KernelTable, Scattered};
use crate::cast::Cast;
use crate::in_flight::retained::Retained;
use crate::job::leaf::Leaf;
use crate::job::leaves::Leaves;
use crate::staging::block::Block;
use crate::tensor::storage::Storage;

/// What one submission uses.
#[derive(Default)]
pub(crate) struct SubmissionResources {
    pub(crate) blocks: SmallVec<[Block; 1]>,
    /// Blocks that others use as well: the host, which reads them after the copy, or copies of the same bytes to other devices.
    pub(crate) shared_blocks: SmallVec<[Arc<Block>; 1]>,
    /// For a kernel that makes all of the copies.
    pub(crate) table: Option<Table>,
    /// What the copies read, all sources of their job at once.
    pub(crate) sources: Option<Arc<Leaves>>,
    /// What becomes of elements that are cast out of a block.
    pub(crate) casts: Vec<Cast>,
    /// Where kernels write what has gaps there.
    pub(crate) scattered: Vec<Scattered>,
    /// What they write.
    pub(crate) storages: Storages,
}

/// A block for the table of a kernel.
pub(crate) struct Table {
    pub(crate) block: Block,
    /// As [`KernelTable::part`].
    pub(crate) part: NonZero<usize>,
}

/// The memory of tensors.
pub(crate) type Storages = SmallVec<[Storage; 2]>;

impl SubmissionResources {
    /// The leaves whose memory the copies read.
    pub(crate) fn sources(&self) -> &[Leaf] {
        self.sources.as_ref().map_or(&[], |leaves| leaves)
    }

    /// The block of this number that the copies read. Either all blocks are theirs alone, or all are shared.
    pub(crate) fn staged(&self, number: usize) -> Option<&Block> {
        self.blocks.get(number).or_else(|| self.shared_blocks.get(number).map(|block| &**block))
    }
}

impl Retained for SubmissionResources {
    fn table(&self) -> Option<KernelTable<'_>> {
        let Table { block, part } = self.table.as_ref()?;
        Some(KernelTable { block: block.staging(), part: *part })
    }

    fn give_up(&self) -> usize {
        let shared = self.shared_blocks.iter().map(|block| &**block);
        let sources = self.sources().iter().map(|leaf| &leaf.storage);
        let mut bytes = self.storages.iter().chain(sources).map(Storage::own_bytes).sum::<usize>();
        let table = self.table.as_ref().map(|table| &table.block);
        for block in self.blocks.iter().chain(shared).chain(table) {
            if block.give_up() {
                bytes += block.bytes();
            }
        }
        bytes
    }
}
