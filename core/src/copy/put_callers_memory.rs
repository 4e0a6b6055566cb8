//! Puts memory of the caller into the structure that a copy fills it for, or back where it was.

use crate::copy::take_and_put::{put_all, visit};
use crate::error::Result;
use crate::job::callers_memory::Preallocated;
use crate::tensor::storage::Storage;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

/// Puts the memory back into the structure that copy number `copy` has taken it out of.
pub(crate) fn give_back<S: TensorTree>(held: &Preallocated, into: &mut S, copy: u32) -> Result<()> {
    put(held, into, copy, |_, tensor, storage, offset| tensor.put_back(storage, offset))
}

/// Puts back what copy number `copy` has taken out of `into`, which may be a part of it: a pairing that was refused has taken
/// tensors in the order of the other structure.
pub(crate) fn restore<S: TensorTree>(held: &Preallocated, into: &mut S, copy: u32) {
    let storages = held.storages();
    // It stops where the structure does.
    let _ = visit(into, |tensor| {
        let mark = tensor.mark().filter(|mark| mark.copy == copy);
        if let Some((storage, offset)) = mark.and_then(|mark| held.find(mark.leaf as usize, &storages)) {
            tensor.put_back(storage.clone(), offset);
        }
        Ok(())
    });
}

/// Puts the memory into the structure whose tensors copy number `copy` has taken, to fill it with them.
pub(crate) fn place<S: TensorTree>(held: &Preallocated, value: &mut S, copy: u32) -> Result<()> {
    put(held, value, copy, |index, tensor, storage, offset| {
        if held.is_cast_into() {
            held.dtype(index).into_iter().for_each(|dtype| tensor.become_contiguous(dtype));
        }
        match held.strided(index) {
            None => tensor.put_copy(storage, offset, true),
            Some(layout) => {
                tensor.lie_as(layout);
                tensor.put_copy(storage, offset, false)
            }
        }
    })
}

fn put<S: TensorTree>(
    held: &Preallocated,
    structure: &mut S,
    copy: u32,
    put: impl Fn(usize, &mut Tensor, Storage, usize) -> bool,
) -> Result<()> {
    // The visit is a program's code: no lock is held meanwhile.
    let storages = held.storages();
    put_all(structure, copy, held.len(), |index, tensor| {
        held.find(index, &storages)
            .is_some_and(|(storage, offset)| put(index, tensor, storage.clone(), offset))
    })
}
