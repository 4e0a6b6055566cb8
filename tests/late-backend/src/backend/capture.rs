//! Copies, as they are captured when they are submitted.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use transship_core::Cast;
use transship_core::Result;
use transship_core::backend::{
    Buffer, CopyOp, Counters, Direction, Elements, GatherTo, HostSide, KernelTable, MemoryKind, Runs,
    ScatterFrom, Scattered, Staging,
};

use crate::backend::LateBackend;
use crate::config::LateConfig;
use crate::memory::{LateBuffer, LateStaging};
use crate::queue::{End, HostPointer, Op};

impl LateBackend {
    /// Checks a copy against the contract of `submit`, and adds what it needs to run later.
    pub(super) fn capture(&self, op: &CopyOp<'_>, captured: &mut Vec<Op>) -> Result<()> {
        let checked = match *op {
            CopyOp::Gather { from, elements, skip, to, bytes } => {
                self.check_gather(from, elements, skip, to, bytes, captured)
            }
            CopyOp::Scatter { from, to, elements } => self.check_scatter(from, to, elements, captured),
            CopyOp::UploadCast { from, from_offset, cast, to, to_offset, bytes } => self
                .check_upload_cast(
                    HostSide::Staging(from, from_offset),
                    cast,
                    self.device_end(to, to_offset, bytes, false),
                    bytes,
                )
                .and_then(|op| {
                    captured.push(op);
                    self.fill_granule(to, to_offset, bytes, captured)
                }),
            _ => self.check_copy(op).map(|op| captured.push(op)),
        };
        checked.map_err(|what| self.instance.violation(self.device, what))
    }

    fn check_copy(&self, op: &CopyOp<'_>) -> Result<Op, String> {
        let (from, to, bytes) = match *op {
            CopyOp::Upload { from, to, to_offset, bytes } => {
                (Some(self.host(from, bytes, false)), self.device_end(to, to_offset, bytes, false), bytes)
            }
            CopyOp::Download { from, from_offset, to, bytes } => {
                (Some(self.device_end(from, from_offset, bytes, false)), self.host(to, bytes, true), bytes)
            }
            CopyOp::Between { from, from_offset, to, to_offset, bytes } => {
                let source = self.device_end(from, from_offset, bytes, self.instance.config.peers);
                (Some(source), self.device_end(to, to_offset, bytes, false), bytes)
            }
            CopyOp::Clear { to, to_offset, bytes } => {
                (None, self.device_end(to, to_offset, bytes, false), bytes)
            }
            _ => (None, Err("a copy of a kind that the device has not".to_owned()), op.bytes()),
        };
        if !self.instance.config.copy_granularity.divides(bytes) {
            return Err(format!("a copy of {bytes} bytes, which is no multiple"));
        }
        Ok(Op::Copy { from: from.transpose()?, to: to?, bytes })
    }

    /// A copy of its own for each run, so that other work can come between.
    fn check_gather(
        &self,
        from: &dyn Buffer,
        elements: &Elements,
        skip: usize,
        to: GatherTo<'_>,
        bytes: usize,
        captured: &mut Vec<Op>,
    ) -> Result<(), String> {
        let config = &self.instance.config;
        let Elements { offset: from_offset, runs, cast } = elements;
        if self.limits.gather_strided.is_none() {
            self.check_without_table(elements, skip, to)?;
        }
        if runs.dims().len() > Runs::MOST_DIMS {
            return Err(format!("{} dimensions to gather", runs.dims().len()));
        }
        let reaches_all = self.limits.gather_strided.is_none();
        if matches!(to, GatherTo::Host(side) if !reaches_all && !self.is_reached_by_kernels(&side, bytes)) {
            return Err("a kernel that writes to memory that is not staging".to_owned());
        }
        inside(*from_offset, runs.span(), from.bytes())?;
        inside(skip, bytes, elements.bytes())?;
        let peers = config.peers && matches!(to, GatherTo::Device(..));
        let destination = |done: usize, bytes: usize| match to {
            GatherTo::Host(HostSide::Staging(block, at)) => {
                self.host(HostSide::Staging(block, at + done), bytes, true)
            }
            GatherTo::Host(HostSide::Buffer(buffer, at)) => {
                self.host(HostSide::Buffer(buffer, at + done), bytes, true)
            }
            GatherTo::Device(buffer, at) => self.place(buffer, at + done, bytes, false),
        };
        let granules = config.copy_granularity.round_up(bytes).ok_or("a copy without end")?;
        if granules > bytes {
            // Nobody else's bytes lie there.
            captured.push(Op::Copy {
                from: None,
                to: destination(bytes, granules - bytes)?,
                bytes: granules - bytes,
            });
        }
        let Some(cast) = cast else {
            let mut done = 0;
            for (offset, bytes) in runs.places(skip..skip + bytes) {
                let from = Some(self.place(from, from_offset + offset, bytes, peers)?);
                captured.push(Op::Copy { from, to: destination(done, bytes)?, bytes });
                done += bytes;
            }
            return Ok(());
        };
        let (size, to_size) = (cast.from_dtype().size(), cast.to_dtype().size());
        let (mut first, last) = (skip / to_size, (skip + bytes).div_ceil(to_size));
        for (offset, read) in runs.places(first * size..last * size) {
            let elements = read / size;
            let made = first * to_size..(first + elements) * to_size;
            let kept = made.start.max(skip)..made.end.min(skip + bytes);
            let from = self.place(from, from_offset + offset, read, peers)?;
            let to = destination(kept.start - skip, kept.len())?;
            let bytes = kept.start - made.start..kept.end - made.start;
            captured.push(Op::Cast { from, to, cast: *cast, elements, bytes });
            first += elements;
        }
        Ok(())
    }

