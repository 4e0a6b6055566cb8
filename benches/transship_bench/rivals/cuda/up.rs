//! From the host to one device.

use std::rc::Rc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::{result, sys};

use super::batch::{Copies, Function};
use super::driver::{Block, Cuda, There, ranges};
use crate::Result;
use crate::input::Input;
use crate::measure::Method;

/// Blocks are taken in turn: the one that the copy engine has just read is slow to write.
const BLOCKS: usize = 4;

/// One copy for each tensor, out of ordinary memory.
pub(in super::super) struct Each {
    pub(super) cuda: Rc<Cuda>,
    there: Option<There>,
}

impl Each {
    pub(super) fn new(cuda: Rc<Cuda>) -> Self {
        Self { cuda, there: None }
    }
}

impl<S> Method<S> for Each {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.cuda.bind()?;
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.cuda, &input.leaves)?);
        for (leaf, (offset, _)) in input.leaves.iter().zip(&there.ranges) {
            // SAFETY: the range lies within the allocation; the leaf outlives the synchronisation below.
            unsafe {
                result::memcpy_htod_async(there.start + *offset as u64, leaf.as_bytes()?, self.cuda.stream)?
            };
        }
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

/// The same, page-locked before and unlocked behind.
pub(super) struct Registered(Each);

impl Registered {
    pub(super) fn new(cuda: Rc<Cuda>) -> Self {
        Self(Each::new(cuda))
    }
}

impl<S> Method<S> for Registered {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.0.there = None;
        self.0.cuda.bind()?;
        let leaves = input.leaves.iter().map(Tensor::as_bytes).collect::<transship::Result<Vec<_>>>()?;
        let started = Instant::now();
        for leaf in &leaves {
            let start = leaf.as_ptr().cast_mut().cast();
            // SAFETY: the memory is there until it is unregistered below, and nobody writes to it.
            unsafe { sys::cuMemHostRegister_v2(start, leaf.len(), sys::CU_MEMHOSTREGISTER_PORTABLE) }
                .result()?;
        }
        self.0.run(input)?;
        for leaf in &leaves {
            // SAFETY: registered above, and the copies are done.
            unsafe { sys::cuMemHostUnregister(leaf.as_ptr().cast_mut().cast()) }.result()?;
        }
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        Method::<S>::is_right(&mut self.0, expected)
    }
}

/// All copies in one call, out of ordinary memory.
pub(super) struct Batch {
    cuda: Rc<Cuda>,
    function: Function,
    copies: Copies,
    there: Option<There>,
}

impl Batch {
    pub(super) fn new(cuda: Rc<Cuda>, function: Function) -> Self {
        Self { cuda, function, copies: Copies::default(), there: None }
    }
}

impl<S> Method<S> for Batch {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.copies.clear();
        self.cuda.bind()?;
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.cuda, &input.leaves)?);
        for (leaf, (offset, bytes)) in input.leaves.iter().zip(&there.ranges) {
            self.copies.push(there.start + *offset as u64, leaf.as_bytes()?.as_ptr() as u64, *bytes);
        }
        // SAFETY: the ranges lie within the allocation; the leaves outlive the synchronisation below.
        unsafe { self.copies.submit(self.function, self.cuda.stream)? };
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

/// Everything through one pinned block.
pub(in super::super) struct Packed {
    cuda: Rc<Cuda>,
    blocks: Vec<Block>,
    next: usize,
    event: sys::CUevent,
    there: Option<There>,
}

impl Packed {
    pub(super) fn new(cuda: Rc<Cuda>) -> Result<Self> {
        cuda.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Self { cuda, blocks: Vec::new(), next: 0, event, there: None })
    }

    fn make_room(&mut self, leaves: &[Tensor]) -> Result<()> {
        let (_, bytes) = ranges(leaves);
        if self.blocks.first().is_none_or(|block| block.bytes() < bytes) {
            self.blocks = (0..BLOCKS).map(|_| Block::new(&self.cuda, bytes)).collect::<Result<_>>()?;
        }
        Ok(())
    }
}

impl<S> Method<S> for Packed {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.make_room(&input.leaves)?;
        self.cuda.bind()?;
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.cuda, &input.leaves)?);
        self.next = (self.next + 1) % BLOCKS;
        let block = &mut self.blocks[self.next];
        pack(&input.leaves, &there.ranges, block)?;
        // SAFETY: block and allocation have so many bytes; the block is not touched before the event is reached, and
        // stream and event live as long as `self`.
        unsafe {
            result::memcpy_htod_async(there.start, &block.as_slice()[..there.bytes], self.cuda.stream)?;
            result::event::record(self.event, self.cuda.stream)?;
            result::event::synchronize(self.event)?;
        }
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let _ = self.cuda.bind();
        // SAFETY: every run has waited for the event, and nobody uses it again.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

/// The last copy out of the block must be done.
pub(super) fn pack(leaves: &[Tensor], ranges: &[(usize, usize)], block: &mut Block) -> Result<()> {
    let room = block.as_mut_slice();
    for (leaf, (offset, bytes)) in leaves.iter().zip(ranges) {
        room[*offset..][..*bytes].copy_from_slice(leaf.as_bytes()?);
    }
    Ok(())
}

/// A pinned block that holds a batch.
pub(super) struct Full {
    data: u64,
    block: Block,
}

impl Full {
    /// `full`, if it holds the input already, else another one, in any case untimed.
    pub(super) fn with<S>(full: Option<Self>, cuda: &Rc<Cuda>, input: &Input<S>) -> Result<Self> {
        let (ranges, bytes) = ranges(&input.leaves);
        let mut full = match full {
            Some(full) if full.data == input.data => return Ok(full),
            Some(full) if full.block.bytes() == bytes => full,
            _ => Self { data: input.data, block: Block::new(cuda, bytes)? },
        };
        full.data = input.data;
        pack(&input.leaves, &ranges, &mut full.block)?;
        Ok(full)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.block.as_slice()
    }
}

/// One copy out of pinned memory.
pub(super) struct Pinned {
    cuda: Rc<Cuda>,
    full: Option<Full>,
    there: Option<There>,
}

impl Pinned {
    pub(super) fn new(cuda: Rc<Cuda>) -> Self {
        Self { cuda, full: None, there: None }
    }
}

impl<S> Method<S> for Pinned {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        let full = Full::with(self.full.take(), &self.cuda, input)?;
        let full = self.full.insert(full);
        self.cuda.bind()?;
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.cuda, &input.leaves)?);
        // SAFETY: the block has as many bytes as the allocation, and is left alone until the synchronisation below.
        unsafe { result::memcpy_htod_async(there.start, full.bytes(), self.cuda.stream)? };
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}
