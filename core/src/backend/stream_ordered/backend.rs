//! One device behind the seam.

use std::any::Any;
use std::ops::Range;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::allocator::DeviceAllocator;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::buffer::OrderedBuffer;
use crate::backend::stream_ordered::cast_entry::CastEntry;
use crate::backend::stream_ordered::context::Context;
use crate::backend::stream_ordered::gather_kernel::{Gather, GatherEntry};
use crate::backend::stream_ordered::peers::Peers;
use crate::backend::stream_ordered::pinned::PinnedStaging;
use crate::backend::stream_ordered::registration::HostRegistration;
#[cfg(unix)]
use crate::backend::stream_ordered::shared_pool::PeerPool;
use crate::backend::stream_ordered::stream::OrderedStream;
use crate::backend::stream_ordered::submit;
use crate::backend::{
    Backend, BackendStream, Buffer, CopyOp, Counters, DeviceMemory, DeviceProperties, Direction, HostAccess,
    KernelTable, Limits, RawMemory, Registration, Staging, StreamPriority, Submission,
};
#[cfg(unix)]
use crate::backend::{ImportedPool, SharedPool};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// Threads beyond so many share streams: a stream costs memory, and devices run few copies at once.
const COPY_STREAMS: usize = 16;

/// A device of a driver with streams, events and stream-ordered memory.
pub struct OrderedBackend<A: Api> {
    gather: Option<Arc<Gather<A>>>,
    allocator: Arc<DeviceAllocator<A>>,
    limits: Limits,
    description: String,
    /// The other devices that it works with.
    peers: Peers<A>,
    attached: A::Attached,
}

impl<A: Api> OrderedBackend<A> {
    /// A backend for the device that `api` holds open.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(api: A) -> Result<Self> {
        let context = Arc::new(Context::new(api));
        let allocator = Arc::new(DeviceAllocator::new(&context)?);
        let gather = Gather::load(&context, allocator.state())?.map(Arc::new);
        let limits = Limits {
            gather: gather.as_ref().map(|_| GatherEntry::BYTES),
            gather_strided: gather.as_ref().map(|_| CastEntry::BYTES),
            ..Limits::new(A::BUFFER_ALIGNMENT, allocator.total())
        };
        // SAFETY: the device is current.
        let description = unsafe { context.enter()?.description()? };
        Ok(Self {
            gather,
            allocator,
            limits,
            description,
            peers: Peers::new(),
            attached: A::Attached::default(),
        })
    }

    /// This kind of backend behind the seam, if it is one.
    pub fn of(backend: &dyn Backend) -> Option<&Self> {
        (backend as &dyn Any).downcast_ref()
    }

    /// The device, for calls of the driver.
    pub fn context(&self) -> &Arc<Context<A>> {
        self.allocator.context()
    }

    /// What the backend's crate keeps beside the device.
    pub fn attached(&self) -> &A::Attached {
        &self.attached
    }

    /// Whether the stream is one of this device, whatever the two are called.
    pub fn owns(&self, stream: &OrderedStream<A>) -> bool {
        stream.context().is_same(self.context())
    }

    /// The stream, which must be one of this device.
    fn own<'a>(&self, stream: &'a dyn BackendStream) -> Result<&'a OrderedStream<A>> {
        let expected = self.device();
        let Some(stream) = OrderedStream::of(stream) else {
            return Err(Error::Unsupported { device: expected, what: "use a stream of another driver" });
        };
        match self.owns(stream) {
            true => Ok(stream),
            false => Err(Error::WrongStream { actual: stream.device(), expected }),
        }
    }
}

