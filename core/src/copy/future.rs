//! Copies as futures.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;

use crate::copy::handle::CopyHandle;
use crate::error::{CopyError, Result};
use crate::job::report::CopyReport;
use crate::runtime::sync::{Instant, hint};
use crate::runtime::{fork, lent_collector};
use crate::tree::tensor_tree::TensorTree;

/// The first poll of a handle looks for so long whether the copy is done: a small one takes about 12 us, and waking a
/// task costs more.
const SPIN_IN_POLL: Duration = Duration::from_micros(15);

/// One thread wakes the tasks of all copies of the program: a waker that blocks holds the other tasks up. It may start a copy and [`wait`](CopyHandle::wait) for it.
/// It must not await one (`block_on`), since only the thread that it holds up would wake it.
///
/// A poll runs no destructor of an owner ([`Tensor::from_owner`](crate::Tensor::from_owner) and others): other threads do, perhaps after
/// the copy is done, and if one panics, that is reported there and the task does not notice.
impl<S: TensorTree> Future for CopyHandle<S> {
    type Output = Result<S, CopyError<S>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A poll never blocks: what the program has lent is dropped by other threads, its handle's end included.
        let (result, lent) = lent_collector::collect(|| self.poll_value(context));
        drop(lent);
        result
    }
}

impl<S: TensorTree> CopyHandle<S> {
    fn poll_value(&mut self, context: &mut Context<'_>) -> Poll<Result<S, CopyError<S>>> {
        let mut rebuilt = Ok(());
        let done = self.poll_done(context, |handle| rebuilt = handle.rebuild());
        if let Err(error) = rebuilt {
            return Poll::Ready(Err(error));
        }
        match done {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(self.finish_done()),
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.give_up(error))),
        }
    }
}

/// The handle holds its structure, but never a pin to it.
impl<S> Unpin for CopyHandle<S> {}

/// A copy in progress, whatever its structure: for lists of copies of different types.
#[async_trait]
pub trait PendingCopy: Send {
    /// Whether the copy is done. Asks the device; never blocks.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    fn is_ready(&self) -> Result<bool>;

    /// What the copy did so far.
    fn report(&self) -> CopyReport;

    /// Waits on any executor until the copy is done; the structure stays in the handle, and so do its sources: nobody can write them before the handle
    /// is waited for, awaited or dropped.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    async fn done(&mut self) -> Result<()>;
}

#[async_trait]
impl<S: Send> PendingCopy for CopyHandle<S> {
    fn is_ready(&self) -> Result<bool> {
        Self::is_ready(self)
    }

    fn report(&self) -> CopyReport {
        Self::report(self)
    }

    async fn done(&mut self) -> Result<()> {
        poll_fn(|context| self.poll_done(context, |_| {})).await
    }
}

impl<S> CopyHandle<S> {
    fn poll_done(
        &mut self,
        context: &mut Context<'_>,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Poll<Result<()>> {
        if !self.completion.is_done_cached() {
            fork::check()?;
        }
        let first = !std::mem::replace(&mut self.polled, true);
        if first {
            meanwhile(self);
            if self.completion.is_submitted() && self.spin()? {
                return Poll::Ready(Ok(()));
            }
        } else if self.completion.is_done()? {
            return Poll::Ready(Ok(()));
        }
        self.completion.register(context.waker())?;
        // The copy may have ended between the look and the registration.
        if self.completion.is_done()? { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn spin(&self) -> Result<bool> {
        let begin = Instant::now();
        loop {
            if self.completion.is_done()? {
                return Ok(true);
            }
            if begin.elapsed() > SPIN_IN_POLL {
                return Ok(false);
            }
            hint::spin_loop();
        }
    }
}
