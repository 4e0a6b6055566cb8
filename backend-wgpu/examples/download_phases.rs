//! What a download of many small buffers spends its time on, without this library: wgpu alone, way by way, phase by phase.
//!
//! `cargo run --release -p transship-wgpu --example download_phases [ADAPTER]`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a program of measurements"
)]

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use transship_wgpu::wgpu;
use wgpu::{BufferUsages, Features, MapMode, PollType};

const BUFFERS: usize = 528;
const BYTES: u64 = 292;
const ROUNDS: usize = 300;
const PHASES: [&str; 5] = ["bind", "record", "finish", "submit", "wait"];

fn main() {
    let ordinal: usize = std::env::args().nth(1).map_or(0, |number| number.parse().unwrap());
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let adapter = &adapters[ordinal];
    println!("{:?}", adapter.get_info());
    let wanted = Features::BUFFER_BINDING_ARRAY
        | Features::STORAGE_RESOURCE_BINDING_ARRAY
        | Features::PARTIALLY_BOUND_BINDING_ARRAY
        | Features::MAPPABLE_PRIMARY_BUFFERS;
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
        required_features: adapter.features() & wanted,
        required_limits: adapter.limits(),
        ..Default::default()
    }))
    .unwrap();
    let limits = device.limits();
    println!("features: {:?}", device.features());
    println!(
        "storage buffers a stage: {}, elements of arrays: {}, bindings a group: {}, offsets: {}",
        limits.max_storage_buffers_per_shader_stage,
        limits.max_binding_array_elements_per_shader_stage,
        limits.max_bindings_per_bind_group,
        limits.min_storage_buffer_offset_alignment
    );
    let bed = Bed::new(device, queue);
    println!(
        "{:34}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}",
        "median us", PHASES[0], PHASES[1], PHASES[2], PHASES[3], PHASES[4], "all"
    );
    bed.report("nothing", |_, _| {});
    bed.report("one copy", |bed, encoder| {
        encoder.copy_buffer_to_buffer(&bed.one, 0, &bed.block, 0, bed.bytes)
    });
    bed.report("a copy each, one destination", |bed, encoder| {
        for (source, to) in bed.sources.iter().zip((0..).step_by(BYTES as usize)) {
            encoder.copy_buffer_to_buffer(source, 0, &bed.block, to, BYTES);
        }
    });
    bed.report("a copy each, a destination each", |bed, encoder| {
        for (source, to) in bed.sources.iter().zip(&bed.targets) {
            encoder.copy_buffer_to_buffer(source, 0, to, 0, BYTES);
        }
        encoder.copy_buffer_to_buffer(&bed.one, 0, &bed.block, 0, bed.bytes);
    });
    let most = limits
        .max_storage_buffers_per_shader_stage
        .saturating_sub(2)
        .min(limits.max_bindings_per_bind_group - 2);
    for group in [6, 14, 30, 62, 126, BUFFERS as u32].into_iter().filter(|group| *group <= most) {
        let gather = Gather::of_bindings(&bed, group as usize);
        bed.report_gather(&format!("kernel, {group} bindings a group"), &gather, false);
    }
    if bed
        .device
        .features()
        .contains(Features::BUFFER_BINDING_ARRAY | Features::STORAGE_RESOURCE_BINDING_ARRAY)
    {
        for group in [64, 256, BUFFERS as u32] {
            if group <= limits.max_binding_array_elements_per_shader_stage {
                let gather = Gather::of_array(&bed, group as usize);
                bed.report_gather(&format!("kernel, arrays of {group}"), &gather, false);
            }
        }
        let gather = Gather::of_array(&bed, BUFFERS);
        bed.report_gather("the same, bind group kept", &gather, true);
    }
}

struct Bed {
    device: wgpu::Device,
    queue: wgpu::Queue,
    sources: Vec<wgpu::Buffer>,
    targets: Vec<wgpu::Buffer>,
    one: wgpu::Buffer,
    scratch: wgpu::Buffer,
    block: wgpu::Buffer,
    bytes: u64,
}

