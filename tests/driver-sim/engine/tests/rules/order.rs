//! What keeps the rules, and what their order shows.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver_sim_engine::{CaptureMode, Failure, Return, call, exchange_capture_mode};

use crate::bench::{BYTES, Bench, eventually, must};
use crate::{Case, Ends, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_copy_up_and_down, Ends::Well),
        case!(an_event_orders_two_streams, Ends::Well),
        case!(a_missing_dependency_shows_as_wrong_bytes, Ends::Well),
        case!(a_copy_is_made_in_parts, Ends::Well),
        case!(a_seed_gives_the_same_order, Ends::Well, "DRIVER_SIM_LATEST_US" = "60000000"),
        case!(memory_that_changes_under_a_copy_shows, Ends::Well),
        case!(new_memory_is_poison, Ends::Well),
        case!(pageable_memory_is_taken_over_or_waited_for, Ends::Well),
        case!(work_runs_although_nobody_asks, Ends::Well),
        case!(work_does_not_run_when_it_is_submitted, Ends::Well, "DRIVER_SIM_LATEST_US" = "60000000"),
        case!(nothing_can_be_copied, Ends::Well),
        case!(a_question_is_answered_in_time, Ends::Well, "DRIVER_SIM_LATEST_US" = "60000000"),
        case!(the_default_stream_orders_blocking_ones, Ends::Well),
        case!(each_thread_has_a_default_stream, Ends::Well),
        case!(a_graph_runs_what_was_captured, Ends::Well),
        case!(a_gather_copies_what_its_table_says, Ends::Well),
        case!(an_unsafe_call_breaks_a_capture, Ends::Well),
        case!(
            devices_can_be_many_and_alone,
            Ends::Well,
            "DRIVER_SIM_DEVICES" = "8",
            "DRIVER_SIM_PEERS" = "0"
        ),
        case!(there_may_be_no_device, Ends::Well, "DRIVER_SIM_DEVICES" = "0"),
        case!(there_may_be_no_pools, Ends::Well, "DRIVER_SIM_WITHOUT" = "pools"),
        case!(a_slow_device_takes_its_time, Ends::Well, "DRIVER_SIM_SLOW_US" = "30000"),
        case!(what_is_left_open_may_be_allowed, Ends::Well, "DRIVER_SIM_LEAKS" = "allow"),
    ]
}

fn a_copy_up_and_down() {
    let bench = Bench::new();
    let (from, to, there) = (bench.pinned(3), bench.pinned(0), bench.allocate());
    bench.up(there, from.0, bench.first);
    bench.down(to.0, there, bench.first);
    bench.synchronize(bench.first);
    assert_eq!(to.bytes(), [3; BYTES]);
    assert_eq!(figure(c"bytes-up"), BYTES as i64);
    assert_eq!(
        (figure(c"calls:copy_up"), figure(c"most-pinned"), figure(c"what")),
        (1, 2 * BYTES as i64, -1)
    );
    must("free", |sim| sim.free(there));
    from.free();
    to.free();
    bench.close();
}

fn each_thread_has_a_default_stream() {
    const PER_THREAD: u64 = 2;
    static GATE: AtomicBool = AtomicBool::new(false);
    let bench = Bench::new();
    bench.hold(PER_THREAD, &GATE);
    let other = std::thread::spawn({
        let context = bench.context;
        move || {
            must("push", |sim| sim.push_context(context));
            // It would wait for ever.
            must("synchronize", |sim| sim.synchronize_stream(PER_THREAD));
        }
    });
    other.join().unwrap();
    GATE.store(true, Ordering::SeqCst);
    bench.synchronize(PER_THREAD);
    bench.close();
}

fn figure(name: &CStr) -> i64 {
    // SAFETY: a string with a zero behind it.
    unsafe { driver_sim_engine::query(name.as_ptr()) }
}

fn tell(command: &CStr) {
    let command: *const c_char = command.as_ptr();
    // SAFETY: a string with a zero behind it.
    assert_eq!(unsafe { driver_sim_engine::control(command) }, 0);
}

fn an_event_orders_two_streams() {
    let bench = Bench::new();
    for round in 0..50 {
        assert_eq!(up_here_and_down_there(&bench, round, true), [round; BYTES]);
    }
    bench.close();
}

/// Over many rounds the order is the wrong one at least once, and at least once it is not.
fn a_missing_dependency_shows_as_wrong_bytes() {
    let bench = Bench::new();
    let right =
        rounds().filter(|round| up_here_and_down_there(&bench, *round, false) == [*round; BYTES]).count();
    assert!((1..rounds().count()).contains(&right), "{right} rounds were in order by chance");
    bench.close();
}

/// Over many rounds a copy on another stream finds a part of it at least once.
fn a_copy_is_made_in_parts() {
    let bench = Bench::new();
    let is_mixed = |found: &[u8], value| found.contains(&value) && found.iter().any(|byte| *byte != value);
    let mixed = rounds().filter(|round| is_mixed(&up_here_and_down_there(&bench, *round, false), *round));
    assert!(mixed.count() > 0, "every copy was made at once");
    bench.close();
}

