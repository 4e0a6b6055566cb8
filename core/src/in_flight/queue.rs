//! Owns everything that a device may still touch, until the fence is reached; nothing else does.
//!
//! A [`Lane`] is a stream with the queue of what its copies use. Memory enters the queue before the copy is submitted
//! and leaves it when the position behind the copy is reached. Handles and futures only watch. Where reaching a
//! position cannot be proved (the device is broken), the memory is leaked and counted, never freed.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::backend::{Backend, BackendStream, Buffer, CopyOp, Submission, Ticket};
use crate::copy::take::{Leaf, Leaves};
use crate::error::Result;
use crate::runtime::reactor::Watch;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::{Mutex, OnceLock, statics};
use crate::runtime::{foreign, fork, reactor};
use crate::staging::block::Block;
use crate::tensor::storage::Storage;
use crate::tensor::uses::Handed;

statics! {
    static LEAKS: AtomicU64 = AtomicU64::new(0);
    static LEAKED_BYTES: AtomicU64 = AtomicU64::new(0);
}

/// Counts memory that was given up because nothing proves that the device is done with it; see
/// [`Statistics::leaks`](crate::Statistics::leaks).
pub fn count_leak(bytes: usize) {
    LEAKS.fetch_add(1, Ordering::Relaxed);
    LEAKED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// How often memory was leaked, and how many bytes.
pub(crate) fn leaked() -> (u64, u64) {
    (LEAKS.load(Ordering::Relaxed), LEAKED_BYTES.load(Ordering::Relaxed))
}

/// Keeps `memory` until every ticket of `after` is reached, then drops it. Never blocks. What a broken stream may still
/// use is leaked and counted.
pub fn keep_until(memory: Box<dyn Buffer>, after: &[Ticket]) {
    keep(memory, after.into(), false);
}

/// The same for memory that the program has lent.
pub(crate) fn keep_lent_until(memory: Box<dyn Buffer>, after: SmallVec<[Ticket; 1]>) {
    keep(memory, after, true);
}

fn keep(memory: Box<dyn Buffer>, after: SmallVec<[Ticket; 1]>, lent: bool) {
    let kept = Kept { memory: ManuallyDrop::new(memory), after, reached: false, lent };
    // Without a reactor nobody looks after it: the drop of what was not watched leaks it.
    let _ = reactor::watch(Watch::Memory(kept));
}

/// Memory that waits for uses of it on streams; leaked if it is dropped before they are known to be done.
pub(crate) struct Kept {
    memory: ManuallyDrop<Box<dyn Buffer>>,
    after: SmallVec<[Ticket; 1]>,
    reached: bool,
    /// Its destructor is the program's code.
    lent: bool,
}

impl Kept {
    /// Whether it can go: every use is done, or a broken stream will never tell.
    pub(crate) fn is_settled(&mut self) -> bool {
        let mut broken = false;
        self.after.retain(|ticket| match ticket.is_reached() {
            Ok(reached) => !reached,
            Err(_) => {
                broken = true;
                true
            }
        });
        self.reached = self.after.is_empty();
        self.reached || broken
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.reached {
            // SAFETY: the field is not touched again.
            let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
            match self.lent {
                true => foreign::let_go_unused(memory),
                false => drop(memory),
            }
        } else {
            count_leak(self.memory.bytes());
        }
    }
}

/// What one submission uses.
#[derive(Default)]
pub(crate) struct Keep {
    pub(crate) blocks: SmallVec<[Block; 1]>,
    /// Blocks that others use as well: who reads them after the copy, or copies of the same bytes to other devices.
    pub(crate) shared_blocks: SmallVec<[Arc<Block>; 1]>,
    /// Room for the table of a kernel that makes all of the copies.
    pub(crate) table: Option<Block>,
    /// What the copies read, all sources of their job at once.
    pub(crate) sources: Option<Arc<Leaves>>,
    /// What they write.
    pub(crate) storages: Storages,
}

/// The memory of tensors.
pub(crate) type Storages = SmallVec<[Storage; 2]>;

/// The copies of one submission.
pub(crate) type Ops<'a> = SmallVec<[CopyOp<'a>; 2]>;

