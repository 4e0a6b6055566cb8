//! Where tensors lie in the memory of a device, and what each block carries there: arithmetic, no device.

use transship_core::fill::Part;

use crate::read::Piece;
use crate::sources::Chosen;

/// A tensor of so many bytes has an allocation of its own.
pub(crate) const ALONE: usize = 1 << 20;
/// What tensors are packed into has at most so many bytes.
const PACKED: usize = 64 << 20;

/// Where tensors lie.
pub(crate) struct Packed {
    pub(crate) memories: Vec<Memory>,
    /// By the number of the tensor: the number of its memory, and its offset there.
    pub(crate) places: Vec<(usize, usize)>,
}

/// One allocation.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: usize,
    /// The numbers of the tensors, in order, without gaps but for padding.
    pub(crate) tensors: Vec<usize>,
}

impl Packed {
    /// Places each tensor at a multiple of `alignment`. Small ones share memory of at most `largest` bytes. `Err` has the number of a tensor
    /// that is too large to be counted.
    pub(crate) fn new(tensors: &[Chosen], alignment: usize, largest: usize) -> Result<Self, usize> {
        let (mut memories, mut places) = (Vec::<Memory>::new(), Vec::with_capacity(tensors.len()));
        let mut shared = None;
        for (number, tensor) in tensors.iter().enumerate() {
            let bytes = tensor.bytes().checked_next_multiple_of(alignment).ok_or(number)?;
            let room = |memory: &Memory| memory.bytes + bytes <= PACKED.min(largest);
            let known = shared.filter(|_| bytes < ALONE);
            let known = known.filter(|shared| memories.get(*shared).is_some_and(room));
            let memory = known.unwrap_or(memories.len());
            if known.is_none() {
                memories.push(Memory::default());
                shared = if bytes < ALONE { Some(memory) } else { shared };
            }
            if let Some(target) = memories.get_mut(memory) {
                places.push((memory, target.bytes));
                target.bytes += bytes;
                target.tensors.push(number);
            }
        }
        Ok(Self { memories, places })
    }

    /// What goes through one block each, of at most `block` bytes: a multiple of the alignment.
    pub(crate) fn segments(&self, tensors: &[Chosen], alignment: usize, block: usize) -> Vec<Segment> {
        let mut cutter = Cutter { block, done: Vec::new(), current: Segment::default(), filled: 0 };
        for (number, memory) in self.memories.iter().enumerate() {
            cutter.begin(number, 0);
            for tensor in &memory.tensors {
                if let Some(chosen) = tensors.get(*tensor) {
                    cutter.add(*tensor, chosen, alignment);
                }
            }
        }
        cutter.end();
        cutter.done
    }
}

/// What goes through one block.
#[derive(Default)]
pub(crate) struct Segment {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) parts: Vec<Part>,
}

struct Cutter {
    block: usize,
    done: Vec<Segment>,
    current: Segment,
    filled: usize,
}

impl Cutter {
    /// What follows goes to `to_offset` of this memory.
    fn begin(&mut self, memory: usize, to_offset: usize) {
        self.current.parts.push(Part { memory, to_offset, from_offset: self.filled, bytes: 0 });
    }

    fn add(&mut self, tensor: usize, chosen: &Chosen, alignment: usize) {
        let (mut first, mut bytes) = (0, chosen.bytes());
        while bytes > 0 {
            if self.filled == self.block {
                self.next_block();
            }
            let now = bytes.min(self.block - self.filled);
            // Blocks are made of whole units of alignment, and each part begins with one.
            let padding = now.next_multiple_of(alignment) - now;
            // Such units are whole elements.
            let stored = chosen.stored_bytes(now);
            self.current.pieces.push(Piece { tensor, first, bytes: stored, padding });
            self.filled += now + padding;
            if let Some(part) = self.current.parts.last_mut() {
                part.bytes += now + padding;
            }
            first += stored;
            bytes -= now;
        }
    }

    fn next_block(&mut self) {
        let last = self.current.parts.last().copied();
        self.end();
        if let Some(Part { memory, to_offset, bytes, .. }) = last {
            self.begin(memory, to_offset + bytes);
        }
    }

    fn end(&mut self) {
        let mut segment = std::mem::take(&mut self.current);
        segment.parts.retain(|part| part.bytes > 0);
        if !segment.parts.is_empty() {
            self.done.push(segment);
        }
        self.filled = 0;
    }
}
