//! The few functions of libcuda that are needed.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

struct Cuda {
    retain: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    release: unsafe extern "C" fn(c_int) -> c_int,
    current: unsafe extern "C" fn(*mut usize) -> c_int,
    push: unsafe extern "C" fn(usize) -> c_int,
    pop: unsafe extern "C" fn(*mut usize) -> c_int,
    synchronize: unsafe extern "C" fn(usize) -> c_int,
    down: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    up: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    create_event: unsafe extern "C" fn(*mut usize, c_uint) -> c_int,
    record: unsafe extern "C" fn(usize, usize) -> c_int,
    wait: unsafe extern "C" fn(usize, usize, c_uint) -> c_int,
    destroy_event: unsafe extern "C" fn(usize) -> c_int,
    allocate: unsafe extern "C" fn(*mut *mut u8, usize) -> c_int,
    free: unsafe extern "C" fn(*mut u8) -> c_int,
    down_behind: unsafe extern "C" fn(*mut u8, u64, usize, usize) -> c_int,
    up_behind: unsafe extern "C" fn(u64, *const u8, usize, usize) -> c_int,
    call_host: unsafe extern "C" fn(usize, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int,
}

const WITHOUT_TIME: c_uint = 2;

/// A context of the driver's.
pub(crate) struct Context {
    handle: usize,
    /// The device whose primary context is given back at the end.
    retained: Option<c_int>,
    page_locked: Mutex<Vec<PageLocked>>,
}

/// Where page-locked memory starts.
#[derive(Clone, Copy)]
pub(crate) struct PageLocked(*mut u8);

// SAFETY: plain memory; streams order who touches it.
unsafe impl Send for PageLocked {}

impl PageLocked {
    /// # Safety
    ///
    /// It has as many bytes, which are written, and nobody writes them meanwhile.
    pub(crate) unsafe fn bytes(&self, bytes: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0, bytes) }
    }

    /// # Safety
    ///
    /// It has as many bytes, which nobody touches meanwhile.
    pub(crate) unsafe fn write(&self, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.0.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}

impl Context {
    pub(crate) fn current() -> Option<Self> {
        let mut handle = 0;
        // SAFETY: the context goes to a local.
        (unsafe { (cuda()?.current)(&mut handle) } == 0 && handle != 0).then_some(Self {
            handle,
            retained: None,
            page_locked: Mutex::default(),
        })
    }

    pub(crate) fn of_device(device: c_int) -> Option<Self> {
        let mut handle = 0;
        // SAFETY: the context goes to a local.
        let code = unsafe { (cuda()?.retain)(&mut handle, device) };
        (code == 0).then_some(Self { handle, retained: Some(device), page_locked: Mutex::default() })
    }

    /// Waits for the stream, and reads.
    pub(crate) fn read(&self, stream: usize, from: u64, bytes: usize) -> Option<Vec<u8>> {
        let cuda = cuda()?;
        self.inside(|| {
            let mut read = vec![0; bytes];
            // SAFETY: the caller of the collective promises the stream and the memory; the vector has as many bytes.
            let codes =
                unsafe { [(cuda.synchronize)(stream), (cuda.down)(read.as_mut_ptr().cast(), from, bytes)] };
            (codes == [0, 0]).then_some(read)
        })
    }

    pub(crate) fn write(&self, stream: usize, to: u64, bytes: &[u8]) -> Option<()> {
        let cuda = cuda()?;
        self.inside(|| {
            // SAFETY: as above.
            let codes =
                unsafe { [(cuda.synchronize)(stream), (cuda.up)(to, bytes.as_ptr().cast(), bytes.len())] };
            (codes == [0, 0]).then_some(())
        })
    }

    /// Marks the end of `marked`, a stream of this context, and lets a stream of another one wait for it.
    pub(crate) fn precede(&self, marked: usize, other: &Self, waiting: usize) -> Option<()> {
        let (cuda, mut event) = (cuda()?, 0);
        self.inside(|| {
            // SAFETY: the caller of the collective promises the streams; the event goes to a local.
            let codes =
                unsafe { [(cuda.create_event)(&mut event, WITHOUT_TIME), (cuda.record)(event, marked)] };
            (codes == [0, 0]).then_some(())
        })?;
        // SAFETY: as above; it was recorded.
        other.inside(|| (unsafe { (cuda.wait)(waiting, event, 0) } == 0).then_some(()))?;
        // SAFETY: nobody names it any more; the driver keeps it until it is passed.
        self.inside(|| (unsafe { (cuda.destroy_event)(event) } == 0).then_some(()))
    }