impl Bed {
    fn new(device: wgpu::Device, queue: wgpu::Queue) -> Self {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let bytes = BUFFERS as u64 * BYTES;
        let buffer = |size, usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        let started = Instant::now();
        let sources: Vec<_> = (0..BUFFERS).map(|_| buffer(BYTES, usage)).collect();
        println!("a buffer takes {:.1} us to create", started.elapsed().as_secs_f64() * 1e6 / BUFFERS as f64);
        for (number, source) in sources.iter().enumerate() {
            let bytes: Vec<u8> = (0..BYTES as usize).map(|at| (number * 7 + at) as u8).collect();
            queue.write_buffer(source, 0, &bytes);
        }
        let targets = (0..BUFFERS).map(|_| buffer(BYTES, usage)).collect();
        let (one, scratch) = (buffer(bytes, usage), buffer(bytes, usage));
        let block = buffer(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        Self { device, queue, sources, targets, one, scratch, block, bytes }
    }

    fn report(&self, name: &str, record: impl Fn(&Self, &mut wgpu::CommandEncoder)) {
        let times =
            (0..ROUNDS).map(|_| self.round(Duration::ZERO, |encoder| record(self, encoder))).collect();
        print(name, times);
    }

    fn report_gather(&self, name: &str, gather: &Gather, keep: bool) {
        let kept = gather.bind(self);
        let times = (0..ROUNDS).map(|_| {
            let started = Instant::now();
            let groups = if keep { kept.clone() } else { gather.bind(self) };
            let bind = started.elapsed();
            self.round(bind, |encoder| gather.record(self, &groups, encoder))
        });
        let times = times.collect();
        let read = self.read();
        let right = (0..BUFFERS).all(|number| {
            (0..BYTES as usize).all(|at| read[number * BYTES as usize + at] == (number * 7 + at) as u8)
        });
        if !right {
            let bad: Vec<_> = (0..BUFFERS)
                .filter(|number| {
                    (0..BYTES as usize)
                        .any(|at| read[number * BYTES as usize + at] != (number * 7 + at) as u8)
                })
                .collect();
            for b in [bad[0], bad[bad.len() / 2]] {
                let n = b * BYTES as usize;
                let at: Vec<_> =
                    (0..BYTES as usize).filter(|at| read[n + at] != (b * 7 + at) as u8).collect();
                println!("{b}: {at:?} {:?}", at.iter().map(|at| read[n + at]).collect::<Vec<_>>());
            }
        }
        print(&format!("{name}{}", if right { "" } else { " WRONG" }), times);
    }

    fn round(&self, bind: Duration, record: impl FnOnce(&mut wgpu::CommandEncoder)) -> [Duration; 5] {
        let started = Instant::now();
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        record(&mut encoder);
        let recorded = started.elapsed();
        let done = Arc::new(AtomicBool::new(false));
        let set = done.clone();
        encoder.map_buffer_on_submit(&self.block, MapMode::Read, .., move |mapped| {
            mapped.unwrap();
            set.store(true, Ordering::Release);
        });
        let started = Instant::now();
        let commands = encoder.finish();
        let finished = started.elapsed();
        let started = Instant::now();
        self.queue.submit([commands]);
        let submitted = started.elapsed();
        let started = Instant::now();
        while !done.load(Ordering::Acquire) {
            self.device.poll(PollType::Poll).unwrap();
        }
        let waited = started.elapsed();
        self.block.unmap();
        [bind, recorded, finished, submitted, waited]
    }

    fn read(&self) -> Vec<u8> {
        let encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.map_buffer_on_submit(&self.block, MapMode::Read, .., |mapped| mapped.unwrap());
        self.queue.submit([encoder.finish()]);
        self.device.poll(PollType::wait_indefinitely()).unwrap();
        let bytes = self.block.get_mapped_range(..).unwrap().to_vec();
        self.block.unmap();
        bytes
    }
}

fn print(name: &str, times: Vec<[Duration; 5]>) {
    let median = |mut of: Vec<Duration>| {
        of.sort();
        of[of.len() / 2].as_secs_f64() * 1e6
    };
    print!("{name:34}");
    for phase in 0..PHASES.len() {
        print!("{:8.1}", median(times.iter().map(|times| times[phase]).collect()));
    }
    println!("{:9.1}", median(times.iter().map(|times| times.iter().sum()).collect()));
}

/// A kernel that gathers so many buffers at a time.
struct Gather {
    pipeline: wgpu::ComputePipeline,
    table: wgpu::Buffer,
    group: usize,
    is_array: bool,
}

impl Gather {
    fn of_array(bed: &Bed, group: usize) -> Self {
        let text = "
            enable wgpu_binding_array;
            struct Words { data: array<u32> }
            @group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
            @group(0) @binding(1) var<storage, read_write> to: array<u32>;
            @group(0) @binding(2) var<storage, read> sources: binding_array<Words, COUNT>;
            @compute @workgroup_size(64)
            fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
                let entry = table[group.x];
                for (var word = lane; word < entry.y; word += 64u) {
                    to[entry.z + word] = sources[group.x].data[entry.x + word];
                }
            }"
        .replace("COUNT", &group.to_string());
        Self::new(bed, &text, group, true)
    }

