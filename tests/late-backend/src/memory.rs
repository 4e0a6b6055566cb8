//! Device allocations and staging blocks.

use std::alloc::Layout;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use transship_core::Result;
use transship_core::backend::{Buffer, Direction, MemoryKind, Staging, Ticket, WriteWindow};

use crate::calls::Call;
use crate::instance::Instance;

/// What the bytes of new memory are, so that a missing copy shows.
const POISON: u8 = 0xA5;
/// What the bytes of freed memory are.
const FREED: u8 = 0x5A;
const ALIGNMENT: usize = 256;

/// A heap block; never moved.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    bytes: usize,
}

// SAFETY: a block is a pointer that nobody else owns.
unsafe impl Send for Block {}
// SAFETY: a shared block only gives its address away.
unsafe impl Sync for Block {}

impl Block {
    /// `None` if the heap has no such block.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) })?;
        // SAFETY: the block has this size.
        unsafe { start.write_bytes(POISON, layout.size()) };
        Some(Self { start, layout, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where `offset` lies; `None` unless `bytes` bytes fit behind it.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: `offset` lies inside of the block.
        inside.then(|| unsafe { self.start.add(offset) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Miri knows freed memory when it sees it, and would need minutes for the bytes; a model checker would for its many runs.
        let marked = if cfg!(any(miri, shuttle)) { 0 } else { self.bytes };
        for offset in 0..marked {
            // SAFETY: inside of the block; volatile, so that the bytes change although the block is freed next.
            unsafe { self.start.add(offset).write_volatile(FREED) };
        }
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Memory of a device. Its address is made up, and the host cannot read it.
pub(crate) struct LateBuffer {
    pub(crate) instance: Arc<Instance>,
    pub(crate) device: usize,
    pub(crate) allocation: u64,
    /// Where it begins in the allocation: 0 unless it was wrapped.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
    pub(crate) life: Option<Life>,
    /// The host may write it; no copy may use it yet.
    pub(crate) open: AtomicBool,
}

/// What ends with a buffer.
pub(crate) enum Life {
    /// An allocation of the device.
    Allocation(u64),
    /// The owner of wrapped memory, which is only ever dropped.
    Owner { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: there is no host pointer; the instance frees the memory once the tickets of `release` are reached.
unsafe impl Buffer for LateBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address(&self) -> Option<u64> {
        Some(self.address)
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        None
    }

    fn window(&self) -> Option<WriteWindow> {
        let state = self.instance.lock();
        let open = self.open.load(Ordering::Acquire) || self.instance.config.host_writable;
        let open = open && !state.calls.is_broken();
        let start = state.allocations.get(&self.allocation).filter(|_| open)?.block.at(0, self.bytes)?;
        // SAFETY: the block stays in place, and the host's alone, until the buffer is closed or given back.
        Some(unsafe { WriteWindow::new(start, self.bytes) })
    }

    unsafe fn close(&self) -> Result<()> {
        if self.open.swap(false, Ordering::AcqRel) {
            drop(self.instance.enter(Call::Close, false, self.device)?);
        }
        Ok(())
    }

    fn release_after(&mut self, after: &[Ticket]) -> bool {
        if !self.instance.config.frees_behind {
            return false;
        }
        if let Some(life) = self.life.take() {
            self.instance.retire(life, after);
        }
        true
    }
}

impl Drop for LateBuffer {
    fn drop(&mut self) {
        if let Some(life) = self.life.take() {
            self.instance.retire(life, &[]);
        }
    }
}

/// A staging block of a device.
pub(crate) struct LateStaging {
    pub(crate) instance: Arc<Instance>,
    pub(crate) device: usize,
    pub(crate) id: u64,
    pub(crate) direction: Direction,
    pub(crate) block: Block,
}

impl LateStaging {
    /// Whether the host may use the block for this purpose now.
    fn is_open_for(&self, direction: Direction) -> bool {
        let mapped = self.instance.config.mapped_staging;
        let open = || {
            let state = self.instance.lock();
            state.is_mapped(self.id) && !state.calls.is_broken()
        };
        !mapped || (self.direction == direction && open())
    }
}

// SAFETY: the block stays in place until it is dropped.
unsafe impl Staging for LateStaging {
    fn bytes(&self) -> usize {
        self.block.bytes()
    }

    fn is_pinned(&self) -> bool {
        self.instance.config.pinned
    }

    fn window(&self) -> Option<WriteWindow> {
        let start = self.block.at(0, 0).filter(|_| self.is_open_for(Direction::Upload))?;
        // SAFETY: the block has so many bytes and lives as long as `self`.
        Some(unsafe { WriteWindow::new(start, self.bytes()) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        self.block.at(0, 0).filter(|_| self.is_open_for(Direction::Download))
    }
}

impl Drop for LateStaging {
    fn drop(&mut self) {
        self.instance.drop_staging(self.device, self.id, self.block.bytes());
    }
}