fn a_seed_gives_the_same_order() {
    let bench = Bench::new();
    let run = |seed: &CStr| {
        tell(seed);
        (0..20).map(|round| up_here_and_down_there(&bench, round, false)).collect::<Vec<_>>()
    };
    let first = run(c"seed 5");
    assert!(first == run(c"seed 5"), "the same seed gives another order");
    assert!(first != run(c"seed 6"), "another seed gives the same order");
    bench.close();
}

/// Values other than what lies there before.
fn rounds() -> impl Iterator<Item = u8> {
    (0..90).cycle().take(500)
}

/// What a copy down on one stream finds of a copy up on another.
fn up_here_and_down_there(bench: &Bench, value: u8, ordered: bool) -> Vec<u8> {
    let (from, to, there) = (bench.pinned(value), bench.pinned(99), bench.allocate());
    bench.up(there, from.0, bench.first);
    if ordered {
        let event = must("create_event", |sim| sim.create_event(false));
        must("record", |sim| sim.record_event(event, bench.first));
        must("wait", |sim| sim.wait_event(bench.second, event));
        must("destroy_event", |sim| sim.destroy_event(event));
    }
    bench.down(to.0, there, bench.second);
    bench.synchronize(bench.second);
    let found = to.bytes();
    bench.synchronize(bench.first);
    must("free", |sim| sim.free(there));
    from.free();
    to.free();
    found
}

fn memory_that_changes_under_a_copy_shows() {
    let bench = Bench::new();
    let (from, to, there) = (bench.pinned(1), bench.pinned(0), bench.allocate());
    bench.up(there, from.0, bench.first);
    bench.down(to.0, there, bench.first);
    from.fill(2);
    bench.synchronize(bench.first);
    assert!(to.bytes().contains(&2), "the copy has run at once");
    must("free", |sim| sim.free(there));
    from.free();
    to.free();
    bench.close();
}

fn new_memory_is_poison() {
    let bench = Bench::new();
    let (to, there) = (bench.pinned(0), bench.allocate());
    bench.down(to.0, there, bench.first);
    bench.synchronize(bench.first);
    assert!(to.bytes().iter().all(|byte| *byte != 0));
    let pinned = must("allocate_pinned", |sim| sim.allocate_pinned(BYTES, true));
    let pinned = crate::bench::Pinned(pinned);
    assert!(pinned.bytes().iter().all(|byte| *byte != 0));
    must("free", |sim| sim.free(there));
    to.free();
    pinned.free();
    bench.close();
}

fn pageable_memory_is_taken_over_or_waited_for() {
    let bench = Bench::new();
    let there = bench.allocate();
    let mut from = vec![4_u8; BYTES];
    let mut to = vec![0_u8; BYTES];
    let address = |bytes: &mut Vec<u8>| bytes.as_mut_ptr().expose_provenance() as u64;
    bench.up(there, address(&mut from), bench.first);
    from.fill(5);
    bench.down(address(&mut to), there, bench.first);
    assert_eq!(to, [4; BYTES]);
    must("free", |sim| sim.free(there));
    bench.close();
}

fn work_runs_although_nobody_asks() {
    let bench = Bench::new();
    let (from, to, there) = (bench.pinned(6), bench.pinned(0), bench.allocate());
    bench.up(there, from.0, bench.first);
    bench.down(to.0, there, bench.first);
    assert!(eventually(|| to.bytes() == [6; BYTES]));
    bench.synchronize(bench.first);
    must("free", |sim| sim.free(there));
    from.free();
    to.free();
    bench.close();
}

fn work_does_not_run_when_it_is_submitted() {
    let bench = Bench::new();
    let (from, to, there) = (bench.pinned(6), bench.pinned(0), bench.allocate());
    bench.up(there, from.0, bench.first);
    bench.down(to.0, there, bench.first);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(to.bytes(), [0; BYTES]);
    bench.synchronize(bench.first);
    assert_eq!(to.bytes(), [6; BYTES]);
    must("free", |sim| sim.free(there));
    from.free();
    to.free();
    bench.close();
}

/// Not at the first question, but some time.
fn a_question_is_answered_in_time() {
    let bench = Bench::new();
    let mut questions = Vec::new();
    for _ in 0..20 {
        let event = must("create_event", |sim| sim.create_event(false));
        must("record", |sim| sim.record_event(event, bench.first));
        let asked = (1..1000).find(|_| must("query", |sim| sim.query_event(event)));
        questions.push(asked.expect("an answer within 1000 questions"));
        must("destroy_event", |sim| sim.destroy_event(event));
    }
    assert!(questions.iter().any(|count| *count > 1), "every answer came at once");
    bench.close();
}

