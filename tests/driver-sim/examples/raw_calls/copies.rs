//! Copies and fills.

use crate::cuda::Cuda;
use crate::{say, show};

const BYTES: usize = 4096;

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn right(cuda: &Cuda) {
    let context = cuda.start();
    let (stream, first, second) = (cuda.stream(), cuda.device_memory(BYTES), cuda.device_memory(BYTES));
    let (from, to) = (cuda.pinned(BYTES, 7), cuda.pinned(BYTES, 0));
    let mut local = vec![9u8; BYTES];
    let pageable = local.as_mut_ptr().expose_provenance();
    // SAFETY: all memory is there until the end, and has so many bytes.
    unsafe {
        say("up from page-locked", (cuda.cuMemcpyHtoDAsync_v2)(first, from, BYTES, stream));
        say("between", (cuda.cuMemcpyDtoDAsync_v2)(second, first, BYTES, stream));
        say("down to page-locked", (cuda.cuMemcpyDtoHAsync_v2)(to, second, BYTES, stream));
        show("synchronised: bytes of 7", (cuda.cuStreamSynchronize)(stream), count(to, 7));
        say("up from pageable", (cuda.cuMemcpyHtoDAsync_v2)(first, pageable, BYTES, stream));
        say("to itself as a peer", (cuda.cuMemcpyPeerAsync)(second, context, first, context, BYTES, stream));
        say("down to page-locked", (cuda.cuMemcpyDtoHAsync_v2)(to, second, BYTES, stream));
        show("synchronised: bytes of 9", (cuda.cuStreamSynchronize)(stream), count(to, 9));
        say("fill", (cuda.cuMemsetD8Async)(first, 5, BYTES / 2, stream));
        show(
            "down to pageable: bytes of 5",
            (cuda.cuMemcpyDtoHAsync_v2)(pageable, first, BYTES, stream),
            count(pageable, 5),
        );
        say("up at once", (cuda.cuMemcpyHtoD_v2)(first, from, BYTES));
        show("down at once: bytes of 7", (cuda.cuMemcpyDtoH_v2)(pageable, first, BYTES), count(pageable, 7));
        say("on the default stream", (cuda.cuMemcpyHtoDAsync_v2)(first, to, BYTES, 0));
        show("down at once: bytes of 9", (cuda.cuMemcpyDtoH_v2)(pageable, first, BYTES), count(pageable, 9));
        say("overlapping between", (cuda.cuMemcpyDtoDAsync_v2)(first + 16, first, 64, stream));
        say("between itself", (cuda.cuMemcpyDtoDAsync_v2)(first, first, BYTES, stream));
        for (name, device, host) in [("", first, from), (" null", 0, 0)] {
            say(&format!("up 0 bytes{name}"), (cuda.cuMemcpyHtoDAsync_v2)(device, host, 0, stream));
            say(&format!("down 0 bytes{name}"), (cuda.cuMemcpyDtoHAsync_v2)(host, device, 0, stream));
            say(&format!("between 0 bytes{name}"), (cuda.cuMemcpyDtoDAsync_v2)(device, device, 0, stream));
            let code = (cuda.cuMemcpyPeerAsync)(device, context, device, context, 0, stream);
            say(&format!("peer 0 bytes{name}"), code);
            say(&format!("fill 0 bytes{name}"), (cuda.cuMemsetD8Async)(device, 1, 0, stream));
            say(&format!("up at once 0 bytes{name}"), (cuda.cuMemcpyHtoD_v2)(device, host, 0));
        }
        say("up from null", (cuda.cuMemcpyHtoDAsync_v2)(first, 0, BYTES, stream));
        say("up to null", (cuda.cuMemcpyHtoDAsync_v2)(0, from, BYTES, stream));
        say("down from null", (cuda.cuMemcpyDtoHAsync_v2)(to, 0, BYTES, stream));
        say("down to null", (cuda.cuMemcpyDtoHAsync_v2)(0, first, BYTES, stream));
        say("between from null", (cuda.cuMemcpyDtoDAsync_v2)(first, 0, BYTES, stream));
        say("between to null", (cuda.cuMemcpyDtoDAsync_v2)(0, first, BYTES, stream));
        say("fill null", (cuda.cuMemsetD8Async)(0, 1, BYTES, stream));
        say("synchronised", (cuda.cuStreamSynchronize)(stream));
    }
}