/// A stream and what is in flight on it.
pub(crate) struct Lane {
    backend: Arc<dyn Backend>,
    stream: Arc<dyn BackendStream>,
    /// Published only when what that settles has been let go of: whoever sees a copy done finds its sources free.
    reached: AtomicU64,
    queue: Mutex<Queue>,
    /// What memory is handed to the stream by.
    handed: OnceLock<Arc<Handed>>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
}

struct Entry {
    /// [`SUBMITTING`] until the backend has told.
    position: u64,
    /// Its address tells the entry from others.
    keep: Arc<Keep>,
}

const SUBMITTING: u64 = u64::MAX;

impl Entry {
    fn keeps(&self, keep: *const Keep) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.keep), keep)
    }
}

impl Queue {
    /// Lets go of what is done, which need not be at the front: positions are given out while entries are in the queue already.
    /// Nothing of the program's runs in here: what it has lent is collected.
    fn release(&mut self, reached: u64) {
        self.entries.retain(|entry| entry.position > reached);
    }
}

impl Lane {
    pub(crate) fn new(backend: Arc<dyn Backend>, stream: Arc<dyn BackendStream>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            stream,
            reached: AtomicU64::new(0),
            queue: Mutex::default(),
            handed: OnceLock::new(),
        })
    }

    pub(crate) fn stream(&self) -> &Arc<dyn BackendStream> {
        &self.stream
    }

    /// Its stream, for memory that is handed to it.
    pub(crate) fn handed(&self) -> &Arc<Handed> {
        self.handed.get_or_init(|| Handed::new(&self.stream))
    }

    /// Lets memory go that went while the stream was being captured, which it is no more.
    pub(crate) fn go_on_deferred(&self) {
        if let Some(handed) = self.handed.get() {
            handed.go_on_deferred();
        }
    }

    /// Whether its stream is one of this device.
    pub(crate) fn is_of(&self, backend: &Arc<dyn Backend>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(backend))
    }

    pub(crate) fn ticket(&self, position: u64) -> Ticket {
        Ticket { stream: self.stream.clone(), position }
    }

    /// Takes `keep` into the queue, then submits the copies that `ops` makes of it.
    ///
    /// # Safety
    ///
    /// Every range of the copies lies within a buffer or block of `keep`. A table has room for all of them.
    pub(crate) unsafe fn submit<F>(&self, keep: Keep, ops: F) -> Result<Submission>
    where
        F: for<'k> FnOnce(&'k Keep) -> Ops<'k>,
    {
        let keep = Arc::new(keep);
        let number = Arc::as_ptr(&keep);
        self.queue.lock().entries.push_back(Entry { position: SUBMITTING, keep: keep.clone() });
        let mut guard = Submitting { lane: self, number, settled: false };
        let result = match &keep.table {
            // SAFETY: the ranges are the caller's promise; the queue owns `keep` from here on until the position is reached
            // (`release`), and the host has no access to it meanwhile (`Storage::check_ready`, `Block`).
            None => unsafe { self.backend.submit(&ops(&keep), &*self.stream) },
            // SAFETY: as above, the table included.
            Some(table) => unsafe {
                self.backend.submit_gathered(&ops(&keep), table.staging(), &*self.stream)
            },
        };
        guard.settled = true;
        drop(guard);
        // The queue alone lets go of it.
        drop(keep);
        match &result {
            Ok(submission) => self.set_position(number, submission.position),
            // Promise 2 of `Backend`: nothing of a failed submission is in flight, unless the stream itself is broken.
            Err(_) if self.stream.reached().is_ok() => drop(self.remove(number)),
            Err(_) => self.remove(number).into_iter().for_each(|entry| entry.keep.leak()),
        }
        result
    }

    /// Whether `position` is known to be reached and what it used to be free, without asking the driver.
    pub(crate) fn has_reached(&self, position: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= position
    }

    /// Makes later work of `stream` wait for `position`, on the device. What is known to be reached needs no wait, which not
    /// all streams can do: those of wgpu wait for no other device, and copies over the host have positions there.
    pub(crate) fn precede(&self, stream: &Arc<dyn BackendStream>, position: u64) -> Result<()> {
        match self.has_reached(position) || Arc::ptr_eq(stream, &self.stream) {
            true => Ok(()),
            false => stream.wait_for(&*self.stream, position),
        }
    }

    /// Asks the driver how far the stream has come and lets go of what that settles. Never blocks.
    pub(crate) fn poll(&self) -> Result<()> {
        let reached = self.stream.reached().inspect_err(|_| self.leak())?;
        self.settle(reached);
        Ok(())
    }

    /// Blocks until `position` is reached and what that settles is let go of; `false` on time-out.
    pub(crate) fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        if self.has_reached(position) {
            return Ok(true);
        }
        let reached = self.stream.wait(position, timeout).inspect_err(|_| self.leak())?;
        if reached {
            self.settle(position);
        }
        Ok(reached)
    }

    /// Lets go of what is settled by `reached`, and then says so, under one lock: so nobody sees the one without the other. What
    /// the program has lent goes to the copy that has used it, whose own waiter drops it, or to the threads for disposal.
    fn settle(&self, reached: u64) {
        let ((), lent) = foreign::collect(|| {
            let mut queue = self.queue.lock();
            let reached = reached.max(self.reached.load(Ordering::Relaxed));
            queue.release(reached);
            self.reached.store(reached, Ordering::Release);
        });
        drop(lent);
    }

    /// Blocks until the oldest entry is done or the time is over; returns at once where there is none.
    pub(crate) fn wait_for_oldest(&self, timeout: Duration) -> Result<bool> {
        let oldest = self.queue.lock().entries.front().map(|entry| entry.position);
        match oldest {
            Some(position) if position != SUBMITTING => self.wait(position, Some(timeout)),
            _ => Ok(false),
        }
    }

    /// Blocks until nothing that is submitted by now is in flight.
    pub(crate) fn drain(&self) -> Result<()> {
        let submitted = |entry: &Entry| Some(entry.position).filter(|position| *position != SUBMITTING);
        let newest = self.queue.lock().entries.iter().filter_map(submitted).max();
        newest.map_or(Ok(()), |position| self.wait(position, None).map(|_| ()))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.lock().entries.is_empty()
    }

    /// Gives an entry its position. If others have settled that already, they have passed the entry over.
    fn set_position(&self, number: *const Keep, position: u64) {
        let mut queue = self.queue.lock();
        if let Some(entry) = queue.entries.iter_mut().rev().find(|entry| entry.keeps(number)) {
            entry.position = position;
        }
        drop(queue);
        if self.has_reached(position) {
            self.settle(position);
        }
    }

    fn remove(&self, number: *const Keep) -> Option<Entry> {
        let mut queue = self.queue.lock();
        let index = queue.entries.iter().rposition(|entry| entry.keeps(number))?;
        queue.entries.remove(index)
    }

    /// Gives up what is in flight: the device is broken and may or may not touch it.
    fn leak(&self) {
        let entries = std::mem::take(&mut self.queue.lock().entries);
        for entry in entries {
            entry.keep.leak();
        }
    }
}

