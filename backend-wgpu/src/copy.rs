//! Submitting copies: one encoder and one submission for all of them.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;
use transship_core::backend::{
    Buffer, CopyOp, Direction, GatherTo, HostSide, Moved, ScatterFrom, Scattered, Staging, Submission,
};
use transship_core::{Error, Result};
use wgpu::BufferUsages;

use crate::bound::{Range, Tag};
use crate::context::Context;
use crate::gather::{Stretch, Target, stretches};
use crate::memory::WgpuBuffer;
use crate::scopes::scoped;
use crate::staging::{Block, WgpuStaging};
use crate::strided_copies::{self, Gathers, Planned};
use crate::strided_entry::Part;
use crate::workspace::Workspace;

/// Submits `ops` and a position behind them.
///
/// # Safety
///
/// As [`Backend::submit`](transship_core::backend::Backend::submit).
///
/// # Errors
///
/// The first error; nothing is in flight then.
pub(crate) unsafe fn submit(context: &Arc<Context>, ops: &[CopyOp<'_>]) -> Result<Submission> {
    context.check()?;
    let mut batch = Batch::default();
    for op in ops {
        batch.add(context, op)?;
    }
    let stretches = batch.stretches(context);
    let gathered = stretches.iter().map(|stretch| stretch.downloads.len()).sum();
    let planned = batch.gathers.plan(context)?;
    let (position, copies, error) = batch.send(context, &stretches, planned);
    batch.moved.as_copies(copies);
    if let Some(error) = error {
        let error = context.explain("Queue::submit", &error);
        context.check()?;
        // Nothing of it runs, but its blocks are being mapped again.
        context.wait(position, None)?;
        return Err(error);
    }
    match batch.blocks.is_empty() {
        true => context.check_alive()?,
        false => context.check()?,
    }
    context.counters().cells.submitted(&batch.moved);
    if !batch.landings.is_empty() {
        context.wait(position, None)?;
        // SAFETY: the caller's promises, and the blocks are filled.
        batch.landings.iter().try_for_each(|landing| unsafe { landing.land(context) })?;
    }
    Ok(Submission::new(position, batch.moved.copies(), batch.moved.bytes()).gathering(gathered))
}

/// The commands of one submission, and what they use.
#[derive(Default)]
struct Batch<'a> {
    commands: SmallVec<[Command<'a>; 2]>,
    gathers: Gathers<'a>,
    /// The staging blocks, each once.
    blocks: SmallVec<[Arc<Block>; 2]>,
    landings: Vec<Landing>,
    /// What lies in one buffer goes through these: wgpu copies between two buffers only.
    between: Vec<wgpu::Buffer>,
    moved: Moved,
}

/// A place in a buffer.
type Place<'a> = (&'a wgpu::Buffer, u64);

enum Command<'a> {
    Copy {
        from: Place<'a>,
        to: Place<'a>,
        bytes: u64,
    },
    /// Within one buffer.
    Within {
        from: Place<'a>,
        between: usize,
        to: Place<'a>,
        bytes: u64,
    },
    /// Out of a staging block, or into one.
    Up {
        block: usize,
        offset: u64,
        to: Place<'a>,
        bytes: u64,
    },
    Down {
        from: Place<'a>,
        tag: &'a Tag,
        block: usize,
        offset: u64,
        bytes: u64,
    },
    /// Out of ordinary memory.
    Write {
        from: NonNull<u8>,
        to: Place<'a>,
        bytes: u64,
    },
    Clear {
        to: Place<'a>,
        bytes: u64,
    },
    /// One of `Batch::gathers`.
    Gather,
}

/// Bytes that come down into a block of their own and go on to ordinary memory.
struct Landing {
    block: WgpuStaging,
    to: NonNull<u8>,
    bytes: usize,
}

