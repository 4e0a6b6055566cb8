//! Two processes and the real library between them, over loopback: each case by TCP and within the machine (`shm`).
//!
//! The library is looked for where the loader does. Without it nothing is run, and with `TRANSSHIP_REQUIRE=nixl` that is a failure.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[allow(dead_code, unreachable_pub, reason = "the part of the library that a peer by hand needs")]
#[path = "../../src/error.rs"]
mod error;
#[allow(dead_code, unreachable_pub, reason = "the same")]
#[path = "../../src/nixl/mod.rs"]
mod nixl;

mod by_hand;
mod ends;
mod hostile;
mod killed;
mod owners;
mod pair;
mod stopped;
mod trees;

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use transship_nixl::Nixl;

use crate::pair::{Child, Pair};

/// One end of a case.
type End = fn(&mut Pair);

/// Name, this end, the other one.
const CASES: &[(&str, End, End)] = &[
    ("trees_arrive_in_order_and_again", trees::send_many, trees::receive_many),
    ("large_tensors_arrive_in_pieces", trees::send_large, trees::receive_large),
    ("both_directions_at_once", trees::exchange, trees::exchange),
    ("what_was_sent_is_let_go_of", owners::send_and_want_back, owners::receive_into_held),
    ("trees_that_differ_are_named_on_both_sides", ends::send_other_trees, ends::receive_other_trees),
    ("what_nobody_receives_ends_by_the_deadline", ends::send_to_nobody, ends::receive_late),
    ("a_peer_that_is_killed_ends_its_transfers", ends::outlive, ends::be_killed),
    ("a_peer_that_is_stopped_keeps_memory_set_aside", stopped::wait_for_stopped, stopped::be_stopped),
    ("a_peer_that_is_killed_anywhere_takes_nobody_along", killed::outlive_all, killed::echo),
    ("what_a_stopped_peer_is_written_ends_as_a_whole", stopped::write_to_stopped, stopped::stop_and_read),
    ("an_agent_may_go_while_it_is_written_to", stopped::leave, stopped::be_left),
    ("a_peer_that_begins_anew_is_another_one", ends::send_to_two, ends::receive_one),
    ("what_does_not_fit_is_refused", ends::send_too_much, ends::receive_too_much),
    ("hostile_words_are_refused", hostile::meet, hostile::lie),
];

const TRANSPORTS: [&str; 2] = ["tcp", "shm"];

fn main() -> ExitCode {
    if let Some(child) = Child::of_arguments() {
        if killed::die(&child.case, &child.transport) {
            return ExitCode::SUCCESS;
        }
        let (_, _, end) = CASES.iter().find(|(name, _, _)| *name == child.case).unwrap();
        end(&mut Pair::in_child(&child));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if let Err(error) = Nixl::load() {
        println!("NOT RUN: {error}");
        let is_required = std::env::var("TRANSSHIP_REQUIRE").is_ok_and(|list| list.contains("nixl"));
        return if is_required { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    for (name, end, _) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        // They wait most of the time, for deadlines above all.
        thread::scope(|scope| {
            for transport in TRANSPORTS {
                scope.spawn(move || {
                    let begun = Instant::now();
                    end(&mut Pair::with_child(name, transport));
                    println!("{name}, {transport}: ok, {:.2?}", begun.elapsed());
                });
            }
        });
    }
    ExitCode::SUCCESS
}
