//! An iterator, and what of it is ahead of the program.

use std::time::Instant;

use crate::prefetch::ahead::{Ahead, Slot, Started};
use crate::prefetch::error::PrefetchError;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::way::Way;
use crate::tree::tensor_tree::TensorTree;

pub(crate) struct Pulled<I: Iterator, T, E, W, C> {
    /// `None` once it has ended.
    source: Option<I>,
    item: fn(I::Item) -> Result<T, E>,
    pub(crate) ahead: Ahead<T, E, W, C>,
}

impl<I: Iterator, T: TensorTree, E, W: Way<T>> Pulled<I, T, E, W, W::Copy> {
    pub(crate) fn new(
        source: I,
        item: fn(I::Item) -> Result<T, E>,
        way: W,
        options: PrefetchOptions,
    ) -> Self {
        Self { source: Some(source), item, ahead: Ahead::new(way, options) }
    }

    /// The next item. Those behind it are started before it is waited for.
    pub(crate) fn next_arrival(&mut self) -> Option<Result<W::Arrived, PrefetchError<T, E>>> {
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

    fn finish(&mut self, started: Started<W::Copy>) -> Result<W::Arrived, PrefetchError<T, E>> {
        let Started { copy, at, .. } = started;
        let (begin, is_reused) = (Instant::now(), W::is_reused(&copy));
        let (arrived, submitted_after) = self.ahead.way.finish(copy);
        let submitted = submitted_after.filter(|_| arrived.is_ok()).map(|after| at + after);
        self.ahead.handed_out(is_reused, begin.elapsed(), submitted);
        arrived.map_err(PrefetchError::Copy)
    }
}

impl<I: Iterator, T, E, W, C> Pulled<I, T, E, W, C> {
    pub(crate) fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.source.as_ref().map_or((0, Some(0)), Iterator::size_hint);
        let ahead = self.ahead.len();
        (least.saturating_add(ahead), most.and_then(|most| most.checked_add(ahead)))
    }
}
