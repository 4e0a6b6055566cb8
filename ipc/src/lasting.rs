//! Memory of an exporter in which one tree comes after the other, as the importer has it: it is mapped once.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, getpid};
use transship_core::{Device, RawMemory, RepeatedPut, SharedOwner};

use crate::arrived::Arrived;
use crate::error::{IpcError, broken};
use crate::imported::Imported;
use crate::received::Received;
use crate::socket::tell;
use crate::wire::{MOST_SLOTS, Message};

/// All such memory of an exporter, by the tickets of the first trees there.
#[derive(Default)]
pub(crate) struct Lasting(BTreeMap<u64, (Arc<Memory>, Device)>);

/// What lies there looks the same each time.
struct Memory {
    ticket: u64,
    socket: Arc<OwnedFd>,
    put: Arc<RepeatedPut>,
    memory: RawMemory,
    /// What has it. Dropped, the exporter is told that it is not mapped any more.
    _owner: Arc<dyn Any + Send + Sync>,
    /// Whether a tree is there: from the exporter's word until its last tensor goes.
    has_tree: AtomicBool,
    process: Pid,
}

/// What the tensors of a tree own. Dropped, the exporter may fill the memory again.
struct Held(Arc<Memory>);

impl Drop for Held {
    fn drop(&mut self) {
        // A forked child has nothing, and its parent has the tree.
        if self.0.process == getpid() {
            self.0.has_tree.store(false, Ordering::Release);
            let _ = tell(&self.0.socket, Message::Back { ticket: self.0.ticket });
        }
    }
}

impl Lasting {
    /// New memory, with its first tree.
    pub(crate) fn add(
        &mut self,
        socket: &Arc<OwnedFd>,
        ticket: u64,
        arrived: Arrived,
    ) -> Result<Imported, IpcError> {
        if self.0.len() >= MOST_SLOTS || self.0.contains_key(&ticket) {
            return Err(broken("an exporter has too much memory for trees"));
        }
        let Arrived { put, memory, owner, device } = arrived;
        let (socket, _owner, has_tree) = (Arc::clone(socket), Arc::from(owner), AtomicBool::new(true));
        let memory = Arc::new(Memory { ticket, socket, put, memory, _owner, has_tree, process: getpid() });
        let tree = tree(&memory, &device)?;
        self.0.insert(ticket, (memory, device));
        Ok(tree)
    }

    /// Whether it is known by this ticket.
    pub(crate) fn has(&self, ticket: u64) -> bool {
        self.0.contains_key(&ticket)
    }

    /// The next tree there. Fails unless the one before has gone.
    pub(crate) fn next(&self, ticket: u64) -> Result<Imported, IpcError> {
        let known = self.0.get(&ticket);
        match known.filter(|(memory, _)| !memory.has_tree.swap(true, Ordering::AcqRel)) {
            Some((memory, device)) => tree(memory, device),
            None => Err(broken("an exporter hands over a tree where another one is")),
        }
    }

    /// The exporter has no more trees for it. Whether it was known.
    pub(crate) fn close(&mut self, ticket: u64) -> bool {
        self.0.remove(&ticket).is_some()
    }

    /// There will be no more trees.
    pub(crate) fn close_all(&mut self) {
        self.0.clear();
    }
}

/// Tensors over all of it.
fn tree(memory: &Arc<Memory>, device: &Device) -> Result<Imported, IpcError> {
    let owner = SharedOwner::new(Held(Arc::clone(memory)), device);
    // SAFETY: the memory is there as long as `Held`, and so until `owner` is dropped, and each tensor of the manifest lies in it (`Arrived`). Memory of the host is page-locked for the
    // driver of its kind, and was made of zeros. The exporter does not write there before `Held` is dropped; one that does changes bytes where no reference points.
    let received = unsafe { Received::new(Arc::clone(&memory.put), &owner, memory.memory)? };
    Ok(Imported::of(received))
}
