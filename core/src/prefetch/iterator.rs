//! Iterators whose items are copied ahead.

use std::convert::Infallible;
use std::fmt;
use std::iter::FusedIterator;
use std::slice;
use std::time::Instant;

use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::prefetch::ahead::{Ahead, Arrival, Slot, Started};
use crate::prefetch::error::PrefetchError;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::stats::PrefetchStats;
use crate::tree::tensor_tree::TensorTree;

/// Copies the items of an iterator to a device, ahead of the program.
///
/// ```
/// use transship_core::{Device, Prefetch, PrefetchOptions, Tensor};
///
/// let device = Device::best()?;
/// let batches = (0..10_u8).map(|step| vec![Tensor::from(vec![step; 1024]), Tensor::from(vec![0.5_f32; 64])]);
/// for batch in batches.prefetch(&device, PrefetchOptions::default()) {
///     let batch = batch?; // on the device; the next two are on their way
///     assert_eq!(batch[0].device_id()?, device.id());
/// }
/// # Ok::<(), transship_core::Error>(())
/// ```
pub trait Prefetch: Iterator + Sized {
    /// The items, each with its tensors on `to`, in their order. While the program works on one, the next ones are on their way.
    ///
    /// The source is asked on the thread that asks for items, for as many as can be ahead, before an item is handed out that may
    /// have arrived already. So what its `next` takes adds up with what the program does between items: where that is much, let a
    /// thread read ahead into a channel, and prefetch from that. A source that makes its next item only when the program has let go
    /// of earlier ones (an acknowledgement, a pool with fewer buffers than items ahead, and two more) must have a smaller
    /// [`depth`](PrefetchOptions::depth), or be a stream ([`PrefetchStream`](crate::PrefetchStream)), which waits for no source.
    ///
    /// An item that fails is an error in its place. Dropping the iterator drops the source and copies that are on their way; the
    /// latter never blocks.
    fn prefetch(self, to: &Device, options: PrefetchOptions) -> Prefetched<Self, Self::Item>
    where
        Self::Item: TensorTree,
    {
        self.prefetch_in_turn(slice::from_ref(to), options)
    }

    /// The same for several devices, which get the items in turn: with two, one gets the first, the third and so on. Items come in
    /// their order all the same, and the options count those of all devices together. Without a device each item is an error.
    fn prefetch_in_turn(self, to: &[Device], options: PrefetchOptions) -> Prefetched<Self, Self::Item>
    where
        Self::Item: TensorTree,
    {
        Prefetched::new(self, Ok, to, options)
    }

    /// [`try_prefetch`](Self::try_prefetch) for several devices, which get the items in turn.
    fn try_prefetch_in_turn<T, E>(self, to: &[Device], options: PrefetchOptions) -> Prefetched<Self, T, E>
    where
        Self: Iterator<Item = Result<T, E>>,
        T: TensorTree,
    {
        Prefetched::new(self, |item| item, to, options)
    }

    /// The same as [`prefetch`](Self::prefetch) for a source that can fail: its errors come in their items' places,
    /// as [`PrefetchError::Source`].
    fn try_prefetch<T, E>(self, to: &Device, options: PrefetchOptions) -> Prefetched<Self, T, E>
    where
        Self: Iterator<Item = Result<T, E>>,
        T: TensorTree,
    {
        self.try_prefetch_in_turn(slice::from_ref(to), options)
    }
}

impl<I: Iterator> Prefetch for I {}

/// An iterator whose items are copied ahead: what [`Prefetch`] makes.
#[must_use = "an iterator does nothing unless it is asked for items"]
pub struct Prefetched<I: Iterator, T, E = Infallible> {
    /// `None` once it has ended.
    source: Option<I>,
    item: fn(I::Item) -> Result<T, E>,
    pub(crate) ahead: Ahead<T, E>,
    consumer: Option<Stream>,
}

impl<I: Iterator, T: TensorTree, E> Prefetched<I, T, E> {
    fn new(source: I, item: fn(I::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        Self { source: Some(source), item, ahead: Ahead::new(to, options), consumer: None }
    }

    /// Hands items out as soon as their copies are submitted: `consumer` waits for them on the device, and the host does not
    /// ([`CopyHandle::wait_on`](crate::CopyHandle::wait_on)). For kernels that are submitted to `consumer`. To be called before
    /// [`reuse`](Self::reuse). Items that go to the host are [`Error::HostTarget`](crate::Error::HostTarget).
    pub fn hand_over(mut self, consumer: &Stream) -> Self {
        self.consumer = Some(consumer.clone());
        self
    }

    /// How long the program has waited so far, and for what.
    pub fn stats(&self) -> PrefetchStats {
        self.ahead.stats
    }

    /// Starts copies until so many items are ahead.
    fn fill(&mut self, most: usize) {
        while self.ahead.wants_another(most) {
            let Some(source) = &mut self.source else { return };
            let begin = Instant::now();
            match source.next() {
                Some(item) => self.ahead.push((self.item)(item), begin.elapsed()),
                None => {
                    self.source = None;
                    self.ahead.stats.source += begin.elapsed();
                }
            }
        }
    }

    /// The next item, and where its memory can go. Those behind it are started before it is waited for.
    pub(crate) fn next_arrival(&mut self) -> Option<Arrival<T, E>> {
        if self.ahead.current.is_none() {
            self.fill(1);
            self.ahead.advance();
        }
        self.fill(self.ahead.depth);
        Some(match self.ahead.current.take()? {
            Slot::Copy(started) => self.finish(started),
            Slot::Failed(error) => {
                self.ahead.stats.items += 1;
                Err(error)
            }
        })
    }

    fn finish(&mut self, started: Started<T>) -> Arrival<T, E> {
        let Started { copy, at, spares, is_reused, .. } = started;
        let begin = Instant::now();
        let waited = match &self.consumer {
            Some(stream) => {
                let report = copy.report();
                copy.wait_on(stream).map(|value| (value, report))
            }
            None => copy.wait_with_report(),
        };
        let submitted = waited.as_ref().ok().and_then(|(_, report)| report.submitted_after);
        self.ahead.handed_out(is_reused, begin.elapsed(), submitted.map(|after| at + after));
        waited.map(|(value, _)| (value, spares)).map_err(PrefetchError::Copy)
    }
}

impl<I: Iterator, T: TensorTree, E> Iterator for Prefetched<I, T, E> {
    type Item = Result<T, PrefetchError<T, E>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_arrival().map(|item| item.map(|(item, _)| item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.source.as_ref().map_or((0, Some(0)), Iterator::size_hint);
        let ahead = self.ahead.len();
        (least.saturating_add(ahead), most.and_then(|most| most.checked_add(ahead)))
    }
}

impl<I: Iterator, T: TensorTree, E> FusedIterator for Prefetched<I, T, E> {}

impl<I: Iterator, T: TensorTree, E> fmt::Debug for Prefetched<I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefetched({} ahead, {})", self.ahead.len(), self.ahead.stats)
    }
}
