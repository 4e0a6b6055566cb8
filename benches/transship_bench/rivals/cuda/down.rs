//! From one device to the host.

use std::rc::Rc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::result;
use transship::cuda::device_ptr;

use super::batch::{Copies, Function};
use super::driver::{Block, Cuda, There, all_same, ranges};
use crate::Result;
use crate::input::Input;
use crate::measure::Method;

/// Where results lie on the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    Pinned,
    /// Ordinary memory, the same each time.
    Touched,
    /// Ordinary memory that nobody has touched yet.
    Fresh,
}

enum Room {
    Block(Block),
    Ordinary(Vec<u8>),
}

impl Room {
    fn new(cuda: &Rc<Cuda>, landing: Landing, bytes: usize) -> Result<Self> {
        Ok(match landing {
            Landing::Pinned => Self::Block(Block::new(cuda, bytes)?),
            Landing::Touched => Self::Ordinary(vec![1; bytes]),
            // The pages of so many zeros are there when they are first written.
            Landing::Fresh => Self::Ordinary(vec![0; bytes]),
        })
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Block(block) => block.as_mut_slice(),
            Self::Ordinary(memory) => memory,
        }
    }
}

/// Room for a batch on the host.
struct Here {
    landing: Landing,
    room: Option<Room>,
    ranges: Vec<(usize, usize)>,
}

impl Here {
    fn new(landing: Landing) -> Self {
        Self { landing, room: None, ranges: Vec::new() }
    }

    /// Untimed, but for fresh memory, which costs nothing before it is written.
    fn make_room(&mut self, cuda: &Rc<Cuda>, leaves: &[Tensor]) -> Result<()> {
        let (ranges, bytes) = ranges(leaves);
        self.ranges = ranges;
        let fits = self.room.as_mut().is_some_and(|room| room.as_mut_slice().len() == bytes);
        if !fits || self.landing == Landing::Fresh {
            self.room = None;
            self.room = Some(Room::new(cuda, self.landing, bytes)?);
        }
        Ok(())
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(self.room.as_mut().ok_or("there is no room")?.as_mut_slice())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let room = self.room.as_mut().ok_or("nothing was copied")?;
        all_same(room.as_mut_slice(), &self.ranges, expected)
    }
}

/// One copy for each tensor.
pub(in super::super) struct Each {
    cuda: Rc<Cuda>,
    here: Here,
}

impl Each {
    pub(super) fn new(cuda: Rc<Cuda>, landing: Landing) -> Self {
        Self { cuda, here: Here::new(landing) }
    }
}

impl<S> Method<S> for Each {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.here.make_room(&self.cuda, &input.leaves)?;
        self.cuda.bind()?;
        let ranges = std::mem::take(&mut self.here.ranges);
        let started = Instant::now();
        for (leaf, (offset, bytes)) in input.leaves.iter().zip(&ranges) {
            let to = &mut self.here.bytes()?[*offset..][..*bytes];
            // SAFETY: the tensor has so many bytes and is there; both sides are left alone until the synchronisation.
            unsafe { result::memcpy_dtoh_async(to, device_ptr(leaf)?, self.cuda.stream)? };
        }
        self.cuda.synchronize()?;
        let time = started.elapsed();
        self.here.ranges = ranges;
        Ok(time)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.here.is_right(expected)
    }
}

/// All copies in one call, into pinned memory.
pub(super) struct Batch {
    cuda: Rc<Cuda>,
    function: Function,
    copies: Copies,
    here: Here,
}

impl Batch {
    pub(super) fn new(cuda: Rc<Cuda>, function: Function) -> Self {
        Self { cuda, function, copies: Copies::default(), here: Here::new(Landing::Pinned) }
    }
}

impl<S> Method<S> for Batch {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.here.make_room(&self.cuda, &input.leaves)?;
        self.copies.clear();
        self.cuda.bind()?;
        let started = Instant::now();
        let to = self.here.bytes()?.as_mut_ptr() as u64;
        for (leaf, (offset, bytes)) in input.leaves.iter().zip(&self.here.ranges) {
            self.copies.push(to + *offset as u64, device_ptr(leaf)?, *bytes);
        }
        // SAFETY: the tensors are there, the ranges within the block; all are left alone until the synchronisation.
        unsafe { self.copies.submit(self.function, self.cuda.stream)? };
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.here.is_right(expected)
    }
}

/// The batch in one place of the device, from there one copy into pinned memory.
pub(super) struct One {
    cuda: Rc<Cuda>,
    here: Here,
    packed: Option<(u64, There)>,
}

impl One {
    pub(super) fn new(cuda: Rc<Cuda>) -> Self {
        Self { cuda, here: Here::new(Landing::Pinned), packed: None }
    }
}

impl<S> Method<S> for One {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.here.make_room(&self.cuda, &input.leaves)?;
        self.cuda.bind()?;
        let packed = in_one_place(self.packed.take(), &self.cuda, input)?;
        let (_, there) = self.packed.insert(packed);
        let started = Instant::now();
        // SAFETY: both sides have so many bytes and are left alone until the synchronisation.
        unsafe { result::memcpy_dtoh_async(self.here.bytes()?, there.start, self.cuda.stream)? };
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.here.is_right(expected)
    }
}

/// `packed`, if it is of this input already, else another one; untimed.
pub(super) fn in_one_place<S>(
    packed: Option<(u64, There)>,
    cuda: &Rc<Cuda>,
    input: &Input<S>,
) -> Result<(u64, There)> {
    if let Some(packed) = packed.filter(|(data, _)| *data == input.data) {
        return Ok(packed);
    }
    let there = There::allocate(cuda, &input.leaves)?;
    for (expected, (offset, _)) in input.expected.iter().zip(&there.ranges) {
        // SAFETY: the range lies within the allocation; the tensor outlives the synchronisation below.
        unsafe {
            result::memcpy_htod_async(there.start + *offset as u64, expected.as_bytes()?, cuda.stream)?
        };
    }
    cuda.synchronize()?;
    Ok((input.data, there))
}
