//! Copies that run: asked, waited for and given up by any number of Python's threads. Nothing here takes the GIL.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use transship::{CopyReport, Error, ForkCount, InFlight, Result, Stream, Tensor, TimedWait};

use crate::forked;
use crate::transfer::Running;

/// Signals, such as that of Ctrl-C, are looked for so often.
pub const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// The copies of one call: of each place that leaves come from one, or several.
pub struct Copies {
    state: Mutex<State>,
    changed: Condvar,
    awaiting: Arc<Awaiting>,
    /// So many of them, the first, have the results.
    shown: usize,
    /// How many bytes each of those copies, if they are several: one that is done does not say so any more.
    bytes: Vec<u64>,
    /// Whether what was filled is asked for. What is not is let go of once the copies are done: PyTorch's memory is kept by its tensors.
    keeps_tensors: bool,
    /// What was filled, in the order of the copies and their items, if it is kept: once they are done, or handed to a stream.
    filled: OnceLock<Vec<Vec<Tensor>>>,
    /// Of the process that has started them.
    forks: ForkCount,
}

/// A copy has room for one waker. This one stands for those of everybody who awaits it.
#[derive(Default)]
struct Awaiting(Mutex<Vec<(i32, Waker)>>);

enum State {
    /// Some of them may be done, or handed to a stream. With an error they have failed or were given up, and what is left in flight is waited for.
    Running(Vec<Copy>, Option<Error>),
    /// A thread waits for them, or asks for them, and has them meanwhile. These want to know of what comes of that.
    Waited(Vec<Waker>),
    Done,
    Failed(Error),
}

enum Copy {
    /// With what tells when a copy that fails uses the caller's memory no more, if it fills that.
    Running(Box<Running>, Option<InFlight>),
    /// Handed to a stream, and not known to be done.
    Handed(Vec<Tensor>, InFlight),
    Done(Vec<Tensor>),
    /// It has failed or was given up, and may still use its memory.
    Left(InFlight),
}

/// What a copy has come to; with an error, what is left of it.
type Step = std::result::Result<Copy, (Error, Copy)>;

/// How far all of them are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Now {
    Running,
    Handed,
    Done,
}

impl Copies {
    /// `before` are copies that some of `running` come behind. `fills`: whether they fill memory that the caller has.
    pub fn new(running: Vec<Running>, before: Vec<Running>, keeps_tensors: bool, fills: bool) -> Self {
        let shown = running.len();
        let bytes = match &*running {
            [] | [_] => Vec::new(),
            several => several.iter().map(|copy| copy.progress().total_bytes).collect(),
        };
        let watched = |copy: Running| {
            let in_flight = fills.then(|| copy.in_flight());
            Copy::Running(Box::new(copy), in_flight)
        };
        let all = running.into_iter().chain(before).map(watched).collect();
        let state = Mutex::new(State::Running(all, None));
        let (changed, awaiting) = (Condvar::new(), Arc::default());
        let (filled, forks) = (OnceLock::new(), ForkCount::now());
        Self { state, changed, awaiting, shown, bytes, keeps_tensors, filled, forks }
    }

    /// Whether they are done; or have failed or were given up, and use no memory any more.
    pub fn are_ready(&self) -> bool {
        let Some(state) = forked::lock(&self.state) else { return true };
        let asked = match &*state {
            State::Running(copies, None) => {
                copies.iter().try_fold(true, |all, copy| Ok(copy.is_ready()? && all))
            }
            State::Running(_, Some(error)) => Err(error.clone()),
            State::Waited(_) => Ok(self.is_inherited()),
            State::Done | State::Failed(_) => Ok(true),
        };
        match asked {
            Ok(are_ready) => are_ready,
            Err(_) => {
                let Some((copies, failed)) = self.take(state) else { return false };
                let answer = self.carry_on(copies, failed, Copy::look);
                if answer.is_err() {
                    self.awaiting.wake_all();
                }
                answer.map_or(true, |now| now == Now::Done)
            }
        }
    }

