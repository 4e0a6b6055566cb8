//! A few threads for work that may block: large staging, growing of pools, freeing of pinned memory.
//!
//! Started when first needed, parked when idle, gone after a while. Small copies never come here: a hand-over to a
//! sleeping thread costs 11 to 27 us, more than the whole copy of a small batch.
//!
//! Each [`Team`] has threads of its own: a device that never answers holds up nobody else.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::error::{Error, Result};
use crate::runtime::at_exit::Service;
use crate::runtime::near_node::Affinity;
use crate::runtime::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::runtime::sync::{Condvar, Instant, Mutex, MutexGuard, OnceLock, hint, statics, thread};
use crate::runtime::topology::Node;
use crate::runtime::{at_exit, foreign, fork};

/// Right behind another copy 8 threads and 10 fill the link, at 50 of 55 GB/s, and 12 are 3 % slower. Behind 150 ms of copies by PyTorch, 1 GiB goes up at 43 GB/s
/// with 8 threads and at 45.5 with 10 or 12 (H200, 16 processors).
const MOST_THREADS: usize = 10;
/// Destructors of the program may wait for each other: as many of them as this run at a time.
const MOST_OWNERS: usize = 64;
/// A thread that has had nothing to do for so long ends, though its devices are there.
const RETIREMENT: Duration = Duration::from_secs(10);

/// How long a thread that has just done something asks for more before it sleeps: a copy that comes behind another one begins
/// 50 us earlier then.
const SPIN: Duration = Duration::from_micros(200);
/// So many threads of a team do that.
const MOST_SPINNING: usize = 3;

type Task = Box<dyn FnOnce() + Send>;

statics! {
    static QUEUES: Mutex<FxHashMap<Team, TaskQueue>> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    static STOPPED: AtomicBool = AtomicBool::new(false);
    static HANDOVERS: AtomicU64 = AtomicU64::new(0);
    static REGISTERED: OnceLock<()> = OnceLock::new();
}

/// Threads that share their work, named by the objects that the work may have to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Team {
    name: usize,
    /// Where the first two of these objects are: of work for more of them the threads end later than they could.
    objects: [usize; 2],
    /// On whose processors they run.
    node: Option<&'static Node>,
}

impl Team {
    /// What frees memory of ours.
    const DISPOSAL: Self = Self { name: 0, objects: [0; 2], node: None };
    /// What drops memory that the program has lent.
    const OWNERS: Self = Self { name: 1, objects: [0; 2], node: None };

    fn copies(self) -> bool {
        self != Self::DISPOSAL && self != Self::OWNERS
    }

    fn most_threads(self) -> usize {
        if self == Self::OWNERS { MOST_OWNERS } else { most_threads() }
    }

    /// The team for work that waits for objects at these addresses and for no others. It runs near `node`, if there is one.
    pub(crate) fn waiting_for(addresses: impl Iterator<Item = usize>, node: Option<&'static Node>) -> Self {
        const MIX: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;
        let mut objects = [0; 2];
        // 0 and 1 are the teams above. Should two names collide, with the same first two objects, the teams share threads.
        let name = addresses.enumerate().fold(2, |name, (number, address)| {
            if let Some(object) = objects.get_mut(number) {
                *object = address;
            }
            (name ^ address).rotate_left(7).wrapping_mul(MIX)
        });
        Self { name, objects, node }
    }
}

#[derive(Default)]
struct TaskQueue {
    tasks: VecDeque<Task>,
    threads: usize,
    /// Including those that spin.
    idle: usize,
    spinning: usize,
    /// One of the objects that its work may wait for has gone, and nothing has come since.
    is_retired: bool,
    /// How many tasks there are, for those that spin.
    waiting: Arc<AtomicUsize>,
    wake: Arc<Condvar>,
}

/// The process ends: nothing is begun any more.
fn stop() {
    STOPPED.store(true, Ordering::Release);
}

/// Whether no worker does anything.
fn are_at_rest() -> bool {
    QUEUES.lock().values().all(|queue| queue.idle == queue.threads)
}

/// Whether nothing is left to be done, either.
fn are_idle() -> bool {
    QUEUES.lock().values().all(|queue| queue.idle == queue.threads && queue.tasks.is_empty())
}

/// How many tasks were handed to a worker since the program started.
pub(crate) fn handovers() -> u64 {
    HANDOVERS.load(Ordering::Relaxed)
}

/// How many threads there may be in a team.
pub(crate) fn most_threads() -> usize {
    // Asking takes 80 us, in which the standard library reads files (H200 machine). Each thread may be bound to processors of
    // its own.
    thread_local!(static KNOWN: OnceCell<usize> = const { OnceCell::new() });
    let ask = || thread::available_parallelism().map_or(1, usize::from).clamp(2, MOST_THREADS);
    KNOWN.try_with(|known| *known.get_or_init(ask)).unwrap_or(2)
}

/// Runs `task` on a worker of `team`.
pub(crate) fn run(team: Team, task: impl FnOnce() + Send + 'static) -> Result<()> {
    run_all(team, std::iter::once(task))
}

