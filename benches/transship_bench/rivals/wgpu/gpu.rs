//! A device and its queue, and how tensors are laid out in a buffer.

use transship::wgpu::wgpu;
use transship::{Device, Tensor};
use wgpu::BufferUsages;

use crate::Result;
use crate::input::Input;
use crate::measure::same;

/// Where tensors begin in device memory.
const ALIGNMENT: u64 = 16;

#[derive(Clone)]
pub(super) struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
}

impl Gpu {
    pub(super) fn new(device: &Device) -> Result<Self> {
        // SAFETY: nobody destroys it.
        let (device, queue) = unsafe { transship::wgpu::wgpu_device(device) }?;
        Ok(Self { device, queue })
    }

    /// Submits and waits until that is done.
    pub(super) fn run(&self, commands: Option<wgpu::CommandBuffer>) -> Result<()> {
        let submission = self.queue.submit(commands);
        self.device.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None })?;
        Ok(())
    }

    /// Waits for a submission, if there is one.
    pub(super) fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        if submission.is_some() {
            self.device.poll(wgpu::PollType::Wait { submission_index: submission, timeout: None })?;
        }
        Ok(())
    }

    pub(super) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    pub(super) fn buffer(&self, size: u64, usage: BufferUsages, mapped_at_creation: bool) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation })
    }

    /// A buffer that the host can read.
    pub(super) fn readable(&self, size: u64) -> wgpu::Buffer {
        self.buffer(size, BufferUsages::MAP_READ | BufferUsages::COPY_DST, false)
    }

    /// A buffer that shaders can read.
    pub(super) fn storage(&self, size: u64) -> wgpu::Buffer {
        self.buffer(size, BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC, false)
    }
}

/// How the tensors of a batch lie in a buffer.
#[derive(Default)]
pub(super) struct Batch {
    data: Option<u64>,
    /// Offset and size of each tensor.
    pub(super) ranges: Vec<(u64, usize)>,
    /// The bytes of each tensor, with zeros up to a multiple of 4: wgpu copies nothing else.
    pub(super) padded: Vec<Vec<u8>>,
    pub(super) bytes: u64,
}

impl Batch {
    /// Lays the tensors of the input out, unless that has been done; to be called outside of the time.
    pub(super) fn of<S>(&mut self, input: &Input<S>) -> Result<()> {
        if self.data == Some(input.data) {
            return Ok(());
        }
        *self = Self { data: Some(input.data), ..Self::default() };
        let sources = if input.expected.is_empty() { &input.leaves } else { &input.expected };
        for source in sources {
            let mut padded = source.to_bytes()?;
            padded.resize(padded.len().next_multiple_of(4), 0);
            self.ranges.push((self.bytes, source.nbytes()));
            self.bytes = (self.bytes + padded.len() as u64).next_multiple_of(ALIGNMENT);
            self.padded.push(padded);
        }
        Ok(())
    }

    /// Copies everything into `room`, which is as large as the batch.
    pub(super) fn pack(&self, mut room: wgpu::WriteOnly<'_, [u8]>) {
        for ((offset, _), padded) in self.ranges.iter().zip(&self.padded) {
            room.slice(*offset as usize..*offset as usize + padded.len()).copy_from_slice(padded);
        }
    }

    /// Copies what lies behind `start` of the batch, as far as `room` goes.
    pub(super) fn pack_part(&self, start: u64, mut room: wgpu::WriteOnly<'_, [u8]>) {
        let end = start + room.len() as u64;
        let ends = |(range, padded): (&(u64, usize), &Vec<u8>)| range.0 + padded.len() as u64;
        let first = self.ranges.iter().zip(&self.padded).position(|tensor| ends(tensor) > start).unwrap_or(0);
        for ((offset, _), padded) in self.ranges.iter().zip(&self.padded).skip(first) {
            let (from, to) = (start.max(*offset), end.min(offset + padded.len() as u64));
            if from >= to {
                break;
            }
            let part = &padded[(from - offset) as usize..(to - offset) as usize];
            room.slice((from - start) as usize..(to - start) as usize).copy_from_slice(part);
        }
    }

    pub(super) fn is_right(&self, found: &[u8], expected: &[Tensor]) -> Result<bool> {
        let mut right = self.ranges.len() == expected.len();
        for (&(offset, bytes), expected) in self.ranges.iter().zip(expected) {
            right &= same(&found[offset as usize..][..bytes], expected)?;
        }
        Ok(right)
    }
}
