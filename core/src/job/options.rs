//! How a copy shall be done.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use crate::alignment::Alignment;
use crate::backend::Limits;
use crate::cast::Cast;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::job::allocator::{Allocate, Allocator};
use crate::plan::rules::DEFAULT_ALIGNMENT;
use crate::timeline::timeline::Timeline;

/// Where a device demands an alignment above this, in bytes, tensors are not made bindable on their own unless that is asked for.
const LARGEST_BINDABLE_BY_DEFAULT: usize = 64;

/// How a copy shall be done. The default suits most.
///
/// ```
/// use transship_core::{BackgroundWork, CopyOptions};
///
/// let options = CopyOptions::default().max_chunk_bytes(8 << 20).background(BackgroundWork::Never);
/// assert!(options.validate().is_ok());
/// assert!(CopyOptions::default().packed_alignment(12).validate().is_err());
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct CopyOptions {
    pub(crate) pinned: bool,
    pub(crate) mapped_results: bool,
    pub(crate) into_graph: bool,
    pub(crate) pack: bool,
    pub(crate) alignment: usize,
    pub(crate) multiple: NonZero<usize>,
    pub(crate) bindable: Option<bool>,
    pub(crate) max_chunk: usize,
    pub(crate) max_packed: usize,
    pub(crate) pace: Option<usize>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) background: BackgroundWork,
    pub(crate) policy: CopyPolicy,
    pub(crate) stream: Option<Stream>,
    pub(crate) casts: Vec<Cast>,
    pub(crate) timeline: Option<Timeline>,
    pub(crate) allocator: Option<Allocator>,
}

/// Whether workers may do the staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BackgroundWork {
    /// Small copies on the caller's thread, at once. Large ones, and all that would block, on workers.
    #[default]
    Auto,
    /// Everything on workers.
    Always,
    /// Everything on the caller's thread; what would wait for the device is [`Error::Busy`].
    Never,
}

/// Whether a tensor that is on the target already is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CopyPolicy {
    /// Only if it is somewhere else.
    #[default]
    IfNeeded,
    /// Always: the result shares no memory with the source.
    Always,
    /// Never: a tensor that is somewhere else is [`Error::NeverCopy`], one that
    /// would be cast [`Error::NeverCast`].
    Never,
    /// If it is somewhere else, or keeps more than twice its own bytes alive ([`Tensor::retained_bytes`](crate::Tensor::retained_bytes)):
    /// what is to be kept for long is copied out of the chunks that it came in. Its own bytes are those that a copy moves: without
    /// gaps where those are left out, see [`start_copy`](crate::start_copy()).
    Compact,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            pinned: true,
            mapped_results: false,
            into_graph: false,
            pack: true,
            alignment: DEFAULT_ALIGNMENT.bytes(),
            multiple: NonZero::<usize>::MIN,
            bindable: None,
            max_chunk: 32 << 20,
            max_packed: 512 << 10,
            pace: None,
            deadline: None,
            background: BackgroundWork::Auto,
            policy: CopyPolicy::IfNeeded,
            stream: None,
            casts: Vec::new(),
            timeline: None,
            allocator: None,
        }
    }
}

impl CopyOptions {
    /// Whether host memory is staged through pinned blocks, and results down are pinned (default: yes). Without, staging
    /// is ordinary memory; copies from and to that block the thread that submits them, which is a worker unless
    /// background work is switched off. Kernels write to no ordinary memory: views of a device come down with their gaps then.
    pub fn pinned_staging(mut self, on: bool) -> Self {
        self.pinned = on;
        self
    }

    /// Leaves results in the staging memory that they came down in, where that is mapped from buffers of the device's own API
    /// (wgpu), and not page-locked. By default such results own their bytes, which costs a copy on the host.
    ///
    /// # Safety
    ///
    /// Nobody reads such a result while its device is destroyed or lost: wgpu unmaps the memory then, whoever still holds a
    /// slice of it.
    pub unsafe fn mapped_results(mut self) -> Self {
        self.mapped_results = true;
        self
    }

    /// Records copies of [`start_copy_into`](crate::start_copy_into()) into the graph into which their stream is being captured, where they
    /// are [refused](crate::Error::StreamCaptured) otherwise. That must be the program's own ([`stream`](Self::stream), [`Stream::enter`](crate::Stream::enter)).
    /// Elsewhere nothing changes.
    ///
    /// - What is recorded is copied whenever the graph is launched, and not before. For the host the copy is done at once: its handle gives
    ///   the structure out, and says that it is recorded, no more.
    /// - Both ends lie on the device of the stream (CUDA, HIP), are contiguous, memory of transship's own, and filled before the call.
    /// - The graph, all that is made of it, and each launch keep the memory: the tensors may be dropped. They hold nobody up otherwise:
    ///   copies read the memory and fill it again as if there were no graph.
    /// - Later copies come behind launches on this stream. For launches on another one, hand the tensors to that
    ///   ([`Tensor::record_stream`](crate::Tensor::record_stream)), and let it wait for what fills and reads them ([`CopyHandle::wait_on`](crate::CopyHandle::wait_on)).
    /// - An error names what is in the way. Some of the copies may be in the graph by then: end the capture, and throw the graph away.
    ///
    /// # Safety
    ///
    /// No other thread ends the capture of the stream while a copy with these options starts: it could destroy the graph under the hands of
    /// the driver. Nobody takes nodes, or addresses out of nodes, of the graph into one that was not made of it (`cuGraphExecUpdate`).
    pub unsafe fn into_graph(mut self) -> Self {
        self.into_graph = true;
        self
    }

