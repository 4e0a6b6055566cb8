//! Which trees and windows an importer has, as its exporter knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, getpid};
use transship_core::backend::PeerMemory;
use transship_core::{DeviceId, DeviceUuid, ForkCount, RepeatedPacking};

use crate::error::{IpcError, Named, broken, check_here};
use crate::event_fd::EventFd;
use crate::kept::{Kept, LARGEST_KEPT};
use crate::packed::{OnDevice, Packed};
use crate::pools::words;
use crate::shared_piece::{FreePieces, MOST_KEPT, SharedPiece};
use crate::socket::{hear_now, is_closed, tell, tell_with};
use crate::wire::{MOST_SLOTS, Message};

/// What an importer says is heard by a thread, which ends with the connection: when the importer has gone, or when the connection was closed here and all trees are
/// back.
pub(crate) struct Ledger {
    socket: OwnedFd,
    event: EventFd,
    process: Pid,
    forks: ForkCount,
    trees: Mutex<Trees>,
    changed: Condvar,
}

/// A tree that was handed over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    /// Of its memory.
    ticket: u64,
    /// Tells it from the other trees there.
    number: u64,
}

#[derive(Default)]
struct Trees {
    /// The next ticket, or number of a tree.
    next: u64,
    /// The importer has these, or will find them on its socket.
    lent: BTreeMap<u64, Lent>,
    /// Windows that were written by an importer that has gone, or has given them back, and that nobody has asked for since.
    finished: BTreeSet<u64>,
    free: FreePieces,
    is_closed: bool,
    has_gone: bool,
}

/// The memory of a tree, or of a window.
struct Lent {
    /// Of a window alone.
    turn: Option<Turn>,
    /// Of a window that has gone: nobody asks for what is written there.
    is_unwanted: bool,
    /// The number of the tree there; `None` once that is back, and the importer has the memory mapped for the next one.
    tree: Option<u64>,
    /// Of memory that lasts from one tree to the next, unless it is being filled, or is not wanted any more.
    kept: Option<Kept>,
    lasts: bool,
    /// What lies on a device is freed behind its use there.
    _chunk: Option<Arc<dyn PeerMemory>>,
    /// What is kept for the trees to come, unless it is being filled, or was half filled.
    piece: Option<Arc<SharedPiece>>,
    /// Of a window that somebody waits for by a descriptor: it is signalled while [`take_written`](Ledger::take_written) would not wait.
    event: Option<Arc<EventFd>>,
}

impl Trees {
    /// Fails if the importer has gone, or has as much as it may have. Each is a message at the most that is not read, here or there.
    fn check_room(&self) -> Result<(), IpcError> {
        match (self.has_gone, self.used() >= MOST_SLOTS) {
            (true, _) => Err(IpcError::PeerGone),
            (false, true) => Err(IpcError::TooManyTrees { limit: MOST_SLOTS }),
            (false, false) => Ok(()),
        }
    }

    /// How many trees and windows the importer has.
    fn used(&self) -> usize {
        let is_used = |lent: &&Lent| lent.turn.is_some() || lent.tree.is_some();
        if self.has_gone { 0 } else { self.lent.values().filter(is_used).count() }
    }

    /// A window has gone. Whether the importer still has it.
    fn note_unwanted(&mut self, ticket: u64) -> bool {
        self.finished.remove(&ticket);
        self.lent.get_mut(&ticket).map(|lent| lent.is_unwanted = true).is_some()
    }

    /// Whoever has gone has none, also where what it had is not freed yet.
    fn has(&self, tree: Tree) -> bool {
        !self.has_gone && self.lent.get(&tree.ticket).is_some_and(|lent| lent.tree == Some(tree.number))
    }
}

impl Lent {
    /// Whether it counts among what is kept. What has lasted does while the importer has it mapped.
    fn is_kept(&self) -> bool {
        self.piece.is_some() || self.lasts
    }