/// # Safety
///
/// As [`right`].
pub(crate) unsafe fn wrong_kinds(cuda: &Cuda) {
    let context = cuda.start();
    let (stream, device, pinned) = (cuda.stream(), cuda.device_memory(BYTES), cuda.pinned(BYTES, 7));
    let mut local = vec![9u8; BYTES];
    let pageable = local.as_mut_ptr().expose_provenance();
    // SAFETY: all memory is there until the end, and has so many bytes, whatever kind it is of.
    unsafe {
        say("up to page-locked", (cuda.cuMemcpyHtoDAsync_v2)(pinned, pinned, 64, stream));
        say("up from device", (cuda.cuMemcpyHtoDAsync_v2)(device, device + 512, 64, stream));
        say("down from page-locked", (cuda.cuMemcpyDtoHAsync_v2)(pinned, pinned + 512, 64, stream));
        say("down to device", (cuda.cuMemcpyDtoHAsync_v2)(device, device + 512, 64, stream));
        say("between from page-locked", (cuda.cuMemcpyDtoDAsync_v2)(device, pinned, 64, stream));
        say("between to page-locked", (cuda.cuMemcpyDtoDAsync_v2)(pinned, device, 64, stream));
        say("peer from page-locked", (cuda.cuMemcpyPeerAsync)(device, context, pinned, context, 64, stream));
        say("fill page-locked", (cuda.cuMemsetD8Async)(pinned, 1, 64, stream));
        say("synchronised", (cuda.cuStreamSynchronize)(stream));
        say("up to pageable", (cuda.cuMemcpyHtoDAsync_v2)(pageable, pinned, 64, stream));
        say("down from pageable", (cuda.cuMemcpyDtoHAsync_v2)(pinned, pageable, 64, stream));
        say("between from pageable", (cuda.cuMemcpyDtoDAsync_v2)(device, pageable, 64, stream));
        say("fill pageable", (cuda.cuMemsetD8Async)(pageable, 1, 64, stream));
        say("synchronised", (cuda.cuStreamSynchronize)(stream));
    }
}

/// # Safety
///
/// As [`right`].
pub(crate) unsafe fn freed(cuda: &Cuda) {
    cuda.start();
    let (stream, device, pinned) = (cuda.stream(), cuda.device_memory(1 << 24), cuda.pinned(BYTES, 7));
    // SAFETY: drivers look up addresses of devices; nothing of the host's is touched but what is there.
    unsafe {
        say("cuMemFree", (cuda.cuMemFree_v2)(device));
        say("up to freed", (cuda.cuMemcpyHtoDAsync_v2)(device, pinned, 64, stream));
        say("down from freed", (cuda.cuMemcpyDtoHAsync_v2)(pinned, device, 64, stream));
        say("between freed", (cuda.cuMemcpyDtoDAsync_v2)(device, device + 512, 64, stream));
        say("fill freed", (cuda.cuMemsetD8Async)(device, 1, 64, stream));
        say("synchronised", (cuda.cuStreamSynchronize)(stream));
        say("cuMemAlloc afterwards", (cuda.cuMemAlloc_v2)(&mut 0, 512));
    }
}

/// # Safety
///
/// As [`right`].
pub(crate) unsafe fn over_the_end(cuda: &Cuda) {
    cuda.start();
    // As large as granules of devices are, so that nothing lies behind it.
    let large = 32 << 20;
    let (stream, device, pinned) = (cuda.stream(), cuda.device_memory(large), cuda.pinned(BYTES, 7));
    // SAFETY: drivers look up the ranges of devices; those of the host are there.
    unsafe {
        let end = device + large - 64;
        say("up over the end", (cuda.cuMemcpyHtoDAsync_v2)(end, pinned, BYTES, stream));
        say("down over the end", (cuda.cuMemcpyDtoHAsync_v2)(pinned, end, BYTES, stream));
        say("between over the end", (cuda.cuMemcpyDtoDAsync_v2)(device, end, BYTES, stream));
        say("fill over the end", (cuda.cuMemsetD8Async)(end, 1, BYTES, stream));
        say("synchronised", (cuda.cuStreamSynchronize)(stream));
    }
}

/// How many of the bytes have this value.
fn count(address: usize, value: u8) -> usize {
    // SAFETY: so many bytes are there, which nothing writes to now (caller).
    let bytes =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(address), BYTES) };
    bytes.iter().filter(|byte| **byte == value).count()
}
