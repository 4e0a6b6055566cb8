//! Copies.

use std::ffi::c_int;

use crate::codes::{answer, check};
use crate::current;
use crate::exports::forward;

forward! {
    fn hipMemcpyHtoD(to: usize, from: usize, bytes: usize) = cuMemcpyHtoD_v2(to, from, bytes);
    fn hipMemcpyDtoH(to: usize, from: usize, bytes: usize) = cuMemcpyDtoH_v2(to, from, bytes);
    fn hipMemcpyHtoDAsync(to: usize, from: usize, bytes: usize, stream: usize) =
        cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
    fn hipMemcpyDtoHAsync(to: usize, from: usize, bytes: usize, stream: usize) =
        cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
    fn hipMemcpyDtoDAsync(to: usize, from: usize, bytes: usize, stream: usize) =
        cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
    fn hipMemsetD8Async(to: usize, value: u8, bytes: usize, stream: usize) =
        cuMemsetD8Async(to, value, bytes, stream);
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyPeerAsync(
    to: usize,
    to_device: c_int,
    from: usize,
    from_device: c_int,
    bytes: usize,
    stream: usize,
) -> u32 {
    answer((|| {
        let (here, there) = (current::context(to_device)?, current::context(from_device)?);
        // SAFETY: both contexts are retained; the rest is the caller's promise.
        check(unsafe { (current::enter()?.cuMemcpyPeerAsync)(to, here, from, there, bytes, stream) })
    })())
}
