//! `transship doctor`: what is wrong, and what to do about it.

mod copies;
mod device_files;
mod host;
mod software;

use std::fmt;

use serde::Serialize;

use crate::Examination;
use crate::doctor::copies::CopyTimes;
use crate::finding::{Finding, Level};
use crate::system::System;

/// What was found.
#[derive(Serialize)]
pub(crate) struct Report {
    /// There is no problem. Warnings are none.
    pub(crate) healthy: bool,
    findings: Vec<Finding>,
    copies: Vec<CopyTimes>,
}

/// Looks at everything.
pub(crate) fn examine(examination: &Examination) -> Report {
    let system = System::new("/");
    let mut findings = software::check(&system, &examination.devices);
    findings.extend(device_files::check(&system));
    findings.extend(host::check(&system));
    let copies = copies::check(examination, &mut findings);
    let healthy = findings.iter().all(|finding| finding.level < Level::Problem);
    Report { healthy, findings, copies }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))?;
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
        writeln!(f, "{problems} problem(s), {warnings} warning(s)")
    }
}
