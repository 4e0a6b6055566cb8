//! Two compute shaders: one that doubles floats, and one that takes its time first.

use std::sync::OnceLock;
use std::time::Duration;

use wgpu::BufferUsages;

use crate::bed::{Program, timed};

const SOURCE: &str = "
@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;
@group(0) @binding(2) var<storage, read> settings: array<u32, 3>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var turns = settings[0];
    var noise = 1u;
    while (turns > 0u) {
        noise = noise * 1664525u + 1013904223u;
        turns -= 1u;
    }
    // Never so, but only the device knows that.
    let extra = select(0.0, 1.0, noise == settings[0] + 7u);
    if (id.x < settings[2]) {
        result[id.x] = 2.0 * source[settings[1] + id.x] + extra;
    }
}";

/// So many turns take a GPU some 100 ms. llvmpipe gives up after 65,535: there it takes more workgroups than one to keep
/// it busy.
pub(crate) const TURNS: u32 = 50_000_000;
const STALLING_GROUPS: u32 = 100;
/// A stall takes so long at the least, however fast the device is.
const SHORTEST_STALL: Duration = Duration::from_millis(300);

/// Doubles the floats of a part of a buffer into another.
pub(crate) struct Doubling {
    pipeline: wgpu::ComputePipeline,
}

/// Where the floats are, in elements.
pub(crate) struct Part<'a> {
    pub(crate) source: &'a wgpu::Buffer,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Doubling {
    pub(crate) fn new(program: &Program) -> Self {
        let source = wgpu::ShaderSource::Wgsl(SOURCE.into());
        let module =
            program.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = program.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        Self { pipeline }
    }

    /// A new buffer for the results.
    pub(crate) fn results(&self, program: &Program, count: u64) -> wgpu::Buffer {
        program.buffer(4 * count, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)
    }

    /// Submits the work, which goes round in circles `turns` times first.
    pub(crate) fn submit(&self, program: &Program, part: &Part<'_>, result: &wgpu::Buffer, turns: u32) {
        self.dispatch(program, part, result, turns, (part.count as u32).div_ceil(64));
    }

    /// Keeps the device busy for some 300 ms or more.
    pub(crate) fn stall(&self, program: &Program) -> wgpu::SubmissionIndex {
        static GROUPS: OnceLock<u32> = OnceLock::new();
        let groups = *GROUPS.get_or_init(|| {
            let (_, time) = timed(|| {
                self.stall_with(program, STALLING_GROUPS);
                program.wait();
            });
            STALLING_GROUPS * (SHORTEST_STALL.div_duration_f64(time).ceil() as u32).max(1)
        });
        self.stall_with(program, groups)
    }

    fn stall_with(&self, program: &Program, groups: u32) -> wgpu::SubmissionIndex {
        let (source, result) = (self.results(program, 64), self.results(program, 64));
        let part = Part { source: &source, first: 0, count: 64 };
        self.dispatch(program, &part, &result, TURNS, groups)
    }

    fn dispatch(
        &self,
        program: &Program,
        part: &Part<'_>,
        result: &wgpu::Buffer,
        turns: u32,
        groups: u32,
    ) -> wgpu::SubmissionIndex {
        let settings = [turns, part.first as u32, part.count as u32];
        let settings: Vec<u8> = settings.iter().flat_map(|number| number.to_le_bytes()).collect();
        let buffer = program.buffer(16, BufferUsages::STORAGE | BufferUsages::COPY_DST);
        program.queue.write_buffer(&buffer, 0, &settings);
        let entries = [part.source, result, &buffer].map(wgpu::Buffer::as_entire_binding);
        let entry = |(binding, resource)| wgpu::BindGroupEntry { binding, resource };
        let entries: Vec<_> = (0..).zip(entries).map(entry).collect();
        let group = program.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        program.submit(|encoder| {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(groups, 1, 1);
        })
    }
}
