//! Faults on demand.

use std::ffi::CStr;

use driver_sim_engine::{Failure, PoolFigure, Return, call, control, query};

use crate::bench::{BYTES, Bench, must};
use crate::{Case, Ends, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_nth_call_fails, Ends::Well),
        case!(faults_of_the_environment, Ends::Well, "DRIVER_SIM_FAULTS" = "allocate@2=oom"),
        case!(
            faults_that_are_none,
            Ends::Broken("is no rule for faults"),
            "DRIVER_SIM_FAULTS" = "allocate@2"
        ),
        case!(memory_has_a_limit, Ends::Well),
        case!(a_lost_context_stays_lost_and_others_go_on, Ends::Well),
        case!(a_late_failure_shows_when_the_work_runs, Ends::Well),
        case!(a_copy_comes_out_wrong_where_that_is_asked_for, Ends::Well),
        case!(a_lost_device_cannot_be_opened, Ends::Well),
        case!(a_device_that_hangs_answers_not_ready, Ends::Well, "DRIVER_SIM_LEAKS" = "allow"),
        case!(a_call_is_held_up_until_it_may_go_on, Ends::Well),
        case!(devices_can_be_added, Ends::Well),
        case!(a_pop_that_fails_has_popped, Ends::Well),
        case!(what_is_open_is_counted, Ends::Well),
        case!(what_a_context_leaves_behind_is_counted, Ends::Well),
        case!(memory_of_a_pool_goes_with_a_lost_context, Ends::Well),
    ]
}

fn tell(command: &CStr) -> i64 {
    // SAFETY: a string with a zero behind it.
    unsafe { control(command.as_ptr()) }
}

fn ask(figure: &CStr) -> i64 {
    // SAFETY: as above.
    unsafe { query(figure.as_ptr()) }
}

fn fired() -> i64 {
    ask(c"fired")
}

fn the_nth_call_fails() {
    let bench = Bench::new();
    assert_eq!(tell(c"faults any@2=unknown; create_event@2+=invalid"), 0);
    let create = || call("create_event", |sim| sim.create_event(false));
    let answers = [create(), create(), create()];
    assert_eq!(answers[1..], [Err(Failure::Unknown), Err(Failure::InvalidValue)]);
    assert_eq!((fired(), tell(c"faults x"), tell(c"what")), (2, -1, -1));
    let event = answers[0].unwrap();
    must("destroy_event", |sim| sim.destroy_event(event));
    bench.close();
}

fn faults_of_the_environment() {
    let bench = Bench::new();
    let first = bench.allocate();
    assert_eq!(call("allocate", |sim| sim.allocate(BYTES)), Err(Failure::OutOfMemory));
    must("free", |sim| sim.free(first));
    bench.close();
}

fn faults_that_are_none() {
    Bench::new();
}

fn memory_has_a_limit() {
    let bench = Bench::new();
    assert_eq!(tell(c"faults device>8192=oom; pinned>4096=oom"), 0);
    let there = [bench.allocate(), bench.allocate_on(bench.first)];
    assert_eq!(call("allocate", |sim| sim.allocate(1)), Err(Failure::OutOfMemory));
    let pinned = bench.pinned(1);
    assert_eq!(call("allocate_pinned", |sim| sim.allocate_pinned(1, true)), Err(Failure::OutOfMemory));
    must("free", |sim| sim.free(there[0]));
    must("free_ordered", |sim| sim.free_ordered(there[1], bench.first));
    pinned.free();
    bench.close();
}

fn a_lost_context_stays_lost_and_others_go_on() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate());
    bench.up(there, from.0, bench.first);
    let event = must("create_event", |sim| sim.create_event(false));
    assert_eq!(tell(c"faults fill@1=launch-failed"), 0);
    let lost = Err(Failure::LaunchFailed);
    assert_eq!(call("fill", |sim| sim.fill(there, 1, 1, bench.first)), lost);
    assert_eq!(call("fill", |sim| sim.fill(there, 1, 1, bench.first)), lost);
    assert_eq!(call("synchronize", |sim| sim.synchronize_stream(bench.first)), lost);
    assert_eq!(call("query", |sim| sim.query_event(event)).map(drop), lost);
    let other = must("retain", |sim| sim.retain_primary(1));
    must("push", |sim| sim.push_context(other));
    let there = must("allocate", |sim| sim.allocate(BYTES));
    must("copy_up", |sim| sim.copy_up(there, from.0, BYTES, 0, Return::WhenDone));
    must("free", |sim| sim.free(there));
    must("release", |sim| sim.release_primary(1));
}

fn a_late_failure_shows_when_the_work_runs() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate());
    assert_eq!(tell(c"faults copy_up@1=late-launch-failed"), 0);
    bench.up(there, from.0, bench.first);
    let synchronized = call("synchronize", |sim| sim.synchronize_stream(bench.first));
    assert_eq!(synchronized, Err(Failure::LaunchFailed));
}

fn a_copy_comes_out_wrong_where_that_is_asked_for() {
    let bench = Bench::new();
    let (from, to, there) = (bench.pinned(1), bench.pinned(0), bench.allocate());
    assert_eq!(tell(c"faults copy_up@2=wrong"), 0);
    let mut came = Vec::new();
    for _ in 0..3 {
        bench.up(there, from.0, bench.first);
        bench.down(to.0, there, bench.first);
        bench.synchronize(bench.first);
        came.push((to.bytes()[0], to.bytes()[1..] == [1; BYTES - 1]));
    }
    assert_eq!((came, fired()), (vec![(1, true), (!1, true), (1, true)], 1));
    must("free", |sim| sim.free(there));
    from.free();
    to.free();
    bench.close();
}

