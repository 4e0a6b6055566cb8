//! libamdhip64 over libcuda: each function goes to its namesake in NVIDIA's driver, or in a stand-in for it.
//!
//! Pointers and handles are numbers here: they are passed on as they come.
#![allow(non_snake_case, reason = "the names are AMD's and NVIDIA's")]

mod codes;
mod copies;
mod cuda;
mod current;
mod devices;
mod exports;
mod kernels;
mod memory;
mod pools;
mod streams;
