//! A stand-in for libcuda: the functions that transship, cudarc and the tests call, over simulated devices.
//!
//! The arguments are those of NVIDIA's reference; handles are numbers.
#![allow(non_snake_case, reason = "the names are NVIDIA's")]

mod abi;
mod codes;
mod contexts;
mod control;
mod copies;
mod devices;
mod graphs;
mod memory;
mod streams;
