//! Buffers on the device: new ones, and those of the program.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use transship_core::Result;
use transship_core::backend::{Buffer, MemoryKind, Ticket, keep_until};

use crate::context::Context;
use crate::stream::WgpuStream;

/// Memory of a wgpu device.
pub struct WgpuBuffer {
    /// `None` for no bytes at all.
    buffer: Option<wgpu::Buffer>,
    /// Where it begins in `buffer`.
    offset: usize,
    bytes: usize,
    /// Whether `counters` knows of it.
    counted: bool,
    context: Arc<Context>,
}

impl WgpuBuffer {
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.timeline().check()?;
        let buffer = match bytes {
            0 => None,
            _ => Some(context.create_buffer(bytes, context.usages(), "device", false)?),
        };
        context.counting().device_allocated(bytes);
        Ok(Self { buffer, offset: 0, bytes, counted: true, context: context.clone() })
    }

    /// Takes `bytes` bytes at `offset` of a buffer of the program, which has them.
    pub(crate) fn wrap(context: &Arc<Context>, buffer: wgpu::Buffer, offset: usize, bytes: usize) -> Self {
        Self { buffer: Some(buffer), offset, bytes, counted: false, context: context.clone() }
    }

    /// The buffer; `None` where there are no bytes.
    pub fn buffer(&self) -> Option<&wgpu::Buffer> {
        self.buffer.as_ref()
    }

    /// Where the memory begins in [`buffer`](Self::buffer).
    pub fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }
}

// SAFETY: a buffer stays where it is until its last handle goes. wgpu keeps it until the submissions that use it are
// done, whoever drops it; `release` keeps it for those that are not wgpu's.
unsafe impl Buffer for WgpuBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address(&self) -> Option<u64> {
        None
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        None
    }

    fn release(self: Box<Self>, after: &[Ticket]) {
        let is_own = |ticket: &Ticket| {
            WgpuStream::of(&*ticket.stream).is_some_and(|stream| stream.context().is(&self.context))
        };
        if !after.iter().all(is_own) {
            keep_until(self, after);
        }
    }
}

impl Drop for WgpuBuffer {
    fn drop(&mut self) {
        if self.counted {
            self.context.counting().device_freed(self.bytes);
        }
    }
}
