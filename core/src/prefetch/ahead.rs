//! The copies that are started ahead, in the order of their items.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::copy::handle::CopyHandle;
use crate::copy::into::start_copy_into;
use crate::copy::start::start_copy;
use crate::device::device::Device;
use crate::error::{CopyError, Error};
use crate::job::report::CopyReport;
use crate::prefetch::error::PrefetchError;
use crate::prefetch::lent::Ring;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::stats::PrefetchStats;
use crate::tree::tensor_tree::{TensorTree, for_each_tensor};

/// The copies that are started ahead, in the order of their items.
pub(crate) struct Ahead<T, E> {
    /// Where items go, one after the other.
    to: Vec<Target<T>>,
    /// How many copies were started.
    started: usize,
    options: PrefetchOptions,
    slots: VecDeque<Slot<T, E>>,
    /// An item for which the bytes in `slots` leave no room, and its own.
    held_back: Option<(T, usize)>,
    /// Those of `slots`.
    bytes: usize,
    pub(crate) stats: PrefetchStats,
}

struct Target<T> {
    device: Device,
    ring: WayBack<T>,
}

/// The place of an item.
#[expect(clippy::large_enum_variant, reason = "most are copies, and a box for each would be an allocation")]
pub(crate) enum Slot<T, E> {
    Copy(Started<T>),
    Failed(PrefetchError<T, E>),
}

/// Where the memory of an item goes when the program has dropped it.
pub(crate) type WayBack<T> = Arc<Ring<T>>;

/// An item that the program gets.
pub(crate) type Arrival<T, E> = Result<(T, WayBack<T>), PrefetchError<T, E>>;

pub(crate) struct Started<T> {
    pub(crate) copy: CopyHandle<T>,
    at: Instant,
    bytes: usize,
    pub(crate) ring: WayBack<T>,
}

impl<T: TensorTree, E> Ahead<T, E> {
    pub(crate) fn new(to: &[Device], options: PrefetchOptions) -> Self {
        let (slots, stats) = (VecDeque::new(), PrefetchStats::default());
        let target = |device: &Device| Target { device: device.clone(), ring: Ring::new(0) };
        let to = to.iter().map(target).collect();
        Self { to, started: 0, options, slots, held_back: None, bytes: 0, stats }
    }

    /// Has copies use memory that comes back: of all items that are ahead, and of the one that the program has.
    pub(crate) fn reuse(&mut self) {
        for target in &mut self.to {
            target.ring = Ring::new(self.options.depth.saturating_add(2));
        }
    }

    /// Whether the next item of the source can be taken. Starts the one that was held back, if there is room for it now.
    pub(crate) fn has_room(&mut self) -> bool {
        if let Some((value, bytes)) = self.held_back.take() {
            self.start_or_hold_back(value, bytes);
        }
        self.held_back.is_none() && self.slots.len() <= self.options.depth
    }

    /// Takes the next item of the source, for which the program has waited so long.
    pub(crate) fn push(&mut self, item: Result<T, E>, waited: Duration) {
        self.stats.source += waited;
        match item {
            Ok(mut value) => {
                let bytes = self.options.max_bytes.map_or(0, |_| bytes_of(&mut value));
                self.start_or_hold_back(value, bytes);
            }
            Err(error) => self.slots.push_back(Slot::Failed(PrefetchError::Source(error))),
        }
    }

    pub(crate) fn front(&mut self) -> Option<&mut Slot<T, E>> {
        self.slots.front_mut()
    }

    /// The next item, which counts as handed out.
    pub(crate) fn pop(&mut self) -> Option<Slot<T, E>> {
        let slot = self.slots.pop_front()?;
        self.stats.items += 1;
        if let Slot::Copy(Started { bytes, .. }) = &slot {
            self.bytes -= bytes;
        }
        Some(slot)
    }

    /// How many items are on their way, or have arrived.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() + usize::from(self.held_back.is_some())
    }

    /// Counts that the program has waited from `since` until now for a copy that was started at `started`.
    pub(crate) fn waited(&mut self, since: Instant, started: Instant, report: &CopyReport) {
        let waited = since.elapsed();
        let submitted = report.submitted_after.map(|after| started + after);
        let staging = submitted.map_or(waited, |at| at.saturating_duration_since(since).min(waited));
        self.stats.staging += staging;
        self.stats.link += waited - staging;
    }

    fn start_or_hold_back(&mut self, value: T, bytes: usize) {
        let room = self.options.max_bytes.map_or(usize::MAX, |most| most.saturating_sub(self.bytes));
        if bytes > room && !self.slots.is_empty() {
            self.held_back = Some((value, bytes));
            return;
        }
        let at = Instant::now();
        let slot = match self.start(value) {
            Ok((copy, ring)) => {
                self.bytes += bytes;
                Slot::Copy(Started { copy, at, bytes, ring })
            }
            Err(error) => Slot::Failed(PrefetchError::Copy(error)),
        };
        self.stats.start += at.elapsed();
        self.slots.push_back(slot);
    }

    fn start(&mut self, mut value: T) -> Result<(CopyHandle<T>, WayBack<T>), CopyError<T>> {
        let turn = self.started.checked_rem(self.to.len()).unwrap_or(0);
        self.started += 1;
        let Some(Target { device, ring }) = self.to.get(turn) else { return Err(nowhere(value)) };
        if let Some(held) = ring.take() {
            match start_copy_into(value, held, self.options.copy.clone()) {
                Ok(copy) => {
                    self.stats.reused += 1;
                    return Ok((copy, ring.clone()));
                }
                Err(refused) => match refused.into_parts() {
                    (_, Some(again)) => value = again,
                    (error, None) => return Err(CopyError::new(error, None)),
                },
            }
        }
        Ok((start_copy(value, device, self.options.copy.clone())?, ring.clone()))
    }
}

fn nowhere<T>(value: T) -> CopyError<T> {
    let reason = "items need a device to go to";
    CopyError::new(Error::InvalidOption { name: "to", value: "[]".to_owned(), reason }, Some(value))
}

impl<T> Started<T> {
    pub(crate) fn at(&self) -> Instant {
        self.at
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
