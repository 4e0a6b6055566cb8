//! A stream of `futures`, and what of it is ahead of the program.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;

use crate::error::CopyError;
use crate::prefetch::ahead::{Ahead, Slot};
use crate::prefetch::error::PrefetchError;
use crate::prefetch::options::PrefetchOptions;
use crate::prefetch::way::Way;
use crate::tree::tensor_tree::TensorTree;

pub(crate) struct Polled<S: Stream, T, E, W, C> {
    /// `None` once it has ended.
    source: Option<Pin<Box<S>>>,
    item: fn(S::Item) -> Result<T, E>,
    pub(crate) ahead: Ahead<T, E, W, C>,
    /// When the last poll ended with nothing, and for how long that was so before it.
    pending: Option<Instant>,
    waited: Duration,
}

impl<S: Stream, T: TensorTree, E, W: Way<T>> Polled<S, T, E, W, W::Copy> {
    pub(crate) fn new(
        source: S,
        item: fn(S::Item) -> Result<T, E>,
        way: W,
        options: PrefetchOptions,
    ) -> Self {
        let (source, ahead) = (Some(Box::pin(source)), Ahead::new(way, options));
        Self { source, item, ahead, pending: None, waited: Duration::ZERO }
    }

    /// The next item, once its copy is done.
    #[expect(clippy::type_complexity, reason = "it is what a stream has")]
    pub(crate) fn poll_arrival(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<W::Arrived, PrefetchError<T, E>>>> {
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
            Some(Slot::Copy(started)) => W::poll(&mut started.copy, context).map(Some),
            None if self.source.is_some() => Poll::Pending,
            Some(Slot::Failed(_)) | None => Poll::Ready(None),
        };
        if copied.is_pending() {
            self.pending = Some(Instant::now());
        }
        copied.map(|copied| self.hand_out(copied))
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

    fn hand_out(
        &mut self,
        copied: Option<Result<W::Arrived, CopyError<T>>>,
    ) -> Option<Result<W::Arrived, PrefetchError<T, E>>> {
        match (self.ahead.current.take()?, copied) {
            (Slot::Copy(started), Some(copied)) => {
                let submitted = W::submitted_after(&started.copy).map(|after| started.at + after);
                let waited = mem::take(&mut self.waited);
                self.ahead.handed_out(W::is_reused(&started.copy), waited, submitted);
                Some(copied.map_err(PrefetchError::Copy))
            }
            (Slot::Failed(error), _) => {
                self.ahead.stats.items += 1;
                Some(Err(error))
            }
            (Slot::Copy(_), None) => None,
        }
    }
}

impl<S: Stream, T, E, W, C> Polled<S, T, E, W, C> {
    pub(crate) fn is_terminated(&self) -> bool {
        self.source.is_none() && self.ahead.len() == 0
    }

    pub(crate) fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.source.as_ref().map_or((0, Some(0)), |source| source.size_hint());
        let ahead = self.ahead.len();
        (least.saturating_add(ahead), most.and_then(|most| most.checked_add(ahead)))
    }
}
