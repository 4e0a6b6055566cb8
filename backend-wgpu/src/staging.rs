//! Staging blocks: buffers that are mapped while no copy uses them.

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use transship_core::backend::{Direction, Staging, WriteWindow};
use transship_core::{Error, Result};
use wgpu::{BufferUsages, BufferView, BufferViewMut, MapMode};

use crate::context::Context;
use crate::timeline::Signal;

/// A buffer for copies in one direction, which the host has access to unless a copy uses it.
pub(crate) struct WgpuStaging(Arc<Block>);

/// What the block shares with the callback that finds it mapped again.
pub(crate) struct Block {
    context: Arc<Context>,
    state: Mutex<State>,
    buffer: wgpu::Buffer,
    direction: Direction,
    bytes: usize,
    /// Whether it counts as staging memory.
    counted: bool,
}

/// Whether the host has access. A view keeps wgpu from unmapping the memory that its pointer goes to.
enum State {
    /// A submission uses it, or it was never mapped.
    Away,
    Writable(BufferViewMut),
    Readable(BufferView),
}

impl WgpuStaging {
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize, direction: Direction) -> Result<Self> {
        let block = Self::create(context, bytes, direction, true)?;
        context.counters().cells.staging_allocated(bytes);
        Ok(block)
    }

    /// For bytes on their way into ordinary memory, which have no other way: it goes with the submission, and is in no budget.
    pub(crate) fn landing(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        Self::create(context, bytes, Direction::Download, false)
    }

    fn create(context: &Arc<Context>, bytes: usize, direction: Direction, counted: bool) -> Result<Self> {
        let size = bytes.max(1).checked_next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT as usize);
        let too_large = || Error::TooLarge {
            device: context.id(),
            kind: "staging",
            requested: bytes,
            limit: isize::MAX.unsigned_abs(),
        };
        let size = size.ok_or_else(too_large)?;
        let buffer = match direction {
            Direction::Upload => {
                let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
                context.create_buffer(size, usage, "staging", true)?
            }
            Direction::Download => {
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                context.create_buffer(size, usage, "staging", false)?
            }
        };
        let (context, state) = (context.clone(), Mutex::new(State::Away));
        let block = Block { context, state, buffer, direction, bytes, counted };
        if direction == Direction::Upload && !block.open() {
            block.context.timeline().lose("a new staging block is not mapped");
            block.context.check()?;
        }
        Ok(Self(Arc::new(block)))
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.0
    }
}

impl Block {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Takes the memory from the host, for a submission; in an error scope, since the device may be destroyed by now.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Away);
        if !matches!(before, State::Away) {
            drop(before);
            self.buffer.unmap();
        }
    }

    /// Has the block mapped behind the commands of `encoder`.
    pub(crate) fn reopen_behind(self: &Arc<Self>, encoder: &wgpu::CommandEncoder, signal: Signal) {
        let block = self.clone();
        let mode = match self.direction {
            Direction::Upload => MapMode::Write,
            Direction::Download => MapMode::Read,
        };
        encoder.map_buffer_on_submit(&self.buffer, mode, .., move |mapped| {
            match mapped.is_ok() && block.open() {
                true => signal.give(),
                false => signal.fail("a staging block could not be mapped again"),
            }
        });
    }

    /// Where the memory is, if the host has access.
    pub(crate) fn start(&self) -> Option<NonNull<u8>> {
        let mut state = self.state.lock();
        // A device that was destroyed has freed its memory, mapped or not, and says so only to those who ask for a view.
        *state = match std::mem::replace(&mut *state, State::Away) {
            State::Away => State::Away,
            before => {
                drop(before);
                self.view()
            }
        };
        match &mut *state {
            State::Away => None,
            State::Writable(view) => Some(view.slice(..).as_raw_element_ptr()),
            State::Readable(view) => NonNull::new(view.as_ptr().cast_mut()),
        }
    }

    /// Gives the memory, which is mapped, to the host; `false` if it is not.
    fn open(&self) -> bool {
        let mut state = self.state.lock();
        *state = self.view();
        !matches!(*state, State::Away)
    }

    fn view(&self) -> State {
        match self.direction {
            Direction::Upload => self.buffer.get_mapped_range_mut(..).map_or(State::Away, State::Writable),
            Direction::Download => self.buffer.get_mapped_range(..).map_or(State::Away, State::Readable),
        }
    }
}

// SAFETY: the pointers go to mapped memory of a buffer that the block owns and nobody else can reach. It stays mapped
// until `close`, which only `copy::submit` calls, and it is freed with the block, or with the device (see `start`).
unsafe impl Staging for WgpuStaging {
    fn bytes(&self) -> usize {
        self.0.bytes
    }

    fn is_pinned(&self) -> bool {
        true
    }

    fn window(&self) -> Option<WriteWindow> {
        let start = self.0.start().filter(|_| self.0.direction == Direction::Upload)?;
        // SAFETY: the mapping has so many bytes, and is the caller's until the block is submitted.
        Some(unsafe { WriteWindow::new(start, self.0.bytes) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        self.0.start().filter(|_| self.0.direction == Direction::Download)
    }
}

impl Drop for WgpuStaging {
    fn drop(&mut self) {
        if self.0.counted {
            self.0.context.counters().cells.staging_freed(self.0.bytes);
        }
    }
}
