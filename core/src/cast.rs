//! Which elements become which, and how.

use crate::dtype::DType;
use crate::error::{Error, Result};

/// A conversion of all tensors of one element type, while they are copied ([`CopyOptions::cast`](crate::CopyOptions::cast)).
///
/// | from | to | how |
/// |---|---|---|
/// | `float16`, `bfloat16`, `float32`, `float64` | another of these | rounded once, to the nearest, ties to even; what is too large becomes infinite, and NaN stays NaN |
/// | an integer of 8 to 64 bits | another of these | the same value; one that does not fit is an error when the copy starts, unless the cast is [`saturating`](Self::saturating) |
/// | `uint8` | `float16`, `bfloat16`, `float32` | [`scaled`](Self::scaled) or as it is |
///
/// ```
/// use transship_core::{Cast, CopyOptions, DType, Device, Tensor, start_copy};
///
/// let options = CopyOptions::default()
///     .cast(Cast::new(DType::F32, DType::BF16))
///     .cast(Cast::new(DType::U8, DType::F32).scaled(1.0 / 255.0, -0.5));
/// let batch = vec![Tensor::from(vec![1.0_f32, 2.5]), Tensor::from(vec![0_u8, 255])];
/// let batch = start_copy(batch, &Device::host(), options)?.wait()?;
/// assert_eq!((batch[0].dtype(), batch[1].as_slice::<f32>()?), (DType::BF16, &[-0.5, 0.5][..]));
/// # Ok::<(), transship_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cast {
    from: DType,
    to: DType,
    saturating: bool,
    scaling: Option<Scaling>,
}

/// What a number is multiplied by, and what is added then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scaling {
    pub(crate) scale: f32,
    pub(crate) bias: f32,
}

/// What casts have in common that are converted in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Floats,
    Integers,
    Scaled,
}

impl Cast {
    /// Elements of the type `from` become elements of the type `to`. Which pairs there are is in the table above; a copy with another
    /// one is refused. Those of the same type stay as they are.
    pub fn new(from: DType, to: DType) -> Self {
        Self { from, to, saturating: false, scaling: None }
    }

    /// Integers that do not fit become the smallest or the largest one that does; those of the same type stay as they are. Without, each value is looked at when the copy
    /// starts, on the thread that starts it.
    pub fn saturating(mut self) -> Self {
        self.saturating = true;
        self
    }

    /// `uint8` to floating point: each becomes `x * scale + bias`, computed in `float32` with a rounding after the product and one
    /// after the sum, and rounded to its type then.
    pub fn scaled(mut self, scale: f32, bias: f32) -> Self {
        self.scaling = Some(Scaling { scale, bias });
        self
    }

    /// The type of the elements that are cast.
    pub fn from_dtype(&self) -> DType {
        self.from
    }

    /// The type that they get.
    pub fn to_dtype(&self) -> DType {
        self.to
    }

    /// Whether each value must be looked at before.
    pub(crate) fn may_not_fit(&self) -> bool {
        self.kind() == Some(Kind::Integers) && !self.saturating && !holds_all(self.to, self.from)
    }

    /// Whether elements have more bytes when they are cast.
    pub(crate) fn widens(&self) -> bool {
        self.to.size() > self.from.size()
    }

    /// How many times as large elements are when they are cast, as a power of two: 0 if they get no larger.
    pub(crate) fn widened_log2(&self) -> u8 {
        // Sizes of elements are powers of two.
        (self.to.size() / self.from.size()).checked_ilog2().unwrap_or(0) as u8
    }

    /// How many bytes of elements become so many.
    pub(crate) fn source_bytes(&self, bytes: usize) -> usize {
        bytes / self.to.size() * self.from.size()
    }

    /// How many bytes so many bytes of elements become.
    pub(crate) fn converted_bytes(&self, bytes: usize) -> usize {
        bytes / self.from.size() * self.to.size()
    }

    pub(crate) fn scaling(&self) -> Scaling {
        self.scaling.unwrap_or(Scaling { scale: 1.0, bias: 0.0 })
    }

    /// How its elements are converted; `None` for a pair of types that no cast is for.
    pub(crate) fn kind(&self) -> Option<Kind> {
        match (self.from, self.to) {
            (from, to) if from == to => None,
            (from, to) if is_float(from) && is_float(to) => Some(Kind::Floats),
            (from, to) if is_integer(from) && is_integer(to) => Some(Kind::Integers),
            (DType::U8, DType::F16 | DType::BF16 | DType::F32) => Some(Kind::Scaled),
            _ => None,
        }
    }

    fn what_there_is(&self) -> &'static str {
        match self.from {
            DType::U8 => {
                "uint8 becomes another integer, float16, bfloat16 or float32; name one of these, or cast it where it is used"
            }
            from if is_integer(from) => {
                "integers of 8 to 64 bits become others of these; name one of these, or cast it where it is used"
            }
            from if is_float(from) => {
                "float16, bfloat16, float32 and float64 become others of these; name one of these, or cast it where it is used"
            }
            DType::F8E4M3FN | DType::F8E5M2 | DType::F8E8M0FNU => {
                "8-bit floating point is copied as it is; cast it where it is used"
            }
            _ => "only integers and floating point are cast; leave the cast out",
        }
    }

    /// Whether there is such a cast. [`CopyOptions::validate`](crate::CopyOptions::validate) asks it of all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for a pair of types that is not in the table above, and for what is scaled or saturating and cannot be.
    pub fn check(&self) -> Result<()> {
        let refused = |reason| {
            let value = format!("{} to {}", self.from, self.to);
            Err(Error::InvalidOption { name: "cast", value, reason })
        };
        let is_integer_kept = self.from == self.to && is_integer(self.from);
        match self.kind() {
            None if self.from != self.to => refused(self.what_there_is()),
            kind if self.scaling.is_some() && kind != Some(Kind::Scaled) => {
                refused("only uint8 is scaled, to float16, bfloat16 or float32; ask for no scale and no bias")
            }
            kind if self.saturating && kind != Some(Kind::Integers) && !is_integer_kept => {
                refused("only integers that become integers saturate; ask for no saturation")
            }
            _ => Ok(()),
        }
    }
}

/// Whether every integer of the type `from` is one of the type `to`.
fn holds_all(to: DType, from: DType) -> bool {
    use DType::{I8, I16, I32, I64};
    let is_signed = |dtype| matches!(dtype, I8 | I16 | I32 | I64);
    match (is_signed(to), is_signed(from)) {
        (false, true) => false,
        (true, false) => to.size() > from.size(),
        _ => to.size() >= from.size(),
    }
}

/// The cast of `casts`, one for a type at most, for elements of the type `dtype`; `None` if they keep it.
#[inline]
pub(crate) fn cast_of(casts: &[Cast], dtype: DType) -> Option<Cast> {
    casts.iter().find(|cast| cast.from == dtype).filter(|cast| cast.to != dtype).copied()
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

fn is_integer(dtype: DType) -> bool {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64)
}
