//! The Rust types that a tensor can hold.

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};
use num_complex::Complex;

use crate::dtype::DType;

/// A Rust type that is the element type of a tensor. Sealed: the types are those of [`DType`], but for the 8-bit floats, whose
/// elements are read as [bytes](crate::Tensor::as_bytes).
pub trait Element: CheckedBitPattern + NoUninit + Send + Sync + 'static + sealed::Sealed {
    /// The element type.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

/// Gives every element type, and the name of its [`DType`], to a macro.
macro_rules! each_element {
    ($give:ident) => {
        $give! {
            bool => Bool,
            u8 => U8,
            u16 => U16,
            u32 => U32,
            u64 => U64,
            i8 => I8,
            i16 => I16,
            i32 => I32,
            i64 => I64,
            f16 => F16,
            bf16 => BF16,
            f32 => F32,
            f64 => F64,
            Complex<f32> => Complex64,
            Complex<f64> => Complex128,
        }
    };
}
pub(crate) use each_element;

macro_rules! elements {
    ($($element:ty => $dtype:ident,)*) => {$(
        impl sealed::Sealed for $element {}

        impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        }

        const _: () = assert!(size_of::<$element>() == DType::$dtype.size());
        // A device may want more than the host does (64-bit integers on a 32-bit host), never less.
        const _: () = assert!(align_of::<$element>() <= DType::$dtype.alignment().bytes());
    )*};
}

each_element!(elements);
