//! One loader as the feed sees it. Nothing that it says is believed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use transship_core::Device;

use crate::arrived::LastManifest;
use crate::batch::Batch;
use crate::error::{IpcError, broken};
use crate::event_fd::EventFd;
use crate::options::FeedOptions;
use crate::ring::Ring;
use crate::schedule::Task;
use crate::socket::{hear_now, tell, tell_with};
use crate::wire::Message;

/// The longest reason for a batch that cannot be had, in bytes.
const LONGEST_TEXT: usize = 4096;

pub(crate) struct Peer {
    socket: OwnedFd,
    ring: Arc<Ring>,
    slots: Vec<Slot>,
    last: LastManifest,
    /// How many tasks it was given.
    given: u64,
    has_delivered: bool,
    patience: Duration,
    /// When it is late with what it is at.
    until: Option<Instant>,
}

enum Slot {
    Free,
    /// The loader writes it.
    Written {
        task: Task,
        /// How many it was given before: it makes them one after the other.
        turn: u64,
    },
    /// A batch has it.
    Leased,
}

/// What became of a task.
pub(crate) type Outcome = Result<Batch, IpcError>;

impl Peer {
    /// Gives a new loader its ring. Without one it could make nothing.
    pub(crate) fn new(
        socket: OwnedFd,
        device: &Device,
        options: &FeedOptions,
        event: &Arc<EventFd>,
    ) -> Result<Self, IpcError> {
        let (ring, descriptor) = Ring::new(device, options, event)?;
        let (slots, slot_bytes) = (ring.slots() as u64, ring.slot_bytes() as u64);
        let largest_manifest = options.largest_manifest as u64;
        tell_with(&socket, Message::Ring { slots, slot_bytes, largest_manifest }, &descriptor)?;
        let slots = (0..ring.slots()).map(|_| Slot::Free).collect();
        let patience = options.patience;
        Ok(Self {
            socket,
            ring: Arc::new(ring),
            slots,
            last: LastManifest::default(),
            given: 0,
            has_delivered: false,
            patience,
            until: None,
        })
    }

    /// Takes back the slots whose batches have gone.
    pub(crate) fn take_back(&mut self) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if matches!(slot, Slot::Leased) && self.ring.take_back(number) {
                *slot = Slot::Free;
            }
        }
    }

    pub(crate) fn free_slots(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Free)).count()
    }

    /// Has the loader make a batch. Fails if it has gone, or no slot is free: the task is then still the caller's.
    pub(crate) fn give(&mut self, task: Task) -> Result<(), IpcError> {
        let was_idle = !self.is_at_work();
        let free = self.slots.iter_mut().enumerate().find(|(_, slot)| matches!(slot, Slot::Free));
        let (number, slot) = free.ok_or(IpcError::PeerGone)?;
        let Task { ticket, number: wanted, .. } = task;
        tell(&self.socket, Message::Work { ticket, number: wanted, slot: number as u64 })?;
        *slot = Slot::Written { task, turn: self.given };
        self.given += 1;
        if was_idle {
            self.begin_to_wait();
        }
        Ok(())
    }

    /// What the loader has made, `None` if nothing more for now. After an error it is not listened to again.
    pub(crate) fn hear(&mut self, largest_manifest: usize) -> Result<Option<(Task, Outcome)>, IpcError> {
        let Some(message) = hear_now(&self.socket)? else { return Ok(None) };
        let (ticket, slot) = match message {
            Message::Filled { ticket, slot, .. } | Message::Failed { ticket, slot, .. } => (ticket, slot),
            _ => return Err(broken("a loader says what only a feed may")),
        };
        let (slot, task) = self.written(slot, ticket)?;
        let outcome = match message {
            Message::Filled { manifest_at, manifest_bytes, .. } => {
                if word(manifest_bytes) > largest_manifest {
                    return Err(broken("a manifest is larger than the feed allows"));
                }
                let batch = self.batch(slot, task, word(manifest_at), word(manifest_bytes))?;
                self.set(slot, Slot::Leased);
                Ok(batch)
            }
            Message::Failed { text_bytes, .. } => {
                let text = self.ring.copy(slot, 0, word(text_bytes).min(LONGEST_TEXT)).unwrap_or_default();
                let message = String::from_utf8_lossy(&text).into_owned();
                self.set(slot, Slot::Free);
                Err(IpcError::Failed { number: task.number, message })
            }
            _ => return Err(broken("a loader says what only a feed may")),
        };
        self.has_delivered = true;
        self.begin_to_wait();
        Ok(Some((task, outcome)))
    }

    /// Says that there will be no more.
    pub(crate) fn dismiss(&self) {
        let _ = tell(&self.socket, Message::Over);
    }

    /// When it is late with something, if it has to make something.
    pub(crate) fn is_due(&self) -> Option<Instant> {
        self.until.filter(|_| self.is_at_work())
    }

    fn is_at_work(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Written { .. }))
    }

    /// From now on it is at the first that it has not made.
    fn begin_to_wait(&mut self) {
        self.until = Instant::now().checked_add(self.patience);
    }

    /// Whether it has made anything so far.
    pub(crate) fn has_delivered(&self) -> bool {
        self.has_delivered
    }

    /// Whether `batch` has one of its slots.
    pub(crate) fn has(&self, batch: &Batch) -> bool {
        batch.lies_in(&self.ring)
    }

    /// Whether batches have all of its slots.
    pub(crate) fn is_leased(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Leased))
    }

    /// What it has not made. The first one is what it was at.
    pub(crate) fn unmade(self) -> impl Iterator<Item = Task> {
        let unmade = |slot| match slot {
            Slot::Written { task, turn } => Some((turn, task)),
            Slot::Free | Slot::Leased => None,
        };
        let unmade: BTreeMap<u64, Task> = self.slots.into_iter().filter_map(unmade).collect();
        unmade.into_values()
    }

    /// The slot that it should write for this ticket.
    fn written(&self, slot: u64, ticket: u64) -> Result<(usize, Task), IpcError> {
        let number = word(slot);
        match self.slots.get(number) {
            Some(Slot::Written { task, .. }) if task.ticket == ticket => Ok((number, *task)),
            _ => Err(broken("a loader has written what it was not asked for")),
        }
    }

    /// The batch in `slot`, whose manifest is copied before it is looked at.
    fn batch(&mut self, slot: usize, task: Task, at: usize, bytes: usize) -> Result<Batch, IpcError> {
        let manifest = self.ring.copy(slot, at, bytes);
        let manifest = manifest.ok_or_else(|| broken("a manifest does not lie in its slot"))?;
        let put = self.last.of(manifest)?;
        let end = match put.manifest().chunks() {
            [] => 0,
            [chunk] => *chunk,
            _ => return Err(broken("a batch has several chunks")),
        };
        if end > at {
            return Err(broken("a batch does not fit into its slot"));
        }
        Batch::new(task.number, put, &self.ring, slot)
    }

    fn set(&mut self, slot: usize, to: Slot) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = to;
        }
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What does not fit into a machine word is larger than anything.
fn word(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
