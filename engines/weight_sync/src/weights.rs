//! The parameters of a model, and the version that each of them says it is of.

use half::bf16;
use transship::{CopyOptions, DType, Device, Tensor, TensorTree, start_copy, start_copy_into};

use crate::Result;
use crate::options::Options;

/// Of a layer.
const MATRICES: usize = 7;
const VECTORS: usize = 3;
const COLUMNS: usize = 4;
const LONGEST_VECTOR: usize = 4096;

/// The parameters of a model, all `bf16`.
///
/// The first and the last element of each are its marks: the bits of the number of its version. All others say which parameter it is and which element.
#[derive(TensorTree, Clone, Default)]
pub(crate) struct Weights {
    layers: Vec<Layer>,
}

/// Projections, and scales of norms.
#[derive(TensorTree, Clone, Default)]
struct Layer {
    matrices: Vec<Tensor>,
    vectors: Vec<Tensor>,
}

/// What the marks of a model say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    /// All the same.
    Of(u16),
    /// The first one, and the first that is another.
    Mixed(u16, u16),
}

impl Weights {
    /// On `device`, all bytes zero: version 0.
    pub(crate) fn zeros(options: &Options, device: &Device) -> Result<Self> {
        let of_each = options.bytes / options.parameters / DType::BF16.size();
        let vector = (of_each / 4).clamp(2, LONGEST_VECTOR);
        let layers = options.parameters / (MATRICES + VECTORS);
        let left = options.bytes / DType::BF16.size() / layers - VECTORS * vector;
        let rows = (left / MATRICES / COLUMNS).max(1);
        let of_shape = |shape: &[usize], number: usize| {
            (0..number).map(|_| Tensor::zeros(shape, DType::BF16, device)).collect::<Result<Vec<_>, _>>()
        };
        let layer = || -> Result<Layer> {
            Ok(Layer {
                matrices: of_shape(&[rows, COLUMNS], MATRICES)?,
                vectors: of_shape(&[vector], VECTORS)?,
            })
        };
        Ok(Self { layers: (0..layers).map(|_| layer()).collect::<Result<_>>()? })
    }

    /// The same on the host, with bytes that can be told from each other.
    pub(crate) fn trained(options: &Options) -> Result<Self> {
        let mut weights = Self::zeros(options, &Device::host())?;
        for (number, tensor) in weights.tensors_mut().enumerate() {
            for (at, element) in tensor.as_mut_slice::<bf16>()?.iter_mut().enumerate() {
                *element = pattern(number, at);
            }
        }
        weights.mark(0)?;
        Ok(weights)
    }

    /// A step of training, as far as anybody can see: all parameters, on the host, are of this version.
    pub(crate) fn mark(&mut self, version: u16) -> Result<()> {
        self.tensors_mut().try_for_each(|tensor| mark(tensor, version))
    }

    /// One of them is of this version, whatever the others are of.
    pub(crate) fn mark_one(&mut self, version: u16) -> Result<()> {
        let middle = self.tensors().count() / 2;
        self.tensors_mut().nth(middle).map_or(Ok(()), |tensor| mark(tensor, version))
    }

    /// Reads the marks of all parameters where they lie, by one copy.
    pub(crate) fn marks(&self) -> Result<Marks> {
        let views: Vec<Tensor> = self.tensors().map(marks_of).collect::<Result<_, _>>()?;
        let read = start_copy(views, &Device::host(), CopyOptions::default())?.wait()?;
        let mut marks = Vec::with_capacity(2 * read.len());
        for tensor in &read {
            marks.extend(tensor.to_vec::<bf16>()?.iter().map(|mark| mark.to_bits()));
        }
        compared(&marks)
    }

