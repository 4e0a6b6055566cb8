//! Memory of a device that one other process has as well.

use std::any::Any;
use std::os::fd::OwnedFd;

use crate::error::Result;

/// What most devices cannot.
pub(crate) const SHARES_NO_MEMORY: &str = "share its memory with another process; copy to the host first";

/// The name of memory of a [`SharedPool`] in the process that imports it.
pub type MemoryName = [u8; 64];

/// A pool of a device's memory for one other process, which can see all of it.
pub trait SharedPool: Send + Sync {
    /// What the other process imports the pool by.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn export(&self) -> Result<OwnedFd>;

    /// Allocates memory (uninitialised), usable on every stream from now on, and names it. Drivers name none of a pool that was not
    /// [exported](Self::export) before. Waits for a stream of the pool's own, which has nothing else to do.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory), with the figures; what else the driver says.
    fn allocate(&self, bytes: usize) -> Result<(MemoryName, Box<dyn PeerMemory>)>;
}

/// A pool of another process.
pub trait ImportedPool: Send + Sync {
    /// Maps memory of the pool. May block for milliseconds. `loan` is dropped once the driver has taken the memory back, or has not given it; where it does not take it
    /// back, `loan` is leaked: the other process must not free the memory then.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::error::Error::Unsupported) for memory that this process has imported and not dropped yet; what the driver says,
    /// such as of a name that is none.
    fn import(&self, name: &MemoryName, loan: Box<dyn Any + Send + Sync>) -> Result<Box<dyn PeerMemory>>;
}

/// Memory that two processes have, in one of them. Dropped, it is given back to the driver, and that is waited for, which may take milliseconds. The process that has imported
/// it must do so before the other one does.
///
/// # Safety
///
/// It is memory of the device at this address, which every stream may use, until this is dropped. Who drops it promises that nothing uses it any more.
pub unsafe trait PeerMemory: Send + Sync {
    /// Where it lies on the device, in this process.
    fn address(&self) -> u64;
}
