//! Memory of the program that is page-locked where it lies: who may have it, when it is unlocked, and what becomes of its owner.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod copies;
#[path = "../../../tests/support/hostile.rs"]
mod hostile;
mod owners;
mod pages;
mod refused;
#[path = "../support/mod.rs"]
mod support;
mod vectors;

use late_backend::{Call, LateHandle};
use transship_core::{CopyOptions, DType, Registered, Tensor};

pub(crate) const MIB: usize = 1 << 20;
/// A page at the least, on any system.
pub(crate) const PAGE: usize = 64 << 10;

pub(crate) fn options() -> CopyOptions {
    CopyOptions::default()
}

pub(crate) fn calls(late: &LateHandle, call: Call) -> usize {
    late.calls().iter().filter(|made| made.call == call).count()
}

/// Bytes that share no page with anything else.
pub(crate) fn apart(bytes: usize) -> (Vec<u8>, std::ops::Range<usize>) {
    let mut memory = vec![0; bytes + 2 * PAGE];
    let lead = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    memory[lead..lead + bytes].copy_from_slice(&numbers(bytes));
    (memory, lead..lead + bytes)
}

/// Lends pages of its own, and says when it goes, on which thread, and what had happened by then.
pub(crate) struct Lender<F: Fn() + Send + Sync> {
    memory: Vec<u8>,
    part: std::ops::Range<usize>,
    on_drop: F,
}

impl<F: Fn() + Send + Sync> Lender<F> {
    pub(crate) fn new(bytes: usize, on_drop: F) -> Self {
        let (memory, part) = apart(bytes);
        Self { memory, part, on_drop }
    }
}

impl<F: Fn() + Send + Sync> AsRef<[u8]> for Lender<F> {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.part.clone()]
    }
}

impl<F: Fn() + Send + Sync> Drop for Lender<F> {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

pub(crate) fn whole(memory: &Registered) -> Tensor {
    memory.tensor(DType::U8, &[memory.nbytes()], 0).unwrap()
}

/// A vector whose last page is its own: other tests register vectors as well, and a page is registered once.
pub(crate) fn spaced<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut vec = Vec::with_capacity(count + PAGE);
    vec.resize(count, value);
    vec
}

pub(crate) fn numbers(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8).collect()
}
