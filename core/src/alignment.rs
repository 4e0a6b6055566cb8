//! Alignment: a power of two, by construction.

use std::fmt;

/// A number of bytes that is a power of two.
///
/// ```
/// use transship_core::Alignment;
///
/// let alignment = Alignment::new(16).unwrap();
/// assert_eq!(alignment.round_up(17), Some(32));
/// assert_eq!(Alignment::new(12), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Alignment(u8);

impl Alignment {
    /// One byte: no alignment at all.
    pub const ONE: Self = Self(0);

    /// An alignment of so many bytes, `None` if `bytes` is no power of two.
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes.trailing_zeros() as u8)) } else { None }
    }

    /// So many bytes.
    pub const fn bytes(self) -> usize {
        1 << self.0
    }

    /// The next multiple, `None` if it does not fit into `usize`.
    pub const fn round_up(self, value: usize) -> Option<usize> {
        match value.checked_add(self.bytes() - 1) {
            Some(sum) => Some(sum & !(self.bytes() - 1)),
            None => None,
        }
    }

    /// Whether `value` is a multiple.
    pub const fn divides(self, value: usize) -> bool {
        value & (self.bytes() - 1) == 0
    }
}

impl fmt::Debug for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}
