//! One thread for all devices, parked when idle: it asks how far the streams have come, settles copies that nobody
//! waits for, and wakes the tasks that wait for theirs.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::runtime::asleep::{Asleep, Sleep};
use crate::runtime::at_exit::Service;
use crate::runtime::foreign::TaskWaker;
use crate::runtime::near_node::Affinity;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::{Condvar, Instant, Mutex, OnceLock, statics, thread};
use crate::runtime::{at_exit, foreign, fork};

/// After the last event the thread keeps asking for so long before it starts to sleep.
const EAGER: Duration = Duration::from_micros(200);
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

statics! {
    static REACTOR: Reactor = Reactor {
        state: Mutex::new(State {
            arrived: Vec::new(),
            wakers: Vec::new(),
            roused: Vec::new(),
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
    /// Names of what is to be looked at again.
    roused: Vec<usize>,
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

    /// Asked behind that: how long it need not be looked at. Whoever changes that [rouses](rouse) it afterwards.
    fn sleep(&self) -> Option<Sleep> {
        None
    }
}

/// What the thread looks after.
#[derive(Default)]
struct Watched {
    /// What is asked in each round.
    awake: Vec<Box<dyn Pollable>>,
    asleep: Asleep<Box<dyn Pollable>>,
}

/// The queues that copies have asked in a round: none of them is asked twice.
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

/// Has the thread look at once at what sleeps under these names. Never blocks. Without a reactor thread nothing sleeps.
pub(crate) fn rouse(names: impl ExactSizeIterator<Item = usize>) {
    if names.len() > 0 && !fork::is_child() {
        let _ = tell(|state| state.roused.extend(names));
    }
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
        !self.arrived.is_empty() || !self.wakers.is_empty() || !self.roused.is_empty()
    }
}

fn run() {
    foreign::thread_is_ours();
    let mut watched = Watched::default();
    let mut last_event = Instant::now();
    let mut sleep = SHORTEST_SLEEP;
    loop {
        if collect(&mut watched) {
            last_event = Instant::now();
            sleep = SHORTEST_SLEEP;
        }
        let before = watched.awake.len();
        // The destructor of what is over may panic as well.
        foreign::caught(|| settle(&mut watched.awake));
        let woken = wake_all();
        let some_are_over = watched.awake.len() < before;
        foreign::caught(|| watched.fall_asleep());
        if some_are_over || woken {
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
fn collect(watched: &mut Watched) -> bool {
    let Watched { awake, asleep } = watched;
    let mut due = asleep.rouse_due(awake);
    let mut state = REACTOR.state.lock();
    while state.stopped || (awake.is_empty() && !state.has_news()) {
        state.parked = true;
        state.idle = awake.is_empty() && asleep.is_empty();
        match asleep.next_time().filter(|_| !state.stopped) {
            Some(time) => drop(REACTOR.wake.wait_until(&mut state, time)),
            None => REACTOR.wake.wait(&mut state),
        }
        due |= asleep.rouse_due(awake);
    }
    state.parked = false;
    state.idle = false;
    let news = state.has_news();
    awake.append(&mut state.arrived);
    state.roused.drain(..).for_each(|name| asleep.rouse(name, awake));
    news || due
}

impl Watched {
    /// Nothing is missed: who changes something rouses behind that. So either `sleep` sees the change, or the name still lies in `roused`, and
    /// the next `collect` finds it behind `put`.
    fn fall_asleep(&mut self) {
        let mut index = 0;
        while let Some(pollable) = self.awake.get(index) {
            match pollable.sleep() {
                Some(sleep) => self.asleep.put(sleep, self.awake.swap_remove(index)),
                None => index += 1,
            }
        }
    }
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

    /// Says how often it was asked, and sleeps.
    struct Sleeps {
        asked: Arc<AtomicUsize>,
        until: Option<Instant>,
    }

    impl Pollable for Sleeps {
        fn is_finished(&mut self, _: &mut Asked) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed);
            false
        }

        fn sleep(&self) -> Option<Sleep> {
            Some(Sleep { name: 7, until: self.until })
        }
    }

    /// By hand: of a thousand that sleep, each is asked in each of a hundred rounds.
    #[test]
    fn what_sleeps_is_asked_when_it_is_roused_or_its_time_has_come() {
        const MANY: usize = if cfg!(miri) { 10 } else { 1000 };
        let asked = Arc::new(AtomicUsize::new(0));
        let late = Instant::now() + Duration::from_secs(3600);
        let mut watched = Watched::default();
        let sleeps = |until| -> Box<dyn Pollable> { Box::new(Sleeps { asked: asked.clone(), until }) };
        watched.awake.extend((0..MANY).map(|number| sleeps((number % 2 == 0).then_some(late))));
        let rounds = |watched: &mut Watched| {
            for _ in 0..100 {
                watched.asleep.rouse_due(&mut watched.awake);
                settle(&mut watched.awake);
                watched.fall_asleep();
            }
            asked.swap(0, Ordering::Relaxed)
        };
        assert_eq!(rounds(&mut watched), MANY);
        assert_eq!(rounds(&mut watched), 0);
        watched.asleep.rouse(8, &mut watched.awake);
        assert_eq!(rounds(&mut watched), 0, "it has another name");
        watched.asleep.rouse(7, &mut watched.awake);
        assert_eq!(rounds(&mut watched), MANY);
        watched.awake.push(sleeps(Some(Instant::now())));
        assert_eq!(rounds(&mut watched), 100, "it is late each time, and the others are not");
        assert!(!watched.asleep.is_empty());
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
