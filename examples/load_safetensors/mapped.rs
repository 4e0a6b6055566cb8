//! What one would write without the library: a memory map, and one copy for each tensor.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use transship::prelude::*;

/// Loads a file that nobody changes meanwhile. Its tensors are aligned.
pub(crate) fn load(path: &Path, device: &Device) -> Result<Vec<Tensor>, Box<dyn Error>> {
    let file = File::open(path)?;
    // SAFETY: a map is only sound while nobody changes the file, which no program can rule out for another one. The library
    // needs no such promise.
    let map = Arc::new(unsafe { Mmap::map(&file)? });
    let mut loaded = Vec::new();
    for (_, tensor) in SafeTensors::deserialize(&map)?.iter() {
        let start = tensor.data().as_ptr().addr() - map.as_ptr().addr();
        let part = MapRange { map: map.clone(), start, bytes: tensor.data().len() };
        let dtype = dtype_of(tensor.dtype()).ok_or_else(|| format!("no type for {}", tensor.dtype()))?;
        let tensor = Tensor::from_owner(part, dtype, tensor.shape())?;
        let options = CopyOptions::default().policy(CopyPolicy::Always);
        loaded.push(transship::start_copy(tensor, device, options)?.wait()?);
    }
    Ok(loaded)
}

/// A part of a map, which it keeps alive.
struct MapRange {
    map: Arc<Mmap>,
    start: usize,
    bytes: usize,
}

impl AsRef<[u8]> for MapRange {
    fn as_ref(&self) -> &[u8] {
        self.map.get(self.start..self.start + self.bytes).unwrap_or_default()
    }
}

fn dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        _ => return None,
    })
}
