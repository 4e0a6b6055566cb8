//! The workers that carry a group of copies out.

use std::sync::Arc;

use smallvec::SmallVec;

use super::group::{Group, caught};
use crate::copy::completion::Completion;
use crate::copy::job::Job;
use crate::copy::run;
use crate::copy::transfer::Supply;
use crate::copy::unit::{Unit, units};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::{Error, Result, workers};

/// As [`run::in_background`].
pub(super) fn in_background(group: Group) -> Result<()> {
    for job in &group.jobs {
        job.completion.figures.note_background();
        job.target.note_background(&job.completion);
    }
    let completions: Vec<_> = group.jobs.iter().map(|job| job.completion.clone()).collect();
    workers::run(Job::common_team(&group.jobs), move || {
        let started = caught(|| {
            start_crew(group, completions.clone());
            Ok(())
        });
        if let Err(error) = started {
            completions.iter().for_each(|completion| completion.fail(error.clone()));
        }
    })
}

/// The units of the copies, shared by the workers that carry them out.
struct Crew {
    units: SmallVec<[Unit; 1]>,
    next: AtomicUsize,
    left: AtomicUsize,
    completions: Vec<Arc<Completion>>,
    /// Let go of before a copy counts as submitted: its jobs own the sources.
    work: Mutex<Option<Arc<Work>>>,
}

struct Work {
    group: Group,
    lead: Arc<Job>,
}

fn start_crew(group: Group, completions: Vec<Arc<Completion>>) {
    let team = Job::common_team(&group.jobs);
    group.each(|job| run::order_behind_predecessors(job, true).map(drop));
    let lead = group.allocate().cloned();
    let units = lead.as_deref().map(units).unwrap_or_default();
    let work = lead.map(|lead| Arc::new(Work { group, lead }));
    let helpers = match &work {
        Some(work) if work.lead.pace.is_none() => units.len().min(workers::most_threads()).saturating_sub(1),
        _ => 0,
    };
    let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(units.len()));
    let crew = Arc::new(Crew { units, next, left, completions, work: Mutex::new(work) });
    if crew.units.is_empty() {
        return crew.conclude();
    }
    let helper = || {
        let crew = crew.clone();
        move || crew.carry_units()
    };
    // Without another thread this one does all of it.
    let _ = workers::run_all(team, (0..helpers).map(|_| helper()));
    crew.carry_units();
}

impl Crew {
    fn carry_units(&self) {
        while let Some(unit) = self.units.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let work = self.work.lock().clone();
            if let Some(work) = &work {
                work.group.carry(&work.lead, unit, Supply::Now);
            }
            drop(work);
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.conclude();
            }
        }
    }

    fn conclude(&self) {
        let work = self.work.lock().take();
        drop(work);
        for completion in &self.completions {
            match completion.is_abandoned() {
                true => completion.fail(Error::Cancelled),
                false => completion.submitted(),
            }
        }
    }
}