/// A copy of nothing touches nothing, wherever that is.
fn nothing_can_be_copied() {
    let bench = Bench::new();
    must("copy_up", |sim| sim.copy_up(0, 0, 0, bench.first, Return::AtOnce));
    must("copy_down", |sim| sim.copy_down(0, 0, 0, bench.first, Return::WhenDone));
    must("copy_between", |sim| sim.copy_between(0, 0, 0, bench.first, Return::AtOnce));
    must("fill", |sim| sim.fill(0, 0, 0, bench.first));
    bench.close();
}

fn the_default_stream_orders_blocking_ones() {
    let bench = Bench::new();
    let blocking = must("create_stream", |sim| sim.create_stream(true, 0));
    for round in 0..20 {
        let (from, to, there) = (bench.pinned(round), bench.pinned(99), bench.allocate());
        bench.up(there, from.0, blocking);
        bench.down(to.0, there, 0);
        bench.synchronize(0);
        assert_eq!(to.bytes(), [round; BYTES]);
        must("free", |sim| sim.free(there));
        from.free();
        to.free();
    }
    must("destroy_stream", |sim| sim.destroy_stream(blocking));
    bench.close();
}

fn a_graph_runs_what_was_captured() {
    let bench = Bench::new();
    let (to, there) = (bench.pinned(0), bench.allocate());
    must("begin", |sim| sim.begin_capture(bench.first, CaptureMode::Global));
    must("fill", |sim| sim.fill(there, 9, BYTES, bench.first));
    let graph = must("end", |sim| sim.end_capture(bench.first));
    bench.down(to.0, there, bench.first);
    bench.synchronize(bench.first);
    assert_ne!(to.bytes(), [9; BYTES], "the fill ran while it was captured");
    let ready = must("instantiate", |sim| sim.instantiate_graph(graph));
    must("launch", |sim| sim.launch_graph(ready, bench.first));
    bench.down(to.0, there, bench.first);
    bench.synchronize(bench.first);
    assert_eq!(to.bytes(), [9; BYTES]);
    for graph in [graph, ready] {
        must("destroy_graph", |sim| sim.destroy_graph(graph));
    }
    must("free", |sim| sim.free(there));
    to.free();
    bench.close();
}

fn a_gather_copies_what_its_table_says() {
    let bench = Bench::new();
    let (table, to, there) = (bench.pinned(0), bench.pinned(0), bench.allocate());
    must("fill", |sim| sim.fill(there, 8, BYTES, bench.first));
    bench.gather(table, [there, to.0, BYTES as u64], bench.first);
    bench.synchronize(bench.first);
    assert_eq!(to.bytes(), [8; BYTES]);
    must("free", |sim| sim.free(there));
    table.free();
    to.free();
    bench.close();
}

fn an_unsafe_call_breaks_a_capture() {
    let bench = Bench::new();
    let event = must("create_event", |sim| sim.create_event(false));
    let query = || call("query", |sim| sim.query_event(event));
    let capture = |mode| must("begin", |sim| sim.begin_capture(bench.first, mode));
    let end = || call("end", |sim| sim.end_capture(bench.first));
    capture(CaptureMode::Global);
    assert_eq!(query(), Err(Failure::CaptureUnsupported));
    assert_eq!(end(), Err(Failure::CaptureInvalidated));
    capture(CaptureMode::Global);
    exchange_capture_mode(CaptureMode::Relaxed);
    assert_eq!(query(), Ok(true));
    let graph = end().unwrap();
    must("destroy_graph", |sim| sim.destroy_graph(graph));
    must("destroy_event", |sim| sim.destroy_event(event));
    bench.close();
}

fn devices_can_be_many_and_alone() {
    let bench = Bench::new();
    assert_eq!(must("count", |sim| sim.device_count()), 8);
    assert!(!must("peer", |sim| sim.can_access_peer(0, 7)));
    let other = must("retain", |sim| sim.retain_primary(7));
    assert_eq!(call("enable", |sim| sim.enable_peer(other)), Err(Failure::PeerUnsupported));
    assert_eq!(call("retain", |sim| sim.retain_primary(8)), Err(Failure::InvalidDevice));
    must("release", |sim| sim.release_primary(7));
    bench.close();
}

fn there_may_be_no_device() {
    assert_eq!(call("init", |sim| sim.initialise()), Err(Failure::NoDevice));
}

fn there_may_be_no_pools() {
    let bench = Bench::new();
    assert!(!must("has_pools", |sim| Ok(sim.has_pools())));
    assert_eq!(call("create_pool", |sim| sim.create_pool(0)), Err(Failure::NotSupported));
    bench.close();
}

fn a_slow_device_takes_its_time() {
    let bench = Bench::new();
    let start = std::time::Instant::now();
    let there = bench.allocate();
    must("fill", |sim| sim.fill(there, 1, BYTES, bench.first));
    bench.synchronize(bench.first);
    assert!(start.elapsed() >= Duration::from_millis(30));
    must("free", |sim| sim.free(there));
    bench.close();
}

fn what_is_left_open_may_be_allowed() {
    static GATE: AtomicBool = AtomicBool::new(false);
    let bench = Bench::new();
    bench.hold(bench.first, &GATE);
    bench.allocate();
    GATE.store(true, Ordering::SeqCst);
}
