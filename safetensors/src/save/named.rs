//! Which tensors are saved, under which names.

use std::collections::BTreeMap;

use safetensors::tensor::Dtype;
use transship_core::{Tensor, TensorTree, for_each_path};

use crate::header::{METADATA, format_of};
use crate::save::error::SaveError;

/// A tensor to save.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) tensor: Tensor,
}

/// The tensors of `tree`, in the order of their names.
pub(crate) fn named<S: TensorTree + ?Sized>(tree: &S) -> Result<Vec<Named>, SaveError> {
    let mut found = Vec::new();
    let collected = for_each_path(tree, |path, tensor| {
        found.push((path.name().to_owned(), path.to_string(), tensor.clone()));
        Ok(())
    });
    collected.map_err(SaveError::Tree)?;
    let mut by_name: BTreeMap<String, (String, Tensor)> = BTreeMap::new();
    for (name, path, tensor) in found {
        match name.as_str() {
            "" => return Err(SaveError::NoName { path }),
            METADATA => return Err(SaveError::ReservedName { path }),
            _ => {}
        }
        if let Some((first, _)) = by_name.get(&name) {
            return Err(SaveError::SameName { name, first: first.clone(), second: path });
        }
        by_name.insert(name, (path, tensor));
    }
    by_name.into_iter().map(|(name, (_, tensor))| with_dtype(name, tensor)).collect()
}

fn with_dtype(name: String, tensor: Tensor) -> Result<Named, SaveError> {
    match format_of(tensor.dtype()) {
        Some(dtype) => Ok(Named { name, dtype, tensor }),
        None => Err(SaveError::DType { tensor: name, dtype: tensor.dtype() }),
    }
}
