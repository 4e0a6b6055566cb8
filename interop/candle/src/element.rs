//! The types of elements, as candle and transship name them.

use transship::DType;

/// candle's type for elements of `dtype`. candle has no `bool`: comparisons there give `u8`, and so does this.
pub(crate) fn in_candle(dtype: DType) -> Option<candle_core::DType> {
    use candle_core::DType as Candle;
    Some(match dtype {
        DType::Bool | DType::U8 => Candle::U8,
        DType::U32 => Candle::U32,
        DType::I16 => Candle::I16,
        DType::I32 => Candle::I32,
        DType::I64 => Candle::I64,
        DType::F16 => Candle::F16,
        DType::BF16 => Candle::BF16,
        DType::F32 => Candle::F32,
        DType::F64 => Candle::F64,
        DType::F8E4M3FN => Candle::F8E4M3,
        _ => return None,
    })
}

/// transship's type for candle's; `None` for those of less than a byte, and scales.
pub(crate) fn of_candle(dtype: candle_core::DType) -> Option<DType> {
    DType::ALL.iter().copied().find(|ours| *ours != DType::Bool && in_candle(*ours) == Some(dtype))
}

/// Evaluates `$body` with `$T` as the Rust type that candle stores elements of `$dtype` as, and `$other` if there is none.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, else $other:expr) => {
        match $dtype {
            candle_core::DType::U8 => {
                type $T = u8;
                $body
            }
            candle_core::DType::U32 => {
                type $T = u32;
                $body
            }
            candle_core::DType::I16 => {
                type $T = i16;
                $body
            }
            candle_core::DType::I32 => {
                type $T = i32;
                $body
            }
            candle_core::DType::I64 => {
                type $T = i64;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            candle_core::DType::F8E4M3 => {
                type $T = float8::F8E4M3;
                $body
            }
            _ => $other,
        }
    };
}

pub(crate) use with_element;
