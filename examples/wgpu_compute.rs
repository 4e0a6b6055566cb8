//! A compute shader over many tensors that were copied in one piece: the chunk is bound once, and the shader finds each
//! tensor inside. Its results come down through transship as well.
//!
//! `cargo run --release --features wgpu --example wgpu_compute [DEVICE]`, where DEVICE is a number such as `wgpu:1` or a
//! part of an adapter's name; without one, the first adapter is taken.

use std::error::Error;
use std::process::ExitCode;

use transship::prelude::*;
use transship::wgpu::{WgpuSlice, wgpu};

const CAMERAS: usize = 48;

/// For each camera, the sum of the areas of its boxes, each times its weight.
const SHADER: &str = "
struct Camera { boxes: u32, weights: u32, count: u32 }

@group(0) @binding(0) var<storage, read> chunk: array<f32>;
@group(0) @binding(1) var<storage, read> cameras: array<Camera>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= arrayLength(&cameras)) { return; }
    let camera = cameras[id.x];
    var sum = 0.0;
    for (var i = 0u; i < camera.count; i++) {
        let at = camera.boxes + 4u * i;
        let area = (chunk[at + 2u] - chunk[at]) * (chunk[at + 3u] - chunk[at + 1u]);
        sum += area * chunk[camera.weights + i];
    }
    sums[id.x] = sum;
}";

/// What one camera sees: a box in each row, left, top, right, bottom.
#[derive(Clone, TensorTree)]
struct Camera {
    boxes: Tensor,
    weights: Tensor,
}

fn main() -> ExitCode {
    match run(std::env::args().nth(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: Option<String>) -> Result<(), Box<dyn Error>> {
    let device = open(name.as_deref().unwrap_or("wgpu:0"))?;
    println!("device   {}: {}", device.id(), device.description());
    let cameras = (0..CAMERAS).map(camera).collect::<transship::Result<Vec<_>>>()?;
    let expected = cameras.iter().map(weighted_area).collect::<transship::Result<Vec<_>>>()?;

    // Nobody waits: the shader is submitted behind the copy.
    let stream = device.create_stream(transship::StreamPriority::Normal)?;
    let handle = transship::start_copy(cameras, &device, CopyOptions::default())?;
    let report = handle.report();
    let there: Vec<Camera> = handle.wait_on(&stream)?;
    println!(
        "copied   {} tensors into {} chunk, {} bytes",
        report.packed, report.chunks, report.payload_bytes
    );
    let sums = compute(&device, &there)?;
    let sums = transship::start_copy(sums, &Device::host(), CopyOptions::default())?.wait()?;

    let sums = sums.to_vec::<f32>()?;
    let is_close = |(sum, expected): (&f32, &f32)| (sum - expected).abs() <= 1e-4 * expected.abs();
    if !sums.iter().zip(&expected).all(is_close) {
        return Err(format!("the shader says {sums:?}, the host {expected:?}").into());
    }
    println!("verified the sums of {CAMERAS} cameras; the first is {:.3}", sums[0]);
    Ok(())
}

/// A device by its number, or by a part of its name.
fn open(name: &str) -> Result<Device, Box<dyn Error>> {
    match transship::wgpu::find(name)? {
        Some(id) => Ok(Device::open(id)?),
        None => Ok(Device::open(name.parse()?)?),
    }
}

fn camera(number: usize) -> transship::Result<Camera> {
    let count = 10 + number % 7 * 5;
    let edge = |index: usize, side: usize| (index * 3 + number + side * 4) as f32 * 0.25;
    let boxes = (0..count).flat_map(|index| [0, 0, 2, 3].map(|side| edge(index, side))).collect::<Vec<_>>();
    let weights = (0..count).map(|index| 1.0 / (1 + index) as f32).collect::<Vec<_>>();
    Ok(Camera { boxes: Tensor::from_vec(boxes, &[count, 4])?, weights: Tensor::from(weights) })
}

fn weighted_area(camera: &Camera) -> transship::Result<f32> {
    let (boxes, weights) = (camera.boxes.to_vec::<f32>()?, camera.weights.to_vec::<f32>()?);
    let area = |edges: &[f32]| (edges[2] - edges[0]) * (edges[3] - edges[1]);
    Ok(boxes.chunks_exact(4).map(area).zip(weights).map(|(area, weight)| area * weight).sum())
}

/// Submits the shader; the tensor that it fills is the program's own buffer.
fn compute(device: &Device, cameras: &[Camera]) -> Result<Tensor, Box<dyn Error>> {
    // SAFETY: nobody destroys it.
    let (gpu, queue) = unsafe { transship::wgpu::wgpu_device(device) }?;
    let mut table = Vec::with_capacity(3 * 4 * cameras.len());
    let mut chunk = None;
    for camera in cameras {
        let (boxes, weights) =
            (transship::wgpu::wgpu_view(&camera.boxes)?, transship::wgpu::wgpu_view(&camera.weights)?);
        let count = camera.weights.numel() as u64;
        for number in [boxes.offset / 4, weights.offset / 4, count] {
            table.extend_from_slice(&u32::try_from(number)?.to_le_bytes());
        }
        chunk = Some(boxes);
    }
    let chunk: WgpuSlice = chunk.ok_or("there is no camera")?;
    let buffer = |size, usage| {
        gpu.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let cameras_table =
        buffer(table.len() as u64, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST);
    queue.write_buffer(&cameras_table, 0, &table);
    let sums = buffer(4 * cameras.len() as u64, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    submit(&gpu, &queue, [&chunk.buffer, &cameras_table, &sums], cameras.len() as u32);
    Ok(transship::wgpu::wrap_buffer(device, sums, 0, &[cameras.len()], DType::F32)?)
}

fn submit(gpu: &wgpu::Device, queue: &wgpu::Queue, buffers: [&wgpu::Buffer; 3], cameras: u32) {
    let source = wgpu::ShaderSource::Wgsl(SHADER.into());
    let module = gpu.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = gpu.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let resources = buffers.map(wgpu::Buffer::as_entire_binding);
    let entry = |(binding, resource)| wgpu::BindGroupEntry { binding, resource };
    let entries: Vec<_> = (0..).zip(resources).map(entry).collect();
    let group = gpu.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    let mut encoder = gpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(cameras.div_ceil(64), 1, 1);
    }
    queue.submit([encoder.finish()]);
}
