//! A backend of your own, in one file: a "toy" device whose memory the host cannot read.
//!
//! A backend is mechanism only: memory, copies and positions. What to pack, when to wait and when to free is decided by
//! transship. This one copies on the calling thread, so that a position is reached as soon as it is given out; a real one
//! hands its copies to a queue and asks that how far it has come.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use transship::backend::{
    Backend, BackendStream, Buffer, CopyOp, Counters, Direction, Driver, HostSide, Limits, MemoryKind,
    RawMemory, Staging, StreamPriority, Submission, TimeMark, WriteWindow,
};
use transship::{Alignment, CopyOptions, Device, DeviceId, Error, Result, Tensor};

fn main() -> Result<()> {
    transship::register_driver(Arc::new(ToyDriver))?;
    let toy = Device::open("toy:0".parse()?)?;
    println!("opened {}: {}", toy.id(), toy.description());

    let camera = |at: f32| -> Result<Vec<Tensor>> {
        Ok(vec![Tensor::from_vec(vec![at; 12], &[3, 4])?, Tensor::from_vec(vec![1_i64, 2, 3], &[3])?])
    };
    let batch = (vec![camera(0.5)?, camera(1.5)?], Some(Tensor::from_vec(vec![7_u8; 5], &[5])?));

    let on_toy = transship::start_copy(batch, &toy, CopyOptions::default())?.wait()?;
    println!("up:   {} bytes in {} copies", toy.counters().bytes_up, toy.counters().copies);
    assert_eq!(on_toy.0[0][0].device_id()?, toy.id());
    assert!(on_toy.0[0][0].as_slice::<f32>().is_err(), "the host cannot read the toy's memory");

    let back = transship::start_copy(on_toy, &Device::host(), CopyOptions::default())?.wait()?;
    println!("down: {} bytes", toy.counters().bytes_down);
    assert_eq!(back.0[1][0].to_vec::<f32>()?, [1.5; 12]);
    assert_eq!(back.0[0][1].to_vec::<i64>()?, [1, 2, 3]);
    assert_eq!(back.1.as_ref().map(Tensor::to_vec::<u8>).transpose()?, Some(vec![7; 5]));
    println!("the same structure came back");
    Ok(())
}

struct ToyDriver;

impl Driver for ToyDriver {
    fn name(&self) -> &'static str {
        "toy"
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

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>> {
        let device = DeviceId::new(self.name(), ordinal)?;
        let limits = Limits::new(const { Alignment::new(64).unwrap() }, 1 << 30);
        Ok(Arc::new(Toy { device, limits, counters: Mutex::default() }))
    }
}

struct Toy {
    device: DeviceId,
    limits: Limits,
    counters: Mutex<Counters>,
}

impl Toy {
    fn zeros(&self, kind: &'static str, bytes: usize) -> Result<Vec<u8>> {
        let limit = self.limits.largest_buffer;
        if bytes > limit {
            return Err(Error::TooLarge { device: self.device, kind, requested: bytes, limit });
        }
        Ok(vec![0; bytes])
    }

    fn unsupported(&self, what: &'static str) -> Error {
        Error::Unsupported { device: self.device, what }
    }

    /// Finds a buffer of this driver again behind the trait.
    fn memory<'a>(&self, buffer: &'a dyn Buffer) -> Result<MutexGuard<'a, Vec<u8>>> {
        let buffer: &dyn Any = buffer;
        let buffer =
            buffer.downcast_ref::<ToyBuffer>().ok_or(self.unsupported("copy another device's memory"))?;
        Ok(lock(&buffer.memory))
    }

    /// # Safety
    ///
    /// That of [`Backend::submit`]: ranges are inside of their buffers, and nobody else touches them.
    unsafe fn run(&self, op: &CopyOp<'_>, counters: &mut Counters) -> Result<usize> {
        match *op {
            CopyOp::Upload { from, to, to_offset, bytes } => {
                let from = from.source().ok_or(self.unsupported("read this host memory"))?;
                let mut to = self.memory(to)?;
                let to = &mut to[to_offset..to_offset + bytes];
                // SAFETY: the caller's promise; `to` is a slice of so many bytes.
                unsafe { from.copy_to_nonoverlapping(NonNull::from(to).cast(), bytes) };
                counters.bytes_up += bytes as u64;
                Ok(bytes)
            }
            CopyOp::Download { from, from_offset, to, bytes } => {
                let to = HostSide::destination(&to).ok_or(self.unsupported("write to this host memory"))?;
                let from = self.memory(from)?;
                let from = &from[from_offset..from_offset + bytes];
                // SAFETY: the caller's promise; `from` is a slice of so many bytes.
                unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), bytes) };
                counters.bytes_down += bytes as u64;
                Ok(bytes)
            }
            CopyOp::Between { from, from_offset, to, to_offset, bytes } => {
                let data = self.memory(from)?[from_offset..from_offset + bytes].to_vec();
                self.memory(to)?[to_offset..to_offset + bytes].copy_from_slice(&data);
                counters.bytes_between += bytes as u64;
                Ok(bytes)
            }
            CopyOp::Clear { to, to_offset, bytes } => {
                self.memory(to)?[to_offset..to_offset + bytes].fill(0);
                Ok(bytes)
            }
            _ => Err(self.unsupported("run a copy of this kind")),
        }
    }
}

