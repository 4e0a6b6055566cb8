//! The few functions of libcuda that are needed.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

struct Cuda {
    current: unsafe extern "C" fn(*mut usize) -> c_int,
    push: unsafe extern "C" fn(usize) -> c_int,
    pop: unsafe extern "C" fn(*mut usize) -> c_int,
    attribute: unsafe extern "C" fn(*mut c_void, c_uint, u64) -> c_int,
    allocation: unsafe extern "C" fn(*mut u64, *mut usize, u64) -> c_int,
    down: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    up: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
}

const CONTEXT: c_uint = 1;
const ORDINAL: c_uint = 9;
const POOL: c_uint = 17;

/// Whether a device is current on this thread.
pub(crate) fn is_current() -> bool {
    let mut context = 0;
    // SAFETY: the context goes to a local.
    cuda().is_some_and(|cuda| unsafe { (cuda.current)(&mut context) } == 0 && context != 0)
}

/// Whether that is an allocation of this device, all of it, and none of a pool: UCX shares no other with processes.
pub(crate) fn is_whole_allocation(address: u64, bytes: usize, device: u64) -> bool {
    let Some(cuda) = cuda() else { return false };
    let (mut ordinal, mut pool, mut start, mut there) = (-1_i32, u64::MAX, 0, 0);
    // SAFETY: results go to locals of the types that the attributes have; any address may be asked about.
    let codes = unsafe {
        [
            (cuda.attribute)((&raw mut ordinal).cast(), ORDINAL, address),
            (cuda.attribute)((&raw mut pool).cast(), POOL, address),
            (cuda.allocation)(&mut start, &mut there, address),
        ]
    };
    codes == [0; 3] && u64::try_from(ordinal) == Ok(device) && pool == 0 && (start, there) == (address, bytes)
}

pub(crate) fn read(from: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut read = vec![0; bytes];
    // SAFETY: the vector has as many bytes; the driver knows the address, or refuses.
    let copied = at(from, |cuda| unsafe { (cuda.down)(read.as_mut_ptr().cast(), from, bytes) } == 0)?;
    copied.then_some(read)
}

pub(crate) fn write(to: u64, bytes: &[u8]) -> Option<()> {
    // SAFETY: as above.
    at(to, |cuda| unsafe { (cuda.up)(to, bytes.as_ptr().cast(), bytes.len()) } == 0)?.then_some(())
}

/// In the context of the memory at an address: that of another device does not reach it.
fn at<T>(address: u64, copy: impl FnOnce(&Cuda) -> T) -> Option<T> {
    let (cuda, mut context, mut popped) = (cuda()?, 0_usize, 0);
    // SAFETY: the context goes to a local; any address may be asked about.
    let codes =
        unsafe { [(cuda.attribute)((&raw mut context).cast(), CONTEXT, address), (cuda.push)(context)] };
    if codes != [0, 0] {
        return None;
    }
    let result = copy(cuda);
    // SAFETY: pushed above.
    let _ = unsafe { (cuda.pop)(&mut popped) };
    Some(result)
}

fn cuda() -> Option<&'static Cuda> {
    static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
    CUDA.get_or_init(load).as_ref()
}

fn load() -> Option<Cuda> {
    // SAFETY: it is loaded already by whoever has a device; each field has the prototype of the name beside it, with handles as numbers.
    unsafe {
        let library: &'static Library = Box::leak(Box::new(Library::new("libcuda.so.1").ok()?));
        Some(Cuda {
            current: *library.get(b"cuCtxGetCurrent").ok()?,
            push: *library.get(b"cuCtxPushCurrent_v2").ok()?,
            pop: *library.get(b"cuCtxPopCurrent_v2").ok()?,
            attribute: *library.get(b"cuPointerGetAttribute").ok()?,
            allocation: *library.get(b"cuMemGetAddressRange_v2").ok()?,
            down: *library.get(b"cuMemcpyDtoH_v2").ok()?,
            up: *library.get(b"cuMemcpyHtoD_v2").ok()?,
        })
    }
}
