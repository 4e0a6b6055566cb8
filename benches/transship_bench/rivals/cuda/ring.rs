//! Large batches through a ring of pinned blocks: one for each thread that copies, or one that several threads fill.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::{result, sys};

use super::driver::{Block, Cuda, There};
use crate::Result;
use crate::input::Input;
use crate::measure::Method;

/// A thread that copies alone has two blocks of so many bytes: it fills one while the device reads the other.
const OWN_BLOCKS: usize = 2;
const OWN_BLOCK_BYTES: usize = 2 << 20;
/// Threads that fill blocks together share so many, of about so large a part of the batch.
const SHARED_BLOCKS: usize = 16;
const SHARED_BLOCK_BYTES: std::ops::RangeInclusive<usize> = 256 << 10..=4 << 20;
/// Those that spin do so for as long as a row has turns of them at most.
const SPIN: Duration = Duration::from_millis(20);

/// Two blocks of a thread's own.
pub(in super::super) struct Own {
    cuda: Rc<Cuda>,
    blocks: Vec<(Block, Event)>,
    there: Option<There>,
}

impl Own {
    pub(super) fn new(cuda: Rc<Cuda>) -> Result<Self> {
        let blocks = (0..OWN_BLOCKS).map(|_| Ok((Block::new(&cuda, OWN_BLOCK_BYTES)?, Event::new(true)?)));
        Ok(Self { blocks: blocks.collect::<Result<_>>()?, cuda, there: None })
    }
}

impl<S> Method<S> for Own {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.cuda.bind()?;
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.cuda, &input.leaves)?);
        for (index, start) in (0..there.bytes).step_by(OWN_BLOCK_BYTES).enumerate() {
            let (block, event) = &mut self.blocks[index % OWN_BLOCKS];
            event.synchronize()?;
            let end = (start + OWN_BLOCK_BYTES).min(there.bytes);
            gather(&input.leaves, &there.ranges, start..end, block.as_mut_slice())?;
            // SAFETY: the range lies within the allocation, and the block is left alone until its event is reached.
            unsafe {
                let filled = &block.as_slice()[..end - start];
                result::memcpy_htod_async(there.start + start as u64, filled, self.cuda.stream)?;
                result::event::record(event.0, self.cuda.stream)?;
            }
        }
        self.blocks.iter().try_for_each(|(_, event)| event.synchronize())?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

/// Blocks that several threads fill, the one that copies among them.
pub(in super::super) struct Team {
    cuda: Rc<Cuda>,
    helpers: Helpers,
    blocks: Vec<(Block, Arc<Event>)>,
    there: Option<There>,
}

impl Team {
    pub(super) fn new(cuda: Rc<Cuda>, threads: usize, spin: bool) -> Self {
        Self { cuda, helpers: Helpers::start(threads - 1, spin), blocks: Vec::new(), there: None }
    }
}

impl<S> Method<S> for Team {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there = None;
        self.cuda.bind()?;
        let bytes: usize = input.leaves.iter().map(Tensor::nbytes).sum();
        let size = bytes.div_ceil(SHARED_BLOCKS).next_power_of_two();
        let size = size.clamp(*SHARED_BLOCK_BYTES.start(), *SHARED_BLOCK_BYTES.end());
        if self.blocks.first().is_none_or(|(block, _)| block.bytes() != size) {
            let block = |_| Ok((Block::new(&self.cuda, size)?, Arc::new(Event::new(false)?)));
            self.blocks = (0..SHARED_BLOCKS).map(block).collect::<Result<_>>()?;
        }
        let started = Instant::now();
        let there = self.there.insert(There::allocate(&self.cuda, &input.leaves)?);
        let work = Work {
            context: self.cuda.context,
            stream: self.cuda.stream,
            there: there.start,
            bytes: there.bytes,
            leaves: input.leaves.clone(),
            ranges: there.ranges.clone(),
            size,
            blocks: self
                .blocks
                .iter_mut()
                .map(|(block, event)| (block.as_mut_slice().as_mut_ptr(), event.clone()))
                .collect(),
            turns: (0..SHARED_BLOCKS).map(AtomicUsize::new).collect(),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(there.bytes.div_ceil(size)),
            failed: AtomicBool::new(false),
        };
        self.helpers.share(Arc::new(work))?;
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.as_ref().ok_or("nothing was copied")?.is_right(expected)
    }
}

/// One batch, cut into pieces that are taken in turn.
struct Work {
    context: sys::CUcontext,
    stream: sys::CUstream,
    there: sys::CUdeviceptr,
    bytes: usize,
    leaves: Vec<Tensor>,
    ranges: Vec<(usize, usize)>,
    size: usize,
    blocks: Vec<(*mut u8, Arc<Event>)>,
    /// Which piece a block is for next.
    turns: Vec<AtomicUsize>,
    next: AtomicUsize,
    /// Pieces that are not submitted.
    left: AtomicUsize,
    failed: AtomicBool,
}

