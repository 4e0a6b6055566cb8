//! Tensors of DLPack, in and out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod abi;
mod devices;
mod export;
mod import;
mod refused;
#[path = "../support/mod.rs"]
mod support;
mod theirs;