// SAFETY: copies are done when `submit` returns, with or without an error (promises 1 and 2); the blocks never move and
// are their own heap allocations (3); no copy is in flight when memory is let go of (4); nothing waits (5).
unsafe impl Backend for Toy {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn description(&self) -> &str {
        "a toy, made of vectors"
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counters(&self) -> Counters {
        *lock(&self.counters)
    }

    fn create_stream(&self, _: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        lock(&self.counters).streams_created += 1;
        Ok(Arc::new(ToyStream { device: self.device, recorded: AtomicU64::new(0) }))
    }

    fn allocate(&self, bytes: usize, _: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(ToyBuffer { bytes, memory: Mutex::new(self.zeros("device", bytes)?) }))
    }

    fn allocate_staging(&self, bytes: usize, _: Direction) -> Result<Box<dyn Staging>> {
        lock(&self.counters).staging_allocations += 1;
        Ok(Box::new(ToyStaging(self.zeros("staging", bytes)?.into_iter().map(UnsafeCell::new).collect())))
    }

    fn takes_addresses(&self) -> bool {
        false
    }

    unsafe fn wrap(&self, memory: RawMemory, _: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        let RawMemory { address, bytes, .. } = memory;
        Err(Error::InvalidMemory { address, bytes, reason: "the toy's memory has no addresses".to_owned() })
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        let mut counters = lock(&self.counters);
        let mut moved = 0;
        for op in ops {
            // SAFETY: the caller's promise is passed on.
            moved += unsafe { self.run(op, &mut counters) }?;
        }
        counters.submissions += 1;
        counters.copies += ops.len() as u64;
        Ok(Submission::new(stream.record()?, ops.len(), moved))
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        other.device() == self.device
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

struct ToyStream {
    device: DeviceId,
    recorded: AtomicU64,
}

// SAFETY: a position is given out when the copies before it are done.
unsafe impl BackendStream for ToyStream {
    fn record(&self) -> Result<u64> {
        Ok(self.recorded.fetch_add(1, Ordering::Release) + 1)
    }

    fn wait_for(&self, other: &dyn BackendStream, _: u64) -> Result<()> {
        let other: &dyn Any = other;
        let foreign =
            Error::Unsupported { device: self.device, what: "wait for the stream of another driver" };
        other.is::<Self>().then_some(()).ok_or(foreign)
    }

    fn reached(&self) -> Result<u64> {
        Ok(self.recorded.load(Ordering::Acquire))
    }

    fn wait(&self, position: u64, _: Option<Duration>) -> Result<bool> {
        Ok(self.reached()? >= position)
    }

    fn mark(&self) -> Result<Box<dyn TimeMark>> {
        Err(Error::Unsupported { device: self.device, what: "tell the time" })
    }
}

/// The toy's memory: there is no pointer to it.
struct ToyBuffer {
    bytes: usize,
    memory: Mutex<Vec<u8>>,
}

// SAFETY: it has no host pointer, and it is dropped only when nothing uses it: its copies are done when they are submitted.
unsafe impl Buffer for ToyBuffer {
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
}

/// A block that is written through a shared reference, hence the cells.
struct ToyStaging(Box<[UnsafeCell<u8>]>);

// SAFETY: the bytes are only reached through pointers, whose users keep the promises of `submit` and of the window.
unsafe impl Sync for ToyStaging {}

// SAFETY: the block is a heap allocation of its own, freed when it is dropped.
unsafe impl Staging for ToyStaging {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn is_pinned(&self) -> bool {
        false
    }

    fn window(&self) -> Option<WriteWindow> {
        // SAFETY: the block has so many bytes and lives as long as `self`.
        self.contents().map(|start| unsafe { WriteWindow::new(start, self.bytes()) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        // `UnsafeCell<u8>` has the layout of `u8` and may be written through a shared reference.
        Some(NonNull::from(&*self.0).cast())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
