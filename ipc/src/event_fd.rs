//! An eventfd: it wakes a thread that waits for sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::error::{IpcError, Named};

pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self, IpcError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).named("an event to be woken by")
    }

    /// Never blocks. It is signalled already where it cannot.
    pub(crate) fn signal(&self) {
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        let _ = read(&self.0, &mut count);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
