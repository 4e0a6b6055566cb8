//! The path that the bytes of one source take.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::BackendStream;
use crate::device::block_size::{
    FULL_RING, SEGMENTS_OF_A_PATH, SEGMENTS_OF_LAUNCHES, budget, is_cut, largest_block, power_within,
    smallest_segment, staging_block,
};
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::job::kernels::{Kernels, LargestTable};
use crate::job::leaf::Leaf;
use crate::job::locate_leaves::Scan;
use crate::job::options::CopyOptions;
use crate::job::source::{Source, is_direct};
use crate::job::widening::{Widening, widens};
use crate::plan::plan::Plan;
use crate::staging::block::Block;
use crate::tensor::device_list::DeviceList;
use crate::tensor::non_temporal::HostCopy;

/// While many copies run, their segments have at least so many bytes. With segments of 512 KiB, 16 threads that copy 9 MB each
/// wait for each other in the driver (41 GB/s, and 46 with these, on an H200).
const SEGMENT_OF_MANY: usize = 1 << 20;
/// Fewer bytes than these are written to a cache.
const LEAST_PAST_CACHES: usize = 256 << 10;
/// A copy of more bytes keeps the link busy for long.
const LONG_SPAN: usize = 512 << 20;
/// A path out of a device without staging is one segment up to so many bytes.
const LARGEST_AT_ONCE: usize = 32 << 20;
/// Above it, each segment has leaves for about so many bytes of a kernel's table, 500 entries; parts of a leaf are written so fast that they do not count. 4,000 tensors with a
/// heavy tail come down in 4.1 ms so, and in 4.3 to 4.7 as one segment (H100).
const TABLE_OF_A_DOWNLOAD: usize = 12 << 10;
/// The same from device to device, where the copies of one segment are done sooner. The same tensors get from one to the other in 780 to 940 us so
/// if those that are large go first, and in 1,070 to 1,390 as one segment; half as long tables took a fifth longer (two H100s, NVLink, in turns).
const TABLE_BETWEEN: usize = 24 << 10;
/// Such segments have at least so many bytes.
const LEAST_OF_A_TABLE: usize = 8 << 20;
/// They end at multiples of so many bytes: kernels copy the rest of a leaf that is cut in words as wide as its beginning.
const CUT_OF_A_TABLE: usize = 4 << 10;
/// So many threads fill blocks at the same time. The first and the last segments are small: with large ones the link would wait
/// for the first blocks, and the program for the copies of the last ones.
const FILLED_AT_ONCE: usize = FULL_RING / 2;

/// How the bytes of one source get to the target.
pub(crate) enum PathKind {
    /// The host writes the destination.
    HostWrite,
    /// Through staging blocks, then up.
    Staged,
    /// Copies from where the bytes lie to where they go.
    Direct,
    /// Down to the host: directly into pinned results, through staging blocks into ordinary memory.
    Download,
    /// Down through a staging block of the source, then up through one of the target.
    ViaHost {
        /// The queue of the copies down.
        down: Arc<SubmissionQueue>,
    },
}

/// One source of a copy.
pub(crate) struct TransferPath {
    /// Its number in the plan.
    pub(crate) source: u16,
    pub(crate) from: Source,
    pub(crate) kind: PathKind,
    /// The queue of the copies; for [`PathKind::ViaHost`], of those up.
    pub(crate) queue: Arc<SubmissionQueue>,
    pub(crate) on_callers_stream: bool,
    /// The source makes the copies, to memory of the program on the target.
    is_pushed: bool,
    /// The segments without staging: the whole space, unless the copy is paced or the table of its kernel would be too large.
    segment: SegmentSizes,
    /// The segments through staging blocks, or written by the host.
    staged_segment: SegmentSizes,
    /// The same in as few staging blocks as can be.
    uncut_segment: SegmentSizes,
    /// Many staging blocks are filled from the host, which may be of any size.
    filled_by_many: bool,
    /// They take so long that large runs are written through the caches, unless many copies run (`HostCopy::past_caches`).
    is_long: bool,
    /// What goes up as it is, for the target to cast.
    pub(crate) widening: Widening,
    /// How many bytes its linear space has in staging blocks.
    pub(crate) staged_bytes: usize,
    /// What makes many small copies out of device memory, and leaves gaps out.
    pub(crate) kernels: Kernels,
    /// How many pieces its leaves have at the most that are lists of such (`DeviceList`).
    pub(crate) listed: usize,
}

