//! The small file that comes with the example.

use std::error::Error;

use safetensors::tensor::{Dtype, TensorView};

/// Where it is.
pub(crate) const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/tiny.safetensors");

/// One tensor of it: its name, its type, its shape.
pub(crate) type Entry = (&'static str, Dtype, &'static [usize]);

/// All of them, in the order of the file: by descending size of their elements, then by name.
pub(crate) const ENTRIES: [Entry; 8] = [
    ("step", Dtype::I64, &[]),
    ("tokens", Dtype::I64, &[2, 12]),
    ("embedding.weight", Dtype::F32, &[24, 16]),
    ("layers.0.norm.weight", Dtype::F32, &[16]),
    ("no_adapters", Dtype::F32, &[0, 16]),
    ("layers.0.attention.weight", Dtype::BF16, &[16, 16]),
    ("layers.0.norm.bias", Dtype::F16, &[16]),
    ("mask", Dtype::BOOL, &[2, 12]),
];

/// The bytes of an entry: a pattern that is different for each, zeros and ones where those are the only values.
pub(crate) fn data(index: usize) -> Vec<u8> {
    let Some((_, dtype, shape)) = ENTRIES.get(index) else { return Vec::new() };
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    let pattern = (0..bytes).map(|at| (at * 7 + index * 31) as u8);
    pattern.map(|byte| if *dtype == Dtype::BOOL { byte & 1 } else { byte }).collect()
}

/// The whole file.
pub(crate) fn file() -> Result<Vec<u8>, Box<dyn Error>> {
    let all: Vec<_> = (0..ENTRIES.len()).map(data).collect();
    let view = |((name, dtype, shape), data)| {
        TensorView::new(dtype, <[usize]>::to_vec(shape), data).map(|view| (name, view))
    };
    let views = ENTRIES.into_iter().zip(all.iter().map(Vec::as_slice)).map(view);
    Ok(safetensors::serialize(views.collect::<Result<Vec<_>, _>>()?, None)?)
}