    /// Page-locked memory, until the context goes.
    pub(crate) fn page_locked(&self, bytes: usize) -> Option<PageLocked> {
        let (cuda, mut start) = (cuda()?, std::ptr::null_mut());
        // SAFETY: the address goes to a local.
        self.inside(|| (unsafe { (cuda.allocate)(&mut start, bytes) } == 0).then_some(()))?;
        self.page_locked.lock().unwrap_or_else(PoisonError::into_inner).push(PageLocked(start));
        Some(PageLocked(start))
    }

    /// Streams may not have come by.
    pub(crate) fn keep_memory(&self) {
        self.page_locked.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn read_behind(&self, stream: usize, from: u64, to: PageLocked, bytes: usize) -> Option<()> {
        let cuda = cuda()?;
        // SAFETY: the caller of the collective promises the stream and the memory; the other memory has as many bytes.
        self.inside(|| (unsafe { (cuda.down_behind)(to.0, from, bytes, stream) } == 0).then_some(()))
    }

    pub(crate) fn write_behind(&self, stream: usize, to: u64, from: PageLocked, bytes: usize) -> Option<()> {
        let cuda = cuda()?;
        // SAFETY: as above.
        self.inside(|| (unsafe { (cuda.up_behind)(to, from.0, bytes, stream) } == 0).then_some(()))
    }

    /// Has the host do `work` in the order of `stream`.
    pub(crate) fn call_host(&self, stream: usize, work: Work) -> Option<()> {
        let cuda = cuda()?;
        let work = Box::into_raw(Box::new(work));
        // SAFETY: `run` takes what was boxed above, once.
        self.inside(|| (unsafe { (cuda.call_host)(stream, run, work.cast()) } == 0).then_some(()))
    }

    fn inside<T>(&self, call: impl FnOnce() -> Option<T>) -> Option<T> {
        let (cuda, mut popped) = (cuda()?, 0);
        // SAFETY: the context is current for somebody who lives longer, or retained.
        if unsafe { (cuda.push)(self.handle) } != 0 {
            return None;
        }
        let result = call();
        // SAFETY: pushed above.
        let _ = unsafe { (cuda.pop)(&mut popped) };
        result
    }
}

/// What the host does on behalf of a stream. It may not call the driver.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

unsafe extern "C" fn run(work: *mut c_void) {
    // SAFETY: boxed by `call_host`, and given to the driver, which calls once.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    work();
}

impl Drop for Context {
    fn drop(&mut self) {
        for PageLocked(start) in
            std::mem::take(&mut *self.page_locked.lock().unwrap_or_else(PoisonError::into_inner))
        {
            // SAFETY: allocated above; the stream has come by: the caller of `ncclCommDestroy`.
            let _ = cuda().and_then(|cuda| self.inside(|| Some(unsafe { (cuda.free)(start) })));
        }
        if let (Some(device), Some(cuda)) = (self.retained, cuda()) {
            // SAFETY: retained by `of_device`.
            let _ = unsafe { (cuda.release)(device) };
        }
    }
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
            retain: *library.get(b"cuDevicePrimaryCtxRetain").ok()?,
            release: *library.get(b"cuDevicePrimaryCtxRelease_v2").ok()?,
            current: *library.get(b"cuCtxGetCurrent").ok()?,
            push: *library.get(b"cuCtxPushCurrent_v2").ok()?,
            pop: *library.get(b"cuCtxPopCurrent_v2").ok()?,
            synchronize: *library.get(b"cuStreamSynchronize").ok()?,
            down: *library.get(b"cuMemcpyDtoH_v2").ok()?,
            up: *library.get(b"cuMemcpyHtoD_v2").ok()?,
            create_event: *library.get(b"cuEventCreate").ok()?,
            record: *library.get(b"cuEventRecord").ok()?,
            wait: *library.get(b"cuStreamWaitEvent").ok()?,
            destroy_event: *library.get(b"cuEventDestroy_v2").ok()?,
            allocate: *library.get(b"cuMemAllocHost_v2").ok()?,
            free: *library.get(b"cuMemFreeHost").ok()?,
            down_behind: *library.get(b"cuMemcpyDtoHAsync_v2").ok()?,
            up_behind: *library.get(b"cuMemcpyHtoDAsync_v2").ok()?,
            call_host: *library.get(b"cuLaunchHostFunc").ok()?,
        })
    }
}
