//! From the device to the host.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::wgpu::{wgpu, wgpu_view};
use wgpu::util::DownloadBuffer;
use wgpu::{BufferUsages, MapMode, PollType};

use super::gpu::{Batch, Gpu};
use crate::Result;
use crate::input::Input;
use crate::measure::{Method, same};

/// One download for each tensor, all at once.
pub(super) struct Downloads {
    gpu: Gpu,
    here: Vec<DownloadBuffer>,
}

impl Downloads {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { gpu, here: Vec::new() }
    }
}

impl<S> Method<S> for Downloads {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.here.clear();
        let started = Instant::now();
        let mut receivers = Vec::with_capacity(input.leaves.len());
        for leaf in &input.leaves {
            let view = wgpu_view(leaf)?;
            let part = view.buffer.slice(view.offset..view.offset + view.bytes.next_multiple_of(4));
            let (sender, receiver) = mpsc::channel();
            DownloadBuffer::read_buffer(&self.gpu.device, &self.gpu.queue, &part, move |read| {
                drop(sender.send(read))
            });
            receivers.push(receiver);
        }
        self.gpu.device.poll(PollType::wait_indefinitely())?;
        for receiver in receivers {
            self.here.push(receiver.recv()??);
        }
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let mut right = self.here.len() == expected.len();
        for (here, expected) in self.here.iter().zip(expected) {
            right &= same(&here[..expected.nbytes()], expected)?;
        }
        Ok(right)
    }
}

/// One copy for each tensor into a new buffer, and out of that into memory of its own.
pub(super) struct Each {
    gpu: Gpu,
    batch: Batch,
    here: Vec<u8>,
}

impl Each {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { gpu, batch: Batch::default(), here: Vec::new() }
    }
}

impl<S> Method<S> for Each {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.here = Vec::new();
        self.batch.of(input)?;
        let started = Instant::now();
        let to = self.gpu.readable(self.batch.bytes);
        let mut encoder = self.gpu.encoder();
        for (leaf, (offset, _)) in input.leaves.iter().zip(&self.batch.ranges) {
            let view = wgpu_view(leaf)?;
            encoder.copy_buffer_to_buffer(
                &view.buffer,
                view.offset,
                &to,
                *offset,
                view.bytes.next_multiple_of(4),
            );
        }
        encoder.map_buffer_on_submit(&to, MapMode::Read, .., |mapped| assert!(mapped.is_ok()));
        self.gpu.run(Some(encoder.finish()))?;
        self.here = to.get_mapped_range(..)?.to_vec();
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.batch.is_right(&self.here, expected)
    }
}

/// The batch in one buffer of the device, from there one copy into a buffer that is kept.
pub(super) struct One {
    gpu: Gpu,
    batch: Batch,
    from: Option<(u64, wgpu::Buffer)>,
    here: Option<wgpu::Buffer>,
}

impl One {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { gpu, batch: Batch::default(), from: None, here: None }
    }

    /// Untimed: both buffers, the first one full, the second one not mapped.
    fn prepare<S>(&mut self, input: &Input<S>) -> Result<(wgpu::Buffer, wgpu::Buffer)> {
        self.batch.of(input)?;
        if let Some(here) = &self.here {
            here.unmap();
        }
        self.here.take_if(|here| here.size() != self.batch.bytes);
        let here = self.here.get_or_insert_with(|| self.gpu.readable(self.batch.bytes)).clone();
        self.from.take_if(|(data, _)| *data != input.data);
        if let Some((_, from)) = &self.from {
            return Ok((from.clone(), here));
        }
        let from = self.gpu.buffer(self.batch.bytes, BufferUsages::COPY_DST | BufferUsages::COPY_SRC, true);
        self.batch.pack(from.get_mapped_range_mut(..)?.slice(..));
        from.unmap();
        self.from = Some((input.data, from.clone()));
        Ok((from, here))
    }
}

impl<S> Method<S> for One {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        let (from, here) = self.prepare(input)?;
        let started = Instant::now();
        let mut encoder = self.gpu.encoder();
        encoder.copy_buffer_to_buffer(&from, 0, &here, 0, here.size());
        encoder.map_buffer_on_submit(&here, MapMode::Read, .., |mapped| assert!(mapped.is_ok()));
        self.gpu.run(Some(encoder.finish()))?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let here = self.here.as_ref().ok_or("nothing was copied")?;
        self.batch.is_right(&here.get_mapped_range(..)?, expected)
    }
}
