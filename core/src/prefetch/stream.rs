//! Streams (the asynchronous iterators of `futures`) whose items are copied ahead.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use futures::stream::FusedStream;

use crate::device::device::Device;
use crate::error::CopyError;
use crate::prefetch::ahead::{Ahead, Arrival, Slot};
use crate::prefetch::error::PrefetchError;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::stats::PrefetchStats;
use crate::tree::tensor_tree::TensorTree;

/// Copies the items of a [`futures::Stream`] to a device, ahead of the program.
///
/// ```
/// use futures::StreamExt;
/// use transship_core::{Device, PrefetchOptions, PrefetchStream, Tensor};
///
/// # futures::executor::block_on(async {
/// let device = Device::best_async().await?;
/// let batches = futures::stream::iter((0..10_u8).map(|step| vec![Tensor::from(vec![step; 1024])]));
/// let mut batches = batches.prefetch(&device, PrefetchOptions::default());
/// while let Some(batch) = batches.next().await {
///     assert_eq!(batch?[0].device_id()?, device.id());
/// }
/// # Ok::<(), transship_core::Error>(())
/// # }).unwrap();
/// ```
pub trait PrefetchStream: Stream + Sized {
    /// The items, each with its tensors on `to`, in their order. While the program works on one, the next ones are on their way.
    ///
    /// The source is polled when items are asked for, and does not hold up an item that has arrived. A poll starts copies as
    /// [`start_copy`](crate::start_copy) does, which gathers small batches on this thread, and never waits for
    /// one. One poll may start as many as can be ahead.
    ///
    /// An item that fails is an error in its place. Dropping the stream drops the source and copies that are on their way; the latter
    /// never blocks. To hand items to a stream of the device without waiting for them, use the iterator
    /// ([`Prefetched::hand_over`](crate::Prefetched::hand_over)).
    fn prefetch(self, to: &Device, options: PrefetchOptions) -> PrefetchedStream<Self, Self::Item>
    where
        Self::Item: TensorTree,
    {
        self.prefetch_in_turn(slice::from_ref(to), options)
    }

    /// The same for several devices, which get the items in turn: with two, one gets the first, the third and so on. Items come in
    /// their order all the same, and the options count those of all devices together. Without a device each item is an error.
    fn prefetch_in_turn(self, to: &[Device], options: PrefetchOptions) -> PrefetchedStream<Self, Self::Item>
    where
        Self::Item: TensorTree,
    {
        PrefetchedStream::new(self, Ok, to, options)
    }

    /// [`try_prefetch`](Self::try_prefetch) for several devices, which get the items in turn.
    fn try_prefetch_in_turn<T, E>(
        self,
        to: &[Device],
        options: PrefetchOptions,
    ) -> PrefetchedStream<Self, T, E>
    where
        Self: Stream<Item = Result<T, E>>,
        T: TensorTree,
    {
        PrefetchedStream::new(self, |item| item, to, options)
    }

    /// The same as [`prefetch`](Self::prefetch) for a source that can fail: its errors come in their items' places,
    /// as [`PrefetchError::Source`].
    fn try_prefetch<T, E>(self, to: &Device, options: PrefetchOptions) -> PrefetchedStream<Self, T, E>
    where
        Self: Stream<Item = Result<T, E>>,
        T: TensorTree,
    {
        self.try_prefetch_in_turn(slice::from_ref(to), options)
    }
}

impl<S: Stream> PrefetchStream for S {}

/// A stream whose items are copied ahead: what [`PrefetchStream`] makes.
#[must_use = "a stream does nothing unless it is polled"]
pub struct PrefetchedStream<S: Stream, T, E = Infallible> {
    /// `None` once it has ended.
    source: Option<Pin<Box<S>>>,
    item: fn(S::Item) -> Result<T, E>,
    pub(crate) ahead: Ahead<T, E>,
    /// When the last poll ended with nothing, and for how long that was so before it.
    pending: Option<Instant>,
    waited: Duration,
}

