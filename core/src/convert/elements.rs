//! The arithmetic of casts, a few elements at a time.

use bytemuck::{AnyBitPattern, NoUninit};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::cast::{Cast, Kind, Scaling};
use crate::dtype::DType;

/// Converts the elements of `from` into those of `to`, which are as many, by `cast`, which there is ([`Cast::check`]). Both slices are
/// aligned for their types. Integers that do not fit are clamped.
pub(crate) fn convert(cast: &Cast, from: &[u8], to: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let has_512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        if has_512 && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the processor has it.
            return unsafe { convert_by_512_bits(cast, from, to) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            return unsafe { convert_by_256_bits(cast, from, to) };
        }
    }
    convert_anywhere(cast, from, to);
}

/// The same loops, for which the compiler takes wider vectors: eight threads make `bfloat16` of 68 GB of `float32` a second, with vectors
/// of 256 bits of 51 (H200 machine).
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn convert_by_512_bits(cast: &Cast, from: &[u8], to: &mut [u8]) {
    convert_anywhere(cast, from, to);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn convert_by_256_bits(cast: &Cast, from: &[u8], to: &mut [u8]) {
    convert_anywhere(cast, from, to);
}

#[inline(always)]
fn convert_anywhere(cast: &Cast, from: &[u8], to: &mut [u8]) {
    match cast.kind() {
        Some(Kind::Floats) => floats(cast, from, to),
        Some(Kind::Integers) => integers(cast, from, to),
        Some(Kind::Scaled) => scaled(cast, from, to),
        None => {}
    }
}

#[inline(always)]
fn floats(cast: &Cast, from: &[u8], to: &mut [u8]) {
    use DType::{BF16, F16, F32, F64};
    match (cast.from_dtype(), cast.to_dtype()) {
        (F32, BF16) => each(from, to, bf16::from_f32),
        (F32, F16) => narrow_to_f16(elements(from), elements_mut(to)),
        (F16, F32) => widen_f16(elements(from), elements_mut(to)),
        (F32, F64) => each(from, to, |value: f32| f64::from(value)),
        (F64, F32) => each(from, to, |value: f64| value as f32),
        (F64, BF16) => each(from, to, |value| bf16::from_f32(rounded_to_odd(value))),
        (F64, F16) => each(from, to, |value| f16::from_f32(rounded_to_odd(value))),
        (BF16, F32) => each(from, to, bf16::to_f32),
        (BF16, F64) => each(from, to, bf16::to_f64),
        (F16, F64) => each(from, to, f16::to_f64),
        // What is between is exact.
        (BF16, F16) => each(from, to, |value: bf16| f16::from_f32(value.to_f32())),
        (F16, BF16) => each(from, to, |value: f16| bf16::from_f32(value.to_f32())),
        _ => {}
    }
}

#[inline(always)]
fn scaled(cast: &Cast, from: &[u8], to: &mut [u8]) {
    let Scaling { scale, bias } = cast.scaling();
    let value = |value: u8| f32::from(value) * scale + bias;
    match cast.to_dtype() {
        DType::F32 => each(from, to, value),
        DType::BF16 => each(from, to, |byte| bf16::from_f32(value(byte))),
        DType::F16 => each(from, to, |byte| f16::from_f32(value(byte))),
        _ => {}
    }
}

/// By the instructions that processors have for it.
fn narrow_to_f16(from: &[f32], to: &mut [f16]) {
    if from.len() == to.len() {
        to.convert_from_f32_slice(from);
    }
}

fn widen_f16(from: &[f16], to: &mut [f32]) {
    if from.len() == to.len() {
        from.convert_to_f32_slice(to);
    }
}

/// Rounded such that a second rounding, to fewer bits by two or more, ends where a single one would: what is not exact has an odd last
/// bit. To round to the nearest twice could end on the wrong side of a tie (`half` leaves the last 32 bits of a `f64` out of account).
#[inline(always)]
fn rounded_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let toward_zero = nearest.to_bits() - u32::from(back.abs() > value.abs());
    f32::from_bits(toward_zero | 1)
}

