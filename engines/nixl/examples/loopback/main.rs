//! 256 MiB of the host's memory from one process to another, by TCP and within the machine: this crate beside one write of the library's, in turns, in the
//! same two processes.
//!
//! `cargo run --release --example loopback -- [rounds [tcp|shm]]`, with the library's folder on the loader's path.

#[allow(dead_code, unreachable_pub, reason = "the library's own calls")]
#[path = "../../src/error.rs"]
mod error;
#[allow(dead_code, unreachable_pub, reason = "the same")]
#[path = "../../src/nixl/mod.rs"]
mod nixl;

mod other;
mod ours;
mod raw;

use std::error::Error;
use std::time::Duration;

use crate::other::Other;
use crate::ours::Ours;
use crate::raw::Raw;

/// What is moved at a time.
const BYTES: usize = 256 << 20;
const TENSORS: usize = 2_000;
const WARM_UP: usize = 2;

/// What can go wrong here.
type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "--child") {
        return send(&words[at + 1]);
    }
    let rounds = words.get(1).map_or(Ok(15), |word| word.parse())?;
    let transports = words.get(2).map_or(vec!["tcp", "shm"], |transport| vec![transport]);
    transports.iter().try_for_each(|transport| receive(transport, rounds))
}

/// The process that has the trees.
fn send(transport: &str) -> Result<()> {
    let mut other = Other::Parent;
    let mut raw = Raw::that_writes(transport, &mut other)?;
    let ours = Ours::new("child", transport, &mut other)?;
    let (one, many) = (ours::tree(1, 1), ours::tree(TENSORS, 1));
    loop {
        match other.hear()?.as_str() {
            // As long as it took, by the clock of this process.
            "raw" => other.say(&raw.write()?.as_nanos().to_string())?,
            "one" => ours.send(&one)?,
            "many" => ours.send(&many)?,
            _ => return Ok(()),
        }
    }
}

/// The process that takes the times.
fn receive(transport: &str, rounds: usize) -> Result<()> {
    let mut other = Other::child(transport)?;
    let _raw = Raw::that_is_written_to(transport, &mut other)?;
    let ours = Ours::new("parent", transport, &mut other)?;
    let (mut one, mut many) = (ours::tree(1, 0), ours::tree(TENSORS, 0));
    let mut times: [Vec<Duration>; 5] = Default::default();
    println!("{transport}, {} trees and {} writes of 256 MiB", 4 * (rounds + WARM_UP), rounds + WARM_UP);
    for round in 0..rounds + WARM_UP {
        let taken = [
            other.say("raw").and_then(|()| Ok(Duration::from_nanos(other.hear()?.parse()?)))?,
            ours.receive("one", &mut other)?,
            ours.receive("many", &mut other)?,
            ours.receive_into("one", &mut one, &mut other)?,
            ours.receive_into("many", &mut many, &mut other)?,
        ];
        if round >= WARM_UP {
            times.iter_mut().zip(taken).for_each(|(times, time)| times.push(time));
        }
    }
    let names = [
        "one write of the library",
        "one tensor, received",
        "2,000 tensors, received",
        "one tensor, into held memory",
        "2,000 tensors, into held memory",
    ];
    let library = median(&mut times[0]);
    println!("{transport}, medians of {rounds}");
    for (name, times) in names.iter().zip(&mut times) {
        let time = median(times);
        let (shortest, longest) = (times[0], times[times.len() - 1]);
        let ratio = time.as_secs_f64() / library.as_secs_f64();
        println!("  {name:32} {time:>9.2?}  {ratio:.2}  ({shortest:.2?} - {longest:.2?})");
    }
    other.say("end")
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
