//! Host memory that somebody else allocated.

use std::any::Any;
use std::ptr::NonNull;

use crate::backend::{Buffer, MemoryKind, RawMemory};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// Host memory of somebody else. [`Backend::wrap`](crate::backend::Backend::wrap) is promised no more than that it may be read.
pub(crate) struct ForeignMemory<O = Box<dyn Any + Send + Sync>> {
    start: NonNull<u8>,
    bytes: usize,
    kind: MemoryKind,
    writable: bool,
    /// Dropped with the rest.
    owner: O,
}

impl<O> ForeignMemory<O> {
    /// # Safety
    ///
    /// `bytes` bytes from `start` on are valid for reads until `owner` is dropped, and for writes if they are `writable`.
    pub(crate) unsafe fn new(
        (start, bytes, kind): (NonNull<u8>, usize, MemoryKind),
        writable: bool,
        owner: O,
    ) -> Self {
        Self { start, bytes, kind, writable, owner }
    }

    pub(crate) fn into_owner(self) -> O {
        self.owner
    }
}

// SAFETY: the range is only handed out as a pointer; whoever reads through it relies on the promise made to `new`.
unsafe impl<O: Send> Send for ForeignMemory<O> {}
// SAFETY: as above.
unsafe impl<O: Sync> Sync for ForeignMemory<O> {}

// SAFETY: `new` was promised that the range is valid until the owner is dropped.
unsafe impl<O: Send + Sync + 'static> Buffer for ForeignMemory<O> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        self.kind
    }

    fn address(&self) -> Option<u64> {
        Some(self.start.as_ptr().addr() as u64)
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        Some((self.start, self.writable))
    }
}

/// Host memory of somebody else that may be written as well.
pub(crate) struct WritableMemory {
    memory: Box<dyn Buffer>,
    /// Whose copies and kernels write to it as to memory of their own.
    written_by: Option<DeviceId>,
}

impl WritableMemory {
    /// # Safety
    ///
    /// The memory of the buffer is valid for writes until that is dropped, by the device that is named, too.
    pub(crate) unsafe fn new(memory: Box<dyn Buffer>, written_by: Option<DeviceId>) -> Self {
        Self { memory, written_by }
    }

    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }

    /// Whether all that `device` does may write to it.
    pub(crate) fn is_written_by(&self, device: DeviceId) -> bool {
        self.written_by == Some(device)
    }
}

// SAFETY: the promises of the buffer; `new` was promised that it may be written.
unsafe impl Buffer for WritableMemory {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn kind(&self) -> MemoryKind {
        self.memory.kind()
    }

    fn address(&self) -> Option<u64> {
        self.memory.address()
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        self.memory.host_pointer().map(|(start, _)| (start, true))
    }
}

/// The range that a description names. Asked for each of many pieces.
#[inline]
pub(crate) fn host_range(memory: RawMemory) -> Result<NonNull<u8>> {
    let RawMemory { address, bytes, kind } = memory;
    if !matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned) {
        return Err(invalid(memory, "it is not host memory; wrap it on the device that it belongs to"));
    }
    if bytes > isize::MAX as usize {
        return Err(invalid(memory, "it is larger than any host memory"));
    }
    let Ok(start) = usize::try_from(address) else {
        return Err(invalid(memory, "the address does not fit into a pointer"));
    };
    if start.checked_add(bytes).is_none() {
        return Err(invalid(memory, "it reaches beyond the end of the address space"));
    }
    match NonNull::new(std::ptr::with_exposed_provenance_mut(start)) {
        Some(start) => Ok(start),
        None if bytes == 0 => Ok(NonNull::dangling()),
        None => Err(invalid(memory, "the address is null")),
    }
}

#[cold]
fn invalid(memory: RawMemory, reason: &str) -> Error {
    Error::InvalidMemory { address: memory.address, bytes: memory.bytes, reason: reason.to_owned() }
}
