//! Each way to break a rule, and the words of the report.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use driver_sim_engine::{Failure, Return, call};

use crate::bench::{BYTES, Bench, must};
use crate::{Case, Ends, case};

const SIGSEGV: i32 = 11;

pub(crate) fn cases() -> Vec<Case> {
    use Ends::{Broken, Killed};
    vec![
        case!(use_after_a_free_of_another_stream, Broken("copy_up: it runs after its memory was freed")),
        case!(
            use_before_the_allocation_has_run,
            Broken("copy_up: it runs before the allocation of its memory")
        ),
        case!(use_after_the_free_was_submitted, Broken("is used after free_ordered")),
        case!(use_after_free, Broken("no memory of a device is at")),
        case!(use_of_freed_pinned_memory, Broken("the page-locked memory at")),
        case!(touching_freed_pinned_memory, Killed(SIGSEGV)),
        case!(touching_behind_pinned_memory, Killed(SIGSEGV)),
        case!(touching_memory_of_a_device, Killed(SIGSEGV)),
        case!(free_while_in_use, Broken("free: the memory is freed while copy_up still uses it")),
        case!(free_of_pinned_memory_in_use, Broken("free_pinned: the memory is freed while copy_up")),
        case!(double_free, Broken("no allocation begins at")),
        case!(double_free_in_order, Broken("is freed twice: by free_ordered before")),
        case!(double_free_of_pinned_memory, Broken("is freed twice: by free_pinned before")),
        case!(
            unregistered_in_use,
            Broken("unregister_pinned: the memory is freed while copy_up still uses it")
        ),
        case!(unregistered_but_never_registered, Broken("no allocation begins at")),
        case!(written_but_registered_for_reading, Broken("that is registered for reading only")),
        case!(beyond_the_end, Broken("that allocate has given")),
        case!(host_memory_as_that_of_a_device, Broken("no memory of a device is at")),
        case!(pinned_memory_as_that_of_a_device, Broken("is page-locked memory and not a device's")),
        case!(memory_of_a_device_as_that_of_the_host, Broken("is memory of a device and not the host's")),
        case!(memory_of_another_device, Broken("does not reach the memory")),
        case!(a_stream_of_another_context, Broken("of another context than the current one")),
        case!(a_destroyed_stream, Broken("use of a destroyed stream")),
        case!(a_destroyed_event, Broken("use of a destroyed event")),
        case!(a_destroyed_pool, Broken("use of a destroyed pool")),
        case!(an_event_as_a_stream, Broken("is no stream")),
        case!(
            a_call_from_within_a_host_function,
            Broken("called from within a function that runs on a stream")
        ),
        case!(a_table_that_changes_under_its_kernel, Broken("its table has changed since it was launched")),
        case!(pinned_memory_freed_under_a_kernel, Broken("is freed while launch_kernel still uses it")),
        case!(released_once_too_often, Broken("released more often than it was retained")),
        case!(a_context_that_ends_with_something_in_it, Broken("leaves behind 4096 bytes of allocate")),
        case!(open_at_the_end, Broken("at exit: still open: an event of create_event")),
        case!(a_pool_open_at_the_end, Broken("still open: a pool of create_pool")),
    ]
}

static GATE: AtomicBool = AtomicBool::new(false);

fn use_after_a_free_of_another_stream() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate_on(bench.first));
    bench.synchronize(bench.first);
    bench.hold(bench.first, &GATE);
    bench.up(there, from.0, bench.first);
    must("free_ordered", |sim| sim.free_ordered(there, bench.second));
    bench.synchronize(bench.second);
    GATE.store(true, Ordering::SeqCst);
    bench.synchronize(bench.first);
    from.free();
    bench.close();
}

fn use_before_the_allocation_has_run() {
    let bench = Bench::new();
    let from = bench.pinned(1);
    bench.hold(bench.first, &GATE);
    let there = bench.allocate_on(bench.first);
    bench.up(there, from.0, bench.second);
    bench.synchronize(bench.second);
    GATE.store(true, Ordering::SeqCst);
    must("free_ordered", |sim| sim.free_ordered(there, bench.first));
    from.free();
    bench.close();
}

fn use_after_the_free_was_submitted() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate_on(bench.first));
    must("free_ordered", |sim| sim.free_ordered(there, bench.first));
    let refused = call("copy_up", |sim| sim.copy_up(there, from.0, BYTES, bench.first, Return::AtOnce));
    assert_eq!(refused, Err(Failure::InvalidValue));
    from.free();
    bench.close();
}

fn use_after_free() {
    let bench = Bench::new();
    let there = bench.allocate();
    must("free", |sim| sim.free(there));
    let refused = call("fill", |sim| sim.fill(there, 1, BYTES, bench.first));
    assert_eq!(refused, Err(Failure::InvalidValue));
    bench.close();
}

fn use_of_freed_pinned_memory() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate());
    from.free();
    let refused = call("copy_up", |sim| sim.copy_up(there, from.0, BYTES, bench.first, Return::AtOnce));
    assert_eq!(refused, Err(Failure::InvalidValue));
    must("free", |sim| sim.free(there));
    bench.close();
}

