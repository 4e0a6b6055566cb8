//! A few threads for work that may block: large staging, growing of pools, freeing of pinned memory.
//!
//! Started when first needed, parked when idle. Small copies never come here: a hand-over to a sleeping thread costs
//! 11 to 27 us, more than the whole copy of a small batch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::{Error, Result};

/// More threads do not fill pinned blocks faster: 8 reach 51 of 55 GB/s on an H200 machine.
const MOST_THREADS: usize = 8;

type Task = Box<dyn FnOnce() + Send>;

static WORKERS: Workers = Workers { state: Mutex::new(State::new()), wake: Condvar::new() };
static HANDOVERS: AtomicU64 = AtomicU64::new(0);

struct Workers {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
}

impl State {
    const fn new() -> Self {
        Self { tasks: VecDeque::new(), threads: 0, idle: 0 }
    }
}

/// How many tasks were handed to a worker since the program started.
pub(crate) fn handovers() -> u64 {
    HANDOVERS.load(Ordering::Relaxed)
}

/// How many threads there may be.
pub(crate) fn most_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).clamp(2, MOST_THREADS)
}

/// Runs `task` on a worker.
pub(crate) fn run(task: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut state = WORKERS.state.lock();
    if state.idle <= state.tasks.len() && state.threads < most_threads() {
        match thread::Builder::new().name("transship-worker".into()).spawn(work) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => return Err(Error::NoThread { reason: error.to_string() }),
            Err(_) => {}
        }
    }
    HANDOVERS.fetch_add(1, Ordering::Relaxed);
    state.tasks.push_back(Box::new(task));
    drop(state);
    WORKERS.wake.notify_one();
    Ok(())
}

/// Drops `garbage`, which may block, on a worker; leaks it where there is none.
pub(crate) fn dispose<T: Send + 'static>(garbage: T) {
    let garbage = std::mem::ManuallyDrop::new(garbage);
    let _ = run(move || drop(std::mem::ManuallyDrop::into_inner(garbage)));
}

fn work() {
    loop {
        let task = next_task();
        // A task reports its own panic; the thread goes on.
        let _ = catch_unwind(AssertUnwindSafe(task));
    }
}

fn next_task() -> Task {
    let mut state = WORKERS.state.lock();
    loop {
        if let Some(task) = state.tasks.pop_front() {
            return task;
        }
        state.idle += 1;
        WORKERS.wake.wait(&mut state);
        state.idle -= 1;
    }
}
