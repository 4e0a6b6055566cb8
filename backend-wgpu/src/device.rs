//! One wgpu device behind the seam.

use std::any::Any;
use std::sync::Arc;

use transship_core::backend::{
    Backend, BackendStream, Buffer, CopyOp, Counters, DeviceMemory, DeviceProperties, Direction, Limits,
    RawMemory, Staging, StreamPriority, Submission,
};
use transship_core::{Alignment, DeviceId, Error, Result};

use crate::adapters;
use crate::context::Context;
use crate::copy;
use crate::host_written;
use crate::memory::WgpuBuffer;
use crate::source::BufferSource;
use crate::staging::WgpuStaging;
use crate::stream::WgpuStream;

/// The largest alignment of offsets that any API asks for.
const BUFFER_ALIGNMENT: Alignment = match Alignment::new(256) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// So many small copies the caller's thread gives the kernel that gathers, at 0.2 us each (two slow processors) and more.
const COPIES_GATHERED_AT_ONCE: usize = 1024;

/// A wgpu device and its queue.
pub struct WgpuBackend {
    context: Arc<Context>,
    limits: Limits,
    description: String,
    /// Who allocates the memory of tensors, if it is not wgpu.
    source: Option<Box<dyn BufferSource>>,
}

impl WgpuBackend {
    /// Drives `device`, whose queue is `queue`, and `busy` with work of the program's own.
    pub(crate) fn new(id: DeviceId, device: wgpu::Device, queue: wgpu::Queue, busy: bool) -> Self {
        let description = describe(&device.adapter_info());
        let largest_open = host_written::largest(&device, &queue, busy);
        let context = Context::new(id, device, queue);
        Self { limits: limits(&context, largest_open), context, description, source: None }
    }

    /// The same, with tensors in the memory of `source`. The host opens none of that.
    pub(crate) fn with_source(mut self, source: Box<dyn BufferSource>) -> Self {
        self.limits.buffer_alignment = source.alignment();
        self.limits.bindable_alignment = self.limits.bindable_alignment.max(source.alignment());
        self.limits.largest_buffer = self.limits.largest_buffer.min(source.largest());
        self.limits.largest_open = 0;
        self.source = Some(source);
        self
    }

    /// The device.
    ///
    /// # Safety
    ///
    /// As [`from_device`](crate::from_device): nobody destroys it while copies are on their way.
    pub unsafe fn device(&self) -> &wgpu::Device {
        self.context.device()
    }

    /// Its queue.
    pub fn queue(&self) -> &wgpu::Queue {
        self.context.queue()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

// SAFETY: 1. positions: see `WgpuStream`. 2. a submission that wgpu refuses does not run, and `copy::submit` waits until
// its blocks are mapped again. 3. and 4. see `WgpuStaging` and `WgpuBuffer`. 5. no call below waits for a device but
// `synchronize` and copies from and to ordinary memory, as the trait says.
unsafe impl Backend for WgpuBackend {
    fn device(&self) -> DeviceId {
        self.context.id()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counters(&self) -> Counters {
        self.context.counters().read(self.context.kept_bytes())
    }

    fn properties(&self) -> Result<DeviceProperties> {
        Ok(adapters::properties(self.context.device().adapter_info()))
    }

    /// wgpu does not say what the device has: free and total memory are `None`. The rest is counted here.
    fn memory(&self) -> Result<DeviceMemory> {
        Ok(self.context.counters().memory(self.context.kept_bytes()))
    }

    fn reset_memory_peaks(&self) -> Result<()> {
        self.context.counters().reset_peaks();
        Ok(())
    }

    /// wgpu has one queue, and no priorities.
    fn create_stream(&self, _: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        self.context.counters().cells.stream_created();
        Ok(Arc::new(WgpuStream::new(&self.context)))
    }

    fn allocate(&self, bytes: usize, _: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        match &self.source {
            Some(source) if bytes > 0 => {
                Ok(Box::new(WgpuBuffer::from_source(&self.context, &**source, bytes)?))
            }
            _ => Ok(Box::new(WgpuBuffer::allocate(&self.context, bytes)?)),
        }
    }

    fn allocate_open(&self, bytes: usize, _: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(WgpuBuffer::allocate_open(&self.context, bytes)?))
    }

    fn allocate_staging(&self, bytes: usize, direction: Direction) -> Result<Box<dyn Staging>> {
        Ok(Box::new(WgpuStaging::allocate(&self.context, bytes, direction)?))
    }

    fn takes_addresses(&self) -> bool {
        false
    }

    unsafe fn wrap(&self, _: RawMemory, _: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        Err(self.context.unsupported("wrap memory by its address; wrap a buffer"))
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        let Some(stream) = WgpuStream::of(stream) else {
            return Err(self.context.unsupported("use a stream of another driver"));
        };
        if !stream.context().is(&self.context) {
            let (actual, expected) = (stream.context().id(), self.context.id());
            return Err(Error::WrongStream { actual, expected });
        }
        // SAFETY: the caller's promises. The position is one of the stream's, whose context it is submitted in.
        unsafe { copy::submit(stream.context(), ops) }
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        let other = (other as &dyn Any).downcast_ref::<Self>();
        other.is_some_and(|other| other.context.is(&self.context))
    }

    fn trim(&self) -> usize {
        self.context.trim()
    }

    fn synchronize(&self) -> Result<()> {
        let position = self.context.record()?;
        self.context.wait(position, None)?;
        self.context.check_alive()
    }
}

fn limits(context: &Context, largest_open: usize) -> Limits {
    let bytes = |value: u32| Alignment::new(value as usize).unwrap_or(BUFFER_ALIGNMENT);
    // Bindings may be smaller than buffers: what is larger than `max_storage_buffer_binding_size` is bound in parts.
    let mut limits = Limits::new(BUFFER_ALIGNMENT, context.largest_buffer());
    limits.copy_granularity = bytes(wgpu::COPY_BUFFER_ALIGNMENT as u32);
    limits.bindable_alignment = bytes(context.device().limits().min_storage_buffer_offset_alignment);
    limits.largest_open = largest_open;
    limits.mapped_staging = true;
    if context.kernels().ranges.is_some() {
        limits.copies_at_once = COPIES_GATHERED_AT_ONCE;
    }
    if let Some(kernel) = &context.kernels().strided {
        limits.largest_strided = kernel.largest();
        limits.largest_scattered_run = context.kernels().scattered.largest;
        limits.fewest_scattered_runs = context.kernels().scattered.fewest;
    }
    limits
}

/// `llvmpipe (LLVM 15.0.6, 256 bits), Vulkan, Mesa 22.3.6`.
pub(crate) fn describe(info: &wgpu::AdapterInfo) -> String {
    let driver = if info.driver_info.is_empty() { &info.driver } else { &info.driver_info };
    let name = format!("{}, {:?}", info.name, info.backend);
    if driver.is_empty() { name } else { format!("{name}, {driver}") }
}