impl<S: Stream, T: TensorTree, E> PrefetchedStream<S, T, E> {
    fn new(source: S, item: fn(S::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        let (source, ahead) = (Some(Box::pin(source)), Ahead::new(to, options));
        Self { source, item, ahead, pending: None, waited: Duration::ZERO }
    }

    /// How long the program has waited so far, and for what. Between two polls that find nothing it counts as waiting.
    pub fn stats(&self) -> PrefetchStats {
        self.ahead.stats
    }

    /// Starts copies until so many items are ahead, or the source has none.
    fn fill(&mut self, most: usize, context: &mut Context<'_>) {
        while self.ahead.wants_another(most) {
            let Some(source) = &mut self.source else { return };
            let begin = Instant::now();
            let polled = source.as_mut().poll_next(context);
            self.ahead.stats.source += begin.elapsed();
            match polled {
                Poll::Pending => return,
                Poll::Ready(None) => self.source = None,
                Poll::Ready(Some(item)) => self.ahead.push((self.item)(item), Duration::ZERO),
            }
        }
    }

    /// The next item, once its copy is done, and where its memory can go.
    pub(crate) fn poll_arrival(&mut self, context: &mut Context<'_>) -> Poll<Option<Arrival<T, E>>> {
        self.waited += self.pending.take().map_or(Duration::ZERO, |since| since.elapsed());
        if self.ahead.current.is_none() {
            self.fill(1, context);
            self.ahead.advance();
            if self.ahead.current.is_some() || self.source.is_none() {
                self.ahead.stats.source += mem::take(&mut self.waited);
            }
        }
        if self.ahead.current.is_some() {
            self.fill(self.ahead.depth, context);
        }
        let copied = match &mut self.ahead.current {
            Some(Slot::Copy(started)) => Pin::new(&mut started.copy).poll(context).map(Some),
            None if self.source.is_some() => Poll::Pending,
            Some(Slot::Failed(_)) | None => Poll::Ready(None),
        };
        if copied.is_pending() {
            self.pending = Some(Instant::now());
        }
        copied.map(|copied| self.hand_out(copied))
    }

    fn hand_out(&mut self, copied: Option<Result<T, CopyError<T>>>) -> Option<Arrival<T, E>> {
        match (self.ahead.current.take()?, copied) {
            (Slot::Copy(started), Some(copied)) => {
                let submitted = started.copy.report().submitted_after.map(|after| started.at + after);
                let waited = mem::take(&mut self.waited);
                self.ahead.handed_out(started.is_reused, waited, submitted);
                Some(copied.map(|value| (value, started.spares)).map_err(PrefetchError::Copy))
            }
            (Slot::Failed(error), _) => {
                self.ahead.stats.items += 1;
                Some(Err(error))
            }
            (Slot::Copy(_), None) => None,
        }
    }
}

impl<S: Stream, T: TensorTree, E> FusedStream for PrefetchedStream<S, T, E> {
    fn is_terminated(&self) -> bool {
        self.source.is_none() && self.ahead.len() == 0
    }
}

impl<S: Stream, T: TensorTree, E> Stream for PrefetchedStream<S, T, E> {
    type Item = Result<T, PrefetchError<T, E>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.poll_arrival(context);
        next.map(|next| next.map(|item| item.map(|(item, _)| item)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.source.as_ref().map_or((0, Some(0)), |source| source.size_hint());
        let ahead = self.ahead.len();
        (least.saturating_add(ahead), most.and_then(|most| most.checked_add(ahead)))
    }
}

/// The source lies in a box of its own, and nothing else is ever pinned.
impl<S: Stream, T, E> Unpin for PrefetchedStream<S, T, E> {}

impl<S: Stream, T: TensorTree, E> fmt::Debug for PrefetchedStream<S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefetchedStream({} ahead, {})", self.ahead.len(), self.ahead.stats)
    }
}
