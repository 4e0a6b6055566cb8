//! What a worker says of the leaves of a batch: a few bytes for each, which pass from process to process.

use smallvec::SmallVec;

use crate::leaf::{Leaf, Order, append_row_major};
use crate::place::Place;

/// An array, and not a tensor.
const ARRAY: u8 = 1;
/// Its strides follow.
const STRIDES: u8 = 2;

/// The leaves of a batch, one behind the other.
#[derive(Default)]
pub struct Description {
    bytes: Vec<u8>,
    count: usize,
}

/// A leaf, and its offset in the slot in bytes.
pub struct Described<'a> {
    pub leaf: &'a Leaf,
    pub offset: usize,
    pub is_array: bool,
}

impl Description {
    /// Adds a leaf, and gives its number.
    pub fn add(&mut self, Described { leaf, offset, is_array }: &Described<'_>) -> usize {
        let has_strides = leaf.order != Order::Contiguous;
        let flags = (u8::from(*is_array) * ARRAY) | (u8::from(has_strides) * STRIDES);
        self.bytes.push(flags);
        self.push(leaf.element() as u64);
        self.push(leaf.rank() as u64);
        let numbers = if has_strides { &leaf.numbers[..] } else { leaf.shape() };
        // Of a leaf none is negative.
        numbers.iter().for_each(|number| self.push(*number as u64));
        self.push(*offset as u64);
        self.count += 1;
        self.count - 1
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether each leaf is an array, its offset and what it is, with no address yet; `None`, and then nothing more, where the bytes are none.
    pub fn read(bytes: &[u8]) -> impl Iterator<Item = Option<(bool, usize, Leaf)>> {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let read = leaf_of(&mut rest);
            if read.is_none() {
                rest = &[];
            }
            Some(read)
        })
    }

    /// Seven bits in a byte, the lowest first; the eighth says that more follow.
    fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

fn leaf_of(rest: &mut &[u8]) -> Option<(bool, usize, Leaf)> {
    let flags = *rest.split_off_first()?;
    let element = usize::try_from(number_of(rest)?).ok()?;
    let rank = usize::try_from(number_of(rest)?).ok()?;
    let has_strides = flags & STRIDES != 0;
    let count = if has_strides { rank.checked_mul(2)? } else { rank };
    // A number has one byte at least.
    if count > rest.len() {
        return None;
    }
    let mut numbers: SmallVec<[i64; 8]> = SmallVec::new();
    for _ in 0..count {
        numbers.push(i64::try_from(number_of(rest)?).ok()?);
    }
    if !has_strides {
        append_row_major(&mut numbers);
    }
    let offset = usize::try_from(number_of(rest)?).ok()?;
    // No address is 0: that of the slot is added.
    Some((flags & ARRAY != 0, offset, Leaf::new(1, Place::Host, element, numbers)?))
}

fn number_of(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
