//! Memory that was split: each part is owned by itself, and knows what it was a part of.

use std::sync::Arc;

use crate::backend::Buffer;
use crate::in_flight::stream_uses::Uses;
use crate::runtime::sync::Mutex;
use crate::tensor::layout::Layout;
use crate::tensor::storage::Storage;

/// What was split. It goes with its last part.
pub(crate) struct Whole {
    storage: Storage,
    offset: usize,
    layout: Layout,
    parts: usize,
    /// Whether somebody else may have held the memory when it was split, and may have let other streams use it since.
    may_be_held: bool,
    /// The uses of parts that have gone.
    uses_of_gone: Mutex<Uses>,
}

/// A part of memory.
pub(crate) struct Split {
    whole: Arc<Whole>,
    number: usize,
    /// Where it begins in the memory of the whole.
    start: usize,
}

/// Parts that are one again. Something may be in flight in each of them.
pub(crate) struct Joined {
    whole: Arc<Whole>,
    parts: Vec<Storage>,
}

impl Whole {
    /// `storage`, of which a tensor at `offset` is split into so many parts.
    pub(crate) fn new(storage: Storage, offset: usize, layout: Layout, parts: usize) -> Arc<Self> {
        let may_be_held = !storage.is_exclusive();
        Arc::new(Self { storage, offset, layout, parts, may_be_held, uses_of_gone: Mutex::default() })
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many parts it has.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// The uses that each part begins with.
    pub(crate) fn uses_so_far(&self) -> Uses {
        if self.may_be_held { Uses::default() } else { self.storage.uses_so_far() }
    }

    /// Keeps the uses of a part that goes until all of the memory does.
    pub(crate) fn keep(&self, uses: Uses) {
        if !uses.is_empty() {
            let over = self.uses_of_gone.lock().absorb(uses);
            // Not under the lock: streams may go with it.
            drop(over);
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.storage.keep(std::mem::take(self.uses_of_gone.get_mut()));
    }
}

impl Split {
    pub(crate) fn new(whole: &Arc<Whole>, number: usize, start: usize) -> Self {
        Self { whole: whole.clone(), number, start }
    }

    pub(crate) fn whole(&self) -> &Arc<Whole> {
        &self.whole
    }

    /// Which part it is, counted from 0.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn buffer(&self) -> &dyn Buffer {
        self.whole.storage.buffer()
    }

    /// Whether nobody holds the whole but its parts.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.whole.storage.is_exclusive()
    }

    /// The storage whose uses are those of the part as well.
    pub(crate) fn also_used(&self) -> Option<&Storage> {
        self.whole.may_be_held.then_some(&self.whole.storage)
    }
}

impl Joined {
    /// All parts of `whole`.
    pub(crate) fn new(whole: Arc<Whole>, parts: Vec<Storage>) -> Self {
        Self { whole, parts }
    }

    pub(crate) fn whole(&self) -> &Arc<Whole> {
        &self.whole
    }

    pub(crate) fn parts(&self) -> &[Storage] {
        &self.parts
    }
}