// SAFETY: 1. positions: see `OrderedStream`. 2. `submit::submit` synchronises the stream before it returns an error. 3. and
// 4. see `OrderedBuffer` and `PinnedStaging`. 5. no call below waits for a device but `synchronize`; `allocate_staging` and
// dropping a staging block may take long, as the trait says.
unsafe impl<A: Api> Backend for OrderedBackend<A> {
    fn device(&self) -> DeviceId {
        self.context().id()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counters(&self) -> Counters {
        Counters {
            driver_calls: self.context().api().call_count(),
            device_bytes: self.allocator.reserved_bytes(),
            ..self.context().counters().read()
        }
    }

    fn properties(&self) -> Result<DeviceProperties> {
        self.context().api().properties()
    }

    fn memory(&self) -> Result<DeviceMemory> {
        self.allocator.memory()
    }

    fn reset_memory_peaks(&self) -> Result<()> {
        self.allocator.reset_peaks()
    }

    fn create_stream(&self, priority: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        Ok(Arc::new(OrderedStream::<A>::create(self.context(), priority)?))
    }

    fn allocate(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(OrderedBuffer::allocate(&self.allocator, bytes, self.own(stream)?)?))
    }

    fn allocate_alone(&self, bytes: usize) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(OrderedBuffer::allocate_alone(&self.allocator, bytes)?))
    }

    fn allocate_staging(&self, bytes: usize, direction: Direction) -> Result<Box<dyn Staging>> {
        Ok(Box::new(PinnedStaging::allocate(self.context(), bytes, direction)?))
    }

    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(OrderedBuffer::wrap(&self.allocator, memory, owner)?))
    }

    fn allocation_of(&self, address: u64) -> Option<Range<u64>> {
        // SAFETY: the device is current; any address may be asked about.
        let (start, bytes) = unsafe { self.context().enter().ok()?.allocation_of(address) }.ok()?;
        Some(start..start.checked_add(bytes as u64)?)
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        access: HostAccess,
    ) -> Result<Box<dyn Registration>> {
        // SAFETY: the caller's promises.
        Ok(Box::new(unsafe { HostRegistration::new(self.context(), start, bytes, access)? }))
    }

    #[cfg(unix)]
    fn create_shared_pool(&self) -> Result<Arc<dyn SharedPool>> {
        Ok(Arc::new(PeerPool::create(self.context())?))
    }

    #[cfg(unix)]
    fn import_pool(&self, descriptor: BorrowedFd<'_>) -> Result<Arc<dyn ImportedPool>> {
        Ok(Arc::new(PeerPool::import(&self.allocator, descriptor)?))
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        let stream = self.own(stream)?;
        // SAFETY: the caller's promises; the stream is of this device.
        unsafe { submit::submit(self.context(), ops, self.gather.as_deref(), &self.peers, stream.state()) }
    }

    unsafe fn submit_gathered(
        &self,
        ops: &[CopyOp<'_>],
        table: KernelTable<'_>,
        stream: &dyn BackendStream,
    ) -> Result<Submission> {
        let stream = self.own(stream)?;
        match &self.gather {
            // SAFETY: the caller's promises; the stream is of this device.
            Some(gather) => unsafe {
                submit::submit_gathered(gather, self.context(), ops, table, stream.state())
            },
            // SAFETY: as above.
            None => unsafe { submit::submit(self.context(), ops, None, &self.peers, stream.state()) },
        }
    }

    unsafe fn record_into_graph(
        &self,
        ops: &[CopyOp<'_>],
        stream: &dyn BackendStream,
        share: Box<dyn Any + Send>,
    ) -> Result<()> {
        let stream = self.own(stream)?;
        // SAFETY: the caller's promises; the stream is of this device.
        unsafe { submit::record_into_graph(self.context(), ops, stream.state(), share) }
    }

    fn copy_streams(&self) -> usize {
        COPY_STREAMS
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        let Some(other) = Self::of(other) else { return false };
        other.context().is_same(self.context())
            || self.peers.reaches(&self.allocator, &other.allocator, other.gather.as_ref())
    }

    fn is_written_by(&self, source: &dyn Backend) -> bool {
        Self::of(source)
            .is_some_and(|source| self.reaches(source) && self.peers.is_written_by(&source.allocator))
    }

    fn kernels_reach(&self, memory: &dyn Buffer) -> bool {
        OrderedBuffer::<A>::of(memory).is_some_and(|memory| memory.is_reached_by(self.context()))
    }

    fn reads_staging_of(&self, other: &dyn Backend) -> bool {
        Self::of(other).is_some()
    }

    fn trim(&self) -> usize {
        self.allocator.trim()
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the device is current.
        unsafe { self.context().enter()?.synchronize() }
    }
}
