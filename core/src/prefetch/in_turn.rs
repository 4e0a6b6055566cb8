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
use crate::tree::tensor_tree::TensorTree;

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
        let target = |device: &Device| Target { device: device.clone(), spares: Spares::new(0) };
        Self { to: to.iter().map(target).collect(), started: 0, consumer: None }
    }

    /// Has copies use memory that comes back, of so many items.
    pub(crate) fn reuse(&mut self, items: usize) {
        for target in &mut self.to {
            target.spares = Spares::new(items);
        }
    }
}

impl<T: TensorTree> Way<T> for InTurn<T> {
    type Copy = OneCopy<T>;
    type Arrived = (T, Arc<Spares<T>>);

    fn start(&mut self, mut value: T, options: &CopyOptions) -> Result<OneCopy<T>, CopyError<T>> {
        let turn = self.started.checked_rem(self.to.len()).unwrap_or(0);
        self.started += 1;
        let Some(Target { device, spares }) = self.to.get(turn) else { return Err(nowhere(value)) };
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
        start_copy(value, device, options.clone()).map(|copy| started(copy, false))
    }

    fn finish(&self, copy: OneCopy<T>) -> (Result<Self::Arrived, CopyError<T>>, Option<Duration>) {
        let OneCopy { copy, spares, .. } = copy;
        let completion = copy.completion.clone();
        let waited = match &self.consumer {
            Some(stream) => copy.wait_on(stream),
            None => copy.wait(),
        };
        (waited.map(|value| (value, spares)), completion.metrics.submitted_after())
    }

    fn poll(copy: &mut OneCopy<T>, context: &mut Context<'_>) -> Poll<Result<Self::Arrived, CopyError<T>>> {
        let polled = Pin::new(&mut copy.copy).poll(context);
        polled.map(|copied| copied.map(|value| (value, copy.spares.clone())))
    }

    fn submitted_after(copy: &OneCopy<T>) -> Option<Duration> {
        copy.copy.completion.metrics.submitted_after()
    }

    fn is_reused(copy: &OneCopy<T>) -> bool {
        copy.is_reused
    }
}

/// Whether the item does not go into that memory, and may go into other memory.
fn is_misfit(error: &Error) -> bool {
    matches!(
        error,
        Error::StructureMismatch { .. } | Error::DestinationMismatch { .. } | Error::UnsuitedTensor { .. }
    )
}
