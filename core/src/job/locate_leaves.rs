//! Finding out where the tensors of a structure lie, while they are taken out of it.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::backend::{Elements, Runs};
use crate::cast::{Cast, cast_of};
use crate::convert::check::check_values;
use crate::device::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::dependencies::Dependencies;
use crate::job::leaf::{Leaf, Special};
use crate::job::options::{CopyOptions, CopyPolicy};
use crate::job::source::{Source, is_direct, reader};
use crate::job::widening::widens;
use crate::plan::leaf;
use crate::plan::leaf::{Place, RangeKey};
use crate::runtime::fork;
use crate::runtime::scratch::{Scratch, ScratchVec};
use crate::staging::block::is_pinned_for;
use crate::tensor::device_list::{DeviceList, kernels_reach};
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Storage, poisoned};

thread_local! {
    static LEAVES: Scratch<leaf::Leaf> = const { Scratch::new() };
}

/// Pinned sources above so many bytes are copied on their own, whatever is packed: gathering them takes one thread longer than
/// a copy of their own.
const LARGEST_GATHERED: usize = 256 << 10;

const TOO_LARGE_TO_GATHER: &str =
    "gather or cast tensors with gaps that lie in so much memory (Limits::largest_strided); copy parts of it";

/// What contiguous tensors over plain memory of one place have in common, once one of them was looked at.
#[derive(Clone, Copy)]
struct Alike {
    /// See [`Storage::place`].
    place: usize,
    /// The number of their source.
    number: u16,
    /// Larger ones may differ, in bytes.
    largest: usize,
    /// The bits of an offset that are its skew.
    skew: usize,
}

/// The type of elements, and the one that they get.
type Types = (DType, DType);

/// Shape, strides unless contiguous, and types.
type LayoutKey = (Vec<usize>, Option<Vec<usize>>, Types);

/// What a plan must know of each tensor, and what the copies of all of them wait for.
pub(crate) struct Scan<'a> {
    target: &'a Device,
    /// Whether the target is the host, kept because every tensor asks.
    to_host: bool,
    policy: CopyPolicy,
    /// Pinned sources above this many bytes need no staging.
    largest_gathered: usize,
    /// Tensors on the host up to this many bytes may be [`Alike`].
    largest_alike: usize,
    leaves: ScratchVec<leaf::Leaf>,
    sources: SmallVec<[Source; 2]>,
    /// What is known of tensors on the host that are staged.
    on_host: Option<Alike>,
    /// And of those on the device whose memory was looked at last.
    on_device: Option<Alike>,
    /// The same of memory that the program has allocated there.
    on_device_lent: Option<Alike>,
    before: Dependencies,
    has_residents: bool,
    /// Some device leaves the gaps of strided tensors out.
    has_gathered: bool,
    /// Some memory is out of the reach of kernels of the device that reads it.
    has_unreached: bool,
    /// How many pieces of devices were gathered into tensors.
    listed: usize,
    /// Whether it does so where there are none, or more elements than memory, as well.
    gathers_all: bool,
    /// Whether kernels can write where results go.
    reached_by_kernels: bool,
    /// Whether the next tensor goes to memory with gaps, which kernels and the host write.
    to_gaps: bool,
    /// Whether it goes to memory that the program has allocated on the target, which kernels of other devices may not reach.
    to_lent: bool,
    /// Whether one of them does.
    fills_gaps: bool,
    /// Whether the devices that tensors lie on copy them, and not the target.
    is_pushed: bool,
    /// The device memory that was looked at last: neighbours often share theirs.
    last_source: usize,
    casts: &'a [Cast],
    /// Whether the target casts what lies on the host and gets larger by that.
    widens: bool,
    layouts: FxHashMap<LayoutKey, u32>,
    /// The layout that was numbered last, what it becomes, and its number: neighbours are often alike.
    last_layout: Option<(Layout, Types, u32)>,
}

