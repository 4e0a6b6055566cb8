//! What is copied.

use std::ops::Range;

use transship::{CopyOptions, DType, Device, Error, Tensor, TensorTree, for_each_tensor, start_copy};

use crate::Result;
use crate::detection::{self, Sample};

/// A structure, in one of several shapes.
pub(crate) struct Input<S> {
    /// Different for different contents.
    pub(crate) data: u64,
    pub(crate) value: S,
    /// The tensors of `value`.
    pub(crate) leaves: Vec<Tensor>,
    /// What they hold, on the host.
    pub(crate) expected: Vec<Tensor>,
}

const VARIANTS: u64 = 4;
/// Above it, variants are views of the same memory.
const LARGE: usize = 16 << 20;
/// Types of many tensors, in turn.
const TYPES: [DType; 4] = [DType::F32, DType::I64, DType::U8, DType::F16];

impl<S: TensorTree + Clone> Input<S> {
    pub(crate) fn new(data: u64, mut value: S) -> Result<Self> {
        let leaves = leaves(&mut value)?;
        Ok(Self { data, value, expected: leaves.clone(), leaves })
    }

    /// The same structure on `device`.
    pub(crate) fn on(self, device: &Device, options: &CopyOptions) -> Result<Self> {
        let mut value = start_copy(self.value, device, options.clone())
            .map_err(Error::from)?
            .wait()
            .map_err(Error::from)?;
        Ok(Self { leaves: leaves(&mut value)?, value, ..self })
    }
}

/// The tensors of a structure, sharing its memory.
pub(crate) fn leaves<S: TensorTree>(value: &mut S) -> Result<Vec<Tensor>> {
    let mut leaves = Vec::new();
    for_each_tensor(value, |tensor| {
        leaves.push(tensor.clone());
        Ok(())
    })?;
    Ok(leaves)
}

/// The same structure over memory of its own, which nobody else holds.
pub(crate) fn owned<S: TensorTree + Clone>(value: &S) -> Result<S> {
    let mut value = value.clone();
    for_each_tensor(&mut value, |tensor| {
        *tensor = Tensor::from_owner(tensor.to_bytes()?, tensor.dtype(), tensor.shape())?;
        Ok(())
    })?;
    Ok(value)
}

/// The batch of the detector, in every order of its scenes.
pub(crate) fn headline(seed: u64) -> Result<Vec<Input<Vec<Sample>>>> {
    let variant = |number: u64| Input::new(number, detection::batch(number as usize)?);
    variants(seed).map(variant).collect()
}

/// So many tensors of so many bytes each. Types change from one tensor, and one variant, to the next; where all together
/// are large, shapes do, over the same memory.
pub(crate) fn many(seed: u64, count: usize, bytes: usize) -> Result<Vec<Input<Vec<Tensor>>>> {
    let make = |number: u64| -> Result<Vec<Tensor>> {
        (0..count)
            .map(|index| tensor(TYPES[(index + number as usize) % TYPES.len()], bytes, number, index))
            .collect()
    };
    if count * bytes <= LARGE {
        return variants(seed).map(|number| Input::new(number, make(number)?)).collect();
    }
    let first = make(seed * VARIANTS)?;
    let reshaped = |rows: usize| -> Result<_> {
        let view = |tensor: &Tensor| tensor.reshape(&[rows, tensor.numel() / rows]);
        Input::new(seed * VARIANTS, first.iter().map(view).collect::<transship::Result<_>>()?)
    };
    [1, 2, 4, 8].map(reshaped).into_iter().collect()
}

/// So many tensors whose sizes have a heavy tail, as those of a model do: half of them are smaller than 4 KiB, the largest of 4,000 has
/// some MiB, and all together 173 MB. The sizes are always the same.
pub(crate) fn heavy_tail(seed: u64, count: usize) -> Result<Vec<Input<Vec<Tensor>>>> {
    let sizes = heavy_tail_sizes(count);
    let make = |(index, bytes): (usize, &usize)| tensor(TYPES[index % TYPES.len()], *bytes, seed, index);
    Ok(vec![Input::new(seed, sizes.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?)?])
}

