//! A rank without memory, in a process of its own: budgets are those of a device.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

mod support;

use std::sync::Barrier;
use std::time::Duration;

use support::{devices, down, on, ranks};
use transship::Tensor;
use transship_nccl::ReduceOp;

/// Deliberate bug: a rank that cannot take part goes on, and calls have no numbers: its next call is taken for this one, and the sum is that of two calls.
#[test]
fn a_rank_that_cannot_take_part_shifts_no_call() {
    let (devices, both) = (devices(), Barrier::new(2));
    let outcomes = ranks(Duration::from_secs(3), |mut communicator| {
        let rank = communicator.rank();
        let step = |number: usize| on(&devices[rank], vec![Tensor::from(vec![number as f32])]);
        let mut sums = Vec::new();
        for number in 0..3 {
            let tree = step(number);
            if (rank, number) == (1, 1) {
                devices[1].set_memory_budget(1).unwrap();
            }
            let reduced = communicator.all_reduce(tree, ReduceOp::Sum);
            if (rank, number) == (1, 1) {
                devices[1].set_memory_budget(usize::MAX).unwrap();
            }
            sums.push(match reduced {
                Ok(pending) => pending.wait().map(|sum| down(sum)[0].item::<f32>().unwrap()).ok(),
                Err(_) => None,
            });
            if number == 0 {
                both.wait();
            }
        }
        sums
    });
    assert_eq!(outcomes, [[Some(0.0), None, None], [Some(0.0), None, None]]);
}