impl<'a> Batch<'a> {
    /// Checks an operation; nothing happens yet.
    fn add(&mut self, context: &Arc<Context>, op: &CopyOp<'a>) -> Result<()> {
        let command = match *op {
            CopyOp::Upload { bytes: 0, .. }
            | CopyOp::Download { bytes: 0, .. }
            | CopyOp::Between { bytes: 0, .. }
            | CopyOp::Gather { bytes: 0, .. }
            | CopyOp::UploadCast { bytes: 0, .. }
            | CopyOp::Scatter { elements: Scattered { bytes: 0, .. }, .. }
            | CopyOp::Clear { bytes: 0, .. } => return Ok(()),
            CopyOp::Upload { from, to, to_offset, bytes } => {
                let to = place(context, to, to_offset)?;
                self.upload(context, from, to, bytes)?
            }
            CopyOp::Download { from, from_offset, to, bytes } => {
                self.download(context, (own_buffer(context, from)?, from_offset), to, bytes)?
            }
            CopyOp::Between { from, from_offset, to, to_offset, bytes } => {
                let (from, to) = (place(context, from, from_offset)?, place(context, to, to_offset)?);
                match from.0 == to.0 {
                    true => self.within(context, from, to, bytes)?,
                    false => Command::Copy { from, to, bytes: bytes as u64 },
                }
            }
            CopyOp::Gather { from, elements, skip, to, bytes } => {
                let (from, offset) = place(context, from, elements.offset)?;
                let to = self.target(context, to, bytes)?;
                self.gathers.add(context, from, Part::new(elements, offset, skip, bytes), to)?;
                Command::Gather
            }
            CopyOp::Scatter { from, to, elements } => {
                self.scatter(context, from, to, elements)?;
                Command::Gather
            }
            CopyOp::UploadCast { from, from_offset, cast, to, to_offset, bytes } => {
                let (to, to_offset) = place(context, to, to_offset)?;
                self.block(context, from, Direction::Upload)?;
                let from = own_block(from).ok_or_else(|| foreign_block(context))?.buffer();
                let part = Part::side_by_side(cast, from_offset as u64, bytes);
                let to = strided_copies::Target::Buffer(to);
                self.gathers.add(context, from, part, (to, to_offset))?;
                Command::Gather
            }
            CopyOp::Clear { to, to_offset, bytes } => {
                let to = place(context, to, to_offset)?;
                Command::Clear { to, bytes: bytes as u64 }
            }
            _ => return Err(Error::Unsupported { device: context.id(), what: "run a copy of this kind" }),
        };
        self.moved.count(op);
        self.commands.push(command);
        Ok(())
    }

    fn scatter(
        &mut self,
        context: &Arc<Context>,
        from: ScatterFrom<'a>,
        to: &'a dyn Buffer,
        elements: &'a Scattered,
    ) -> Result<()> {
        let Scattered { from: read, from_skip, to: written, to_skip, bytes } = elements;
        let (to, to_offset) = place(context, to, written.offset)?;
        let (from, from_offset) = match from {
            ScatterFrom::Staging(block) => {
                self.block(context, block, Direction::Upload)?;
                let block = own_block(block).ok_or_else(|| foreign_block(context))?;
                (block.buffer(), read.offset as u64)
            }
            ScatterFrom::Device(buffer) => place(context, buffer, read.offset)?,
        };
        let part = Part::new(read, from_offset, *from_skip, *bytes);
        self.gathers.add_scattered(
            context,
            (from, part),
            (to, Part::new(written, to_offset, *to_skip, *bytes)),
        )
    }

