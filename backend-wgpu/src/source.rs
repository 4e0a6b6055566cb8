//! Memory that another library has allocated on the same device.

use std::any::Any;

use transship_core::{Alignment, DeviceId, Result};

/// A part of a buffer, and who keeps it.
pub struct OwnedBuffer {
    /// The buffer, in which others may have their parts.
    pub buffer: wgpu::Buffer,
    /// Where the part begins, in bytes.
    pub offset: usize,
    /// Keeps the part from being used for something else, until it is dropped.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// An allocator that works on the same device and queue: see [`from_device_with`](crate::from_device_with).
///
/// # Safety
///
/// Of what [`allocate`](Self::allocate) returns:
///
/// 1. The buffer is one of the device, with the usages `COPY_SRC` and `COPY_DST`, and is not mapped. It has `bytes` bytes at the offset,
///    which is a multiple of [`alignment`](Self::alignment).
/// 2. Those are nobody else's until the owner is dropped, and then until what was submitted to the queue before is done or orders
///    what comes behind. Work on them that came before has been submitted to the queue.
/// 3. Dropping the owner neither blocks nor panics, and calls nothing of transship: it may happen on any thread of it.
pub unsafe trait BufferSource: Send + Sync + 'static {
    /// How parts are aligned in their buffers: 16 bytes or more.
    fn alignment(&self) -> Alignment;

    /// The largest part that there can be, in bytes.
    fn largest(&self) -> usize;

    /// Uninitialised memory: `bytes` is not 0, and a multiple of 4. `device` is for errors. Called on any thread, of
    /// the program or of transship.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`](transship_core::Error::OutOfMemory) where there is none, and what the allocator says.
    fn allocate(&self, bytes: usize, device: DeviceId) -> Result<OwnedBuffer>;
}
