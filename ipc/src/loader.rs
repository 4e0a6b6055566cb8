//! The end of a process that loads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid};
use transship_core::ForkCount;

use crate::deadline::Deadline;
use crate::error::{IpcError, broken, check_here};
use crate::job::Job;
use crate::listener::connect_to;
use crate::mapping::Mapping;
use crate::socket::{hear_now, hear_with_descriptor, tell};
use crate::wire::{MOST_SLOTS, Message};

/// A process that loads batches for a [`Feed`](crate::Feed). It opens no device.
///
/// A process that is forked from this one may drop it, and jobs that are under way, which changes nothing, and is refused all else ([`IpcError::Forked`]).
pub struct Loader {
    pub(crate) socket: OwnedFd,
    pub(crate) mapping: Mapping,
    pub(crate) slot_bytes: usize,
    /// Of a batch, in bytes.
    pub(crate) largest_manifest: usize,
    slots: usize,
    is_over: AtomicBool,
    process: Pid,
    forks: ForkCount,
}

impl Loader {
    /// Connects to the feed at `path`. Waits until that has looked at its loaders once, without limit: a process that has the path and accepts nobody is waited for, and so is an
    /// [`Exporter`](crate::Exporter) there, until that hands something over ([`IpcError::Protocol`]). [`connect_within`](Self::connect_within) does not.
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if nobody listens there; [`IpcError::PeerGone`] if the feed is over, or has enough loaders ([`FeedOptions::most_loaders`](crate::FeedOptions::most_loaders));
    /// [`IpcError::OtherUser`]; [`IpcError::Protocol`] if it sends no memory that is safe to use.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, IpcError> {
        Self::connect_before(path.as_ref(), Deadline::NEVER)
    }

    /// The same, waiting for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`IpcError::NotInTime`]: the feed then finds that this loader has gone. A feed looks at its loaders while it is asked for batches.
    pub fn connect_within(path: impl AsRef<Path>, limit: Duration) -> Result<Self, IpcError> {
        Self::connect_before(path.as_ref(), Deadline::within(limit))
    }

    fn connect_before(path: &Path, deadline: Deadline) -> Result<Self, IpcError> {
        let socket = connect_to(path, deadline)?;
        let (message, memory) = loop {
            if let Some(heard) = hear_with_descriptor(&socket)? {
                break heard;
            }
            deadline.wait_for(&socket, "the feed did not answer")?;
        };
        let Message::Ring { slots, slot_bytes, largest_manifest } = message else {
            return Err(broken("a feed does not begin with a ring"));
        };
        let slots = usize::try_from(slots).ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
        let slot_bytes = usize::try_from(slot_bytes).ok().filter(|bytes| *bytes > 0);
        let (Some(slots), Some(slot_bytes)) = (slots, slot_bytes) else {
            return Err(broken("a ring has too many slots or none"));
        };
        let largest_manifest = usize::try_from(largest_manifest).unwrap_or(usize::MAX);
        let bytes = slots.checked_mul(slot_bytes).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| broken("a ring is larger than any memory"))?;
        let mapping = Mapping::of(&memory, bytes)?;
        let (is_over, process, forks) = (AtomicBool::new(false), getpid(), ForkCount::now());
        Ok(Self { socket, mapping, slot_bytes, largest_manifest, slots, is_over, process, forks })
    }

    /// The next batch to make, `None` once the feed is over. Waits for it, without limit. A feed hands out work while it is asked for batches, and says
    /// that it is over when it has given `None`, or is dropped. [`next_job_within`](Self::next_job_within) has a limit.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`]; [`IpcError::Protocol`]; [`IpcError::Forked`].
    pub fn next_job(&mut self) -> Result<Option<Job<'_>>, IpcError> {
        self.next_before(Deadline::NEVER)
    }

    /// The same, waiting for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`next_job`](Self::next_job), and [`IpcError::NotInTime`]: the next call waits for the same one.
    pub fn next_job_within(&mut self, limit: Duration) -> Result<Option<Job<'_>>, IpcError> {
        self.next_before(Deadline::within(limit))
    }

    fn next_before(&mut self, deadline: Deadline) -> Result<Option<Job<'_>>, IpcError> {
        self.check_here()?;
        if *self.is_over.get_mut() {
            return Ok(None);
        }
        let message = loop {
            if let Some(message) = hear_now(&self.socket)? {
                break message;
            }
            deadline.wait_for(&self.socket, "no batch was asked for")?;
        };
        match message {
            Message::Work { ticket, number, slot } => {
                let slot = usize::try_from(slot).ok().filter(|slot| *slot < self.slots);
                let slot = slot.ok_or_else(|| broken("a feed names a slot that is none"))?;
                Ok(Some(Job::new(self, ticket, number, slot)))
            }
            Message::Over => {
                *self.is_over.get_mut() = true;
                Ok(None)
            }
            _ => Err(broken("a feed says what only a loader may")),
        }
    }

    /// Tells the feed. One that is over needs no more: what it has said shows why it does not listen.
    pub(crate) fn tell(&self, message: Message) -> Result<(), IpcError> {
        let Err(gone) = tell(&self.socket, message) else { return Ok(()) };
        while let Ok(Some(said)) = hear_now(&self.socket) {
            if said == Message::Over {
                self.is_over.store(true, Ordering::Relaxed);
            }
        }
        if self.is_over.load(Ordering::Relaxed) { Ok(()) } else { Err(gone) }
    }

    /// Fails in a child of the process that has connected: the slots are its parent's, and so is what the feed says.
    pub(crate) fn check_here(&self) -> Result<(), IpcError> {
        check_here(self.forks)
    }

    /// Whether this process has connected, also where no handler of the C library has seen a fork.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == getpid()
    }

    /// The size of a slot, in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }
}

/// For loops that wait for several things at a time: readable exactly as long as [`next_job_within`](Loader::next_job_within) would not wait, but once that has given `None`. Nothing is to be
/// read there.
impl AsFd for Loader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("slots", &self.slots).field("slot_bytes", &self.slot_bytes).finish()
    }
}
