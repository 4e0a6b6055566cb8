//! How far a copy is, as a stream.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures::Stream;

use crate::copy::handle::CopyHandle;
use crate::copy::progress::CopyProgress;
use crate::error::Result;
use crate::in_flight::completion::Completion;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::foreign::TaskWaker;
use crate::runtime::reactor;
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::sync::Mutex;

/// How far a copy is, whenever that changes: see [`CopyHandle::progress_stream`]. Dropping it changes nothing.
#[must_use = "a stream does nothing unless it is polled"]
pub struct ProgressStream {
    watch: Arc<Watch>,
    /// The bytes of the last item.
    last: Option<u64>,
    is_over: bool,
}

/// What the reactor looks at for a stream that waits.
struct Watch {
    completion: Arc<Completion>,
    /// Bytes of the whole copy.
    total: u64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    waker: Option<TaskWaker>,
    /// To be woken when so many bytes have arrived.
    until: u64,
    /// The reactor looks.
    is_watched: bool,
}

impl<S> CopyHandle<S> {
    /// [`progress`](Self::progress) as a stream, which is apart from the handle: it has an item now, one for each percent at most, one when
    /// all has arrived, and then it ends. If the copy fails it ends earlier; the handle has the error.
    ///
    /// Whoever awaits it is woken by the thread that wakes those who await the handle. While somebody does, that thread looks once in a
    /// millisecond or more often.
    ///
    /// ```
    /// use futures::{StreamExt, future::join};
    /// use transship_core::{BackgroundWork, CopyOptions, CopyPolicy, Device, Tensor, start_copy};
    ///
    /// let options = CopyOptions::default().policy(CopyPolicy::Always).background(BackgroundWork::Always);
    /// let copy = start_copy(Tensor::from(vec![1_u8; 8 << 20]), &Device::host(), options)?;
    /// let shown = copy.progress_stream().for_each(async |progress| {
    ///     eprint!("\r{} of {} bytes", progress.arrived_bytes, progress.total_bytes);
    /// });
    /// let (copied, ()) = futures::executor::block_on(join(copy, shown));
    /// assert_eq!(copied?.nbytes(), 8 << 20);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    pub fn progress_stream(&self) -> ProgressStream {
        let (completion, total) = (self.completion.clone(), self.total_bytes());
        let watch = Arc::new(Watch { completion, total, waiting: Mutex::default() });
        ProgressStream { watch, last: None, is_over: false }
    }
}

impl Stream for ProgressStream {
    type Item = CopyProgress;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<CopyProgress>> {
        if let Some(found) = self.look() {
            return Poll::Ready(found);
        }
        if Watch::register(&self.watch, context.waker(), self.next()).is_err() {
            self.is_over = true;
            return Poll::Ready(None);
        }
        // It may have come further between the look and the registration.
        self.look().map_or(Poll::Pending, Poll::Ready)
    }
}

impl ProgressStream {
    /// The next item, or the end, if it is time for it. It is whenever the reactor wakes the task.
    fn look(&mut self) -> Option<Option<CopyProgress>> {
        if self.is_over {
            return Some(None);
        }
        let total = self.watch.total;
        let arrived = match self.watch.completion.is_done() {
            Ok(false) => Some(self.watch.arrived(&mut |_| true)).filter(|arrived| *arrived >= self.next())?,
            // However little has come since the last item.
            Ok(true) if self.last != Some(total) => total,
            Ok(true) | Err(_) => {
                self.is_over = true;
                return Some(None);
            }
        };
        self.last = Some(arrived);
        Some(Some(CopyProgress { arrived_bytes: arrived, total_bytes: total }))
    }

    /// How many bytes make an item before the end: one percent more than the last, which may be more than there are.
    fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add((self.watch.total / 100).max(1)))
    }
}

impl Watch {
    /// Wakes `waker` when `until` bytes have arrived, or the copy is over. To be called before the last look.
    fn register(self: &Arc<Self>, waker: &Waker, until: u64) -> Result<()> {
        // Cloned and dropped without the lock: both are the program's code.
        let new = TaskWaker::clone_of(waker);
        let mut waiting = self.waiting.lock();
        let old = waiting.waker.replace(new);
        waiting.until = until;
        let is_watched = std::mem::replace(&mut waiting.is_watched, true);
        drop(waiting);
        drop(old);
        if is_watched { Ok(()) } else { reactor::watch(Arc::downgrade(self)) }
    }

    fn arrived(&self, may_ask: &mut dyn FnMut(&Arc<SubmissionQueue>) -> bool) -> u64 {
        self.completion.arrived(may_ask).min(self.total)
    }
}

/// Looked at until its task is to be woken, or nobody has the stream any more.
impl Pollable for Weak<Watch> {
    fn is_finished(&mut self, asked: &mut Asked) -> bool {
        let Some(watch) = self.upgrade() else { return true };
        // In this order: the first look finds errors.
        let is_over = watch.completion.clone().is_finished(asked);
        let arrived = watch.arrived(&mut |queue| asked.is_first(queue));
        let mut waiting = watch.waiting.lock();
        if !is_over && arrived < waiting.until {
            return false;
        }
        waiting.is_watched = false;
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(reactor::wake);
        true
    }
}

impl fmt::Debug for ProgressStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgressStream({} of {} bytes)", self.last.unwrap_or(0), self.watch.total)
    }
}
