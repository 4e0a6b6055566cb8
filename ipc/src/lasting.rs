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
use crate::shared_piece::MOST_KEPT;
use crate::socket::tell;
use crate::wire::Message;

/// All such memory of an exporter, by the tickets of the first trees there.
#[derive(Default)]
pub(crate) struct Lasting(BTreeMap<u64, Known>);

struct Known {
    memory: Arc<Memory>,
    /// Where it lies.
    device: Device,
    /// The next tree there, if that was made before it has come.
    ready: Option<Ready>,
}

/// Tensors that nobody has seen before `is_taken`.
struct Ready {
    received: Arc<Received>,
    is_taken: Arc<AtomicBool>,
}

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

/// What the tensors of a tree own. Dropped, the exporter may fill the memory again, if they were handed out.
struct Held {
    memory: Arc<Memory>,
    is_taken: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let memory = &self.memory;
        // A forked child has nothing, and its parent has the tree.
        if memory.process == getpid() && self.is_taken.load(Ordering::Acquire) {
            memory.give_back();
        }
    }
}

impl Ready {
    /// Tensors over all of the memory.
    fn new(memory: &Arc<Memory>, device: &Device) -> Result<Self, IpcError> {
        let is_taken = Arc::new(AtomicBool::new(false));
        let held = Held { memory: Arc::clone(memory), is_taken: Arc::clone(&is_taken) };
        let owner = SharedOwner::new(held, device);
        // SAFETY: the memory is there as long as `Held`, and so until `owner` is dropped, and each tensor of the manifest lies in it (`Arrived`). Memory of the host is page-locked for the
        // driver of its kind, and was made of zeros. Nobody sees the tensors before the exporter has said that the tree is there (`next`), and it does not write there from then on before `Held`
        // is dropped; one that does changes bytes where no reference points.
        let received = unsafe { Received::new(Arc::clone(&memory.put), &owner, memory.memory)? };
        Ok(Self { received: Arc::new(received), is_taken })
    }

    fn take(self) -> Imported {
        self.is_taken.store(true, Ordering::Release);
        Imported::of(self.received)
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
        if self.0.len() >= MOST_KEPT || self.0.contains_key(&ticket) {
            return Err(broken("an exporter has too much memory for trees"));
        }
        let Arrived { put, memory, owner, device } = arrived;
        let (socket, _owner, has_tree) = (Arc::clone(socket), Arc::from(owner), AtomicBool::new(true));
        let memory = Arc::new(Memory { ticket, socket, put, memory, _owner, has_tree, process: getpid() });
        let tree = Ready::new(&memory, &device)?.take();
        self.0.insert(ticket, Known { memory, device, ready: None });
        Ok(tree)
    }

    /// Whether it is known by this ticket.
    pub(crate) fn has(&self, ticket: u64) -> bool {
        self.0.contains_key(&ticket)
    }

    /// The next tree there. Fails unless the one before has gone.
    pub(crate) fn next(&mut self, ticket: u64) -> Result<Imported, IpcError> {
        let known = self.0.get_mut(&ticket);
        match known.filter(|known| !known.memory.has_tree.swap(true, Ordering::AcqRel)) {
            Some(Known { memory, device, ready }) => {
                let ready = match ready.take() {
                    Some(ready) => Ok(ready),
                    None => Ready::new(memory, device),
                };
                let ready = ready.inspect_err(|_| memory.give_back())?;
                Ok(ready.take())
            }
            None => Err(broken("an exporter hands over a tree where another one is")),
        }
    }

    /// The tensors of the tree that most likely comes next, if its memory is here. Nobody may see them before [`next`](Self::next) has given them.
    pub(crate) fn ready(&mut self) -> Option<Arc<Received>> {
        let free = self.0.values_mut().find(|known| !known.memory.has_tree.load(Ordering::Acquire));
        let Known { memory, device, ready } = free?;
        if ready.is_none() {
            // What cannot be made now is an error once the tree is there.
            *ready = Ready::new(memory, device).ok();
        }
        ready.as_ref().map(|ready| Arc::clone(&ready.received))
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

impl Memory {
    /// No tree is there.
    fn give_back(&self) {
        self.has_tree.store(false, Ordering::Release);
        let _ = tell(&self.socket, Message::Back { ticket: self.ticket });
    }
}
