//! Streams (the asynchronous iterators of `futures`) whose items are copied ahead.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::Stream;

use crate::device::device::Device;
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
    /// [`start_copy`](crate::start_copy) does, which gathers small batches on this thread, and never waits for one.
    ///
    /// An item that fails is an error in its place. Dropping the stream drops copies that are on their way, which never blocks.
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

    /// The same as [`prefetch`](Self::prefetch) for a source that can fail: its errors come in their items' places, as [`PrefetchError::Source`].
    fn try_prefetch<T, E>(self, to: &Device, options: PrefetchOptions) -> PrefetchedStream<Self, T, E>
    where
        Self: Stream<Item = Result<T, E>>,
        T: TensorTree,
    {
        PrefetchedStream::new(self, |item| item, slice::from_ref(to), options)
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
    /// Since when the program waits for the first copy, or for the source while there is none.
    waits_since: Option<Instant>,
}

impl<S: Stream, T: TensorTree, E> PrefetchedStream<S, T, E> {
    fn new(source: S, item: fn(S::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        Self { source: Some(Box::pin(source)), item, ahead: Ahead::new(to, options), waits_since: None }
    }

    /// How long the program has waited so far, and for what.
    pub fn stats(&self) -> PrefetchStats {
        self.ahead.stats
    }

    fn fill(&mut self, context: &mut Context<'_>) {
        while self.ahead.has_room() {
            let Some(source) = &mut self.source else { return };
            let begin = Instant::now();
            match source.as_mut().poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(None) => self.source = None,
                Poll::Ready(Some(item)) => {
                    let since = if self.ahead.len() == 0 { self.waits_since.take() } else { None };
                    let waited = since.unwrap_or(begin).elapsed();
                    self.ahead.push((self.item)(item), waited);
                }
            }
        }
    }

    /// The next item, once its copy is done, and where its memory can go.
    pub(crate) fn poll_with_ring(&mut self, context: &mut Context<'_>) -> Poll<Option<Arrival<T, E>>> {
        self.fill(context);
        let begin = Instant::now();
        let copied = match self.ahead.front() {
            None if self.source.is_none() => return Poll::Ready(None),
            None => Poll::Pending,
            Some(Slot::Failed(_)) => Poll::Ready(None),
            Some(Slot::Copy(started)) => Pin::new(&mut started.copy).poll(context).map(Some),
        };
        let Poll::Ready(copied) = copied else {
            self.waits_since.get_or_insert(begin);
            return Poll::Pending;
        };
        let since = self.waits_since.take().unwrap_or(begin);
        Poll::Ready(match (self.ahead.pop(), copied) {
            (Some(Slot::Copy(started)), Some(copied)) => {
                self.ahead.waited(since, started.at(), &started.copy.report());
                Some(copied.map(|value| (value, started.ring)).map_err(PrefetchError::Copy))
            }
            (Some(Slot::Failed(error)), _) => Some(Err(error)),
            (Some(Slot::Copy(_)) | None, _) => None,
        })
    }
}

impl<S: Stream, T: TensorTree, E> Stream for PrefetchedStream<S, T, E> {
    type Item = Result<T, PrefetchError<T, E>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.poll_with_ring(context);
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