    /// Waits at most so long. Whether they are done.
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        let mut state = forked::lock(&self.state).ok_or(Error::Forked)?;
        loop {
            match &mut *state {
                State::Done => return Ok(true),
                State::Failed(error) => return Err(error.clone()),
                State::Waited(_) if self.is_inherited() => return Err(Error::Forked),
                State::Waited(_) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return Ok(false);
                    }
                }
                State::Running(..) => {
                    let Some((copies, failed)) = self.take(state) else { return Ok(false) };
                    let answer = self.carry_on(copies, failed, |copy| copy.wait(deadline));
                    // Whoever awaits them asks again, and leaves his waker again: a wait need not keep it.
                    self.awaiting.wake_all();
                    return answer.map(|now| now == Now::Done);
                }
            }
        }
    }

    /// As [`wait`](Self::wait), without blocking. `false`: `waker` is woken when it is worth to ask again. It runs on a thread of the library.
    /// Each who awaits them has a number, and is woken, until he [leaves](Self::leave).
    pub fn poll(&self, number: i32, waker: Waker) -> Result<bool> {
        let mut state = forked::lock(&self.state).ok_or(Error::Forked)?;
        match &mut *state {
            State::Done => return Ok(true),
            State::Failed(error) => return Err(error.clone()),
            State::Waited(_) if self.is_inherited() => return Err(Error::Forked),
            State::Waited(wakers) => {
                wakers.push(waker);
                return Ok(false);
            }
            State::Running(..) => {}
        }
        let Some((copies, failed)) = self.take(state) else { return Ok(false) };
        // Before the copies are asked: they may be done, and wake, at once.
        self.awaiting.add(number, waker);
        let all = Waker::from(self.awaiting.clone());
        let answer = self.carry_on(copies, failed, |copy| copy.poll(&all)).map(|now| now == Now::Done);
        if !matches!(answer, Ok(false)) {
            self.awaiting.wake_all();
        }
        answer
    }

    /// Whoever has this number does not await them any more. The others do.
    pub fn leave(&self, number: i32) {
        self.awaiting.remove(number);
    }

    /// Hands the results over to a stream, which waits for them; the host does not, and asks for them afterwards as before. `false`: another
    /// thread waits for them, or they have failed and are not over; what comes of that is asked for by [`wait`](Self::wait).
    pub fn wait_on(&self, stream: &Stream) -> Result<bool> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Done => {}
            State::Failed(error) => return Err(error.clone()),
            State::Waited(_) | State::Running(_, Some(_)) => return Ok(false),
            State::Running(copies, None) if copies.iter().all(Copy::is_handed) => {
                // Not taken: an error of this stream is none of the copies.
                copies.iter().try_for_each(|copy| copy.precede(stream))?;
            }
            State::Running(..) => {
                let Some((copies, failed)) = self.take(state) else { return Ok(false) };
                let answer = self.carry_on(copies, failed, |copy| copy.wait_on(stream));
                self.awaiting.wake_all();
                return answer.map(|now| now != Now::Running);
            }
        }
        drop(state);
        self.record(stream).map(|()| true)
    }

    /// Keeps memory of the library for one stream more.
    fn record(&self, stream: &Stream) -> Result<()> {
        let mut last: Option<&Tensor> = None;
        for tensor in self.filled.get().into_iter().flatten().flatten() {
            if last.is_none_or(|last| !last.shares_memory_with(tensor)) {
                tensor.record_stream(stream)?;
            }
            last = Some(tensor);
        }
        Ok(())
    }

    /// Gives up what is not submitted yet. `false` if there is nothing to give up, or another thread waits for it.
    pub fn cancel(&self) -> bool {
        let state = self.state.lock();
        match &*state {
            State::Running(copies, None) if !copies.iter().all(Copy::is_handed) => {}
            _ => return false,
        }
        let Some((copies, _)) = self.take(state) else { return false };
        // That they were cancelled is what everybody else is told.
        let _ = self.carry_on(copies, Some(Error::Cancelled), Copy::look);
        self.awaiting.wake_all();
        true
    }

    /// How many bytes have arrived, and of how many. `None` while another thread waits, and once they are over.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let of_one = |number: usize, copy: &Copy| match copy.running().map(Running::progress) {
            Some(progress) => (progress.arrived_bytes, progress.total_bytes),
            None => self.bytes.get(number).map_or((0, 0), |all| (*all, *all)),
        };
        let add = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        self.ask(|copies| {
            copies.iter().enumerate().map(|(number, copy)| of_one(number, copy)).fold((0, 0), add)
        })
    }

    /// Of those that run. As [`progress`](Self::progress).
    pub fn reports(&self) -> Option<Vec<CopyReport>> {
        self.ask(|copies| copies.iter().filter_map(Copy::running).map(Running::report).collect())
    }

    fn ask<T>(&self, question: impl Fn(&[Copy]) -> T) -> Option<T> {
        match &*self.state.lock() {
            State::Running(copies, None) if copies.is_empty() || !copies.iter().all(Copy::is_handed) => {
                copies.get(..self.shown).map(question)
            }
            _ => None,
        }
    }

    /// A tensor that a copy has filled or fills, once they are done or handed to a stream.
    pub fn tensor(&self, copy: usize, number: usize) -> Option<Tensor> {
        self.filled.get()?.get(copy)?.get(number).cloned()
    }

    /// Whether this is a child of `fork`, where the thread that waits for them is not.
    fn is_inherited(&self) -> bool {
        !self.forks.is_now()
    }

    /// Nobody else has them from now on, until they are [carried on](Self::carry_on). Lets go of the lock. `None` unless they are running.
    fn take(&self, mut state: MutexGuard<'_, State>) -> Option<(Vec<Copy>, Option<Error>)> {
        match mem::replace(&mut *state, State::Waited(Vec::new())) {
            State::Running(copies, failed) => Some((copies, failed)),
            other => {
                *state = other;
                None
            }
        }
    }

    /// What was [taken](Self::take) is given back, a step further. All are given up once one of them has failed.
    fn carry_on(
        &self,
        copies: Vec<Copy>,
        mut failed: Option<Error>,
        mut step: impl FnMut(Copy) -> Step,
    ) -> Result<Now> {
        let unwinding = Unwinding(self);
        let given_up = |copies: Vec<Copy>| -> Vec<Copy> { copies.into_iter().map(Copy::give_up).collect() };
        let mut copies = if failed.is_some() { given_up(copies) } else { copies };
        loop {
            let had_failed = failed.is_some();
            copies = copies
                .into_iter()
                .map(|copy| match failed.is_some() && !had_failed {
                    true => copy,
                    false => step(copy).unwrap_or_else(|(error, left)| {
                        failed.get_or_insert(error);
                        left
                    }),
                })
                .collect();
            if failed.is_some() == had_failed {
                break;
            }
            copies = given_up(copies);
        }
        let is_over = copies.iter().all(|copy| matches!(copy, Copy::Done(_)));
        if failed.is_none() && self.filled.get().is_none() && copies.iter().all(Copy::is_handed) {
            let tensors: Vec<_> = copies.iter_mut().map(Copy::take_tensors).collect();
            let kept = if self.keeps_tensors { tensors } else { let_go(tensors) };
            drop(self.filled.set(kept));
        }
        let (state, answer) = match failed {
            Some(error) if is_over => (State::Failed(error.clone()), Err(error)),
            None if is_over => (State::Done, Ok(Now::Done)),
            None if copies.iter().all(Copy::is_handed) => (State::Running(copies, None), Ok(Now::Handed)),
            failed => (State::Running(copies, failed), Ok(Now::Running)),
        };
        mem::forget(unwinding);
        self.put_back(state);
        answer
    }

    fn put_back(&self, state: State) {
        let before = mem::replace(&mut *self.state.lock(), state);
        self.changed.notify_all();
        if let State::Waited(wakers) = before {
            wakers.iter().for_each(Waker::wake_by_ref);
        }
    }
}

