//! Memory.

use std::ffi::c_uint;

use crate::exports::forward;

/// Portable, mapped and write-combined have CUDA's numbers; the others (coherence, NUMA) mean nothing there.
const HOST_FLAGS: c_uint = 7;

/// Portable and mapped. What CUDA takes for read-only is another thing there.
const REGISTER_FLAGS: c_uint = 3;

forward! {
    [creates] fn hipMalloc(address: *mut usize, bytes: usize) = cuMemAlloc_v2(address, bytes);
    [destroys] fn hipFree(address: usize) = cuMemFree_v2(address);
    [creates] fn hipMallocFromPoolAsync(address: *mut usize, bytes: usize, pool: usize, stream: usize) =
        cuMemAllocFromPoolAsync(address, bytes, pool, stream);
    [destroys] fn hipFreeAsync(address: usize, stream: usize) = cuMemFreeAsync(address, stream);
    [creates] fn hipHostMalloc(address: *mut usize, bytes: usize, flags: c_uint) =
        cuMemHostAlloc(address, bytes, flags & HOST_FLAGS);
    [destroys] fn hipHostFree(address: usize) = cuMemFreeHost(address);
    [creates] fn hipHostRegister(address: usize, bytes: usize, flags: c_uint) =
        cuMemHostRegister_v2(address, bytes, flags & REGISTER_FLAGS);
    [destroys] fn hipHostUnregister(address: usize) = cuMemHostUnregister(address);
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) = cuMemGetInfo_v2(free, total);
    // Attributes of pointers have the same numbers in both.
    fn hipPointerGetAttribute(value: usize, attribute: c_uint, address: usize) =
        cuPointerGetAttribute(value, attribute, address);
    fn hipMemGetAddressRange(start: *mut usize, bytes: *mut usize, address: usize) =
        cuMemGetAddressRange_v2(start, bytes, address);
}
