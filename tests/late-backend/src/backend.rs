//! The driver and its devices.

mod capture;

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use transship_core::backend::{
    Backend, BackendStream, Buffer, CopyOp, Counters, DeviceMemory, DeviceProperties, Direction, Driver,
    HostAccess, KernelTable, Limits, MemoryKind, RawMemory, Registration, Staging, StreamPriority,
    Submission,
};
use transship_core::{Device, DeviceId, Error, Result};

use crate::calls::{Call, failure};
use crate::config::SubmitFailure;
use crate::instance::Instance;
use crate::memory::{LateBuffer, LateStaging, Life};
use crate::queue::{Op, Queue};
use crate::stream::{Held, LateStream};

pub(crate) struct LateDriver(pub(crate) Arc<Instance>);

impl Driver for LateDriver {
    fn name(&self) -> &'static str {
        self.0.config.name
    }

    fn preference(&self) -> u32 {
        0
    }

    fn is_available(&self) -> Result<()> {
        Ok(())
    }

    fn device_count(&self) -> usize {
        self.0.config.devices
    }

    fn properties(&self, ordinal: usize) -> Result<DeviceProperties> {
        Ok(self.0.properties(ordinal))
    }

    fn reaches(&self, _: usize, _: usize) -> Result<bool> {
        Ok(self.0.config.peers)
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>> {
        let count = self.device_count();
        if ordinal >= count {
            return Err(Error::NoSuchDevice { device: DeviceId::new(self.name(), ordinal)?, count });
        }
        drop(self.0.enter(Call::Open, true, ordinal)?);
        Ok(Arc::new(LateBackend::new(self.0.clone(), ordinal)))
    }
}

/// One simulated device.
pub(crate) struct LateBackend {
    pub(crate) instance: Arc<Instance>,
    pub(crate) device: usize,
    limits: Limits,
}

impl LateBackend {
    pub(crate) fn new(instance: Arc<Instance>, device: usize) -> Self {
        let config = &instance.config;
        let mut limits =
            Limits::new(config.buffer_alignment, config.largest_buffer.min(config.device_memory));
        limits.copy_granularity = config.copy_granularity;
        limits.bindable_alignment = config.bindable_alignment;
        limits.host_writable = config.host_writable;
        limits.largest_open = config.largest_open;
        limits.mapped_staging = config.mapped_staging;
        if config.without_kernels != Some(device) {
            limits.gather = config.gather;
            limits.gather_strided = config.gather_strided;
            limits.largest_strided = config.largest_strided;
            limits.largest_scattered_run = config.largest_scattered_run;
            limits.fewest_scattered_runs = config.fewest_scattered_runs;
        }
        Self { instance, device, limits }
    }

    /// Whether several copies of this device at a time read a staging block of another one of its driver, or its own.
    pub(crate) fn reads_blocks_of(&self, device: usize) -> bool {
        let config = &self.instance.config;
        !config.mapped_staging && (device == self.device || config.shared_staging)
    }

