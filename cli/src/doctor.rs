//! `transship doctor`: what is wrong, and what to do about it.

mod copies;
mod device_files;
mod host;
mod software;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{fmt, panic, thread};

use serde::Serialize;
use transship::DeviceId;

use crate::Examination;
use crate::doctor::copies::CopyTimes;
use crate::drivers::{self, DriverState};
use crate::finding::{Check, Finding, Level};
use crate::system::System;

/// What was found.
#[derive(Serialize)]
pub(crate) struct Report {
    /// There is no problem. Warnings are none.
    pub(crate) healthy: bool,
    findings: Vec<Finding>,
    copies: Vec<CopyTimes>,
}

/// What the thread that looks says.
enum Said {
    /// It looks at this now, of this device.
    LooksAt(Check, Option<DeviceId>),
    Found(Finding),
    Copied(CopyTimes),
}

/// Looks at everything, within its time: on a thread of its own, since drivers may never answer.
pub(crate) fn examine(examination: Examination) -> Report {
    let (begin, limit) = (Instant::now(), Duration::from_secs(examination.timeout.into()));
    // Copies that do not come to their end are to be found before all is over.
    let copies_end = begin + limit * 9 / 10;
    let (says, said) = channel();
    let looks = thread::spawn(move || look(&examination, limit, copies_end, &says));
    let (report, is_through) = listen(&said, begin, limit);
    if is_through && let Err(panicked) = looks.join() {
        panic::resume_unwind(panicked);
    }
    report
}

/// Nobody hears what is said too late.
fn look(examination: &Examination, limit: Duration, copies_end: Instant, says: &Sender<Said>) {
    let system = System::new("/");
    let all_found =
        |found: Vec<Finding>| found.into_iter().for_each(|found| drop(says.send(Said::Found(found))));
    let looks_at = |check| drop(says.send(Said::LooksAt(check, None)));
    looks_at(Check::Driver);
    // Who does not answer leaves time for what comes then.
    let drivers = drivers::all_within(limit / 2);
    let there: Vec<DeviceId> = drivers.iter().flat_map(DriverState::ids).collect();
    all_found(software::check(&system, &drivers, &there, &examination.devices));
    looks_at(Check::DeviceFile);
    all_found(device_files::check(&system));
    looks_at(Check::HostMemory);
    all_found(host::check(&system, &there, limit / 10));
    looks_at(Check::Copy);
    copies::check(examination, &there, copies_end, &mut |said| drop(says.send(said)));
}

/// All that is said until the time is over, and whether that was all.
fn listen(said: &Receiver<Said>, begin: Instant, limit: Duration) -> (Report, bool) {
    let (mut findings, mut copies) = (Vec::new(), Vec::new());
    let mut now = (Check::Driver, None);
    let is_through = loop {
        match said.recv_timeout(limit.saturating_sub(begin.elapsed())) {
            Ok(Said::LooksAt(check, of)) => now = (check, of),
            Ok(Said::Found(found)) => findings.push(found),
            Ok(Said::Copied(times)) => copies.push(times),
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => {
                let (check, of) = now;
                findings.push(not_through(check, of, limit));
                break false;
            }
        }
    };
    let healthy = findings.iter().all(|finding| finding.level < Level::Problem);
    (Report { healthy, findings, copies }, is_through)
}

fn not_through(check: Check, of: Option<DeviceId>, limit: Duration) -> Finding {
    let what = format!(
        "not through after the {} s of --timeout; what comes after it was not looked at",
        limit.as_secs()
    );
    let cure = "look for a driver or a device that does not answer, and into the log of the system (dmesg); or allow more time (--timeout)";
    let finding = Finding::new(Level::Problem, check, what).cure(cure);
    of.into_iter().fold(finding, Finding::of)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))?;
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
        writeln!(f, "{problems} problem(s), {warnings} warning(s)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;

    /// The thread that looks says no more, and is still there. By hand: with a wait for its end this does not end.
    #[test]
    fn what_was_found_in_time_is_reported_when_the_time_is_over() {
        let (says, said) = channel();
        let id: DeviceId = "cuda:1".parse().unwrap();
        says.send(Said::Found(Finding::new(Level::Ok, Check::Driver, "2 devices"))).unwrap();
        says.send(Said::LooksAt(Check::Copy, Some(id))).unwrap();
        let (report, is_through) = listen(&said, Instant::now(), Duration::ZERO);
        assert!(!is_through && !report.healthy);
        let [found, late] = &report.findings[..] else { panic!("{report}") };
        assert_eq!((found.level, late.level, late.check), (Level::Ok, Level::Problem, Check::Copy));
        assert_eq!(late.subject.as_deref(), Some("cuda:1"));
        drop(says);
        let (report, is_through) = listen(&said, Instant::now(), Duration::ZERO);
        assert!(is_through && report.healthy && report.findings.is_empty());
    }
}
