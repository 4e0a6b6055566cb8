//! The kernels that copy out of device memory, and to strided places in it.

use std::ffi::CStr;
use std::iter;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::cast_entry::CastEntry;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::places::places;
use crate::backend::stream_ordered::scatter_entry::ScatterEntry;
use crate::backend::stream_ordered::stream::StreamState;
use crate::backend::stream_ordered::strided_entry::StridedEntry;
use crate::backend::{CopyOp, Elements, KernelTable, Moved, Runs};
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
    /// Scatters into one tensor.
    scatter_one: A::Kernel,
    /// Casts what a table says.
    cast: A::Kernel,
    /// Casts out of one tensor.
    cast_one: A::Kernel,
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
        let kernels = || -> Result<Self> {
            Ok(Self {
                module,
                ranges: found(c"transship_gather")?,
                strided: found(c"transship_gather_strided")?,
                one: found(c"transship_gather_one")?,
                scatter_one: found(c"transship_scatter_one")?,
                cast: found(c"transship_cast")?,
                cast_one: found(c"transship_cast_one")?,
                context: context.clone(),
            })
        };
        let gather = kernels().inspect_err(|_| {
            // SAFETY: as above; nobody uses a kernel of it.
            let _ = unsafe { driver.unload_kernels(module) };
        })?;
        gather.run_once(&driver, state).map(|ran| ran.then_some(gather))
    }

    /// The device that runs them.
    pub(crate) fn context(&self) -> &Arc<Context<A>> {
        &self.context
    }

    /// Runs each kernel once, on a table of nothing; `false` if there is no memory for that.
    fn run_once(&self, driver: &Current<'_, A>, state: &StreamState<A>) -> Result<bool> {
        /// The largest entry.
        const BYTES: usize = CastEntry::BYTES;
        // SAFETY: the device is current.
        let Some(table) = (unsafe { driver.allocate_host(BYTES)? }) else { return Ok(false) };
        // SAFETY: the table has room for an entry of any kind; zeros are one that copies nothing. The stream is alive and of this
        // device; the table is freed behind the launches, or not at all.
        let freed = unsafe {
            table.write_bytes(0, BYTES);
            let tables = [self.ranges, self.strided, self.cast];
            let launched =
                tables.into_iter().try_for_each(|kernel| self.launch(driver, kernel, table, 1, state));
            let launched =
                launched.and_then(|()| self.launch_one(driver, self.one, StridedEntry::default(), 0, state));
            let launched = launched
                .and_then(|()| self.launch_one(driver, self.scatter_one, ScatterEntry::default(), 0, state));
            let launched = launched
                .and_then(|()| self.launch_one(driver, self.cast_one, CastEntry::default(), 0, state));
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
        table: KernelTable<'_>,
        state: &StreamState<A>,
        moved: &mut Moved,
    ) -> Result<()> {
        let device = self.context.id();
        // Those that gather stand behind all others.
        let ranges = ops.partition_point(|op| !matches!(op, CopyOp::Gather { .. }));
        let (ranges, gathers) = ops.split_at(ranges);
        let casts = gathers.iter().filter(|op| is_cast(op)).count();
        let strided = gathers.len() - casts;
        let parts = ranges.iter().fold(0_usize, |parts, op| parts.saturating_add(table.parts(op.bytes())));
        let sizes = [
            parts.saturating_mul(GatherEntry::BYTES),
            strided * StridedEntry::BYTES,
            casts * CastEntry::BYTES,
        ];
        let bytes = sizes.into_iter().fold(0, usize::saturating_add);
        let window = table.block.window().and_then(|window| window.at(0, bytes));
        let first = window.ok_or(Error::Unsupported { device, what: "use a table that is too small" })?;
        // SAFETY: `at` has checked that the block, whose start is aligned to pages, has room for the entries of all kinds; it is
        // the caller's until the position is reached.
        let (second, third) = unsafe { (first.add(sizes[0]), first.add(sizes[0] + sizes[1])) };
        let strided_ops = gathers.iter().filter(|op| !is_cast(op));
        let cast_ops = gathers.iter().filter(|op| is_cast(op));
        // SAFETY: as above: there is room for each.
        unsafe {
            self.write_ranges(ranges, table, first.cast(), moved)?;
            write_entries(strided_ops, second.cast(), moved, |op| self.strided_entry(op))?;
            write_entries(cast_ops, third.cast(), moved, |op| self.cast_entry(op))?;
        }
        let launches =
            [(self.ranges, first, parts), (self.strided, second, strided), (self.cast, third, casts)];
        let launches = launches.into_iter().filter(|(_, _, entries)| *entries > 0);
        // Counted as soon as something is submitted: the stream is drained if a later launch fails.
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

    /// Submits a [`CopyOp::Gather`], [`CopyOp::Scatter`] or [`CopyOp::UploadCast`] as a launch of its own, which needs no table.
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
        if is_cast(op) {
            let entry = self.cast_entry(op)?;
            // SAFETY: the caller's promises; the kernel takes such an entry.
            return unsafe { self.launch_one(driver, self.cast_one, entry, entry.elements.count, state) };
        }
        if let CopyOp::Scatter { .. } = op {
            let entry = self.scatter_entry(op)?;
            // SAFETY: as above.
            return unsafe { self.launch_one(driver, self.scatter_one, entry, entry.to.count, state) };
        }
        let entry = self.strided_entry(op)?;
        // SAFETY: as above.
        unsafe { self.launch_one(driver, self.one, entry, entry.count, state) }
    }

    /// Writes an entry for each part of `ops`, and counts them.
    ///
    /// # Safety
    ///
    /// There is room for as many entries.
    unsafe fn write_ranges(
        &self,
        ops: &[CopyOp<'_>],
        table: KernelTable<'_>,
        start: NonNull<GatherEntry>,
        moved: &mut Moved,
    ) -> Result<()> {
        let mut next = start;
        for op in ops {
            let (from, to) = places(&self.context, op)?;
            let (bytes, part) = (op.bytes() as u64, table.part.get() as u64);
            for number in 0..table.parts(op.bytes()) as u64 {
                let done = number * part;
                let entry = GatherEntry { from: from + done, to: to + done, bytes: part.min(bytes - done) };
                // SAFETY: the caller's promise, for this entry and the place behind it.
                unsafe {
                    next.write(entry);
                    next = next.add(1);
                }
            }
            moved.count(op);
        }
        Ok(())
    }

    fn strided_entry(&self, op: &CopyOp<'_>) -> Result<StridedEntry> {
        let (from, to) = places(&self.context, op)?;
        let entry = match *op {
            CopyOp::Gather { elements, skip, bytes, .. } => {
                StridedEntry::new(from, to, &elements.runs, skip, bytes)
            }
            _ => None,
        };
        entry.ok_or_else(|| self.too_many_dimensions())
    }

    fn scatter_entry(&self, op: &CopyOp<'_>) -> Result<ScatterEntry> {
        let (from, to) = places(&self.context, op)?;
        let entry = match *op {
            CopyOp::Scatter { elements, .. } => ScatterEntry::new(from, to, elements),
            _ => None,
        };
        entry.ok_or_else(|| self.too_many_dimensions())
    }

    fn cast_entry(&self, op: &CopyOp<'_>) -> Result<CastEntry> {
        let ends = places(&self.context, op)?;
        let entry = match *op {
            CopyOp::Gather { elements: Elements { runs, cast: Some(cast), .. }, skip, bytes, .. } => {
                CastEntry::new(ends, cast, runs, skip, bytes)
            }
            CopyOp::UploadCast { cast, bytes, .. } => {
                let runs = Runs::new(cast.source_bytes(bytes), iter::empty());
                CastEntry::new(ends, cast, &runs, 0, bytes)
            }
            _ => None,
        };
        entry.ok_or_else(|| self.too_many_dimensions())
    }

    fn too_many_dimensions(&self) -> Error {
        Error::Unsupported { device: self.context.id(), what: "gather or scatter so many dimensions" }
    }

    /// # Safety
    ///
    /// The device is current; the kernel takes such an entry, and what that reads and writes is valid until the stream has come by.
    unsafe fn launch_one<E>(
        &self,
        driver: &Current<'_, A>,
        kernel: A::Kernel,
        mut entry: E,
        items: u64,
        state: &StreamState<A>,
    ) -> Result<()> {
        let items_of_block = u64::from(THREADS) * ITEMS_PER_THREAD;
        let blocks =
            u32::try_from(items.div_ceil(items_of_block)).unwrap_or(MOST_BLOCKS).clamp(1, MOST_BLOCKS);
        let mut arguments = [(&raw mut entry).cast()];
        // SAFETY: the caller's promises.
        unsafe { driver.launch(kernel, blocks, THREADS, &mut arguments, state.handle()) }
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
        // SAFETY: the caller's promises; kernels that read a table take one argument of 64 bits.
        unsafe { driver.launch(kernel, entries, THREADS, &mut arguments, state.handle()) }
    }
}

/// Whether elements become others.
fn is_cast(op: &CopyOp<'_>) -> bool {
    match op {
        CopyOp::Gather { elements, .. } => elements.cast.is_some(),
        op => matches!(op, CopyOp::UploadCast { .. }),
    }
}

/// Writes an entry for each of `ops`, and counts them.
///
/// # Safety
///
/// There is room for as many entries.
unsafe fn write_entries<'a, 'k: 'a, E>(
    ops: impl Iterator<Item = &'a CopyOp<'k>>,
    start: NonNull<E>,
    moved: &mut Moved,
    entry: impl Fn(&CopyOp<'k>) -> Result<E>,
) -> Result<()> {
    for (index, op) in ops.enumerate() {
        let entry = entry(op)?;
        // SAFETY: the caller's promise.
        unsafe { start.add(index).write(entry) };
        moved.count(op);
    }
    Ok(())
}

impl<A: Api> Drop for Gather<A> {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: loaded by `load`. The backend drops it when none of its streams is used any more.
            let _ = unsafe { driver.unload_kernels(self.module) };
        }
    }
}