// SAFETY: handles of the driver may be used by every thread; a block is written by whoever has the piece whose turn it is.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl Work {
    fn carry(&self) {
        if self.carry_pieces().is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn carry_pieces(&self) -> Result<()> {
        // SAFETY: the context is retained by whoever waits for this work.
        unsafe { result::ctx::set_current(self.context)? };
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            let start = piece * self.size;
            if start >= self.bytes || self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let turn = piece % self.blocks.len();
            let (block, event) = &self.blocks[turn];
            while self.turns[turn].load(Ordering::Acquire) != piece {
                std::hint::spin_loop();
            }
            event.synchronize()?;
            let end = (start + self.size).min(self.bytes);
            // SAFETY: the block has so many bytes; it is this piece's turn, and the copy of the one before is done.
            let block = unsafe { std::slice::from_raw_parts_mut(*block, end - start) };
            gather(&self.leaves, &self.ranges, start..end, block)?;
            // SAFETY: the range lies within the allocation; the block is left alone until its event is reached.
            unsafe {
                result::memcpy_htod_async(self.there + start as u64, block, self.stream)?;
                result::event::record(event.0, self.stream)?;
            }
            self.turns[turn].store(piece + self.blocks.len(), Ordering::Release);
            self.left.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Threads that wait for work: asking again and again, or asleep.
struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    spin: bool,
    /// How much work there was, which tells those who spin of more.
    round: AtomicUsize,
    work: Mutex<Option<Arc<Work>>>,
    wake: Condvar,
    ended: AtomicBool,
}

impl Helpers {
    fn start(count: usize, spin: bool) -> Self {
        let shared = Arc::new(Shared {
            spin,
            round: AtomicUsize::new(0),
            work: Mutex::new(None),
            wake: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        let thread = |_| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.help())
        };
        Self { threads: (0..count).map(thread).collect(), shared }
    }

    /// Has everybody carry `work`; returns when all of it is submitted.
    fn share(&self, work: Arc<Work>) -> Result<()> {
        *self.shared.work.lock().map_err(|_| "a thread panicked")? = Some(work.clone());
        self.shared.round.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        work.carry();
        // Those who come late find nothing to do.
        while work.left.load(Ordering::Acquire) > 0 {
            if work.failed.load(Ordering::Relaxed) {
                return Err("a piece was not copied".into());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.round.fetch_add(1, Ordering::Release);
        drop(self.shared.work.lock());
        self.shared.wake.notify_all();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn help(&self) {
        let mut round = 0;
        loop {
            round = self.wait_for_round(round);
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let work = self.work.lock().ok().and_then(|work| work.clone());
            if let Some(work) = work {
                work.carry();
            }
        }
    }

    /// The number of the round behind `known`, when there is one.
    fn wait_for_round(&self, known: usize) -> usize {
        let current = || self.round.load(Ordering::Acquire);
        let started = Instant::now();
        while self.spin && started.elapsed() < SPIN {
            if current() != known {
                return current();
            }
            std::hint::spin_loop();
        }
        let Ok(mut work) = self.work.lock() else { return known };
        while current() == known {
            match self.wake.wait_timeout(work, SPIN) {
                Ok((guard, _)) => work = guard,
                Err(_) => break,
            }
        }
        current()
    }
}

/// The bytes of `range` of all tensors one behind the other.
fn gather(
    leaves: &[Tensor],
    ranges: &[(usize, usize)],
    range: std::ops::Range<usize>,
    block: &mut [u8],
) -> Result<()> {
    let first = ranges.partition_point(|(offset, bytes)| offset + bytes <= range.start);
    for (leaf, (offset, bytes)) in leaves.iter().zip(ranges).skip(first) {
        if *offset >= range.end {
            break;
        }
        let (start, end) = (range.start.max(*offset), range.end.min(offset + bytes));
        block[start - range.start..end - range.start]
            .copy_from_slice(&leaf.as_bytes()?[start - offset..end - offset]);
    }
    Ok(())
}

/// An event of the driver.
struct Event(sys::CUevent);

// SAFETY: an event may be used by every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that who waits for it sleeps, or asks again and again.
    fn new(sleeps: bool) -> Result<Self> {
        let flags = match sleeps {
            true => sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        Ok(Self(result::event::create(flags)?))
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        unsafe { result::event::synchronize(self.0)? };
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: every run has waited for it, and nobody uses it again.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}
