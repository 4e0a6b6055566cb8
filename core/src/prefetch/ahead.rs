//! The copies that are started ahead, in the order of their items.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::job::options::{CopyOptions, CopyPolicy};
use crate::prefetch::error::PrefetchError;
use crate::prefetch::in_turn::InTurn;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::stats::PrefetchStats;
use crate::prefetch::way::Way;
use crate::tree::tensor_tree::{TensorTree, for_each_tensor};

/// The copies that are started ahead, in the order of their items. The item that the program has, or waits for, is none of them.
pub(crate) struct Ahead<T, E, W, C> {
    pub(crate) way: W,
    pub(crate) depth: usize,
    max_bytes: Option<usize>,
    copy: CopyOptions,
    /// The item that the program waits for. It stays here while the next ones are started: a source that panics loses nothing.
    pub(crate) current: Option<Slot<T, E, C>>,
    slots: VecDeque<Slot<T, E, C>>,
    /// An item for which the bytes in `slots` leave no room, and its own.
    held_back: Option<(T, usize)>,
    /// Those of `slots`.
    bytes: usize,
    pub(crate) stats: PrefetchStats,
}

/// The place of an item.
pub(crate) enum Slot<T, E, C> {
    Copy(Started<C>),
    Failed(PrefetchError<T, E>),
}

pub(crate) struct Started<C> {
    pub(crate) copy: C,
    pub(crate) at: Instant,
    bytes: usize,
}

impl<T: TensorTree, E, W: Way<T>> Ahead<T, E, W, W::Copy> {
    pub(crate) fn new(way: W, options: PrefetchOptions) -> Self {
        let PrefetchOptions { depth, max_bytes, copy } = options;
        let (current, slots, held_back, stats) = (None, VecDeque::new(), None, PrefetchStats::default());
        Self { way, depth, max_bytes, copy, current, slots, held_back, bytes: 0, stats }
    }

    /// Whether the next item of the source is wanted, for `most` items ahead. Starts the one that was held back first, if there is
    /// room for it now.
    pub(crate) fn wants_another(&mut self, most: usize) -> bool {
        if self.slots.len() < most
            && let Some((value, bytes)) = self.held_back.take()
        {
            self.start_or_hold_back(value, bytes);
        }
        self.held_back.is_none() && self.slots.len() < most
    }

    /// Takes the next item of the source, for which the program has waited so long.
    pub(crate) fn push(&mut self, item: Result<T, E>, waited: Duration) {
        self.stats.source += waited;
        match item {
            Ok(mut value) => {
                let bytes = self.max_bytes.map_or(0, |_| bytes_of(&mut value));
                self.start_or_hold_back(value, bytes);
            }
            Err(error) => self.slots.push_back(Slot::Failed(PrefetchError::Source(error))),
        }
    }

    /// Makes the next item the current one: it is not ahead any more.
    pub(crate) fn advance(&mut self) {
        self.current = self.slots.pop_front();
        if let Some(Slot::Copy(Started { bytes, .. })) = &self.current {
            self.bytes -= bytes;
        }
    }

    /// Counts an item as handed out, and that the program has waited so long, until now, for its copy, which was submitted then.
    pub(crate) fn handed_out(&mut self, is_reused: bool, waited: Duration, submitted: Option<Instant>) {
        let after = submitted.map_or(Duration::ZERO, |at| at.elapsed());
        let link = after.min(waited);
        self.stats.link += link;
        self.stats.staging += waited - link;
        self.stats.items += 1;
        self.stats.reused += u64::from(is_reused);
    }

    fn start_or_hold_back(&mut self, value: T, bytes: usize) {
        let room = self.max_bytes.map_or(usize::MAX, |most| most.saturating_sub(self.bytes));
        if bytes > room && !self.slots.is_empty() {
            self.held_back = Some((value, bytes));
            return;
        }
        let at = Instant::now();
        let slot = match self.way.start(value, &self.copy) {
            Ok(copy) => {
                self.bytes += bytes;
                Slot::Copy(Started { copy, at, bytes })
            }
            Err(error) => Slot::Failed(PrefetchError::Copy(error)),
        };
        self.stats.start += at.elapsed();
        self.slots.push_back(slot);
    }
}

impl<T, E, C> Ahead<T, E, InTurn<T>, C> {
    /// Has copies use memory that comes back: of all items that are ahead, of the one that the program has, and of the one that it
    /// waits for. Results then share no memory with their sources, which the program may still use.
    pub(crate) fn reuse(&mut self) {
        self.copy.policy = CopyPolicy::Always;
        self.way.reuse(self.depth.saturating_add(2));
    }
}

impl<T, E, W, C> Ahead<T, E, W, C> {
    /// How many items are on their way, or have arrived.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() + usize::from(self.current.is_some()) + usize::from(self.held_back.is_some())
    }
}

/// Those of all tensors. What is wrong with the tree its copy finds again, and says.
fn bytes_of<T: TensorTree>(value: &mut T) -> usize {
    let mut bytes = 0_usize;
    let _ = for_each_tensor(value, |tensor| {
        bytes = bytes.saturating_add(tensor.nbytes());
        Ok(())
    });
    bytes
}
