//! The leaves that one copy takes: those of one place, or a part of them.

use pyo3::prelude::*;

use crate::leaf::{Leaf, Order};
use crate::leaf_slots::{At, Slot};
use crate::place::Place;
use crate::plan::{Packing, Size};
use crate::torch::Torch;

/// The first part of the leaves that share no chunk has so many, and so many bytes. Each takes 4 to 5 us until it is handed over, in which the link takes 200 KB.
const LEAST_LEAVES: usize = 16;
const LEAST_BYTES: usize = 16 << 20;
/// The next part is so many times as large. Copies in parts of 16, 64 and 220 tensors of 1 MiB are as fast as one, those of 60 each 8 % slower (H200).
const GROWTH: usize = 4;

/// The numbers of the leaves to be copied, by where they come from. Of those without elements PyTorch makes the copies, where it fills memory.
pub fn by_place(
    py: Python<'_>,
    torch: Option<&Torch>,
    target: Place,
    packing: Packing,
    slots: &mut [Slot],
) -> PyResult<Vec<OfPlace>> {
    let mut groups: Vec<OfPlace> = Vec::new();
    let all = slots.len();
    for (number, slot) in slots.iter_mut().enumerate() {
        let Slot::Leaf(At::Source(_), leaf) = slot else { continue };
        if let Some(torch) = torch.filter(|_| leaf.bytes == 0) {
            *slot = Slot::There(torch.allocate_like(py, &leaf.copied(), target, false)?.unbind());
            continue;
        }
        match groups.iter_mut().find(|group| group.place == leaf.place) {
            Some(group) => group.push(number, leaf),
            None => {
                let mut group = OfPlace::with_room(leaf.place, all - number);
                group.push(number, leaf);
                groups.push(group);
            }
        }
    }
    groups.sort_unstable_by_key(|group| group.place);
    Ok(groups.into_iter().flat_map(|group| group.in_parts(packing)).collect())
}

/// Leaves of one place.
pub struct OfPlace {
    pub place: Place,
    /// Their numbers among the slots.
    pub leaves: Vec<usize>,
    pub sizes: Vec<Size>,
}

impl OfPlace {
    fn with_room(place: Place, leaves: usize) -> Self {
        Self { place, leaves: Vec::with_capacity(leaves), sizes: Vec::with_capacity(leaves) }
    }

    /// Parts that are started one after the other: while one is copied, PyTorch makes the tensors that the next one fills. Each is larger than the one
    /// before, so that the first begins soon, and there are few. What shares chunks is in the first.
    fn in_parts(self, packing: Packing) -> Vec<Self> {
        let is_alone = |size: &Size| !packing.on || !size.is_packable();
        if self.sizes.iter().filter(|size| is_alone(size)).count() < 2 * LEAST_LEAVES {
            return vec![self];
        }
        let mut parts = vec![Self::with_room(self.place, self.leaves.len())];
        let (mut leaves, mut bytes, mut factor) = (0, 0_usize, 1_usize);
        for (number, size) in self.leaves.into_iter().zip(self.sizes) {
            let alone = is_alone(&size);
            if alone
                && leaves >= factor.saturating_mul(LEAST_LEAVES)
                && bytes >= factor.saturating_mul(LEAST_BYTES)
            {
                parts.push(Self::with_room(self.place, leaves));
                (leaves, bytes, factor) = (0, 0, factor.saturating_mul(GROWTH));
            }
            if alone {
                (leaves, bytes) = (leaves + 1, bytes.saturating_add(size.bytes));
            }
            let part = if alone { parts.len() - 1 } else { 0 };
            parts[part].leaves.push(number);
            parts[part].sizes.push(size);
        }
        parts
    }

    #[inline]
    fn push(&mut self, number: usize, leaf: &Leaf) {
        self.leaves.push(number);
        self.sizes.push(Size {
            bytes: leaf.bytes,
            // Of 16 bytes at most.
            element: leaf.type_of_elements().bits / 8,
            is_contiguous: leaf.order == Order::Contiguous,
            address: leaf.address,
        });
    }
}