    /// Fails unless every element is what the trainer has written for this version.
    pub(crate) fn verify(&self, version: u16) -> Result<()> {
        for (number, tensor) in self.tensors().enumerate() {
            let here = start_copy(tensor.clone(), &Device::host(), CopyOptions::default())?.wait()?;
            let elements = here.as_slice::<bf16>()?;
            let last = elements.len() - 1;
            let is_right = |(at, element): (usize, &bf16)| match at {
                0 => element.to_bits() == version,
                at if at == last => element.to_bits() == version,
                at => element.to_bits() == pattern(number, at).to_bits(),
            };
            if let Some(at) = elements.iter().enumerate().position(|element| !is_right(element)) {
                return Err(
                    format!("element {at} of parameter {number} is not that of version {version}").into()
                );
            }
        }
        Ok(())
    }

    /// Copies these into the memory of `held`, which stays where it is.
    pub(crate) fn copy_into(self, held: &mut Self) -> transship::Result<()> {
        *held = start_copy_into(self, std::mem::take(held), CopyOptions::default())?.wait()?;
        Ok(())
    }

    /// Of its elements.
    pub(crate) fn nbytes(&self) -> usize {
        self.tensors().map(Tensor::nbytes).sum()
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|layer| layer.matrices.iter().chain(&layer.vectors))
    }

    fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.layers.iter_mut().flat_map(|layer| layer.matrices.iter_mut().chain(&mut layer.vectors))
    }
}

fn mark(tensor: &mut Tensor, version: u16) -> Result<()> {
    if let [first, .., last] = tensor.as_mut_slice::<bf16>()? {
        (*first, *last) = (bf16::from_bits(version), bf16::from_bits(version));
    }
    Ok(())
}

/// Its first and its last element.
fn marks_of(tensor: &Tensor) -> transship::Result<Tensor> {
    let elements = tensor.numel();
    tensor.reshape(&[elements])?.slice(0, 0..elements, elements - 1)
}

fn compared(marks: &[u16]) -> Result<Marks> {
    let first = *marks.first().ok_or("the weights are lost")?;
    let other = marks.iter().find(|mark| **mark != first);
    Ok(other.map_or(Marks::Of(first), |other| Marks::Mixed(first, *other)))
}

fn pattern(parameter: usize, at: usize) -> bf16 {
    bf16::from_bits((parameter.wrapping_mul(40_503) ^ at.wrapping_mul(2_654_435_761) >> 7) as u16)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn options() -> Options {
        Options::try_parse_from(["weight_sync"]).unwrap()
    }

    #[test]
    fn weights_have_about_the_bytes_that_were_asked_for() {
        let weights = Weights::trained(&options()).unwrap();
        assert_eq!(weights.tensors().count(), 40);
        assert!((195_000..=200_000).contains(&weights.nbytes()), "{}", weights.nbytes());
    }

    /// Fails if only the first marks are compared, or those of some parameters.
    #[test]
    fn one_parameter_of_another_version_is_a_mixture() {
        let mut weights = Weights::trained(&options()).unwrap();
        weights.mark(7).unwrap();
        assert_eq!(weights.marks().unwrap(), Marks::Of(7));
        for number in 0..40 {
            for is_last in [false, true] {
                let tensor = weights.tensors_mut().nth(number).unwrap();
                let elements = tensor.as_mut_slice::<bf16>().unwrap();
                let place = if is_last { elements.last_mut() } else { elements.first_mut() };
                *place.unwrap() = bf16::from_bits(6);
                assert!(matches!(weights.marks().unwrap(), Marks::Mixed(..)), "{number}, {is_last}");
                mark(weights.tensors_mut().nth(number).unwrap(), 7).unwrap();
            }
        }
        weights.verify(7).unwrap();
    }

    #[test]
    fn a_wrong_element_is_found() {
        let mut weights = Weights::trained(&options()).unwrap();
        weights.tensors_mut().nth(11).unwrap().as_mut_slice::<bf16>().unwrap()[3] = bf16::ONE;
        assert!(weights.verify(0).unwrap_err().to_string().starts_with("element 3 of parameter 11 "));
    }
}
