//! Pools, and memory in stream order.

use std::ptr::{null, null_mut};

use crate::cuda::{Cuda, PoolProperties};
use crate::memory::TOO_MUCH;
use crate::{say, show};

const THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const USED: i32 = 7;

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn all(cuda: &Cuda) {
    cuda.start();
    let (stream, mut pool, mut default, mut first, mut second) = (cuda.stream(), 0, 0, 0, 0);
    let mut keep = 1 << 30;
    // SAFETY: results are written to locals; pools are used before they are destroyed; drivers look up what they free.
    unsafe {
        say("cuMemPoolCreate null", (cuda.cuMemPoolCreate)(null_mut(), &PoolProperties::of(0)));
        say("cuMemPoolCreate -1", (cuda.cuMemPoolCreate)(&raw mut pool, &PoolProperties::of(-1)));
        say("cuMemPoolCreate 1000", (cuda.cuMemPoolCreate)(&raw mut pool, &PoolProperties::of(1000)));
        let unknown = PoolProperties::of(0).with_allocation(0);
        say("cuMemPoolCreate of no kind", (cuda.cuMemPoolCreate)(&raw mut pool, &unknown));
        say("cuMemPoolCreate", (cuda.cuMemPoolCreate)(&raw mut pool, &PoolProperties::of(0)));
        say("cuDeviceGetDefaultMemPool", (cuda.cuDeviceGetDefaultMemPool)(&raw mut default, 0));
        figure(cuda, default, "default threshold", THRESHOLD);
        for (name, attribute) in [("threshold", THRESHOLD), ("reserved", RESERVED), ("used", USED)] {
            figure(cuda, pool, name, attribute);
        }
        say("cuMemPoolGetAttribute 1000", (cuda.cuMemPoolGetAttribute)(pool, 1000, &raw mut keep));
        say("cuMemPoolGetAttribute null", (cuda.cuMemPoolGetAttribute)(pool, THRESHOLD, null_mut()));
        say("cuMemPoolSetAttribute threshold", (cuda.cuMemPoolSetAttribute)(pool, THRESHOLD, &raw mut keep));
        figure(cuda, pool, "threshold", THRESHOLD);
        say("cuMemPoolSetAttribute null", (cuda.cuMemPoolSetAttribute)(pool, THRESHOLD, null_mut()));
        say("cuMemPoolSetAttribute reserved", (cuda.cuMemPoolSetAttribute)(pool, RESERVED, &raw mut keep));
        say("cuMemPoolSetAttribute 1000", (cuda.cuMemPoolSetAttribute)(pool, 1000, &raw mut keep));
        for (name, access, count) in [
            ("itself", [1, 0, 3], 1),
            ("itself, none", [1, 0, 0], 1),
            ("itself, flags 1", [1, 0, 1], 1),
            ("device 1000", [1, 1000, 3], 1),
            ("nobody", [1, 0, 3], 0),
        ] {
            say(&format!("cuMemPoolSetAccess {name}"), (cuda.cuMemPoolSetAccess)(pool, &access, count));
        }
        say("cuMemPoolSetAccess null", (cuda.cuMemPoolSetAccess)(pool, null(), 1));
        let code = (cuda.cuMemAllocFromPoolAsync)(null_mut(), 512, pool, stream);
        say("cuMemAllocFromPoolAsync null", code);
        let code = (cuda.cuMemAllocFromPoolAsync)(&raw mut first, 0, pool, stream);
        say("cuMemAllocFromPoolAsync 0 bytes", code);
        let code = (cuda.cuMemAllocFromPoolAsync)(&raw mut first, TOO_MUCH, pool, stream);
        say("cuMemAllocFromPoolAsync too much", code);
        say("cuMemAllocAsync 0 bytes", (cuda.cuMemAllocAsync)(&raw mut first, 0, stream));
        let code = (cuda.cuMemAllocFromPoolAsync)(&raw mut first, 1 << 20, pool, stream);
        show("cuMemAllocFromPoolAsync: aligned to 512", code, first % 512 == 0);
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(stream));
        figure(cuda, pool, "used", USED);
        say("cuMemFreeAsync inside", (cuda.cuMemFreeAsync)(first + 512, stream));
        say("cuMemFreeAsync", (cuda.cuMemFreeAsync)(first, stream));
        say("cuMemFreeAsync again", (cuda.cuMemFreeAsync)(first, stream));
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(stream));
        say("cuMemFreeAsync again, synchronised", (cuda.cuMemFreeAsync)(first, stream));
        say("cuMemFreeAsync null", (cuda.cuMemFreeAsync)(0, stream));
        figure(cuda, pool, "used after freeing", USED);
        figure(cuda, pool, "reserved with a threshold", RESERVED);
        say("cuMemPoolTrimTo 0", (cuda.cuMemPoolTrimTo)(pool, 0));
        figure(cuda, pool, "reserved trimmed", RESERVED);
        let code = (cuda.cuMemAllocFromPoolAsync)(&raw mut second, 4096, pool, stream);
        say("cuMemAllocFromPoolAsync", code);
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(stream));
        say("cuMemFree of ordered memory", (cuda.cuMemFree_v2)(second));
        figure(cuda, pool, "used after cuMemFree", USED);
        let code = (cuda.cuMemAllocFromPoolAsync)(&raw mut second, 4096, pool, stream);
        say("cuMemAllocFromPoolAsync", code);
        say("cuMemPoolDestroy of the default one", (cuda.cuMemPoolDestroy)(default));
        say("cuMemPoolDestroy in use", (cuda.cuMemPoolDestroy)(pool));
        say("cuMemsetD8Async of what is left", (cuda.cuMemsetD8Async)(second, 1, 4096, stream));
        say("cuMemFreeAsync of what is left", (cuda.cuMemFreeAsync)(second, stream));
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(stream));
    }
}

/// # Safety
///
/// As [`all`].
pub(crate) unsafe fn null_properties(cuda: &Cuda) {
    cuda.start();
    // SAFETY: the result is written to a local that the call does not outlive.
    unsafe { say("cuMemPoolCreate null properties", (cuda.cuMemPoolCreate)(&mut 0, null())) };
}

/// Reserved bytes are whole granules, of which each device has its own: whether there are any.
fn figure(cuda: &Cuda, pool: usize, name: &str, attribute: i32) {
    let mut value = 0;
    // SAFETY: the pool is there (caller); figures have 8 bytes.
    let code = unsafe { (cuda.cuMemPoolGetAttribute)(pool, attribute, &raw mut value) };
    let label = format!("cuMemPoolGetAttribute {name}");
    match attribute {
        RESERVED => show(&label, code, if value == 0 { "none" } else { "some" }),
        _ => show(&label, code, value),
    }
}