    fn within(
        &mut self,
        context: &Arc<Context>,
        from: Place<'a>,
        to: Place<'a>,
        bytes: usize,
    ) -> Result<Command<'a>> {
        let usages = BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        self.between.push(context.create_buffer(bytes, usages, "between", false)?);
        Ok(Command::Within { from, between: self.between.len() - 1, to, bytes: bytes as u64 })
    }

    fn upload(
        &mut self,
        context: &Context,
        from: HostSide<'a>,
        to: Place<'a>,
        bytes: usize,
    ) -> Result<Command<'a>> {
        let bytes = bytes as u64;
        if let HostSide::Staging(block, offset) = from {
            let block = self.block(context, block, Direction::Upload)?;
            return Ok(Command::Up { block, offset: offset as u64, to, bytes });
        }
        let from =
            from.source().ok_or_else(|| context.unsupported("read a host range that is not mapped"))?;
        Ok(Command::Write { from, to, bytes })
    }

    fn download(
        &mut self,
        context: &Arc<Context>,
        (from, from_offset): (&'a WgpuBuffer, usize),
        to: HostSide<'a>,
        bytes: usize,
    ) -> Result<Command<'a>> {
        let tag = from.tag();
        let from = place_in(context, from, from_offset)?;
        let (block, offset) = self.landing(context, to, bytes)?;
        Ok(Command::Down { from, tag, block, offset, bytes: bytes as u64 })
    }

    /// Where a kernel's elements go.
    fn target(
        &mut self,
        context: &Arc<Context>,
        to: GatherTo<'a>,
        bytes: usize,
    ) -> Result<(strided_copies::Target<'a>, u64)> {
        Ok(match to {
            GatherTo::Host(to) => {
                let (block, offset) = self.landing(context, to, bytes)?;
                (strided_copies::Target::Block(block), offset)
            }
            GatherTo::Device(to, offset) => {
                let (to, offset) = place(context, to, offset)?;
                (strided_copies::Target::Buffer(to), offset)
            }
        })
    }

    /// The index of the block that `bytes` bytes for the host come down into, and where in it.
    fn landing(&mut self, context: &Arc<Context>, to: HostSide<'a>, bytes: usize) -> Result<(usize, u64)> {
        if let HostSide::Staging(block, offset) = to {
            return Ok((self.block(context, block, Direction::Download)?, offset as u64));
        }
        let to =
            to.destination().ok_or_else(|| context.unsupported("write to a host range that is read-only"))?;
        let landing = Landing { block: WgpuStaging::landing(context, bytes)?, to, bytes };
        let block = self.block(context, &landing.block, Direction::Download)?;
        self.landings.push(landing);
        Ok((block, 0))
    }

    /// The index of a staging block, which must be one of this device.
    fn block(&mut self, context: &Context, staging: &dyn Staging, direction: Direction) -> Result<usize> {
        let own = own_block(staging);
        let own = own.filter(|block| block.direction() == direction && block.context().is(context));
        let own = own.ok_or_else(|| foreign_block(context))?;
        let known = self.blocks.iter().position(|known| Arc::ptr_eq(known, own));
        Ok(known.unwrap_or_else(|| {
            self.blocks.push(own.clone());
            self.blocks.len() - 1
        }))
    }

    /// The downloads that a kernel gathers.
    fn stretches(&self, context: &Context) -> Vec<Stretch> {
        let target = |command: &Command<'_>| match *command {
            Command::Down { from, block, offset, bytes, .. }
                if from.0.usage().contains(BufferUsages::STORAGE) =>
            {
                Some(Target { block, offset, bytes })
            }
            _ => None,
        };
        let kernels = context.kernels();
        match (&kernels.ranges, kernels.workspaces.room()) {
            (Some(_), Some(room)) => stretches(self.commands.iter().map(target), room),
            _ => Vec::new(),
        }
    }

    /// Hands the commands to the queue, the downloads of `stretches` and what was planned gathered. Returns how many copies that takes.
    /// What goes wrong is in the error; the position is reached in any case, unless the device is lost.
    fn send(
        &self,
        context: &Context,
        stretches: &[Stretch],
        planned: Option<Planned<'_>>,
    ) -> (u64, usize, Option<wgpu::Error>) {
        let (position, signals) = context.timeline().issue(self.blocks.len().max(1));
        let mut signals = signals.into_iter();
        let ((workspaces, copies), error) = scoped(context.device(), || {
            self.blocks.iter().for_each(|block| block.close());
            let mut encoder =
                context.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut copies = self.gathers.copy_sources(&mut encoder);
            let block = |number: usize| self.blocks.get(number).map(|block| block.buffer());
            let strided = planned.map(|planned| planned.encode(context, &mut encoder, block));
            let gathered = self.gather(context, &mut encoder, stretches);
            let workspaces = [strided, gathered].map(|used| {
                let (workspace, made) = used?;
                copies += made;
                Some(workspace)
            });
            for command in self.alone(stretches) {
                copies += self.encode(context, &mut encoder, command);
            }
            for (block, signal) in self.blocks.iter().zip(&mut signals) {
                block.reopen_behind(&encoder, signal);
            }
            // Without a block that is mapped at the end, the queue itself says when it has come by.
            for signal in signals {
                encoder.on_submitted_work_done(move || signal.give());
            }
            context.queue().submit([encoder.finish()]);
            (workspaces, copies)
        });
        if error.is_none() {
            workspaces.into_iter().flatten().for_each(|used| context.kernels().workspaces.keep(used));
        }
        context.counters().driver_called(copies + 2 * self.blocks.len() + 3);
        (position, copies, error)
    }

    /// The commands that belong to no stretch.
    fn alone<'b>(&'b self, stretches: &'b [Stretch]) -> impl Iterator<Item = &'b Command<'a>> {
        let mut stretches = stretches.iter().peekable();
        self.commands.iter().enumerate().filter_map(move |(number, command)| {
            stretches.next_if(|stretch| stretch.downloads.end <= number);
            let is_gathered = stretches.peek().is_some_and(|stretch| stretch.downloads.contains(&number));
            (!is_gathered).then_some(command)
        })
    }

    /// Has a kernel put the downloads of each stretch side by side, and copies from there. Returns what it used, and how many
    /// launches and copies it took; `None` if there is nothing to gather.
    fn gather(
        &self,
        context: &Context,
        encoder: &mut wgpu::CommandEncoder,
        stretches: &[Stretch],
    ) -> Option<(Workspace, usize)> {
        let kernels = context.kernels();
        let (kernel, last) = (kernels.ranges.as_ref()?, stretches.last()?);
        let ranges: Vec<Range<'_>> = stretches.iter().flat_map(|stretch| self.ranges(stretch)).collect();
        let workspace = kernels.workspaces.take_bound(&ranges).unwrap_or_else(|| {
            let (device, queue) = (context.device(), context.queue());
            let (table, bytes) = (kernel.table_bytes(ranges.len()), last.gathered_at + last.bytes);
            let mut workspace = kernels.workspaces.take(device, table, bytes);
            let launches = kernel.bind(device, queue, &mut workspace, &ranges);
            context.counters().driver_called(launches);
            workspace
        });
        let launches = workspace.bound()?.launches();
        kernel.launch(encoder, launches);
        for stretch in stretches {
            if let Some(block) = self.blocks.get(stretch.block) {
                let (from, to) = (workspace.gathered(), block.buffer());
                encoder.copy_buffer_to_buffer(from, stretch.gathered_at, to, stretch.offset, stretch.bytes);
            }
        }
        let copies = launches.len() + stretches.len();
        Some((workspace, copies))
    }

    fn ranges<'b>(&'b self, stretch: &'b Stretch) -> impl Iterator<Item = Range<'a>> + 'b {
        let downloads = self.commands.get(stretch.downloads.clone()).unwrap_or(&[]);
        downloads.iter().filter_map(|command| match *command {
            Command::Down { from: (from, from_offset), tag, offset, bytes, .. } => {
                Some(Range { from, tag, offset: from_offset, to: stretch.gathered_offset(offset), bytes })
            }
            _ => None,
        })
    }

    /// Returns how many copies it took.
    fn encode(&self, context: &Context, encoder: &mut wgpu::CommandEncoder, command: &Command<'a>) -> usize {
        match *command {
            Command::Copy { from, to, bytes } => {
                encoder.copy_buffer_to_buffer(from.0, from.1, to.0, to.1, bytes)
            }
            Command::Within { from, between, to, bytes } => {
                if let Some(between) = self.between.get(between) {
                    encoder.copy_buffer_to_buffer(from.0, from.1, between, 0, bytes);
                    encoder.copy_buffer_to_buffer(between, 0, to.0, to.1, bytes);
                }
                return 2;
            }
            Command::Up { block, offset, to, bytes } => {
                if let Some(block) = self.blocks.get(block) {
                    encoder.copy_buffer_to_buffer(block.buffer(), offset, to.0, to.1, bytes);
                }
            }
            Command::Down { from, block, offset, bytes, .. } => {
                if let Some(block) = self.blocks.get(block) {
                    encoder.copy_buffer_to_buffer(from.0, from.1, block.buffer(), offset, bytes);
                }
            }
            Command::Clear { to, bytes } => encoder.clear_buffer(to.0, to.1, Some(bytes)),
            Command::Write { from, to, bytes } => write(context.queue(), from, to, bytes),
            Command::Gather => return 0,
        }
        1
    }
}

