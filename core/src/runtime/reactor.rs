//! One thread for all devices, parked when idle: it asks how far the streams have come, settles copies that nobody
//! waits for, and wakes the tasks that wait for theirs.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::runtime::at_exit::Service;
use crate::runtime::foreign::TaskWaker;
use crate::runtime::near_node::Affinity;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::{Condvar, Instant, Mutex, OnceLock, statics, thread};
use crate::runtime::{at_exit, foreign};

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
    static REGISTERED: OnceLock<()> = OnceLock::new();
}

struct Reactor {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    arrived: Vec<Box<dyn Pollable>>,
    /// Of tasks whose copies are over.
    wakers: Vec<TaskWaker>,
    running: bool,
    parked: bool,
    /// It has nothing to look after but what has arrived.
    idle: bool,
    /// The process ends, and the thread has nothing to ask any more.
    stopped: bool,
}

/// Something that the reactor looks after until it is over.
pub(crate) trait Pollable: Send {
    /// Whether there is nothing to look after any more. Never blocks.
    fn is_finished(&mut self, asked: &mut Asked) -> bool;
}

/// What was asked already in a round: each stream is asked once.
#[derive(Default)]
pub(crate) struct Asked(SmallVec<[*const (); 4]>);

impl Asked {
    /// Whether nobody has asked `whom` in this round; it counts as asked from now on.
    pub(crate) fn is_first<T>(&mut self, whom: &Arc<T>) -> bool {
        let address = Arc::as_ptr(whom).cast();
        let is_first = !self.0.contains(&address);
        if is_first {
            self.0.push(address);
        }
        is_first
    }
}

/// How often the reactor was woken from its sleep since the program started.
pub(crate) fn wakes() -> u64 {
    WAKES.load(Ordering::Relaxed)
}

/// The process ends: nothing is asked any more.
fn stop() {
    REACTOR.state.lock().stopped = true;
}

/// Whether there is nothing to look after.
fn is_idle() -> bool {
    let state = REACTOR.state.lock();
    !state.running || (state.idle && !state.has_news())
}

/// Whether the thread sleeps, or was never started.
fn is_at_rest() -> bool {
    let state = REACTOR.state.lock();
    !state.running || state.parked
}

/// Looks after `pollable` from now on. Never blocks.
pub(crate) fn watch(pollable: impl Pollable + 'static) -> Result<()> {
    let pollable = Box::new(pollable);
    tell(|state| state.arrived.push(pollable))
}

/// Has the reactor thread wake a task: a waker is the program's code, and no thread waits for the reactor's. Without a reactor
/// thread this one wakes it.
pub(crate) fn wake(waker: TaskWaker) {
    let mut left = Some(waker);
    if tell(|state| state.wakers.extend(left.take())).is_err() {
        left.into_iter().for_each(TaskWaker::wake);
    }
}

/// Has the thread look at once at what it looks after. Never blocks.
pub(crate) fn look_now() -> Result<()> {
    tell(|_| {})
}

/// Changes what the thread is to do, and sees to it that there is one that does it.
fn tell(news: impl FnOnce(&mut State)) -> Result<()> {
    REGISTERED.get_or_init(|| at_exit::register(Service { is_idle, stop, is_at_rest }));
    let mut state = REACTOR.state.lock();
    if !state.running {
        let affinity = Affinity::near(None);
        thread::Builder::new()
            .name("transship-reactor".into())
            .spawn(move || {
                affinity.adopt();
                run();
            })
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
        // The destructor of what is over may panic as well.
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

/// Takes over what has arrived. Parks while there is nothing at all to look after.
fn collect(watched: &mut Vec<Box<dyn Pollable>>) -> bool {
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

/// Drops what is over. Nothing in there should panic; if a backend does, what panics is asked again, and others are looked after all
/// the same.
fn settle(watched: &mut Vec<Box<dyn Pollable>>) {
    let mut asked = Asked::default();
    watched.retain_mut(|pollable| foreign::caught(|| !pollable.is_finished(&mut asked)).unwrap_or(true));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Panics;

    /// Over at once; says when it is dropped.
    struct Over(Arc<AtomicBool>);

    impl Pollable for Panics {
        fn is_finished(&mut self, _: &mut Asked) -> bool {
            panic!("as this test wants it to");
        }
    }

    impl Pollable for Over {
        fn is_finished(&mut self, _: &mut Asked) -> bool {
            true
        }
    }

    impl Drop for Over {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// catches: 167-a-panic-ends-the-round
    #[test]
    fn what_panics_holds_up_nobody_behind_it() {
        let dropped = Arc::new(AtomicBool::new(false));
        let mut watched: Vec<Box<dyn Pollable>> = vec![Box::new(Panics), Box::new(Over(dropped.clone()))];
        let settled = std::panic::catch_unwind(AssertUnwindSafe(|| settle(&mut watched)));
        assert!(settled.is_ok() && dropped.load(Ordering::Relaxed), "nobody has asked what is behind it");
        assert_eq!(watched.len(), 1, "what panics is asked again");
    }
}
