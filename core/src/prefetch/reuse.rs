//! Prefetched items in the memory of those that the program has dropped.

use std::fmt;
use std::iter::FusedIterator;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::FusedStream;

use crate::prefetch::error::PrefetchError;
use crate::prefetch::iterator::Prefetched;
use crate::prefetch::lent::Lent;
use crate::prefetch::stats::PrefetchStats;
use crate::prefetch::stream::PrefetchedStream;
use crate::tree::tensor_tree::TensorTree;

/// [`Prefetched`] or [`PrefetchedStream`] with items that are [`Lent`].
#[must_use = "it does nothing unless it is asked for items"]
pub struct Reused<P>(pub(crate) P);

impl<I: Iterator, T: TensorTree, E> Prefetched<I, T, E> {
    /// Copies each item into the memory of one that the program has dropped, as [`start_copy_into`](crate::start_copy_into) does:
    /// once as many are there as can be ahead and with the program, nothing is allocated on the device any more, and addresses come
    /// again and again. Items are [`Lent`]. One that does not fit into any of that memory (another shape, another structure, memory
    /// that somebody still holds) gets memory of its own, and what was there longest makes room. Tensors that are on the device already
    /// are copied as well.
    ///
    /// With [`hand_over`](Self::hand_over) the host waits for the device where that is so far behind that memory which came back is
    /// still being filled.
    pub fn reuse(mut self) -> Reused<Self> {
        self.0.ahead.reuse();
        Reused(self)
    }
}

impl<I: Iterator, T: TensorTree, E> Reused<Prefetched<I, T, E>> {
    /// How long the program has waited so far, and for what.
    pub fn stats(&self) -> PrefetchStats {
        self.0.stats()
    }
}

impl<I: Iterator, T: TensorTree, E> Iterator for Reused<Prefetched<I, T, E>> {
    type Item = Result<Lent<T>, PrefetchError<T, E>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.0.next_arrival().map(|item| item.map(|(item, spares)| Lent::new(item, &spares)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<S: Stream, T: TensorTree, E> PrefetchedStream<S, T, E> {
    /// Copies each item into the memory of one that the program has dropped, as [`start_copy_into`](crate::start_copy_into) does:
    /// once as many are there as can be ahead and with the program, nothing is allocated on the device any more, and addresses come
    /// again and again. Items are [`Lent`]. One that does not fit into any of that memory (another shape, another structure, memory
    /// that somebody still holds) gets memory of its own, and what was there longest makes room. Tensors that are on the device already
    /// are copied as well.
    pub fn reuse(mut self) -> Reused<Self> {
        self.0.ahead.reuse();
        Reused(self)
    }
}

impl<I: Iterator, T: TensorTree, E> FusedIterator for Reused<Prefetched<I, T, E>> {}

impl<S: Stream, T: TensorTree, E> Reused<PrefetchedStream<S, T, E>> {
    /// How long the program has waited so far, and for what.
    pub fn stats(&self) -> PrefetchStats {
        self.0.stats()
    }
}

impl<S: Stream, T: TensorTree, E> Stream for Reused<PrefetchedStream<S, T, E>> {
    type Item = Result<Lent<T>, PrefetchError<T, E>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.0.0.poll_arrival(context);
        next.map(|next| next.map(|item| item.map(|(item, spares)| Lent::new(item, &spares))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<S: Stream, T: TensorTree, E> FusedStream for Reused<PrefetchedStream<S, T, E>> {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

impl<P: fmt::Debug> fmt::Debug for Reused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
