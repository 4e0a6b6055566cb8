//! Leaves as the library is told of them. Those of a device, and of a slot of a loader, that are neighbours, there and in the chunk that they go to, are
//! one piece.

use transship::MemoryKind;

use crate::leaf::{Leaf, Order};
use crate::plan::To;

/// Allocations of devices begin at multiples of so many bytes: what lies in one such line lies in one allocation. What lies further apart is no
/// neighbour in a slot either.
const LINE: u64 = 256;

/// What is copied as a whole, and where it goes.
pub struct Piece {
    /// Where its first byte is.
    pub address: u64,
    /// Without gaps.
    pub bytes: usize,
    /// Page-locked memory needs no staging.
    pub kind: MemoryKind,
    pub joins: Joins,
    pub to: To,
    /// The leaf, if its elements have gaps.
    pub strided: Option<Box<Leaf>>,
}

/// With which others a piece may be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    Nothing,
    /// Others of its device.
    OnDevice,
    /// Others of the slot that begins there: what is between them is of the slot as well.
    InSlot(u64),
}

impl Piece {
    pub fn of(leaf: &Leaf, kind: MemoryKind, joins: Joins, to: To) -> Self {
        let strided = (leaf.order == Order::Strided).then(|| Box::new(leaf.clone()));
        Self { address: leaf.address, bytes: leaf.bytes, kind, joins, to, strided }
    }

    /// Makes `next` a part of this one. What is between them there is read, and goes to padding of the chunk.
    /// `false` if they are no neighbours.
    pub fn join(&mut self, next: &Self) -> bool {
        if self.joins == Joins::Nothing || self.joins != next.joins {
            return false;
        }
        let Some(distance) = next.address.checked_sub(self.address) else { return false };
        let end = self.address.saturating_add(self.bytes as u64);
        let is_in_line = next.address - next.address % LINE < end;
        let lies_behind = distance >= self.bytes as u64 && is_in_line;
        let goes_behind = next.to.memory == self.to.memory
            && next.to.offset.checked_sub(self.to.offset).is_some_and(|there| there as u64 == distance);
        let is_flat = self.strided.is_none() && next.strided.is_none();
        if lies_behind && goes_behind && is_flat {
            // Not more than the chunk has.
            self.bytes = distance as usize + next.bytes;
            return true;
        }
        false
    }
}
