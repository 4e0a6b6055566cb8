//! Page-locked host memory.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUresult};
use transship_core::backend::{Staging, WriteWindow};
use transship_core::{Error, Result};

use crate::calls::is_code;
use crate::context::Context;

/// Page-locked host memory, cached by the processor (never write-combined), known to every context.
pub(crate) struct CudaStaging {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may write and read it when is what the users of `window` and `contents` promise.
unsafe impl Send for CudaStaging {}
// SAFETY: as above.
unsafe impl Sync for CudaStaging {}

impl CudaStaging {
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let start = match bytes {
            0 => NonNull::dangling(),
            _ => page_locked(context, bytes)?,
        };
        context.counting().staging_allocated(bytes);
        Ok(Self { context: context.clone(), start, bytes })
    }
}

fn page_locked(context: &Context, bytes: usize) -> Result<NonNull<u8>> {
    let (device, kind, requested) = (context.id(), "staging", bytes);
    if isize::try_from(bytes).is_err() {
        return Err(Error::TooLarge { device, kind, requested, limit: isize::MAX.unsigned_abs() });
    }
    let out_of_memory = Error::OutOfMemory { device, kind, requested, free: 0, total: 0 };
    let mut start = std::ptr::null_mut::<c_void>();
    // SAFETY: the context is current; the address is written to a local.
    unsafe { context.enter()?.allocate_host(&mut start, bytes, CU_MEMHOSTALLOC_PORTABLE) }.map_err(
        |error| match is_code(&error, CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
            true => out_of_memory.clone(),
            false => error,
        },
    )?;
    NonNull::new(start.cast()).ok_or(out_of_memory)
}

// SAFETY: the memory stays where it is until `drop`, and the driver gives it to nobody else.
unsafe impl Staging for CudaStaging {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_pinned(&self) -> bool {
        true
    }

    fn window(&self) -> Option<WriteWindow> {
        // SAFETY: the range is ours until `drop`.
        Some(unsafe { WriteWindow::new(self.start, self.bytes) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        Some(self.start)
    }
}

impl Drop for CudaStaging {
    fn drop(&mut self) {
        self.context.counting().staging_freed(self.bytes);
        if self.bytes == 0 {
            return;
        }
        if let Ok(driver) = self.context.enter() {
            // SAFETY: allocated by `page_locked`, and nobody uses it any more.
            let _ = unsafe { driver.free_host(self.start.as_ptr().cast()) };
        }
    }
}
