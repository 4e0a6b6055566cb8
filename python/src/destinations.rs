//! Memory of the program that a copy fills: which tensors can be filled, and where they lie.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::dlpack;
use crate::leaf::Leaf;
use crate::modules;
use crate::ours::{Kind, Ours};
use crate::place::Place;
use crate::tensor::Tensor;
use crate::torch::Torch;
use crate::tree::{Found, Rules};

/// A tensor to be filled.
pub struct Destination {
    /// As the program has it.
    pub object: Py<PyAny>,
    /// What keeps its memory.
    pub keeper: Py<PyAny>,
    pub leaf: Leaf,
    /// Where the allocation starts that it is a part of, if that is known.
    pub allocation: Option<u64>,
}

/// The tensors of a structure that is copied into.
pub struct Destinations<'py> {
    torch: Option<&'py Torch>,
    /// Whether PyTorch records what is done to tensors.
    records: bool,
    ours: Ours<'py>,
    pub found: Vec<Destination>,
}

impl<'py> Destinations<'py> {
    pub fn new(py: Python<'py>, torch: Option<&'py Torch>) -> PyResult<Self> {
        let records = torch.map(|torch| torch.records(py)).transpose()?.unwrap_or(false);
        Ok(Self { torch, records, ours: Ours::new(py, torch, Place::Host, true, None)?, found: Vec::new() })
    }

    fn of_torch(&self, torch: &Torch, object: &Bound<'py, PyAny>) -> PyResult<Destination> {
        if self.records && object.getattr("requires_grad")?.is_truthy()? {
            return Err(PyValueError::new_err(
                "a tensor that requires a gradient is not copied into while PyTorch records: do so under torch.no_grad()",
            ));
        }
        let Some(leaf) = torch.read(object)? else {
            return Err(PyTypeError::new_err(
                "a tensor without plain memory (sparse, quantised, conjugated, of a class of its own) is not copied into",
            ));
        };
        let offset = u64::try_from(torch.storage_offset(object)?).ok();
        let offset = offset.and_then(|offset| offset.checked_mul(leaf.type_of_elements().bytes() as u64));
        let allocation = offset.and_then(|offset| leaf.address.checked_sub(offset));
        let kept = object.clone().unbind();
        Ok(Destination { keeper: kept.clone_ref(object.py()), object: kept, leaf, allocation })
    }

    fn of_dlpack(&self, object: &Bound<'py, PyAny>) -> PyResult<Destination> {
        if is_of_jax(object)? {
            return Err(PyTypeError::new_err("an array of jax never changes, and is not copied into"));
        }
        let (capsule, leaf) = dlpack::read_to_write(object, self.torch)?;
        Ok(Destination { object: object.clone().unbind(), keeper: capsule.unbind(), leaf, allocation: None })
    }
}

impl<'py> Rules<'py> for Destinations<'py> {
    const IS: &'static str = "to copy into";

    fn take(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Found<'py>> {
        let kind = self.ours.kind(object)?;
        let found = match (&kind, self.torch) {
            (Kind::Torch, Some(torch)) => self.of_torch(torch, object)?,
            (Kind::Own, _) => {
                let tensor = object.cast::<Tensor>()?.get();
                tensor.put_in_order(object.py(), self.torch)?;
                let leaf = tensor.leaf().clone();
                let kept = object.clone().unbind();
                Destination { keeper: kept.clone_ref(object.py()), object: kept, leaf, allocation: None }
            }
            (Kind::Dlpack, _) => self.of_dlpack(object)?,
            (Kind::Masked, _) => {
                return Err(PyTypeError::new_err("a masked array: copy into its `data` and its `mask`"));
            }
            _ => return Ok(kind.open(object)?.map_or(Found::Same, Found::Container)),
        };
        if !found.leaf.is_aligned() {
            let text = "a tensor whose address is no multiple of the size of its elements is not copied into";
            return Err(PyValueError::new_err(text));
        }
        self.found.push(found);
        Ok(Found::Leaf)
    }
}

/// Its DLPack does not say that it must not be written.
fn is_of_jax(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let jax = modules::imported(intern!(object.py(), "jax"));
    match jax.and_then(|jax| jax.getattr("Array").ok()) {
        Some(array) => object.is_instance(&array),
        None => Ok(false),
    }
}
