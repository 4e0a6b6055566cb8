//! Host memory that somebody else allocated.

use std::any::Any;
use std::ptr::NonNull;

use crate::backend::{Buffer, MemoryKind, RawMemory};
use crate::error::{Error, Result};

/// Host memory of somebody else. It may be read, not written: that is all that [`Backend::wrap`](crate::backend::Backend::wrap) is promised.
pub(crate) struct ForeignMemory {
    pub(crate) start: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(crate) kind: MemoryKind,
    /// Dropped with the rest.
    pub(crate) _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the range is only handed out as a pointer; whoever reads through it relies on the promises made to `wrap`.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above.
unsafe impl Sync for ForeignMemory {}

// SAFETY: `wrap` was promised that the range is valid until the owner is dropped.
unsafe impl Buffer for ForeignMemory {
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
        Some((self.start, false))
    }
}

/// The range that a description names.
pub(crate) fn host_range(memory: RawMemory) -> Result<NonNull<u8>> {
    let RawMemory { address, bytes, kind } = memory;
    let invalid = |reason: &str| Error::InvalidMemory { address, bytes, reason: reason.to_owned() };
    if !matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned) {
        return Err(invalid("it is not host memory; wrap it on the device that it belongs to"));
    }
    if bytes > isize::MAX as usize {
        return Err(invalid("it is larger than any host memory"));
    }
    let start = usize::try_from(address).map_err(|_| invalid("the address does not fit into a pointer"))?;
    if start.checked_add(bytes).is_none() {
        return Err(invalid("it reaches beyond the end of the address space"));
    }
    match NonNull::new(std::ptr::with_exposed_provenance_mut(start)) {
        Some(start) => Ok(start),
        None if bytes == 0 => Ok(NonNull::dangling()),
        None => Err(invalid("the address is null")),
    }
}
