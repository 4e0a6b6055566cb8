//! Begins copies that workers carry out. The first thread does it: a worker, or the thread that waits for a single copy.
//!
//! A sleeping worker takes 50 us and more to wake up. A thread that would only wait fills blocks meanwhile.

use std::mem;
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::trace::span;
use crate::runtime::workers;
use crate::transfer::carry_in_parallel::{ParallelCopy, most_fillers};
use crate::transfer::cut_segments::{segments, segments_of_many};
use crate::transfer::job_group::{Completions, JobGroup, caught, conclude};

/// Copies that are to be carried out by several threads.
pub(crate) struct BackgroundCopy {
    state: Mutex<State>,
    /// Told when they have begun.
    begun: Condvar,
    completions: Completions,
}

enum State {
    /// Nobody has begun.
    Called(JobGroup),
    /// A thread begins, and may wait for devices.
    Beginning,
    Begun(Weak<ParallelCopy>),
}

impl BackgroundCopy {
    /// Calls one worker. The thread that begins the copies calls the others.
    pub(crate) fn call(group: JobGroup) -> Result<Arc<Self>> {
        let (team, completions) = (group.team(), group.completions());
        let state = Mutex::new(State::Called(group));
        let background = Arc::new(Self { state, begun: Condvar::new(), completions });
        let called = background.clone();
        let result = workers::run(team, move || {
            if let Some(copy) = called.answer() {
                copy.help();
            }
        });
        if result.is_err() {
            let called_off = mem::replace(&mut *background.state.lock(), State::Begun(Weak::new()));
            drop(called_off);
        }
        result.map(|()| background)
    }

    /// Begins the copies, unless another thread has. Returns them with their destinations allocated; `None` if they are over. May
    /// wait for devices.
    pub(crate) fn join(&self) -> Option<Arc<ParallelCopy>> {
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

    fn enter(&self, mut state: MutexGuard<'_, State>) -> Option<Arc<ParallelCopy>> {
        if let State::Begun(copy) = &*state {
            return copy.upgrade();
        }
        let State::Called(group) = mem::replace(&mut *state, State::Beginning) else { return None };
        drop(state);
        let copy = caught(|| begin(group));
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
    let helpers = if lead.pace.is_some() { 0 } else { segments.len().min(most_fillers_of(&group)) - 1 };
    let team = group.team();
    let copy = Arc::new(ParallelCopy::new(group, segments));
    let helper = || {
        let copy = copy.clone();
        move || copy.help()
    };
    // If no worker can be called, this thread carries all segments.
    let _ = workers::run_all(team, (0..helpers).map(|_| helper()));
    Ok(Some(copy))
}

/// How many threads carry `group` at most.
fn most_fillers_of(group: &JobGroup) -> usize {
    group.leased().map_or_else(workers::most_threads, |lease| most_fillers(lease.pool()))
}
