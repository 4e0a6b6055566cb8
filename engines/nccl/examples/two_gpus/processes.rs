//! Two processes, each with a GPU.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use transship::{CopyOptions, start_copy};
use transship_nccl::{Communicator, Nccl, ReduceOp, UniqueId};

use crate::measure::row;
use crate::{Outcome, check, device, floats};

/// Values, and what a collective costs.
pub(crate) fn run() -> Outcome {
    println!("== two processes");
    let [first, second] = start("times")?;
    end(first)?;
    end(second)
}

/// Kills the second process while the first one waits for it.
pub(crate) fn killed() -> Outcome {
    println!("== a process that is killed");
    let [first, mut second] = start("killed")?;
    thread::sleep(Duration::from_secs(12));
    second.kill()?;
    second.wait()?;
    println!("killed rank 1");
    end(first)
}

fn start(mode: &str) -> Outcome<[Child; 2]> {
    let id = UniqueId::new(&Nccl::load()?)?;
    let start = |rank: &str| -> Outcome<Child> {
        let mut child =
            Command::new(env::current_exe()?).args(["rank", rank, mode]).stdin(Stdio::piped()).spawn()?;
        child.stdin.take().ok_or("no pipe")?.write_all(&id.to_bytes())?;
        Ok(child)
    };
    Ok([start("0")?, start("1")?])
}

fn end(mut child: Child) -> Outcome {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("a rank ended with {status}").into()),
            None if begun.elapsed() > Duration::from_secs(40) => {
                child.kill()?;
                return Err("a rank hangs".into());
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// What each of the two processes does.
pub(crate) fn rank(rank: usize, mode: &str) -> Outcome {
    let mut id = [0; 128];
    io::stdin().read_exact(&mut id)?;
    let device = device(rank)?;
    let limit = Duration::from_secs(if mode == "killed" { 10 } else { 30 });
    let started = Instant::now();
    let mut communicator =
        Communicator::join(&Nccl::of(&device)?, &UniqueId::from_bytes(id), rank, 2, &device, limit)?;
    println!("rank {rank}: joined after {:?}", started.elapsed());
    let own = start_copy(floats(rank as f32 + 1.0)?, &device, CopyOptions::default())?.wait()?;
    check(communicator.all_reduce(own.clone(), ReduceOp::Sum)?.wait()?, 3.0)?;
    check(communicator.broadcast(own.clone(), 1)?.wait()?, 2.0)?;
    let all = communicator.all_gather(own.clone())?.wait()?;
    all.into_iter().zip([1.0, 2.0]).try_for_each(|(tree, times)| check(tree, times))?;
    println!("rank {rank}: all_reduce, broadcast and all_gather are right");
    if mode == "killed" {
        return until_killed(communicator, rank, &own);
    }
    // Ranks that differ are told, and go on.
    let few = own.get(rank..).unwrap_or_default().to_vec();
    let error = communicator.all_reduce(few, ReduceOp::Sum).err().ok_or("ranks that differ are not told")?;
    println!("rank {rank}: {error}");
    let times = |what: &str| if rank == 0 { what.to_owned() } else { format!("(rank 1) {what}") };
    let mut work = || {
        let (given, started) = (own.clone(), Instant::now());
        communicator.all_reduce(given, ReduceOp::Sum)?.wait()?;
        Ok(started.elapsed())
    };
    // As many on both.
    for _ in 0..100 {
        work()?;
    }
    let mut all: Vec<Duration> = (0..300).map(|_| work()).collect::<Outcome<_>>()?;
    all.sort_unstable();
    println!(
        "{:<72} {:>9.1} us",
        times("Communicator::all_reduce(..)?.wait()"),
        all[150].as_secs_f64() * 1e6
    );
    if rank == 0 {
        row("what the clock costs", || Ok(Instant::now().elapsed()))?;
    }
    Ok(())
}

fn until_killed(mut communicator: Communicator, rank: usize, own: &[transship::Tensor]) -> Outcome {
    let begun = Instant::now();
    loop {
        let called = Instant::now();
        let done = communicator.all_reduce(own.to_vec(), ReduceOp::Sum).map_err(|failed| *failed.error);
        match done.and_then(|pending| pending.wait()) {
            Ok(_) if begun.elapsed() > Duration::from_secs(30) => {
                return Err("the other rank was not killed".into());
            }
            Ok(_) => {}
            Err(error) => {
                println!("rank {rank}: {:?} after the call: {error}", called.elapsed());
                return Ok(());
            }
        }
    }
}
