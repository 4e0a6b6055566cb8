//! Buffers on the device: new ones, and those of the program.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use transship_core::backend::{Buffer, MemoryKind, Ticket, WriteWindow};
use transship_core::{Error, Result};
use wgpu::{BufferUsages, BufferViewMut, Features};

use crate::bound::Tag;
use crate::context::Context;
use crate::recycled::rounded_size;
use crate::scopes::scoped;
use crate::source::{BufferSource, OwnedBuffer};
use crate::stream::WgpuStream;

/// Memory of a wgpu device.
pub struct WgpuBuffer {
    /// `None` for no bytes at all.
    buffer: Option<wgpu::Buffer>,
    /// Where it begins in `buffer`.
    offset: usize,
    bytes: usize,
    origin: Origin,
    /// Whether somebody outside of this crate was given the buffer, and may hold it for longer than this.
    is_lent: AtomicBool,
    /// While it is mapped. A view keeps wgpu from unmapping the memory that its pointer goes to.
    open: Mutex<Option<BufferViewMut>>,
    /// What keeps the memory, if it is not wgpu's alone.
    owner: Option<Box<dyn Any + Send + Sync>>,
    tag: Tag,
    context: Arc<Context>,
}

/// Where the memory comes from, and goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The program's, which `counters` knows nothing of.
    Program,
    /// wgpu's.
    New,
    /// [`Recycled`](crate::recycled::Recycled).
    Recycled,
    /// A [`BufferSource`].
    Source,
}

impl WgpuBuffer {
    /// Uninitialised memory. A buffer that was used before still has the bytes of then, and may be larger.
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.check()?;
        let create = |size| context.create_buffer(size, context.usages(), "device", false);
        let (buffer, origin) = match rounded_size(bytes, context.largest_buffer()) {
            _ if bytes == 0 => (None, Origin::New),
            Some(size) => (Some(context.recycled().take_or(size, || create(size))?), Origin::Recycled),
            None => (Some(create(bytes)?), Origin::New),
        };
        Ok(Self::new(context, buffer, bytes, origin, None))
    }

    /// Memory that the host writes first, or ordinary memory if there is no room for that.
    pub(crate) fn allocate_open(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        // GL has no such memory.
        if !context.device().features().contains(Features::MAPPABLE_PRIMARY_BUFFERS) {
            return Self::allocate(context, bytes);
        }
        let usages = context.usages() | BufferUsages::MAP_WRITE;
        let buffer = match context.create_buffer(bytes, usages, "device", true) {
            Err(Error::OutOfMemory { .. }) => return Self::allocate(context, bytes),
            created => created?,
        };
        let Ok(view) = buffer.get_mapped_range_mut(..) else {
            context.timeline().lose("a new buffer is not mapped");
            context.check()?;
            return Self::allocate(context, bytes);
        };
        Ok(Self::new(context, Some(buffer), bytes, Origin::New, Some(view)))
    }

    fn new(
        context: &Arc<Context>,
        buffer: Option<wgpu::Buffer>,
        bytes: usize,
        origin: Origin,
        view: Option<BufferViewMut>,
    ) -> Self {
        let (open, is_lent) = (Mutex::new(view), AtomicBool::new(false));
        let context = context.clone();
        let tag = Tag::new();
        let new = Self { buffer, offset: 0, bytes, origin, is_lent, open, owner: None, tag, context };
        new.context.counters().device_allocated(new.size(), new.context.kept_bytes());
        new
    }

    /// Uninitialised memory of `source`.
    pub(crate) fn from_source(
        context: &Arc<Context>,
        source: &dyn BufferSource,
        bytes: usize,
    ) -> Result<Self> {
        context.check()?;
        let owned = source.allocate(bytes, context.id())?;
        let mut new = Self::owned(context, owned, bytes);
        new.origin = Origin::Source;
        context.counters().device_allocated(new.size(), context.kept_bytes());
        Ok(new)
    }

    /// `bytes` bytes of a buffer whose memory somebody keeps.
    pub(crate) fn owned(context: &Arc<Context>, owned: OwnedBuffer, bytes: usize) -> Self {
        let OwnedBuffer { buffer, offset, owner } = owned;
        let mut new = Self::wrap(context, buffer, offset, bytes);
        new.owner = Some(owner);
        new
    }

    /// Takes `bytes` bytes at `offset` of a buffer of the program, which has them.
    pub(crate) fn wrap(context: &Arc<Context>, buffer: wgpu::Buffer, offset: usize, bytes: usize) -> Self {
        let (origin, is_lent, open) = (Origin::Program, AtomicBool::new(true), Mutex::new(None));
        Self {
            buffer: Some(buffer),
            offset,
            bytes,
            origin,
            is_lent,
            open,
            owner: None,
            tag: Tag::new(),
            context: context.clone(),
        }
    }

    /// The buffer, which may be larger than this; `None` where there are no bytes, and while the host writes to it: whoever has
    /// it could destroy it. Whoever has asked may keep it: its memory is not used again for other tensors.
    pub fn buffer(&self) -> Option<&wgpu::Buffer> {
        if self.open.lock().is_some() {
            return None;
        }
        self.is_lent.store(true, Ordering::Relaxed);
        self.buffer.as_ref()
    }

    /// The buffer, for work that is submitted at once.
    pub(crate) fn inner(&self) -> Option<&wgpu::Buffer> {
        self.buffer.as_ref()
    }

    /// Where the memory begins in [`buffer`](Self::buffer).
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// What keeps the memory, where that came from a [`BufferSource`] or with an [`OwnedBuffer`].
    pub fn owner(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.owner.as_deref()
    }

    /// What tells the buffer from all others.
    pub(crate) fn tag(&self) -> &Tag {
        &self.tag
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }

    /// Bytes that it takes: of the whole buffer, but of its own part where others have theirs in it.
    fn size(&self) -> usize {
        if self.origin == Origin::Source {
            return self.bytes;
        }
        self.buffer.as_ref().map_or(0, |buffer| usize::try_from(buffer.size()).unwrap_or(usize::MAX))
    }
}