fn touching_freed_pinned_memory() {
    let bench = Bench::new();
    let pinned = bench.pinned(1);
    pinned.free();
    pinned.fill(2);
}

fn touching_behind_pinned_memory() {
    let bench = Bench::new();
    crate::bench::Pinned(bench.pinned(1).0 + 1).fill(2);
}

fn touching_memory_of_a_device() {
    let bench = Bench::new();
    crate::bench::Pinned(bench.allocate()).fill(2);
}

fn free_while_in_use() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate());
    bench.hold(bench.first, &GATE);
    bench.up(there, from.0, bench.first);
    must("free", |sim| sim.free(there));
    GATE.store(true, Ordering::SeqCst);
    bench.synchronize(bench.first);
    from.free();
    bench.close();
}

fn free_of_pinned_memory_in_use() {
    let bench = Bench::new();
    let (from, there) = (bench.pinned(1), bench.allocate());
    bench.hold(bench.first, &GATE);
    bench.up(there, from.0, bench.first);
    from.free();
    GATE.store(true, Ordering::SeqCst);
    bench.synchronize(bench.first);
    must("free", |sim| sim.free(there));
    bench.close();
}

fn double_free() {
    let bench = Bench::new();
    let there = bench.allocate();
    must("free", |sim| sim.free(there));
    assert_eq!(call("free", |sim| sim.free(there)), Err(Failure::InvalidValue));
    bench.close();
}

fn double_free_in_order() {
    let bench = Bench::new();
    let there = bench.allocate_on(bench.first);
    bench.hold(bench.first, &GATE);
    must("free_ordered", |sim| sim.free_ordered(there, bench.first));
    let again = call("free_ordered", |sim| sim.free_ordered(there, bench.first));
    assert_eq!(again, Err(Failure::InvalidValue));
    GATE.store(true, Ordering::SeqCst);
    bench.close();
}

fn double_free_of_pinned_memory() {
    let bench = Bench::new();
    let pinned = bench.pinned(1);
    pinned.free();
    assert_eq!(call("free_pinned", |sim| sim.free_pinned(pinned.0)), Err(Failure::InvalidValue));
    bench.close();
}

fn unregistered_in_use() {
    let bench = Bench::new();
    let (memory, there) = (Registered::new(false), bench.allocate());
    bench.hold(bench.first, &GATE);
    bench.up(there, memory.address(), bench.first);
    memory.unregister();
    GATE.store(true, Ordering::SeqCst);
    bench.synchronize(bench.first);
    must("free", |sim| sim.free(there));
    bench.close();
}

fn unregistered_but_never_registered() {
    let bench = Bench::new();
    let local = [0_u8; 8];
    let unregister = |address| call("unregister_pinned", |sim| sim.unregister_pinned(address));
    assert_eq!(unregister(local.as_ptr().addr() as u64), Err(Failure::InvalidValue));
    bench.close();
}

fn written_but_registered_for_reading() {
    let bench = Bench::new();
    let (memory, there) = (Registered::new(true), bench.allocate());
    let down = |sim: &mut driver_sim_engine::Sim| {
        sim.copy_down(memory.address(), there, BYTES, bench.first, Return::AtOnce)
    };
    assert_eq!(call("copy_down", down), Err(Failure::InvalidValue));
    memory.unregister();
    must("free", |sim| sim.free(there));
    bench.close();
}

/// Memory of the program.
struct Registered(Vec<u8>);

