//! Copies of a submission that leave gaps out, cast, or write to where tensors have gaps: kernels make them, in rounds, in front of all others.
//!
//! In each round elements get side by side into the workspace: by a kernel, or by a copy where they lie so already. From there a kernel
//! writes them to where a tensor has gaps, and copies take them anywhere else.

use std::ops::Range;
use std::sync::Arc;

use transship_core::Result;
use wgpu::{BufferUsages, CommandEncoder};

use crate::context::Context;
use crate::strided_entry::Part;
use crate::strided_kernel::{Launches, StridedKernel, Task};
use crate::strided_rounds::{CopyOut, Gather, rounds};
use crate::workspace::Workspace;

/// Where elements go: to a staging block, by its number, to a buffer, or to where a tensor has gaps, by its number.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Target<'a> {
    Block(usize),
    Buffer(&'a wgpu::Buffer),
    Strided(usize),
}

/// The copies of one submission.
#[derive(Default)]
pub(crate) struct Gathers<'a> {
    gathers: Vec<Gather<'a, Target<'a>>>,
    sources: Vec<Source<'a>>,
    /// What is written with gaps.
    strided: Vec<(&'a wgpu::Buffer, Part<'a>)>,
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
    copies_in: Vec<CopyIn<'a>>,
    gathers: Launches<'a>,
    scatters: Launches<'a>,
    copies_out: Vec<CopyOut<Target<'a>>>,
}

/// A copy into the workspace, in bytes.
struct CopyIn<'a> {
    buffer: &'a wgpu::Buffer,
    run: Range<u64>,
    to: u64,
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
        let copied = match buffer.usage().contains(BufferUsages::STORAGE) || part.run_of_words().is_some() {
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

    /// Adds a copy of `part`, which lies in `buffer`, to where `to` lies in another one or in the same.
    pub(crate) fn add_scattered(
        &mut self,
        context: &Arc<Context>,
        (buffer, part): (&'a wgpu::Buffer, Part<'a>),
        to: (&'a wgpu::Buffer, Part<'a>),
    ) -> Result<()> {
        if !to.1.is_of_words() {
            return Err(context.unsupported("write parts of words where a tensor has gaps"));
        }
        if !to.0.usage().contains(BufferUsages::STORAGE) {
            return Err(
                context.unsupported("write where a tensor has gaps in a buffer without the usage STORAGE")
            );
        }
        self.strided.push(to);
        self.add(context, buffer, part, (Target::Strided(self.strided.len() - 1), 0))
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
            let (copies_in, tasks) = self.gathered(&round.parts);
            let gathers = kernel.plan(&tasks, &mut table);
            let (tasks, copies_out) = self.scattered(round.copies);
            let scatters = kernel.plan_scatter(&tasks, &mut table);
            let (Some(gathers), Some(scatters)) = (gathers, scatters) else {
                return Err(context.unsupported("gather or scatter elements that lie so far apart"));
            };
            bytes = round.bytes.max(bytes);
            planned.push(PlannedRound { copies_in, gathers, scatters, copies_out });
        }
        Ok(Some(Planned { kernel, table, rounds: planned, bytes }))
    }

    /// The parts of a round that lie side by side, and those that a kernel puts side by side.
    fn gathered(&self, parts: &[(usize, Part<'a>, u64)]) -> (Vec<CopyIn<'_>>, Vec<Task<'_>>) {
        let (mut copies, mut tasks) = (Vec::new(), Vec::new());
        for (number, part, to) in parts {
            let Some(source) = self.sources.get(*number) else { continue };
            match part.run_of_words() {
                Some(run) => copies.push(CopyIn { buffer: source.buffer, run, to: *to }),
                None => tasks.push(Task { buffer: source.read(), part: *part, packed_at: *to }),
            }
        }
        (copies, tasks)
    }

    /// What a kernel writes with gaps of `copies`, and the copies that are left.
    fn scattered(&self, copies: Vec<CopyOut<Target<'a>>>) -> (Vec<Task<'a>>, Vec<CopyOut<Target<'a>>>) {
        let (mut tasks, mut others) = (Vec::new(), Vec::new());
        for copy in copies {
            let Target::Strided(number) = copy.to else {
                others.push(copy);
                continue;
            };
            let Some((buffer, whole)) = self.strided.get(number) else { continue };
            let part = whole.cut(copy.offset as usize, copy.bytes as usize);
            tasks.push(Task { buffer, part, packed_at: copy.from });
        }
        (tasks, others)
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
            for CopyIn { buffer, run, to } in &round.copies_in {
                let bytes = run.end - run.start;
                encoder.copy_buffer_to_buffer(buffer, run.start, workspace.gathered(), *to, bytes);
            }
            self.kernel.launch(device, encoder, &workspace, &round.gathers);
            self.kernel.launch(device, encoder, &workspace, &round.scatters);
            copies += round.copies_in.len() + round.gathers.count();
            copies += round.scatters.count() + round.copies_out.len();
            for copy in &round.copies_out {
                let to = match copy.to {
                    Target::Block(number) => block(number),
                    Target::Buffer(buffer) => Some(buffer),
                    Target::Strided(_) => None,
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
