//! HIP has a device for each thread, CUDA a context: the primary one of that device.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::codes::{INVALID_DEVICE, INVALID_HANDLE, check};
use crate::cuda::{Cuda, cuda};

/// How long the end of the process waits for what threads of the program still give back.
const GRACE: Duration = Duration::from_secs(3);

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// The contexts that are retained, each at the place of its device.
static CONTEXTS: Mutex<Vec<Option<usize>>> = Mutex::new(Vec::new());
/// How many devices there are at the least: none goes.
static COUNTED: AtomicI32 = AtomicI32::new(0);
/// How many things were created and not destroyed.
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The device of this thread.
pub(crate) fn device() -> c_int {
    DEVICE.get()
}

/// Makes it another one; nothing is initialised by that.
pub(crate) fn set_device(ordinal: c_int) -> Result<(), u32> {
    let is_known = ordinal < COUNTED.load(Ordering::Relaxed);
    if ordinal < 0 || !(is_known || ordinal < count()?) {
        return Err(INVALID_DEVICE);
    }
    DEVICE.set(ordinal);
    Ok(())
}

/// How many devices there are.
pub(crate) fn count() -> Result<c_int, u32> {
    let mut count = 0;
    // SAFETY: the count is written to a local.
    check(unsafe { (cuda()?.cuDeviceGetCount)(&mut count) })?;
    COUNTED.fetch_max(count, Ordering::Relaxed);
    Ok(count)
}

/// Makes the context of this thread's device current.
pub(crate) fn enter() -> Result<&'static Cuda, u32> {
    let cuda = cuda()?;
    let context = context(device())?;
    // SAFETY: the context is retained.
    check(unsafe { (cuda.cuCtxSetCurrent)(context) })?;
    Ok(cuda)
}

/// The context of a device.
pub(crate) fn context(ordinal: c_int) -> Result<usize, u32> {
    let place = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
    let mut contexts = CONTEXTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(Some(known)) = contexts.get(place) {
        return Ok(*known);
    }
    let mut context = 0;
    // SAFETY: the result is written to a local; the driver answers with an error for a device that it does not have.
    check(unsafe { (cuda()?.cuDevicePrimaryCtxRetain)(&mut context, ordinal) })?;
    let length = contexts.len().max(place + 1);
    contexts.resize(length, None);
    contexts[place] = Some(context);
    Ok(context)
}

/// The device whose context this is.
pub(crate) fn device_of(context: usize) -> Result<c_int, u32> {
    let contexts = CONTEXTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let place = contexts.iter().position(|known| *known == Some(context)).ok_or(INVALID_HANDLE)?;
    c_int::try_from(place).map_err(|_| INVALID_HANDLE)
}

pub(crate) fn creates() {
    LIVE.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn destroys() {
    LIVE.fetch_sub(1, Ordering::Relaxed);
}

/// Has the contexts released when the process ends.
pub(crate) fn release_at_exit() {
    // SAFETY: the function stays: this library is never unloaded.
    let _ = unsafe { libc::atexit(release) };
}

/// What belongs to this thread is gone already, that of a driver included: another one does it.
extern "C" fn release() {
    let _ = std::thread::spawn(release_contexts).join();
}

/// Threads of the program may still be giving things back, unless they leave some on purpose. What they leave keeps its context,
/// for whoever looks for leaks.
fn release_contexts() {
    let start = Instant::now();
    let leaks_allowed = std::env::var_os("DRIVER_SIM_LEAKS").is_some_and(|leaks| leaks == "allow");
    let grace = if leaks_allowed { Duration::ZERO } else { GRACE };
    while LIVE.load(Ordering::Relaxed) != 0 {
        if start.elapsed() > grace {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let Ok(cuda) = cuda() else { return };
    let contexts = CONTEXTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (ordinal, _) in contexts.iter().enumerate().filter(|(_, context)| context.is_some()) {
        // SAFETY: retained by `context`, and nothing that was created in it is left.
        let _ = unsafe { (cuda.cuDevicePrimaryCtxRelease_v2)(ordinal as c_int) };
    }
}
