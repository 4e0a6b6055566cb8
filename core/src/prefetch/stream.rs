//! Streams (the asynchronous iterators of `futures`) whose items are copied ahead.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::FusedStream;

use crate::device::device::Device;
use crate::prefetch::error::PrefetchError;
use crate::prefetch::in_turn::{InTurn, OneCopy};
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::polled::Polled;
use crate::prefetch::stats::PrefetchStats;
use crate::prefetch::to_all::{AllCopies, ToAll};
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

    /// The same as [`prefetch`](Self::prefetch) for several devices, each of which gets each item: an item is a vector of structures in
    /// the order of the devices. As [`Prefetch::prefetch_to_all`](crate::Prefetch::prefetch_to_all) in all else.
    fn prefetch_to_all(
        self,
        to: &[Device],
        options: PrefetchOptions,
    ) -> PrefetchedStreamToAll<Self, Self::Item>
    where
        Self::Item: TensorTree + Clone,
    {
        PrefetchedStreamToAll::new(self, Ok, to, options)
    }

    /// [`prefetch_to_all`](Self::prefetch_to_all) for a source that can fail, as [`try_prefetch`](Self::try_prefetch).
    fn try_prefetch_to_all<T, E>(
        self,
        to: &[Device],
        options: PrefetchOptions,
    ) -> PrefetchedStreamToAll<Self, T, E>
    where
        Self: Stream<Item = Result<T, E>>,
        T: TensorTree + Clone,
    {
        PrefetchedStreamToAll::new(self, |item| item, to, options)
    }
}

impl<S: Stream> PrefetchStream for S {}

/// A stream whose items are copied ahead: what [`PrefetchStream`] makes.
#[must_use = "a stream does nothing unless it is polled"]
pub struct PrefetchedStream<S: Stream, T, E = Infallible>(pub(crate) Polled<S, T, E, InTurn<T>, OneCopy<T>>);

impl<S: Stream, T: TensorTree, E> PrefetchedStream<S, T, E> {
    fn new(source: S, item: fn(S::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        Self(Polled::new(source, item, InTurn::new(to), options))
    }

    /// How long the program has waited so far, and for what. Between two polls that find nothing it counts as waiting.
    pub fn stats(&self) -> PrefetchStats {
        self.0.ahead.stats
    }
}

impl<S: Stream, T: TensorTree, E> FusedStream for PrefetchedStream<S, T, E> {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

impl<S: Stream, T: TensorTree, E> Stream for PrefetchedStream<S, T, E> {
    type Item = Result<T, PrefetchError<T, E>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.0.poll_arrival(context);
        next.map(|next| next.map(|item| item.map(|(item, _)| item)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

/// The source lies in a box of its own, and nothing else is ever pinned.
impl<S: Stream, T, E> Unpin for PrefetchedStream<S, T, E> {}

impl<S: Stream, T: TensorTree, E> fmt::Debug for PrefetchedStream<S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefetchedStream({} ahead, {})", self.0.ahead.len(), self.0.ahead.stats)
    }
}

/// A stream whose items are copied ahead, each to all devices: what [`PrefetchStream::prefetch_to_all`] makes.
#[must_use = "a stream does nothing unless it is polled"]
pub struct PrefetchedStreamToAll<S: Stream, T, E = Infallible>(Polled<S, T, E, ToAll, AllCopies<T>>);

impl<S: Stream, T: TensorTree + Clone, E> PrefetchedStreamToAll<S, T, E> {
    fn new(source: S, item: fn(S::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        Self(Polled::new(source, item, ToAll::new(to), options))
    }

    /// How long the program has waited so far, and for what. Between two polls that find nothing it counts as waiting; an item counts
    /// once.
    pub fn stats(&self) -> PrefetchStats {
        self.0.ahead.stats
    }
}

impl<S: Stream, T: TensorTree + Clone, E> FusedStream for PrefetchedStreamToAll<S, T, E> {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

impl<S: Stream, T: TensorTree + Clone, E> Stream for PrefetchedStreamToAll<S, T, E> {
    type Item = Result<Vec<T>, PrefetchError<T, E>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_arrival(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

/// As for [`PrefetchedStream`].
impl<S: Stream, T, E> Unpin for PrefetchedStreamToAll<S, T, E> {}

impl<S: Stream, T, E> fmt::Debug for PrefetchedStreamToAll<S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefetchedStreamToAll({} ahead, {})", self.0.ahead.len(), self.0.ahead.stats)
    }
}
