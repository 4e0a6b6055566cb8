//! Lists of pieces of memory, and what is written between them.

use std::ffi::c_int;

use crate::cuda;

pub(crate) const HOST: c_int = 0;
pub(crate) const GPU: c_int = 1;

/// A piece of memory of a kind, on the device of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) kind: c_int,
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) device: u64,
}

/// What descriptors are added to.
pub(crate) struct List {
    pub(crate) kind: c_int,
    pub(crate) segments: Vec<Segment>,
}

impl Segment {
    pub(crate) fn has(&self, other: &Self) -> bool {
        let ends = |segment: &Self| segment.address.checked_add(segment.bytes);
        (self.kind, self.device) == (other.kind, other.device)
            && self.address <= other.address
            && ends(other).is_some_and(|end| Some(end) <= ends(self))
    }

    /// Whether the library takes it.
    pub(crate) fn may_be_registered(&self) -> bool {
        match self.kind {
            HOST => self.address != 0,
            GPU => {
                cuda::is_current() && cuda::is_whole_allocation(self.address as u64, self.bytes, self.device)
            }
            _ => false,
        }
    }

    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Self {
        Self { address: self.address + offset, bytes, ..*self }
    }

    /// Copies now, whatever streams do. `false` where the memory cannot be reached.
    ///
    /// # Safety
    ///
    /// Memory of the host is mapped on both sides.
    pub(crate) unsafe fn write_to(&self, to: &Self) -> bool {
        let bytes = match self.kind {
            // SAFETY: the caller's promise.
            HOST => Some(unsafe { std::slice::from_raw_parts(at(self), self.bytes) }.to_vec()),
            _ => cuda::read(self.address as u64, self.bytes),
        };
        let Some(bytes) = bytes else { return false };
        if to.kind == GPU {
            return cuda::write(to.address as u64, &bytes).is_some();
        }
        // SAFETY: the caller's promise.
        unsafe { at(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }
}

fn at(segment: &Segment) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(segment.address)
}