/// Copies ordinary memory into staging of wgpu's own, which goes up in front of the next submission.
fn write(queue: &wgpu::Queue, from: NonNull<u8>, to: Place<'_>, bytes: u64) {
    let Some(size) = wgpu::BufferSize::new(bytes) else { return };
    let Some(mut view) = queue.write_buffer_with(to.0, to.1, size) else { return };
    let mut room = view.slice(..);
    // SAFETY: the caller of `submit` promises that the source has so many bytes, which nobody writes; `room` has as many,
    // and is new.
    unsafe { room.as_raw_element_ptr().copy_from_nonoverlapping(from, room.len()) };
}

impl Landing {
    /// # Safety
    ///
    /// The copy into the block is done, and `to` has room for the bytes.
    unsafe fn land(&self, context: &Context) -> Result<()> {
        let from =
            self.block.contents().ok_or_else(|| context.unsupported("read a block that is not mapped"))?;
        // SAFETY: the block was allocated with so many bytes; the destination is the caller's promise.
        unsafe { self.to.copy_from_nonoverlapping(from, self.bytes) };
        Ok(())
    }
}

fn own_block(staging: &dyn Staging) -> Option<&Arc<Block>> {
    (staging as &dyn Any).downcast_ref::<WgpuStaging>().map(WgpuStaging::block)
}

fn foreign_block(context: &Context) -> Error {
    context.unsupported("copy through staging of another device or direction")
}

/// Where `offset` of `buffer` is; fails unless the buffer is one of this device.
fn place<'a>(context: &Context, buffer: &'a dyn Buffer, offset: usize) -> Result<Place<'a>> {
    place_in(context, own_buffer(context, buffer)?, offset)
}

fn own_buffer<'a>(context: &Context, buffer: &'a dyn Buffer) -> Result<&'a WgpuBuffer> {
    let own = WgpuBuffer::of(buffer).filter(|buffer| buffer.context().is(context));
    own.ok_or_else(|| context.unsupported("copy from or to a buffer of another device"))
}

fn place_in<'a>(context: &Context, own: &'a WgpuBuffer, offset: usize) -> Result<Place<'a>> {
    let inner = own.inner().ok_or_else(|| context.unsupported("copy from or to a buffer of no bytes"))?;
    Ok((inner, (own.offset() + offset) as u64))
}
