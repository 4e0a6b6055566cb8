//! Begins copies that workers carry out. The first thread does it: a worker, or the thread that waits for a single copy.
//!
//! A sleeping worker takes 50 us and more to wake up. A thread that would only wait fills blocks meanwhile.

use std::mem;
use std::sync::{Arc, Weak};

use crate::device::room::RoomAwaited;
use crate::error::{Error, Result};
use crate::runtime::asleep::Sleep;
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::trace::span;
use crate::runtime::workers::Team;
use crate::runtime::{reactor, workers};
use crate::transfer::carry_in_parallel::ParallelCopy;
use crate::transfer::cut_segments::{segments, segments_of_many};
use crate::transfer::job_group::{Completions, JobGroup, caught, conclude};

/// Copies that are to be carried out by several threads.
pub(crate) struct BackgroundCopy {
    state: Mutex<State>,
    /// Told when they have begun.
    begun: Condvar,
    team: Team,
    completions: Completions,
}

enum State {
    /// Nobody has begun.
    Called(JobGroup),
    /// A single copy, which nobody begins before there is room for what it fills, or none is to come.
    Waiting(JobGroup, Arc<RoomAwaited>),
    /// A thread begins, and may wait for devices.
    Beginning,
    Begun(Weak<ParallelCopy>),
}

impl BackgroundCopy {
    /// Calls one worker. The thread that begins the copies calls the others.
    pub(crate) fn call(group: JobGroup) -> Result<Arc<Self>> {
        let background = Self::new(group.team(), group.completions(), State::Called(group));
        background.call_worker().inspect_err(|_| drop(background.take_back()))?;
        Ok(background)
    }

    /// Calls a worker when it is over with `room`, which the only copy of `group` waits for: no thread waits meanwhile.
    pub(crate) fn wait(group: JobGroup, room: Arc<RoomAwaited>) -> Result<Arc<Self>> {
        let background = Self::new(group.team(), group.completions(), State::Waiting(group, room));
        background.completions.iter().for_each(|copy| copy.let_sleep());
        reactor::watch(Waiting::of(background.clone())).inspect_err(|_| drop(background.take_back()))?;
        Ok(background)
    }

    fn new(team: Team, completions: Completions, state: State) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), begun: Condvar::new(), team, completions })
    }

    fn call_worker(self: &Arc<Self>) -> Result<()> {
        let called = self.clone();
        workers::run(self.team, move || {
            if let Some(copy) = called.answer() {
                copy.help();
            }
        })
    }

    /// Begins the copies, unless another thread has. Returns them with their destinations allocated; `None` if they are over. May
    /// wait for devices.
    pub(crate) fn join(&self) -> Option<Arc<ParallelCopy>> {
        if let Some(room) = self.room_awaited() {
            room.wait(|| self.is_wanted() && self.room_awaited().is_some());
        }
        let mut state = self.state.lock();
        while let State::Beginning = &*state {
            self.begun.wait(&mut state);
        }
        self.enter(state)
    }

    /// As [`join`](Self::join), for a worker. It leaves while another thread begins the copies: that one calls other workers.
    fn answer(&self) -> Option<Arc<ParallelCopy>> {
        let state = self.state.lock();
        match &*state {
            State::Beginning => None,
            _ => self.enter(state),
        }
    }

    /// Ends copies that nobody has begun: nobody wants them. Lets go of their memory, and of their place in line.
    pub(crate) fn call_off(&self) {
        if let Some(group) = self.take_back() {
            drop(group);
            conclude(&self.completions, Some(Error::Cancelled));
        }
    }

    /// The copies, if nobody has begun; nobody will.
    fn take_back(&self) -> Option<JobGroup> {
        let mut state = self.state.lock();
        if !matches!(&*state, State::Called(_) | State::Waiting(..)) {
            return None;
        }
        let taken = mem::replace(&mut *state, State::Begun(Weak::new()));
        drop(state);
        match taken {
            State::Called(group) => Some(group),
            State::Waiting(group, room) => {
                drop(room.end());
                Some(group)
            }
            State::Beginning | State::Begun(_) => None,
        }
    }

    /// What nobody has begun for.
    fn room_awaited(&self) -> Option<Arc<RoomAwaited>> {
        match &*self.state.lock() {
            State::Waiting(_, room) => Some(room.clone()),
            _ => None,
        }
    }

    /// Whether one of the copies still runs, and is not late.
    fn is_wanted(&self) -> bool {
        self.completions.iter().any(|copy| matches!(copy.is_done(), Ok(false)) && !copy.is_abandoned())
    }

    fn enter(&self, mut state: MutexGuard<'_, State>) -> Option<Arc<ParallelCopy>> {
        if let State::Begun(copy) = &*state {
            return copy.upgrade();
        }
        let taken = mem::replace(&mut *state, State::Beginning);
        drop(state);
        let copy = caught(|| match taken {
            State::Called(group) => begin(group),
            State::Waiting(mut group, room) => {
                group.give_room(room.end()?);
                begin(group)
            }
            State::Beginning | State::Begun(_) => Ok(None),
        });
        let known = copy.as_ref().ok().and_then(Option::as_ref).map_or_else(Weak::new, Arc::downgrade);
        *self.state.lock() = State::Begun(known);
        self.begun.notify_all();
        match copy {
            Ok(Some(copy)) => return Some(copy),
            Ok(None) => conclude(&self.completions, None),
            Err(error) => conclude(&self.completions, Some(error)),
        }
        None
    }
}

/// A copy that waits for room, as the reactor looks after it.
struct Waiting {
    copy: Arc<BackgroundCopy>,
    /// A worker is to go on with it.
    goes_on: bool,
}

impl Waiting {
    fn of(copy: Arc<BackgroundCopy>) -> Self {
        Self { copy, goes_on: false }
    }
}

impl Pollable for Waiting {
    fn is_finished(&mut self, _: &mut Asked) -> bool {
        let Some(room) = self.copy.room_awaited() else { return true };
        self.goes_on = !self.copy.is_wanted() || room.is_over();
        // If no worker can be called, this tries again, and so does who waits.
        self.goes_on && self.copy.call_worker().is_ok()
    }

    /// Those behind others look at nothing: there may be thousands.
    fn sleep(&self) -> Option<Sleep> {
        let is_behind = !self.goes_on && self.copy.room_awaited()?.is_behind();
        self.copy.completions.first().filter(|_| is_behind).map(|copy| copy.as_sleep())
    }
}

/// Begins the copies; `None` if there is nothing to copy.
fn begin(mut group: JobGroup) -> Result<Option<Arc<ParallelCopy>>> {
    let _span = span!(in group.parent, "prepare");
    group.prepare()?;
    group.lease();
    let Some(lead) = group.lead() else {
        return if group.is_wanted() { Err(Error::NotReady) } else { Ok(None) };
    };
    let many = lead.pace.is_none() && group.leased().is_some_and(|lease| lease.pool().is_shared_by_many());
    let segments = if many { segments_of_many(lead) } else { segments(lead) };
    if segments.is_empty() {
        return Ok(None);
    }
    let copy = ParallelCopy::new(group, segments);
    // This thread carries segments as well.
    copy.call_workers(1);
    Ok(Some(copy))
}