    /// Whether it is a window that was written and may be asked for.
    fn is_finished(&self) -> bool {
        self.turn == Some(Turn::Written) && !self.is_unwanted
    }

    fn signal(&self) {
        self.event.iter().for_each(|event| event.signal());
    }
}

/// Memory for the next tree, which is filled. Dropped before that is [handed over](Ledger::lend_again), it is used for no other tree: a copy there may have failed, and still run.
pub(crate) struct Filling {
    pub(crate) ticket: u64,
    pub(crate) kept: Kept,
    piece: Option<Arc<SharedPiece>>,
}

/// Who uses a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The importer may write it.
    Importer,
    /// It has written it.
    Written,
    /// Tensors of this process are over it.
    Taken,
}

impl Ledger {
    /// The trees of a new importer, to which this process listens from now on.
    pub(crate) fn open(socket: OwnedFd) -> Result<Arc<Self>, IpcError> {
        let ledger = Arc::new(Self {
            socket,
            event: EventFd::new()?,
            process: getpid(),
            forks: ForkCount::now(),
            trees: Mutex::default(),
            changed: Condvar::new(),
        });
        let listening = Arc::clone(&ledger);
        let thread = thread::Builder::new().name("transship-lent".to_owned());
        match thread.spawn(move || listening.listen()) {
            Ok(_) => Ok(ledger),
            Err(error) => {
                Err(IpcError::System { what: "starting a thread that listens to an importer", error })
            }
        }
    }

    /// Fails in a child of the process that this was opened in: another thread of that may have had the lock.
    pub(crate) fn check_here(&self) -> Result<(), IpcError> {
        check_here(self.forks)
    }

    /// Tells the importer of a pool that trees will lie in.
    pub(crate) fn tell_pool(
        &self,
        pool: u64,
        uuid: DeviceUuid,
        descriptor: &OwnedFd,
    ) -> Result<(), IpcError> {
        self.note_gone(tell_with(&self.socket, Message::Pool { pool, uuid: words(uuid) }, descriptor))
    }

    /// Memory for a tree, of so many bytes: what a tree has lain in that is back, or new memory.
    pub(crate) fn piece(&self, bytes: usize) -> Result<Arc<SharedPiece>, IpcError> {
        // What a forked process would use again, its parent uses too.
        let kept = if getpid() == self.process { self.trees().free.take(bytes) } else { Err(Vec::new()) };
        kept.or_else(|others| {
            drop(others);
            Ok(Arc::new(SharedPiece::new(bytes)?))
        })
    }

    /// Hands over a tree. Its memory lasts for the trees to come if `kept` is there, and not too much is kept.
    pub(crate) fn lend(&self, packed: Packed, kept: Option<Kept>) -> Result<Tree, IpcError> {
        let (chunk_bytes, manifest_bytes) = (packed.chunk_bytes as u64, packed.manifest_bytes as u64);
        let is_small = packed.on_device.is_none() || packed.chunk_bytes <= LARGEST_KEPT;
        let (pool, chunk) = packed.on_device.map(|there| (there.pool, there.chunk)).unzip();
        let kept = kept.filter(|_| is_small);
        let ticket = self.tell_of(None, kept, (chunk, &packed.piece), |ticket, lasts| match pool {
            None => Message::Offer { ticket, chunk_bytes, manifest_bytes, lasts },
            Some(pool) => Message::OfferInPool { ticket, pool, chunk_bytes, manifest_bytes, lasts },
        })?;
        Ok(Tree { ticket, number: ticket })
    }