    /// What a device demands that gathers beside other copies.
    fn check_without_table(&self, elements: &Elements, skip: usize, to: GatherTo<'_>) -> Result<(), String> {
        let config = &self.instance.config;
        let largest = Some(self.limits.largest_strided).filter(|largest| *largest > 0);
        let largest = largest.ok_or("a kernel that the device has not")?;
        let (GatherTo::Host(HostSide::Staging(_, offset) | HostSide::Buffer(_, offset))
        | GatherTo::Device(_, offset)) = to;
        if !config.copy_granularity.divides(offset | skip) {
            return Err(format!("elements gathered to {offset}, {skip} left out before: no whole granules"));
        }
        let runs = &elements.runs;
        let bytes = runs.dims().iter().map(|dim| dim.count).product::<usize>() * runs.bytes();
        if !runs.dims().is_empty() && bytes.max(runs.span()) > largest {
            return Err(format!("{bytes} bytes gathered out of {}", runs.span()));
        }
        Ok(())
    }

    /// A copy of its own for each run of either side.
    fn check_scatter(
        &self,
        from: ScatterFrom<'_>,
        to: &dyn Buffer,
        elements: &Scattered,
        captured: &mut Vec<Op>,
    ) -> Result<(), String> {
        let (read, written) = (&elements.from, &elements.to);
        if self.limits.gather_strided.is_none() {
            self.check_scatter_without_table(elements)?;
        }
        for (side, skip) in [(read, elements.from_skip), (written, elements.to_skip)] {
            if side.runs.dims().len() > Runs::MOST_DIMS || side.cast.is_some() {
                return Err(format!("{} dimensions to scatter, or a cast", side.runs.dims().len()));
            }
            inside(skip, elements.bytes, side.bytes())?;
        }
        let source = |offset: usize, bytes: usize| match from {
            ScatterFrom::Staging(block) => self.host(HostSide::Staging(block, offset), bytes, false),
            ScatterFrom::Device(buffer) => self.device_end(buffer, offset, bytes, self.instance.config.peers),
        };
        let mut done = 0;
        for (mut place, bytes) in written.runs.places(elements.to_skip..elements.to_skip + elements.bytes) {
            let skip = elements.from_skip + done;
            for (offset, bytes) in read.runs.places(skip..skip + bytes) {
                let from = Some(source(read.offset + offset, bytes)?);
                let to = self.device_end(to, written.offset + place, bytes, false)?;
                captured.push(Op::Copy { from, to, bytes });
                place += bytes;
            }
            done += bytes;
        }
        Ok(())
    }

    /// What a device demands that scatters beside other copies.
    fn check_scatter_without_table(&self, elements: &Scattered) -> Result<(), String> {
        let granularity = self.instance.config.copy_granularity;
        let (written, limits) = (&elements.to, &self.limits);
        if limits.largest_scattered_run == 0 {
            return Err("a kernel that the device has not".to_owned());
        }
        let (run, runs) = (written.runs.bytes(), written.bytes() / written.runs.bytes());
        if run > limits.largest_scattered_run || runs < limits.fewest_scattered_runs {
            return Err(format!("{runs} runs of {run} bytes scattered"));
        }
        let steps = written.runs.dims().iter().map(|dim| dim.step);
        let places = [written.offset, written.runs.bytes(), elements.to_skip, elements.bytes];
        if let Some(bytes) = steps.chain(places).find(|bytes| !granularity.divides(*bytes)) {
            return Err(format!("elements scattered by {bytes} bytes: no whole granules"));
        }
        for side in [&elements.from, written] {
            let bytes = side.bytes().max(side.runs.span());
            if !side.runs.dims().is_empty() && bytes > self.limits.largest_strided {
                return Err(format!("{bytes} bytes scattered"));
            }
        }
        Ok(())
    }

