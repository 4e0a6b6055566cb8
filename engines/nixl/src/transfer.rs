//! A transfer that was started: what is waited for, in any way.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use transship::ForkCount;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::send::Late;

/// How long after its deadline a transfer is waited for whose thread the library holds up. A thread that merely gets no processor for a second still says what was late.
const GRACE: Duration = Duration::from_secs(2);

/// A transfer that was started. It ends by its deadline, with an error at the latest.
///
/// Dropped, it goes on in the background: a tree that is sent arrives all the same, and one that is being received is received and lost. A receive that has no tree
/// yet takes none any more, and the next receive gets what comes.
///
/// [`wait`](Self::wait) for it, or await it on any executor. The tensors that were sent are let go of by the thread that does, before it has the result: they
/// may be the last of theirs, and their destructors are the program's code.
#[must_use = "whether it has succeeded comes out of it"]
pub struct Transfer<T> {
    shared: Arc<Shared<T>>,
    deadline: Deadline,
    claim: Claim,
    /// Wakes who awaits it when its time is over.
    alarm: fn(&Arc<Shared<T>>, Deadline),
}

/// On the tree that is received: of the transfer, which gives it up when it is dropped, and of its thread, which takes no tree without it.
#[derive(Clone, Default)]
pub(crate) struct Claim(Arc<AtomicU8>);

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Claim {
    /// For the thread, unless it was given up.
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The thread has no tree after all.
    pub(crate) fn put_back(&self) {
        // Fails if it was given up meanwhile.
        let _ = self.0.compare_exchange(TAKEN, FREE, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn give_up(&self) {
        self.0.store(GIVEN_UP, Ordering::Relaxed);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == GIVEN_UP
    }
}

struct Shared<T> {
    state: Mutex<State<T>>,
    done: Condvar,
    /// Its thread has not come along with a child that was forked.
    forks: ForkCount,
}

struct State<T> {
    result: Option<Result<T>>,
    /// What has ended with the transfer, and is dropped by whoever sees first that it has.
    held: Option<Held>,
    waker: Option<Waker>,
    is_done: bool,
    has_alarm: bool,
}

/// What the program has given a transfer. Its destructors are the program's code.
pub(crate) type Held = Box<dyn Send>;

/// What the thread of a transfer leaves behind.
pub(crate) struct Ended<T> {
    pub(crate) result: Result<T>,
    /// Dropped before anybody has the result, by the thread that asks for that.
    pub(crate) held: Option<Held>,
    /// Dropped by the thread of the transfer, when nobody waits for it any more.
    pub(crate) last: Option<Late>,
}

impl<T> From<Result<T>> for Ended<T> {
    fn from(result: Result<T>) -> Self {
        Self { result, held: None, last: None }
    }
}

impl<T: Send + 'static> Transfer<T> {
    /// Does `work` on a thread of its own.
    pub(crate) fn start(
        deadline: Deadline,
        claim: Claim,
        work: impl FnOnce() -> Ended<T> + Send + 'static,
    ) -> Result<Self> {
        let state = State { result: None, held: None, waker: None, is_done: false, has_alarm: false };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), done: Condvar::new(), forks: ForkCount::now() });
        let promise = Promise(Arc::clone(&shared));
        let spawned = thread::Builder::new().name("transship-nixl".to_owned()).spawn(move || {
            let Ended { result, held, last } = work();
            promise.keep(result, held);
            drop(last);
        });
        spawned.map_err(|error| Error::System { what: "thread", reason: error.to_string() })?;
        Ok(Self { shared, deadline, claim, alarm: Shared::set_alarm })
    }
}

impl<T> Transfer<T> {
    /// Blocks until it is done, or its time is over.
    ///
    /// # Errors
    ///
    /// What has failed; [`Error::TimedOut`]; [`Error::Forked`].
    pub fn wait(self) -> Result<T> {
        self.wait_by_reference()
    }

    pub(crate) fn wait_by_reference(&self) -> Result<T> {
        self.shared.check_here()?;
        let mut state = self.shared.lock();
        loop {
            if state.is_done {
                return take(state);
            }
            if is_over(self.deadline) {
                return Err(late(self.deadline));
            }
            state = self.shared.wait(state, self.deadline);
        }
    }

    /// Whether it is done, well or not. Never blocks; once it is done, nothing that was sent is held any more. In a forked child, where it never will be, it is an
    /// error at once.
    pub fn is_ready(&self) -> bool {
        if self.shared.check_here().is_err() {
            return true;
        }
        let mut state = self.shared.lock();
        let (is_done, held) = (state.is_done, state.held.take());
        drop(state);
        drop(held);
        is_done
    }
}

impl<T> Drop for Transfer<T> {
    fn drop(&mut self) {
        self.claim.give_up();
    }
}

impl<T> Future for Transfer<T> {
    type Output = Result<T>;

    /// Ends as [`wait`](Transfer::wait) does.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.check_here()?;
        let waker = context.waker().clone();
        let mut state = self.shared.lock();
        if state.is_done {
            return Poll::Ready(take(state));
        }
        if is_over(self.deadline) {
            return Poll::Ready(Err(late(self.deadline)));
        }
        let replaced = state.waker.replace(waker);
        let has_alarm = mem::replace(&mut state.has_alarm, true);
        drop(state);
        drop(replaced);
        if !has_alarm {
            (self.alarm)(&self.shared, self.deadline);
        }
        Poll::Pending
    }
}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_done = self.shared.check_here().is_err() || self.shared.lock().is_done;
        f.debug_struct("Transfer").field("is_ready", &is_done).finish_non_exhaustive()
    }
}

