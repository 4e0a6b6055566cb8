//! What an importer has a tree by.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::{Pid, getpid};

use crate::socket::tell;
use crate::wire::Message;

/// Dropped, it says that the tree is not used any more. A process that was forked from the one that has it says nothing.
pub(crate) struct Loan {
    socket: Arc<OwnedFd>,
    ticket: u64,
    process: Pid,
}

impl Loan {
    pub(crate) fn new(socket: &Arc<OwnedFd>, ticket: u64) -> Self {
        Self { socket: Arc::clone(socket), ticket, process: getpid() }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.process != getpid() {
            return;
        }
        // An exporter that has gone need not know.
        let _ = tell(&self.socket, Message::Released { ticket: self.ticket });
    }
}