    fn check_upload_cast(
        &self,
        from: HostSide<'_>,
        cast: &Cast,
        to: Result<End, String>,
        bytes: usize,
    ) -> Result<Op, String> {
        if !self.limits.gathers() {
            return Err("a kernel that the device has not".to_owned());
        }
        let (size, to_size) = (cast.from_dtype().size(), cast.to_dtype().size());
        if !bytes.is_multiple_of(to_size) {
            return Err(format!("{bytes} bytes of elements of {to_size} bytes"));
        }
        let from = self.host(from, bytes / to_size * size, false)?;
        Ok(Op::Cast { from, to: to?, cast: *cast, elements: bytes / to_size, bytes: 0..bytes })
    }

    /// Zeros behind so many bytes, up to the end of the last granule: nobody else's bytes lie there.
    fn fill_granule(
        &self,
        to: &dyn Buffer,
        offset: usize,
        bytes: usize,
        captured: &mut Vec<Op>,
    ) -> Result<(), String> {
        let granules = self.instance.config.copy_granularity.round_up(bytes).ok_or("a copy without end")?;
        if granules > bytes {
            let to = self.place(to, offset + bytes, granules - bytes, false)?;
            captured.push(Op::Copy { from: None, to, bytes: granules - bytes });
        }
        Ok(())
    }

    /// Writes the table of a kernel for `ops`, and keeps what it needs to see that nobody else does.
    pub(super) fn capture_table(&self, ops: &[CopyOp<'_>], table: KernelTable<'_>) -> Result<Op> {
        let checked = self.check_table(ops, table);
        checked.map_err(|what| self.instance.violation(self.device, what))
    }

    fn check_table(&self, ops: &[CopyOp<'_>], table: KernelTable<'_>) -> Result<Op, String> {
        let limits = &self.limits;
        let of_range = |bytes| {
            let entry = limits.gather.ok_or("a kernel that the device has not")?;
            Ok(entry * table.parts(bytes))
        };
        let entry = |op: &CopyOp<'_>| match op {
            CopyOp::Between { bytes, .. } => of_range(*bytes),
            CopyOp::Download { to, bytes, .. } if self.is_reached_by_kernels(to, *bytes) => of_range(*bytes),
            CopyOp::Gather { .. } => limits.gather_strided.ok_or("a kernel that the device has not"),
            _ => Err("a copy that a kernel cannot make"),
        };
        let bytes = ops.iter().map(entry).sum::<Result<usize, _>>()?;
        if !ops.is_sorted_by_key(|op| matches!(op, CopyOp::Gather { .. })) {
            return Err("a copy of a range behind one that gathers".to_owned());
        }
        let block = self.usable_block(table.block, false)?;
        if block.device != self.device {
            return Err("a table in a staging block of another device".to_owned());
        }
        inside(0, bytes, block.block.bytes())?;
        let start = block.block.at(0, bytes).ok_or("a table beyond the end of its block")?;
        // Another number for each table: a block that is used again too early shows.
        let mark = self.instance.lock().new_id() as u8;
        // SAFETY: `at` has checked the range; the block is the caller's until the position is reached.
        unsafe { start.write_bytes(mark, bytes) };
        Ok(Op::Table { block: block.id, start: HostPointer(start), bytes, mark })
    }

    /// Whether kernels may write there: in staging, and in registered memory.
    fn is_reached_by_kernels(&self, side: &HostSide<'_>, bytes: usize) -> bool {
        let is_registered = |start| self.instance.lock().registration(start, bytes, true).is_some();
        matches!(side, HostSide::Staging(..)) || side.destination().is_some_and(is_registered)
    }

    /// A staging block that may be used like that: of this device, or of one whose blocks it reads.
    fn usable_block<'a>(&self, block: &'a dyn Staging, writes: bool) -> Result<&'a LateStaging, String> {
        let any: &dyn Any = block;
        let block = any
            .downcast_ref::<LateStaging>()
            .filter(|block| Arc::ptr_eq(&block.instance, &self.instance))
            .filter(|block| block.device == self.device || (!writes && self.reads_blocks_of(block.device)))
            .ok_or("a copy of a staging block of another device")?;
        if self.instance.config.mapped_staging {
            self.check_mapped(block, writes)?;
        }
        Ok(block)
    }

    fn device_end(
        &self,
        buffer: &dyn Buffer,
        offset: usize,
        bytes: usize,
        peers: bool,
    ) -> Result<End, String> {
        if !self.instance.config.copy_granularity.divides(offset) {
            return Err(format!("a copy at offset {offset} of a buffer, which is no multiple"));
        }
        self.place(buffer, offset, bytes, peers)
    }

    /// Anywhere in a buffer.
    fn place(&self, buffer: &dyn Buffer, offset: usize, bytes: usize, peers: bool) -> Result<End, String> {
        let any: &dyn Any = buffer;
        let buffer = any
            .downcast_ref::<LateBuffer>()
            .filter(|buffer| Arc::ptr_eq(&buffer.instance, &self.instance))
            .filter(|buffer| buffer.device == self.device || peers)
            .ok_or("a copy of a buffer that the device does not reach")?;
        inside(offset, bytes, buffer.bytes)?;
        if buffer.open.load(Ordering::Acquire) {
            return Err("a copy of a buffer that is open for the host".to_owned());
        }
        Ok(End::Device { allocation: buffer.allocation, offset: buffer.offset + offset })
    }

    fn host(&self, side: HostSide<'_>, bytes: usize, writes: bool) -> Result<End, String> {
        match side {
            HostSide::Buffer(buffer, offset) => {
                let start = if writes { side.destination() } else { side.source() };
                let start = HostPointer(start.ok_or("a copy of host memory that may not be used like that")?);
                inside(offset, bytes, buffer.bytes())?;
                Ok(match self.instance.lock().registration(start.0, bytes, writes) {
                    Some(id) => End::Registered { id, start },
                    None => End::Host(start),
                })
            }
            HostSide::Staging(block, offset) => {
                inside(offset, bytes, block.bytes())?;
                let block = self.usable_block(block, writes)?;
                let start =
                    HostPointer(block.block.at(offset, bytes).ok_or("a copy beyond the end of a block")?);
                Ok(End::Staging { block: block.id, start })
            }
        }
    }
}

