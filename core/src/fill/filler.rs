//! Memory of a device that the program fills itself.

use std::sync::Arc;

use crate::backend::{CopyOp, Direction};
use crate::device::block_size::power_within;
use crate::device::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fill::block::FillBlock;
use crate::in_flight::completion::Completion;
use crate::in_flight::retained::Retained;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::fork;
use crate::runtime::trace::span;
use crate::staging::block::Block;
use crate::staging::pool::StagingPool;
use crate::staging::size_class::{LARGEST_BLOCK, SMALLEST_BLOCK};
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Gaps, Storage};
use crate::tensor::tensor::Tensor;

/// So many blocks keep the link busy while others are filled.
const BLOCKS: usize = 16;

/// Memory of a device, and pinned blocks of its own to fill it with. Any number of threads may take, fill and submit blocks at
/// the same time. Dropping it gives up: what is submitted by then comes to its end, and everything goes.
pub struct Filler {
    device: Device,
    queue: Arc<SubmissionQueue>,
    pool: Arc<StagingPool>,
    block_bytes: usize,
    memory: Vec<Storage>,
    filled: Arc<Completion>,
}

/// A part of a block, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The number of the memory, as [`Filler::allocate`] gave it.
    pub memory: usize,
    /// Where in that memory, in bytes.
    pub to_offset: usize,
    /// Where in the block, in bytes.
    pub from_offset: usize,
    /// How much.
    pub bytes: usize,
}

impl Filler {
    /// For memory of `device`, through pinned blocks of at most `budget` bytes together, beside those of copies. Blocks are
    /// page-locked when they are first asked for, and freed some time after the filler is gone.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for a budget below 64 KiB, the smallest block. [`Error::Unsupported`] where the host writes the
    /// memory of the device itself: tensors of the host are filled by [`Tensor::as_mut_bytes`].
    pub fn new(device: &Device, budget: usize) -> Result<Self> {
        fork::check()?;
        if device.is_host() || device.limits().host_writable {
            let what = "be filled through blocks; allocate a tensor (Tensor::empty) and write it (Tensor::as_mut_bytes)";
            return Err(Error::Unsupported { device: device.id(), what });
        }
        if budget < SMALLEST_BLOCK {
            let reason = "it must be at least 65536, the smallest block";
            return Err(Error::InvalidOption { name: "budget", value: budget.to_string(), reason });
        }
        let pool = StagingPool::for_filling(device.backend().clone(), device.node(), budget);
        let queue = device.up()?;
        pool.serve(&queue);
        let block_bytes = power_within(budget / BLOCKS).clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
        Ok(Self {
            device: device.clone(),
            queue,
            pool,
            block_bytes,
            memory: Vec::new(),
            filled: Completion::new(),
        })
    }

