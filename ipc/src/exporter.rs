//! Where importers connect.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use transship_core::ForkCount;

use crate::connection::Connection;
use crate::error::{IpcError, Named, check_here};
use crate::listener::Listener;

/// Where the processes connect to which this one hands trees over.
pub struct Exporter {
    listener: Listener,
    forks: ForkCount,
}

impl Exporter {
    /// [Importers](crate::Importer::connect) connect at `path` from now on. The socket there is for this user alone, and goes with this, but not with one that
    /// a forked child drops.
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if there can be no socket at `path`, such as one that is there already. Remove that one if its process was killed.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, IpcError> {
        Ok(Self { listener: Listener::new(path.as_ref())?, forks: ForkCount::now() })
    }

    /// The next process that connects, waiting for it for at most `limit`. There may be many; each gets trees of its own.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotInTime`]; [`IpcError::Forked`]: who connects is the parent's; [`IpcError::System`].
    pub fn accept_within(&self, limit: Duration) -> Result<Connection, IpcError> {
        check_here(self.forks)?;
        let until = Instant::now().checked_add(limit);
        loop {
            if let Some(socket) = self.listener.accept()? {
                return Connection::new(socket);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(IpcError::NotInTime { what: "no importer has connected", limit });
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).named("waiting for importers"),
            }
        }
    }
}

/// For loops that wait for several things at a time: readable while [`accept_within`](Exporter::accept_within) has somebody to look at. Who is of another user is sent away:
/// a call may still say [`IpcError::NotInTime`].
impl AsFd for Exporter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}