/// The sizes of the segments of a linear space, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct SegmentSizes {
    least: usize,
    pub(crate) largest: usize,
}

impl SegmentSizes {
    fn all(bytes: usize) -> Self {
        Self { least: bytes, largest: bytes }
    }

    /// The same while many copies run.
    fn of_many(self) -> Self {
        Self { least: self.least.max(SEGMENT_OF_MANY), largest: self.largest.max(SEGMENT_OF_MANY) }
    }

    /// The size of the segment that follows `done` bytes, where `left` bytes are left; all of them staged bytes.
    pub(crate) fn next(self, done: usize, left: usize) -> usize {
        power_within(done.min(left) / FILLED_AT_ONCE).clamp(self.least, self.largest)
    }
}

impl TransferPath {
    /// The paths of all sources of `plan`, which is one of `leaves`.
    pub(crate) fn all(
        plan: &Plan,
        leaves: &[Leaf],
        scan: &Scan<'_>,
        options: &CopyOptions,
    ) -> Result<SmallVec<[Self; 1]>> {
        let (target, gathers, reaches_all) = (scan.target(), scan.has_gathered(), !scan.has_unreached());
        let mut paths = SmallVec::new();
        for (source, from) in scan.sources().iter().enumerate() {
            let Ok(source) = u16::try_from(source) else { continue };
            if plan.source_span(source) > 0 {
                let pusher = from.device().filter(|_| scan.is_pushed());
                let kernels = match pusher {
                    Some(source) => Kernels::of(pusher, source, false, true),
                    None => Kernels::of(from.device(), target, gathers, reaches_all),
                };
                // What is cast by a kernel is written without gaps.
                let widens = matches!(from, Source::Host) && widens(target.limits(), options);
                let widening = match !scan.fills_gaps() && widens {
                    true => Widening::of(plan, source, leaves, target.limits()),
                    false => Widening::default(),
                };
                let listed = if from.device().is_some() { scan.listed() } else { 0 };
                let by_kernels = (kernels, widening, listed);
                let ends = (from.clone(), target, pusher.is_some());
                paths.push(Self::new((plan, source), ends, by_kernels, options)?);
            }
        }
        Self::checked(paths, target, options)
    }

    /// The paths of the same sources to another target, which casts as well if the first one does.
    pub(crate) fn all_to(
        plan: &Plan,
        paths: &[Self],
        target: &Device,
        options: &CopyOptions,
    ) -> Result<SmallVec<[Self; 1]>> {
        let again = |path: &Self| {
            let by_kernels = (path.kernels, path.widening.clone(), path.listed);
            Self::new((plan, path.source), (path.from.clone(), target, false), by_kernels, options)
        };
        Self::checked(paths.iter().map(again).collect::<Result<_>>()?, target, options)
    }

    /// Fails if the caller has named a stream and none of `paths` runs on it.
    fn checked(
        paths: SmallVec<[Self; 1]>,
        target: &Device,
        options: &CopyOptions,
    ) -> Result<SmallVec<[Self; 1]>> {
        match &options.stream {
            Some(stream) if !paths.is_empty() && !paths.iter().any(|path: &Self| path.on_callers_stream) => {
                let expected = paths.first().map_or(DeviceId::HOST, |path| path.runs_on(target).id());
                Err(Error::WrongStream { actual: stream.device().id(), expected })
            }
            _ => Ok(paths),
        }
    }