/// One arm for each pair of integers.
macro_rules! match_integers {
    ($cast:expr, $with:ident($($argument:expr),*)) => {
        match_integers!(@from $cast, $with($($argument),*), U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)
    };
    (@from $cast:expr, $with:ident $arguments:tt, $($dtype:ident $from:ident),*) => {
        match $cast.from_dtype() {
            $(DType::$dtype => match_integers!(@to $cast, $from, $with $arguments),)*
            _ => Default::default(),
        }
    };
    (@to $cast:expr, $from:ident, $with:ident $arguments:tt) => {
        match $cast.to_dtype() {
            DType::U8 => $with::<$from, u8> $arguments,
            DType::U16 => $with::<$from, u16> $arguments,
            DType::U32 => $with::<$from, u32> $arguments,
            DType::U64 => $with::<$from, u64> $arguments,
            DType::I8 => $with::<$from, i8> $arguments,
            DType::I16 => $with::<$from, i16> $arguments,
            DType::I32 => $with::<$from, i32> $arguments,
            DType::I64 => $with::<$from, i64> $arguments,
            _ => Default::default(),
        }
    };
}

#[inline(always)]
fn integers(cast: &Cast, from: &[u8], to: &mut [u8]) {
    match_integers!(cast, clamp(from, to));
}

/// The number and the value of the first integer of `from` that the type that `cast` makes cannot hold.
pub(crate) fn first_that_does_not_fit(cast: &Cast, from: &[u8]) -> Option<(usize, i128)> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { first_that_does_not_fit_by_256_bits(cast, from) };
    }
    first_that_does_not_fit_anywhere(cast, from)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn first_that_does_not_fit_by_256_bits(cast: &Cast, from: &[u8]) -> Option<(usize, i128)> {
    first_that_does_not_fit_anywhere(cast, from)
}

#[inline(always)]
fn first_that_does_not_fit_anywhere(cast: &Cast, from: &[u8]) -> Option<(usize, i128)> {
    match_integers!(cast, first_outside(from))
}

/// An integer of up to 64 bits.
trait Integer: AnyBitPattern + NoUninit + Into<i128> + PartialOrd {
    const SMALLEST: i128;
    const LARGEST: i128;

    /// Of a value between the two.
    fn of(value: i128) -> Self;
}

macro_rules! integers {
    ($($integer:ident)*) => {$(
        impl Integer for $integer {
            const SMALLEST: i128 = $integer::MIN as i128;
            const LARGEST: i128 = $integer::MAX as i128;

            #[inline(always)]
            fn of(value: i128) -> Self {
                value as Self
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

#[inline(always)]
fn clamp<S: Integer, D: Integer>(from: &[u8], to: &mut [u8]) {
    each(from, to, |value: S| D::of(value.into().clamp(D::SMALLEST, D::LARGEST)));
}

#[inline(always)]
fn first_outside<S: Integer, D: Integer>(from: &[u8]) -> Option<(usize, i128)> {
    if D::SMALLEST <= S::SMALLEST && S::LARGEST <= D::LARGEST {
        return None;
    }
    let (least, most) = (S::of(D::SMALLEST.max(S::SMALLEST)), S::of(D::LARGEST.min(S::LARGEST)));
    let is_outside = |value: S| (value < least) | (value > most);
    let values = elements::<S>(from);
    // All of them, so that the compiler takes vectors: hardly ever is there one.
    if !values.iter().fold(false, |any, value| any | is_outside(*value)) {
        return None;
    }
    let (number, value) = values.iter().enumerate().find(|(_, value)| is_outside(**value))?;
    Some((number, (*value).into()))
}

#[inline(always)]
fn each<S: AnyBitPattern, D: AnyBitPattern + NoUninit>(from: &[u8], to: &mut [u8], convert: impl Fn(S) -> D) {
    for (to, from) in elements_mut::<D>(to).iter_mut().zip(elements::<S>(from)) {
        *to = convert(*from);
    }
}

/// None where the slice is not aligned, which no caller's is.
fn elements<T: AnyBitPattern>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}

fn elements_mut<T: AnyBitPattern + NoUninit>(bytes: &mut [u8]) -> &mut [T] {
    bytemuck::try_cast_slice_mut(bytes).unwrap_or_default()
}
