//! Tensors that lie row by row, without gaps, as most do. They are looked at where they are, and described once, where the description stays: to move it costs a
//! fifth of what it takes to read one.

use pyo3::prelude::*;
use transship::dlpack::DLTensor;

use crate::dtype;
use crate::leaf::Leaf;
use crate::leaf_slots::{At, Slot};
use crate::place::Place;

/// More dimensions are looked at elsewhere.
const DIMENSIONS: usize = 4;

/// A tensor of somebody else that may lie so, whose sizes and strides are read before anything else runs.
#[derive(Clone, Copy)]
pub struct RowByRow<'a> {
    /// Where the first element is.
    pub address: u64,
    pub place: Place,
    /// Of [`dtype::ALL`].
    pub element: usize,
    shape: &'a [i64],
    strides: &'a [i64],
}

impl<'a> RowByRow<'a> {
    /// `None` for a tensor of more than four dimensions, or without memory. Whether it lies row by row is seen when it is [pushed](Self::push).
    #[inline(always)]
    pub fn of(
        address: u64,
        place: Place,
        element: usize,
        shape: &'a [i64],
        strides: &'a [i64],
    ) -> Option<Self> {
        let may_be = shape.len() <= DIMENSIONS && strides.len() == shape.len() && address != 0;
        may_be.then_some(Self { address, place, element, shape, strides })
    }

    /// Reads a struct of DLPack.
    ///
    /// # Safety
    ///
    /// `tensor` is valid, its numbers are as many as it says, and they live for so long.
    #[inline]
    pub unsafe fn read(tensor: &DLTensor) -> Option<Self> {
        let rank = usize::try_from(tensor.ndim).ok()?;
        if rank > 0 && (tensor.shape.is_null() || tensor.strides.is_null()) {
            return None;
        }
        let slice = |start: *mut i64| match rank {
            0 => &[][..],
            // SAFETY: the caller's promise; it is not null.
            _ => unsafe { std::slice::from_raw_parts(start, rank) },
        };
        let address = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
        let (place, element) = (Place::of(tensor.device)?, dtype::number_of(tensor.dtype)?);
        Self::of(address, place, element, slice(tensor.shape), slice(tensor.strides))
    }

    /// Appends it to the leaves of a structure. It is read from `object`, which is given back, and nothing is appended, for a tensor without elements, or that does
    /// not lie row by row. Its numbers are looked at only after they are copied: PyTorch lets go of the GIL where it changes them, and a result of other sizes than those that
    /// were looked at would reach beyond its memory.
    #[inline(always)]
    #[must_use]
    pub fn push(self, object: Py<PyAny>, slots: &mut Vec<Slot>) -> Option<Py<PyAny>> {
        let Self { address, place, element, shape, strides } = self;
        // Made where it stays: what is pushed is made elsewhere, and moved if there is room.
        slots.reserve(1);
        let leaf = Leaf::to_be_filled(address, place, element, 2 * shape.len());
        let Some(free) = slots.spare_capacity_mut().first_mut() else { return Some(object) };
        free.write(Slot::Leaf(At::Source(object), leaf));
        // SAFETY: there was room for one more, which was written just now.
        unsafe { slots.set_len(slots.len() + 1) };
        let Some(Slot::Leaf(_, leaf)) = slots.last_mut() else { return None };
        match shape.len() {
            0 => {}
            1 => write::<1>(&mut leaf.numbers, shape, strides),
            2 => write::<2>(&mut leaf.numbers, shape, strides),
            3 => write::<3>(&mut leaf.numbers, shape, strides),
            _ => write::<DIMENSIONS>(&mut leaf.numbers, shape, strides),
        }
        if let Some(bytes) = bytes_row_by_row(leaf) {
            leaf.bytes = bytes;
            return None;
        }
        match slots.pop() {
            Some(Slot::Leaf(At::Source(object), _)) => Some(object),
            _ => None,
        }
    }
}

/// The bytes of all elements; `None` if there are none, or they lie otherwise.
#[inline(always)]
fn bytes_row_by_row(leaf: &Leaf) -> Option<usize> {
    let mut count = 1_i64;
    for (size, stride) in leaf.shape().iter().zip(leaf.strides()).rev() {
        if *size == 1 && *stride > 0 {
            continue;
        }
        // A size that is none is looked at elsewhere as well.
        if *size <= 1 || *stride != count {
            return None;
        }
        count = count.checked_mul(*size)?;
    }
    let bytes = usize::try_from(count).ok()?.checked_mul(leaf.type_of_elements().bytes())?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

/// So many of them, known when it is compiled: without a call.
#[inline(always)]
fn write<const RANK: usize>(numbers: &mut [i64], shape: &[i64], strides: &[i64]) {
    numbers[..RANK].copy_from_slice(&shape[..RANK]);
    numbers[RANK..2 * RANK].copy_from_slice(&strides[..RANK]);
}