    fn new(
        (plan, source): (&Plan, u16),
        (from, target, is_pushed): (Source, &Device, bool),
        (kernels, widening, listed): (Kernels, Widening, usize),
        options: &CopyOptions,
    ) -> Result<Self> {
        let kind = PathKind::between(&from, target)?;
        let (device, own): (_, fn(&Device) -> _) = match (&kind, &from) {
            (PathKind::Download, Source::Device(device)) => (device, Device::down),
            (PathKind::Direct, Source::Device(source)) => {
                (if is_pushed { source } else { target }, Device::between)
            }
            _ => (target, Device::up),
        };
        let callers = match &options.stream {
            Some(stream) => Some(stream.clone()).filter(|stream| stream.device().same_as(device)),
            None if is_pushed => None,
            None => Stream::current(device),
        };
        let queue = match &callers {
            // What is submitted to a stream that is lost would be leaked.
            Some(stream) => {
                stream.queue().check()?;
                stream.queue().clone()
            }
            None => own(device)?,
        };
        let pace = options.pace.unwrap_or(usize::MAX);
        let granularity = from.granularity().max(target.limits().copy_granularity);
        let paced = |bytes: usize| (bytes.min(pace) & !(granularity.bytes() - 1)).max(granularity.bytes());
        let device_from = from.device();
        if let Some(from) = device_from.filter(|from| from.budget().limit().is_some()) {
            // Who waits for room there asks this queue, which keeps its memory in use.
            from.staging().serve(&queue);
        }
        let budget = budget(target, device_from);
        // A kernel that makes all copies has a table of them, which must fit into one block.
        let span = plan.source_span(source);
        let table = kernels.largest_table(plan.chunks_of(source), listed);
        let largest = largest_block(budget);
        let of_leaves = table.map_or(0, LargestTable::bytes_of_leaves);
        let unstaged = match kind {
            PathKind::Download if kernels.strided.is_none() => {
                segment_of_table(span, of_leaves, TABLE_OF_A_DOWNLOAD)
            }
            PathKind::Direct if kernels.strided.is_none() => segment_of_table(span, of_leaves, TABLE_BETWEEN),
            _ => usize::MAX,
        };
        let segment = SegmentSizes::all(paced(if table.is_none_or(|table| table.bytes() <= largest) {
            unstaged
        } else {
            largest
        }));
        let staged_bytes = widening.staged(0..span);
        let segments = if widening.is_empty() { SEGMENTS_OF_A_PATH } else { SEGMENTS_OF_LAUNCHES };
        let block = staging_block((staged_bytes, segments), budget, target, device_from);
        let is_cut = is_cut(staged_bytes, target, device_from);
        let staged_segment = match options.pace.is_none() && is_cut {
            true => SegmentSizes { least: paced(smallest_segment(block, target)), largest: paced(block) },
            false => SegmentSizes::all(paced(block)),
        };
        let on_callers_stream = callers.is_some();
        // Calls for mapped blocks wait for each other: while many copies run, each has few.
        let filled_by_many = is_cut && matches!(kind, PathKind::Staged) && !target.limits().mapped_staging;
        Ok(Self {
            source,
            from,
            kind,
            queue,
            on_callers_stream,
            is_pushed,
            segment,
            staged_segment,
            uncut_segment: SegmentSizes::all(paced(largest)),
            filled_by_many,
            widening,
            staged_bytes,
            is_long: staged_bytes > LONG_SPAN,
            kernels,
            listed,
        })
    }

    /// The sizes of its segments; `pageable`: results on the host are ordinary memory.
    pub(crate) fn segment_sizes(&self, pageable: bool) -> SegmentSizes {
        match &self.kind {
            PathKind::Download if pageable => self.staged_segment,
            PathKind::Download if self.fills_at_once() => SegmentSizes::all(usize::MAX),
            PathKind::Direct | PathKind::Download => self.segment,
            PathKind::HostWrite | PathKind::Staged | PathKind::ViaHost { .. } => self.staged_segment,
        }
    }

    /// The same while many copies run.
    pub(crate) fn segment_sizes_of_many(&self, pageable: bool) -> SegmentSizes {
        match &self.kind {
            PathKind::Staged if self.filled_by_many => self.staged_segment.of_many(),
            PathKind::Staged => self.uncut_segment,
            _ => self.segment_sizes(pageable),
        }
    }

