//! Beginning copies that workers carry out: whoever comes first does it, a worker or the thread that waits for a single one.
//!
//! A sleeping worker takes 50 us and more to come. Whoever has nothing better to do than to wait fills blocks meanwhile.

use std::mem;
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::workers;
use crate::transfer::crew::{Crew, most_fillers};
use crate::transfer::group::{Completions, Group, caught, conclude};
use crate::transfer::segment::{units, units_of_many};

/// Copies that are to be carried out by several threads.
pub(crate) struct Muster {
    state: Mutex<State>,
    /// Told when the crew is there.
    begun: Condvar,
    completions: Completions,
}

enum State {
    /// Nobody has begun. A single job knows of this; whoever begins, or calls it off, ends the circle.
    Called(Group),
    /// Somebody puts the crew together, and may wait for devices.
    Beginning,
    Begun(Weak<Crew>),
}

impl Muster {
    /// Calls one worker; whoever begins calls the others.
    pub(crate) fn call(group: Group) -> Result<()> {
        let (team, completions, known) = (group.team(), group.completions(), group.clone());
        let state = Mutex::new(State::Called(group));
        let muster = Arc::new(Self { state, begun: Condvar::new(), completions });
        // Who waits for one of several copies is not to wait for the devices of the others, nor carry on for those alone.
        if let [only] = known.jobs() {
            only.muster.get_or_init(|| muster.clone());
        }
        // The jobs are let go of before their copies count as submitted.
        drop(known);
        let called = muster.clone();
        let result = workers::run(team, move || {
            if let Some(crew) = called.answer() {
                crew.help();
            }
        });
        if result.is_err() {
            let called_off = mem::replace(&mut *muster.state.lock(), State::Begun(Weak::new()));
            drop(called_off);
        }
        result
    }

    /// Begins the copies, unless somebody has; who carries them out, with destinations that are allocated. May wait for devices.
    pub(crate) fn join(&self) -> Option<Arc<Crew>> {
        let mut state = self.state.lock();
        while let State::Beginning = &*state {
            self.begun.wait(&mut state);
        }
        self.enter(state)
    }

    /// The same for a worker: it leaves where it is not needed, since somebody is just beginning who will call others.
    fn answer(&self) -> Option<Arc<Crew>> {
        let state = self.state.lock();
        match &*state {
            State::Beginning => None,
            _ => self.enter(state),
        }
    }

    fn enter(&self, mut state: MutexGuard<'_, State>) -> Option<Arc<Crew>> {
        if let State::Begun(crew) = &*state {
            return crew.upgrade();
        }
        let State::Called(group) = mem::replace(&mut *state, State::Beginning) else { return None };
        drop(state);
        let crew = caught(|| begin(group));
        let known = crew.as_ref().ok().and_then(Option::as_ref).map_or_else(Weak::new, Arc::downgrade);
        *self.state.lock() = State::Begun(known);
        self.begun.notify_all();
        match crew {
            Ok(Some(crew)) => return Some(crew),
            Ok(None) => conclude(&self.completions, None),
            Err(error) => conclude(&self.completions, Some(error)),
        }
        None
    }
}

/// Puts the crew together; `None` if there is nothing to copy.
fn begin(mut group: Group) -> Result<Option<Arc<Crew>>> {
    group.prepare()?;
    group.lease();
    let Some(lead) = group.lead() else {
        return if group.is_wanted() { Err(Error::NotReady) } else { Ok(None) };
    };
    let many = lead.pace.is_none() && group.leased().is_some_and(|lease| lease.pool().is_shared_by_many());
    let units = if many { units_of_many(lead) } else { units(lead) };
    if units.is_empty() {
        return Ok(None);
    }
    let helpers = if lead.pace.is_some() { 0 } else { units.len().min(most_fillers_of(&group)) - 1 };
    let team = group.team();
    let crew = Arc::new(Crew::new(group, units));
    let helper = || {
        let crew = crew.clone();
        move || crew.help()
    };
    // Without another thread this one does all of it.
    let _ = workers::run_all(team, (0..helpers).map(|_| helper()));
    Ok(Some(crew))
}

/// How many threads are to carry it.
fn most_fillers_of(group: &Group) -> usize {
    group.leased().map_or_else(workers::most_threads, |lease| most_fillers(lease.pool()))
}