    fn stream<'a>(&self, stream: &'a dyn BackendStream) -> Result<&'a LateStream> {
        let stream = LateStream::of(stream, &self.instance).ok_or(Error::Unsupported {
            device: self.device(),
            what: "work on a stream of another driver",
        })?;
        if stream.device != self.device {
            let actual = self.instance.devices[stream.device];
            return Err(Error::WrongStream { actual, expected: self.device() });
        }
        Ok(stream)
    }

    fn new_buffer(&self, bytes: usize, stream: &dyn BackendStream, open: bool) -> Result<LateBuffer> {
        let stream = self.stream(stream)?;
        if !self.limits.copy_granularity.divides(bytes) {
            return Err(self
                .instance
                .violation(self.device, format!("a buffer of {bytes} bytes, which is no multiple")));
        }
        if bytes > self.instance.config.largest_buffer {
            let (device, limit) = (self.device(), self.limits.largest_buffer);
            return Err(Error::TooLarge { device, kind: "device", requested: bytes, limit });
        }
        let on_host = open || self.limits.host_writable;
        let (allocation, address) =
            self.instance.allocate(self.device, bytes, (!on_host).then_some(stream.index))?;
        Ok(LateBuffer {
            instance: self.instance.clone(),
            device: self.device,
            allocation,
            offset: 0,
            bytes,
            address,
            life: Some(Life::Allocation(allocation)),
            open: open.into(),
        })
    }

    /// Puts captured operations on a stream, which the driver sees as `copies` copies.
    fn enqueue(
        &self,
        ops: &[CopyOp<'_>],
        captured: Vec<Op>,
        copies: usize,
        stream: &LateStream,
    ) -> Result<Submission> {
        let blocking = ops.iter().any(|op| capture::blocks(op, &self.instance.config));
        if let Err(error) = self.instance.enter(Call::Submit, blocking, self.device).map(drop) {
            self.submit_some(captured, stream)?;
            return Err(error);
        }
        let mut state = self.instance.lock();
        self.instance.check_uncaptured(stream.index, &state)?;
        let moved = capture::count(&mut state.counters[self.device], ops, copies);
        let blocks: Vec<u64> = captured.iter().flat_map(Op::blocks).collect();
        let queue = &mut state.streams[stream.index];
        queue.pending.extend(captured);
        let position = queue.record();
        state.occupy(&blocks, stream.index, position);
        Ok(Submission::new(position, copies, moved))
    }

    /// Does what a submit that fails half way has done: the first copies, to their end.
    fn submit_some(&self, mut ops: Vec<Op>, stream: &LateStream) -> Result<()> {
        let SubmitFailure::AfterOps(count) = self.instance.config.submit_failure else { return Ok(()) };
        ops.truncate(count);
        let mut state = self.instance.lock();
        let queue = &mut state.streams[stream.index];
        queue.pending.extend(ops);
        let behind = queue.record();
        drop(state);
        self.instance.run_until(stream.index, None, |state| state.streams[stream.index].reached >= behind)?;
        Ok(())
    }
}

// SAFETY: promise 1: a position is an operation behind the copies of its stream; 2: `submit_some` waits;
// 3: blocks never move, and a staging block is freed when it is dropped; 4: `Instance::collect` frees device memory once
// its tickets are reached; 5: nothing but `wait`, `synchronize` and a failing submit sleeps.
unsafe impl Backend for LateBackend {
    fn device(&self) -> DeviceId {
        self.instance.devices[self.device]
    }

    fn description(&self) -> &str {
        "simulated device that copies as late as it may"
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counters(&self) -> Counters {
        self.instance.lock().counters[self.device]
    }

    fn properties(&self) -> Result<DeviceProperties> {
        Ok(self.instance.properties(self.device))
    }

    fn memory(&self) -> Result<DeviceMemory> {
        self.instance.memory(self.device)
    }

    fn reset_memory_peaks(&self) -> Result<()> {
        self.instance.reset_peaks(self.device)
    }

    fn create_stream(&self, _: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        let mut state = self.instance.enter(Call::CreateStream, false, self.device)?;
        state.streams.push(Queue::new(self.device));
        state.counters[self.device].streams_created += 1;
        let index = state.streams.len() - 1;
        let (instance, held) = (self.instance.clone(), Held::new(&self.instance));
        Ok(Arc::new(LateStream { instance, device: self.device, index, held }))
    }

    fn allocate(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(self.new_buffer(bytes, stream, false)?))
    }

    fn allocate_open(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        if bytes > self.limits.largest_open {
            let what = format!("an open buffer of {bytes} bytes, which is too large");
            return Err(self.instance.violation(self.device, what));
        }
        Ok(Box::new(self.new_buffer(bytes, stream, true)?))
    }

    fn allocate_staging(&self, bytes: usize, direction: Direction) -> Result<Box<dyn Staging>> {
        let (id, block) = self.instance.allocate_staging(self.device, bytes, direction)?;
        Ok(Box::new(LateStaging {
            instance: self.instance.clone(),
            device: self.device,
            id,
            direction,
            block,
        }))
    }

