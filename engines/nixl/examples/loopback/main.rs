//! 256 MiB from one process to another: this crate beside one write of the library's between memory that is registered, in turns, in the same two processes. Every
//! byte is looked at. On the host by TCP and within the machine, or from GPU to GPU, with arenas there and, in turns with these, on the host.
//!
//! `cargo run --release --example loopback -- [rounds [tcp | shm | cuda:0,cuda:1] ...]`, with the library's folder on the loader's path. GPUs need
//! `--features cuda`. The sender has the first one, the receiver the second one; they may be the same. Each way ends within three minutes, well or not.

#[allow(dead_code, unreachable_pub, reason = "the library's own calls")]
#[path = "../../src/error.rs"]
mod error;
#[allow(dead_code, unreachable_pub, reason = "the same")]
#[path = "../../src/nixl/mod.rs"]
mod nixl;

mod other;
mod ours;
mod raw;
mod trees;
mod way;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use crate::other::Other;
use crate::ours::Ours;
use crate::raw::Raw;
use crate::trees::Trees;
use crate::way::{Side, Way, step};

/// What is moved at a time.
const BYTES: usize = 256 << 20;
const TENSORS: usize = 2_000;
const WARM_UP: usize = 2;

/// What can go wrong here.
type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let child = words.iter().position(|word| word == "--child").and_then(|at| words.get(at + 1));
    let done = match child {
        Some(way) => send(way),
        None => receive_all(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            step(&format!("FAILED: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The process that has the trees, and the clock.
fn send(way: &str) -> Result<()> {
    way::end_in_time(Side::Sender);
    let (way, mut other) = (Way::parse(way)?, Other::Parent);
    let mut raw = Raw::that_writes(&way, &mut other)?;
    let ours = Ours::all(&way, Side::Sender, &mut other)?;
    let trees = Trees::new(way.device(Side::Sender)?)?;
    other.say("ready")?;
    loop {
        let line = other.hear()?;
        let mut words = line.split(' ');
        let (Some(what), Some(arena), Some(seed)) = (words.next(), words.next(), words.next()) else {
            return Ok(());
        };
        let time = match what {
            "raw" => raw.write()?,
            what => ours[arena.parse::<usize>()?].send(trees.tree(what, seed.parse()?))?,
        };
        other.say(&time.as_nanos().to_string())?;
    }
}

fn receive_all(words: &[String]) -> Result<()> {
    let rounds = words.get(1).map_or(Ok(15), |word| word.parse())?;
    let mut ways: Vec<&str> = words.iter().skip(2).map(String::as_str).collect();
    if ways.is_empty() {
        ways = vec!["tcp", "shm"];
    }
    way::print_environment();
    let mut failed = Vec::new();
    for way in ways {
        if let Err(error) = receive(way, rounds) {
            println!("{way}: FAILED: {error}\n{}", way::HINTS);
            failed.push(way);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("these ways: {}", failed.join(" ")).into()) }
}

/// What is done in each round: its name, what the sender does, by which arena, whether into held memory.
fn turns(way: &Way) -> Vec<(String, &'static str, usize, bool)> {
    let mut turns = vec![("one write of the library".to_owned(), "raw", 0, false)];
    for (number, arena) in way.arenas().into_iter().enumerate() {
        for (what, name) in [("one", "one tensor"), ("many", "2,000 tensors")] {
            turns.push((format!("{name}, received, arena on {arena}"), what, number, false));
            turns.push((format!("{name}, into held memory, arena on {arena}"), what, number, true));
        }
    }
    turns
}

/// The process that looks at what arrives.
fn receive(way: &str, rounds: usize) -> Result<()> {
    let (text, way) = (way, Way::parse(way)?);
    let device = way.device(Side::Receiver)?;
    let mut other = Other::child(text)?;
    let _watch = other.end_in_time()?;
    let raw = Raw::that_is_written_to(&way, &mut other)?;
    let ours = Ours::all(&way, Side::Receiver, &mut other)?;
    let (expected, mut held) = (Trees::on_host()?, Trees::places(&device)?);
    other.expect("ready")?;
    step("both sides are ready");
    let turns = turns(&way);
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); turns.len()];
    for round in 0..rounds + WARM_UP {
        // Each byte is another one than in the round before.
        let seed = round % 2;
        if round == 1 {
            raw.check()?;
            step("one write of the library: every byte is right");
        }
        for ((name, what, arena, is_into), times) in turns.iter().zip(&mut times) {
            let say = format!("{what} {arena} {seed}");
            let time = match *what {
                "raw" => other.ask(&say),
                what if *is_into => {
                    ours[*arena].receive_into(&say, held.slot(what), expected.tree(what, seed), &mut other)
                }
                what => ours[*arena].receive(&say, expected.tree(what, seed), &mut other),
            };
            let time = time.map_err(|error| format!("round {round}, {name}: {error}"))?;
            if round == 0 {
                step(&format!("{name}: {time:.2?}"));
            }
            if round >= WARM_UP {
                times.push(time);
            }
        }
    }
    raw.check()?;
    print(text, rounds, &turns, times);
    other.say("end")
}

fn print(way: &str, rounds: usize, turns: &[(String, &str, usize, bool)], mut times: Vec<Vec<Duration>>) {
    let library = times.first_mut().map(|times| median(times)).unwrap_or_default();
    println!("{way}, medians of {rounds} by the clock of the sender, 256 MiB");
    for ((name, ..), times) in turns.iter().zip(&mut times) {
        let time = median(times);
        let [shortest, .., longest] = times[..] else { continue };
        let ratio = time.as_secs_f64() / library.as_secs_f64();
        let rate = BYTES as f64 / time.as_secs_f64() / 1e9;
        println!("  {name:48} {time:>9.2?}  {ratio:6.2}  {rate:7.1} GB/s  ({shortest:.2?} - {longest:.2?})");
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