impl Keep {
    /// The leaves whose memory the copies read.
    pub(crate) fn sources(&self) -> &[Leaf] {
        self.sources.as_ref().map_or(&[], |leaves| leaves)
    }

    /// The block of this number that the copies read: all are theirs alone, or all shared with others.
    pub(crate) fn staged(&self, number: usize) -> Option<&Block> {
        self.blocks.get(number).or_else(|| self.shared_blocks.get(number).map(|block| &**block))
    }

    fn leak(self: Arc<Self>) {
        let shared = self.shared_blocks.iter().map(|block| &**block);
        let sources = self.sources().iter().map(|leaf| &leaf.storage);
        let mut bytes = self.storages.iter().chain(sources).map(Storage::bytes).sum::<usize>();
        for block in self.blocks.iter().chain(shared).chain(&self.table) {
            if block.give_up() {
                bytes += block.bytes();
            }
        }
        count_leak(bytes);
        std::mem::forget(self);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if fork::is_child() {
            let entries = std::mem::take(&mut self.queue.get_mut().entries);
            return std::mem::forget((entries, self.stream.clone(), self.backend.clone()));
        }
        if !self.queue.get_mut().entries.is_empty() && self.poll().is_ok() {
            self.leak();
        }
        if let Some(handed) = self.handed.get() {
            handed.lane_goes(&self.stream);
        }
    }
}

/// An entry being submitted; leaked if the backend panics, since nobody knows what it had submitted.
struct Submitting<'a> {
    lane: &'a Lane,
    number: *const Keep,
    settled: bool,
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        if !self.settled
            && let Some(entry) = self.lane.remove(self.number)
        {
            entry.keep.leak();
        }
    }
}
