//! What several cases need.

#[path = "../../../tests/support/eventually.rs"]
mod eventually;

use std::time::{Duration, Instant};

pub(crate) use eventually::eventually;

use transship_core::backend::Driver;
use transship_core::{CopyHandle, CopyOptions, Device, Tensor, TensorTree, start_copy};
use wgpu::{BufferUsages, PollType};

const ARRAYS: wgpu::Features = wgpu::Features::BUFFER_BINDING_ARRAY
    .union(wgpu::Features::STORAGE_RESOURCE_BINDING_ARRAY)
    .union(wgpu::Features::PARTIALLY_BOUND_BINDING_ARRAY);

/// A device as a program of its own makes it, with nothing but the default limits.
pub(crate) struct Program {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// The same, for copies.
    pub(crate) target: Device,
}

impl Program {
    pub(crate) fn new() -> Self {
        Self::made(|_| wgpu::DeviceDescriptor::default())
    }

    /// A device with all bindings that its adapter has, and what arrays of them need.
    pub(crate) fn with_limits_of_the_adapter() -> Self {
        Self::made(|adapter| wgpu::DeviceDescriptor {
            required_features: adapter.features() & ARRAYS,
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        })
    }

    /// The same, with bindings of at most `bytes` bytes.
    pub(crate) fn with_largest_binding(bytes: u64) -> Self {
        Self::made(|adapter| wgpu::DeviceDescriptor {
            required_features: adapter.features() & ARRAYS,
            required_limits: wgpu::Limits { max_storage_buffer_binding_size: bytes, ..adapter.limits() },
            ..wgpu::DeviceDescriptor::default()
        })
    }

    /// The same, with so many storage buffers for a kernel.
    pub(crate) fn with_bindings(count: u32) -> Self {
        Self::made(|adapter| wgpu::DeviceDescriptor {
            required_limits: wgpu::Limits { max_storage_buffers_per_shader_stage: count, ..adapter.limits() },
            ..wgpu::DeviceDescriptor::default()
        })
    }

    fn made(describe: impl FnOnce(&wgpu::Adapter) -> wgpu::DeviceDescriptor<'static>) -> Self {
        let descriptor = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
        let instance = wgpu::Instance::new(descriptor);
        let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        adapters.sort_by_key(|adapter| adapter.get_info().backend != wgpu::Backend::Vulkan);
        let requested = adapters[0].request_device(&describe(&adapters[0]));
        let (device, queue) = pollster::block_on(requested).unwrap();
        // SAFETY: cases that destroy the device do so when no copy is on its way.
        let target = unsafe { transship_wgpu::from_device(device.clone(), queue.clone()) }.unwrap();
        Self { device, queue, target }
    }

    /// A program that works on a device of transship's own, opened for it alone.
    pub(crate) fn on_own_device() -> Self {
        let target = transship_wgpu::WgpuDriver.open(0).and_then(Device::from_backend).unwrap();
        // SAFETY: as above.
        let (device, queue) = unsafe { transship_wgpu::wgpu_device(&target) }.unwrap();
        Self { device, queue, target }
    }

    pub(crate) fn buffer(&self, bytes: u64, usage: BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes,
            usage,
            mapped_at_creation: false,
        })
    }

    pub(crate) fn submit(&self, encode: impl FnOnce(&mut wgpu::CommandEncoder)) -> wgpu::SubmissionIndex {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encode(&mut encoder);
        self.queue.submit([encoder.finish()])
    }

    pub(crate) fn wait(&self) {
        self.device.poll(PollType::wait_indefinitely()).unwrap();
    }

    /// The floats of a buffer, read as a program does it by itself.
    pub(crate) fn read(&self, buffer: &wgpu::Buffer) -> Vec<f32> {
        let back = self.buffer(buffer.size(), BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        self.submit(|encoder| {
            encoder.copy_buffer_to_buffer(buffer, 0, &back, 0, buffer.size());
            encoder.map_buffer_on_submit(&back, wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
        });
        self.wait();
        let view = back.get_mapped_range(..).unwrap();
        view.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    }
}

/// `count` numbers that differ from those of another seed and are exact as floats, also doubled.
pub(crate) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + seed * 1009) % 1_000_003) as f32).collect()
}

/// Copies to `device` and waits.
pub(crate) fn up<S: TensorTree>(value: S, device: &Device) -> S {
    let handle = start_copy(value, device, CopyOptions::default());
    handle.and_then(CopyHandle::wait).unwrap_or_else(|error| panic!("{error}"))
}

/// Copies to the host and waits.
pub(crate) fn down<S: TensorTree>(value: S) -> S {
    up(value, &Device::host())
}

pub(crate) fn floats(tensor: Tensor) -> Vec<f32> {
    down(tensor).to_vec().unwrap()
}

/// What `work` gives, and how long it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let output = work();
    (output, start.elapsed())
}
