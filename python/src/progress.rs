//! Copies that run: asked, waited for and given up by any number of Python's threads. Nothing here takes the GIL.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use transship::{CopyProgress, CopyReport, Error, Result, Stream, Tensor, TimedWait};

use crate::transfer::Running;

/// The copies of one call, one for each place that leaves come from.
pub struct Copies {
    state: Mutex<State>,
    changed: Condvar,
    awaiting: Arc<Awaiting>,
    /// So many of them, the first, have the results.
    shown: usize,
    /// Whether what was filled is asked for. What is not is let go of once the copies are done: PyTorch's memory is kept by its tensors.
    keeps_tensors: bool,
}

/// A copy has room for one waker. This one stands for those of everybody who awaits it.
#[derive(Default)]
struct Awaiting(Mutex<Vec<(i32, Waker)>>);

enum State {
    Running(Vec<Copy>),
    /// A thread waits for them, or asks for them, and has them meanwhile. These want to know of what comes of that.
    Waited(Vec<Waker>),
    /// The tensors that were filled, in the order of the copies and their items, if they are kept.
    Done(Vec<Vec<Tensor>>),
    Failed(Error),
}

enum Copy {
    Running(Box<Running>),
    Done(Vec<Tensor>),
}

impl Copies {
    /// `before` are copies that some of `running` come behind.
    pub fn new(running: Vec<Running>, before: Vec<Running>, keeps_tensors: bool) -> Self {
        let shown = running.len();
        let all = running.into_iter().chain(before).map(|copy| Copy::Running(Box::new(copy))).collect();
        let state = Mutex::new(State::Running(all));
        Self { state, changed: Condvar::new(), awaiting: Arc::default(), shown, keeps_tensors }
    }

    /// Whether they are done, or have failed.
    pub fn are_ready(&self) -> bool {
        match &*self.state.lock() {
            State::Running(copies) => copies.iter().all(Copy::is_ready),
            State::Waited(_) => false,
            State::Done(_) | State::Failed(_) => true,
        }
    }