/// Whether its thread must have ended by now, but for what the library or a destructor of the program does.
fn is_over(deadline: Deadline) -> bool {
    deadline.left_with(GRACE).is_zero()
}

fn late(deadline: Deadline) -> Error {
    Error::TimedOut { what: "the end of a call of NIXL", limit: deadline.limit }
}

/// The result of what is done. What it has held goes first, and no lock of ours is held then.
fn take<T>(mut state: MutexGuard<'_, State<T>>) -> Result<T> {
    let (result, held) = (state.result.take(), state.held.take());
    drop(state);
    drop(held);
    result.unwrap_or(Err(Error::Lost))
}

impl<T> Shared<T> {
    /// Fails in a child that was forked.
    fn check_here(&self) -> Result<()> {
        if self.forks.is_now() { Ok(()) } else { Err(Error::Forked) }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is done, or its time is over, or for a while.
    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>, deadline: Deadline) -> MutexGuard<'a, State<T>> {
        // Longer than a day is no time that a condition variable of every system takes.
        let left = deadline.left_with(GRACE).min(Duration::from_secs(86_400));
        self.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    fn finish(&self, result: Option<Result<T>>, held: Option<Held>) {
        let mut state = self.lock();
        if state.is_done {
            return;
        }
        (state.result, state.held, state.is_done) = (result, held, true);
        let waker = state.waker.take();
        drop(state);
        self.done.notify_all();
        // The waker is the program's code: no lock of ours is held, and nobody waits for this thread.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Send + 'static> Shared<T> {
    /// Wakes who awaits it when its time is over.
    fn set_alarm(shared: &Arc<Self>, deadline: Deadline) {
        let shared = Arc::clone(shared);
        let watch = move || {
            let mut state = shared.lock();
            while !state.is_done && !is_over(deadline) {
                state = shared.wait(state, deadline);
            }
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        // Where there is no thread for it, whoever awaits it is woken by its end.
        let _ = thread::Builder::new().name("transship-nixl-alarm".to_owned()).spawn(watch);
    }
}

/// Of a result. Dropped without one, those who wait hear that there is none.
struct Promise<T>(Arc<Shared<T>>);

impl<T> Promise<T> {
    fn keep(self, result: Result<T>, held: Option<Held>) {
        self.0.finish(Some(result), held);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.finish(None, None);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::AtomicUsize;
    use std::thread::{self, ThreadId};

    use super::*;

    /// Where what was sent was dropped, and in how many ways its transfer was asked meanwhile.
    #[derive(Default)]
    struct Seen {
        dropped: Mutex<Option<ThreadId>>,
        asked: AtomicUsize,
        transfer: Mutex<Weak<Transfer<u8>>>,
    }

    struct Sent(Arc<Seen>);

    impl Drop for Sent {
        fn drop(&mut self) {
            if let Some(transfer) = self.0.transfer.lock().unwrap().upgrade() {
                // Waits for ever if a lock is held.
                self.0.asked.fetch_add(usize::from(transfer.is_ready()), Ordering::Relaxed);
            }
            *self.0.dropped.lock().unwrap() = Some(thread::current().id());
        }
    }

    fn transfer(seen: &Arc<Seen>) -> Transfer<u8> {
        let sent = Sent(Arc::clone(seen));
        let work = move || Ended { result: Ok(7), held: Some(Box::new(sent)), last: None };
        Transfer::start(Deadline::after(Duration::from_secs(60)), Claim::default(), work).unwrap()
    }

    /// Deliberate bugs: what was sent is dropped by the thread of the transfer, when others have the result already; it is dropped under the lock.
    #[test]
    fn what_was_sent_goes_before_the_end_is_seen_by_who_asks() {
        let ways: [fn(Transfer<u8>) -> u8; 2] =
            [|transfer| transfer.wait().unwrap(), |transfer| futures::executor::block_on(transfer).unwrap()];
        for way in ways {
            let seen = Arc::new(Seen::default());
            assert_eq!(way(transfer(&seen)), 7);
            assert_eq!(*seen.dropped.lock().unwrap(), Some(thread::current().id()));
        }
        let seen = Arc::new(Seen::default());
        let transfer = Arc::new(transfer(&seen));
        *seen.transfer.lock().unwrap() = Arc::downgrade(&transfer);
        while !transfer.is_ready() {
            thread::yield_now();
        }
        assert_eq!(*seen.dropped.lock().unwrap(), Some(thread::current().id()));
        assert_eq!(seen.asked.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::into_inner(transfer).unwrap().wait().unwrap(), 7);
    }

    /// Deliberate bug: whoever awaits what the library holds up is never woken.
    #[test]
    fn who_awaits_what_does_not_end_hears_that_its_time_is_over() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let _ = ended.recv_timeout(Duration::from_secs(20));
            Ok(7).into()
        };
        let deadline = Deadline::after(Duration::from_millis(50));
        let transfer: Transfer<u8> = Transfer::start(deadline, Claim::default(), work).unwrap();
        let error = futures::executor::block_on(transfer).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }) && deadline.left_with(GRACE).is_zero(), "{error}");
        end.send(()).unwrap();
    }
}
