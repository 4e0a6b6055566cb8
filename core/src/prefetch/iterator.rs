//! Iterators whose items are copied ahead.

use std::convert::Infallible;
use std::fmt;
use std::iter::FusedIterator;
use std::slice;

use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::prefetch::error::PrefetchError;
use crate::prefetch::in_turn::{InTurn, OneCopy};
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::pulled::Pulled;
use crate::prefetch::stats::PrefetchStats;
use crate::prefetch::to_all::{AllCopies, ToAll};
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

    /// The same as [`prefetch`](Self::prefetch) for several devices, each of which gets each item: an item is a vector of structures in
    /// the order of the devices. Items are planned and staged once for devices that read each other's staging memory, as
    /// [`start_copy_to_all`](crate::start_copy_to_all) does.
    ///
    /// Options count an item once, however many devices it goes to: so many items or bytes are ahead on each of them. An item that fails
    /// on one device is the error of the first that failed, and what has arrived elsewhere is dropped. Without a device each item is an
    /// error.
    ///
    /// ```
    /// use transship_core::{Device, Prefetch, PrefetchOptions, Tensor};
    ///
    /// let devices = [Device::host(), Device::best()?];
    /// let batches = (0..10_u8).map(|step| vec![Tensor::from(vec![step; 1024])]);
    /// for batch in batches.prefetch_to_all(&devices, PrefetchOptions::default()) {
    ///     let batch: Vec<Vec<Tensor>> = batch?; // one for each device
    ///     assert_eq!(batch[1][0].device_id()?, devices[1].id());
    /// }
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    fn prefetch_to_all(self, to: &[Device], options: PrefetchOptions) -> PrefetchedToAll<Self, Self::Item>
    where
        Self::Item: TensorTree + Clone,
    {
        PrefetchedToAll::new(self, Ok, to, options)
    }

    /// [`prefetch_to_all`](Self::prefetch_to_all) for a source that can fail, as [`try_prefetch`](Self::try_prefetch).
    fn try_prefetch_to_all<T, E>(self, to: &[Device], options: PrefetchOptions) -> PrefetchedToAll<Self, T, E>
    where
        Self: Iterator<Item = Result<T, E>>,
        T: TensorTree + Clone,
    {
        PrefetchedToAll::new(self, |item| item, to, options)
    }
}

impl<I: Iterator> Prefetch for I {}

/// An iterator whose items are copied ahead: what [`Prefetch`] makes.
#[must_use = "an iterator does nothing unless it is asked for items"]
pub struct Prefetched<I: Iterator, T, E = Infallible>(pub(crate) Pulled<I, T, E, InTurn<T>, OneCopy<T>>);

impl<I: Iterator, T: TensorTree, E> Prefetched<I, T, E> {
    fn new(source: I, item: fn(I::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        Self(Pulled::new(source, item, InTurn::new(to), options))
    }

    /// Hands items out as soon as their copies are submitted: `consumer` waits for them on the device, and the host does not
    /// ([`CopyHandle::wait_on`](crate::CopyHandle::wait_on)). For kernels that are submitted to `consumer`. To be called before
    /// [`reuse`](Self::reuse). Items that go to the host are [`Error::HostTarget`](crate::Error::HostTarget).
    pub fn hand_over(mut self, consumer: &Stream) -> Self {
        self.0.ahead.way.consumer = Some(consumer.clone());
        self
    }

    /// How long the program has waited so far, and for what.
    pub fn stats(&self) -> PrefetchStats {
        self.0.ahead.stats
    }
}

impl<I: Iterator, T: TensorTree, E> Iterator for Prefetched<I, T, E> {
    type Item = Result<T, PrefetchError<T, E>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_arrival().map(|item| item.map(|(item, _)| item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<I: Iterator, T: TensorTree, E> FusedIterator for Prefetched<I, T, E> {}

impl<I: Iterator, T: TensorTree, E> fmt::Debug for Prefetched<I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefetched({} ahead, {})", self.0.ahead.len(), self.0.ahead.stats)
    }
}

/// An iterator whose items are copied ahead, each to all devices: what [`Prefetch::prefetch_to_all`] makes.
#[must_use = "an iterator does nothing unless it is asked for items"]
pub struct PrefetchedToAll<I: Iterator, T, E = Infallible>(Pulled<I, T, E, ToAll, AllCopies<T>>);

impl<I: Iterator, T: TensorTree + Clone, E> PrefetchedToAll<I, T, E> {
    fn new(source: I, item: fn(I::Item) -> Result<T, E>, to: &[Device], options: PrefetchOptions) -> Self {
        Self(Pulled::new(source, item, ToAll::new(to), options))
    }

    /// Hands items out as soon as their copies are submitted: each of `consumers`, one for each device and in their order, waits for the
    /// copies on its device, and the host does not ([`CopyHandle::wait_on`](crate::CopyHandle::wait_on)). With another number of streams
    /// each item is [`Error::InvalidOption`](crate::Error::InvalidOption); the host as one of the devices is
    /// [`Error::HostTarget`](crate::Error::HostTarget).
    pub fn hand_over(mut self, consumers: &[Stream]) -> Self {
        self.0.ahead.way.consumers = Some(consumers.to_vec());
        self
    }

    /// How long the program has waited so far, and for what. An item counts once.
    pub fn stats(&self) -> PrefetchStats {
        self.0.ahead.stats
    }
}

impl<I: Iterator, T: TensorTree + Clone, E> Iterator for PrefetchedToAll<I, T, E> {
    type Item = Result<Vec<T>, PrefetchError<T, E>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_arrival()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<I: Iterator, T: TensorTree + Clone, E> FusedIterator for PrefetchedToAll<I, T, E> {}

impl<I: Iterator, T, E> fmt::Debug for PrefetchedToAll<I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefetchedToAll({} ahead, {})", self.0.ahead.len(), self.0.ahead.stats)
    }
}
