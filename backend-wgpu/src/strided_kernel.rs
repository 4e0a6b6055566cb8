//! The kernels that leave the gaps of strided tensors out, cast, and write to where tensors have gaps.

use std::num::NonZeroU64;
use std::ops::Range;

use transship_core::{Cast, DType};
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingResource, BindingType, Buffer, BufferBinding, BufferBindingType,
    CommandEncoder, ComputePassDescriptor, ComputePipeline, ComputePipelineDescriptor, Device,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderSource, ShaderStages,
};

use crate::scopes::scoped;
use crate::strided_entry::{ENTRY, Part};
use crate::strided_rounds::LARGEST_TOGETHER;
use crate::workspace::Workspace;

/// All kernels, and the arithmetic of casts.
const TEXT: &str = include_str!("kernels/strided.wgsl");
/// The table, the memory that is written, and a source.
const BINDINGS: u32 = 3;
/// A workgroup writes about so many bytes.
const BYTES_OF_WORKGROUP: u64 = 1 << 10;
/// So many parts share a launch at the most.
const MOST_TOGETHER: usize = 1024;
/// The largest alignment of bindings that any API asks for.
const TABLE_ALIGNMENT: usize = 256;
/// The kernel counts bytes of a binding in 32 bits, and adds to numbers of elements how many it makes at a time.
const LARGEST: u64 = (1 << 32) - (1 << 24);

/// The kernels of one device.
pub(crate) struct StridedKernel {
    gather: ComputePipeline,
    cast: ComputePipeline,
    scatter: ComputePipeline,
    layout: BindGroupLayout,
    /// Where bindings begin.
    alignment: u64,
    largest_binding: u64,
    /// The most workgroups of a launch in one dimension.
    most_groups: u32,
}

/// What a kernel does with a part.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Gather,
    Cast,
    Scatter,
}

/// A part with gaps: in which buffer, and where in the memory that its elements lie in side by side, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) part: Part<'a>,
    pub(crate) packed_at: u64,
}

/// Launches of one round.
pub(crate) struct Launches<'a>(Vec<Launch<'a>>);

struct Launch<'a> {
    work: Work,
    strided: Bound<'a>,
    /// Where in the table its entries stand, in bytes.
    table: Range<u64>,
    parts: u32,
    /// The bytes of the largest part.
    largest: u64,
}

/// A range of a buffer that is bound.
#[derive(Clone, Copy, PartialEq)]
struct Bound<'a> {
    buffer: &'a Buffer,
    offset: u64,
    bytes: u64,
}

impl StridedKernel {
    /// For `device`; `None` if it has too few bindings.
    pub(crate) fn new(device: &Device) -> Option<Self> {
        let limits = device.limits();
        let bindings = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
        let most_groups = limits.max_compute_workgroups_per_dimension;
        if bindings < BINDINGS || (most_groups as usize) < MOST_TOGETHER {
            return None;
        }
        let ((layout, [gather, cast, scatter]), error) = scoped(device, || build(device));
        let alignment = u64::from(limits.min_storage_buffer_offset_alignment);
        let largest_binding = limits.max_storage_buffer_binding_size.min(LARGEST);
        error.is_none().then_some(Self {
            gather,
            cast,
            scatter,
            layout,
            alignment,
            largest_binding,
            most_groups,
        })
    }

    /// The largest tensor with gaps that it gathers, and the most memory that one may lie in, in bytes.
    pub(crate) fn largest(&self) -> usize {
        usize::try_from(self.largest_binding.saturating_sub(self.alignment)).unwrap_or(usize::MAX)
    }

    /// The largest part, in bytes: of one run, no more is read for it than is bound. Eight bytes are cast to one at the least.
    pub(crate) fn largest_part(&self) -> usize {
        (self.largest() / 8) & !7
    }

