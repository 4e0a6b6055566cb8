//! What is in flight of a copy that its handle was used up for, or that nobody wants any more, and when it is over.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::BackendStream;
use crate::error::Result;
use crate::in_flight::completion::Completion;
use crate::runtime::sync::{Mutex, OnceLock};

/// What a copy has in flight that was [cancelled](crate::CopyHandle::cancel), has failed, or was handed to a stream
/// ([`CopyHandle::in_flight`](crate::CopyHandle::in_flight)). Await it or wait for it: then the device is done with
/// all memory of the copy, and nobody else uses it for the copy either. One task at a time awaits it; each that [`in_flight`](crate::CopyHandle::in_flight)
/// gives has a task of its own. Dropping it changes nothing.
#[must_use = "it tells when the memory of the copy can be used again"]
pub struct InFlight(Arc<Completion>);

impl InFlight {
    /// Over when all is done that `copy` has submitted by now. Nothing more of it is submitted.
    pub(crate) fn until(copy: &Completion) -> Self {
        let over = Completion::new();
        reach(&over, copy);
        Self(over)
    }

    /// Makes later work of `stream` wait for it on the device. Blocks at most until all of it is submitted.
    pub(crate) fn precede(&self, stream: &Arc<dyn BackendStream>) -> Result<()> {
        self.0.wait_submitted(None)?;
        for (queue, position) in self.0.positions() {
            queue.precede(stream, position)?;
        }
        // A failure clears the positions: look again.
        self.0.is_done().map(drop)
    }

    /// Whether it is over. Asks the device; never blocks.
    ///
    /// # Errors
    ///
    /// The error of a broken device, which may use the memory for ever.
    pub fn is_over(&self) -> Result<bool> {
        self.0.is_done()
    }

    /// Blocks until it is over.
    ///
    /// # Errors
    ///
    /// As [`is_over`](Self::is_over).
    pub fn wait(&self) -> Result<()> {
        self.0.wait(None).map(drop)
    }

    /// Blocks until it is over; `false` if `timeout` is over first.
    ///
    /// # Errors
    ///
    /// As [`is_over`](Self::is_over).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.0.wait(Some(timeout))
    }
}

impl Future for InFlight {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.register(context.waker())?;
        // Registered before the look: it may end between the two.
        if self.0.is_done()? { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_done_cached() { "InFlight(over)" } else { "InFlight" })
    }
}

/// The last field of a job. When it is dropped, workers and handle have released all memory of the copy. What is in flight then
/// is what was submitted before.
pub(crate) struct LeftInFlight(OnceLock<Watched>);

struct Watched {
    copy: Arc<Completion>,
    /// One for each who looks on: a completion wakes one task.
    over: Mutex<Vec<Arc<Completion>>>,
}

impl LeftInFlight {
    pub(crate) fn new() -> Self {
        Self(OnceLock::new())
    }

    pub(crate) fn watch(&self, copy: &Arc<Completion>) -> InFlight {
        let watched = self.0.get_or_init(|| Watched { copy: copy.clone(), over: Mutex::default() });
        let over = Completion::new();
        let mut all = watched.over.lock();
        let unwatched: Vec<_> = all.extract_if(.., |other| Arc::strong_count(other) == 1).collect();
        all.push(over.clone());
        drop(all);
        // Without the lock: they may have wakers of the program.
        drop(unwatched);
        InFlight(over)
    }
}

impl Drop for LeftInFlight {
    fn drop(&mut self) {
        if let Some(Watched { copy, over }) = self.0.get() {
            let all = std::mem::take(&mut *over.lock());
            all.iter().for_each(|over| reach(over, copy));
        }
    }
}

/// Makes `over` done when all is done that `copy` has submitted.
fn reach(over: &Arc<Completion>, copy: &Completion) {
    for (queue, position) in copy.positions_in_flight() {
        over.reach(&queue, position);
    }
    over.submitted();
}
