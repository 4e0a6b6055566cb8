//! The end of a process that trees are handed to.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, getpid};
use transship_core::{Device, ForkCount, TensorTree};

use crate::arrived::{Arrived, Kept, LastManifest};
use crate::deadline::Deadline;
use crate::error::{IpcError, broken, check_here};
use crate::imported::Imported;
use crate::lasting::Lasting;
use crate::listener::connect_to;
use crate::loan::Loan;
use crate::mapped_piece::MappedPieces;
use crate::pools::{Imported as Pools, uuid as uuid_of};
use crate::socket::{Sent, hear_all_now, no_room_for_descriptors};
use crate::turn::{PeerWindow, Turn};
use crate::turns::Turns;
use crate::wire::{MOST_SLOTS, Message};

/// A process that trees are handed to. As an iterator it waits for each as long as it takes; [`next_within`](Self::next_within) does not.
///
/// Dropped, it takes no more. What it has given stays valid. A process that is forked from this one has none of it: it may drop it, which changes nothing, and is refused all
/// else ([`IpcError::Forked`]).
pub struct Importer {
    socket: Arc<OwnedFd>,
    device: Device,
    pools: Pools,
    pieces: Arc<MappedPieces>,
    last: LastManifest,
    lasting: Lasting,
    turns: Arc<Turns>,
    /// They have come while a turn was waited for.
    trees: VecDeque<Imported>,
    has_ended: bool,
    process: Pid,
    forks: ForkCount,
}

/// What an importer can have of its exporter.
#[derive(Debug)]
#[non_exhaustive]
pub enum Arrival {
    /// A tree that was handed over.
    Tree(Imported),
    /// A window to write.
    Turn(Turn),
}

/// An exporter that keeps to the rules has said less at any moment that was not heard and is no tree: a window and its end for each that there may be, pools, and the ends of what lasts.
const MOST_UNHEARD: usize = 3 * MOST_SLOTS;

/// What an exporter has said.
enum Heard {
    Tree(Imported),
    /// What may come to a turn, or to nothing.
    Other,
    Over,
}

impl Importer {
    /// Connects to the exporter at `path`. What comes in memory of the host is page-locked for copies to `device` (and all others of its driver), where that needs it; what comes
    /// in memory of a device must be of `device`, whatever its number is in the other process.
    ///
    /// It does not wait for the exporter to accept, unless more than 128 connections there are not accepted yet: then it waits for one of them, without limit.
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if nobody listens there; [`IpcError::OtherUser`].
    pub fn connect(path: impl AsRef<Path>, device: &Device) -> Result<Self, IpcError> {
        let socket = Arc::new(connect_to(path.as_ref(), Deadline::NEVER)?);
        let (device, pools) = (device.clone(), Pools::default());
        let (pieces, last, process) = (MappedPieces::new(), LastManifest::default(), getpid());
        let (lasting, turns, trees) = (Lasting::default(), Arc::default(), VecDeque::new());
        let (has_ended, forks) = (false, ForkCount::now());
        Ok(Self { socket, device, pools, pieces, last, lasting, turns, trees, has_ended, process, forks })
    }

