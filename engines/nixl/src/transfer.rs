//! A transfer that was started: what is waited for, in any way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// How long after its deadline a transfer is waited for whose thread the library holds up.
const GRACE: Duration = Duration::from_secs(1);

/// A transfer that was started. It ends by its deadline, with an error at the latest; dropped, it goes on in the background.
///
/// [`wait`](Self::wait) for it, or await it on any executor.
#[must_use = "whether it has succeeded comes out of it"]
pub struct Transfer<T> {
    shared: Arc<Shared<T>>,
    deadline: Deadline,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

struct State<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
    is_done: bool,
}

impl<T: Send + 'static> Transfer<T> {
    /// Does `work` on a thread of its own. What that returns beside the result is dropped last, when nobody waits any more.
    pub(crate) fn start<L>(
        deadline: Deadline,
        work: impl FnOnce() -> (Result<T>, L) + Send + 'static,
    ) -> Result<Self> {
        let state = State { result: None, waker: None, is_done: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), done: Condvar::new() });
        let promise = Promise(Arc::clone(&shared));
        let spawned = thread::Builder::new().name("transship-nixl".to_owned()).spawn(move || {
            let (result, last) = work();
            promise.keep(result);
            drop(last);
        });
        spawned.map_err(|error| Error::System { what: "thread", reason: error.to_string() })?;
        Ok(Self { shared, deadline })
    }
}

impl<T> Transfer<T> {
    /// Blocks until it is done, or its time is over.
    ///
    /// # Errors
    ///
    /// What has failed; [`Error::TimedOut`].
    pub fn wait(self) -> Result<T> {
        self.wait_by_reference()
    }

    pub(crate) fn wait_by_reference(&self) -> Result<T> {
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            if state.is_done {
                return Err(Error::Lost);
            }
            let left = self.deadline.left().saturating_add(GRACE);
            let (again, timed_out) = self.shared.wait(state, left);
            state = again;
            if timed_out && state.result.is_none() {
                return Err(Error::TimedOut { what: "a call of NIXL", limit: self.deadline.limit });
            }
        }
    }

    /// Whether it is done, well or not. Never blocks.
    pub fn is_ready(&self) -> bool {
        self.shared.lock().is_done
    }
}

impl<T> Future for Transfer<T> {
    type Output = Result<T>;

    /// Ends as [`wait`](Transfer::wait) does, but for a call of the library that does not return: that is waited for.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker().clone();
        let mut state = self.shared.lock();
        if state.is_done {
            return Poll::Ready(state.result.take().unwrap_or(Err(Error::Lost)));
        }
        let replaced = state.waker.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("is_ready", &self.is_ready()).finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for at most so long, and says whether that is over.
    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>, left: Duration) -> (MutexGuard<'a, State<T>>, bool) {
        // Longer than a day is no time that a condition variable of every system takes.
        let (state, timeout) = self
            .done
            .wait_timeout(state, left.min(Duration::from_secs(86_400)))
            .unwrap_or_else(PoisonError::into_inner);
        (state, timeout.timed_out() && left < Duration::from_secs(86_400))
    }

    fn finish(&self, result: Option<Result<T>>) {
        let mut state = self.lock();
        if state.is_done {
            return;
        }
        (state.result, state.is_done) = (result, true);
        let waker = state.waker.take();
        drop(state);
        self.done.notify_all();
        // The waker is the program's code: no lock of ours is held, and nobody waits for this thread.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Of a result. Dropped without one, those who wait hear that there is none.
struct Promise<T>(Arc<Shared<T>>);

impl<T> Promise<T> {
    fn keep(self, result: Result<T>) {
        self.0.finish(Some(result));
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.finish(None);
    }
}