    /// Waits at most so long. Whether they are done.
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            match &mut *state {
                State::Done(_) => return Ok(true),
                State::Failed(error) => return Err(error.clone()),
                State::Waited(_) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return Ok(false);
                    }
                }
                State::Running(copies) => {
                    let copies = mem::take(copies);
                    *state = State::Waited(Vec::new());
                    drop(state);
                    let answer = self.carry_on(copies, |copy| copy.wait(deadline));
                    // Whoever awaits them asks again, and leaves his waker again: a wait need not keep it.
                    self.awaiting.wake_all();
                    return answer;
                }
            }
        }
    }

    /// As [`wait`](Self::wait), without blocking. `false`: `waker` is woken when it is worth to ask again. It runs on a thread of the library.
    /// Each who awaits them has a number, and is woken, until he [leaves](Self::leave).
    pub fn poll(&self, number: i32, waker: Waker) -> Result<bool> {
        let mut state = self.state.lock();
        let copies = match &mut *state {
            State::Done(_) => return Ok(true),
            State::Failed(error) => return Err(error.clone()),
            State::Waited(wakers) => {
                wakers.push(waker);
                return Ok(false);
            }
            State::Running(copies) => mem::take(copies),
        };
        *state = State::Waited(Vec::new());
        drop(state);
        // Before the copies are asked: they may be done, and wake, at once.
        self.awaiting.add(number, waker);
        let all = Waker::from(self.awaiting.clone());
        let answer = self.carry_on(copies, |copy| copy.poll(&all));
        if !matches!(answer, Ok(false)) {
            self.awaiting.wake_all();
        }
        answer
    }

    /// Whoever has this number does not await them any more. The others do.
    pub fn leave(&self, number: i32) {
        self.awaiting.remove(number);
    }

    /// Hands the results over to a stream, which waits for them; the host does not. They are done for it from then on.
    pub fn wait_on(&self, stream: &Stream) -> Result<bool> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Done(_) => Ok(true),
            State::Failed(error) => Err(error.clone()),
            State::Waited(_) => Ok(false),
            State::Running(copies) => {
                let copies = mem::take(copies);
                *state = State::Waited(Vec::new());
                drop(state);
                let answer = self.carry_on(copies, |copy| copy.wait_on(stream));
                self.awaiting.wake_all();
                answer
            }
        }
    }

    /// Gives up what is not submitted yet. `false` if there is nothing to give up, or another thread waits for it.
    pub fn cancel(&self) -> bool {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, State::Failed(Error::Cancelled)) {
            State::Running(copies) => {
                drop(state);
                copies.into_iter().for_each(Copy::cancel);
                self.awaiting.wake_all();
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// `None` while another thread waits, and once they are over.
    pub fn progress(&self) -> Option<Vec<CopyProgress>> {
        self.ask(Running::progress)
    }

    /// As [`progress`](Self::progress).
    pub fn reports(&self) -> Option<Vec<CopyReport>> {
        self.ask(Running::report)
    }

    fn ask<T>(&self, question: impl Fn(&Running) -> T) -> Option<Vec<T>> {
        match &*self.state.lock() {
            State::Running(copies) => {
                Some(copies.iter().take(self.shown).filter_map(Copy::running).map(question).collect())
            }
            _ => None,
        }
    }

    /// What was filled by the copies, once they are done.
    pub fn with_tensors<T>(&self, look: impl FnOnce(&[Vec<Tensor>]) -> T) -> Option<T> {
        match &*self.state.lock() {
            State::Done(tensors) => Some(look(tensors)),
            _ => None,
        }
    }

    /// Nobody else has them meanwhile.
    fn carry_on(&self, copies: Vec<Copy>, step: impl FnMut(Copy) -> Result<Copy>) -> Result<bool> {
        let waited = copies.into_iter().map(step).collect::<Result<Vec<_>>>();
        let (state, answer) = match waited {
            Err(error) => (State::Failed(error.clone()), Err(error)),
            Ok(copies) if copies.iter().all(|copy| matches!(copy, Copy::Done(_))) => {
                let mut tensors: Vec<_> = copies.into_iter().filter_map(Copy::done).collect();
                if !self.keeps_tensors {
                    let_go(mem::take(&mut tensors));
                }
                (State::Done(tensors), Ok(true))
            }
            Ok(copies) => (State::Running(copies), Ok(false)),
        };
        let before = mem::replace(&mut *self.state.lock(), state);
        self.changed.notify_all();
        if let State::Waited(wakers) = before {
            wakers.iter().for_each(Waker::wake_by_ref);
        }
        answer
    }
}

/// Lets go of what was filled in memory of PyTorch's.
fn let_go(tensors: Vec<Vec<Tensor>>) {
    let mut last: Option<&Tensor> = None;
    for tensor in tensors.iter().flatten() {
        if last.is_none_or(|last| !last.shares_memory_with(tensor)) {
            // SAFETY: copies in flight keep the memory, and what else is submitted to a stream uses it through tensors of PyTorch's, whose
            // allocator orders the next use behind that.
            let forgotten = unsafe { tensor.forget_streams() };
            debug_assert!(forgotten.is_ok());
        }
        last = Some(tensor);
    }
}

impl Awaiting {
    fn add(&self, number: i32, waker: Waker) {
        let mut wakers = self.0.lock();
        let before = wakers.iter().position(|(other, _)| *other == number);
        let before = before.map(|place| wakers.swap_remove(place));
        wakers.push((number, waker));
        drop((wakers, before));
    }

    fn remove(&self, number: i32) {
        let mut wakers = self.0.lock();
        let place = wakers.iter().position(|(other, _)| *other == number);
        let removed = place.map(|place| wakers.swap_remove(place));
        drop((wakers, removed));
    }

    fn wake_all(&self) {
        // Taken out first: no waker runs under the lock.
        let wakers = mem::take(&mut *self.0.lock());
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Wake for Awaiting {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

impl Copy {
    fn wait(self, deadline: Instant) -> Result<Self> {
        match self {
            Self::Done(_) => Ok(self),
            Self::Running(copy) => {
                match copy.wait_timeout(deadline.saturating_duration_since(Instant::now()))? {
                    TimedWait::Done(tensors) => Ok(Self::Done(tensors)),
                    TimedWait::Pending(copy) => Ok(Self::Running(Box::new(copy))),
                }
            }
        }
    }

    fn poll(self, waker: &Waker) -> Result<Self> {
        let Self::Running(mut copy) = self else { return Ok(self) };
        match Pin::new(&mut *copy).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(tensors) => Ok(Self::Done(tensors?)),
            Poll::Pending => Ok(Self::Running(copy)),
        }
    }

    fn wait_on(self, stream: &Stream) -> Result<Self> {
        match self {
            Self::Done(_) => Ok(self),
            Self::Running(copy) => Ok(Self::Done(copy.wait_on(stream)?)),
        }
    }

    fn is_ready(&self) -> bool {
        self.running().is_none_or(|copy| copy.is_ready().unwrap_or(true))
    }

    fn cancel(self) {
        if let Self::Running(copy) = self {
            drop(copy.cancel());
        }
    }

    fn running(&self) -> Option<&Running> {
        match self {
            Self::Running(copy) => Some(copy),
            Self::Done(_) => None,
        }
    }

    fn done(self) -> Option<Vec<Tensor>> {
        match self {
            Self::Done(tensors) => Some(tensors),
            Self::Running(_) => None,
        }
    }
}
