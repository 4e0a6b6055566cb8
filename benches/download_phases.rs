//! What copies down through wgpu spend their time on: 528 small buffers, way by way and phase by phase, with wgpu alone and through
//! this library; and one large block.
//!
//! `cargo run --release --features wgpu --example download-phases [NUMBER [ROUNDS]]`: of `wgpu:NUMBER`, or of `wgpu:0`, each way so
//! many times, or 300.
//! With `TRANSSHIP_WGPU_GATHER=never` the library makes a copy of each buffer, with `always` it gathers on any device.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that fails is none"
)]

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use transship::wgpu::{wgpu, wgpu_device};
use transship::{CopyOptions, Device, Tensor, start_copy};
use wgpu::{BindGroup, BindingResource, BufferUsages, CommandEncoder, Features, MapMode, PollType};

const BUFFERS: usize = 528;
const BYTES: u64 = 292;
const BLOCK: u64 = 4 << 20;
const MANY_BATCHES: usize = 6;
const PHASES: [&str; 6] = ["bind", "record", "finish", "submit", "wait", "all"];
static ROUNDS: LazyLock<usize> = LazyLock::new(|| argument(2).unwrap_or(300));
const ARRAYS: Features = Features::BUFFER_BINDING_ARRAY
    .union(Features::STORAGE_RESOURCE_BINDING_ARRAY)
    .union(Features::PARTIALLY_BOUND_BINDING_ARRAY);

fn main() {
    let number = argument(1).unwrap_or(0);
    let device = Device::open(format!("wgpu:{number}").parse().unwrap()).unwrap();
    println!("{}", device.description());
    let bed = Bed::new(&device);
    println!(
        "\n{BUFFERS} buffers of {BYTES} bytes, median us{:10}{}",
        "",
        PHASES.map(|phase| format!("{phase:>9}")).concat()
    );
    copies(&bed);
    kernels(&bed);
    println!("\nthe same through this library, median us");
    through_the_library(&device, 1);
    println!("\nwith more batches in turn than the library keeps bindings for");
    through_the_library(&device, MANY_BATCHES);
    println!("\na block of {BLOCK} bytes");
    large_block(&bed);
}

fn argument(place: usize) -> Option<usize> {
    std::env::args().nth(place).map(|number| number.parse().unwrap())
}

fn copies(bed: &Bed) {
    bed.report("nothing", |_| {});
    bed.report("one copy", |encoder| encoder.copy_buffer_to_buffer(&bed.one, 0, &bed.block, 0, bed.bytes));
    bed.report("a copy each, one destination", |encoder| {
        for (source, to) in bed.sources.iter().zip((0..).step_by(BYTES as usize)) {
            encoder.copy_buffer_to_buffer(source, 0, &bed.block, to, BYTES);
        }
    });
    bed.report("a copy each, a destination each", |encoder| {
        for (source, to) in bed.sources.iter().zip(&bed.targets) {
            encoder.copy_buffer_to_buffer(source, 0, to, 0, BYTES);
        }
        encoder.copy_buffer_to_buffer(&bed.one, 0, &bed.block, 0, bed.bytes);
    });
}

fn kernels(bed: &Bed) {
    let limits = bed.device.limits();
    let most = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
    for group in [6, 14, 30, 62, 126].into_iter().filter(|group| group + 2 <= most) {
        let kernel = Kernel::new(bed, group as usize, false);
        bed.report_kernel(&format!("kernel, {group} bindings"), &kernel, false);
        bed.report_kernel("the same, bound before", &kernel, true);
    }
    let in_array = limits.max_binding_array_elements_per_shader_stage as usize;
    if bed.device.features().contains(ARRAYS) && in_array >= BUFFERS {
        bed.report_kernel("kernel, arrays of 256", &Kernel::new(bed, 256, true), false);
        let kernel = Kernel::new(bed, BUFFERS, true);
        bed.report_kernel("kernel, one array", &kernel, false);
        bed.report_kernel("the same, bound before", &kernel, true);
    }
}