    /// Whether its `span` bytes are one segment, where they are not staged.
    pub(crate) fn is_one_segment(&self, span: usize) -> bool {
        span <= self.segment.largest
    }

    /// Whether its segments are carried from the last one to the first. Large leaves come last in a linear space, and are few copies, which
    /// keep the device busy while threads write the long tables of the small ones.
    pub(crate) fn begins_with_large(&self) -> bool {
        matches!(self.kind, PathKind::Direct) && self.kernels.ranges.is_some()
    }

    /// Whether its results must be filled by one submission, unless they are ordinary memory: one submission at a time uses a
    /// mapped block.
    pub(crate) fn fills_at_once(&self) -> bool {
        matches!(self.kind, PathKind::Download)
            && self.from.device().is_some_and(|source| source.limits().mapped_staging)
    }

    /// Whether its bytes are cut into segments that several threads put into staging blocks, however large these are.
    pub(crate) fn is_filled_by_many(&self) -> bool {
        self.filled_by_many
    }

    /// How the host writes `bytes` bytes into `block`. Copies out of ordinary memory begin with one by the driver, on the
    /// processor.
    pub(crate) fn writer(&self, bytes: usize, block: &Block) -> HostCopy {
        match self.kind {
            PathKind::Staged if !block.staging().is_pinned() || block.is_mapped() => HostCopy::ordinary(),
            PathKind::Staged if self.filled_by_many => {
                HostCopy::past_caches(!self.is_long || block.is_one_of_many())
            }
            PathKind::Staged if bytes >= LEAST_PAST_CACHES => HostCopy::long_past_caches(),
            _ => HostCopy::ordinary(),
        }
    }

    /// The list that a leaf of it is a part of.
    #[inline]
    pub(crate) fn list_of<'a>(&self, leaf: &'a Leaf) -> Option<&'a DeviceList> {
        if self.listed == 0 { None } else { leaf.list() }
    }

    /// The device that runs the copies; by way of the host, those up.
    pub(crate) fn runs_on<'a>(&'a self, target: &'a Device) -> &'a Device {
        match (&self.kind, self.from.device()) {
            (PathKind::Download, Some(source)) => source,
            (_, Some(source)) if self.is_pushed => source,
            _ => target,
        }
    }

    /// The device that runs the copies out of the sources.
    pub(crate) fn read_by<'a>(&'a self, target: &'a Device) -> &'a Device {
        match (&self.kind, self.from.device()) {
            (PathKind::ViaHost { .. }, Some(source)) => source,
            _ => self.runs_on(target),
        }
    }

    /// The stream that reads the sources.
    pub(crate) fn reading_stream(&self) -> &Arc<dyn BackendStream> {
        match &self.kind {
            PathKind::ViaHost { down } => down.stream(),
            _ => self.queue.stream(),
        }
    }

    /// The stream that writes the destinations, or the blocks that the host copies there later.
    pub(crate) fn writing_stream(&self) -> &Arc<dyn BackendStream> {
        self.queue.stream()
    }
}

/// The size of the segments of a path of `span` bytes, whose leaves have `table` bytes of a kernel's table at the most, about `each` in every
/// segment. Where the table is long, the device copies what the first entries say while threads write the others.
fn segment_of_table(span: usize, table: usize, each: usize) -> usize {
    let tables = table / each;
    match tables > 1 && span > LARGEST_AT_ONCE {
        true => (span / tables).max(LEAST_OF_A_TABLE).next_multiple_of(CUT_OF_A_TABLE),
        false => usize::MAX,
    }
}

impl PathKind {
    fn between(from: &Source, target: &Device) -> Result<Self> {
        Ok(match from {
            Source::Host if target.limits().host_writable => Self::HostWrite,
            Source::Host => Self::Staged,
            Source::PinnedHost => Self::Direct,
            Source::Device(_) if target.is_host() => Self::Download,
            Source::Device(source) if is_direct(source, target) => Self::Direct,
            Source::Device(source) => Self::ViaHost { down: source.down()? },
        })
    }
}
