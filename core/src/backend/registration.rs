//! Memory of the program that is page-locked where it lies.

use crate::error::Result;

/// What copies do with memory of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAccess {
    /// They read it. It may be mapped read-only.
    Read,
    /// They read and write it.
    ReadWrite,
}

/// Memory that [`Backend::register`](crate::backend::Backend::register) has page-locked. Dropping this unlocks nothing.
///
/// # Safety
///
/// Once [`end`](Self::end) has returned `Ok`, the driver knows nothing of the memory any more.
pub unsafe trait Registration: Send + Sync {
    /// Whether kernels of the device reach the memory by the address that it has on the host.
    fn is_reached_by_kernels(&self) -> bool;

    /// Unlocks the memory. May block for milliseconds, and until a device has made progress.
    ///
    /// # Safety
    ///
    /// No copy uses the memory any more. Once this has returned `Ok` it is not called again.
    ///
    /// # Errors
    ///
    /// What the driver says; the memory counts as locked then.
    unsafe fn end(&mut self) -> Result<()>;
}
