//! What kind of memory leaves of the host lie in.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use transship::MemoryKind;

use crate::leaf::Leaf;
use crate::plan::{LARGEST_PACKED, Size};
#[cfg(target_os = "linux")]
use crate::slots::AllSlots;
use crate::torch::Torch;

/// Whom one call asks.
pub struct Kinds<'a> {
    torch: Option<&'a Torch>,
    #[cfg(target_os = "linux")]
    slots: AllSlots,
}

impl<'a> Kinds<'a> {
    pub fn now(torch: Option<&'a Torch>) -> Self {
        Self {
            torch,
            #[cfg(target_os = "linux")]
            slots: AllSlots::now(),
        }
    }

    /// Whether the memory of a leaf on the host is page-locked. Asked where that matters: small ones are staged anyway. And the address of
    /// the slot that it lies in, if it does.
    pub fn of(&self, object: &Bound<'_, PyAny>, leaf: &Leaf) -> PyResult<(MemoryKind, Option<u64>)> {
        if let Some((slot, kind)) = self.slot_of(leaf.address, leaf.bytes) {
            return Ok((kind, Some(slot)));
        }
        let is_large = leaf.bytes > LARGEST_PACKED && self.torch.is_some_and(|torch| torch.is_tensor(object));
        let is_pinned = is_large && is_pinned(object)?;
        Ok((if is_pinned { MemoryKind::Pinned } else { MemoryKind::Pageable }, None))
    }

    /// Whether leaves may lie in slots.
    pub fn has_slots(&self) -> bool {
        #[cfg(target_os = "linux")]
        return !self.slots.is_empty();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Whether all of these lie in slots.
    pub fn are_in_slots<'s>(&self, mut leaves: impl Iterator<Item = &'s Size>) -> bool {
        leaves.all(|leaf| self.slot_of(leaf.address, leaf.bytes).is_some())
    }

    #[cfg(target_os = "linux")]
    fn slot_of(&self, address: u64, bytes: usize) -> Option<(u64, MemoryKind)> {
        self.slots.slot_of(address, bytes)
    }

    #[cfg(not(target_os = "linux"))]
    fn slot_of(&self, _address: u64, _bytes: usize) -> Option<(u64, MemoryKind)> {
        None
    }
}

/// Modes and classes of the program are asked as well, and may refuse; what such a tensor has is staged.
fn is_pinned(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let answer = tensor.call_method0("is_pinned").and_then(|answer| answer.is_truthy());
    answer.or_else(
        |error| if error.is_instance_of::<PyException>(tensor.py()) { Ok(false) } else { Err(error) },
    )
}
