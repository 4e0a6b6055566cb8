//! What an examination finds.

use std::fmt;

use serde::Serialize;

/// One thing that was looked at.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What was looked at.
    pub(crate) check: Check,
    /// Of which driver, device or file, if of one.
    pub(crate) subject: Option<String>,
    /// What was found.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) cure: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// As it is; whether it should be so depends.
    Note,
    /// It works, and slower or less of it than it could.
    Warning,
    /// It does not work.
    Problem,
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Check {
    Driver,
    Device,
    DeviceFile,
    LockedMemory,
    HostMemory,
    HugePages,
    HostNode,
    Copy,
}

impl Finding {
    pub(crate) fn new(level: Level, check: Check, what: impl Into<String>) -> Self {
        Self { level, check, subject: None, what: what.into(), cure: None }
    }

    pub(crate) fn of(self, subject: impl ToString) -> Self {
        Self { subject: Some(subject.to_string()), ..self }
    }

    pub(crate) fn cure(self, cure: impl Into<String>) -> Self {
        Self { cure: Some(cure.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Problem => "PROBLEM",
        };
        let check = match self.check {
            Check::Driver => "driver",
            Check::Device => "device",
            Check::DeviceFile => "device file",
            Check::LockedMemory => "locked memory",
            Check::HostMemory => "host memory",
            Check::HugePages => "huge pages",
            Check::HostNode => "host node",
            Check::Copy => "copy",
        };
        write!(f, "{level:<9}{check}")?;
        if let Some(subject) = &self.subject {
            write!(f, " {subject}")?;
        }
        write!(f, ": {}", self.what)?;
        self.cure.as_ref().map_or(Ok(()), |cure| write!(f, "\n         -> {cure}"))
    }
}
