//! The kernel that gathers ranges of many buffers in one.

use std::num::{NonZeroU32, NonZeroU64};

use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingResource, BindingType, BufferBinding, BufferBindingType, CommandEncoder,
    ComputePassDescriptor, ComputePipeline, ComputePipelineDescriptor, Device, Features,
    PipelineCompilationOptions, PipelineLayoutDescriptor, Queue, ShaderModuleDescriptor, ShaderRuntimeChecks,
    ShaderSource, ShaderStages,
};

use crate::bound::{Bound, Launch, Range};
use crate::scopes::scoped;
use crate::workspace::Workspace;

/// What arrays of bindings need.
pub(crate) const ARRAYS: Features = Features::BUFFER_BINDING_ARRAY
    .union(Features::STORAGE_RESOURCE_BINDING_ARRAY)
    .union(Features::PARTIALLY_BOUND_BINDING_ARRAY);

/// So many sources one launch reads at the most: out of an array, and out of bindings of their own, which the text of the
/// kernel names one by one.
const MOST_IN_ARRAY: u32 = 1024;
const MOST_BINDINGS: u32 = 62;
/// With fewer bindings than these, copies are as fast.
const FEWEST_BINDINGS: u32 = 12;
/// The bindings in front of the sources: the table, and the memory that is written.
const IN_FRONT: u32 = 2;

/// A workgroup copies about so many bytes.
const BYTES_OF_WORKGROUP: u64 = 4 << 10;
/// So many bytes one entry of the table has.
const ENTRY: u64 = 16;
/// The largest alignment of bindings that any API asks for.
const TABLE_ALIGNMENT: u64 = 256;
/// Words of a range, from where in its binding, and to where. The third number of a launch counts parts of a range.
const TEXT: &str = "
@group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> gathered: array<u32>;
SOURCES
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let entry = table[group.x];
    let first = group.y * 64u + lane;
    let step = groups.y * 64u;
    COPY
}";

/// The kernel of one device.
pub(crate) struct GatherKernel {
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
    /// Whether its sources are an array.
    is_array: bool,
    /// So many sources one launch reads.
    most: usize,
    /// Where bindings begin.
    alignment: u64,
}

impl GatherKernel {
    /// For `device`; `None` if it has too few bindings.
    pub(crate) fn new(device: &Device) -> Option<Self> {
        let (is_array, most) = bindings(device, device.adapter_info().backend)?;
        let limits = device.limits();
        let ((layout, pipeline), error) = scoped(device, || build(device, is_array, most));
        let alignment = u64::from(limits.min_storage_buffer_offset_alignment);
        error.is_none().then_some(Self { pipeline, layout, is_array, most: most as usize, alignment })
    }

    /// Bytes of the table for so many ranges.
    pub(crate) fn table_bytes(&self, ranges: usize) -> u64 {
        self.table_stride() * ranges.div_ceil(self.most) as u64
    }

    /// Binds `ranges`, for which `workspace` was taken. Returns how many bind groups that takes.
    pub(crate) fn bind(
        &self,
        device: &Device,
        queue: &Queue,
        workspace: &mut Workspace,
        ranges: &[Range<'_>],
    ) -> usize {
        let mut table = Vec::with_capacity(ranges.len() * ENTRY as usize);
        let mut launches = Vec::new();
        let mut sources = Vec::with_capacity(self.most.min(ranges.len()));
        for ranges in ranges.chunks(self.most) {
            let table_offset = table.len().next_multiple_of(TABLE_ALIGNMENT as usize);
            table.resize(table_offset, 0);
            sources.clear();
            for range in ranges {
                let source = range.source(self.alignment);
                table.extend_from_slice(&range.entry(source.offset));
                sources.push(source);
            }
            let table = BufferBinding {
                buffer: workspace.table(),
                offset: table_offset as u64,
                size: size_of_table(ranges.len()),
            };
            let largest = ranges.iter().map(|range| range.bytes).max().unwrap_or(0);
            let size = [ranges.len() as u32, largest.div_ceil(BYTES_OF_WORKGROUP) as u32];
            let sources = self.bind_sources(device, workspace, table, &mut sources);
            launches.push(Launch { sources, size });
        }
        workspace.write_table(queue, table);
        let count = launches.len();
        workspace.set_bound(Bound::new(ranges, launches));
        count
    }

    fn bind_sources<'a>(
        &self,
        device: &Device,
        workspace: &'a Workspace,
        table: BufferBinding<'a>,
        sources: &mut Vec<BufferBinding<'a>>,
    ) -> BindGroup {
        let entry = |binding, resource| BindGroupEntry { binding, resource };
        let mut entries = vec![
            entry(0, BindingResource::Buffer(table)),
            entry(1, workspace.gathered().as_entire_binding()),
        ];
        match self.is_array {
            true => entries.push(entry(IN_FRONT, BindingResource::BufferArray(sources))),
            false => {
                // Each binding wants a buffer, used or not.
                if let Some(last) = sources.last().cloned() {
                    sources.resize(self.most, last);
                }
                let sources = sources.iter().cloned().map(BindingResource::Buffer);
                entries.extend((IN_FRONT..).zip(sources).map(|(binding, source)| entry(binding, source)));
            }
        }
        device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &entries,
        })
    }

    /// Launches the kernel.
    pub(crate) fn launch(&self, encoder: &mut CommandEncoder, launches: &[Launch]) {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        for Launch { sources, size: [ranges, parts] } in launches {
            pass.set_bind_group(0, sources, &[]);
            pass.dispatch_workgroups(*ranges, *parts, 1);
        }
    }

    /// Bytes of the table between the entries of two launches.
    fn table_stride(&self) -> u64 {
        (self.most as u64 * ENTRY).next_multiple_of(TABLE_ALIGNMENT)
    }
}