impl<'a> Scan<'a> {
    /// A scan for a copy to `target`. Fails if the options ask for a larger alignment than its buffers have.
    pub(crate) fn new(target: &'a Device, options: &'a CopyOptions) -> Result<Self> {
        fork::check()?;
        if options.min_alignment() > target.limits().buffer_alignment {
            return Err(Error::InvalidOption {
                name: "packed_alignment",
                value: options.alignment.to_string(),
                reason: "buffers of the target are aligned less (see Device::limits)",
            });
        }
        let largest_gathered = if options.pack { options.max_packed.min(LARGEST_GATHERED) } else { 0 };
        let differ = target.is_host() && options.policy == CopyPolicy::Compact;
        Ok(Self {
            target,
            to_host: target.is_host(),
            policy: options.policy,
            largest_gathered,
            largest_alike: if differ { 0 } else { largest_gathered },
            leaves: ScratchVec::new(&LEAVES),
            sources: SmallVec::new(),
            on_host: None,
            on_device: None,
            on_device_lent: None,
            before: Dependencies::default(),
            has_residents: false,
            has_gathered: false,
            has_unreached: false,
            listed: 0,
            gathers_all: false,
            reached_by_kernels: options.pinned || !target.is_host(),
            to_gaps: false,
            to_lent: false,
            fills_gaps: false,
            is_pushed: false,
            last_source: 0,
            casts: &options.casts,
            widens: widens(target.limits(), options),
            layouts: FxHashMap::default(),
            last_layout: None,
        })
    }

    /// The same for a copy whose results must lie in one run each.
    pub(crate) fn gathering_all(mut self) -> Self {
        self.gathers_all = true;
        self
    }

    /// Whether the tensor that is taken next goes to memory with gaps, and whether to memory that the program has allocated.
    #[inline]
    pub(crate) fn note_destination(&mut self, to_gaps: bool, to_lent: bool) {
        (self.to_gaps, self.to_lent) = (to_gaps, to_lent);
        self.fills_gaps |= to_gaps;
    }

    /// The devices that tensors lie on copy them.
    pub(crate) fn note_pushed(&mut self) {
        self.is_pushed = true;
    }

    /// Whether they do, and not the target.
    pub(crate) fn is_pushed(&self) -> bool {
        self.is_pushed
    }

    /// Whether a tensor goes to memory with gaps.
    pub(crate) fn fills_gaps(&self) -> bool {
        self.fills_gaps
    }

