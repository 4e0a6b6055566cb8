//! The way that the bytes of one source take.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::backend::BackendStream;
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::queue::Lane;
use crate::job::options::{CopyOptions, LARGEST_BLOCK};
use crate::plan::plan::Plan;
use crate::staging::block::Block;
use crate::tensor::host_copy::Writer;
use crate::transfer::inline::MOST_INLINE_BYTES;

/// A flow through staging blocks is cut into about so many units: all workers begin at once, and the link soon.
const UNITS_OF_A_FLOW: usize = 32;
/// What is smaller keeps the link waiting: one copy behind the other, 256 KiB each cross it at 35 GB/s, 512 KiB at 43, 1 MiB
/// at 48 and 4 MiB at 53 (H200).
const SMALLEST_UNIT: usize = 512 << 10;
/// While many copies run, they are cut into pieces of so many bytes: 16 threads that copy 9 MB each in pieces of 512 KiB wait for
/// each other in the driver (41 GB/s, and 46 with these, on an H200).
const UNIT_OF_MANY: usize = 1 << 20;
/// Fewer bytes are written to a cache.
const LEAST_PAST_CACHES: usize = 256 << 10;
/// A copy of more bytes keeps the link busy for long.
const LONG_SPAN: usize = 512 << 20;
/// So many blocks fill the link, with 8 workers at it.
const FULL_RING: usize = 16;
/// So many threads fill blocks at the same time. The first units, and the last, are small: the link would wait for the first
/// blocks, and everybody for the copies of the last.
const FILLED_AT_ONCE: usize = FULL_RING / 2;

/// Where leaves lie.
#[derive(Clone)]
pub(crate) enum Origin {
    /// In host memory that is staged.
    Host,
    /// In pinned host memory that devices read as it is.
    PinnedHost,
    /// On a device.
    Device(Device),
}

/// How the bytes of one source get to the target.
pub(crate) enum Way {
    /// The host writes the destination.
    Fill,
    /// Through staging blocks, then up.
    Staged,
    /// Copies from where the bytes lie to where they go.
    Direct,
    /// Down to the host: directly into pinned results, through staging blocks into ordinary memory.
    Download,
    /// Down through a staging block of the source, then up through one of the target.
    OverHost {
        /// What the way down runs on.
        down: Arc<Lane>,
    },
}

/// One source of a copy.
pub(crate) struct Flow {
    /// Its number in the plan.
    pub(crate) source: u16,
    pub(crate) origin: Origin,
    pub(crate) way: Way,
    /// What the copies run on; for [`Way::OverHost`], the way up.
    pub(crate) lane: Arc<Lane>,
    pub(crate) on_callers_stream: bool,
    /// The bytes are carried whole, unless the copy is paced or has very many places,
    unit: UnitSizes,
    /// and through staging blocks in pieces of these.
    staged_unit: UnitSizes,
    /// Many staging blocks are filled from the host.
    filled_by_many: bool,
    /// They take so long that the caches serve well on the way.
    is_long: bool,
}

/// The pieces in which a linear space is carried, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct UnitSizes {
    least: usize,
    pub(crate) largest: usize,
}

impl UnitSizes {
    fn all(bytes: usize) -> Self {
        Self { least: bytes, largest: bytes }
    }

    /// The same while many copies run.
    pub(crate) fn of_many(self) -> Self {
        Self { least: self.least.max(UNIT_OF_MANY), largest: self.largest.max(UNIT_OF_MANY) }
    }

    /// The size of the piece behind `done` bytes, where `left` are left.
    pub(crate) fn next(self, done: usize, left: usize) -> usize {
        power_within(done.min(left) / FILLED_AT_ONCE).clamp(self.least, self.largest)
    }
}

impl Flow {
    /// The flows of all sources of `plan`.
    pub(crate) fn all(
        plan: &Plan,
        origins: &[Origin],
        target: &Device,
        options: &CopyOptions,
    ) -> Result<SmallVec<[Self; 1]>> {
        let mut flows = SmallVec::new();
        for (source, origin) in origins.iter().enumerate() {
            let Ok(source) = u16::try_from(source) else { continue };
            if plan.source_span(source) > 0 {
                flows.push(Self::new(plan, source, origin.clone(), target, options));
            }
        }
        Self::checked(flows, target, options)
    }