fn through_the_library(device: &Device, batches: usize) {
    let tensor = |number: usize| Tensor::from(vec![number as u8; BYTES as usize]);
    let there = |_| {
        let tensors: Vec<Tensor> = (0..BUFFERS).map(tensor).collect();
        start_copy(tensors, device, CopyOptions::default().packing(false)).unwrap().wait().unwrap()
    };
    let there: Vec<Vec<Tensor>> = (0..batches).map(there).collect();
    let mut times: [Vec<Duration>; 6] = Default::default();
    let mut last = None;
    for tensors in there.iter().cycle().take(*ROUNDS) {
        let tensors = tensors.clone();
        let begin = Instant::now();
        let handle = start_copy(tensors, &Device::host(), CopyOptions::default()).unwrap();
        let started = begin.elapsed();
        let (_, report) = handle.wait_with_report().unwrap();
        let phases = [report.plan, report.allocate, report.stage, report.submit];
        let all = [begin.elapsed(), started].into_iter().chain(phases);
        times.iter_mut().zip(all).for_each(|(times, time)| times.push(time));
        last = Some(report);
    }
    let names = ["until wait() returns", "until start_copy returns", "plan", "allocate", "stage", "submit"];
    for (name, times) in names.into_iter().zip(times) {
        println!("{name:44}{:9.1}", median(times));
    }
    println!("{}", last.unwrap());
}

