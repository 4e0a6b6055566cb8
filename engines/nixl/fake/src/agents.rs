//! Agents, what they have registered, what they tell each other, and what they write.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::cuda;
use crate::lists::{GPU, Segment};

static AGENTS: LazyLock<Mutex<HashMap<CString, Agent>>> = LazyLock::new(Mutex::default);

/// What an agent is to others.
#[derive(Default)]
pub(crate) struct Agent {
    pub(crate) registered: Vec<Segment>,
    /// From whom, and what.
    pub(crate) heard: Vec<(CString, Vec<u8>)>,
}

/// A transfer of a piece, which is posted again and again.
pub(crate) struct Request {
    pub(crate) from: Segment,
    pub(crate) to: Segment,
    /// How many bytes are not there yet, while it is under way.
    pub(crate) left: Option<usize>,
}

pub(crate) fn agents() -> MutexGuard<'static, HashMap<CString, Agent>> {
    AGENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Request {
    /// Moves the first half.
    ///
    /// # Safety
    ///
    /// Memory of the host is mapped on both sides until it has ended.
    pub(crate) unsafe fn post(&mut self) -> bool {
        let half = self.from.bytes / 2;
        self.left = Some(self.from.bytes - half);
        // SAFETY: the caller's promise.
        unsafe { self.write(0, half) }
    }

    /// Moves the rest.
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    pub(crate) unsafe fn finish(&mut self) -> bool {
        let Some(left) = self.left.take() else { return true };
        // SAFETY: the caller's promise.
        unsafe { self.write(self.from.bytes - left, left) }
    }

    unsafe fn write(&self, offset: usize, bytes: usize) -> bool {
        let (from, to) = (self.from.part(offset, bytes), self.to.part(offset, bytes));
        // The agent that writes need not have a device of its own.
        let may_write = from.kind != GPU || cuda::is_current();
        // SAFETY: the caller's promise.
        bytes == 0 || (may_write && unsafe { from.write_to(&to) })
    }
}
