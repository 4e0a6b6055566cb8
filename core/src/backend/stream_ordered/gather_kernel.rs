//! The kernels that copy out of device memory.

use std::ffi::CStr;
use std::iter;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::places::places;
use crate::backend::stream_ordered::stream::StreamState;
use crate::backend::stream_ordered::strided_entry::StridedEntry;
use crate::backend::{CopyOp, Elements, Moved, Runs, Staging};
use crate::error::{Error, Result};
use crate::runtime::leaks::count_leak;

/// A copy, as the kernel's table has it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct GatherEntry {
    /// Where from: memory of the device, or of a peer.
    pub(crate) from: u64,
    /// Where to: memory of the device, or page-locked memory of the host.
    pub(crate) to: u64,
    /// How many bytes.
    pub(crate) bytes: u64,
}

impl GatherEntry {
    /// How many bytes of the table it takes.
    pub(crate) const BYTES: usize = size_of::<Self>();
}

/// The kernels as C++, for any compiler that knows the device. What it must say before them stands at the top of the text.
pub const KERNELS: &str = include_str!("kernels/gather.cu");

/// Threads of a block.
const THREADS: u32 = 256;
/// The most blocks of a launch that gathers from one tensor: more than any device runs at a time.
const MOST_BLOCKS: u32 = 2048;
/// Each thread of it copies so many items, where there are enough for all.
const ITEMS_PER_THREAD: u64 = 4;

/// The kernels of a device that has them.
pub(crate) struct Gather<A: Api> {
    module: A::Module,
    /// Copies the ranges of a table.
    ranges: A::Kernel,
    /// Gathers what a table says.
    strided: A::Kernel,
    /// Gathers from one tensor.
    one: A::Kernel,
    context: Arc<Context<A>>,
}

// SAFETY: every thread may use the handles (promise 1 of `Api`); the context may be sent and shared as it is.
unsafe impl<A: Api> Send for Gather<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Gather<A> {}

impl<A: Api> Gather<A> {
    /// Loads the kernels and runs each once: the driver may load code at the first launch, which would wait for the device.
    pub(crate) fn load(context: &Arc<Context<A>>, state: &StreamState<A>) -> Result<Option<Self>> {
        let driver = context.enter()?;
        // SAFETY: the device is current.
        let Some(module) = (unsafe { driver.load_kernels()? }) else { return Ok(None) };
        // SAFETY: as above; the module is loaded.
        let found = |name: &CStr| unsafe { driver.kernel(module, name) };
        let kernels = found(c"transship_gather").and_then(|ranges| {
            Ok((ranges, found(c"transship_gather_strided")?, found(c"transship_gather_one")?))
        });
        let (ranges, strided, one) = kernels.inspect_err(|_| {
            // SAFETY: as above; nobody uses a kernel of it.
            let _ = unsafe { driver.unload_kernels(module) };
        })?;
        let gather = Self { module, ranges, strided, one, context: context.clone() };
        gather.run_once(&driver, state).map(|ran| ran.then_some(gather))
    }

    /// Runs each kernel once, on a table of nothing; `false` if there is no memory for that.
    fn run_once(&self, driver: &Current<'_, A>, state: &StreamState<A>) -> Result<bool> {
        const BYTES: usize = GatherEntry::BYTES + StridedEntry::BYTES;
        // SAFETY: the device is current.
        let Some(table) = (unsafe { driver.allocate_host(BYTES)? }) else { return Ok(false) };
        // SAFETY: the table has room for both entries, which copy nothing; the stream is alive and of this device; the table is
        // freed behind the launches, or not at all.
        let freed = unsafe {
            let strided = table.add(GatherEntry::BYTES);
            table.cast::<GatherEntry>().write(GatherEntry::default());
            strided.cast::<StridedEntry>().write(StridedEntry::default());
            let launched = self.launch(driver, self.ranges, table, 1, state);
            let launched = launched.and_then(|()| self.launch(driver, self.strided, strided, 1, state));
            let launched = launched.and_then(|()| self.launch_one(driver, StridedEntry::default(), state));
            let ran = launched.and_then(|()| driver.synchronize_stream(state.handle()));
            ran.and_then(|()| driver.free_host(table))
        };
        if freed.is_err() {
            count_leak(BYTES);
        }
        freed.map(|()| true)
    }