    /// How many bytes its blocks have room for: a power of two of at least 64 KiB.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Allocates memory of at least `bytes` bytes for so many tensors, and returns its number. Where there are several, later copies
    /// into them may overwrite what lies between them. Where the device's budget has no room, waits for what is in flight there
    /// ([`Device::set_memory_budget`]).
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::OutOfMemory`], [`Error::OverBudget`], or what the driver says.
    pub fn allocate(&mut self, bytes: usize, tensors: usize) -> Result<usize> {
        fork::check()?;
        let mut reserved = self.device.reserve_patiently(self.device.granules(bytes)?)?;
        let buffer = self.device.allocate_of(&mut reserved, bytes, &self.queue)?;
        let gaps = if tensors > 1 { Gaps::Padding } else { Gaps::Kept };
        let filled = Some(self.filled.clone());
        self.memory.push(Storage::with_gaps(buffer, Some(self.device.clone()), filled, gaps));
        Ok(self.memory.len() - 1)
    }

    /// An empty block: waits until there is one within the budget. Where nothing can be page-locked it is ordinary memory.
    ///
    /// # Errors
    ///
    /// What the driver says, if the device is broken.
    pub fn block(&self) -> Result<FillBlock> {
        fork::check()?;
        let block = match self.pool.take(self.block_bytes, Direction::Upload, None) {
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => self.pool.fall_back(self.block_bytes),
            block => block,
        };
        FillBlock::new(block?, self.pool.clone(), self.block_bytes)
    }

    /// Submits the copies of `parts` of the block. The block comes back when the device has read it.
    ///
    /// Where the device copies whole granules only ([`Limits::copy_granularity`](crate::backend::Limits::copy_granularity)), offsets
    /// and bytes are whole granules.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a part that reaches behind what was appended to the block, or behind its memory, or names none;
    /// [`Error::Misaligned`] for one that is not made of granules; [`Error::Unsupported`] for a block of another filler. Nothing is
    /// submitted then. Or what the driver says.
    pub fn submit(&self, block: FillBlock, parts: &[Part]) -> Result<()> {
        fork::check()?;
        if !Arc::ptr_eq(&block.pool, &self.pool) {
            let what = "copy out of a block of another filler; submit it to the one that gave it out";
            return Err(Error::Unsupported { device: self.device.id(), what });
        }
        let storages =
            parts.iter().map(|part| self.target_of(part, block.filled())).collect::<Result<_>>()?;
        let keep = Filling { block: block.block, storages };
        let is_pooled = keep.block.is_pooled();
        let span = span!(
            "submit",
            device = self.device.id().to_string(),
            stream = self.queue.number(),
            bytes = tracing::field::Empty,
            copies = tracing::field::Empty
        );
        // SAFETY: `target_of` has checked that each part lies within its storage and within the filled part of the block, which is one of
        // this device (`ptr_eq`); `keep` holds both.
        let submission = unsafe {
            self.queue.submit(keep, |keep| {
                let uploads = parts.iter().zip(&keep.storages).map(|(part, storage)| CopyOp::Upload {
                    from: keep.block.host_side(part.from_offset),
                    to: storage.buffer(),
                    to_offset: part.to_offset,
                    bytes: part.bytes,
                });
                uploads.collect()
            })
        }?;
        span.record("bytes", || submission.bytes);
        span.record("copies", || submission.copies);
        span.end();
        self.filled.reach(&self.queue, submission.position);
        if !is_pooled {
            // No budget counts ordinary memory.
            self.queue.wait(submission.position, None)?;
        }
        Ok(())
    }

    /// Waits until the device has copied everything that was submitted. What nothing was copied to holds what the memory held.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn finish(mut self) -> Result<Filled> {
        fork::check()?;
        // The memory belongs to the stream that it was allocated on until that has come by.
        let position = self.queue.stream().record()?;
        self.filled.reach(&self.queue, position);
        self.filled.submitted();
        self.filled.wait(None)?;
        Ok(Filled { memory: std::mem::take(&mut self.memory) })
    }

    /// The memory of a part, which suits it.
    fn target_of(&self, part: &Part, filled: usize) -> Result<Storage> {
        let Part { memory, to_offset, from_offset, bytes } = *part;
        let out_of = |what, start: usize, limit| {
            let end = start.saturating_add(bytes);
            if end <= limit { Ok(()) } else { Err(Error::OutOfRange { what, start, end, limit }) }
        };
        let storage = of_number(&self.memory, memory)?;
        out_of("bytes of the block", from_offset, filled)?;
        out_of("bytes of the memory", to_offset, storage.bytes())?;
        let granularity = self.device.limits().copy_granularity;
        match [to_offset, from_offset, bytes].into_iter().find(|value| !granularity.divides(*value)) {
            None => Ok(storage.clone()),
            Some(value) => Err(Error::Misaligned {
                what: "an offset or size of a part",
                value: value as u64,
                alignment: granularity.bytes(),
                cure: "the device copies whole granules: pad the block",
            }),
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // It has no effect if everything has come to its end. Else the reactor looks after what is in flight.
        self.filled.fail(Error::Cancelled);
    }
}

/// Memory that is filled.
pub struct Filled {
    memory: Vec<Storage>,
}

impl Filled {
    /// A tensor over a part of the memory of this number, `offset` bytes behind its start. Tensors of the same memory share it: it
    /// goes with the last of them.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the tensor reaches behind the memory, or there is none of this number; [`Error::Misaligned`] if it is
    /// not aligned for its elements; [`Error::SizeOverflow`].
    pub fn tensor(&self, memory: usize, offset: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::from_storage(
            of_number(&self.memory, memory)?.clone(),
            offset,
            Layout::contiguous(dtype, shape)?,
        )
    }
}

fn of_number(memory: &[Storage], number: usize) -> Result<&Storage> {
    let none = Error::OutOfRange {
        what: "memory",
        start: number,
        end: number.saturating_add(1),
        limit: memory.len(),
    };
    memory.get(number).ok_or(none)
}

/// What one submission uses.
struct Filling {
    block: Block,
    storages: Vec<Storage>,
}

impl Retained for Filling {
    fn give_up(&self) -> usize {
        let storages = self.storages.iter().map(Storage::bytes).sum::<usize>();
        storages + if self.block.give_up() { self.block.bytes() } else { 0 }
    }
}