/// Runs each of `tasks` on a worker of `team`; an error if the team has no thread and none can be started.
pub(crate) fn run_all<T: FnOnce() + Send + 'static>(
    team: Team,
    tasks: impl Iterator<Item = T>,
) -> Result<()> {
    let service = Service { is_idle: are_idle, stop, is_at_rest: are_at_rest };
    REGISTERED.get_or_init(|| at_exit::register(service));
    let mut queues = QUEUES.lock();
    let queue = queues.entry(team).or_default();
    queue.is_retired = false;
    let before = queue.tasks.len();
    queue.tasks.extend(tasks.map(|task| -> Task { Box::new(task) }));
    queue.tell_spinning();
    HANDOVERS.fetch_add((queue.tasks.len() - before) as u64, Ordering::Relaxed);
    if let Err(error) = add_thread(queue, team)
        && queue.threads == 0
    {
        let refused = queues.remove(&team);
        drop(queues);
        // Tasks own memory, and dropping that may call this module.
        drop(refused);
        return Err(Error::NoThread { reason: error.to_string() });
    }
    wake_some(queues, team);
    Ok(())
}

/// The object at `address` goes: threads that have worked for it end when they have nothing to do. A program that opens a device again and
/// again would have those of each for a while.
pub(crate) fn retire(address: usize) {
    if fork::is_child() {
        return;
    }
    let mut queues = QUEUES.lock();
    for (_, queue) in queues.iter_mut().filter(|(team, _)| team.objects.contains(&address)) {
        queue.is_retired = true;
        queue.wake.notify_all();
    }
}

/// Drops `garbage`, which may block, on a worker; leaks it where there is none, and is `false` then.
pub(crate) fn dispose<T: Send + 'static>(garbage: T) -> bool {
    let garbage = std::mem::ManuallyDrop::new(garbage);
    if fork::is_child() {
        return false;
    }
    run(Team::DISPOSAL, move || drop(std::mem::ManuallyDrop::into_inner(garbage))).is_ok()
}

/// The same for memory that the program has lent: by a team of its own, so that whatever its destructor waits for holds up
/// nothing of ours.
pub(crate) fn dispose_lent(drop_it: impl FnOnce() + Send + 'static) {
    let drop_it = std::mem::ManuallyDrop::new(drop_it);
    if fork::is_child() {
        return;
    }
    let _ = run(Team::OWNERS, move || std::mem::ManuallyDrop::into_inner(drop_it)());
}

fn work(team: Team) {
    if team != Team::OWNERS {
        foreign::thread_is_ours();
    }
    while let Some(task) = next_task(team) {
        // A task reports its own panic; the thread goes on.
        foreign::caught(task);
    }
}

/// Starts a thread if there are more tasks than threads to do them.
fn add_thread(queue: &mut TaskQueue, team: Team) -> io::Result<()> {
    if queue.idle < queue.tasks.len() && queue.threads < team.most_threads() {
        let affinity = Affinity::near(team.node);
        thread::Builder::new().name("transship-worker".into()).spawn(move || {
            affinity.adopt();
            work(team);
        })?;
        queue.threads += 1;
    }
    Ok(())
}

/// Wakes two threads if there is something to do for them, without the lock that they need. They wake others in turn: each wake
/// takes some microseconds, which this spares the caller.
fn wake_some(mut queues: MutexGuard<'_, FxHashMap<Team, TaskQueue>>, team: Team) {
    let Some(queue) = queues.get_mut(&team) else { return };
    let asleep = queue.idle - queue.spinning;
    let unseen = queue.tasks.len().saturating_sub(queue.spinning);
    let (wake, count) = (queue.wake.clone(), unseen.min(asleep).min(2));
    drop(queues);
    for _ in 0..count {
        wake.notify_one();
    }
}

/// Waits for a task; `None` when there has been none for so long that the thread has left its team.
fn next_task(team: Team) -> Option<Task> {
    let mut queues = QUEUES.lock();
    let mut patient = true;
    let mut has_spun = false;
    loop {
        let queue = queues.get_mut(&team)?;
        let stopped = STOPPED.load(Ordering::Acquire);
        if !stopped && let Some(task) = queue.tasks.pop_front() {
            queue.tell_spinning();
            // If no thread can be started, this one does the rest.
            let _ = add_thread(queue, team);
            wake_some(queues, team);
            return Some(task);
        }
        if !patient || queue.is_retired {
            queue.threads -= 1;
            if queue.threads == 0 {
                let ended = queues.remove(&team);
                // At the end of the process tasks may be left. They are leaked: what they hold would take this lock.
                std::mem::forget(ended.filter(|queue| !queue.tasks.is_empty()));
            }
            return None;
        }
        if !has_spun && team.copies() && queue.spinning < MOST_SPINNING && !stopped {
            has_spun = true;
            queue.idle += 1;
            queue.spinning += 1;
            let waiting = queue.waiting.clone();
            drop(queues);
            spin(&waiting);
            queues = QUEUES.lock();
            if let Some(queue) = queues.get_mut(&team) {
                queue.idle -= 1;
                queue.spinning -= 1;
            }
            continue;
        }
        patient = nap(&mut queues, team);
    }
}

impl TaskQueue {
    fn tell_spinning(&self) {
        self.waiting.store(self.tasks.len(), Ordering::Relaxed);
    }
}

/// Asks for a short time whether there is a task.
fn spin(waiting: &AtomicUsize) {
    let begin = Instant::now();
    while waiting.load(Ordering::Relaxed) == 0 && begin.elapsed() < SPIN {
        hint::spin_loop();
    }
}

/// Sleeps until there may be a task; `false` if that took too long.
fn nap(queues: &mut MutexGuard<'_, FxHashMap<Team, TaskQueue>>, team: Team) -> bool {
    let Some(queue) = queues.get_mut(&team) else { return false };
    queue.idle += 1;
    let wake = queue.wake.clone();
    let timed_out = wake.wait_for(queues, RETIREMENT).timed_out();
    if let Some(queue) = queues.get_mut(&team) {
        queue.idle -= 1;
    }
    !timed_out
}