    /// Has the parts of `tasks` gathered, and cast: adds their entries to `table`; `None` if a number is too large for it.
    pub(crate) fn plan<'a>(&self, tasks: &[Task<'a>], table: &mut Vec<u8>) -> Option<Launches<'a>> {
        let (casts, gathers): (Vec<_>, Vec<_>) = tasks.iter().partition(|task| task.part.cast().is_some());
        let mut launches = self.plan_for(Work::Gather, &gathers, table)?;
        launches.append(&mut self.plan_for(Work::Cast, &casts, table)?);
        Some(Launches(launches))
    }

    /// The same for parts that are written.
    pub(crate) fn plan_scatter<'a>(&self, tasks: &[Task<'a>], table: &mut Vec<u8>) -> Option<Launches<'a>> {
        self.plan_for(Work::Scatter, tasks, table).map(Launches)
    }

    fn plan_for<'a>(&self, work: Work, tasks: &[Task<'a>], table: &mut Vec<u8>) -> Option<Vec<Launch<'a>>> {
        let mut launches = Vec::new();
        // Those that share a launch have the same binding, and are small.
        let mut open: Vec<(Task<'a>, Bound<'a>)> = Vec::new();
        for task in tasks {
            let bound = self.bound(task);
            let is_large = task.part.bytes() > LARGEST_TOGETHER;
            let is_other = open.first().is_some_and(|(_, first)| *first != bound);
            if is_large || is_other || open.len() == MOST_TOGETHER {
                launches.extend(close(&mut open, work, table)?);
            }
            open.push((*task, bound));
            if is_large {
                launches.extend(close(&mut open, work, table)?);
            }
        }
        launches.extend(close(&mut open, work, table)?);
        Some(launches)
    }

    /// Runs what was planned, whose table `workspace` has.
    pub(crate) fn launch(
        &self,
        device: &Device,
        encoder: &mut CommandEncoder,
        workspace: &Workspace,
        launches: &Launches<'_>,
    ) {
        let groups: Vec<_> =
            launches.0.iter().map(|launch| (launch, self.bind(device, workspace, launch))).collect();
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        for (launch, group) in &groups {
            pass.set_pipeline(match launch.work {
                Work::Gather => &self.gather,
                Work::Cast => &self.cast,
                Work::Scatter => &self.scatter,
            });
            pass.set_bind_group(0, group, &[]);
            let of_part = launch.largest.div_ceil(BYTES_OF_WORKGROUP).min(u64::from(self.most_groups));
            pass.dispatch_workgroups(launch.parts, of_part as u32, 1);
        }
    }

    fn bind(&self, device: &Device, workspace: &Workspace, launch: &Launch<'_>) -> BindGroup {
        let bound = |buffer, range: Range<u64>| {
            let size = NonZeroU64::new(range.end - range.start);
            BindingResource::Buffer(BufferBinding { buffer, offset: range.start, size })
        };
        let Bound { buffer, offset, bytes } = launch.strided;
        let (packed, strided) =
            (workspace.gathered().as_entire_binding(), bound(buffer, offset..offset + bytes));
        let (written, source) = match launch.work {
            Work::Scatter => (strided, packed),
            Work::Gather | Work::Cast => (packed, strided),
        };
        let resources = [bound(workspace.table(), launch.table.clone()), written, source];
        let entries: Vec<_> =
            (0..).zip(resources).map(|(binding, resource)| BindGroupEntry { binding, resource }).collect();
        device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &entries,
        })
    }

    /// The whole buffer, so that parts of it share a launch, if it is not too large to be bound.
    fn bound<'a>(&self, task: &Task<'a>) -> Bound<'a> {
        let (buffer, whole) = (task.buffer, task.buffer.size() & !3);
        if whole <= self.largest_binding {
            return Bound { buffer, offset: 0, bytes: whole };
        }
        let read = task.part.read();
        let offset = read.start & !(self.alignment - 1);
        Bound { buffer, offset, bytes: (read.end - offset).next_multiple_of(4) }
    }
}

impl Launches<'_> {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// The launch of `open`, whose entries are added to `table`; none if nothing is there.
fn close<'a>(
    open: &mut Vec<(Task<'a>, Bound<'a>)>,
    work: Work,
    table: &mut Vec<u8>,
) -> Option<Option<Launch<'a>>> {
    let Some((_, strided)) = open.first().copied() else { return Some(None) };
    table.resize(table.len().next_multiple_of(TABLE_ALIGNMENT), 0);
    let start = table.len();
    let mut made = Made::behind(open.len() * ENTRY);
    for (task, _) in open.iter() {
        let made = made.place(task.part.cast())?;
        let entry = task.part.entry(strided.offset, task.packed_at / 4, made)?;
        table.extend(entry.iter().flat_map(|field| field.to_ne_bytes()));
    }
    table.append(&mut made.numbers);
    let largest = open.iter().map(|(task, _)| task.part.bytes() as u64).max().unwrap_or(0);
    let parts = open.len() as u32;
    open.clear();
    Some(Some(Launch { work, strided, table: start as u64..table.len() as u64, parts, largest }))
}

/// What each `u8` becomes by casts to floating point: no product is rounded on the device.
struct Made {
    /// Where they begin in the table of their launch, in bytes.
    start: usize,
    /// The casts, in the order of their numbers.
    casts: Vec<Cast>,
    /// 256 for each, a word each.
    numbers: Vec<u8>,
}

impl Made {
    fn behind(start: usize) -> Self {
        Self { start, casts: Vec::new(), numbers: Vec::new() }
    }

    /// The word at which the numbers of `cast` begin; 0 if it needs none. `None` if there is no such cast.
    fn place(&mut self, cast: Option<&Cast>) -> Option<u32> {
        const NUMBERS: usize = 256;
        let is_made = |cast: &&Cast| {
            cast.from_dtype() == DType::U8 && matches!(cast.to_dtype(), DType::F16 | DType::BF16 | DType::F32)
        };
        let Some(cast) = cast.filter(is_made) else { return Some(0) };
        let known = self.casts.iter().position(|known| known == cast);
        let index = match known {
            Some(index) => index,
            None => {
                let (all, width) = ((0..=u8::MAX).collect::<Vec<_>>(), cast.to_dtype().size());
                let mut numbers = vec![0; NUMBERS * width];
                cast.convert(&all, &mut numbers).ok()?;
                for number in numbers.chunks_exact(width) {
                    let mut word = [0; 4];
                    word.get_mut(..width)?.copy_from_slice(number);
                    self.numbers.extend_from_slice(&word);
                }
                self.casts.push(*cast);
                self.casts.len() - 1
            }
        };
        u32::try_from(self.start / 4 + index * NUMBERS).ok()
    }
}

fn build(device: &Device) -> (BindGroupLayout, [ComputePipeline; 3]) {
    let entry = |binding, read_only| BindGroupLayoutEntry {
        binding,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer {
            ty: BufferBindingType::Storage { read_only },
            has_dynamic_offset: false,
            min_binding_size: NonZeroU64::new(4),
        },
        count: None,
    };
    let entries = [entry(0, true), entry(1, false), entry(2, true)];
    let layout =
        device.create_bind_group_layout(&BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
        bind_group_layouts: &[Some(&layout)],
        ..PipelineLayoutDescriptor::default()
    });
    let source = ShaderSource::Wgsl(TEXT.into());
    let module = device.create_shader_module(ShaderModuleDescriptor { label: None, source });
    let pipeline = |name| {
        device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: None,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(name),
            compilation_options: PipelineCompilationOptions::default(),
            cache: None,
        })
    };
    let pipelines = ["gather_parts", "cast_parts", "scatter_parts"].map(pipeline);
    (layout, pipelines)
}
