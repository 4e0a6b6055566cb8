//! Ranks that leave while others stay, on two devices of CUDA or a stand-in for its driver, with a library whose ranks are threads of this process (`fake`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use transship::{StreamPriority, Tensor};
use transship_nccl::ReduceOp;

mod support;

use support::{down, ranks};

fn ones() -> Vec<Tensor> {
    vec![Tensor::from(vec![1.0_f32; 3])]
}

/// NCCL waits for ranks that do not leave for as long as they live. Deliberate bug: so does a rank that is dropped.
#[test]
fn a_rank_leaves_though_others_stay() {
    let limit = Duration::from_secs(4);
    let (left, others) = mpsc::channel();
    let others = Mutex::new(others);
    let took = ranks(limit, |mut communicator| {
        communicator.all_reduce(ones(), ReduceOp::Sum).unwrap().wait().unwrap();
        if communicator.rank() == 1 {
            let _ = others.lock().unwrap().recv_timeout(limit * 4);
        }
        let started = Instant::now();
        let rank = communicator.rank();
        drop(communicator);
        if rank == 0 {
            left.send(()).unwrap();
        }
        started.elapsed()
    });
    assert!(took[0] >= limit / 2, "it waits for the other one: {took:?}");
    assert!(took[0] < limit * 3, "{took:?}");
    // Who knows that a rank is dead does not wait.
    let (both_have_joined, others) = (Barrier::new(2), others);
    let took = ranks(limit, |communicator| {
        both_have_joined.wait();
        if communicator.rank() == 1 {
            let _ = others.lock().unwrap().recv_timeout(limit * 4);
            return Duration::ZERO;
        }
        let started = Instant::now();
        communicator.abort();
        drop(communicator);
        left.send(()).unwrap();
        started.elapsed()
    });
    assert!(took[0] < limit / 2, "{took:?}");
}

/// Deliberate bugs: who has a result keeps the communicator, and waits for the other ranks once that is dropped; a communicator that has left counts as one that was aborted.
#[test]
fn what_is_pending_waits_for_no_rank_that_stays() {
    let limit = Duration::from_secs(2);
    let (left, others) = mpsc::channel();
    let others = Mutex::new(others);
    ranks(limit, |mut communicator| {
        let mut reduce = || communicator.all_reduce(ones(), ReduceOp::Sum).unwrap();
        let [waited, handed, dropped] = [reduce(), reduce(), reduce()];
        if communicator.rank() == 1 {
            let _ = others.lock().unwrap().recv_timeout(limit * 8);
            return;
        }
        let stream = communicator.device().create_stream(StreamPriority::Normal).unwrap();
        drop(communicator);
        let started = Instant::now();
        assert_eq!(down(handed.wait_on(&stream).unwrap())[0].to_vec::<f32>().unwrap(), [2.0; 3]);
        assert_eq!(down(waited.wait().unwrap())[0].to_vec::<f32>().unwrap(), [2.0; 3]);
        drop(dropped);
        assert!(started.elapsed() < limit / 2, "{:?}", started.elapsed());
        left.send(()).unwrap();
    });
}

/// Deliberate bugs: an aborter finds nothing once the communicator is dropped; it does not end what waits for others to leave.
#[test]
fn an_aborter_ends_the_wait_for_ranks_that_stay() {
    let limit = Duration::from_secs(20);
    let (left, others) = mpsc::channel();
    let others = Mutex::new(others);
    ranks(limit, |mut communicator| {
        communicator.all_reduce(ones(), ReduceOp::Sum).unwrap().wait().unwrap();
        if communicator.rank() == 1 {
            let _ = others.lock().unwrap().recv_timeout(limit * 2);
            return;
        }
        let (aborter, started) = (communicator.aborter(), Instant::now());
        let aborts = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            aborter.abort();
        });
        drop(communicator);
        assert!(started.elapsed() < limit / 2, "{:?}", started.elapsed());
        aborts.join().unwrap();
        left.send(()).unwrap();
    });
}
