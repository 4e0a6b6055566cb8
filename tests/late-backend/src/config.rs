//! What a simulated driver is like.

use transship_core::Alignment;

/// The settings of one simulated driver. All of them are public: take [`LateConfig::new`] and change some.
#[derive(Debug, Clone)]
pub struct LateConfig {
    /// The name of the driver, e.g. `late`.
    pub name: &'static str,
    /// How many devices it has.
    pub devices: usize,
    /// The NUMA nodes of the host that they are plugged in at, as far as these are known.
    pub host_nodes: &'static [u32],
    /// Whether its devices reach each other.
    pub peers: bool,
    /// Whether its streams wait for those of its other devices.
    pub waits_for_others: bool,
    /// Whether its devices read each other's staging blocks, unless those are mapped.
    pub shared_staging: bool,
    /// Whether memory may be dropped before the streams have come by that use it.
    pub frees_behind: bool,
    /// Whether staging blocks are pinned.
    pub pinned: bool,
    /// How many looks at a stream it takes to make one operation run.
    pub polls_per_op: u32,
    /// With a seed, a look runs an operation of a stream chosen at random, not of the stream that was looked at.
    pub seed: Option<u64>,
    /// Memory of each device, in bytes.
    pub device_memory: usize,
    /// Staging memory of each device, in bytes.
    pub staging_memory: usize,
    /// What offsets and sizes of copies must be multiples of.
    pub copy_granularity: Alignment,
    /// Where a buffer may be bound to a kernel on its own.
    pub bindable_alignment: Alignment,
    /// How buffers are aligned, as far as addresses of this device can be.
    pub buffer_alignment: Alignment,
    /// The largest buffer; less than the memory of the device, if any.
    pub largest_buffer: usize,
    /// Whether the host writes new buffers where they lie.
    pub host_writable: bool,
    /// The largest buffer that the host may write itself while it is new.
    pub largest_open: usize,
    /// Whether the host has access to a staging block only while no copy uses it and the device works, as with wgpu.
    pub mapped_staging: bool,
    /// How many bytes of a table the kernel needs that makes many copies; without, there is no such kernel.
    pub gather: Option<usize>,
    /// The same for parts of strided tensors, whose gaps it leaves out.
    pub gather_strided: Option<usize>,
    /// The largest strided tensor whose gaps it leaves out without a table, beside other copies.
    pub largest_strided: usize,
    /// The largest run that it writes to strided places as well, of tensors as large as those.
    pub largest_scattered_run: usize,
    /// How many runs a tensor has at the least that it writes so.
    pub fewest_scattered_runs: usize,
    /// The device that has none of these kernels, if one has none.
    pub without_kernels: Option<usize>,
    /// Over how many streams of a kind copies of different threads are spread.
    pub copy_streams: usize,
    /// What a failing submit has done by then.
    pub submit_failure: SubmitFailure,
}

/// What a submit that was told to fail has done by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitFailure {
    /// Nothing.
    BeforeAnything,
    /// So many of its copies, which are done when the error is returned.
    AfterOps(usize),
}

impl LateConfig {
    /// One device with as much memory as there is, pinned staging blocks and a copy for each poll.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            devices: 1,
            host_nodes: &[],
            peers: true,
            waits_for_others: true,
            shared_staging: true,
            frees_behind: true,
            pinned: true,
            polls_per_op: 1,
            seed: None,
            device_memory: isize::MAX as usize,
            staging_memory: isize::MAX as usize,
            copy_granularity: Alignment::ONE,
            bindable_alignment: Alignment::ONE,
            buffer_alignment: const { Alignment::new(256).unwrap() },
            largest_buffer: usize::MAX,
            host_writable: false,
            largest_open: 0,
            mapped_staging: false,
            gather: None,
            gather_strided: None,
            largest_strided: 0,
            largest_scattered_run: 0,
            fewest_scattered_runs: 0,
            without_kernels: None,
            copy_streams: 4,
            submit_failure: SubmitFailure::BeforeAnything,
        }
    }
}
