//! The host as a device: its memory is the heap, and its copies are done when they have been submitted.

pub(crate) mod copy;
pub(crate) mod foreign_memory;
pub(crate) mod lent_bytes;
pub(crate) mod memory;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::alignment::Alignment;
use crate::backend::host::copy::HostCopyOp;
use crate::backend::host::foreign_memory::{ForeignMemory, host_range};
use crate::backend::host::memory::HostMemory;
use crate::backend::{
    Backend, BackendStream, Buffer, CopyOp, CounterCells, Counters, DeviceMemory, DeviceProperties,
    Direction, Driver, Limits, Moved, RawMemory, Staging, StreamPriority, Submission, TimeMark, WriteWindow,
};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::host_memory;

/// The driver of the host: one device, always there.
pub(crate) struct HostDriver;

impl Driver for HostDriver {
    fn name(&self) -> &'static str {
        "host"
    }

    fn preference(&self) -> u32 {
        0
    }

    fn is_available(&self) -> Result<()> {
        Ok(())
    }

    fn device_count(&self) -> usize {
        1
    }

    fn properties(&self, _: usize) -> Result<DeviceProperties> {
        Ok(properties())
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>> {
        match ordinal {
            0 => Ok(Arc::new(HostBackend::new())),
            _ => Err(Error::InvalidDeviceId { text: format!("host:{ordinal}") }),
        }
    }
}

/// The host. Copies run on the thread that submits them.
pub(crate) struct HostBackend {
    description: String,
    limits: Limits,
    counters: Arc<CounterCells>,
}

impl HostBackend {
    pub(crate) fn new() -> Self {
        Self {
            description: description(),
            limits: Limits {
                host_writable: true,
                ..Limits::new(const { Alignment::new(256).unwrap() }, isize::MAX as usize)
            },
            counters: Arc::default(),
        }
    }
}

fn description() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("host, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn properties() -> DeviceProperties {
    let total_memory = host_memory::bytes().map(|bytes| bytes as u64);
    DeviceProperties { total_memory, ..DeviceProperties::new(description()) }
}

// SAFETY: promises 1 and 2: copies are done when `submit` returns, and a position is given out behind them;
// 3: `HostMemory` never moves its block, and `ForeignMemory` keeps its owner; 4: memory is dropped when its tickets are
// reached, and `HostMemory` keeps its own promise; 5: nothing here waits.
unsafe impl Backend for HostBackend {
    fn device(&self) -> DeviceId {
        DeviceId::HOST
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    /// There is no driver below the host, and its memory is that of the allocator: `driver_calls`, `device_bytes` and
    /// `events_created` stay 0.
    fn counters(&self) -> Counters {
        self.counters.read()
    }

    fn properties(&self) -> Result<DeviceProperties> {
        Ok(properties())
    }

    /// Of all that the process may use: what tensors have of it is the allocator's business, and `None`.
    fn memory(&self) -> Result<DeviceMemory> {
        let total = host_memory::bytes().map(|bytes| bytes as u64);
        let free = host_memory::free_bytes().map(|free| total.map_or(free, |total| free.min(total)));
        Ok(DeviceMemory { free, total, ..DeviceMemory::default() })
    }

    fn create_stream(&self, _: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        self.counters.stream_created();
        Ok(Arc::new(HostStream::new()))
    }

    fn allocate(&self, bytes: usize, _: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(HostMemory::uninit(bytes)?))
    }

    fn allocate_staging(&self, bytes: usize, _: Direction) -> Result<Box<dyn Staging>> {
        let memory = HostMemory::uninit(bytes)?;
        self.counters.staging_allocated(bytes);
        Ok(Box::new(HostStaging { memory, counters: self.counters.clone() }))
    }

    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        let start = host_range(memory)?;
        let RawMemory { bytes, kind, .. } = memory;
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { ForeignMemory::new((start, bytes, kind), false, owner) }))
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        let stream = host_stream(stream).ok_or(Error::Unsupported {
            device: DeviceId::HOST,
            what: "copy on the stream of another device",
        })?;
        let ranges =
            ops.iter().map(HostCopyOp::of).collect::<Result<smallvec::SmallVec<[HostCopyOp; 8]>>>()?;
        for range in &ranges {
            // SAFETY: the caller of `submit` promises that the ranges lie in their buffers, and that nobody else touches
            // the memory before this call returns the position behind them.
            unsafe { range.run() };
        }
        let mut moved = Moved::default();
        ops.iter().for_each(|op| moved.count(op));
        self.counters.submitted(&moved);
        Ok(Submission::new(stream.next_position(), moved.copies(), moved.bytes()))
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        let other: &dyn Any = other;
        other.is::<Self>()
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// Counts positions; each is reached when it is given out.
pub(crate) struct HostStream {
    recorded: AtomicU64,
}

impl HostStream {
    pub(crate) fn new() -> Self {
        Self { recorded: AtomicU64::new(0) }
    }

    /// `Release`, so that whoever reads this position sees the bytes of the copies before it.
    fn next_position(&self) -> u64 {
        self.recorded.fetch_add(1, Ordering::Release) + 1
    }
}

// SAFETY: a position is given out behind copies that are done.
unsafe impl BackendStream for HostStream {
    fn record(&self) -> Result<u64> {
        Ok(self.next_position())
    }

    /// What is submitted to any of them is done by then.
    fn is_same(&self, other: &dyn BackendStream) -> bool {
        host_stream(other).is_some()
    }

    fn wait_for(&self, other: &dyn BackendStream, _: u64) -> Result<()> {
        match host_stream(other) {
            Some(_) => Ok(()),
            None => Err(Error::Unsupported {
                device: DeviceId::HOST,
                what: "wait for the stream of another device",
            }),
        }
    }

    fn reached(&self) -> Result<u64> {
        Ok(self.recorded.load(Ordering::Acquire))
    }

    fn wait(&self, position: u64, _: Option<Duration>) -> Result<bool> {
        Ok(self.reached()? >= position)
    }

    fn mark(&self) -> Result<Box<dyn TimeMark>> {
        Ok(Box::new(HostMark(Instant::now())))
    }
}

fn host_stream(stream: &dyn BackendStream) -> Option<&HostStream> {
    let stream: &dyn Any = stream;
    stream.downcast_ref()
}

struct HostMark(Instant);

impl TimeMark for HostMark {
    fn elapsed_since(&self, earlier: &dyn TimeMark) -> Result<f64> {
        let earlier: &dyn Any = earlier;
        let Some(Self(earlier)) = earlier.downcast_ref() else {
            return Err(Error::Unsupported {
                device: DeviceId::HOST,
                what: "compare its clock with another device's",
            });
        };
        let forward = self.0.saturating_duration_since(*earlier).as_secs_f64();
        let backward = earlier.saturating_duration_since(self.0).as_secs_f64();
        Ok((forward - backward) * 1e6)
    }
}

struct HostStaging {
    memory: HostMemory,
    counters: Arc<CounterCells>,
}

// SAFETY: promise 3 is that of `HostMemory`.
unsafe impl Staging for HostStaging {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn is_pinned(&self) -> bool {
        false
    }

    fn window(&self) -> Option<WriteWindow> {
        // SAFETY: the memory has so many bytes and lives as long as the block.
        self.contents().map(|start| unsafe { WriteWindow::new(start, self.bytes()) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        self.memory.host_pointer().map(|(start, _)| start)
    }
}

impl Drop for HostStaging {
    fn drop(&mut self) {
        self.counters.staging_freed(self.memory.bytes());
    }
}

#[cfg(test)]
mod tests;
