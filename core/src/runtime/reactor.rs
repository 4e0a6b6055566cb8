//! One thread for all devices, parked when idle: it asks how far the streams have come, settles copies that nobody
//! waits for, and wakes the tasks that wait for theirs.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::queue::{Kept, Lane};
use crate::runtime::foreign::TaskWaker;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::{Condvar, Instant, Mutex, statics, thread};
use crate::runtime::{at_exit, foreign};
use crate::tensor::uses::Handed;

/// After the last event the thread keeps asking for so long before it starts to sleep.
const EAGER: Duration = Duration::from_micros(200);
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

statics! {
    static REACTOR: Reactor = Reactor {
        state: Mutex::new(State {
            arrived: Vec::new(),
            wakers: Vec::new(),
            running: false,
            parked: false,
            idle: false,
            stopped: false,
        }),
        wake: Condvar::new(),
    };
    static WAKES: AtomicU64 = AtomicU64::new(0);
}

struct Reactor {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    arrived: Vec<Watch>,
    /// Of tasks whose copies are over.
    wakers: Vec<TaskWaker>,
    running: bool,
    parked: bool,
    /// It has nothing to look after but what has arrived.
    idle: bool,
    /// The process ends, and the thread has nothing to ask any more.
    stopped: bool,
}

/// Something that the reactor looks after until it is done.
pub(crate) enum Watch {
    /// A copy, whose tasks are woken at its end.
    Copy(Arc<Completion>),
    /// What a failed copy has left in flight.
    Lane(Arc<Lane>),
    /// Memory that streams still use.
    Memory(Kept),
    /// A stream that nobody holds any more, or that is captured while memory waits for it.
    Stream(Arc<Handed>),
}

/// How often the reactor was woken from its sleep since the program started.
pub(crate) fn wakes() -> u64 {
    WAKES.load(Ordering::Relaxed)
}

/// The process ends: nothing is asked any more.
pub(crate) fn stop() {
    REACTOR.state.lock().stopped = true;
}

/// Whether there is nothing to look after.
pub(crate) fn is_idle() -> bool {
    let state = REACTOR.state.lock();
    !state.running || (state.idle && !state.has_news())
}

/// Whether the thread sleeps, or was never started.
pub(crate) fn is_at_rest() -> bool {
    let state = REACTOR.state.lock();
    !state.running || state.parked
}

/// Looks after `watch` from now on. Never blocks.
pub(crate) fn watch(watch: Watch) -> Result<()> {
    tell(|state| state.arrived.push(watch))
}

/// Wakes a task. On this thread alone: a waker is the program's code, and nobody waits for the reactor but for its news.
pub(crate) fn wake(waker: TaskWaker) {
    let mut left = Some(waker);
    if tell(|state| state.wakers.extend(left.take())).is_err() {
        left.into_iter().for_each(TaskWaker::wake);
    }
}

/// Changes what the thread is to do, and sees to it that there is one that does it.
fn tell(news: impl FnOnce(&mut State)) -> Result<()> {
    at_exit::prepare();
    let mut state = REACTOR.state.lock();
    if !state.running {
        thread::Builder::new()
            .name("transship-reactor".into())
            .spawn(run)
            .map_err(|error| Error::NoThread { reason: error.to_string() })?;
        state.running = true;
    }
    news(&mut state);
    if state.parked {
        state.parked = false;
        WAKES.fetch_add(1, Ordering::Relaxed);
        REACTOR.wake.notify_one();
    }
    Ok(())
}

impl State {
    fn has_news(&self) -> bool {
        !self.arrived.is_empty() || !self.wakers.is_empty()
    }
}

fn run() {
    foreign::thread_is_ours();
    let mut watched = Vec::new();
    let mut last_event = Instant::now();
    let mut sleep = SHORTEST_SLEEP;
    loop {
        if collect(&mut watched) {
            last_event = Instant::now();
            sleep = SHORTEST_SLEEP;
        }
        let before = watched.len();
        // Nothing in there should panic; if a backend does, others are looked after all the same.
        foreign::caught(|| settle(&mut watched));
        let woken = wake_all();
        if watched.len() < before || woken {
            last_event = Instant::now();
            sleep = SHORTEST_SLEEP;
        } else if last_event.elapsed() < EAGER {
            thread::yield_now();
        } else {
            nap(sleep);
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
    }
}

/// Takes over what has arrived; parks while there is nothing at all to look after.
fn collect(watched: &mut Vec<Watch>) -> bool {
    let mut state = REACTOR.state.lock();
    while state.stopped || (watched.is_empty() && !state.has_news()) {
        state.parked = true;
        state.idle = watched.is_empty();
        REACTOR.wake.wait(&mut state);
    }
    state.parked = false;
    state.idle = false;
    let news = state.has_news();
    watched.append(&mut state.arrived);
    news
}

/// Wakes the tasks whose copies are over, last: what is to be settled is settled by then.
fn wake_all() -> bool {
    let wakers = std::mem::take(&mut REACTOR.state.lock().wakers);
    let some = !wakers.is_empty();
    wakers.into_iter().for_each(TaskWaker::wake);
    some
}

fn nap(time: Duration) {
    let mut state = REACTOR.state.lock();
    if !state.has_news() {
        state.parked = true;
        REACTOR.wake.wait_for(&mut state, time);
        state.parked = false;
    }
}

/// Asks each lane once, then drops what is done.
fn settle(watched: &mut Vec<Watch>) {
    let mut asked = SmallVec::<[*const Lane; 4]>::new();
    watched.retain_mut(|watch| match watch {
        Watch::Copy(copy) => !copy.settle(&mut |lane| {
            let unasked = !asked.contains(&Arc::as_ptr(lane));
            if unasked {
                asked.push(Arc::as_ptr(lane));
            }
            unasked
        }),
        // An error has leaked what was in flight: the queue is empty then, too.
        Watch::Lane(lane) => lane.poll().is_ok() && !lane.is_idle(),
        Watch::Memory(memory) => !memory.is_settled(),
        Watch::Stream(handed) => !handed.is_settled(),
    });
}
