//! Numbers of all ranks made one.

use std::ffi::c_int;

use half::{bf16, f16};

/// The size of `ncclDataType_t`.
pub(crate) fn size_of(dtype: c_int) -> usize {
    match dtype {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        _ => 8,
    }
}

/// What `op` (`ncclRedOp_t`) makes of the bytes of all ranks.
pub(crate) fn combine(dtype: c_int, op: c_int, ranks: &[&[u8]]) -> Vec<u8> {
    macro_rules! fold {
        ($number:ty, $sum:expr) => {
            ranks.iter().skip(1).fold(ranks[0].to_vec(), |sums, other| {
                let numbers = |bytes: &[u8]| {
                    let chunks = bytes.as_chunks::<{ std::mem::size_of::<$number>() }>().0;
                    chunks.iter().map(|chunk| <$number>::from_ne_bytes(*chunk)).collect::<Vec<_>>()
                };
                let pairs = numbers(&sums).into_iter().zip(numbers(other));
                let one = |(one, other): ($number, $number)| match op {
                    0 => $sum(one, other),
                    2 => one.max(other),
                    _ => one.min(other),
                };
                pairs.map(one).flat_map(<$number>::to_ne_bytes).collect()
            })
        };
    }
    match dtype {
        0 => fold!(i8, i8::wrapping_add),
        1 => fold!(u8, u8::wrapping_add),
        2 => fold!(i32, i32::wrapping_add),
        3 => fold!(u32, u32::wrapping_add),
        4 => fold!(i64, i64::wrapping_add),
        5 => fold!(u64, u64::wrapping_add),
        6 => fold!(f16, |one: f16, other: f16| one + other),
        7 => fold!(f32, |one: f32, other: f32| one + other),
        8 => fold!(f64, |one: f64, other: f64| one + other),
        _ => fold!(bf16, |one: bf16, other: bf16| one + other),
    }
}
