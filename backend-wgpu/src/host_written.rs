//! Whether the host writes to new buffers itself, and to which.

use std::time::{Duration, Instant};

use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, CommandEncoderDescriptor, Device, DeviceType, Features, PollType,
    Queue,
};

use crate::scopes::scoped;

/// wgpu fills what it maps with zeros first, on the calling thread: up to so many bytes, that and writing where the bytes
/// belong is faster than staging them and waiting for a copy.
const LARGEST: usize = 1 << 20;

/// What is copied to see where a buffer lies.
const PROBE: u64 = 16 << 20;
/// So much of its memory a GPU shows the host at the least; more of it only if all.
const WINDOW: u64 = 256 << 20;
const TRIES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(1);

/// The largest buffer that the host writes itself, in bytes; 0 if staging is better. Submits copies and waits for them where
/// nothing else tells, unless the queue is `busy` with the work of others.
pub(crate) fn largest(device: &Device, queue: &Queue, busy: bool) -> usize {
    let pays = match device.adapter_info().device_type {
        _ if !device.features().contains(Features::MAPPABLE_PRIMARY_BUFFERS) => false,
        DeviceType::IntegratedGpu | DeviceType::Cpu => true,
        _ => !busy && is_mapped_where_it_belongs(device, queue),
    };
    if pays { LARGEST } else { 0 }
}

/// Whether buffers that can be mapped lie in the memory of the device: a copy out of one is as fast as out of any other.
fn is_mapped_where_it_belongs(device: &Device, queue: &Queue) -> bool {
    if device.limits().max_buffer_size < WINDOW + PROBE {
        return false;
    }
    let (is_fast, error) = scoped(device, || {
        let buffer = |size, usage| {
            device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        let target = buffer(PROBE, BufferUsages::COPY_DST);
        let plain = buffer(PROBE, BufferUsages::COPY_SRC);
        let mappable = buffer(WINDOW + PROBE, BufferUsages::COPY_SRC | BufferUsages::MAP_WRITE);
        let best = |from: &Buffer, offset| {
            (0..TRIES).filter_map(|_| time_of_copy(device, queue, (from, offset), &target)).min()
        };
        let best = best(&plain, 0).zip(best(&mappable, WINDOW));
        best.is_some_and(|(plain, mappable)| mappable < 2 * plain)
    });
    is_fast && error.is_none()
}

fn time_of_copy(device: &Device, queue: &Queue, from: (&Buffer, u64), to: &Buffer) -> Option<Duration> {
    let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(from.0, from.1, to, 0, PROBE);
    let start = Instant::now();
    let submission = queue.submit([encoder.finish()]);
    let wait = PollType::Wait { submission_index: Some(submission), timeout: Some(PATIENCE) };
    device.poll(wait).ok().map(|_| start.elapsed())
}
