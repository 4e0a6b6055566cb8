//! Copies and fills.

use driver_sim_engine::Return::{AtOnce, WhenDone};

use crate::abi::exports;

/// The legacy default stream.
const DEFAULT: u64 = 0;

exports! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |sim| {
        sim.copy_up(to, from, bytes, stream, AtOnce)
    };

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |sim| {
        sim.copy_down(to, from, bytes, stream, AtOnce)
    };

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |sim| {
        sim.copy_between(to, from, bytes, stream, AtOnce)
    };

    fn cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, stream: u64) |sim| {
        sim.copy_peer((to, to_context), (from, from_context), bytes, stream)
    };

    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) |sim| sim.copy_up(to, from, bytes, DEFAULT, WhenDone);

    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) |sim| sim.copy_down(to, from, bytes, DEFAULT, WhenDone);

    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: u64) |sim| sim.fill(to, value, bytes, stream);
}