/// What one thread reads of a block, and how long the device takes for it.
fn large_block(bed: &Bed) {
    let from = bed.buffer(BLOCK, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let block = bed.buffer(BLOCK, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let mut touched = vec![1_u8; BLOCK as usize];
    let [mut submit, mut wait, mut over, mut fresh] = [const { Vec::new() }; 4];
    for _ in 0..*ROUNDS {
        let copy = |encoder: &mut CommandEncoder| encoder.copy_buffer_to_buffer(&from, 0, &block, 0, BLOCK);
        let [_, _, finished, submitted, waited] = bed.round(&block, Duration::ZERO, copy);
        submit.push(finished + submitted);
        wait.push(waited);
        let view = block.get_mapped_range(..).unwrap();
        over.push(timed(|| touched.copy_from_slice(&view)));
        let mut other = None;
        fresh.push(timed(|| other = Some(view.to_vec())));
        black_box((&touched, other));
        drop(view);
        block.unmap();
    }
    let rate = |us: f64| BLOCK as f64 / us / 1e3;
    let (submit, wait, over, fresh) = (median(submit), median(wait), median(over), median(fresh));
    println!("finish and submit {submit:.1} us, wait {wait:.1} us ({:.1} GB/s)", rate(wait));
    println!(
        "one thread into memory touched before {:.1} GB/s, into new memory {:.1} GB/s",
        rate(over),
        rate(fresh)
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// In microseconds.
fn median(mut of: Vec<Duration>) -> f64 {
    of.sort();
    of[of.len() / 2].as_secs_f64() * 1e6
}

struct Bed {
    device: wgpu::Device,
    queue: wgpu::Queue,
    sources: Vec<wgpu::Buffer>,
    targets: Vec<wgpu::Buffer>,
    one: wgpu::Buffer,
    gathered: wgpu::Buffer,
    block: wgpu::Buffer,
    bytes: u64,
}

impl Bed {
    fn new(device: &Device) -> Self {
        // SAFETY: nobody destroys it.
        let (device, queue) = unsafe { wgpu_device(device) }.unwrap();
        let limits = device.limits();
        println!("{:?}", device.features());
        println!(
            "{} storage buffers a stage, {} elements of arrays, bindings at multiples of {}",
            limits.max_storage_buffers_per_shader_stage,
            limits.max_binding_array_elements_per_shader_stage,
            limits.min_storage_buffer_offset_alignment
        );
        let bytes = BUFFERS as u64 * BYTES;
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = |size, usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        let many = || (0..BUFFERS).map(|_| buffer(BYTES, usage)).collect::<Vec<_>>();
        let (sources, targets, one, gathered) = (many(), many(), buffer(bytes, usage), buffer(bytes, usage));
        let block = buffer(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        for (number, source) in sources.iter().enumerate() {
            queue.write_buffer(source, 0, &contents(number));
        }
        Self { device, queue, sources, targets, one, gathered, block, bytes }
    }

    fn buffer(&self, size: u64, usage: BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    fn report(&self, name: &str, record: impl Fn(&mut CommandEncoder)) {
        let round = |_| {
            let times = self.round(&self.block, Duration::ZERO, &record);
            self.block.unmap();
            times
        };
        print(name, &(0..*ROUNDS).map(round).collect::<Vec<_>>());
    }

    fn report_kernel(&self, name: &str, kernel: &Kernel, is_bound: bool) {
        let bound = kernel.bind(self);
        let mut times = Vec::new();
        for _ in 0..*ROUNDS {
            let begin = Instant::now();
            let groups = if is_bound { bound.clone() } else { kernel.bind(self) };
            let bind = begin.elapsed();
            times.push(self.round(&self.block, bind, |encoder| kernel.record(self, &groups, encoder)));
            let view = self.block.get_mapped_range(..).unwrap();
            let mut buffers = view.chunks(BYTES as usize).enumerate();
            assert!(buffers.all(|(number, bytes)| bytes == contents(number)), "{name} copies something else");
            drop(view);
            self.block.unmap();
        }
        print(name, &times);
    }

    /// Leaves `block` mapped.
    fn round(
        &self,
        block: &wgpu::Buffer,
        bind: Duration,
        record: impl FnOnce(&mut CommandEncoder),
    ) -> [Duration; 5] {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let recorded = timed(|| record(&mut encoder));
        let done = Arc::new(AtomicBool::new(false));
        let set = done.clone();
        encoder.map_buffer_on_submit(block, MapMode::Read, .., move |mapped| {
            mapped.unwrap();
            set.store(true, Ordering::Release);
        });
        let mut commands = None;
        let finished = timed(|| commands = Some(encoder.finish()));
        let submitted = timed(|| _ = self.queue.submit(commands));
        let waited = timed(|| {
            while !done.load(Ordering::Acquire) {
                self.device.poll(PollType::Poll).unwrap();
            }
        });
        [bind, recorded, finished, submitted, waited]
    }
}

fn contents(number: usize) -> Vec<u8> {
    (0..BYTES as usize).map(|at| (number * 7 + at * 3) as u8).collect()
}

fn print(name: &str, times: &[[Duration; 5]]) {
    let mut medians: Vec<f64> =
        (0..5).map(|phase| median(times.iter().map(|times| times[phase]).collect())).collect();
    medians.push(median(times.iter().map(|times| times.iter().sum()).collect()));
    println!("{name:44}{}", medians.into_iter().map(|median| format!("{median:9.1}")).collect::<String>());
}

/// A kernel as that of `backend-wgpu/src/gather_kernel.rs`, of so many buffers at a time.
struct Kernel {
    pipeline: wgpu::ComputePipeline,
    table: wgpu::Buffer,
    group: usize,
    is_array: bool,
}

impl Kernel {
    fn new(bed: &Bed, group: usize, is_array: bool) -> Self {
        let begin = Instant::now();
        let source = wgpu::ShaderSource::Wgsl(text(group, is_array).into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: None, source };
        // SAFETY: each entry of the table names the words of one buffer, and its loops end.
        let module = unsafe {
            bed.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        };
        let entry = |binding: usize, read_only, least, count| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: NonZeroU64::new(least),
            },
            count,
        };
        let mut entries = vec![entry(0, true, 16, None), entry(1, false, 4, None)];
        match is_array {
            true => entries.push(entry(2, true, 4, NonZeroU32::new(group as u32))),
            false => entries.extend((0..group).map(|number| entry(number + 2, true, 4, None))),
        }
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
        let layout = bed.device.create_bind_group_layout(&descriptor);
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
        println!("(a pipeline in {:.1} ms)", begin.elapsed().as_secs_f64() * 1e3);
        let table = table(group);
        let buffer = bed.buffer(table.len() as u64, BufferUsages::STORAGE | BufferUsages::COPY_DST);
        bed.queue.write_buffer(&buffer, 0, &table);
        Self { pipeline, table: buffer, group, is_array }
    }

    fn bind(&self, bed: &Bed) -> Vec<BindGroup> {
        let layout = self.pipeline.get_bind_group_layout(0);
        let bind = |(number, sources): (usize, &[wgpu::Buffer])| {
            let table = wgpu::BufferBinding {
                buffer: &self.table,
                offset: (number * table_bytes(self.group)) as u64,
                size: NonZeroU64::new(sources.len() as u64 * 16),
            };
            let mut bindings: Vec<_> =
                sources.iter().map(|source| source.as_entire_buffer_binding()).collect();
            let entry = |binding, resource| wgpu::BindGroupEntry { binding, resource };
            let mut entries =
                vec![entry(0, BindingResource::Buffer(table)), entry(1, bed.gathered.as_entire_binding())];
            match self.is_array {
                true => entries.push(entry(2, BindingResource::BufferArray(&bindings))),
                false => {
                    bindings.resize(self.group, bindings[0].clone());
                    let bindings = bindings.iter().cloned().map(BindingResource::Buffer);
                    entries.extend((2..).zip(bindings).map(|(binding, source)| entry(binding, source)));
                }
            }
            let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries };
            bed.device.create_bind_group(&descriptor)
        };
        bed.sources.chunks(self.group).enumerate().map(bind).collect()
    }

    fn record(&self, bed: &Bed, groups: &[BindGroup], encoder: &mut CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        for (number, group) in groups.iter().enumerate() {
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(self.group.min(BUFFERS - number * self.group) as u32, 1, 1);
        }
        drop(pass);
        encoder.copy_buffer_to_buffer(&bed.gathered, 0, &bed.block, 0, bed.bytes);
    }
}

/// Bytes of the table of one group.
fn table_bytes(group: usize) -> usize {
    (group * 16).next_multiple_of(256)
}

fn table(group: usize) -> Vec<u8> {
    let mut table = vec![0; table_bytes(group) * BUFFERS.div_ceil(group)];
    for number in 0..BUFFERS {
        let at = number / group * table_bytes(group) + number % group * 16;
        let words = [0, BYTES as u32 / 4, (number as u64 * BYTES / 4) as u32, 0];
        table[at..at + 16].copy_from_slice(&words.map(u32::to_ne_bytes).concat());
    }
    table
}

fn text(group: usize, is_array: bool) -> String {
    let copy = |source: &str| {
        format!(
            "for (var word = lane; word < entry.y; word += 64u) {{ gathered[entry.z + word] = {source}[entry.x + word]; }}"
        )
    };
    let (enable, sources, copy) = match is_array {
        true => (
            "enable wgpu_binding_array;",
            format!(
                "struct Words {{ words: array<u32> }}
                @group(0) @binding(2) var<storage, read> sources: binding_array<Words, {group}>;"
            ),
            copy("sources[group.x].words"),
        ),
        false => {
            let declare = |number: usize| {
                format!("@group(0) @binding({}) var<storage, read> source{number}: array<u32>;\n", number + 2)
            };
            let case =
                |number: usize| format!("case {number}u: {{ {} }}\n", copy(&format!("source{number}")));
            let cases: String = (0..group).map(case).collect();
            ("", (0..group).map(declare).collect(), format!("switch group.x {{ {cases} default: {{}} }}"))
        }
    };
    format!(
        "{enable}
        @group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
        @group(0) @binding(1) var<storage, read_write> gathered: array<u32>;
        {sources}
        @compute @workgroup_size(64)
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
            let entry = table[group.x];
            {copy}
        }}"
    )
}