    pub(crate) fn target(&self) -> &'a Device {
        self.target
    }

    pub(crate) fn leaves(&self) -> &[leaf::Leaf] {
        &self.leaves
    }

    /// Where the leaves lie, by the numbers that the plan's leaves name.
    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Whether a tensor stays where it is.
    pub(crate) fn has_residents(&self) -> bool {
        self.has_residents
    }

    /// Whether the gaps of a tensor are left out by the device that reads it.
    pub(crate) fn has_gathered(&self) -> bool {
        self.has_gathered
    }

    /// Whether kernels of the device that reads it do not reach some memory.
    pub(crate) fn has_unreached(&self) -> bool {
        self.has_unreached
    }

    /// How many pieces tensors on devices consist of that were gathered out of such.
    pub(crate) fn listed(&self) -> usize {
        self.listed
    }

    /// Why the elements of a leaf are not copied into one run.
    pub(crate) fn why_not_gathered(&self, leaf: &Leaf) -> &'static str {
        let dims = leaf.special.as_ref().map_or(0, |special| special.elements.runs.dims().len());
        let reader = leaf.storage.device().map(|source| reader(source, self.target));
        match reader.is_some_and(|reader| reader.limits().gathers()) {
            false => "copy strided tensors into memory that is there; start_copy keeps their strides",
            true if dims > Runs::MOST_DIMS => {
                "gather tensors of more than 8 dimensions; copy them with start_copy, which keeps their strides"
            }
            true if self.is_unreached(&leaf.storage) => {
                "gather what the program has allocated there into what it has allocated on another device; copy it within its device first (CopyPolicy::Always)"
            }
            true if self.reached_by_kernels => TOO_LARGE_TO_GATHER,
            true => {
                "gather into memory that is not pinned; leave pinned_staging on, or use start_copy, which keeps strides"
            }
        }
    }

    /// What the offsets and sizes of copies are multiples of.
    pub(crate) fn granularity(&self) -> Alignment {
        let target = self.target.limits().copy_granularity;
        self.sources.iter().map(Source::granularity).fold(target, Alignment::max)
    }

    /// The least alignment of a packed tensor: that of either end, so that neighbours keep their distances and travel
    /// together.
    pub(crate) fn alignment(&self, options: &CopyOptions) -> Alignment {
        let sources = self.sources.iter().filter_map(Source::device);
        let devices = sources.chain([self.target]);
        devices.map(|device| options.alignment_on(device.limits())).fold(Alignment::ONE, Alignment::max)
    }

    /// Takes out what the copy must come after.
    pub(crate) fn take_predecessors(&mut self) -> Dependencies {
        std::mem::take(&mut self.before)
    }

    /// Takes a tensor into account that differs from others only in its size and in where it lies in memory, which is what
    /// most do. `false` if it must be [looked at](Scan::look_at).
    #[inline(always)]
    pub(crate) fn recognizes(&mut self, storage: &Storage, offset: usize, layout: &Layout) -> bool {
        let (bytes, place) = (layout.nbytes(), storage.place());
        let alike = match place {
            0 => &self.on_host,
            _ if !storage.is_lent() => &self.on_device,
            // Pieces that were gathered are no plain memory.
            _ if storage.is_shared_with_others() => return false,
            _ => &self.on_device_lent,
        };
        match alike {
            Some(alike)
                if place == alike.place
                    && bytes <= alike.largest
                    && layout.is_contiguous()
                    && storage.is_plain(offset, bytes) =>
            {
                let range =
                    storage.is_shared().then(|| RangeKey { storage: storage.identity(), offset, layout: 0 });
                let (alignment, place) = (layout.dtype().alignment(), Place::From(alike.number));
                let skew = (offset & alike.skew) as u16;
                self.leaves.push(leaf::Leaf { bytes, alignment, skew, place, range, widened_log2: 0 });
                true
            }
            _ => false,
        }
    }

    /// Takes any tensor into account. Fails if its elements do not lie within `storage`: a structure that showed its tensors
    /// in another order after a failed copy may have got them mixed up. Or if they are to be cast and cannot be. Answers how many bytes
    /// the elements have of the type that they get, and how they lie if they are not in one run or are cast.
    pub(crate) fn look_at(
        &mut self,
        storage: &Storage,
        offset: usize,
        layout: &Layout,
    ) -> Result<(usize, Option<Special>)> {
        storage.check_range(offset, layout.span())?;
        let on_host = storage.device().is_none();
        let cast = cast_of(self.casts, layout.dtype());
        let dtype = cast.map_or(layout.dtype(), |cast| cast.to_dtype());
        if cast.is_some() {
            // Casts look at the elements where they lie.
            storage.check_unshared()?;
        }
        if let Some(list) = DeviceList::of_storage(storage) {
            list.check_view(storage.device_id(), layout, self.gathers_all)?;
            // One without elements is looked at as well, and copies nothing.
            self.listed += list.runs().max(1);
        }
        let payload = layout.bytes_as(dtype)?;
        let special = self.special(storage, offset, layout, cast)?;
        let is_gathered = special.as_ref().is_some_and(|special| special.is_gathered);
        let bytes = if on_host || is_gathered { payload } else { layout.span() };
        let place = self.place(storage, layout, bytes, cast.is_some())?;
        if let Some(cast) = cast.filter(|cast| on_host && cast.may_not_fit() && bytes > 0) {
            // What is still being filled cannot be looked at.
            check_values(&cast, storage.host_bytes(offset, layout.span())?, layout)?;
        }
        // What has no elements needs no copy before this one.
        if let Some(copy) = storage.pending().filter(|_| bytes > 0) {
            self.note_pending(copy, place)?;
        }
        if !on_host && place != Place::Resident && storage.identity() != self.last_source {
            self.last_source = storage.identity();
            storage.add_uses(&mut self.before.uses);
        }
        self.has_residents |= place == Place::Resident;
        self.has_gathered |= is_gathered && !on_host;
        self.has_unreached |= self.is_unreached(storage);
        let range = storage.is_shared().then(|| RangeKey {
            storage: storage.identity(),
            offset,
            layout: if is_gathered || cast.is_some() { self.number_of(layout, dtype) } else { 0 },
        });
        let skew = storage.device().filter(|_| !is_gathered).map_or(0, |source| self.skew(source, offset));
        let widened_log2 = cast.filter(|_| on_host && self.widens).map_or(0, |cast| cast.widened_log2());
        let alignment = dtype.alignment();
        self.leaves.push(leaf::Leaf { bytes, alignment, skew, place, range, widened_log2 });
        Ok((payload, special))
    }

    /// How the elements lie and what they become, if they are not in one run or are cast. Fails if they lie on a device and cannot be
    /// cast from there.
    fn special(
        &self,
        storage: &Storage,
        offset: usize,
        layout: &Layout,
        cast: Option<Cast>,
    ) -> Result<Option<Special>> {
        if cast.is_none() && layout.is_contiguous() {
            return Ok(None);
        }
        let runs = layout.runs();
        let is_gathered = match storage.device() {
            None => true,
            Some(_) if cast.is_some() && layout.numel() == 0 => true,
            Some(source) => {
                let gatherer = self.gatherer(storage, source);
                let gathers = gatherer.is_some_and(|gatherer| self.gathers(gatherer, layout, &runs));
                if let Some(cast) = cast
                    && (cast.may_not_fit() || !gathers)
                {
                    let what = self.why_not_cast(&cast, storage, &runs);
                    return Err(Error::Unsupported { device: source.id(), what });
                }
                gathers && (cast.is_some() || self.gathers_all || layout.nbytes() < runs.span())
            }
        };
        Ok(Some(Special { elements: Elements { offset, runs, cast }, is_gathered }))
    }

    /// Why elements that lie on a device are not cast from there.
    fn why_not_cast(&self, cast: &Cast, storage: &Storage, runs: &Runs) -> &'static str {
        if cast.may_not_fit() {
            "look at integers that may not fit; say saturating(), or copy them to the host without the cast, and cast on the way from there"
        } else if runs.dims().len() > Runs::MOST_DIMS {
            "cast tensors of more than 8 dimensions; call contiguous() first"
        } else if self.is_unreached(storage) {
            "cast what the program has allocated there into what it has allocated on another device; copy it within its device first (CopyPolicy::Always)"
        } else if !self.reached_by_kernels {
            "cast into memory that is not pinned; leave pinned_staging on"
        } else if storage.device().is_some_and(|source| reader(source, self.target).limits().gathers()) {
            TOO_LARGE_TO_GATHER
        } else {
            "cast what lies on it; copy it to the host without the cast, and cast on the way from there"
        }
    }

    /// Whether kernels of the device that reads the memory may not reach it: the program has allocated it on another device, and has
    /// opened it to nobody. Copies of the driver do.
    fn is_unreached(&self, storage: &Storage) -> bool {
        storage.is_lent()
            && storage.device().is_some_and(|source| {
                let reader = reader(source, self.target);
                !reader.same_as(source) && !kernels_reach(&**reader.backend(), storage.buffer())
            })
    }

    /// Whether what lies there is on a device from which copies go straight to the target, another device.
    pub(crate) fn copies_within(&self, storage: &Storage) -> bool {
        !self.to_host && storage.device().is_some_and(|source| is_direct(source, self.target))
    }

    /// The device whose kernels read `storage`, which lies on `source`; `None` if none may. Kernels of `source` reach what the program has
    /// allocated there, and may write to what the target has allocated.
    fn gatherer<'d>(&'d self, storage: &Storage, source: &'d Device) -> Option<&'d Device> {
        if !self.is_unreached(storage) {
            return Some(reader(source, self.target));
        }
        let writes = !self.to_lent && self.target.backend().is_written_by(&**source.backend());
        writes.then_some(source)
    }

    /// Whether `gatherer` leaves gaps out.
    fn gathers(&self, gatherer: &Device, layout: &Layout, runs: &Runs) -> bool {
        let limits = gatherer.limits();
        let fits = || runs.dims().is_empty() || layout.nbytes().max(runs.span()) <= limits.largest_strided;
        self.reached_by_kernels
            && runs.dims().len() <= Runs::MOST_DIMS
            && limits.gathers()
            && (limits.gather_strided.is_some() || fits())
    }

    /// How far behind a granule of either end a leaf on `source` begins.
    fn skew(&self, source: &Device, offset: usize) -> u16 {
        (offset & self.skew_bits(source)) as u16
    }

    fn skew_bits(&self, source: &Device) -> usize {
        source.limits().copy_granularity.max(self.target.limits().copy_granularity).bytes() - 1
    }

    /// `bytes`: how many are copied.
    fn place(&mut self, storage: &Storage, layout: &Layout, bytes: usize, is_cast: bool) -> Result<Place> {
        let resident = match storage.device() {
            // Without elements it only changes its type.
            _ if is_cast && bytes > 0 => false,
            // Others write what is shared with them: it is copied.
            _ if storage.is_shared_with_others() => false,
            None => self.to_host,
            Some(device) => device.same_as(self.target),
        };
        match self.policy {
            CopyPolicy::Never if !resident => Err(self.never(storage, layout)),
            CopyPolicy::IfNeeded | CopyPolicy::Never if resident => Ok(Place::Resident),
            CopyPolicy::Compact if resident && storage.retained_bytes() / 2 <= bytes => Ok(Place::Resident),
            _ => Ok(Place::From(self.source_of(storage, layout, is_cast))),
        }
    }

    /// The error of a tensor that would have to be copied.
    #[cold]
    fn never(&self, storage: &Storage, layout: &Layout) -> Error {
        let is_there = storage.device().map_or(self.to_host, |device| device.same_as(self.target));
        match cast_of(self.casts, layout.dtype()).filter(|_| is_there) {
            Some(cast) => {
                Error::NeverCast { path: String::new(), from: cast.from_dtype(), to: cast.to_dtype() }
            }
            None => Error::NeverCopy { from: storage.device_id(), to: self.target.id() },
        }
    }

    fn source_of(&mut self, storage: &Storage, layout: &Layout, is_cast: bool) -> u16 {
        let place = storage.place();
        match storage.device() {
            Some(device) => {
                let number = self.number_of_source(SourceRef::Device(device));
                // One that is compacted on its own device is copied only if little of its memory is its own; others than one that is shared
                // with others may stay there.
                let may_stay = self.policy == CopyPolicy::Compact || storage.is_shared_with_others();
                if !(may_stay && device.same_as(self.target)) && self.casts.is_empty() {
                    let skew = self.skew_bits(device);
                    self.on_device = Some(Alike { place, number, largest: usize::MAX, skew });
                    self.on_device_lent =
                        self.on_device.filter(|_| reader(device, self.target).same_as(device));
                }
                number
            }
            None if !is_cast && self.goes_directly(storage, layout) => {
                self.number_of_source(SourceRef::PinnedHost)
            }
            None => match self.on_host {
                Some(alike) => alike.number,
                None => {
                    let number = self.number_of_source(SourceRef::Host);
                    // Where some are cast, each is looked at. On the way to the host others that lie there may stay.
                    if self.casts.is_empty() && !(self.to_host && storage.is_shared_with_others()) {
                        self.on_host = Some(Alike { place, number, largest: self.largest_alike, skew: 0 });
                    }
                    number
                }
            },
        }
    }

    fn number_of_source(&mut self, from: SourceRef<'_>) -> u16 {
        let index = self.sources.iter().position(|known| from.names(known)).unwrap_or_else(|| {
            self.sources.push(from.into_source());
            self.sources.len() - 1
        });
        u16::try_from(index).unwrap_or(u16::MAX)
    }

    /// Pinned memory needs no staging. Small tensors are gathered nevertheless, which is cheaper than a copy for each.
    fn goes_directly(&self, storage: &Storage, layout: &Layout) -> bool {
        layout.nbytes() > self.largest_gathered
            && !self.to_gaps
            && layout.is_contiguous()
            && is_pinned_for(storage.buffer(), self.target.id().driver())
            && self.copies_directly(layout.nbytes())
    }

    fn copies_directly(&self, bytes: usize) -> bool {
        let limits = self.target.limits();
        !limits.host_writable && !limits.mapped_staging && limits.copy_granularity.divides(bytes)
    }

    fn note_pending(&mut self, copy: &Arc<Completion>, place: Place) -> Result<()> {
        let list = match place {
            Place::Resident => &mut self.before.of_residents,
            Place::From(_) => &mut self.before.of_sources,
        };
        if list.last().is_some_and(|known| Arc::ptr_eq(known, copy)) {
            return Ok(());
        }
        let done = copy.is_done().map_err(poisoned)?;
        if !done && !list.iter().any(|known| Arc::ptr_eq(known, copy)) {
            list.push(copy.clone());
        }
        Ok(())
    }

    /// A number for each way in which elements can lie and what they become, 0 for one run of what they are.
    fn number_of(&mut self, layout: &Layout, dtype: DType) -> u32 {
        let strides = layout.explicit_strides();
        if strides.is_none() && dtype == layout.dtype() {
            return 0;
        }
        let way = (layout.dtype(), dtype);
        if let Some((last, last_way, number)) = &self.last_layout
            && (last.shape(), last.explicit_strides(), *last_way) == (layout.shape(), strides, way)
        {
            return *number;
        }
        let next = u32::try_from(self.layouts.len() + 1).unwrap_or(u32::MAX);
        let lies = (layout.shape().to_vec(), strides.map(<[usize]>::to_vec), way);
        let number = *self.layouts.entry(lies).or_insert(next);
        self.last_layout = Some((layout.clone(), way, number));
        number
    }
}