    /// Submits `ops`, all of which read device memory, as one launch for each kind of them.
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
        // Those that gather stand behind all others.
        let ranges = ops.partition_point(|op| !matches!(op, CopyOp::Gather { .. }));
        let (ranges, strided) = ops.split_at(ranges);
        let bytes = ranges.len() * GatherEntry::BYTES + strided.len() * StridedEntry::BYTES;
        let window = table.window().and_then(|window| window.at(0, bytes));
        let start = window.ok_or(Error::Unsupported { device, what: "use a table that is too small" })?;
        // SAFETY: `at` has checked that the block, whose start is aligned to pages, has room for the entries of both kinds; it is
        // the caller's until the position is reached.
        let behind = unsafe {
            self.write_ranges(ranges, start.cast(), moved)?;
            start.add(ranges.len() * GatherEntry::BYTES)
        };
        // SAFETY: as above.
        unsafe { self.write_strided(strided, behind.cast(), moved)? };
        let launches = [(self.ranges, start, ranges.len()), (self.strided, behind, strided.len())];
        let launches = launches.into_iter().filter(|(_, _, entries)| *entries > 0);
        // Counted as soon as something is submitted: the stream is drained if the second launch fails.
        moved.as_copies(launches.clone().count());
        for (kernel, table, entries) in launches {
            let entries = u32::try_from(entries);
            let entries =
                entries.map_err(|_| Error::Unsupported { device, what: "make so many copies at once" })?;
            // SAFETY: the ranges are the caller's promise; the table has been written.
            unsafe { self.launch(driver, kernel, table, entries, state)? };
        }
        Ok(())
    }

    /// # Safety
    ///
    /// There is room for as many entries.
    unsafe fn write_ranges(
        &self,
        ops: &[CopyOp<'_>],
        start: NonNull<GatherEntry>,
        moved: &mut Moved,
    ) -> Result<()> {
        for (index, op) in ops.iter().enumerate() {
            let (from, to) = places(&self.context, op)?;
            // SAFETY: the caller's promise.
            unsafe { start.add(index).write(GatherEntry { from, to, bytes: op.bytes() as u64 }) };
            moved.count(op);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// There is room for as many entries.
    unsafe fn write_strided(
        &self,
        ops: &[CopyOp<'_>],
        start: NonNull<StridedEntry>,
        moved: &mut Moved,
    ) -> Result<()> {
        for (index, op) in ops.iter().enumerate() {
            let entry = self.strided_entry(op)?;
            // SAFETY: the caller's promise.
            unsafe { start.add(index).write(entry) };
            moved.count(op);
        }
        Ok(())
    }

    /// Submits a [`CopyOp::Gather`] or [`CopyOp::UploadCast`] as a launch of its own, which needs no table.
    ///
    /// # Safety
    ///
    /// As [`Backend::submit`](crate::backend::Backend::submit); the device is current.
    pub(crate) unsafe fn submit_one(
        &self,
        driver: &Current<'_, A>,
        op: &CopyOp<'_>,
        state: &StreamState<A>,
    ) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.launch_one(driver, self.strided_entry(op)?, state) }
    }

    fn strided_entry(&self, op: &CopyOp<'_>) -> Result<StridedEntry> {
        let device = self.context.id();
        let (from, to) = places(&self.context, op)?;
        let entry = match *op {
            CopyOp::Gather { elements, skip, bytes, .. } => {
                StridedEntry::new(from, to, elements, skip, bytes)
            }
            CopyOp::UploadCast { cast, bytes, .. } => {
                let runs = Runs::new(cast.source_bytes(bytes), iter::empty());
                let elements = Elements { offset: 0, runs, cast: Some(*cast) };
                StridedEntry::new(from, to, &elements, 0, bytes)
            }
            _ => None,
        };
        entry.ok_or(Error::Unsupported { device, what: "gather so many dimensions" })
    }

    /// # Safety
    ///
    /// The device is current; what the entry reads and writes is valid until the stream has come by.
    unsafe fn launch_one(
        &self,
        driver: &Current<'_, A>,
        mut entry: StridedEntry,
        state: &StreamState<A>,
    ) -> Result<()> {
        let items = u64::from(THREADS) * ITEMS_PER_THREAD;
        let blocks = u32::try_from(entry.count.div_ceil(items)).unwrap_or(MOST_BLOCKS).clamp(1, MOST_BLOCKS);
        let mut arguments = [(&raw mut entry).cast()];
        // SAFETY: the caller's promises; the kernel takes such an entry.
        unsafe { driver.launch(self.one, blocks, THREADS, &mut arguments, state.handle()) }
    }

    /// # Safety
    ///
    /// The device is current; the table has so many entries of the kernel, whose ranges are valid until the stream has come by.
    unsafe fn launch(
        &self,
        driver: &Current<'_, A>,
        kernel: A::Kernel,
        table: NonNull<u8>,
        entries: u32,
        state: &StreamState<A>,
    ) -> Result<()> {
        let mut table = table.as_ptr().expose_provenance() as u64;
        let mut arguments = [(&raw mut table).cast()];
        // SAFETY: the caller's promises; both kernels take one argument of 64 bits.
        unsafe { driver.launch(kernel, entries, THREADS, &mut arguments, state.handle()) }
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