fn a_lost_device_cannot_be_opened() {
    let bench = Bench::new();
    assert_eq!(tell(c"faults allocate@1=device-lost"), 0);
    assert_eq!(call("allocate", |sim| sim.allocate(1)), Err(Failure::DeviceLost));
    assert_eq!(call("retain", |sim| sim.retain_primary(0)), Err(Failure::DeviceLost));
    assert_eq!(call("synchronize", |sim| sim.synchronize_stream(bench.first)), Err(Failure::DeviceLost));
    must("retain", |sim| sim.retain_primary(1));
    must("release", |sim| sim.release_primary(1));
}

fn a_device_that_hangs_answers_not_ready() {
    let bench = Bench::new();
    let there = bench.allocate();
    assert_eq!(tell(c"faults fill@1=hang"), 0);
    must("fill", |sim| sim.fill(there, 1, 1, bench.first));
    std::thread::sleep(std::time::Duration::from_millis(20));
    for _ in 0..1000 {
        assert!(!must("query", |sim| sim.query_stream(bench.first)));
    }
}

fn a_call_is_held_up_until_it_may_go_on() {
    let bench = Bench::new();
    let count = || call("count", |sim| sim.device_count()).is_ok();
    assert_eq!(tell(c"hold 1"), 0);
    assert!(count(), "calls of this thread go on");
    let other = std::thread::spawn(move || (count(), ask(c"held"), count()));
    while ask(c"held") == 0 {
        std::thread::yield_now();
    }
    assert!(count() && !other.is_finished());
    assert_eq!(tell(c"go"), 0);
    assert_eq!(other.join().unwrap(), (true, 0, true));
    assert_eq!((ask(c"held"), tell(c"hold soon")), (0, -1));
    bench.close();
}

fn devices_can_be_added() {
    let bench = Bench::new();
    assert_eq!(call("retain", |sim| sim.retain_primary(3)), Err(Failure::InvalidDevice));
    assert_eq!(tell(c"devices 4"), 0);
    must("retain", |sim| sim.retain_primary(3));
    must("release", |sim| sim.release_primary(3));
    bench.close();
}

fn a_pop_that_fails_has_popped() {
    let bench = Bench::new();
    assert_eq!(tell(c"faults cuCtxPopCurrent_v2@1=unknown"), 0);
    must("push", |sim| sim.push_context(bench.context));
    assert_eq!(call("cuCtxPopCurrent_v2", |sim| sim.pop_context()), Err(Failure::Unknown));
    must("cuCtxPopCurrent_v2", |sim| sim.pop_context());
    assert_eq!(must("current", |sim| sim.current_context()), None);
    must("push", |sim| sim.push_context(bench.context));
    bench.close();
}

fn what_is_open_is_counted() {
    let bench = Bench::new();
    let figures = || [c"stack", c"contexts:0", c"handles:0", c"blocks:0"].map(ask);
    assert_eq!(figures(), [1, 1, 2, 0]);
    assert_eq!([c"capture-mode", c"handles:9", c"blocks:9", c"handles:1"].map(ask), [0, -1, -1, 0]);
    let (event, memory) = (must("create_event", |sim| sim.create_event(false)), bench.allocate());
    let pool = must("create_pool", |sim| sim.create_pool(0));
    assert_eq!(figures(), [1, 1, 4, 1]);
    must("destroy_event", |sim| sim.destroy_event(event));
    must("free", |sim| sim.free(memory));
    must("destroy_pool", |sim| sim.destroy_pool(pool));
    assert_eq!(figures(), [1, 1, 2, 0]);
    bench.close();
}

fn what_a_context_leaves_behind_is_counted() {
    let bench = Bench::new();
    let memory = bench.allocate();
    assert_eq!(tell(c"faults free@1=unknown; what@1=oom"), 0);
    assert_eq!(call("free", |sim| sim.free(memory)), Err(Failure::Unknown));
    assert_eq!([c"fired:free", c"fired:what", c"fired"].map(ask), [1, 0, 1]);
    must("pop", |sim| sim.pop_context());
    must("release", |sim| sim.release_primary(0));
    assert_eq!([c"stack", c"contexts:0", c"handles:0", c"blocks:0"].map(ask), [0, 0, 2, 1]);
}

fn memory_of_a_pool_goes_with_a_lost_context() {
    let bench = Bench::new();
    let pool = must("create_pool", |sim| sim.create_pool(0));
    must("allocate_ordered", |sim| sim.allocate_ordered(BYTES, Some(pool), bench.first));
    assert_eq!(tell(c"faults fill@1=launch-failed"), 0);
    assert_eq!(call("fill", |sim| sim.fill(0, 1, 1, 0)), Err(Failure::LaunchFailed));
    assert_eq!(must("figure", |sim| sim.pool_figure(pool, PoolFigure::Used)), BYTES as u64);
    must("pop", |sim| sim.pop_context());
    must("release", |sim| sim.release_primary(0));
    assert_eq!(must("figure", |sim| sim.pool_figure(pool, PoolFigure::Used)), 0);
    must("destroy_pool", |sim| sim.destroy_pool(pool));
}
