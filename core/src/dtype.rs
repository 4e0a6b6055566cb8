//! The type of the elements of a tensor.

use std::fmt;
use std::str::FromStr;

use crate::alignment::Alignment;

/// The type of the elements of a tensor. Prints and parses under the names that NumPy and PyTorch use; those of the types of Rust are parsed
/// too, and mean these: `i8` has 8 bits, while a type string of NumPy counts bytes.
///
/// ```
/// use transship_core::DType;
///
/// assert_eq!(DType::F32.to_string(), "float32");
/// assert_eq!("bfloat16".parse::<DType>()?, DType::BF16);
/// assert_eq!("bf16".parse::<DType>()?, DType::BF16);
/// assert_eq!((DType::Complex64.size(), DType::Complex64.alignment().bytes()), (8, 4));
/// # Ok::<(), transship_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// A byte that is 0 or 1.
    Bool,
    /// 8 bits, unsigned.
    U8,
    /// 16 bits, unsigned.
    U16,
    /// 32 bits, unsigned.
    U32,
    /// 64 bits, unsigned.
    U64,
    /// 8 bits, signed.
    I8,
    /// 16 bits, signed.
    I16,
    /// 32 bits, signed.
    I32,
    /// 64 bits, signed.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// 8 bits: sign, 4 of exponent, 3 of mantissa; finite, with NaN (OCP E4M3). Copied only: no Rust type reads it, no cast makes it.
    F8E4M3FN,
    /// 8 bits: sign, 5 of exponent, 2 of mantissa, with infinities and NaN (OCP E5M2). Copied only, as `F8E4M3FN`.
    F8E5M2,
    /// 8 bits: an exponent, so a power of two, or NaN (OCP E8M0): what scales of MX formats are. Copied only, as `F8E4M3FN`.
    F8E8M0FNU,
    /// Two `f32`: the real and the imaginary part.
    Complex64,
    /// Two `f64`: the real and the imaginary part.
    Complex128,
}

impl DType {
    /// Every element type.
    pub const ALL: &[Self] = &[
        Self::Bool,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::F8E4M3FN,
        Self::F8E5M2,
        Self::F8E8M0FNU,
        Self::Complex64,
        Self::Complex128,
    ];

    /// The size of one element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E4M3FN | Self::F8E5M2 | Self::F8E8M0FNU => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// What the address of an element is a multiple of: its size, and for complex numbers the size of one part.
    #[inline]
    pub const fn alignment(self) -> Alignment {
        let bytes = match self {
            Self::Complex64 | Self::Complex128 => self.size() / 2,
            _ => self.size(),
        };
        match Alignment::new(bytes) {
            Some(alignment) => alignment,
            None => unreachable!(),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::F8E4M3FN => "float8_e4m3fn",
            Self::F8E5M2 => "float8_e5m2",
            Self::F8E8M0FNU => "float8_e8m0fnu",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
        }
    }

    /// The Rust type, where its name is one word.
    const fn rust_name(self) -> Option<&'static str> {
        Some(match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8E4M3FN | Self::F8E5M2 | Self::F8E8M0FNU | Self::Complex64 | Self::Complex128 => {
                return None;
            }
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name an element type; write one such as float32, f32, int64 or bool")]
#[non_exhaustive]
pub struct ParseDTypeError {
    /// The text.
    pub text: String,
}

impl FromStr for DType {
    type Err = ParseDTypeError;

    fn from_str(text: &str) -> Result<Self, ParseDTypeError> {
        Self::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == text || dtype.rust_name() == Some(text))
            .ok_or_else(|| ParseDTypeError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse::<DType>().ok(), Some(dtype));
        }
    }

    #[test]
    fn the_types_of_rust_are_known_by_their_names() {
        macro_rules! check {
            ($($element:ty => $dtype:ident,)*) => {
                [$((std::any::type_name::<$element>(), DType::$dtype)),*]
            };
        }
        for (name, dtype) in check! {
            bool => Bool, u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
            half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64,
        } {
            let word = name.rsplit("::").next().unwrap_or_default();
            assert_eq!(word.parse::<DType>().ok(), Some(dtype), "{name}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        for text in ["", "F32", "f8", "half", "Float32", " float32", "float128", "float8", "float8_e4m3fnuz"]
        {
            assert!(matches!(text.parse::<DType>(), Err(ParseDTypeError { text: found }) if found == text));
        }
    }
}
