//! Device memory that kernels work in, kept for the next submission.

use parking_lot::Mutex;
use wgpu::{Buffer, BufferDescriptor, BufferUsages, Device, Queue};

/// The least memory that is written, in bytes: all small batches share it. And the most.
const LEAST_ROOM: u64 = 256 << 10;
const MOST_ROOM: u64 = 8 << 20;
/// So many threads that submit at the same time find memory that is kept.
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

    /// Memory for a table of `table` bytes, and for `bytes` bytes that a kernel writes; to be called where errors are caught.
    pub(crate) fn take(&self, device: &Device, table: u64, bytes: u64) -> Workspace {
        let fits = |kept: &Workspace| kept.table.size() >= table && kept.gathered.size() >= bytes;
        let mut kept = self.kept.lock();
        let found = kept.iter().rposition(fits).map(|index| kept.swap_remove(index));
        drop(kept);
        found.unwrap_or_else(|| {
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
                gathered: buffer(room, BufferUsages::COPY_SRC),
            }
        })
    }

    /// Keeps memory for the next submission. The last one that uses it is submitted.
    pub(crate) fn keep(&self, workspace: Workspace) {
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
