//! The log of calls, and failures on demand.

use std::thread::ThreadId;

use transship_core::{DeviceId, Error, Result};

use crate::hold::Hold;

/// A function of the seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// `Driver::open`.
    Open,
    /// `Backend::create_stream`.
    CreateStream,
    /// `Backend::allocate`.
    Allocate,
    /// `Buffer::close` of an open buffer.
    Close,
    /// `Buffer::release`, or the drop of a buffer. Cannot fail.
    Release,
    /// `Backend::allocate_staging`.
    Staging,
    /// The drop of a staging block. Cannot fail.
    DropStaging,
    /// `Backend::register`.
    Register,
    /// `Registration::end`.
    Unregister,
    /// `Backend::wrap`.
    Wrap,
    /// `Backend::allocation_of`.
    AllocationOf,
    /// `Backend::submit`.
    Submit,
    /// `Backend::memory`, `Backend::reset_memory_peaks`.
    Memory,
    /// `Backend::trim`. Cannot fail.
    Trim,
    /// `Backend::synchronize`.
    Synchronize,
    /// `BackendStream::record`.
    Record,
    /// `BackendStream::wait_for`.
    WaitFor,
    /// `BackendStream::reached`.
    Query,
    /// `BackendStream::wait`.
    Wait,
    /// `BackendStream::mark`.
    Mark,
}

/// One call that was made.
#[derive(Debug, Clone, Copy)]
pub struct CallRecord {
    /// Which one.
    pub call: Call,
    /// By which thread.
    pub thread: ThreadId,
    /// Whether a real driver might block in it: a wait without a time-out, allocating or dropping a staging block, a
    /// copy from or to pageable memory, a synchronisation.
    pub blocking: bool,
}

/// The calls made so far and those that are going to fail.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) log: Vec<CallRecord>,
    faults: Vec<(Call, usize)>,
    pub(crate) hold: Hold,
    /// Every device if there is no name.
    broken: Option<Option<DeviceId>>,
}

impl Calls {
    /// Notes a call; fails it if that was asked for.
    pub(crate) fn enter(&mut self, call: Call, blocking: bool, device: DeviceId) -> Result<()> {
        self.note(call, blocking);
        self.check_alive(device)?;
        let mut due = false;
        self.faults.retain_mut(|(failing, left)| {
            if *failing != call {
                return true;
            }
            let now = *left == 0 && !due;
            due |= now;
            *left = left.saturating_sub(1);
            !now
        });
        if due { Err(failure(device, "the call was told to fail".to_owned())) } else { Ok(()) }
    }

    pub(crate) fn note(&mut self, call: Call, blocking: bool) {
        self.log.push(CallRecord { call, thread: std::thread::current().id(), blocking });
    }

    pub(crate) fn fail_no_more(&mut self) {
        self.faults.clear();
    }

    pub(crate) fn fail_next(&mut self, call: Call, after: usize) {
        self.faults.push((call, after));
    }

    pub(crate) fn break_device(&mut self, only: Option<DeviceId>) {
        self.broken = Some(only);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(crate) fn check_alive(&self, device: DeviceId) -> Result<()> {
        match self.broken {
            Some(only) if only.is_none_or(|only| only == device) => {
                Err(failure(device, "the device is broken".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// An error as from a driver.
pub(crate) fn failure(device: DeviceId, message: String) -> Error {
    Error::Driver { device, call: "late", code: 1, message }
}
