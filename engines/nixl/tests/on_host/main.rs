//! Arenas on the host, with a library whose agents are of this process (`fake`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

mod held_memory;
mod late_devices;
mod peers;
mod room;
#[path = "../support/mod.rs"]
mod support;
mod trees;

use std::time::Duration;

use transship::Tensor;
use transship_nixl::{Agent, AgentOptions};

use crate::support::{Pair, nixl};

/// Of what ends by its deadline alone.
const SHORT: Duration = Duration::from_millis(500);

fn agent(name: &str, arena_bytes: usize) -> Agent {
    Agent::new(&nixl(), name, AgentOptions::default().arena_bytes(arena_bytes)).unwrap()
}

fn tensors(byte: u8, bytes: usize) -> Vec<Tensor> {
    vec![Tensor::from(vec![byte; bytes])]
}

/// With arenas of so many bytes.
fn pair_of(name: &str, arenas: [usize; 2]) -> Pair {
    Pair::new(name, arenas.map(|bytes| AgentOptions::default().arena_bytes(bytes)))
}

/// A tree arrives.
fn assert_works(pair: &Pair) {
    assert_eq!(pair.pass(&tensors(5, 100), tensors(0, 100))[0].as_slice::<u8>().unwrap(), [5; 100]);
}
