//! One kernel for many small copies.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::stream::StreamState;
use crate::backend::stream_ordered::submit::{places, submit_by};
use crate::backend::{CopyOp, Moved, Staging, Submission};
use crate::error::{Error, Result};
use crate::runtime::leaks::count_leak;

/// A copy, as the kernel's table has it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct GatherEntry {
    /// Where from: memory of the device, or of a peer.
    pub from: u64,
    /// Where to: memory of the device, or page-locked memory of the host.
    pub to: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl GatherEntry {
    /// How many bytes of the table it takes.
    pub(crate) const BYTES: usize = size_of::<Self>();
}

const NAME: &CStr = c"transship_gather";
/// Threads for each copy: 4 KiB at a time.
const THREADS: u32 = 256;

/// The kernel of a device that has one.
pub(crate) struct Gather<A: Api> {
    module: A::Module,
    kernel: A::Kernel,
    context: Arc<Context<A>>,
}

// SAFETY: every thread may use the handles (promise 1 of `Api`).
unsafe impl<A: Api> Send for Gather<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Gather<A> {}

impl<A: Api> Gather<A> {
    /// Loads the kernel and runs it once: the driver may load code at the first launch, which would wait for the device.
    pub(crate) fn load(context: &Arc<Context<A>>, state: &StreamState<A>) -> Result<Option<Self>> {
        let driver = context.enter()?;
        // SAFETY: the device is current.
        let Some(module) = (unsafe { driver.load_kernels()? }) else { return Ok(None) };
        // SAFETY: as above; the module is loaded.
        let kernel = unsafe { driver.kernel(module, NAME) };
        let kernel = kernel.inspect_err(|_| {
            // SAFETY: as above; nothing has found a kernel in it.
            let _ = unsafe { driver.unload_kernels(module) };
        })?;
        let gather = Self { module, kernel, context: context.clone() };
        // SAFETY: as above.
        let table = unsafe { driver.allocate_host(GatherEntry::BYTES)? };
        let Some(table) = table else { return Ok(None) };
        // SAFETY: the table has room for the entry, which copies nothing; the stream is alive and of this device; the table is
        // freed behind the launch, or not at all.
        let freed = unsafe {
            table.cast::<GatherEntry>().write(GatherEntry::default());
            let launched = gather.launch(&driver, table, 1, state);
            let ran = launched.and_then(|()| driver.synchronize_stream(state.handle()));
            ran.and_then(|()| driver.free_host(table))
        };
        if let Err(error) = freed {
            count_leak(GatherEntry::BYTES);
            return Err(error);
        }
        Ok(Some(gather))
    }

    /// Submits `ops`, all of which read device memory, as one launch.
    ///
    /// # Safety
    ///
    /// As [`Backend::submit_gathered`](crate::backend::Backend::submit_gathered); the device is current.
    pub(crate) unsafe fn submit(
        &self,
        driver: &Current<'_, A>,
        ops: &[CopyOp<'_>],
        table: &dyn Staging,
        state: &StreamState<A>,
        moved: &mut Moved,
    ) -> Result<()> {
        let device = self.context.id();
        let window =
            table.window().and_then(|window| window.at(0, ops.len().saturating_mul(GatherEntry::BYTES)));
        let start = window.ok_or(Error::Unsupported { device, what: "use a table that is too small" })?;
        let entries = start.cast::<GatherEntry>();
        for (index, op) in ops.iter().enumerate() {
            let (from, to) = places(&self.context, op)?;
            // SAFETY: `at` has checked that the block, whose start is aligned to pages, has room for all entries; it is the
            // caller's until the position is reached.
            unsafe { entries.add(index).write(GatherEntry { from, to, bytes: op.bytes() as u64 }) };
            moved.count(op);
        }
        let count = u32::try_from(ops.len());
        let count = count.map_err(|_| Error::Unsupported { device, what: "make so many copies at once" })?;
        // SAFETY: the ranges are the caller's promise; the table has been written.
        unsafe { self.launch(driver, start, count, state)? };
        // The kernel is one thing to the driver, whatever it copies.
        moved.as_one_copy();
        Ok(())
    }

    /// # Safety
    ///
    /// The device is current; the table has so many entries, whose ranges are valid until the stream has come by.
    unsafe fn launch(
        &self,
        driver: &Current<'_, A>,
        table: NonNull<u8>,
        entries: u32,
        state: &StreamState<A>,
    ) -> Result<()> {
        let mut table = table.as_ptr().expose_provenance() as u64;
        let mut arguments = [(&raw mut table).cast()];
        // SAFETY: the caller's promises; the kernel takes one argument of 64 bits.
        unsafe { driver.launch(self.kernel, entries, THREADS, &mut arguments, state.handle()) }
    }
}

impl<A: Api> Drop for Gather<A> {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: loaded by `load`. The backend drops it when none of its streams is used any more.
            let _ = unsafe { driver.unload_kernels(self.module) };
        }
    }
}

/// As [`submit`], by one kernel.
///
/// # Safety
///
/// As [`Backend::submit_gathered`](crate::backend::Backend::submit_gathered).
///
/// # Errors
///
/// As [`submit`].
pub(crate) unsafe fn submit_gathered<A: Api>(
    gather: &Gather<A>,
    context: &Arc<Context<A>>,
    ops: &[CopyOp<'_>],
    table: &dyn Staging,
    state: &StreamState<A>,
) -> Result<Submission> {
    // SAFETY: the caller's promises.
    let all = |driver: &Current<'_, A>, moved: &mut Moved| unsafe {
        gather.submit(driver, ops, table, state, moved)
    };
    submit_by(context, state, all)
}