    /// The ways of the same sources to another target.
    pub(crate) fn all_to(
        plan: &Plan,
        flows: &[Self],
        target: &Device,
        options: &CopyOptions,
    ) -> Result<SmallVec<[Self; 1]>> {
        let again = |flow: &Self| Self::new(plan, flow.source, flow.origin.clone(), target, options);
        Self::checked(flows.iter().map(again).collect(), target, options)
    }

    /// Fails if the caller has named a stream and none of `flows` runs on it.
    fn checked(
        flows: SmallVec<[Self; 1]>,
        target: &Device,
        options: &CopyOptions,
    ) -> Result<SmallVec<[Self; 1]>> {
        match &options.stream {
            Some(stream) if !flows.is_empty() && !flows.iter().any(|flow: &Self| flow.on_callers_stream) => {
                let expected = flows.first().map_or(DeviceId::HOST, |flow| flow.runs_on(target).id());
                Err(Error::WrongStream { actual: stream.device().id(), expected })
            }
            _ => Ok(flows),
        }
    }

    fn new(plan: &Plan, source: u16, origin: Origin, target: &Device, options: &CopyOptions) -> Self {
        let way = Way::between(&origin, target);
        let (device, own) = match (&way, &origin) {
            (Way::Download, Origin::Device(device)) => (device, device.down()),
            (Way::Direct, Origin::Device(_)) => (target, target.between()),
            _ => (target, target.up()),
        };
        let callers = match &options.stream {
            Some(stream) => Some(stream.clone()).filter(|stream| stream.device().same_as(device)),
            None => Stream::current(device),
        };
        let lane = callers.as_ref().map_or(own, Stream::lane).clone();
        let pace = options.pace.unwrap_or(usize::MAX);
        let granularity = origin.granularity().max(target.limits().copy_granularity);
        let paced = |bytes: usize| (bytes.min(pace) & !(granularity.bytes() - 1)).max(granularity.bytes());
        let from = origin.device();
        let budget = budget(target, from);
        // A kernel that makes all copies has a table of them, which must be had as a block.
        let leaves = || plan.chunks_of(source).iter().map(|chunk| chunk.order.len()).sum::<usize>();
        let table = from.and(device.limits().gather).map_or(0, |entry| leaves().saturating_mul(entry));
        let largest = largest_block(budget);
        let unit = UnitSizes::all(paced(if table <= largest { usize::MAX } else { largest }));
        let span = plan.source_span(source);
        let block = staging_block(span, budget, target, from);
        let is_cut = is_cut(span, target, from);
        let staged_unit = match options.pace.is_none() && is_cut {
            true => {
                UnitSizes { least: paced(SMALLEST_UNIT.max(block / 4).min(block)), largest: paced(block) }
            }
            false => UnitSizes::all(paced(block)),
        };
        let on_callers_stream = callers.is_some();
        let filled_by_many = is_cut && matches!(way, Way::Staged);
        Self {
            source,
            origin,
            way,
            lane,
            on_callers_stream,
            unit,
            staged_unit,
            filled_by_many,
            is_long: span > LONG_SPAN,
        }
    }

    /// The pieces in which its bytes are carried; `pageable`: results on the host are ordinary memory.
    pub(crate) fn unit_sizes(&self, pageable: bool) -> UnitSizes {
        match &self.way {
            Way::Download if pageable => self.staged_unit,
            Way::Download if self.fills_at_once() => UnitSizes::all(usize::MAX),
            Way::Direct | Way::Download => self.unit,
            Way::Fill | Way::Staged | Way::OverHost { .. } => self.staged_unit,
        }
    }

    /// Whether its results must be filled by one submission, unless they are ordinary memory: a mapped block is used by
    /// one at a time.
    pub(crate) fn fills_at_once(&self) -> bool {
        matches!(self.way, Way::Download)
            && self.origin.device().is_some_and(|source| source.limits().mapped_staging)
    }

    /// Whether its bytes are cut into pieces that several threads put into staging blocks.
    pub(crate) fn is_filled_by_many(&self) -> bool {
        self.filled_by_many
    }

    /// What puts `bytes` bytes into `block`. Copies out of ordinary memory begin with one by the driver, on the processor.
    pub(crate) fn writer(&self, bytes: usize, block: &Block) -> Writer {
        match self.way {
            Way::Staged if !block.staging().is_pinned() || block.is_mapped() => Writer::ordinary(),
            Way::Staged if self.filled_by_many => {
                Writer::past_caches(!self.is_long || block.is_one_of_many())
            }
            Way::Staged if bytes >= LEAST_PAST_CACHES => Writer::long_past_caches(),
            _ => Writer::ordinary(),
        }
    }

