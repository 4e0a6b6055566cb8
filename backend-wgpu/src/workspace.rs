//! Device memory that kernels work in, kept for the next submission.

use parking_lot::Mutex;
use smallvec::SmallVec;
use wgpu::{Buffer, BufferDescriptor, BufferUsages, Device, Queue};

use crate::bound::{Bound, Range};

/// The least memory that is written, in bytes: all small batches share it. And the most.
const LEAST_ROOM: u64 = 256 << 10;
const MOST_ROOM: u64 = 8 << 20;
/// So many threads that submit at the same time find memory that is kept, and so many batches in turn what was bound for them.
const MOST_KEPT: usize = 4;

/// The workspaces of one device.
pub(crate) struct Workspaces {
    /// So many bytes kernels write at the most, before these are copied from there.
    room: u64,
    kept: Mutex<Vec<Workspace>>,
}

/// Memory of one submission. The queue orders the next use behind the last one.
pub(crate) struct Workspace {
    table: Buffer,
    /// What the table says.
    entries: Vec<u8>,
    gathered: Buffer,
    /// What was bound with it last, as the table says.
    bound: Option<Bound>,
}

impl Workspaces {
    pub(crate) fn new(device: &Device) -> Self {
        let limits = device.limits();
        let room = MOST_ROOM.min(limits.max_storage_buffer_binding_size).min(limits.max_buffer_size) & !3;
        Self { room, kept: Mutex::default() }
    }

    /// So many bytes kernels write at the most; `None` if that is too little to be worth it.
    pub(crate) fn room(&self) -> Option<u64> {
        Some(self.room).filter(|room| *room >= LEAST_ROOM)
    }

    /// The memory that was bound for just these ranges.
    pub(crate) fn take_bound(&self, ranges: &[Range<'_>]) -> Option<Workspace> {
        let mut kept = self.kept.lock();
        let is_for = |kept: &Workspace| kept.bound.as_ref().is_some_and(|bound| bound.is_for(ranges));
        kept.iter().rposition(is_for).map(|index| kept.remove(index))
    }

    /// Memory for a table of `table` bytes, and for `bytes` bytes that a kernel writes, with nothing bound; to be called where errors are
    /// caught.
    pub(crate) fn take(&self, device: &Device, table: u64, bytes: u64) -> Workspace {
        let found = self.take_kept(|kept| kept.table.size() >= table && kept.gathered.size() >= bytes);
        found.map(Workspace::unbound).unwrap_or_else(|| {
            let buffer = |size: u64, usage| {
                let usage = usage | BufferUsages::STORAGE;
                device.create_buffer(&BufferDescriptor {
                    label: None,
                    size,
                    usage,
                    mapped_at_creation: false,
                })
            };
            let room = bytes.max(LEAST_ROOM).next_power_of_two().min(self.room);
            Workspace {
                table: buffer(table.next_power_of_two(), BufferUsages::COPY_DST),
                entries: Vec::new(),
                gathered: buffer(room, BufferUsages::COPY_SRC | BufferUsages::COPY_DST),
                bound: None,
            }
        })
    }

    /// Memory that `fits`: what is bound for others last, and only if no more may be kept.
    fn take_kept(&self, fits: impl Fn(&Workspace) -> bool) -> Option<Workspace> {
        let mut kept = self.kept.lock();
        let free = kept.iter().rposition(|kept| kept.bound.is_none() && fits(kept));
        let oldest = || kept.iter().position(&fits).filter(|_| kept.len() >= MOST_KEPT);
        free.or_else(oldest).map(|index| kept.remove(index))
    }

    /// Lets go of what was bound with the buffer of this number, which goes.
    pub(crate) fn unbind(&self, number: u64) {
        let mut kept = self.kept.lock();
        let unbound: SmallVec<[Option<Bound>; MOST_KEPT]> =
            kept.iter_mut().map(|kept| kept.bound.take_if(|bound| bound.binds(number))).collect();
        drop(kept);
        drop(unbound);
    }

    /// Keeps memory for the next submission. The last one that uses it is submitted.
    pub(crate) fn keep(&self, workspace: Workspace) {
        let workspace = match &workspace.bound {
            Some(bound) if !bound.is_kept() => workspace.unbound(),
            _ => workspace,
        };
        let mut kept = self.kept.lock();
        // What was kept first goes first: it may be too small by now.
        let surplus = (kept.len() >= MOST_KEPT).then(|| kept.remove(0));
        kept.push(workspace);
        drop(kept);
        drop(surplus);
    }

    /// Lets go of what is kept; returns how many bytes.
    pub(crate) fn trim(&self) -> usize {
        let kept = std::mem::take(&mut *self.kept.lock());
        bytes_of(&kept)
    }

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(&self.kept.lock())
    }
}

impl Workspace {
    pub(crate) fn table(&self) -> &Buffer {
        &self.table
    }

    /// What the kernel writes.
    pub(crate) fn gathered(&self) -> &Buffer {
        &self.gathered
    }

    /// What is bound with it.
    pub(crate) fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }

    pub(crate) fn set_bound(&mut self, bound: Bound) {
        self.bound = Some(bound);
    }

    /// The memory alone.
    fn unbound(self) -> Self {
        Self { bound: None, ..self }
    }

    /// Writes the table in front of the next submission.
    pub(crate) fn write_table(&mut self, queue: &Queue, table: Vec<u8>) {
        // Batches of one shape follow each other: they have the same table.
        if table != self.entries {
            queue.write_buffer(&self.table, 0, &table);
            self.entries = table;
        }
    }
}

fn bytes_of(kept: &[Workspace]) -> usize {
    let bytes: u64 = kept.iter().map(|workspace| workspace.table.size() + workspace.gathered.size()).sum();
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
