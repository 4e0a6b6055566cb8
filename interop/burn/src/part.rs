//! Where a tensor of transship lies in memory of cubecl's.

use burn_cubecl::cubecl::server::Handle;

/// A part of an allocation of cubecl's, in bytes.
pub(crate) struct Part {
    /// All of the allocation.
    pub(crate) handle: Handle,
    /// What cubecl aligns the start of the part by: an address, or an offset.
    pub(crate) place: u64,
    /// From the start of the allocation on.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Part {
    /// The part alone.
    pub(crate) fn into_handle(self) -> Handle {
        let behind = self.handle.size_in_used().saturating_sub(self.start + self.bytes);
        self.handle.offset_start(self.start).offset_end(behind)
    }
}