/// Bytes of each: whole elements of every type.
pub(crate) fn heavy_tail_sizes(count: usize) -> Vec<usize> {
    const MEDIAN: f64 = 4096.0;
    /// Of the logarithm.
    const DEVIATION: f64 = 2.17;
    let unit = |word: u64| ((word >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let pairs = random_words(2 * count, 1);
    let size = |pair: &[u64]| {
        // Box and Muller: a normal deviate out of two uniform ones.
        let normal = (-2.0 * unit(pair[0]).ln()).sqrt() * (std::f64::consts::TAU * unit(pair[1])).cos();
        (MEDIAN * (DEVIATION * normal).exp()) as usize / 8 * 8 + 8
    };
    pairs.chunks_exact(2).map(size).collect()
}

/// Every other row of so many matrices of `f32`.
pub(crate) fn every_other_row(
    seed: u64,
    count: usize,
    [rows, columns]: [usize; 2],
) -> Result<Vec<Input<Vec<Tensor>>>> {
    let matrix = |index| {
        tensor(DType::F32, rows * columns * 4, seed, index)?.reshape(&[rows, columns]).map_err(Into::into)
    };
    let matrices = (0..count).map(matrix).collect::<Result<Vec<_>>>()?;
    let rows_from = |first: usize| -> Result<_> {
        let slice = |matrix: &Tensor| matrix.slice(0, first..rows, 2);
        let data = seed * VARIANTS + first as u64;
        Input::new(data, matrices.iter().map(slice).collect::<transship::Result<_>>()?)
    };
    [0, 1].map(rows_from).into_iter().collect()
}

/// So many bytes of `float32`, expected as `bfloat16`.
pub(crate) fn to_be_narrowed(seed: u64, bytes: usize) -> Result<Vec<Input<Vec<Tensor>>>> {
    let mut input = Input::new(seed, vec![tensor(DType::F32, bytes, seed, 0)?])?;
    input.expected = input.leaves.iter().map(narrowed).collect::<Result<_>>()?;
    Ok(vec![input])
}

/// A tensor of `float32` as one of `bfloat16`.
pub(crate) fn narrowed(tensor: &Tensor) -> Result<Tensor> {
    let narrowed = tensor.as_slice::<f32>()?.iter().copied().map(half::bf16::from_f32).collect();
    Ok(Tensor::from_vec(narrowed, tensor.shape())?)
}

/// So many images of so many bytes, each expected as `cast` makes it.
pub(crate) fn images(
    seed: u64,
    count: usize,
    pixels: usize,
    cast: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Input<Vec<Tensor>>>> {
    let images = (0..count).map(|index| tensor(DType::U8, pixels, seed, index)).collect::<Result<_>>()?;
    let mut input = Input::new(seed, images)?;
    input.expected = input.leaves.iter().map(cast).collect::<Result<_>>()?;
    Ok(vec![input])
}

/// A tensor of `uint8` as one of `float32`.
pub(crate) fn scaled(tensor: &Tensor, scale: f32, bias: f32) -> Result<Tensor> {
    let scaled = tensor.as_slice::<u8>()?.iter().map(|pixel| f32::from(*pixel) * scale + bias).collect();
    Ok(Tensor::from_vec(scaled, tensor.shape())?)
}

/// A matrix of random bytes.
pub(crate) fn matrix(seed: u64, dtype: DType, rows: usize, columns: usize) -> Result<Tensor> {
    Ok(tensor(dtype, rows * columns * dtype.size(), seed, 0)?.reshape(&[rows, columns])?)
}

fn variants(seed: u64) -> Range<u64> {
    seed * VARIANTS..(seed + 1) * VARIANTS
}

fn tensor(dtype: DType, bytes: usize, seed: u64, index: usize) -> Result<Tensor> {
    let words = random_words(bytes.div_ceil(8), (seed << 32) + index as u64);
    let whole = Tensor::from_owner(Words(words), dtype, &[bytes / dtype.size()])?;
    Ok(whole)
}

/// Xorshift64*, for its speed.
pub(crate) fn random_words(count: usize, seed: u64) -> Vec<u64> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Lends its words as bytes.
struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
