//! Items are copied ahead of the program, in order and within bounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod ahead;
mod failures;
mod several_devices;
#[path = "../support/mod.rs"]
mod support;
mod used_memory;

use transship_core::{PrefetchOptions, Tensor, Value};

use crate::support::bytes_of;

pub(crate) fn options() -> PrefetchOptions {
    PrefetchOptions::default()
}

pub(crate) fn item(number: usize) -> Vec<Tensor> {
    vec![Tensor::from(vec![number as u8; 100]), Tensor::from(vec![number as u32])]
}

pub(crate) fn number(item: &[Tensor]) -> usize {
    let number = usize::from(bytes_of(&item[0])[0]);
    assert_eq!(bytes_of(&item[0]), vec![number as u8; 100]);
    assert_eq!(bytes_of(&item[1]), (number as u32).to_le_bytes());
    number
}

/// What cannot be copied.
pub(crate) fn too_deep() -> Value {
    (0..5000).fold(Value::from(Tensor::from(vec![7_u8])), |inner, _| Value::List(vec![inner].into()))
}