    /// Memory that the importer has mapped for trees of this packing, and that no tree is in: it is the caller's until [`lend_again`](Self::lend_again).
    pub(crate) fn take_kept(
        &self,
        packing: &Arc<RepeatedPacking>,
        device: DeviceId,
    ) -> Result<Option<Filling>, IpcError> {
        // What a forked process would fill, its parent fills too.
        if getpid() != self.process {
            return Ok(None);
        }
        let mut trees = self.trees();
        trees.check_room()?;
        let mut free = trees.lent.iter_mut().filter(|(_, lent)| lent.tree.is_none());
        Ok(free.find_map(|(ticket, lent)| {
            let kept = lent.kept.take_if(|kept| kept.fits(packing, device))?;
            Some(Filling { ticket: *ticket, kept, piece: lent.piece.take() })
        }))
    }

    /// Hands over the next tree in such memory, which was filled.
    pub(crate) fn lend_again(&self, filled: Filling) -> Result<Tree, IpcError> {
        let Filling { ticket, kept, piece } = filled;
        let mut trees = self.trees();
        let number = trees.next;
        trees.next += 1;
        let Some(lent) = trees.lent.get_mut(&ticket) else {
            // Memory is freed without the lock.
            drop(trees);
            drop((kept, piece));
            return Err(IpcError::PeerGone);
        };
        (lent.kept, lent.piece) = (Some(kept), piece);
        lent.tree = Some(number);
        drop(trees);
        // Behind that: the importer may give it back at once.
        match self.note_gone(tell(&self.socket, Message::Again { ticket })) {
            Ok(()) => Ok(Tree { ticket, number }),
            Err(error) => {
                self.leave_empty(ticket);
                Err(error)
            }
        }
    }

    /// The importer was not told of the tree in such memory. It has that mapped, and gives it back later, as whoever has gone on to listen to nothing does.
    fn leave_empty(&self, ticket: u64) {
        let mut trees = self.trees();
        let Some(lent) = trees.lent.get_mut(&ticket) else { return };
        lent.tree = None;
        let kept = lent.kept.take();
        // Tensors are dropped without the lock.
        drop(trees);
        drop(kept);
        self.changed.notify_all();
    }

    /// Trees look otherwise now: the importer gives back what it has mapped for them, when it next listens.
    pub(crate) fn close_kept(&self) {
        if self.process != getpid() {
            return;
        }
        let mut trees = self.trees();
        let kept =
            |(ticket, lent): (&u64, &mut Lent)| Some((*ticket, lent.tree.is_none(), lent.kept.take()?));
        let closed: Vec<_> = trees.lent.iter_mut().filter_map(kept).collect();
        drop(trees);
        for (ticket, is_empty, _kept) in closed {
            // Else once the tree there is back (`note_back`).
            if is_empty {
                self.close_memory(ticket);
            }
        }
    }

    /// Tells the importer that a window, or memory that was [taken](Self::take_kept), is not wanted any more.
    pub(crate) fn close_memory(&self, ticket: u64) {
        let _ = tell(&self.socket, Message::Close { ticket });
    }

    /// Has the importer write a window. Gives its ticket.
    pub(crate) fn open_window(&self, packed: &Packed) -> Result<u64, IpcError> {
        let (chunk_bytes, manifest_bytes) = (packed.chunk_bytes as u64, packed.manifest_bytes as u64);
        let there = packed.on_device.as_ref();
        let chunk = there.map(|there| Arc::clone(&there.chunk));
        self.tell_of(Some(Turn::Importer), None, (chunk, &packed.piece), |ticket, _| match there {
            None => Message::Window { ticket, chunk_bytes, manifest_bytes },
            Some(OnDevice { pool, .. }) => {
                Message::WindowInPool { ticket, pool: *pool, chunk_bytes, manifest_bytes }
            }
        })
    }