    /// Wraps a part of a live allocation of this device: allocate a buffer, and let it be the owner. Memory of the host counts as page-locked, if it is said to be.
    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        let state = self.instance.enter(Call::Wrap, false, self.device)?;
        let RawMemory { address, bytes, kind, .. } = memory;
        if kind == MemoryKind::Pinned {
            drop(state);
            // SAFETY: the caller's promise.
            return unsafe { Device::host().backend().wrap(memory, owner) };
        }
        let invalid = |reason: &str| Error::InvalidMemory { address, bytes, reason: reason.to_owned() };
        if kind != MemoryKind::Device {
            return Err(invalid("it is no device memory"));
        }
        let found = state.allocations.iter().find_map(|(id, memory)| {
            let offset = usize::try_from(address.checked_sub(memory.address)?).ok()?;
            (memory.device == self.device && memory.block.at(offset, bytes).is_some())
                .then_some((*id, offset))
        });
        let (allocation, offset) = found.ok_or_else(|| invalid("the device has no such memory"))?;
        drop(state);
        Ok(Box::new(LateBuffer {
            instance: self.instance.clone(),
            device: self.device,
            allocation,
            offset,
            bytes,
            address,
            life: Some(Life::Owner { _owner: owner }),
            open: false.into(),
        }))
    }

    /// Page-locked memory, and none of other devices.
    fn kernels_reach(&self, memory: &dyn Buffer) -> bool {
        memory.kind() == MemoryKind::Pinned
    }

    fn allocation_of(&self, address: u64) -> Option<Range<u64>> {
        let state = self.instance.enter(Call::AllocationOf, false, self.device).ok()?;
        state.allocations.values().filter(|memory| memory.device == self.device).find_map(|memory| {
            let range = memory.address..memory.address + memory.block.bytes() as u64;
            range.contains(&address).then_some(range)
        })
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        access: HostAccess,
    ) -> Result<Box<dyn Registration>> {
        Ok(Box::new(self.instance.register(self.device, start, bytes, access)?))
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        let stream = self.stream(stream)?;
        let mut captured = Vec::with_capacity(ops.len());
        for op in ops {
            self.capture(op, &mut captured)?;
        }
        self.enqueue(ops, captured, ops.len(), stream)
    }

    unsafe fn submit_gathered(
        &self,
        ops: &[CopyOp<'_>],
        table: KernelTable<'_>,
        stream: &dyn BackendStream,
    ) -> Result<Submission> {
        let stream = self.stream(stream)?;
        let mut captured = vec![self.capture_table(ops, table)?];
        for op in ops {
            self.capture(op, &mut captured)?;
        }
        self.enqueue(ops, captured, 1, stream)
    }

    fn copy_streams(&self) -> usize {
        self.instance.config.copy_streams
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>().is_some_and(|other| {
            let same = Arc::ptr_eq(&self.instance, &other.instance);
            same && (self.device == other.device || self.instance.config.peers)
        })
    }

    fn reads_staging_of(&self, other: &dyn Backend) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>().is_some_and(|other| {
            Arc::ptr_eq(&self.instance, &other.instance) && self.reads_blocks_of(other.device)
        })
    }

    fn trim(&self) -> usize {
        let mut state = self.instance.admit();
        state.calls.note(Call::Trim, true);
        let freed = std::mem::take(&mut state.hoards[self.device]);
        state.counters[self.device].device_bytes -= freed as u64;
        freed
    }

    fn synchronize(&self) -> Result<()> {
        let state = self.instance.enter(Call::Synchronize, true, self.device)?;
        let streams = 0..state.streams.len();
        let mine: Vec<usize> = streams.filter(|index| state.streams[*index].device == self.device).collect();
        drop(state);
        for index in mine {
            let all_done =
                self.instance.run_until(index, None, |state| state.streams[index].pending.is_empty())?;
            if !all_done {
                return Err(failure(self.device(), "a stream did not come to its end".to_owned()));
            }
        }
        self.instance.collect();
        Ok(())
    }
}
