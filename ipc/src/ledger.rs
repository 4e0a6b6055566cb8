//! Which trees an importer has, as its exporter knows it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, getpid};
use transship_core::DeviceUuid;
use transship_core::backend::PeerMemory;

use crate::bell::Bell;
use crate::error::{IpcError, Named, broken};
use crate::packed::Packed;
use crate::pools::words;
use crate::shared_piece::{FreePieces, MOST_KEPT, SharedPiece};
use crate::socket::{hear_now, tell, tell_with};
use crate::wire::{MOST_SLOTS, Message};

/// What an importer says is heard by a thread, which ends with the connection: when the importer has gone, or when the connection was closed here and all trees are
/// back.
pub(crate) struct Ledger {
    socket: OwnedFd,
    bell: Bell,
    process: Pid,
    trees: Mutex<Trees>,
    changed: Condvar,
}

#[derive(Default)]
struct Trees {
    next: u64,
    /// The importer has these, or will find them on its socket.
    lent: BTreeMap<u64, Lent>,
    free: FreePieces,
    is_closed: bool,
    has_gone: bool,
}

/// The memory of a tree.
struct Lent {
    /// What lies on a device is freed behind its use there.
    _chunk: Option<Arc<dyn PeerMemory>>,
    /// What is kept for the trees to come.
    piece: Option<Arc<SharedPiece>>,
}

impl Ledger {
    /// The trees of a new importer, to which this process listens from now on.
    pub(crate) fn open(socket: OwnedFd) -> Result<Arc<Self>, IpcError> {
        let ledger = Arc::new(Self {
            socket,
            bell: Bell::new()?,
            process: getpid(),
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

    /// Tells the importer of a pool that trees will lie in.
    pub(crate) fn tell_pool(
        &self,
        pool: u64,
        uuid: DeviceUuid,
        descriptor: &OwnedFd,
    ) -> Result<(), IpcError> {
        tell_with(&self.socket, Message::Pool { pool, uuid: words(uuid) }, descriptor)
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

    /// Hands over a tree. Gives its ticket.
    pub(crate) fn lend(&self, packed: Packed) -> Result<u64, IpcError> {
        let (chunk_bytes, manifest_bytes) = (packed.chunk_bytes as u64, packed.manifest_bytes as u64);
        let (pool, chunk) = packed.on_device.map(|there| (there.pool, there.chunk)).unzip();
        let ticket = self.new_ticket(chunk, &packed.piece)?;
        let offer = match pool {
            None => Message::Offer { ticket, chunk_bytes, manifest_bytes },
            Some(pool) => Message::OfferInPool { ticket, pool, chunk_bytes, manifest_bytes },
        };
        match tell_with(&self.socket, offer, &packed.piece.descriptor) {
            Ok(()) => Ok(ticket),
            Err(error) => {
                self.take_back(ticket);
                Err(error)
            }
        }
    }

    pub(crate) fn is_lent(&self, ticket: u64) -> bool {
        self.trees().lent.contains_key(&ticket)
    }

    pub(crate) fn lent(&self) -> usize {
        self.trees().lent.len()
    }

    pub(crate) fn has_gone(&self) -> bool {
        self.trees().has_gone
    }

    /// Whether this tree has come back when at most so much time has passed.
    pub(crate) fn wait(&self, ticket: u64, limit: Duration) -> bool {
        let is_lent = |trees: &mut Trees| trees.lent.contains_key(&ticket);
        let waited = self.changed.wait_timeout_while(self.trees(), limit, is_lent);
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
        drop(trees);
        drop(free);
        self.bell.ring();
    }

    fn new_ticket(
        &self,
        chunk: Option<Arc<dyn PeerMemory>>,
        piece: &Arc<SharedPiece>,
    ) -> Result<u64, IpcError> {
        let mut trees = self.trees();
        if trees.has_gone {
            return Err(IpcError::PeerGone);
        }
        // Each is a message at the most that is not read, here or there.
        if trees.lent.len() >= MOST_SLOTS {
            return Err(IpcError::TooManyTrees { limit: MOST_SLOTS });
        }
        let ticket = trees.next;
        trees.next += 1;
        let kept = trees.free.len() + trees.lent.values().filter(|lent| lent.piece.is_some()).count();
        let piece_to_keep = (kept < MOST_KEPT).then(|| Arc::clone(piece));
        trees.lent.insert(ticket, Lent { _chunk: chunk, piece: piece_to_keep });
        Ok(ticket)
    }

    fn listen(&self) {
        while self.is_wanted() && self.hear().is_ok() {}
        // Whoever is still there learns that it is not listened to.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let mut trees = self.trees();
        trees.has_gone = true;
        let memory = (std::mem::take(&mut trees.lent), std::mem::take(&mut trees.free));
        drop(trees);
        drop(memory);
        self.changed.notify_all();
    }

    /// `false` if it was not lent.
    fn take_back(&self, ticket: u64) -> bool {
        let mut trees = self.trees();
        let Some(mut lent) = trees.lent.remove(&ticket) else { return false };
        if let Some(piece) = lent.piece.take_if(|_| !trees.is_closed) {
            trees.free.put(piece);
        }
        drop(trees);
        // Memory is freed without the lock.
        drop(lent);
        true
    }

    fn is_wanted(&self) -> bool {
        let trees = self.trees();
        !trees.is_closed || !trees.lent.is_empty()
    }

    /// Waits for messages, and takes them in.
    fn hear(&self) -> Result<(), IpcError> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).named("waiting for an importer"),
        }
        self.bell.silence();
        while let Some(message) = hear_now(&self.socket)? {
            let Message::Released { ticket } = message else {
                return Err(broken("an importer says what only an exporter may"));
            };
            if !self.take_back(ticket) {
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
