//! Items to several devices, or one, each to the next of them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::copy::handle::CopyHandle;
use crate::copy::into::start_copy_into;
use crate::copy::start::start_copy;
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::error::{CopyError, Error};
use crate::job::options::CopyOptions;
use crate::prefetch::lent::Spares;
use crate::prefetch::way::{Way, nowhere};
use crate::tree::tensor_tree::{TensorTree, for_each_tensor};

pub(crate) struct InTurn<T> {
    to: Vec<Target<T>>,
    /// How many copies were started.
    started: usize,
    /// What waits for items in place of the host.
    pub(crate) consumer: Option<Stream>,
}

struct Target<T> {
    device: Device,
    spares: Arc<Spares<T>>,
}

/// An item on its way to one device.
pub(crate) struct OneCopy<T> {
    copy: CopyHandle<T>,
    /// Where its memory goes when the program has dropped it.
    spares: Arc<Spares<T>>,
    is_reused: bool,
}

impl<T> InTurn<T> {
    pub(crate) fn new(to: &[Device]) -> Self {
        let target = |device: &Device| Target { device: device.clone(), spares: Spares::new(device, 0) };
        Self { to: to.iter().map(target).collect(), started: 0, consumer: None }
    }

    /// Has copies use memory that comes back, of so many items.
    pub(crate) fn reuse(&mut self, items: usize) {
        for target in &mut self.to {
            target.spares = Spares::new(&target.device, items);
        }
    }
}

impl<T: TensorTree> Way<T> for InTurn<T> {
    type Copy = OneCopy<T>;
    type Arrived = (T, Arc<Spares<T>>);

    fn start(&mut self, mut value: T, options: &CopyOptions) -> Result<OneCopy<T>, CopyError<T>> {
        let turn = self.started.checked_rem(self.to.len()).unwrap_or(0);
        self.started += 1;
        let Some(target) = self.to.get(turn) else { return Err(nowhere(value)) };
        let Target { device, spares } = target;
        let started = |copy, is_reused| OneCopy { copy, spares: spares.clone(), is_reused };
        for _ in 0..spares.len() {
            let Some(spare) = spares.take() else { break };
            let refused = match start_copy_into(value, spare, options.clone()) {
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
        target.make_room(&mut value, options);
        start_copy(value, device, options.clone()).map(|copy| started(copy, false))
    }

    fn finish(&self, copy: OneCopy<T>) -> (Result<Self::Arrived, CopyError<T>>, Option<Duration>) {
        let OneCopy { copy, spares, .. } = copy;
        let completion = copy.completion.clone();
        let waited = match &self.consumer {
            Some(stream) => copy.wait_on(stream),
            None => copy.wait(),
        };
        (arrived(waited, &spares), completion.metrics.submitted_after())
    }

    fn poll(copy: &mut OneCopy<T>, context: &mut Context<'_>) -> Poll<Result<Self::Arrived, CopyError<T>>> {
        Pin::new(&mut copy.copy).poll(context).map(|copied| arrived(copied, &copy.spares))
    }

    fn submitted_after(copy: &OneCopy<T>) -> Option<Duration> {
        copy.copy.completion.metrics.submitted_after()
    }

    fn is_reused(copy: &OneCopy<T>) -> bool {
        copy.is_reused
    }
}

impl<T: TensorTree> Target<T> {
    /// Lets memory go that came back, and that `value` does not go into, until the budget of the device has room for it: what was there longest
    /// first. Nobody else would.
    fn make_room(&self, value: &mut T, options: &CopyOptions) {
        let Self { device, spares } = self;
        if device.budget().limit().is_none() || spares.len() == 0 {
            return;
        }
        let alignment = options.alignment_on(device.limits()).bytes();
        let mut bytes = 0_usize;
        // What is wrong with the tree its copy finds again, and says.
        let _ = for_each_tensor(value, |tensor| {
            bytes = bytes.saturating_add(tensor.nbytes().next_multiple_of(alignment));
            Ok(())
        });
        let has_room = || {
            let now = device.budget().exceeded();
            now.fits(bytes, now.used - now.leaving)
        };
        while !has_room()
            && let Some(spare) = spares.take()
        {
            drop(spare);
        }
    }
}

/// What has arrived, with the memory that it goes to once it is dropped. Where none was left for it, none lies idle for the next one.
fn arrived<T>(
    copied: Result<T, CopyError<T>>,
    spares: &Arc<Spares<T>>,
) -> Result<(T, Arc<Spares<T>>), CopyError<T>> {
    if let Err(failed) = &copied
        && matches!(failed.error(), Error::OutOfMemory { .. } | Error::OverBudget { .. })
    {
        while let Some(spare) = spares.take() {
            drop(spare);
        }
    }
    copied.map(|value| (value, spares.clone()))
}

/// Whether the item does not go into that memory, and may go into other memory.
fn is_misfit(error: &Error) -> bool {
    matches!(
        error,
        Error::StructureMismatch { .. } | Error::DestinationMismatch { .. } | Error::UnsuitedTensor { .. }
    )
}
