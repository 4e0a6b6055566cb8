//! What a user of the CUDA driver would write by hand. Device memory is one allocation for all tensors, out of a pool
//! that keeps its memory.

use std::error::Error;
use std::ffi::c_int;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::result::{self, DriverError};
use transship::cuda::cudarc::driver::sys;

use crate::sampling::{Contender, Input, Method};

/// Where tensors begin in device memory.
const ALIGNMENT: usize = 16;
/// Blocks are taken in turn: the one that the copy engine has just read is slow to write.
const BLOCKS: usize = 4;
const BLOCK_BYTES: usize = 1 << 20;

/// The rivals on device `ordinal`. To be called only where a driver has shown that device.
pub(crate) fn rivals(ordinal: usize) -> Result<Vec<Contender>, Box<dyn Error>> {
    let cuda = Rc::new(Cuda::new(c_int::try_from(ordinal)?)?);
    println!("rivals through cudarc, driver {}", driver_version()?);
    Ok(vec![
        Contender::new(
            "by hand: cuMemcpyHtoDAsync for each tensor, one synchronize",
            Each(Destination::new(cuda.clone())),
        ),
        Contender::new(
            "by hand: packed into one pinned block, one copy, one event",
            Packed::new(Destination::new(cuda))?,
        ),
    ])
}

fn driver_version() -> Result<String, DriverError> {
    let mut version = 0;
    // SAFETY: the pointer is that of a live integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// A stream, and a pool that gives nothing back to the driver. Both live as long as the process.
struct Cuda {
    stream: sys::CUstream,
    pool: sys::CUmemoryPool,
}

impl Cuda {
    fn new(ordinal: c_int) -> Result<Self, DriverError> {
        result::init()?;
        let device = result::device::get(ordinal)?;
        // SAFETY: the device is one that the driver has just named; its primary context is never released, and stays
        // current on this thread.
        unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?)? };
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { stream, pool: new_pool(ordinal)? })
    }
}

fn new_pool(ordinal: c_int) -> Result<sys::CUmemoryPool, DriverError> {
    // SAFETY: integers, a null pointer, and enums that have a variant 0.
    let mut properties: sys::CUmemPoolProps = unsafe { mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the number of the device lies behind the type; its name differs from one version of the headers to the next.
    unsafe { (&raw mut properties.location).cast::<c_int>().add(1).write(ordinal) };
    let mut pool = std::ptr::null_mut();
    // SAFETY: both pointers are those of live values.
    unsafe { sys::cuMemPoolCreate(&mut pool, &properties) }.result()?;
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool was made just now; the value of this attribute is 64 bits.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast())? };
    Ok(pool)
}

/// Device memory for one batch.
struct Destination {
    cuda: Rc<Cuda>,
    start: Option<sys::CUdeviceptr>,
    /// Where each tensor lies, and its size.
    ranges: Vec<(usize, usize)>,
}

impl Destination {
    fn new(cuda: Rc<Cuda>) -> Self {
        Self { cuda, start: None, ranges: Vec::new() }
    }

    /// Gives the memory of the last run back.
    fn release(&mut self) -> Result<(), DriverError> {
        match self.start.take() {
            // SAFETY: it was allocated on this stream, whose copies are done, and is not used again.
            Some(start) => unsafe { result::free_async(start, self.cuda.stream) },
            None => Ok(()),
        }
    }

    /// Lays the tensors out and allocates memory for them; returns where it starts and how large it is.
    fn allocate(&mut self, leaves: &[Tensor]) -> Result<(sys::CUdeviceptr, usize), DriverError> {
        self.ranges.clear();
        let mut end = 0_usize;
        for leaf in leaves {
            self.ranges.push((end, leaf.bytes()));
            end = (end + leaf.bytes()).next_multiple_of(ALIGNMENT);
        }
        // SAFETY: stream and pool live as long as the process; the memory is written before it is read.
        let start = unsafe { result::mem_pool::alloc_async(self.cuda.pool, end, self.cuda.stream)? };
        self.start = Some(start);
        Ok((start, end))
    }

    fn bytes(&self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        let start = self.start.ok_or("nothing was copied")?;
        let read = |&(offset, bytes): &(usize, usize)| {
            let mut read = vec![0; bytes];
            // SAFETY: the range lies within the allocation, and the copies into it are done.
            unsafe { result::memcpy_dtoh_sync(&mut read, start + offset as u64)? };
            Ok(read)
        };
        self.ranges.iter().map(read).collect()
    }
}

/// One copy for each tensor, out of ordinary memory.
struct Each(Destination);

impl Method for Each {
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>> {
        self.0.release()?;
        let started = Instant::now();
        let (start, _) = self.0.allocate(&input.leaves)?;
        let stream = self.0.cuda.stream;
        for (leaf, (offset, _)) in input.leaves.iter().zip(&self.0.ranges) {
            // SAFETY: the range lies within the allocation; the leaf outlives the synchronisation below.
            unsafe { result::memcpy_htod_async(start + *offset as u64, leaf.as_bytes()?, stream)? };
        }
        // SAFETY: the stream lives as long as the process.
        unsafe { result::stream::synchronize(stream)? };
        Ok(started.elapsed())
    }

    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        self.0.bytes()
    }
}

/// Everything through one pinned block.
struct Packed {
    destination: Destination,
    blocks: Vec<*mut u8>,
    next: usize,
    event: sys::CUevent,
}

impl Packed {
    fn new(destination: Destination) -> Result<Self, DriverError> {
        // SAFETY: the blocks are never freed, and written before they are read.
        let block = |_| unsafe { result::malloc_host(BLOCK_BYTES, 0) }.map(|block| block.cast());
        let blocks = (0..BLOCKS).map(block).collect::<Result<_, _>>()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Self { destination, blocks, next: 0, event })
    }
}

impl Method for Packed {
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>> {
        self.destination.release()?;
        let started = Instant::now();
        let (start, bytes) = self.destination.allocate(&input.leaves)?;
        assert!(bytes <= BLOCK_BYTES);
        let block = self.blocks[self.next % BLOCKS];
        self.next += 1;
        for (leaf, (offset, bytes)) in input.leaves.iter().zip(&self.destination.ranges) {
            let from = leaf.as_bytes()?.as_ptr();
            // SAFETY: the leaf has so many bytes, and so has the block behind `offset` (asserted); the last copy out of
            // the block is done, since every run waits for its own.
            unsafe { block.add(*offset).copy_from_nonoverlapping(from, *bytes) };
        }
        // SAFETY: the gaps between tensors are never looked at on the device; the block is not written before the event
        // is reached, and stream and event live as long as the process.
        unsafe {
            let stream = self.destination.cuda.stream;
            sys::cuMemcpyHtoDAsync_v2(start, block.cast(), bytes, stream).result()?;
            result::event::record(self.event, stream)?;
            result::event::synchronize(self.event)?;
        }
        Ok(started.elapsed())
    }

    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        self.destination.bytes()
    }
}
