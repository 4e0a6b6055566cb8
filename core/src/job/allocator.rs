//! Results in memory of an allocator of the program.

use std::any::Any;
use std::error;
use std::fmt;
use std::sync::Arc;

use crate::alignment::Alignment;
use crate::backend::RawMemory;
use crate::device::stream::Stream;

/// An allocator of the program, for the results of copies: see [`CopyOptions::allocator`](crate::CopyOptions::allocator).
///
/// # Safety
///
/// What [`allocate`](Self::allocate) returns is memory of the target of the copy, which is valid for reads and writes by that device, and
/// by the host where it is memory of the host, until its owner is dropped. Until then nobody else reads or writes it, but for
///
/// - work that was submitted before `allocate` returned to the stream that [`AllocatedMemory::behind`] names,
/// - work that comes behind the copy and that ends before the owner is dropped: on the device in order of a stream that was
///   [made to wait](crate::CopyHandle::wait_on) for the copy, on the host once that is done, and without writes there as long as a tensor of
///   transship's lies in it.
pub unsafe trait Allocate: Send + Sync {
    /// Allocates `bytes` bytes or more, at a multiple of `alignment`, on the target of a copy. That runs on `stream`, which is of the device
    /// that runs it: the target, or the source where the target is the host.
    ///
    /// Called on the thread that starts the copy, once for each allocation, in the order of [their numbers](crate::Placement::chunk), and before
    /// anything of the copy is submitted or handed to workers. No lock of transship's is held. It may block, and the start of the copy
    /// with it.
    ///
    /// # Errors
    ///
    /// Anything. [`Error`](crate::Error) comes out of the start of the copy as it is, such as
    /// [`OutOfMemory`](crate::Error::OutOfMemory); all else as [`Error::AllocatorFailed`](crate::Error::AllocatorFailed).
    fn allocate(
        &self,
        bytes: usize,
        alignment: Alignment,
        stream: &Stream,
    ) -> Result<AllocatedMemory, Box<dyn error::Error + Send + Sync>>;
}

/// Memory that an allocator of the program gives to a copy.
pub struct AllocatedMemory {
    pub(crate) memory: RawMemory,
    pub(crate) owner: Box<dyn Any + Send + Sync>,
    pub(crate) behind: Option<Stream>,
}

impl AllocatedMemory {
    /// `memory`, until `owner` is dropped: when nothing uses it any more, as the owner of [`Tensor::from_raw`](crate::Tensor::from_raw) is. The
    /// owner should hold no [`Device`](crate::Device), which would wait for its own end.
    pub fn new(memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { memory, owner, behind: None }
    }

    /// The copy writes the memory behind what was submitted to `stream` before the allocator returned this, on the device: the stream on which
    /// the memory was in use before.
    #[must_use]
    pub fn behind(mut self, stream: &Stream) -> Self {
        self.behind = Some(stream.clone());
        self
    }
}

impl fmt::Debug for AllocatedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocatedMemory").field("memory", &self.memory).field("behind", &self.behind).finish()
    }
}

/// The allocator of a copy, if it has one of the program's.
#[derive(Clone)]
pub(crate) struct Allocator(pub(crate) Arc<dyn Allocate>);

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Allocator")
    }
}
