//! Combining elements that lie on the host, in the order of the ranks: each rank but the first costs one rounding.

use half::{bf16, f16};
use num_complex::Complex;
use transship::{DType, Element, Result, Tensor};

use crate::reduce_op::ReduceOp;

/// One tensor of what `ranks` has: tensors on the host, of one type and shape, of which there is one at least. The type is one that `op`
/// [takes](ReduceOp::takes).
pub(crate) fn combine(op: ReduceOp, ranks: &[&Tensor]) -> Result<Tensor> {
    match ranks.first().map(|first| first.dtype()) {
        Some(DType::U8) => ordered::<u8>(op, ranks),
        Some(DType::U16) => ordered::<u16>(op, ranks),
        Some(DType::U32) => ordered::<u32>(op, ranks),
        Some(DType::U64) => ordered::<u64>(op, ranks),
        Some(DType::I8) => ordered::<i8>(op, ranks),
        Some(DType::I16) => ordered::<i16>(op, ranks),
        Some(DType::I32) => ordered::<i32>(op, ranks),
        Some(DType::I64) => ordered::<i64>(op, ranks),
        Some(DType::F16) => ordered::<f16>(op, ranks),
        Some(DType::BF16) => ordered::<bf16>(op, ranks),
        Some(DType::F32) => ordered::<f32>(op, ranks),
        Some(DType::F64) => ordered::<f64>(op, ranks),
        Some(DType::Complex64) => fold(ranks, |one: Complex<f32>, other| one + other),
        Some(DType::Complex128) => fold(ranks, |one: Complex<f64>, other| one + other),
        _ => Err(transship::Error::InvalidOption {
            name: "ReduceOp",
            value: format!("{op:?}"),
            reason: "there is no tensor, or its elements cannot be combined",
        }),
    }
}

fn ordered<T: Number>(op: ReduceOp, ranks: &[&Tensor]) -> Result<Tensor> {
    match op {
        ReduceOp::Sum => fold(ranks, T::sum),
        ReduceOp::Min => fold(ranks, T::smaller),
        ReduceOp::Max => fold(ranks, T::larger),
    }
}

fn fold<T: Element + Copy>(ranks: &[&Tensor], combine: impl Fn(T, T) -> T) -> Result<Tensor> {
    let Some((first, others)) = ranks.split_first() else { return Ok(Tensor::from(Vec::<T>::new())) };
    let mut elements = first.to_vec::<T>()?;
    for other in others {
        let other = other.contiguous()?;
        for (element, other) in elements.iter_mut().zip(other.as_slice::<T>()?) {
            *element = combine(*element, *other);
        }
    }
    Tensor::from_vec(elements, first.shape())
}

trait Number: Element + Copy {
    fn sum(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

macro_rules! floats {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i8, i16, i32, i64);
floats!(f16, bf16, f32, f64);
