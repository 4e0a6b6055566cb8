//! Beginning copies that workers carry out: whoever comes first does it, a worker or the thread that waits for a single one.
//!
//! A sleeping worker takes 50 us and more to come. Whoever has nothing better to do than to wait fills blocks meanwhile.

use std::mem;
use std::sync::{Arc, Weak};

use crate::copy::crew::Crew;
use crate::copy::group::{Completions, Group, caught, conclude};
use crate::copy::unit::units;
use crate::sync::{Mutex, MutexGuard};
use crate::{Error, Result, workers};

/// Copies that are to be carried out by several threads.
pub(crate) struct Muster {
    /// Held while the crew is put together: who comes meanwhile joins it.
    state: Mutex<State>,
    completions: Completions,
}

enum State {
    /// Nobody has begun. A single job knows of this; whoever begins, or calls it off, ends the circle.
    Called(Group),
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
    pub(super) fn call(group: Group) -> Result<()> {
        let (team, completions, known) = (group.team(), group.completions(), group.clone());
        let muster = Arc::new(Self { state: Mutex::new(State::Called(group)), completions });
        // Who waits for one of several copies is not to wait for the devices of the others, nor carry on for those alone.
        if let [only] = known.jobs() {
            only.muster.get_or_init(|| muster.clone());
        }
        // The jobs are let go of before their copies count as submitted.
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

    /// Begins the copies, unless somebody has; who carries them out, with destinations that are allocated. May wait for devices.
    pub(super) fn join(&self) -> Option<Arc<Crew>> {
        self.enter(self.state.lock())
    }

    /// The same for a worker: it leaves where it is not needed, since somebody is just beginning who will call others.
    fn answer(&self) -> Option<Arc<Crew>> {
        self.state.try_lock().and_then(|state| self.enter(state))
    }

    fn enter(&self, state: MutexGuard<'_, State>) -> Option<Arc<Crew>> {
        match caught(|| find(state)) {
            Ok(Found::Crew(crew)) => return Some(crew),
            Ok(Found::NothingToCopy) => conclude(&self.completions, None),
            Ok(Found::Over) => {}
            Err(error) => conclude(&self.completions, Some(error)),
        }
        None
    }
}

fn find(mut state: MutexGuard<'_, State>) -> Result<Found> {
    match mem::replace(&mut *state, State::Begun(Weak::new())) {
        State::Called(group) => match begin(group)? {
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
fn begin(group: Group) -> Result<Option<Arc<Crew>>> {
    group.prepare()?;
    let Some(lead) = group.lead() else {
        return if group.is_wanted() { Err(Error::NotReady) } else { Ok(None) };
    };
    let units = units(lead);
    if units.is_empty() {
        return Ok(None);
    }
    let helpers = if lead.pace.is_some() { 0 } else { units.len().min(workers::most_threads()) - 1 };
    let team = group.team();
    let crew = Arc::new(Crew::new(group, units));
    let helper = || {
        let crew = crew.clone();
        move || crew.work()
    };
    // Without another thread this one does all of it.
    let _ = workers::run_all(team, (0..helpers).map(|_| helper()));
    Ok(Some(crew))
}