    fn of_bindings(bed: &Bed, group: usize) -> Self {
        let declare = |number: usize| {
            format!("@group(0) @binding({}) var<storage, read> source{number}: array<u32>;\n", number + 2)
        };
        let case = |number: usize| {
            format!(
                "case {number}u: {{ for (var word = lane; word < entry.y; word += 64u) {{ to[entry.z + word] = source{number}[entry.x + word]; }} }}\n"
            )
        };
        let text = format!(
            "@group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
            @group(0) @binding(1) var<storage, read_write> to: array<u32>;
            {}
            @compute @workgroup_size(64)
            fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
                let entry = table[group.x];
                switch group.x {{ {} default: {{}} }}
            }}",
            (0..group).map(declare).collect::<String>(),
            (0..group).map(case).collect::<String>()
        );
        Self::new(bed, &text, group, false)
    }

    fn new(bed: &Bed, text: &str, group: usize, is_array: bool) -> Self {
        let started = Instant::now();
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let module = bed.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let storage = |read_only| wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only },
            has_dynamic_offset: false,
            min_binding_size: NonZeroU64::new(4),
        };
        let entry = |binding: usize, read_only, count| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: storage(read_only),
            count,
        };
        let mut table_entry = entry(0, true, None);
        if let wgpu::BindingType::Buffer { min_binding_size, .. } = &mut table_entry.ty {
            *min_binding_size = NonZeroU64::new(16);
        }
        let mut entries = vec![table_entry, entry(1, false, None)];
        match is_array {
            true => entries.push(entry(2, true, NonZeroU32::new(group as u32))),
            false => entries.extend((0..group).map(|number| entry(number + 2, true, None))),
        }
        let layout = bed
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let pipeline_layout = bed.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            bind_group_layouts: &[Some(&layout)],
            ..Default::default()
        });
        let pipeline = bed.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        println!("the pipeline takes {:.1} ms to create", started.elapsed().as_secs_f64() * 1e3);
        // A table for each group, 256 bytes aligned.
        let stride = (group * 16).next_multiple_of(256);
        let mut bytes = vec![0_u8; stride * BUFFERS.div_ceil(group)];
        for number in 0..BUFFERS {
            let at = number / group * stride + number % group * 16;
            let words = [0, BYTES as u32 / 4, number as u32 * BYTES as u32 / 4, 0];
            for (word, value) in words.iter().enumerate() {
                bytes[at + word * 4..at + word * 4 + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
        let table = bed.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len() as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        bed.queue.write_buffer(&table, 0, &bytes);
        Self { pipeline, table, group, is_array }
    }

    fn bind(&self, bed: &Bed) -> Vec<wgpu::BindGroup> {
        let layout = self.pipeline.get_bind_group_layout(0);
        let stride = (self.group * 16).next_multiple_of(256) as u64;
        let bind = |(number, chunk): (usize, &[wgpu::Buffer])| {
            let table = wgpu::BufferBinding {
                buffer: &self.table,
                offset: number as u64 * stride,
                size: NonZeroU64::new(self.group as u64 * 16),
            };
            let padded = chunk.iter().chain(std::iter::repeat(&chunk[0])).take(self.group);
            let sources: Vec<_> = padded.map(|source| source.as_entire_buffer_binding()).collect();
            let mut entries = vec![
                wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(table) },
                wgpu::BindGroupEntry { binding: 1, resource: bed.scratch.as_entire_binding() },
            ];
            match self.is_array {
                true => entries.push(wgpu::BindGroupEntry {
                    binding: 2,
                    resource: wgpu::BindingResource::BufferArray(&sources),
                }),
                false => {
                    entries.extend(sources.iter().enumerate().map(|(number, source)| wgpu::BindGroupEntry {
                        binding: number as u32 + 2,
                        resource: wgpu::BindingResource::Buffer(source.clone()),
                    }))
                }
            }
            bed.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &layout,
                entries: &entries,
            })
        };
        bed.sources.chunks(self.group).enumerate().map(bind).collect()
    }

    fn record(&self, bed: &Bed, groups: &[wgpu::BindGroup], encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        for (number, group) in groups.iter().enumerate() {
            let count = self.group.min(BUFFERS - number * self.group);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(count as u32, 1, 1);
        }
        drop(pass);
        encoder.copy_buffer_to_buffer(&bed.scratch, 0, &bed.block, 0, bed.bytes);
    }
}
