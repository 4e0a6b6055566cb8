//! Between two devices, and from the host to two.

use std::rc::Rc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::result;
use transship::cuda::device_ptr;

use super::down::in_one_place;
use super::driver::{Block, Cuda, There, ranges};
use super::up::{Full, pack};
use crate::Result;
use crate::input::Input;
use crate::measure::Method;

/// One copy for each tensor.
pub(super) struct Each {
    from: Rc<Cuda>,
    to: Rc<Cuda>,
    there: Option<There>,
}

impl Each {
    pub(super) fn new(from: Rc<Cuda>, to: Rc<Cuda>) -> Self {
        Self { from, to, there: None }
    }
}

impl<S> Method<S> for Each {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.to.bind()?;
        let (from, to) = (self.from.context, self.to.context);
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.to, &input.leaves)?);
        for (leaf, (offset, bytes)) in input.leaves.iter().zip(&there.ranges) {
            let place = there.start + *offset as u64;
            // SAFETY: the tensor is there and has so many bytes, the range lies within the allocation.
            unsafe { result::memcpy_peer_async(to, place, from, device_ptr(leaf)?, *bytes, self.to.stream)? };
        }
        self.to.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

/// The batch in one place of the first device, from there one copy.
pub(super) struct One {
    from: Rc<Cuda>,
    to: Rc<Cuda>,
    packed: Option<(u64, There)>,
    there: Option<There>,
}

impl One {
    pub(super) fn new(from: Rc<Cuda>, to: Rc<Cuda>) -> Self {
        Self { from, to, packed: None, there: None }
    }
}

impl<S> Method<S> for One {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.from.bind()?;
        let packed = in_one_place(self.packed.take(), &self.from, input)?;
        let (_, packed) = self.packed.insert(packed);
        self.to.bind()?;
        let (from, to) = (self.from.context, self.to.context);
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.to, &input.leaves)?);
        // SAFETY: both allocations have so many bytes, and are there until the synchronisation.
        unsafe {
            result::memcpy_peer_async(to, there.start, from, packed.start, there.bytes, self.to.stream)?
        };
        self.to.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

/// One after the other.
pub(super) struct Pair<M>(pub(super) M, pub(super) M);

impl<S, M: Method<S>> Method<S> for Pair<M> {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        Ok(self.0.run(input)? + self.1.run(input)?)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        // It counts what both have copied.
        let (first, second) = expected.split_at(expected.len() / 2);
        Ok(self.0.is_right(first)? && self.1.is_right(second)?)
    }
}

/// Out of one pinned block to each of two devices.
pub(super) struct Both {
    devices: [Rc<Cuda>; 2],
    source: Source,
    there: Vec<There>,
}

enum Source {
    /// Packed under the clock.
    Packed(Option<Block>),
    /// Full already.
    Pinned(Option<Full>),
}

impl Both {
    pub(super) fn packed(first: Rc<Cuda>, second: Rc<Cuda>) -> Self {
        Self { devices: [first, second], source: Source::Packed(None), there: Vec::new() }
    }

    pub(super) fn pinned(first: Rc<Cuda>, second: Rc<Cuda>) -> Self {
        Self { devices: [first, second], source: Source::Pinned(None), there: Vec::new() }
    }

    fn prepare<S>(&mut self, input: &Input<S>) -> Result<()> {
        let (_, bytes) = ranges(&input.leaves);
        match &mut self.source {
            Source::Packed(block) => {
                if block.as_ref().is_none_or(|block| block.bytes() < bytes) {
                    *block = Some(Block::new(&self.devices[0], bytes)?);
                }
            }
            Source::Pinned(full) => *full = Some(Full::with(full.take(), &self.devices[0], input)?),
        }
        Ok(())
    }
}

impl<S> Method<S> for Both {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there.clear();
        self.prepare(input)?;
        let started = Instant::now();
        let bytes = match &mut self.source {
            Source::Packed(Some(block)) => {
                pack(&input.leaves, &ranges(&input.leaves).0, block)?;
                block.as_slice()
            }
            Source::Pinned(Some(full)) => full.bytes(),
            _ => return Err("there is no source".into()),
        };
        for device in &self.devices {
            device.bind()?;
            let there = There::allocate(device, &input.leaves)?;
            // SAFETY: block and allocation have so many bytes; the block is left alone until the synchronisation.
            unsafe { result::memcpy_htod_async(there.start, &bytes[..there.bytes], device.stream)? };
            self.there.push(there);
        }
        for device in &self.devices {
            device.bind()?;
            device.synchronize()?;
        }
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let (first, second) = expected.split_at(expected.len() / 2);
        let [one, other] = &*self.there else { return Err("nothing was copied".into()) };
        Ok(one.is_right(first)? && other.is_right(second)?)
    }
}