impl<'a> Range<'a> {
    /// The binding that it lies in.
    fn source(&self, alignment: u64) -> BufferBinding<'a> {
        let offset = self.offset & !(alignment - 1);
        BufferBinding { buffer: self.from, offset, size: NonZeroU64::new(self.offset + self.bytes - offset) }
    }

    /// Its entry in the table, in words, where its binding begins at `bound`.
    fn entry(&self, bound: u64) -> [u8; ENTRY as usize] {
        let words = [self.offset - bound, self.bytes, self.to, 0].map(|bytes| (bytes / 4) as u32);
        let mut entry = [0; ENTRY as usize];
        for (to, word) in entry.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        entry
    }
}

/// Whether sources are an array, and how many one launch reads; `None` if there are too few.
fn bindings(device: &Device, backend: wgpu::Backend) -> Option<(bool, u32)> {
    let limits = device.limits();
    // The numbers of a launch.
    if limits.max_compute_workgroups_per_dimension < MOST_IN_ARRAY {
        return None;
    }
    let in_array = limits.max_binding_array_elements_per_shader_stage;
    // Of the arrays of other APIs nobody has tried one.
    if device.features().contains(ARRAYS) && backend == wgpu::Backend::Vulkan && in_array > MOST_BINDINGS {
        return Some((true, in_array.min(MOST_IN_ARRAY)));
    }
    let bindings = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
    let most = bindings.saturating_sub(IN_FRONT).min(MOST_BINDINGS);
    (most >= FEWEST_BINDINGS).then_some((false, most))
}

fn build(device: &Device, is_array: bool, most: u32) -> (BindGroupLayout, ComputePipeline) {
    let entry = |binding, read_only, least, count| BindGroupLayoutEntry {
        binding,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer {
            ty: BufferBindingType::Storage { read_only },
            has_dynamic_offset: false,
            min_binding_size: NonZeroU64::new(least),
        },
        count,
    };
    let mut entries = vec![entry(0, true, ENTRY, None), entry(1, false, 4, None)];
    match is_array {
        true => entries.push(entry(IN_FRONT, true, 4, NonZeroU32::new(most))),
        false => entries.extend((0..most).map(|source| entry(IN_FRONT + source, true, 4, None))),
    }
    let layout =
        device.create_bind_group_layout(&BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
        bind_group_layouts: &[Some(&layout)],
        ..PipelineLayoutDescriptor::default()
    });
    let source = ShaderSource::Wgsl(text(is_array, most).into());
    let descriptor = ShaderModuleDescriptor { label: None, source };
    // wgpu 30 takes the length of the array of bindings for that of the elements, and cuts their words off there.
    //
    // SAFETY: the kernel reads the entries that `bind` writes, one for each group of a launch, and per entry the words of a range,
    // which lies in its binding (`Range::source`), and writes as many where `workspace` has room. While launches are kept, their table
    // stays as it is: whoever takes it for something else lets go of them (`Workspace::unbound`). Its loops end.
    let module = unsafe { device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) };
    let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
        label: None,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: None,
        compilation_options: PipelineCompilationOptions::default(),
        cache: None,
    });
    (layout, pipeline)
}

fn text(is_array: bool, most: u32) -> String {
    let copy = |source: &str| {
        format!(
            "for (var word = first; word < entry.y; word += step) {{ gathered[entry.z + word] = {source}[entry.x + word]; }}"
        )
    };
    let (sources, copy) = match is_array {
        true => (
            format!(
                "struct Words {{ words: array<u32> }}\n@group(0) @binding({IN_FRONT}) var<storage, read> sources: binding_array<Words, {most}>;"
            ),
            copy("sources[group.x].words"),
        ),
        false => {
            let declare = |source: u32| {
                format!(
                    "@group(0) @binding({}) var<storage, read> source{source}: array<u32>;\n",
                    IN_FRONT + source
                )
            };
            let case = |source: u32| format!("case {source}u: {{ {} }}\n", copy(&format!("source{source}")));
            let cases: String = (0..most).map(case).collect();
            ((0..most).map(declare).collect(), format!("switch group.x {{ {cases} default: {{}} }}"))
        }
    };
    let enable = if is_array { "enable wgpu_binding_array;" } else { "" };
    format!("{enable}{}", TEXT.replace("SOURCES", &sources).replace("COPY", &copy))
}

fn size_of_table(entries: usize) -> Option<NonZeroU64> {
    NonZeroU64::new(entries as u64 * ENTRY)
}