    /// The device that runs the copies; over the host, those on the way up.
    fn runs_on<'a>(&'a self, target: &'a Device) -> &'a Device {
        match (&self.way, self.origin.device()) {
            (Way::Download, Some(source)) => source,
            _ => target,
        }
    }

    /// The device that runs the copies out of the sources.
    pub(crate) fn read_by<'a>(&'a self, target: &'a Device) -> &'a Device {
        match (&self.way, self.origin.device()) {
            (Way::OverHost { .. }, Some(source)) => source,
            _ => self.runs_on(target),
        }
    }

    /// What reads the sources.
    pub(crate) fn reading_stream(&self) -> &Arc<dyn BackendStream> {
        match &self.way {
            Way::OverHost { down } => down.stream(),
            _ => self.lane.stream(),
        }
    }

    /// What writes the destinations, or what is put there later.
    pub(crate) fn writing_stream(&self) -> &Arc<dyn BackendStream> {
        self.lane.stream()
    }

    /// How many bytes a kernel needs for each copy out of device memory; `None` if there is no such kernel.
    pub(crate) fn gather(&self, target: &Device) -> Option<usize> {
        self.origin.device().and_then(|_| self.read_by(target).limits().gather)
    }
}

/// The largest staging block for `span` bytes that come up to `target` from the host.
pub(crate) fn staging_block_up(span: usize, target: &Device) -> usize {
    staging_block(span, budget(target, None), target, None)
}

/// The largest staging block within `budget` for a flow of `span` bytes to `target`, which come from `source`, if not from the
/// host.
fn staging_block(span: usize, budget: usize, target: &Device, source: Option<&Device>) -> usize {
    if !is_cut(span, target, source) {
        return largest_block(budget);
    }
    let largest = power_within(budget / FULL_RING).clamp(SMALLEST_UNIT, LARGEST_BLOCK);
    let wanted = (span / UNITS_OF_A_FLOW).checked_next_power_of_two().unwrap_or(largest);
    wanted.clamp(SMALLEST_UNIT, largest).min(largest_block(budget))
}

/// Whether a flow through staging blocks is cut into pieces for many threads. What the caller's thread carries is one piece; and
/// where blocks are mapped, each takes a call of 10 us and more.
fn is_cut(span: usize, target: &Device, source: Option<&Device>) -> bool {
    let mut ends = [Some(target), source].into_iter().flatten();
    span > MOST_INLINE_BYTES && !ends.any(|device| device.limits().mapped_staging)
}

fn largest_block(budget: usize) -> usize {
    power_within(budget).min(LARGEST_BLOCK)
}

/// What the staging blocks of both ends may have.
fn budget(target: &Device, source: Option<&Device>) -> usize {
    let of_source = source.map_or(usize::MAX, |device| device.staging().budget());
    target.staging().budget().min(of_source)
}

/// Whether copies from one device to the other need not go over the host. With granules of different sizes they would read or write
/// beyond one of both ends.
fn is_direct(source: &Device, target: &Device) -> bool {
    source.limits().copy_granularity == target.limits().copy_granularity
        && target.backend().reaches(&**source.backend())
}

/// The largest power of two up to `bytes`.
fn power_within(bytes: usize) -> usize {
    bytes.checked_ilog2().map_or(1, |log| 1 << log)
}

impl Way {
    fn between(origin: &Origin, target: &Device) -> Self {
        match origin {
            Origin::Host if target.limits().host_writable => Self::Fill,
            Origin::Host => Self::Staged,
            Origin::PinnedHost => Self::Direct,
            Origin::Device(_) if target.is_host() => Self::Download,
            Origin::Device(source) if is_direct(source, target) => Self::Direct,
            Origin::Device(source) => Self::OverHost { down: source.down().clone() },
        }
    }
}

impl Origin {
    /// What the offsets and sizes of copies out of it are multiples of.
    pub(crate) fn granularity(&self) -> Alignment {
        self.device().map_or(Alignment::ONE, |device| device.limits().copy_granularity)
    }

    pub(crate) fn device(&self) -> Option<&Device> {
        match self {
            Self::Device(device) => Some(device),
            _ => None,
        }
    }
}
