//! Contexts, streams and memory, each freed by whoever holds it.

use std::ffi::c_int;
use std::mem;
use std::rc::Rc;

use transship::Tensor;
use transship::cuda::cudarc::driver::result::{self, DriverError};
use transship::cuda::cudarc::driver::sys;

use crate::Result;
use crate::measure::same;

/// Where tensors begin in device memory.
const ALIGNMENT: usize = 16;

/// A stream, and a pool that gives nothing back to the driver.
pub(super) struct Cuda {
    ordinal: c_int,
    device: sys::CUdevice,
    pub(super) context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    pool: sys::CUmemoryPool,
}

impl Cuda {
    /// To be called only where a driver has shown that device.
    pub(super) fn new(ordinal: c_int) -> Result<Self> {
        result::init()?;
        let device = result::device::get(ordinal)?;
        // SAFETY: the device is one that the driver has just named; the context is released by `drop` only.
        let context = unsafe { result::primary_ctx::retain(device)? };
        // SAFETY: as above.
        unsafe { result::ctx::set_current(context)? };
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { ordinal, device, context, stream, pool: new_pool(ordinal)? })
    }

    pub(super) fn ordinal(&self) -> c_int {
        self.ordinal
    }

    /// Makes it current on this thread.
    pub(super) fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context)? };
        Ok(())
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is destroyed by `drop` only.
        unsafe { result::stream::synchronize(self.stream)? };
        Ok(())
    }

    /// Lets `other` read and write what the pool allocates, and the other way round.
    pub(super) fn reach(&self, other: &Self) -> Result<()> {
        self.open_to(other)?;
        other.open_to(self)
    }

    fn open_to(&self, other: &Self) -> Result<()> {
        // SAFETY: integers, and enums that have a variant 0.
        let mut access: sys::CUmemAccessDesc = unsafe { mem::zeroed() };
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        set_device(&mut access.location, other.ordinal);
        // SAFETY: the pool is destroyed by `drop` only; the description is a live value.
        unsafe { sys::cuMemPoolSetAccess(self.pool, &access, 1) }.result()?;
        Ok(())
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: whoever holds memory of the pool, or pinned memory, holds this; the stream is idle then but for frees.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::synchronize(self.stream);
            let _ = result::stream::destroy(self.stream);
            let _ = result::mem_pool::destroy(self.pool);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

fn new_pool(ordinal: c_int) -> std::result::Result<sys::CUmemoryPool, DriverError> {
    // SAFETY: integers, a null pointer, and enums that have a variant 0.
    let mut properties: sys::CUmemPoolProps = unsafe { mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    set_device(&mut properties.location, ordinal);
    // SAFETY: the properties are a live value.
    let pool = unsafe { result::mem_pool::create(&properties)? };
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool was made just now; the value of this attribute is 64 bits.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast())? };
    Ok(pool)
}

fn set_device(location: &mut sys::CUmemLocation, ordinal: c_int) {
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the number of the device lies behind the type; its name differs from one version of the headers to the next.
    unsafe { (&raw mut *location).cast::<c_int>().add(1).write(ordinal) };
}

/// Device memory for a batch, and where each tensor lies in it.
pub(super) struct There {
    cuda: Rc<Cuda>,
    pub(super) start: sys::CUdeviceptr,
    pub(super) bytes: usize,
    /// Offset and size of each tensor.
    pub(super) ranges: Vec<(usize, usize)>,
}

impl There {
    pub(super) fn allocate(cuda: &Rc<Cuda>, leaves: &[Tensor]) -> Result<Self> {
        let (ranges, bytes) = ranges(leaves);
        // SAFETY: stream and pool live as long as `cuda`; the memory is written before it is read.
        let start = unsafe { result::mem_pool::alloc_async(cuda.pool, bytes, cuda.stream)? };
        Ok(Self { cuda: cuda.clone(), start, bytes, ranges })
    }

    /// Reads everything back.
    pub(super) fn is_right(&self, expected: &[Tensor]) -> Result<bool> {
        self.cuda.bind()?;
        self.cuda.synchronize()?;
        let mut found = vec![0; self.bytes];
        // SAFETY: the allocation has so many bytes, and the copies into it are done.
        unsafe { result::memcpy_dtoh_sync(&mut found, self.start)? };
        all_same(&found, &self.ranges, expected)
    }
}

impl Drop for There {
    fn drop(&mut self) {
        // SAFETY: the memory is freed behind the copies that use it, which are all on this stream.
        unsafe {
            let _ = result::ctx::set_current(self.cuda.context);
            let _ = result::free_async(self.start, self.cuda.stream);
        }
    }
}

/// Offset and size of each tensor, and the size of all.
pub(super) fn ranges(leaves: &[Tensor]) -> (Vec<(usize, usize)>, usize) {
    let mut end = 0_usize;
    let mut place = |leaf: &Tensor| {
        let range = (end, leaf.nbytes());
        end = (end + leaf.nbytes()).next_multiple_of(ALIGNMENT);
        range
    };
    (leaves.iter().map(&mut place).collect(), end)
}

pub(super) fn all_same(found: &[u8], ranges: &[(usize, usize)], expected: &[Tensor]) -> Result<bool> {
    let mut right = ranges.len() == expected.len();
    for (&(offset, bytes), expected) in ranges.iter().zip(expected) {
        right &= same(&found[offset..][..bytes], expected)?;
    }
    Ok(right)
}

/// Pinned host memory.
pub(super) struct Block {
    cuda: Rc<Cuda>,
    start: *mut u8,
    bytes: usize,
}

impl Block {
    pub(super) fn new(cuda: &Rc<Cuda>, bytes: usize) -> Result<Self> {
        cuda.bind()?;
        // SAFETY: freed by `drop` only.
        let start = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE)? }.cast::<u8>();
        // SAFETY: so many bytes were allocated just now. They are touched here and not under the clock.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { cuda: cuda.clone(), start, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whoever calls this waits for every copy that uses the block before it looks at it again.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are initialised and belong to `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and belong to `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: nothing uses the block any more when the streams are idle; it is not touched again.
        unsafe {
            let _ = result::ctx::set_current(self.cuda.context);
            let _ = result::stream::synchronize(self.cuda.stream);
            let _ = result::free_host(self.start.cast());
        }
    }
}
