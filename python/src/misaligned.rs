//! Tensors whose elements lie across the boundaries of their size: PyTorch's own functions may end the process for them.

use pyo3::prelude::*;

use crate::leaf::{Leaf, Order};
use crate::place::Place;
use crate::torch::Torch;

/// A tensor of the host as PyTorch allocates it, with the elements of `leaf`.
pub fn aligned<'py>(py: Python<'py>, torch: &Torch, leaf: &Leaf) -> PyResult<Bound<'py, PyAny>> {
    let copied = leaf.copied();
    let tensor = torch.allocate_like(py, &copied, Place::Host, false)?;
    let from: *const u8 = std::ptr::with_exposed_provenance(leaf.address as usize);
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(torch.address_of(&tensor)? as usize);
    // SAFETY: the leaf is alive and on the host; the tensor is new, and has as many bytes.
    unsafe {
        match leaf.order {
            Order::Contiguous | Order::Dense => to.copy_from_nonoverlapping(from, leaf.bytes),
            Order::Strided => copy_elements(leaf, from, to),
        }
    }
    Ok(tensor)
}

/// Copies the elements of `leaf` row by row.
///
/// # Safety
///
/// They lie at `from`, and `to`, in other memory, has room for them.
unsafe fn copy_elements(leaf: &Leaf, from: *const u8, to: *mut u8) {
    let size = leaf.type_of_elements().bytes();
    let mut at = vec![0_i64; leaf.rank()];
    for done in (0..leaf.bytes).step_by(size) {
        let place: i64 = at.iter().zip(leaf.strides()).map(|(at, stride)| at * stride).sum();
        // SAFETY: `at` lies within the shape, and no stride is negative (`Leaf::new`).
        unsafe { to.add(done).copy_from_nonoverlapping(from.add(place as usize * size), size) };
        for (at, end) in at.iter_mut().zip(leaf.shape()).rev() {
            *at += 1;
            if *at < *end {
                break;
            }
            *at = 0;
        }
    }
}