    /// Waits until the importer has written a window, for at most `limit`. It is this process's then, until [`give_again`](Self::give_again).
    pub(crate) fn take_written(&self, ticket: u64, limit: Duration) -> Result<(), IpcError> {
        self.check_here()?;
        let is_written =
            |trees: &mut Trees| trees.lent.get(&ticket).is_none_or(|lent| lent.turn == Some(Turn::Written));
        let waited = self.changed.wait_timeout_while(self.trees(), limit, |trees| !is_written(trees));
        let (mut trees, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(lent) = trees.lent.get_mut(&ticket) {
            if waited.timed_out() {
                let what = match lent.turn {
                    Some(Turn::Taken) => {
                        "what was in the window before is still used here, so it was not written"
                    }
                    _ => "the importer did not write the window",
                };
                return Err(IpcError::NotInTime { what, limit });
            }
            lent.turn = Some(Turn::Taken);
            lent.event.iter().for_each(|event| event.clear());
            return Ok(());
        }
        match (trees.finished.remove(&ticket), trees.has_gone) {
            (true, _) => Ok(()),
            (false, true) => Err(IpcError::PeerGone),
            (false, false) => Err(IpcError::WindowClosed),
        }
    }

    /// Has `event` signalled while [`take_written`](Self::take_written) would not wait. It is the only one of the window.
    pub(crate) fn signal_when_written(&self, ticket: u64, event: &Arc<EventFd>) {
        let mut trees = self.trees();
        let Some(lent) = trees.lent.get_mut(&ticket) else { return event.signal() };
        lent.event = Some(Arc::clone(event));
        // Under the lock: who takes it clears the event.
        if lent.turn == Some(Turn::Written) {
            event.signal();
        }
    }

    /// The importer may write a window again. A process that was forked from that of the window says nothing.
    pub(crate) fn give_again(&self, ticket: u64) {
        if self.process != getpid() {
            return;
        }
        let is_lent = match self.trees().lent.get_mut(&ticket) {
            Some(lent) => lent.turn.replace(Turn::Importer).is_some(),
            None => false,
        };
        // Before it is told, the importer may say nothing of it.
        if is_lent {
            let _ = tell(&self.socket, Message::Again { ticket });
        }
    }

    /// A window is not wanted any more: its importer gives it back.
    pub(crate) fn close_window(&self, ticket: u64) {
        if self.process != getpid() {
            return;
        }
        // In a child of its process nothing is known of it.
        if self.forks.is_now() && self.trees().note_unwanted(ticket) {
            self.close_memory(ticket);
        }
    }

    /// Notes memory that the importer has, and tells it so. Gives the ticket.
    fn tell_of(
        &self,
        turn: Option<Turn>,
        kept: Option<Kept>,
        (chunk, piece): (Option<Arc<dyn PeerMemory>>, &Arc<SharedPiece>),
        message: impl FnOnce(u64, bool) -> Message,
    ) -> Result<u64, IpcError> {
        let (ticket, lasts) = self.new_ticket(turn, kept, chunk, piece)?;
        match self.note_gone(tell_with(&self.socket, message(ticket, lasts), &piece.descriptor)) {
            Ok(()) => Ok(ticket),
            Err(error) => {
                self.take_back(ticket);
                Err(error)
            }
        }
    }

    /// Whether the importer has it. In a child of its process nothing is known of it.
    pub(crate) fn has_tree(&self, tree: Tree) -> bool {
        self.forks.is_now() && self.trees().has(tree)
    }

    /// None in a child of its process.
    pub(crate) fn lent(&self) -> usize {
        if self.forks.is_now() { self.trees().used() } else { 0 }
    }

    /// Fails if it has gone, and in a child of its process.
    pub(crate) fn check_there(&self) -> Result<(), IpcError> {
        self.check_here()?;
        if self.trees().has_gone { Err(IpcError::PeerGone) } else { Ok(()) }
    }

    /// Whether this tree has come back when at most so much time has passed.
    pub(crate) fn wait(&self, tree: Tree, limit: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.trees(), limit, |trees| trees.has(tree));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// There will be no more trees. A process that was forked from the one with the importer closes nothing.
    pub(crate) fn close(&self) {
        if self.process != getpid() {
            return;
        }
        let _ = tell(&self.socket, Message::Over);
        let mut trees = self.trees();
        trees.is_closed = true;
        let free = std::mem::take(&mut trees.free);
        let kept: Vec<Kept> = trees.lent.values_mut().filter_map(|lent| lent.kept.take()).collect();
        drop(trees);
        drop((free, kept));
        self.event.signal();
    }

    /// The ticket, and whether the memory lasts.
    fn new_ticket(
        &self,
        turn: Option<Turn>,
        kept_there: Option<Kept>,
        chunk: Option<Arc<dyn PeerMemory>>,
        piece: &Arc<SharedPiece>,
    ) -> Result<(u64, bool), IpcError> {
        let mut trees = self.trees();
        trees.check_room()?;
        let ticket = trees.next;
        trees.next += 1;
        let kept = trees.free.len() + trees.lent.values().filter(|lent| lent.is_kept()).count();
        // Tensors of this process may be over a window when it comes back.
        let piece = (turn.is_none() && kept < MOST_KEPT).then(|| Arc::clone(piece));
        let (kept, other) = if piece.is_some() { (kept_there, None) } else { (None, kept_there) };
        let (lasts, tree) = (kept.is_some(), turn.is_none().then_some(ticket));
        let (is_unwanted, event) = (false, None);
        let lent = Lent { turn, is_unwanted, tree, kept, lasts, _chunk: chunk, piece, event };
        trees.lent.insert(ticket, lent);
        // Tensors are dropped without the lock.
        drop(trees);
        drop(other);
        Ok((ticket, lasts))
    }

    /// An importer that takes no more has gone if its socket is closed: from here on, before the thread that listens has seen it. That takes in what is still to be heard.
    fn note_gone(&self, told: Result<(), IpcError>) -> Result<(), IpcError> {
        if matches!(told, Err(IpcError::PeerGone)) && is_closed(&self.socket) {
            self.trees().has_gone = true;
            self.changed.notify_all();
        }
        told
    }

    fn listen(&self) {
        while self.is_wanted() && self.hear().is_ok() {}
        // Whoever is still there learns that it is not listened to.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let mut trees = self.trees();
        trees.has_gone = true;
        let is_written = |(ticket, lent): (&u64, &Lent)| lent.is_finished().then_some(*ticket);
        let written: Vec<u64> = trees.lent.iter().filter_map(is_written).collect();
        trees.finished.extend(written);
        let memory = (std::mem::take(&mut trees.lent), std::mem::take(&mut trees.free));
        drop(trees);
        memory.0.values().for_each(Lent::signal);
        drop(memory);
        self.changed.notify_all();
    }

    /// `false` if it was not lent.
    fn take_back(&self, ticket: u64) -> bool {
        let mut trees = self.trees();
        let Some(mut lent) = trees.lent.remove(&ticket) else { return false };
        if lent.is_finished() {
            trees.finished.insert(ticket);
        }
        // What has lasted comes back because other trees come: the memory of those may have been found without it.
        let is_kept =
            |piece: &mut Arc<SharedPiece>| !trees.is_closed && (!lent.lasts || trees.free.is_wanted(piece));
        if let Some(piece) = lent.piece.take_if(is_kept) {
            trees.free.put(piece);
        }
        drop(trees);
        lent.signal();
        // Memory is freed without the lock.
        drop(lent);
        true
    }

    /// The importer has let go of a tree, and not of its memory. `false` if it has none there.
    fn note_back(&self, ticket: u64) -> bool {
        let mut trees = self.trees();
        let is_closed = trees.is_closed;
        let Some(lent) = trees.lent.get_mut(&ticket).filter(|lent| lent.lasts) else { return false };
        let was_there = lent.tree.take().is_some();
        // Trees have looked otherwise since.
        let is_unwanted = was_there && lent.kept.is_none() && !is_closed;
        drop(trees);
        if is_unwanted {
            self.close_memory(ticket);
        }
        was_there
    }

    /// `false` if it is not the importer's to write.
    fn note_written(&self, ticket: u64) -> bool {
        let mut trees = self.trees();
        let lent = trees.lent.get_mut(&ticket);
        let Some(lent) = lent.filter(|lent| lent.turn == Some(Turn::Importer)) else { return false };
        lent.turn = Some(Turn::Written);
        lent.signal();
        true
    }

    fn is_wanted(&self) -> bool {
        let trees = self.trees();
        !trees.is_closed || !trees.lent.is_empty()
    }

    /// Waits for messages, and takes them in.
    fn hear(&self) -> Result<(), IpcError> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.event, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).named("waiting for an importer"),
        }
        self.event.clear();
        while let Some(message) = hear_now(&self.socket)? {
            let is_known = match message {
                Message::Released { ticket } => self.take_back(ticket),
                Message::Written { ticket } => self.note_written(ticket),
                Message::Back { ticket } => self.note_back(ticket),
                _ => return Err(broken("an importer says what only an exporter may")),
            };
            if !is_known {
                return Err(broken("an importer gives back what it has not got"));
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    fn trees(&self) -> MutexGuard<'_, Trees> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use transship_core::{Device, Tensor};

    use super::*;
    use crate::packed::Packing;

    /// catches: 627-half-filled-memory-is-used-again
    #[test]
    fn memory_that_was_not_filled_is_used_for_no_other_tree() {
        for is_filled in [true, false] {
            let (own, _importer) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let ledger = Ledger::open(own).unwrap();
            let tree = Packing::new(&vec![Tensor::from(vec![1_u8; 10])], None).unwrap();
            let (packing, device) = (Arc::clone(tree.packing()), Device::host().id());
            let packed = Packed::on_host(packing.manifest(), |bytes| ledger.piece(bytes)).unwrap();
            let (piece, bytes) = (Arc::clone(&packed.piece), packed.piece.mapping.bytes());
            let places = tree.copy_into(&packed).unwrap();
            let kept = Kept { packing: Arc::clone(&packing), device, places };
            let lent = ledger.lend(packed, Some(kept)).unwrap();
            assert!(ledger.note_back(lent.ticket));
            let filling = ledger.take_kept(&packing, device).unwrap().unwrap();
            match is_filled {
                true => drop(ledger.lend_again(filling).unwrap()),
                false => drop(filling),
            }
            assert!(ledger.take_back(lent.ticket));
            assert_eq!(Arc::ptr_eq(&ledger.piece(bytes).unwrap(), &piece), is_filled);
            ledger.close();
        }
    }

    /// Written windows that have gone: before they are back, behind that, and before the importer goes. Nobody can ask for what was written.
    ///
    /// catches: 720-what-nobody-can-ask-for-is-remembered
    #[test]
    fn what_was_written_in_a_window_that_has_gone_is_forgotten() {
        let (own, importer) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let ledger = Ledger::open(own).unwrap();
        let tree = Packing::new(&vec![Tensor::from(vec![1_u8; 10])], None).unwrap();
        let manifest = tree.packing().manifest();
        let packed = Packed::on_host(manifest, |bytes| ledger.piece(bytes)).unwrap();
        let written = || {
            let ticket = ledger.open_window(&packed).unwrap();
            assert!(ledger.note_written(ticket));
            ticket
        };
        let first = written();
        ledger.close_window(first);
        assert!(ledger.take_back(first));
        assert!(ledger.trees().finished.is_empty());
        let second = written();
        assert!(ledger.take_back(second));
        assert_eq!(ledger.trees().finished.len(), 1);
        ledger.close_window(second);
        assert!(ledger.trees().finished.is_empty());
        let (third, kept) = (written(), written());
        ledger.close_window(third);
        drop(importer);
        while ledger.check_there().is_ok() {
            thread::yield_now();
        }
        assert_eq!(ledger.trees().finished, BTreeSet::from([kept]));
        ledger.close();
    }
}