impl Registered {
    fn new(read_only: bool) -> Self {
        let memory = Self(vec![0; BYTES]);
        let register = |part: usize| {
            call("register_pinned", |sim| {
                sim.register_pinned(memory.address() + part as u64, BYTES - part, true, read_only)
            })
        };
        register(0).unwrap();
        assert!([0, 100].map(register).iter().all(|again| *again == Err(Failure::AlreadyRegistered)));
        memory
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn unregister(&self) {
        must("unregister_pinned", |sim| sim.unregister_pinned(self.address()));
    }
}

fn beyond_the_end() {
    let bench = Bench::new();
    let there = bench.allocate();
    let refused = call("fill", |sim| sim.fill(there + 1, 1, BYTES, bench.first));
    assert_eq!(refused, Err(Failure::InvalidValue));
    must("free", |sim| sim.free(there));
    bench.close();
}

fn host_memory_as_that_of_a_device() {
    let bench = Bench::new();
    let bytes = vec![0_u8; BYTES];
    let address = bytes.as_ptr().expose_provenance() as u64;
    assert_eq!(call("fill", |sim| sim.fill(address, 1, BYTES, bench.first)), Err(Failure::InvalidValue));
    bench.close();
}

fn pinned_memory_as_that_of_a_device() {
    let bench = Bench::new();
    let pinned = bench.pinned(1);
    assert_eq!(call("fill", |sim| sim.fill(pinned.0, 1, BYTES, bench.first)), Err(Failure::InvalidValue));
    pinned.free();
    bench.close();
}

fn memory_of_a_device_as_that_of_the_host() {
    let bench = Bench::new();
    let (from, to) = (bench.allocate(), bench.allocate());
    let refused = call("copy_up", |sim| sim.copy_up(to, from, BYTES, bench.first, Return::AtOnce));
    assert_eq!(refused, Err(Failure::InvalidValue));
    for address in [from, to] {
        must("free", |sim| sim.free(address));
    }
    bench.close();
}

/// Without the access of peers; with it the same passes.
fn memory_of_another_device() {
    let bench = Bench::new();
    let here = bench.allocate();
    let other = must("retain", |sim| sim.retain_primary(1));
    must("push", |sim| sim.push_context(other));
    let there = must("allocate", |sim| sim.allocate(BYTES));
    must("pop", |sim| sim.pop_context());
    let copy = || call("copy", |sim| sim.copy_between(here, there, BYTES, bench.first, Return::WhenDone));
    assert_eq!(copy(), Err(Failure::InvalidValue));
    must("enable_peer", |sim| sim.enable_peer(other));
    assert_eq!(copy(), Ok(()));
    must("free", |sim| sim.free(here));
    must("push", |sim| sim.push_context(other));
    must("free", |sim| sim.free(there));
    must("pop", |sim| sim.pop_context());
    must("release", |sim| sim.release_primary(1));
    bench.close();
}

fn a_stream_of_another_context() {
    let bench = Bench::new();
    let other = must("retain", |sim| sim.retain_primary(1));
    must("push", |sim| sim.push_context(other));
    let refused = call("synchronize", |sim| sim.synchronize_stream(bench.first));
    assert_eq!(refused, Err(Failure::InvalidContext));
    must("pop", |sim| sim.pop_context());
    must("release", |sim| sim.release_primary(1));
    bench.close();
}

fn a_destroyed_stream() {
    let bench = Bench::new();
    let stream = must("create_stream", |sim| sim.create_stream(false, 0));
    must("destroy_stream", |sim| sim.destroy_stream(stream));
    let refused = call("synchronize", |sim| sim.synchronize_stream(stream));
    assert_eq!(refused, Err(Failure::InvalidHandle));
    bench.close();
}

fn a_destroyed_event() {
    let bench = Bench::new();
    let event = must("create_event", |sim| sim.create_event(false));
    must("destroy_event", |sim| sim.destroy_event(event));
    assert_eq!(call("query", |sim| sim.query_event(event)), Err(Failure::InvalidHandle));
    bench.close();
}

fn a_destroyed_pool() {
    let bench = Bench::new();
    let pool = must("create_pool", |sim| sim.create_pool(0));
    must("destroy_pool", |sim| sim.destroy_pool(pool));
    assert_eq!(call("trim", |sim| sim.trim_pool(pool, 0)), Err(Failure::InvalidHandle));
    bench.close();
}

fn an_event_as_a_stream() {
    let bench = Bench::new();
    let event = must("create_event", |sim| sim.create_event(false));
    let refused = call("synchronize", |sim| sim.synchronize_stream(event));
    assert_eq!(refused, Err(Failure::InvalidHandle));
    must("destroy_event", |sim| sim.destroy_event(event));
    bench.close();
}

fn a_call_from_within_a_host_function() {
    unsafe extern "C" fn calls(_: *mut c_void) {
        assert_eq!(call("count", |sim| sim.device_count()), Err(Failure::NotPermitted));
    }
    let bench = Bench::new();
    must("launch_host", |sim| sim.launch_host(bench.first, calls, std::ptr::null_mut()));
    bench.close();
}

fn a_table_that_changes_under_its_kernel() {
    let bench = Bench::new();
    let (table, to, there) = (bench.pinned(0), bench.pinned(0), bench.allocate());
    bench.gather(table, [there, to.0, 8], bench.first);
    table.fill(0);
    bench.synchronize(bench.first);
    must("free", |sim| sim.free(there));
    table.free();
    to.free();
    bench.close();
}

fn pinned_memory_freed_under_a_kernel() {
    let bench = Bench::new();
    let (table, to, there) = (bench.pinned(0), bench.pinned(0), bench.allocate());
    bench.hold(bench.first, &GATE);
    bench.gather(table, [there, to.0, 8], bench.first);
    to.free();
    GATE.store(true, Ordering::SeqCst);
    bench.synchronize(bench.first);
    must("free", |sim| sim.free(there));
    table.free();
    bench.close();
}

fn released_once_too_often() {
    Bench::new().close();
    assert_eq!(call("release", |sim| sim.release_primary(0)), Err(Failure::InvalidContext));
}

fn a_context_that_ends_with_something_in_it() {
    let bench = Bench::new();
    bench.allocate();
    bench.close();
}

fn open_at_the_end() {
    let bench = Bench::new();
    must("create_event", |sim| sim.create_event(false));
    assert_ne!(bench.context, 0);
}

fn a_pool_open_at_the_end() {
    let bench = Bench::new();
    must("create_pool", |sim| sim.create_pool(0));
    bench.close();
}
