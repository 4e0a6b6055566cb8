//! From the host to the device.

use std::time::{Duration, Instant};

use transship::Tensor;
use transship::wgpu::wgpu;
use wgpu::BufferUsages;

use super::gpu::{Batch, Gpu};
use crate::Result;
use crate::input::Input;
use crate::measure::Method;

const BELT_CHUNK: u64 = 1 << 20;
const BLOCKS: usize = 4;

/// Device memory for one batch, and what goes into it.
struct There {
    gpu: Gpu,
    batch: Batch,
    buffer: Option<wgpu::Buffer>,
}

impl There {
    fn new(gpu: Gpu) -> Self {
        Self { gpu, batch: Batch::default(), buffer: None }
    }

    /// Untimed; lets go of the memory of the last run.
    fn prepare<S>(&mut self, input: &Input<S>) -> Result<()> {
        self.buffer = None;
        self.batch.of(input)
    }

    fn allocate(&mut self) -> wgpu::Buffer {
        self.buffer.insert(self.gpu.storage(self.batch.bytes)).clone()
    }

    fn is_right(&self, expected: &[Tensor]) -> Result<bool> {
        let from = self.buffer.as_ref().ok_or("nothing was copied")?;
        let back = self.gpu.readable(from.size());
        let mut encoder = self.gpu.encoder();
        encoder.copy_buffer_to_buffer(from, 0, &back, 0, from.size());
        encoder.map_buffer_on_submit(&back, wgpu::MapMode::Read, .., |mapped| assert!(mapped.is_ok()));
        self.gpu.run(Some(encoder.finish()))?;
        self.batch.is_right(&back.get_mapped_range(..)?, expected)
    }
}

/// One `write_buffer` for each tensor, one submission.
pub(super) struct Each(There);

impl Each {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self(There::new(gpu))
    }
}

impl<S> Method<S> for Each {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.0.prepare(input)?;
        let started = Instant::now();
        let buffer = self.0.allocate();
        for ((offset, _), padded) in self.0.batch.ranges.iter().zip(&self.0.batch.padded) {
            self.0.gpu.queue.write_buffer(&buffer, *offset, padded);
        }
        self.0.gpu.run(None)?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.0.is_right(expected)
    }
}

/// One write through the belt for each tensor, in pieces of a chunk, one submission.
pub(super) struct Belt {
    there: There,
    belt: wgpu::util::StagingBelt,
}

impl Belt {
    pub(super) fn new(gpu: Gpu) -> Self {
        let belt = wgpu::util::StagingBelt::new(gpu.device.clone(), BELT_CHUNK);
        Self { there: There::new(gpu), belt }
    }
}

impl<S> Method<S> for Belt {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there.prepare(input)?;
        let started = Instant::now();
        let buffer = self.there.allocate();
        let mut encoder = self.there.gpu.encoder();
        for ((start, _), padded) in self.there.batch.ranges.iter().zip(&self.there.batch.padded) {
            let mut offset = *start;
            for piece in padded.chunks(BELT_CHUNK as usize) {
                if let Some(size) = wgpu::BufferSize::new(piece.len() as u64) {
                    self.belt.write_buffer(&mut encoder, &buffer, offset, size).copy_from_slice(piece);
                }
                offset += piece.len() as u64;
            }
        }
        self.belt.finish_and_recall_on_submit(&encoder);
        self.there.gpu.run(Some(encoder.finish()))?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.is_right(expected)
    }
}

/// Everything through one of a few blocks that stay mapped between the runs.
pub(in super::super) struct Packed {
    there: There,
    blocks: Vec<wgpu::Buffer>,
    next: usize,
}

impl Packed {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { there: There::new(gpu), blocks: Vec::new(), next: 0 }
    }

    fn make_room(&mut self) {
        let bytes = self.there.batch.bytes;
        if self.blocks.first().is_none_or(|block| block.size() < bytes) {
            let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
            self.blocks = (0..BLOCKS).map(|_| self.there.gpu.buffer(bytes, usage, true)).collect();
        }
    }
}

impl<S> Method<S> for Packed {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there.prepare(input)?;
        self.make_room();
        let started = Instant::now();
        let buffer = self.there.allocate();
        self.next = (self.next + 1) % BLOCKS;
        let block = &self.blocks[self.next];
        let mut view = block.get_mapped_range_mut(..)?;
        self.there.batch.pack(view.slice(..));
        drop(view);
        block.unmap();
        let mut encoder = self.there.gpu.encoder();
        encoder.copy_buffer_to_buffer(block, 0, &buffer, 0, buffer.size());
        encoder.map_buffer_on_submit(block, wgpu::MapMode::Write, .., |mapped| assert!(mapped.is_ok()));
        self.there.gpu.run(Some(encoder.finish()))?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.is_right(expected)
    }
}

/// One copy out of a staging buffer that holds the batch.
pub(super) struct Full {
    there: There,
    source: Option<(u64, wgpu::Buffer)>,
}

impl Full {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { there: There::new(gpu), source: None }
    }

    fn source<S>(&mut self, input: &Input<S>) -> Result<wgpu::Buffer> {
        if let Some((_, source)) = self.source.take_if(|(data, _)| *data == input.data) {
            self.source = Some((input.data, source.clone()));
            return Ok(source);
        }
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let source = self.there.gpu.buffer(self.there.batch.bytes, usage, true);
        self.there.batch.pack(source.get_mapped_range_mut(..)?.slice(..));
        source.unmap();
        Ok(self.source.insert((input.data, source)).1.clone())
    }
}

impl<S> Method<S> for Full {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there.prepare(input)?;
        let source = self.source(input)?;
        let started = Instant::now();
        let buffer = self.there.allocate();
        let mut encoder = self.there.gpu.encoder();
        encoder.copy_buffer_to_buffer(&source, 0, &buffer, 0, buffer.size());
        self.there.gpu.run(Some(encoder.finish()))?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.is_right(expected)
    }
}

/// Two blocks of a thread's own: it fills one while the device reads the other.
pub(in super::super) struct Ring {
    there: There,
    /// Mapped again behind that submission.
    blocks: Vec<(wgpu::Buffer, Option<wgpu::SubmissionIndex>)>,
}

const RING_BLOCKS: usize = 2;
const RING_BLOCK: u64 = 2 << 20;

impl Ring {
    pub(super) fn new(gpu: Gpu) -> Self {
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let blocks = (0..RING_BLOCKS).map(|_| (gpu.buffer(RING_BLOCK, usage, true), None)).collect();
        Self { there: There::new(gpu), blocks }
    }
}

impl<S> Method<S> for Ring {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.there.prepare(input)?;
        let started = Instant::now();
        let buffer = self.there.allocate();
        let Self { there, blocks } = self;
        for (index, start) in (0..there.batch.bytes).step_by(RING_BLOCK as usize).enumerate() {
            let (block, behind) = &mut blocks[index % RING_BLOCKS];
            there.gpu.wait(behind.take())?;
            let bytes = RING_BLOCK.min(there.batch.bytes - start);
            there.batch.pack_part(start, block.get_mapped_range_mut(..bytes)?.slice(..));
            block.unmap();
            let mut encoder = there.gpu.encoder();
            encoder.copy_buffer_to_buffer(block, 0, &buffer, start, bytes);
            encoder.map_buffer_on_submit(block, wgpu::MapMode::Write, .., |mapped| assert!(mapped.is_ok()));
            *behind = Some(there.gpu.queue.submit(Some(encoder.finish())));
        }
        blocks.iter_mut().try_for_each(|(_, behind)| there.gpu.wait(behind.take()))?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.there.is_right(expected)
    }
}
