//! Where importers connect.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use transship_core::ForkCount;

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{IpcError, check_here};
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
        let deadline = Deadline::within(limit);
        loop {
            if let Some(socket) = self.listener.accept()? {
                return Connection::new(socket);
            }
            deadline.wait_for(&self.listener, "no importer has connected")?;
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