    /// Whether small tensors share allocations and copies (default: yes).
    pub fn packing(mut self, on: bool) -> Self {
        self.pack = on;
        self
    }

    /// The least alignment of a packed tensor in bytes (default: 16): a power of two, and no more than the
    /// [buffers of the target](crate::backend::Limits::buffer_alignment) have.
    pub fn packed_alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes;
        self
    }

    /// Has each packed tensor begin at a multiple of so many bytes in its allocation as well (default: 1), which need not be a power of two.
    /// For callers who promise such offsets themselves: [`packed_alignment`](Self::packed_alignment) serves all others, and holds beside
    /// this. Addresses are multiples only where that of the allocation is one. A view of a device that copies whole granules
    /// ([`Limits::copy_granularity`](crate::backend::Limits::copy_granularity): wgpu) lies as far behind a multiple as it begins behind a granule.
    /// [`start_copy_into`](crate::start_copy_into()) fills memory that is there, and knows no offsets of its own.
    pub fn packed_multiple(mut self, bytes: NonZero<usize>) -> Self {
        self.multiple = bytes;
        self
    }

    /// Whether each packed tensor can be bound to a kernel on its own: it begins at a multiple of
    /// [`Limits::bindable_alignment`](crate::backend::Limits::bindable_alignment) then, which takes room (256 bytes make a
    /// batch of small tensors 1.8 times as large). Without, kernels bind the chunk and index. Default: where the device
    /// demands at most 64 bytes.
    pub fn bindable(mut self, on: bool) -> Self {
        self.bindable = Some(on);
        self
    }

    /// The largest allocation that packed tensors share, in bytes (default: 32 MiB).
    pub fn max_chunk_bytes(mut self, bytes: usize) -> Self {
        self.max_chunk = bytes;
        self
    }

    /// The largest tensor that is packed, in bytes (default: 512 KiB). What a device casts when it is there counts as it crosses the
    /// link. Above it, an allocation of its own costs next to nothing, and keeps a view from holding on to a whole chunk. Below
    /// it, threads that copy at the same time wait for each other in the driver, tensor by tensor: 16 threads with 20 tensors of
    /// 450 KB each copy 33 GB/s with allocations of their own and 46 packed (H200).
    pub fn max_packed_bytes(mut self, bytes: usize) -> Self {
        self.max_packed = bytes;
        self
    }

    /// Lets at most so many bytes be in flight at a time, at least 4096, so that other traffic gets its turn (default: no limit).
    /// What a device casts when it is there counts as it crosses the link.
    pub fn max_bytes_in_flight(mut self, bytes_in_flight: usize) -> Self {
        self.pace = Some(bytes_in_flight);
        self
    }

    /// Fails the copy with [`Error::DeadlineExceeded`] if it is not done so long after it was started (default: no limit).
    /// What is in flight stays owned until the device is done with it; what is not submitted yet is not submitted any
    /// more.
    ///
    /// Under a [budget of device memory](crate::Device::set_memory_budget) the copy waits in line, until then, for memory that the program
    /// frees, and not only for what is in flight; unless it is never to wait ([`BackgroundWork::Never`]). If none is freed it fails with
    /// [`Error::OverBudget`], which has the figures. Either way the structure comes back.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// Whether workers may do the staging (default: when it pays).
    pub fn background(mut self, when: BackgroundWork) -> Self {
        self.background = when;
        self
    }

    /// Whether a tensor that is on the target already is copied (default: no).
    pub fn policy(mut self, policy: CopyPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Copies on `stream`, a stream of the device that runs the copy: the target, or the source where the target is the host. What is
    /// submitted to a stream runs in order. Copies that workers carry out (large ones, those that find no idle block) are submitted
    /// later, and one that is started behind them may be submitted before them: wait for the first handle, or say
    /// [`BackgroundWork::Never`], where the order of two calls matters. By default that is the [current stream](Stream::enter) of the device if there is one, else
    /// a copy stream of the device's own, the same one for all copies of this thread in this direction.
    ///
    /// Where neither names a stream of the target, the device that has the sources runs copies into memory of the program on another one
    /// ([`Tensor::from_raw_mut`](crate::Tensor::from_raw_mut)) to which its kernels write.
    pub fn stream(mut self, stream: &Stream) -> Self {
        self.stream = Some(stream.clone());
        self
    }

    /// Converts the tensors of one element type to another one on the way. One such line for each type; of two for the same, the last
    /// counts.
    ///
    /// Tensors on the host are converted while they are staged, by the threads that stage them; large ones whose elements get larger by
    /// the target. Those of a device are converted by a kernel, where it has one
    /// ([`Limits::gathers`](crate::backend::Limits::gathers): CUDA, HIP, GPUs of wgpu; up to eight dimensions), and are
    /// [`Error::Unsupported`] elsewhere. All come out contiguous. What is on the target already is copied if it is to be converted.
    /// [`start_copy_into`](crate::start_copy_into) fills tensors of the type that comes out.
    pub fn cast(mut self, cast: Cast) -> Self {
        self.casts.retain(|known| known.from_dtype() != cast.from_dtype());
        self.casts.push(cast);
        self
    }

    /// Writes down in `timeline` what the copy does and when (default: nowhere).
    pub fn timeline(mut self, timeline: &Timeline) -> Self {
        self.timeline = Some(timeline.clone());
        self
    }

    /// Lets results lie in memory that `allocator` allocates (default: in memory of transship's own).
    ///
    /// - It is called on the thread that starts the copy, once for each allocation that the copy fills, before anything is submitted
    ///   or handed to workers. It may block: then so does [`start_copy`](crate::start_copy()), which waits for nothing otherwise.
    /// - The copy comes behind the stream that the memory is [said to come behind](crate::AllocatedMemory::behind).
    /// - The owners of the memory are dropped as those of [`Tensor::from_raw_mut`](crate::Tensor::from_raw_mut) are: once nothing uses the memory any
    ///   more, on any thread, and under no lock of transship's.
    /// - The results can be written and [filled again](crate::start_copy_into()) as others. They count in no
    ///   [budget](crate::Device::set_memory_budget), and are not page-locked by transship: what comes down to the host goes through
    ///   staging blocks.
    /// - [`start_copy_to_all`](crate::start_copy_to_all()) calls it for each device, in their order, before anything is submitted for one of them; if it fails
    ///   for one, nothing is copied. [`start_copy_into`](crate::start_copy_into()) allocates nothing, and does not call it.
    /// - An error or a panic of it, and memory that is not as it was asked for, are errors of the start of the copy, which give the structure
    ///   back.
    /// - On wgpu it is [`Error::Unsupported`]: memory has no addresses there.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use transship_core::{Alignment, Allocate, AllocatedMemory, CopyOptions, Device, MemoryKind, RawMemory, Stream, Tensor, start_copy};
    ///
    /// struct Vectors;
    ///
    /// // SAFETY: each vector is memory of its own, which nobody touches, and which goes with the owner.
    /// unsafe impl Allocate for Vectors {
    ///     fn allocate(
    ///         &self,
    ///         bytes: usize,
    ///         alignment: Alignment,
    ///         _: &Stream,
    ///     ) -> Result<AllocatedMemory, Box<dyn std::error::Error + Send + Sync>> {
    ///         let mut vector = vec![0_u8; bytes + alignment.bytes()];
    ///         let start = vector.as_mut_ptr().expose_provenance();
    ///         let memory = RawMemory::new(start.next_multiple_of(alignment.bytes()) as u64, bytes, MemoryKind::Pageable);
    ///         Ok(AllocatedMemory::new(memory, Box::new(vector)))
    ///     }
    /// }
    ///
    /// let options = CopyOptions::default().policy(transship_core::CopyPolicy::Always).allocator(Arc::new(Vectors));
    /// let copy = start_copy(Tensor::from(vec![1_u8, 2]), &Device::host(), options)?.wait()?;
    /// assert_eq!(copy.as_slice::<u8>()?, [1, 2]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    pub fn allocator(mut self, allocator: Arc<dyn Allocate>) -> Self {
        self.allocator = Some(Allocator(allocator));
        self
    }

    /// Checks the values. [`start_copy`](crate::start_copy) does the same.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] with the name, the value and what it should be.
    pub fn validate(&self) -> Result<()> {
        require(
            self.alignment.is_power_of_two() && self.alignment <= 1 << 20,
            "packed_alignment",
            self.alignment,
            "it must be a power of two of at most 1 MiB",
        )?;
        self.casts.iter().try_for_each(Cast::check)?;
        require(self.max_chunk > 0, "max_chunk_bytes", self.max_chunk, "it must be at least 1")?;
        require(
            self.pace.is_none_or(|pace| pace >= 4096),
            "max_bytes_in_flight",
            self.pace.unwrap_or(0),
            "it must be at least 4096",
        )
    }

    pub(crate) fn min_alignment(&self) -> Alignment {
        Alignment::new(self.alignment).unwrap_or(Alignment::ONE)
    }

    /// The least alignment of a packed tensor on a device with these limits.
    pub(crate) fn alignment_on(&self, limits: &Limits) -> Alignment {
        let demanded = limits.bindable_alignment;
        let bindable = self.bindable.unwrap_or(demanded.bytes() <= LARGEST_BINDABLE_BY_DEFAULT);
        if bindable { self.min_alignment().max(demanded) } else { self.min_alignment() }
    }
}

fn require(holds: bool, name: &'static str, value: usize, reason: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::InvalidOption { name, value: value.to_string(), reason }) }
}