/// A step that unwinds leaves nobody waiting.
struct Unwinding<'a>(&'a Copies);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let message = "a step of the Python package".to_owned();
        self.0.put_back(State::Failed(Error::Panicked { message }));
        self.0.awaiting.wake_all();
    }
}

/// Lets go of what was filled in memory of PyTorch's.
fn let_go(tensors: Vec<Vec<Tensor>>) -> Vec<Vec<Tensor>> {
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
    Vec::new()
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
    fn wait(self, deadline: Instant) -> Step {
        let left = || deadline.saturating_duration_since(Instant::now());
        match self {
            Self::Done(_) => Ok(self),
            Self::Running(copy, in_flight) => match copy.wait_timeout(left()) {
                Ok(TimedWait::Done(tensors)) => Ok(Self::Done(tensors)),
                Ok(TimedWait::Pending(copy)) => Ok(Self::Running(Box::new(copy), in_flight)),
                Err(error) => Err((error.into(), Self::left(in_flight))),
            },
            Self::Handed(_, ref in_flight) | Self::Left(ref in_flight) => {
                let is_over = in_flight.wait_timeout(left());
                self.ended(is_over)
            }
        }
    }

    fn poll(self, waker: &Waker) -> Step {
        let mut context = Context::from_waker(waker);
        match self {
            Self::Done(_) => Ok(self),
            Self::Running(mut copy, in_flight) => match Pin::new(&mut *copy).poll(&mut context) {
                Poll::Ready(Ok(tensors)) => Ok(Self::Done(tensors)),
                Poll::Ready(Err(error)) => {
                    drop(copy);
                    Err((error.into(), Self::left(in_flight)))
                }
                Poll::Pending => Ok(Self::Running(copy, in_flight)),
            },
            Self::Handed(tensors, mut in_flight) => match Pin::new(&mut in_flight).poll(&mut context) {
                Poll::Ready(over) => Self::Handed(tensors, in_flight).ended(over.map(|()| true)),
                Poll::Pending => Ok(Self::Handed(tensors, in_flight)),
            },
            Self::Left(mut in_flight) => match Pin::new(&mut in_flight).poll(&mut context) {
                Poll::Ready(over) => Self::Left(in_flight).ended(over.map(|()| true)),
                Poll::Pending => Ok(Self::Left(in_flight)),
            },
        }
    }

    fn wait_on(self, stream: &Stream) -> Step {
        let Self::Running(copy, in_flight) = self else {
            return match self.precede(stream) {
                Ok(()) => Ok(self),
                Err(error) => Err((error, self)),
            };
        };
        let in_flight = in_flight.unwrap_or_else(|| copy.in_flight());
        match copy.wait_on(stream) {
            Ok(tensors) => Ok(Self::Handed(tensors, in_flight)),
            Err(error) => Err((error.into(), Self::Left(in_flight))),
        }
    }

    /// Looks whether it has failed, or what was left of it is over. Does not block.
    fn look(self) -> Step {
        match self {
            Self::Running(ref copy, _) if copy.is_ready().is_err() => self.wait(Instant::now()),
            Self::Handed(_, ref in_flight) | Self::Left(ref in_flight) => {
                let is_over = in_flight.is_over();
                self.ended(is_over)
            }
            copy => Ok(copy),
        }
    }

    /// What becomes of it with this answer to whether it is over.
    fn ended(self, is_over: Result<bool>) -> Step {
        match (is_over, self) {
            (Ok(true), Self::Handed(tensors, _)) => Ok(Self::Done(tensors)),
            // Why it failed is known; a device that is broken never says more.
            (Ok(true) | Err(_), Self::Left(_)) => Ok(Self::Done(Vec::new())),
            (Err(error), _) => Err((error, Self::Done(Vec::new()))),
            (Ok(_), copy) => Ok(copy),
        }
    }

    fn left(in_flight: Option<InFlight>) -> Self {
        in_flight.map_or_else(|| Self::Done(Vec::new()), Self::Left)
    }

    /// Submits no more of it.
    fn give_up(self) -> Self {
        match self {
            Self::Running(copy, _) => Self::Left(copy.cancel().in_flight),
            Self::Handed(_, in_flight) => Self::Left(in_flight),
            over => over,
        }
    }

    /// Makes a stream wait for what was handed to another one.
    fn precede(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Handed(_, in_flight) => stream.wait_in_flight(in_flight),
            _ => Ok(()),
        }
    }

    /// Whether it is done, or handed to a stream.
    fn is_handed(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Handed(..))
    }

    fn is_ready(&self) -> Result<bool> {
        match self {
            Self::Running(copy, _) => copy.is_ready(),
            Self::Handed(_, in_flight) | Self::Left(in_flight) => in_flight.is_over(),
            Self::Done(_) => Ok(true),
        }
    }

    fn running(&self) -> Option<&Running> {
        match self {
            Self::Running(copy, _) => Some(copy),
            _ => None,
        }
    }

    fn take_tensors(&mut self) -> Vec<Tensor> {
        match self {
            Self::Handed(tensors, _) | Self::Done(tensors) => mem::take(tensors),
            Self::Running(..) | Self::Left(_) => Vec::new(),
        }
    }
}
