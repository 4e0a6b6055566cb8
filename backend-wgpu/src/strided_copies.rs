//! Copies of a submission that leave gaps out or cast: a kernel makes them, in rounds, in front of all others.

use std::sync::Arc;

use transship_core::Result;
use wgpu::{BufferUsages, CommandEncoder};

use crate::context::Context;
use crate::strided_entry::Part;
use crate::strided_kernel::{Launches, StridedKernel, Task};
use crate::strided_rounds::{CopyOut, Gather, rounds};
use crate::workspace::Workspace;

/// Where elements go: to a staging block, by its number, or to a buffer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Target<'a> {
    Block(usize),
    Buffer(&'a wgpu::Buffer),
}

/// The copies of one submission.
#[derive(Default)]
pub(crate) struct Gathers<'a> {
    gathers: Vec<Gather<'a, Target<'a>>>,
    sources: Vec<Source<'a>>,
}

/// What is read.
struct Source<'a> {
    buffer: &'a wgpu::Buffer,
    /// Kernels cannot read the buffer, as that of a staging block: its bytes from here on are copied to another one.
    copied: Option<(u64, wgpu::Buffer)>,
}

/// What is encoded.
pub(crate) struct Planned<'a> {
    kernel: &'a StridedKernel,
    table: Vec<u8>,
    rounds: Vec<PlannedRound<'a>>,
    /// The most bytes that one of them writes.
    bytes: u64,
}

struct PlannedRound<'a> {
    launches: Launches<'a>,
    copies: Vec<CopyOut<Target<'a>>>,
}

impl<'a> Gathers<'a> {
    /// Adds a copy of `part`, which lies in `buffer`.
    pub(crate) fn add(
        &mut self,
        context: &Arc<Context>,
        buffer: &'a wgpu::Buffer,
        mut part: Part<'a>,
        (to, offset): (Target<'a>, u64),
    ) -> Result<()> {
        if context.kernels().strided.is_none() {
            return Err(context.unsupported("gather elements or cast them"));
        }
        if !(offset | part.skip()).is_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT) {
            return Err(context.unsupported("gather elements from or to the middle of a word"));
        }
        let copied = match buffer.usage().contains(BufferUsages::STORAGE) {
            true => None,
            false => {
                let read = part.read();
                let start = read.start & !(wgpu::COPY_BUFFER_ALIGNMENT - 1);
                let size = (read.end - start).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
                let usages = BufferUsages::STORAGE | BufferUsages::COPY_DST;
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                part = part.moved_to(part.from() - start);
                Some((start, context.create_buffer(size, usages, "between", false)?))
            }
        };
        self.sources.push(Source { buffer, copied });
        self.gathers.push(Gather { part, to, offset, joins: matches!(to, Target::Block(_)) });
        Ok(())
    }

    /// Plans the rounds; `None` if there is nothing to gather.
    pub(crate) fn plan<'b>(&'b self, context: &'b Context) -> Result<Option<Planned<'b>>> {
        let kernels = context.kernels();
        let (Some(kernel), Some(room), false) =
            (&kernels.strided, kernels.workspaces.room(), self.gathers.is_empty())
        else {
            return Ok(None);
        };
        let (mut table, mut planned, mut bytes) = (Vec::new(), Vec::new(), 0);
        for round in rounds(&self.gathers, room, kernel.largest_part()) {
            let tasks = round.parts.iter().filter_map(|(number, part, to)| {
                Some(Task { from: self.sources.get(*number)?.read(), part: *part, to: *to })
            });
            let launches = kernel.plan(&tasks.collect::<Vec<_>>(), &mut table);
            let launches =
                launches.ok_or_else(|| context.unsupported("gather elements that lie so far apart"))?;
            bytes = round.bytes.max(bytes);
            planned.push(PlannedRound { launches, copies: round.copies });
        }
        Ok(Some(Planned { kernel, table, rounds: planned, bytes }))
    }

    /// Copies what kernels cannot read to where they can. Returns how many copies that takes.
    pub(crate) fn copy_sources(&self, encoder: &mut CommandEncoder) -> usize {
        let copied = self.sources.iter().filter_map(|source| Some((source.buffer, source.copied.as_ref()?)));
        copied
            .map(|(from, (start, to))| encoder.copy_buffer_to_buffer(from, *start, to, 0, to.size()))
            .count()
    }
}

impl Source<'_> {
    fn read(&self) -> &wgpu::Buffer {
        self.copied.as_ref().map_or(self.buffer, |(_, copied)| copied)
    }
}

impl Planned<'_> {
    /// Encodes it, where `block` knows the buffers of staging blocks. Returns what it uses, and how many launches and copies it takes; to
    /// be called where errors are caught.
    pub(crate) fn encode<'b>(
        self,
        context: &Context,
        encoder: &mut CommandEncoder,
        block: impl Fn(usize) -> Option<&'b wgpu::Buffer>,
    ) -> (Workspace, usize) {
        let device = context.device();
        let mut workspace = context.kernels().workspaces.take(device, self.table.len() as u64, self.bytes);
        workspace.write_table(context.queue(), self.table);
        let mut copies = 0;
        for round in &self.rounds {
            self.kernel.launch(device, encoder, &workspace, &round.launches);
            copies += round.launches.count() + round.copies.len();
            for copy in &round.copies {
                let to = match copy.to {
                    Target::Block(number) => block(number),
                    Target::Buffer(buffer) => Some(buffer),
                };
                if let Some(to) = to {
                    let from = workspace.gathered();
                    encoder.copy_buffer_to_buffer(from, copy.from, to, copy.offset, copy.bytes);
                }
            }
        }
        (workspace, copies)
    }
}
