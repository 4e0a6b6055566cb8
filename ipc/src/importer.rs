//! The end of a process that trees are handed to.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, getpid};
use transship_core::Device;

use crate::error::{IpcError, Named, broken};
use crate::imported::{Imported, LastManifest};
use crate::listener::connect_to;
use crate::loan::Loan;
use crate::mapped_piece::MappedPieces;
use crate::pools::{Imported as Pools, uuid as uuid_of};
use crate::socket::hear_all_now;
use crate::wire::Message;

/// A process that trees are handed to. As an iterator it waits for each as long as it takes; [`next_within`](Self::next_within) does not.
///
/// Dropped, it takes no more. What it has given stays valid. A process that is forked from this one has none of it, and may drop it, which changes nothing.
pub struct Importer {
    socket: Arc<OwnedFd>,
    device: Device,
    pools: Pools,
    pieces: Arc<MappedPieces>,
    last: LastManifest,
    has_ended: bool,
    process: Pid,
}

impl Importer {
    /// Connects to the exporter at `path`. What comes in memory of the host is page-locked for copies to `device` (and all others of its driver), where that needs it; what comes
    /// in memory of a device must be of `device`, whatever its number is in the other process.
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if nobody listens there; [`IpcError::OtherUser`].
    pub fn connect(path: impl AsRef<Path>, device: &Device) -> Result<Self, IpcError> {
        let socket = Arc::new(connect_to(path.as_ref())?);
        let (device, pools) = (device.clone(), Pools::default());
        let (pieces, last) = (MappedPieces::new(), LastManifest::default());
        Ok(Self { socket, device, pools, pieces, last, has_ended: false, process: getpid() })
    }

    /// The next tree, `None` once the exporter has said that there will be no more, and after the connection has ended. Waits for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotInTime`]. [`IpcError::PeerGone`] and [`IpcError::Protocol`], once: the connection has ended. [`IpcError::OtherDevice`], and [`IpcError::System`] and
    /// [`IpcError::Tensors`] where it cannot be mapped or page-locked here, in the place of a tree: it is given back, and those behind it come.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Imported>, IpcError> {
        self.next_before(Instant::now().checked_add(limit), limit)
    }

    fn next_before(&mut self, until: Option<Instant>, limit: Duration) -> Result<Option<Imported>, IpcError> {
        if self.has_ended {
            return Ok(None);
        }
        let next = self.hear(until, limit);
        if matches!(next, Ok(None) | Err(IpcError::PeerGone | IpcError::Protocol { .. })) {
            self.end();
        }
        next
    }

    /// Takes no more trees. What has come and was not looked at is given back; tensors still say over the other direction that they have gone.
    fn end(&mut self) {
        self.has_ended = true;
        self.pieces.close();
        let _ = shutdown(&*self.socket, Shutdown::Read);
        while let Ok(Some((message, _))) = hear_all_now(&self.socket) {
            if let Message::Offer { ticket, .. } | Message::OfferInPool { ticket, .. } = message {
                drop(Loan::new(&self.socket, ticket));
            }
        }
    }

    fn hear(&mut self, until: Option<Instant>, limit: Duration) -> Result<Option<Imported>, IpcError> {
        loop {
            match self.hear_message(until, limit)? {
                (Message::Offer { ticket, chunk_bytes, manifest_bytes }, Some(memory)) => {
                    let (loan, sizes) = (Loan::new(&self.socket, ticket), [chunk_bytes, manifest_bytes]);
                    let kept = (&self.pieces, &mut self.last);
                    return Imported::new(loan, &memory, sizes, &self.device, kept).map(Some);
                }
                (Message::OfferInPool { ticket, pool, chunk_bytes, manifest_bytes }, Some(memory)) => {
                    let (loan, sizes) = (Loan::new(&self.socket, ticket), [chunk_bytes, manifest_bytes]);
                    let pool = self.pools.get(pool, &self.device)?;
                    let kept = (&self.pieces, &mut self.last);
                    return Imported::on_device(loan, &memory, sizes, (&*pool, &self.device), kept).map(Some);
                }
                (Message::Pool { pool, uuid }, Some(descriptor)) => {
                    self.pools.add(pool, uuid_of(uuid), descriptor)?;
                }
                (Message::Over, None) => return Ok(None),
                _ => return Err(broken("an exporter says what is no offer")),
            }
        }
    }

    fn hear_message(
        &self,
        until: Option<Instant>,
        limit: Duration,
    ) -> Result<(Message, Option<OwnedFd>), IpcError> {
        loop {
            if let Some(heard) = hear_all_now(&self.socket)? {
                return Ok(heard);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(IpcError::NotInTime { what: "no tree was handed over", limit });
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&*self.socket, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).named("waiting for an exporter"),
            }
        }
    }
}

impl Iterator for Importer {
    type Item = Result<Imported, IpcError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_before(None, Duration::MAX).transpose()
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        if self.process != getpid() {
            return;
        }
        self.end();
    }
}

impl std::fmt::Debug for Importer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importer").field("device", &self.device.id()).finish()
    }
}
