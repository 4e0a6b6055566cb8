//! The copies that are started ahead, in the order of their items.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::copy::handle::CopyHandle;
use crate::copy::into::start_copy_into;
use crate::copy::start::start_copy;
use crate::device::device::Device;
use crate::error::{CopyError, Error};
use crate::job::options::{CopyOptions, CopyPolicy};
use crate::prefetch::error::PrefetchError;
use crate::prefetch::lent::Spares;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::stats::PrefetchStats;
use crate::tree::tensor_tree::{TensorTree, for_each_tensor};

/// The copies that are started ahead, in the order of their items. The item that the program has, or waits for, is none of them.
pub(crate) struct Ahead<T, E> {
    /// Where items go, one after the other.
    to: Vec<Target<T>>,
    /// How many copies were started.
    started: usize,
    pub(crate) depth: usize,
    max_bytes: Option<usize>,
    copy: CopyOptions,
    /// The item that the program waits for. It stays here while the next ones are started: a source that panics loses nothing.
    pub(crate) current: Option<Slot<T, E>>,
    slots: VecDeque<Slot<T, E>>,
    /// An item for which the bytes in `slots` leave no room, and its own.
    held_back: Option<(T, usize)>,
    /// Those of `slots`.
    bytes: usize,
    pub(crate) stats: PrefetchStats,
}

struct Target<T> {
    device: Device,
    spares: Arc<Spares<T>>,
}

/// The place of an item.
#[expect(clippy::large_enum_variant, reason = "most are copies, and a box for each would be an allocation")]
pub(crate) enum Slot<T, E> {
    Copy(Started<T>),
    Failed(PrefetchError<T, E>),
}

pub(crate) struct Started<T> {
    pub(crate) copy: CopyHandle<T>,
    pub(crate) at: Instant,
    bytes: usize,
    /// Where its memory goes when the program has dropped it.
    pub(crate) spares: Arc<Spares<T>>,
    pub(crate) is_reused: bool,
}

/// An item that the program gets, and where its memory goes when it is dropped.
pub(crate) type Arrival<T, E> = Result<(T, Arc<Spares<T>>), PrefetchError<T, E>>;

impl<T: TensorTree, E> Ahead<T, E> {
    pub(crate) fn new(to: &[Device], options: PrefetchOptions) -> Self {
        let PrefetchOptions { depth, max_bytes, copy } = options;
        let target = |device: &Device| Target { device: device.clone(), spares: Spares::new(0) };
        let (to, slots) = (to.iter().map(target).collect(), VecDeque::new());
        let stats = PrefetchStats::default();
        let (current, held_back) = (None, None);
        Self { to, started: 0, depth, max_bytes, copy, current, slots, held_back, bytes: 0, stats }
    }

    /// Has copies use memory that comes back: of all items that are ahead, of the one that the program has, and of the one that it
    /// waits for. Results then share no memory with their sources, which the program may still use.
    pub(crate) fn reuse(&mut self) {
        self.copy.policy = CopyPolicy::Always;
        for target in &mut self.to {
            target.spares = Spares::new(self.depth.saturating_add(2));
        }
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

    /// How many items are on their way, or have arrived.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() + usize::from(self.current.is_some()) + usize::from(self.held_back.is_some())
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
        let slot = match self.start(value) {
            Ok(started) => {
                self.bytes += bytes;
                Slot::Copy(Started { at, bytes, ..started })
            }
            Err(error) => Slot::Failed(PrefetchError::Copy(error)),
        };
        self.stats.start += at.elapsed();
        self.slots.push_back(slot);
    }

    fn start(&mut self, mut value: T) -> Result<Started<T>, CopyError<T>> {
        let turn = self.started.checked_rem(self.to.len()).unwrap_or(0);
        self.started += 1;
        let Some(Target { device, spares }) = self.to.get(turn) else { return Err(nowhere(value)) };
        let started = |copy, is_reused| Started {
            copy,
            at: Instant::now(),
            bytes: 0,
            spares: spares.clone(),
            is_reused,
        };
        for _ in 0..spares.len() {
            let Some(spare) = spares.take() else { break };
            let refused = match start_copy_into(value, spare, self.copy.clone()) {
                Ok(copy) => return Ok(started(copy, true)),
                Err(refused) => refused,
            };
            let (error, does_not_fit) = (refused.error().clone(), is_misfit(refused.error()));
            let (again, spare) = refused.into_both();
            drop(spare.and_then(|spare| spares.give_back(spare)));
            match again {
                Some(again) if does_not_fit => value = again,
                again => return Err(CopyError::new(error, again).of_copy_to(device.id())),
            }
        }
        start_copy(value, device, self.copy.clone()).map(|copy| started(copy, false))
    }
}

/// Whether the item does not go into that memory, and may go into other memory.
fn is_misfit(error: &Error) -> bool {
    matches!(
        error,
        Error::StructureMismatch { .. } | Error::DestinationMismatch { .. } | Error::UnsuitedTensor { .. }
    )
}

fn nowhere<T>(value: T) -> CopyError<T> {
    let reason = "items need a device to go to";
    CopyError::new(Error::InvalidOption { name: "to", value: "[]".to_owned(), reason }, Some(value))
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
