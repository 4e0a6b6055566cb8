//! What a user of wgpu would write by hand, on the same device. Device memory is one new buffer for all tensors.

use std::error::Error;
use std::time::{Duration, Instant};

use transship::wgpu::wgpu;
use transship::{Device, Tensor};

use crate::sampling::{Contender, Input, Method};

/// Where tensors begin in device memory.
const ALIGNMENT: u64 = 16;
const BELT_CHUNK: u64 = 1 << 20;
const BLOCKS: usize = 4;
const FLOOR_SAMPLES: usize = 1000;

/// The rivals on `device`, one of wgpu's. Prints what a submission of nothing costs.
pub(crate) fn rivals(device: &Device) -> Result<Vec<Contender>, Box<dyn Error>> {
    let (device, queue) = transship::wgpu::wgpu_device(device)?;
    let gpu = Gpu { device, queue };
    println!("an empty submission and a wait for it: {:.1} us", gpu.floor()?);
    let belt = wgpu::util::StagingBelt::new(gpu.device.clone(), BELT_CHUNK);
    Ok(vec![
        Contender::new("by hand: Queue::write_buffer for each tensor", Each(Destination::new(gpu.clone()))),
        Contender::new(
            "by hand: StagingBelt, a write for each tensor",
            Belt { destination: Destination::new(gpu.clone()), belt },
        ),
        Contender::new("by hand: packed into one mapped block, one copy", Packed::new(gpu)),
    ])
}

#[derive(Clone)]
struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

impl Gpu {
    /// Submits and waits until that is done.
    fn run(&self, commands: Option<wgpu::CommandBuffer>) -> Result<(), wgpu::PollError> {
        let submission = self.queue.submit(commands);
        let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
        self.device.poll(wait).map(drop)
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn buffer(&self, size: u64, usage: wgpu::BufferUsages, mapped_at_creation: bool) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation })
    }

    /// The median, in microseconds.
    fn floor(&self) -> Result<f64, wgpu::PollError> {
        let mut times = Vec::with_capacity(FLOOR_SAMPLES);
        for _ in 0..FLOOR_SAMPLES {
            let started = Instant::now();
            self.run(Some(self.encoder().finish()))?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2].as_secs_f64() * 1e6)
    }
}

/// Device memory for one batch, and what goes into it.
struct Destination {
    gpu: Gpu,
    buffer: Option<wgpu::Buffer>,
    /// Where each tensor lies, and its size.
    ranges: Vec<(u64, usize)>,
    /// The bytes of each tensor, with zeros up to a multiple of 4: wgpu copies nothing else.
    padded: Vec<Vec<u8>>,
}

impl Destination {
    fn new(gpu: Gpu) -> Self {
        Self { gpu, buffer: None, ranges: Vec::new(), padded: Vec::new() }
    }

    /// Lays the tensors out, which is not timed, and lets go of the memory of the last run.
    fn lay_out(&mut self, leaves: &[Tensor]) -> Result<u64, Box<dyn Error>> {
        self.buffer = None;
        self.ranges.clear();
        self.padded.clear();
        let mut end = 0;
        for leaf in leaves {
            self.ranges.push((end, leaf.bytes()));
            let mut padded = leaf.to_bytes()?;
            padded.resize(padded.len().next_multiple_of(4), 0);
            end = (end + padded.len() as u64).next_multiple_of(ALIGNMENT);
            self.padded.push(padded);
        }
        Ok(end)
    }

    fn allocate(&mut self, bytes: u64) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        self.buffer.insert(self.gpu.buffer(bytes, usage, false)).clone()
    }

    fn bytes(&self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        let from = self.buffer.as_ref().ok_or("nothing was copied")?;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let back = self.gpu.buffer(from.size(), usage, false);
        let mut encoder = self.gpu.encoder();
        encoder.copy_buffer_to_buffer(from, 0, &back, 0, from.size());
        encoder.map_buffer_on_submit(&back, wgpu::MapMode::Read, .., |mapped| assert!(mapped.is_ok()));
        self.gpu.run(Some(encoder.finish()))?;
        let view = back.get_mapped_range(..)?;
        let read = |&(offset, bytes): &(u64, usize)| view[offset as usize..][..bytes].to_vec();
        Ok(self.ranges.iter().map(read).collect())
    }
}

/// One `write_buffer` for each tensor, one submission.
struct Each(Destination);

impl Method for Each {
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>> {
        let bytes = self.0.lay_out(&input.leaves)?;
        let started = Instant::now();
        let buffer = self.0.allocate(bytes);
        for ((offset, _), padded) in self.0.ranges.iter().zip(&self.0.padded) {
            self.0.gpu.queue.write_buffer(&buffer, *offset, padded);
        }
        self.0.gpu.run(None)?;
        Ok(started.elapsed())
    }

    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        self.0.bytes()
    }
}

/// One write through the belt for each tensor, one submission.
struct Belt {
    destination: Destination,
    belt: wgpu::util::StagingBelt,
}

impl Method for Belt {
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>> {
        let bytes = self.destination.lay_out(&input.leaves)?;
        let started = Instant::now();
        let buffer = self.destination.allocate(bytes);
        let mut encoder = self.destination.gpu.encoder();
        for ((offset, _), padded) in self.destination.ranges.iter().zip(&self.destination.padded) {
            if let Some(size) = wgpu::BufferSize::new(padded.len() as u64) {
                self.belt.write_buffer(&mut encoder, &buffer, *offset, size).copy_from_slice(padded);
            }
        }
        self.belt.finish_and_recall_on_submit(&encoder);
        self.destination.gpu.run(Some(encoder.finish()))?;
        Ok(started.elapsed())
    }

    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        self.destination.bytes()
    }
}

/// Everything through one of a few blocks that stay mapped between the runs.
struct Packed {
    destination: Destination,
    blocks: Vec<wgpu::Buffer>,
    next: usize,
}

impl Packed {
    fn new(gpu: Gpu) -> Self {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let blocks = (0..BLOCKS).map(|_| gpu.buffer(BELT_CHUNK, usage, true)).collect();
        Self { destination: Destination::new(gpu), blocks, next: 0 }
    }
}

impl Method for Packed {
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>> {
        let bytes = self.destination.lay_out(&input.leaves)?;
        let started = Instant::now();
        let buffer = self.destination.allocate(bytes);
        let block = &self.blocks[self.next % BLOCKS];
        self.next += 1;
        let mut view = block.get_mapped_range_mut(..)?;
        let mut room = view.slice(..);
        for ((offset, _), padded) in self.destination.ranges.iter().zip(&self.destination.padded) {
            room.slice(*offset as usize..*offset as usize + padded.len()).copy_from_slice(padded);
        }
        drop(view);
        block.unmap();
        let mut encoder = self.destination.gpu.encoder();
        encoder.copy_buffer_to_buffer(block, 0, &buffer, 0, bytes);
        encoder.map_buffer_on_submit(block, wgpu::MapMode::Write, .., |mapped| assert!(mapped.is_ok()));
        self.destination.gpu.run(Some(encoder.finish()))?;
        Ok(started.elapsed())
    }

    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        self.destination.bytes()
    }
}
