//! Beginning a copy that workers carry out: whoever comes first does it, a worker or the thread that waits for the copy.
//!
//! A sleeping worker takes 50 us and more to come. Whoever has nothing better to do than to wait fills blocks meanwhile.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use crate::copy::completion::Completion;
use crate::copy::crew::Crew;
use crate::copy::job::{HostResults, Job};
use crate::copy::run::{order_behind_destinations, order_behind_predecessors, order_behind_uses, panicked};
use crate::copy::unit::units;
use crate::sync::{Mutex, MutexGuard};
use crate::{Error, Result, workers};

/// A copy that is to be carried out by several threads.
pub(crate) struct Muster {
    /// Held while the crew is put together: who comes meanwhile joins it.
    state: Mutex<State>,
    completion: Arc<Completion>,
}

enum State {
    /// Nobody has begun. The job knows of this; whoever begins, or calls it off, ends the circle.
    Called(Arc<Job>),
    Begun(Weak<Crew>),
}

/// What somebody who comes finds.
enum Found {
    /// The destinations are there, and there may be units left to carry.
    Crew(Arc<Crew>),
    NothingToCopy,
    Over,
}

impl Muster {
    /// Calls one worker; whoever begins calls the others.
    pub(super) fn call(job: Arc<Job>) -> Result<()> {
        let team = job.team();
        let (completion, known) = (job.completion.clone(), job.clone());
        let muster = Arc::new(Self { state: Mutex::new(State::Called(job)), completion });
        let muster = known.muster.get_or_init(|| muster).clone();
        // The job is let go of before the copy counts as submitted.
        drop(known);
        let called = muster.clone();
        let result = workers::run(team, move || {
            if let Some(crew) = called.answer() {
                crew.work();
            }
        });
        if result.is_err() {
            drop(mem::replace(&mut *muster.state.lock(), State::Begun(Weak::new())));
        }
        result
    }

    /// Begins the copy, unless somebody has; who carries it out, with destinations that are allocated. May wait for devices.
    pub(super) fn join(&self) -> Option<Arc<Crew>> {
        self.enter(self.state.lock())
    }

    /// The same for a worker: it leaves where it is not needed, since somebody is just beginning who will call others.
    fn answer(&self) -> Option<Arc<Crew>> {
        self.state.try_lock().and_then(|state| self.enter(state))
    }

    fn enter(&self, state: MutexGuard<'_, State>) -> Option<Arc<Crew>> {
        let found = catch_unwind(AssertUnwindSafe(|| find(state)));
        match found.unwrap_or_else(|panic| Err(panicked(&*panic))) {
            Ok(Found::Crew(crew)) => return Some(crew),
            Ok(Found::NothingToCopy) => self.completion.submitted(),
            Ok(Found::Over) => {}
            Err(error) => self.completion.fail(error),
        }
        None
    }
}

fn find(mut state: MutexGuard<'_, State>) -> Result<Found, Error> {
    match mem::replace(&mut *state, State::Begun(Weak::new())) {
        State::Called(job) => match begin(job)? {
            Some(crew) => {
                *state = State::Begun(Arc::downgrade(&crew));
                Ok(Found::Crew(crew))
            }
            None => Ok(Found::NothingToCopy),
        },
        State::Begun(crew) => {
            let found = crew.upgrade().map_or(Found::Over, Found::Crew);
            *state = State::Begun(crew);
            Ok(found)
        }
    }
}

/// Puts the crew together; `None` if there is nothing to copy.
fn begin(job: Arc<Job>) -> Result<Option<Arc<Crew>>> {
    order_behind_predecessors(&job, true)?;
    order_behind_destinations(&job, true)?;
    if let Some(destinations) = job.allocate(HostResults::Grow)? {
        order_behind_uses(&job, &destinations.uses, true)?;
    }
    let units = units(&job);
    if units.is_empty() {
        return Ok(None);
    }
    let team = job.team();
    let helpers = if job.pace.is_some() { 0 } else { units.len().min(workers::most_threads()) - 1 };
    let crew = Arc::new(Crew::new(job, units));
    let helper = || {
        let crew = crew.clone();
        move || crew.work()
    };
    // Without another thread this one does all of it.
    let _ = workers::run_all(team, (0..helpers).map(|_| helper()));
    Ok(Some(crew))
}