impl LateBackend {
    /// What a device whose staging is mapped demands.
    fn check_mapped(&self, block: &LateStaging, writes: bool) -> Result<(), String> {
        if writes != (block.direction == Direction::Download) {
            return Err("a copy of a staging block against its direction".to_owned());
        }
        match self.instance.lock().is_occupied(block.id) {
            true => Err("a second submission that uses a mapped staging block".to_owned()),
            false => Ok(()),
        }
    }
}

fn inside(offset: usize, bytes: usize, limit: usize) -> Result<(), String> {
    match offset.checked_add(bytes) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(format!("a copy of {bytes} bytes at {offset} of {limit} bytes")),
    }
}

/// Whether a real driver might block in this copy: its host side is neither staging nor pinned.
pub(super) fn blocks(op: &CopyOp<'_>, config: &LateConfig) -> bool {
    let side = match op {
        CopyOp::Upload { from, .. } => from,
        CopyOp::Download { to, .. } => to,
        CopyOp::Gather { to: GatherTo::Host(to), .. } => to,
        _ => return false,
    };
    match side {
        HostSide::Staging(..) => false,
        HostSide::Buffer(buffer, _) => config.mapped_staging || buffer.kind() != MemoryKind::Pinned,
    }
}

/// Counts a submission; returns how many bytes it moves.
pub(super) fn count(counters: &mut Counters, ops: &[CopyOp<'_>], copies: usize) -> usize {
    counters.submissions += 1;
    counters.copies += copies as u64;
    let mut moved = 0;
    for op in ops {
        let counter = match op {
            CopyOp::Upload { .. }
            | CopyOp::UploadCast { .. }
            | CopyOp::Scatter { from: ScatterFrom::Staging(_), .. } => Some(&mut counters.bytes_up),
            CopyOp::Download { .. } => Some(&mut counters.bytes_down),
            CopyOp::Gather { to: GatherTo::Host(_), .. } => Some(&mut counters.bytes_down),
            CopyOp::Between { .. } | CopyOp::Gather { .. } | CopyOp::Scatter { .. } => {
                Some(&mut counters.bytes_between)
            }
            _ => None,
        };
        // What is cast crosses the link as it was.
        let bytes = match op {
            CopyOp::UploadCast { cast, bytes, .. } => {
                bytes / cast.to_dtype().size() * cast.from_dtype().size()
            }
            op => op.bytes(),
        };
        if let Some(counter) = counter {
            *counter += bytes as u64;
        }
        moved += bytes;
    }
    moved
}