    /// The next tree, `None` once the exporter has said that there will be no more, and after the connection has ended. Waits for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotInTime`]. [`IpcError::Forked`]. [`IpcError::PeerGone`] and [`IpcError::Protocol`], once: the connection has ended. [`IpcError::OtherDevice`], and [`IpcError::System`] and
    /// [`IpcError::Tensors`] where it cannot be mapped or page-locked here, in the place of a tree: it is given back, and those behind it come.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Imported>, IpcError> {
        self.next_before(Deadline::within(limit))
    }

    /// The same, put into the places of the tensors of `tree`, as [`Imported::put_into`] does. `false` where that gives `None`. Where trees of this look have come before, all but the last step of that is done
    /// before the next one is waited for, while the exporter fills its memory; `tree` stays as it is until then.
    ///
    /// So a `tree` that still holds the one before keeps that, and its memory, until the next one is there. An exporter that waits for each tree to be
    /// [released](crate::Offer::wait_released) before it hands over the next would wait for this, and this for it, until one of their limits has passed: either the exporter hands over the next one first, or
    /// `tree` holds others, as a structure that is made anew for each call does.
    ///
    /// # Errors
    ///
    /// As [`next_within`](Self::next_within) and [`Imported::put_into`]. A tree that does not fit is there for the next call; one that changes between the two steps
    /// ([`TreeChanged`](transship_core::Error::TreeChanged)) has gone.
    pub fn put_next_within<S: TensorTree + ?Sized>(
        &mut self,
        tree: &mut S,
        limit: Duration,
    ) -> Result<bool, IpcError> {
        check_here(self.forks)?;
        let deadline = Deadline::within(limit);
        let next = match self.next_now(deadline)? {
            Some(next) => next,
            None => {
                let ready = self.lasting.ready();
                // One that does not fit may be for another tree than comes.
                let prepared = ready.as_ref().and_then(|ready| Some((ready, ready.prepare(tree).ok()?)));
                let next = loop {
                    deadline.wait_for(&*self.socket, "no tree was handed over")?;
                    if let Some(next) = self.next_now(deadline)? {
                        break next;
                    }
                };
                if let (Some(next), Some((ready, prepared))) = (&next, prepared)
                    && next.is_of(ready)
                {
                    prepared.put()?;
                    return Ok(true);
                }
                next
            }
        };
        let Some(next) = next else { return Ok(false) };
        let put = next.put_into(tree);
        if put.is_err() {
            self.trees.push_front(next);
        }
        put.map(|()| true).map_err(IpcError::from)
    }

    /// The next [window](crate::Connection::open_window) of the exporter that this process is to write, in the order in which they are free, `None` once the exporter has said that
    /// there will be no more, and after the connection has ended. Waits for at most `limit`. Trees that come meanwhile are there for [`next_within`](Self::next_within).
    ///
    /// # Errors
    ///
    /// As [`next_within`](Self::next_within), in the place of a window, which is given back then.
    pub fn next_turn_within(&mut self, limit: Duration) -> Result<Option<Turn>, IpcError> {
        check_here(self.forks)?;
        let deadline = Deadline::within(limit);
        loop {
            // First of all: a window in line may have been closed.
            if self.hear_all(deadline)? {
                return Ok(None);
            }
            if let Some(turn) = self.turns.take() {
                return Ok(Some(turn));
            }
            deadline.wait_for(&*self.socket, "no window is to be written")?;
        }
    }

    /// The next tree, or the next window to write, whichever there is: trees first. `None` once the exporter has said that there will be no more, and after the connection has ended.
    /// Waits for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`next_within`](Self::next_within) and [`next_turn_within`](Self::next_turn_within).
    pub fn next_arrival_within(&mut self, limit: Duration) -> Result<Option<Arrival>, IpcError> {
        check_here(self.forks)?;
        let deadline = Deadline::within(limit);
        loop {
            let is_over = self.hear_all(deadline)?;
            if let Some(tree) = self.trees.pop_front() {
                return Ok(Some(Arrival::Tree(tree)));
            }
            if is_over {
                return Ok(None);
            }
            if let Some(turn) = self.turns.take() {
                return Ok(Some(Arrival::Turn(turn)));
            }
            deadline.wait_for(&*self.socket, "no tree was handed over, and no window is to be written")?;
        }
    }

    /// Takes in all that the exporter has said. Whether that was its last word.
    fn hear_all(&mut self, deadline: Deadline) -> Result<bool, IpcError> {
        while let Some(next) = self.hear_next(deadline)? {
            match next {
                Some(tree) => self.keep(tree)?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn next_before(&mut self, deadline: Deadline) -> Result<Option<Imported>, IpcError> {
        check_here(self.forks)?;
        loop {
            if let Some(next) = self.next_now(deadline)? {
                return Ok(next);
            }
            deadline.wait_for(&*self.socket, "no tree was handed over")?;
        }
    }

    /// The next tree, or that there will be no more, if either is known.
    fn next_now(&mut self, deadline: Deadline) -> Result<Option<Option<Imported>>, IpcError> {
        match self.trees.pop_front() {
            Some(tree) => Ok(Some(Some(tree))),
            None => self.hear_next(deadline),
        }
    }

    /// The same of what the exporter says. One that goes on to say what is no tree is not listened to beyond the deadline.
    fn hear_next(&mut self, deadline: Deadline) -> Result<Option<Option<Imported>>, IpcError> {
        let mut others = 0;
        while let Some(heard) = self.hear_now()? {
            match heard {
                Heard::Tree(tree) => return Ok(Some(Some(tree))),
                Heard::Other => others += 1,
                Heard::Over => return Ok(Some(None)),
            }
            if others >= MOST_UNHEARD && deadline.has_passed() {
                break;
            }
        }
        Ok(None)
    }

    /// A tree that nobody has asked for yet.
    fn keep(&mut self, tree: Imported) -> Result<(), IpcError> {
        if self.trees.len() >= MOST_SLOTS {
            self.end();
            return Err(broken("an exporter hands over too many trees"));
        }
        self.trees.push_back(tree);
        Ok(())
    }

    /// Takes no more. What has come and was not looked at is given back; tensors still say over the other direction that they have gone.
    fn end(&mut self) {
        self.has_ended = true;
        self.lasting.close_all();
        self.turns.close_all();
        self.pieces.close();
        let _ = shutdown(&*self.socket, Shutdown::Read);
        while let Ok(Some((message, _))) = hear_all_now(&self.socket) {
            self.give_back(message);
        }
    }

    /// What cannot be taken. Gives the error of a descriptor that was lost.
    fn give_back(&self, message: Message) -> IpcError {
        match message {
            Message::Offer { ticket, .. }
            | Message::OfferInPool { ticket, .. }
            | Message::Window { ticket, .. }
            | Message::WindowInPool { ticket, .. } => drop(Loan::new(&self.socket, ticket)),
            // No tree in a pool that has gone can be taken.
            Message::Pool { .. } => return IpcError::PeerGone,
            _ => {}
        }
        no_room_for_descriptors()
    }

    /// Takes in the next message, `None` if there is none yet.
    fn hear_now(&mut self) -> Result<Option<Heard>, IpcError> {
        if self.has_ended {
            return Ok(Some(Heard::Over));
        }
        let heard = match hear_all_now(&self.socket) {
            Ok(None) => return Ok(None),
            Ok(Some((message, Sent::Descriptor(memory)))) => self.take_in(message, Some(memory)),
            Ok(Some((message, Sent::Nothing))) => self.take_in(message, None),
            Ok(Some((message, Sent::Lost))) => Err(self.give_back(message)),
            Err(error) => Err(error),
        };
        if matches!(heard, Ok(Heard::Over) | Err(IpcError::PeerGone | IpcError::Protocol { .. })) {
            self.end();
        }
        heard.map(Some)
    }

    fn take_in(&mut self, message: Message, memory: Option<OwnedFd>) -> Result<Heard, IpcError> {
        match (message, memory) {
            (Message::Offer { ticket, chunk_bytes, manifest_bytes, lasts }, Some(memory)) => {
                let arrived = self.on_host(ticket, &memory, [chunk_bytes, manifest_bytes])?;
                return self.tree(ticket, arrived, lasts);
            }
            (Message::OfferInPool { ticket, pool, chunk_bytes, manifest_bytes, lasts }, Some(memory)) => {
                let arrived = self.in_pool(ticket, pool, &memory, [chunk_bytes, manifest_bytes])?;
                return self.tree(ticket, arrived, lasts);
            }
            (Message::Again { ticket }, None) if self.lasting.has(ticket) => {
                return Ok(Heard::Tree(self.lasting.next(ticket)?));
            }
            (Message::Window { ticket, chunk_bytes, manifest_bytes }, Some(memory)) => {
                let arrived = self.on_host(ticket, &memory, [chunk_bytes, manifest_bytes])?;
                self.turns.open(PeerWindow::new(&self.socket, ticket, arrived))?;
            }
            (Message::WindowInPool { ticket, pool, chunk_bytes, manifest_bytes }, Some(memory)) => {
                let arrived = self.in_pool(ticket, pool, &memory, [chunk_bytes, manifest_bytes])?;
                self.turns.open(PeerWindow::new(&self.socket, ticket, arrived))?;
            }
            (Message::Again { ticket }, None) => self.turns.give_again(ticket)?,
            (Message::Close { ticket }, None) if self.lasting.close(ticket) => {}
            (Message::Close { ticket }, None) => self.turns.close(ticket),
            (Message::Pool { pool, uuid }, Some(descriptor)) => {
                self.pools.add(pool, uuid_of(uuid), descriptor)?;
            }
            (Message::Over, None) => return Ok(Heard::Over),
            _ => return Err(broken("an exporter says what is no offer")),
        }
        Ok(Heard::Other)
    }

    /// What has come, in memory that lasts for other trees or does not.
    fn tree(&mut self, ticket: u64, arrived: Arrived, lasts: bool) -> Result<Heard, IpcError> {
        Ok(Heard::Tree(match lasts {
            true => self.lasting.add(&self.socket, ticket, arrived)?,
            false => Imported::new(arrived)?,
        }))
    }

    fn on_host(&mut self, ticket: u64, memory: &OwnedFd, sizes: [u64; 2]) -> Result<Arrived, IpcError> {
        let loan = Loan::new(&self.socket, ticket);
        let kept = Kept { pieces: &self.pieces, last: &mut self.last };
        Arrived::on_host(loan, memory, sizes, &self.device, kept)
    }

    fn in_pool(
        &mut self,
        ticket: u64,
        pool: u64,
        memory: &OwnedFd,
        sizes: [u64; 2],
    ) -> Result<Arrived, IpcError> {
        let loan = Loan::new(&self.socket, ticket);
        let pool = self.pools.get(pool, &self.device)?;
        let kept = Kept { pieces: &self.pieces, last: &mut self.last };
        Arrived::in_pool(loan, memory, sizes, (&*pool, &self.device), kept)
    }
}

impl Iterator for Importer {
    type Item = Result<Imported, IpcError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_before(Deadline::NEVER);
        match next {
            // Once: a loop that goes on behind errors ends.
            Err(IpcError::Forked) if std::mem::replace(&mut self.has_ended, true) => None,
            next => next.transpose(),
        }
    }
}

/// For loops that wait for several things at a time: readable where the exporter has said something that this has not heard, and once it has gone. Where a call says
/// [`IpcError::NotInTime`], all was heard; wait for the descriptor from there on, and call again. A turn that is dropped before it is finished is there at once, and so is what a call has
/// heard that asked for something else: who takes both trees and turns takes them by [`next_arrival_within`](Importer::next_arrival_within). Nothing is to be read there.
///
/// A duplicate of the descriptor keeps the connection: the exporter does not learn that this process has gone before it is closed.
impl AsFd for Importer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