/// A [`Source`] that is only looked up.
enum SourceRef<'a> {
    Host,
    PinnedHost,
    Device(&'a Device),
}

impl SourceRef<'_> {
    #[inline]
    fn names(&self, from: &Source) -> bool {
        match (self, from) {
            (Self::Host, Source::Host) | (Self::PinnedHost, Source::PinnedHost) => true,
            (Self::Device(one), Source::Device(other)) => one.same_as(other),
            _ => false,
        }
    }

    fn into_source(self) -> Source {
        match self {
            Self::Host => Source::Host,
            Self::PinnedHost => Source::PinnedHost,
            Self::Device(device) => Source::Device(device.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;
    use crate::backend::BackendStream;
    use crate::backend::host::HostStream;
    use crate::backend::host::memory::HostMemory;

    fn storage(filled_by: Option<Arc<Completion>>) -> Storage {
        Storage::new(Box::new(HostMemory::zeroed(8).unwrap()), None, filled_by)
    }

    #[test]
    fn only_what_differs_in_size_and_place_alone_is_recognized() {
        let (target, options) = (Device::host(), CopyOptions::default().policy(CopyPolicy::Always));
        let mut scan = Scan::new(&target, &options).unwrap();
        let bytes = |count: usize| Layout::contiguous(DType::U8, &[count]).unwrap();
        let plain = storage(None);
        assert!(!scan.recognizes(&plain, 0, &bytes(8)), "none was looked at");
        scan.look_at(&plain, 0, &bytes(8)).unwrap();
        assert!(scan.recognizes(&plain, 0, &bytes(8)) && scan.recognizes(&plain, 5, &bytes(3)));
        assert_eq!(scan.leaves().len(), 3);
        assert_eq!(scan.leaves().first(), scan.leaves().get(1));

        for (offset, count) in [(1, 8), (0, 9), (9, 0), (usize::MAX, 1)] {
            assert!(!scan.recognizes(&plain, offset, &bytes(count)), "{count} bytes at {offset}");
            assert!(matches!(scan.look_at(&plain, offset, &bytes(count)), Err(Error::OutOfRange { .. })));
        }
        assert!(!scan.recognizes(&plain, 0, &Layout::strided(DType::U8, &[2], &[3]).unwrap()));
        let (pending, used) = (storage(Some(Completion::new())), storage(None));
        assert!(!scan.recognizes(&pending, 0, &bytes(8)));
        assert!(scan.recognizes(&used, 0, &bytes(8)));
        let stream: Arc<dyn BackendStream> = Arc::new(HostStream::new());
        used.record_stream(&stream);
        assert!(!scan.recognizes(&used, 0, &bytes(8)));
    }
}