// SAFETY: a buffer stays where it is until its last handle goes. wgpu keeps it until the submissions that use it are
// done, whoever drops it; `release` keeps it for those that are not wgpu's. A buffer that is recycled was never lent and
// cannot be mapped: nothing but the queue reaches its memory, and the next use comes behind the last one there. What a
// `BufferSource` has given is the owner's, who goes last.
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

    fn window(&self) -> Option<WriteWindow> {
        let mut open = self.open.lock();
        drop(open.take()?);
        // A device that was destroyed has freed its memory, mapped or not, and says so only to those who ask for a view.
        *open = self.buffer.as_ref()?.get_mapped_range_mut(..).ok();
        let start = open.as_mut()?.slice(..).as_raw_element_ptr();
        // SAFETY: the mapping has so many bytes; it stays until `close`, since the view does.
        Some(unsafe { WriteWindow::new(start, self.bytes) })
    }

    unsafe fn close(&self) -> Result<()> {
        let (Some(view), Some(buffer)) = (self.open.lock().take(), &self.buffer) else { return Ok(()) };
        drop(view);
        self.context.counters().driver_called(1);
        let ((), error) = scoped(self.context.device(), || buffer.unmap());
        error.map_or(Ok(()), |error| Err(self.context.explain("Buffer::unmap", &error)))
    }

    /// A buffer of the program need not be one for kernels.
    fn is_scattered_to(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| buffer.usage().contains(BufferUsages::STORAGE))
    }

    /// The one queue of the device orders what comes behind.
    fn release_after(&mut self, after: &[Ticket]) -> bool {
        let is_own = |ticket: &Ticket| {
            WgpuStream::of(&*ticket.stream).is_some_and(|stream| stream.context().is(&self.context))
        };
        after.iter().all(is_own)
    }
}

impl Drop for WgpuBuffer {
    fn drop(&mut self) {
        if let Some(number) = self.tag.bound_number() {
            self.context.kernels().workspaces.unbind(number);
        }
        let size = self.size();
        if self.origin != Origin::Program {
            self.context.counters().device_freed(size);
        }
        if self.origin == Origin::Recycled {
            let (is_lent, is_lost) = (*self.is_lent.get_mut(), self.context.check().is_err());
            self.context.recycled().put_back(size, self.buffer.take().filter(|_| !is_lent && !is_lost));
        }
    }
}
