//! Memory of the program that is page-locked where it lies: who may have it, when it is unlocked, and what becomes of its owner.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/support/hostile.rs"]
mod hostile;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hostile::{Flag, Owner};
use late_backend::{Call, LateConfig, LateHandle};
use support::{PATIENCE, bytes_of, eventually, late, no_violations, on, two, with};
use transship_core::{
    Alignment, Cancelled, CopyOptions, DType, Device, Error, ErrorKind, MemoryKind, Registered, Tensor,
    TimedWait, runtime_stats, start_copy, start_copy_into,
};

const MIB: usize = 1 << 20;
/// A page at the least, on any system.
const PAGE: usize = 64 << 10;

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn calls(late: &LateHandle, call: Call) -> usize {
    late.calls().iter().filter(|made| made.call == call).count()
}

/// Bytes that share no page with anything else.
fn apart(bytes: usize) -> (Vec<u8>, std::ops::Range<usize>) {
    let mut memory = vec![0; bytes + 2 * PAGE];
    let lead = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    memory[lead..lead + bytes].copy_from_slice(&numbers(bytes));
    (memory, lead..lead + bytes)
}

/// Lends pages of its own, and says when it goes, on which thread, and what had happened by then.
struct Lender<F: Fn() + Send + Sync> {
    memory: Vec<u8>,
    part: std::ops::Range<usize>,
    on_drop: F,
}

impl<F: Fn() + Send + Sync> Lender<F> {
    fn new(bytes: usize, on_drop: F) -> Self {
        let (memory, part) = apart(bytes);
        Self { memory, part, on_drop }
    }
}

impl<F: Fn() + Send + Sync> AsRef<[u8]> for Lender<F> {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.part.clone()]
    }
}

impl<F: Fn() + Send + Sync> Drop for Lender<F> {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

fn whole(memory: &Registered) -> Tensor {
    memory.tensor(DType::U8, &[memory.nbytes()], 0).unwrap()
}

/// A vector whose last page is its own: other tests register vectors as well, and a page is registered once.
fn spaced<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut vec = Vec::with_capacity(count + PAGE);
    vec.resize(count, value);
    vec
}

fn numbers(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8).collect()
}

#[test]
fn large_tensors_and_views_of_registered_memory_are_copied_as_they_lie() {
    let (late, device) = late();
    let memory = device.register(Lender::new(3 * MIB, || {})).unwrap();
    assert_eq!((memory.nbytes(), memory.memory_kind()), (3 * MIB, MemoryKind::Pinned));
    let tensor = memory.tensor(DType::F32, &[2, MIB / 4], MIB).unwrap();
    assert_eq!(tensor.memory_kind().unwrap(), MemoryKind::Pinned);
    let expected = tensor.to_bytes().unwrap();
    let rows = [tensor.narrow(0, 0, 1).unwrap(), tensor.narrow(0, 1, 1).unwrap()];
    let copy = start_copy((tensor, rows), &device, options().packing(false)).unwrap();
    let (there, report) = copy.wait_with_report().unwrap();
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes), (0, 0), "{report}");
    assert!(!report.background, "{report}");
    assert!(bytes_of(&there.0) == expected);
    assert!([&there.1[0], &there.1[1]].map(bytes_of).concat() == expected);
    drop(memory);
    eventually("the memory is unregistered", || calls(&late, Call::Unregister) == 1);
    no_violations(&late);
}

/// Small ones are packed, as those in any other memory.
#[test]
fn an_arena_of_small_tensors_is_packed() {
    let (late, device) = late();
    let memory = device.register(Lender::new(528 * 256, || {})).unwrap();
    let leaves: Vec<_> =
        (0..528).map(|index| memory.tensor(DType::I64, &[32], index * 256).unwrap()).collect();
    let expected = numbers(528 * 256);
    let (there, report) = start_copy(leaves.clone(), &device, options()).unwrap().wait_with_report().unwrap();
    assert_eq!((report.packed, report.copies), (528, 1), "{report}");
    assert!(there.iter().flat_map(bytes_of).collect::<Vec<_>>() == expected);
    // One run of memory is one copy.
    let options = options().packing(false);
    let (there, report) = start_copy(leaves, &device, options).unwrap().wait_with_report().unwrap();
    assert_eq!((report.alone, report.pinned_staging_bytes), (528, 0), "{report}");
    assert!(there.iter().flat_map(bytes_of).collect::<Vec<_>>() == expected);
    no_violations(&late);
}

/// Mutant: every driver takes it for page-locked.
#[test]
fn every_device_of_the_driver_reads_it_and_no_other() {
    let (late, first, second) = two(LateConfig::new("late"));
    let (other, stranger) = with(LateConfig::new("stranger"));
    let memory = first.register(Lender::new(MIB, || {})).unwrap();
    for (device, staged) in [(&first, false), (&second, false), (&stranger, true)] {
        let (there, report) =
            start_copy(whole(&memory), device, options()).unwrap().wait_with_report().unwrap();
        assert_eq!(report.pinned_staging_bytes > 0, staged, "{device:?}: {report}");
        assert!(bytes_of(&there) == numbers(MIB));
    }
    no_violations(&late);
    no_violations(&other);
}

/// The memory stays locked, and its owner alive, until the last copy out of it is over.
///
/// Mutants: it is unlocked while a copy out of it is in flight; its owner goes on the thread that unlocks.
#[test]
fn it_is_unlocked_behind_its_last_copy_and_then_its_owner_goes() {
    let (late, device) = late();
    let seen: Arc<Mutex<Option<(usize, ThreadId)>>> = Arc::default();
    let lender = {
        let (seen, late) = (seen.clone(), late.clone());
        Lender::new(MIB, move || {
            *seen.lock().unwrap() = Some((calls(&late, Call::Unregister), thread::current().id()));
        })
    };
    let memory = device.register(lender).unwrap();
    late.stall();
    let copy = start_copy(whole(&memory), &device, options()).unwrap();
    drop(memory);
    drop(copy);
    thread::sleep(Duration::from_millis(20));
    assert!(calls(&late, Call::Unregister) == 0 && seen.lock().unwrap().is_none(), "a copy is in flight");
    late.release();
    eventually("the owner goes", || seen.lock().unwrap().is_some());
    let (unregistered, owners) = seen.lock().unwrap().unwrap();
    assert_eq!(unregistered, 1, "the owner goes before its memory is unlocked");
    let unlocking = late.calls().iter().find(|made| made.call == Call::Unregister).unwrap().thread;
    assert!(unlocking != thread::current().id() && owners != unlocking && owners != thread::current().id());
    no_violations(&late);
}

/// The driver may take its time to unlock memory: whoever lets go of it does not wait for that, and its owner does.
///
/// Mutants: memory is unlocked by whoever lets go of it; its owner goes before it is unlocked.
#[test]
fn letting_go_waits_for_nothing() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    late.clear_calls();
    late.hold(0);
    drop(memory);
    assert!(late.blocking_calls_here().is_empty());
    eventually("it is being unlocked", || late.is_holding());
    thread::sleep(Duration::from_millis(50));
    assert!(!gone.is_raised(), "the owner goes before its memory is unlocked");
    late.let_go();
    eventually("the owner goes", || gone.is_raised());

    let held = device.register_vec(spaced(1_u8, MIB), &[MIB]).unwrap();
    late.clear_calls();
    drop(held);
    assert!(late.blocking_calls_here().is_empty());
    eventually("the vector is unlocked", || calls(&late, Call::Unregister) == 1);
    no_violations(&late);
}

/// Where it lies for the kernels of another device is not asked: that device stages what comes down.
///
/// Mutant: any device writes to it.
#[test]
fn another_device_writes_to_it_through_staging() {
    let (late, first, second) = two(LateConfig::new("late"));
    let mut held = first.register_vec(spaced(0_u8, MIB), &[MIB]).unwrap();
    for (device, staged) in [(&first, false), (&second, true)] {
        let there = on(device, &numbers(MIB));
        let copy = start_copy_into(there, held, options()).unwrap();
        let (filled, report) = copy.wait_with_report().unwrap();
        assert_eq!(report.pinned_staging_bytes > 0, staged, "{device:?}: {report}");
        held = filled;
        assert!(held.to_bytes().unwrap() == numbers(MIB));
        held.as_mut_bytes().unwrap().fill(0);
    }
    no_violations(&late);
}

/// Cancelled, dropped, timed out: what is in flight stays.
#[test]
fn copies_that_nobody_waits_for_keep_it_locked() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(2 * MIB, move || flag.raise())).unwrap();
    late.stall();
    let copies = [(); 3].map(|()| start_copy(whole(&memory), &device, options()).unwrap());
    drop(memory);
    let [cancelled, dropped, late_one] = copies;
    drop(cancelled.cancel());
    drop(dropped);
    let TimedWait::Pending(pending) = late_one.wait_timeout(Duration::from_millis(5)).unwrap() else {
        panic!("the device stands still");
    };
    assert!(calls(&late, Call::Unregister) == 0 && !gone.is_raised());
    late.release();
    assert!(bytes_of(&pending.wait().unwrap()) == numbers(2 * MIB));
    eventually("the owner goes", || gone.is_raised());
    assert_eq!(calls(&late, Call::Unregister), 1);
    no_violations(&late);
}

#[test]
fn it_outlives_every_handle_of_its_device() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    drop(device);
    assert!(whole(&memory).to_bytes().unwrap() == numbers(MIB));
    let again = Device::from_backend(late.backend(0)).unwrap();
    let (_, report) = start_copy(whole(&memory), &again, options()).unwrap().wait_with_report().unwrap();
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    drop((memory, again));
    eventually("the owner goes", || gone.is_raised());
    no_violations(&late);
}

/// What cannot be unlocked could be taken for locked memory by whoever allocates there next.
///
/// Mutant: memory that the driver has not unlocked is freed.
#[test]
fn what_cannot_be_unlocked_is_leaked_and_counted() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    let leaked = runtime_stats().leaked_bytes;
    late.fail_next(Call::Unregister, 0);
    drop(memory);
    eventually("it is counted", || runtime_stats().leaked_bytes >= leaked + MIB as u64);
    assert!(calls(&late, Call::Unregister) == 1 && !gone.is_raised());
    no_violations(&late);
}

#[test]
fn a_lost_device_leaks_what_it_may_still_read() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    late.stall();
    let copy = start_copy(whole(&memory), &device, options()).unwrap();
    let leaked = runtime_stats().leaks;
    late.break_device();
    late.release();
    assert!(copy.wait().is_err());
    assert!(whole(&memory).to_bytes().unwrap() == numbers(MIB), "the host reads it all the same");
    drop(memory);
    eventually("it is counted", || runtime_stats().leaks > leaked);
    assert!(!gone.is_raised());
}

/// Answers with other bytes each time, and counts.
struct Shifty {
    memory: Vec<u8>,
    asked: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Shifty {
    fn as_ref(&self) -> &[u8] {
        let start = self.memory.as_ptr().addr().next_multiple_of(PAGE) - self.memory.as_ptr().addr();
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        &self.memory[start + asked * MIB..][..MIB]
    }
}

/// Mutant: an owner is asked for its bytes once more after they are locked.
#[test]
fn an_owner_is_asked_once() {
    let (late, device) = late();
    let asked = Arc::<AtomicUsize>::default();
    let mut memory = vec![1; PAGE + 4 * MIB];
    memory[..PAGE + MIB - 1].fill(7);
    let shifty = || Shifty { memory: memory.clone(), asked: asked.clone() };
    late.fail_next(Call::Register, 0);
    let refused = device.register(shifty()).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let back = refused.into_value();
    asked.store(0, Ordering::Relaxed);
    let memory = device.register(back).unwrap();
    assert_eq!(bytes_of(&on(&device, &whole(&memory).to_bytes().unwrap()))[0], 7);
    drop(start_copy(whole(&memory), &device, options()).unwrap().wait().unwrap());
    drop(memory);
    eventually("it is unregistered", || calls(&late, Call::Unregister) == 1);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    no_violations(&late);
}

#[test]
fn owners_that_panic_break_nothing() {
    struct Panics(Arc<AtomicUsize>);
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            panic!("deliberate");
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (late, device) = late();
    let dropped = Arc::<AtomicUsize>::default();
    let owner = Panics(dropped.clone());
    assert!(catch_unwind(AssertUnwindSafe(|| device.register(owner))).is_err());
    assert_eq!((dropped.load(Ordering::Relaxed), calls(&late, Call::Register)), (1, 0));

    let flag = Flag::default();
    let raised = flag.clone();
    let memory = device.register(Lender::new(MIB, move || {
        raised.raise();
        panic!("deliberate");
    }));
    drop(memory.unwrap());
    eventually("the owner goes", || flag.is_raised());
    drop(device.register(Lender::new(MIB, || {})).unwrap());
    eventually("others are unregistered", || calls(&late, Call::Unregister) == 2);
    no_violations(&late);
}

/// Mutants: pages that are registered already are registered once more; pages are never released.
#[test]
fn a_page_is_registered_once() {
    let (late, device) = late();
    let (memory, part) = apart(4 * PAGE);
    let shared = Arc::new(memory);
    let start = part.start;
    let register = |from: usize, to: usize| device.register(Part(shared.clone(), start + from..start + to));
    let held = register(PAGE, 2 * PAGE + 10).unwrap();
    for (from, to) in [(PAGE, 2 * PAGE), (0, 4 * PAGE), (2 * PAGE + 100, 2 * PAGE + 200), (0, PAGE + 1)] {
        let refused = register(from, to).unwrap_err();
        assert!(
            matches!(refused.error(), Error::NotLockable { bytes, .. } if *bytes == to - from),
            "{refused}"
        );
        assert!(refused.to_string().contains("Registered::tensor"), "{refused}");
        assert_eq!(refused.into_value().1.len(), to - from);
    }
    let neighbours = [register(0, PAGE).unwrap(), register(3 * PAGE, 4 * PAGE).unwrap()];
    assert_eq!(calls(&late, Call::Register), 3);
    drop((held, neighbours));
    eventually("all are unregistered", || calls(&late, Call::Unregister) == 3);
    register(0, 4 * PAGE).unwrap();
    no_violations(&late);
}

/// Pages of a vector that others hold as well.
#[derive(Clone)]
struct Part(Arc<Vec<u8>>, std::ops::Range<usize>);

impl Part {
    fn new(bytes: usize) -> Self {
        let (memory, part) = apart(bytes);
        Self(Arc::new(memory), part)
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

/// Unlocking is left to a worker, and registering waits for it.
///
/// Mutant: pages that are being unlocked are refused.
#[test]
fn what_nobody_uses_any_more_is_registered_again_at_once() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let start = |device: &Device| {
        let memory = device.register(part.clone()).unwrap();
        start_copy(whole(&memory), device, options()).unwrap()
    };
    for _ in 0..rounds {
        drop(device.register(part.clone()).unwrap());
        drop(start(&device).wait().unwrap());
        drop(block_on(start(&device)).unwrap());
    }
    assert_eq!(calls(&late, Call::Register), 3 * rounds);
    eventually("the owners go", || Arc::strong_count(&part.0) == 1);
    no_violations(&late);
}

/// Owners of the program wait, on as many threads as there are for them: what a copy was the last to use is unlocked meanwhile.
///
/// Mutant: what is lent goes by way of the threads for owners before it is unlocked.
#[test]
fn pages_are_unlocked_whatever_owners_wait_for() {
    const THREADS_FOR_OWNERS: usize = 64;
    let (late, device) = late();
    let part = Part::new(MIB);
    let (gate, waiting) = (Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
    let shut = gate.lock().unwrap();
    for _ in 0..THREADS_FOR_OWNERS {
        let (gate, waiting) = (gate.clone(), waiting.clone());
        let owner = Owner::new(vec![1; 64], move |_| {
            waiting.fetch_add(1, Ordering::SeqCst);
            drop(gate.lock());
        });
        drop(start_copy(Tensor::from_owner(owner, DType::U8, &[64]).unwrap(), &device, options()).unwrap());
    }
    eventually("all of them wait", || waiting.load(Ordering::SeqCst) == THREADS_FOR_OWNERS);

    let memory = device.register(part.clone()).unwrap();
    late.stall();
    drop(start_copy(whole(&memory), &device, options()).unwrap());
    drop(memory);
    late.release();
    eventually("the pages are unlocked", || calls(&late, Call::Unregister) == 1);
    drop(shut);
    eventually("the owners go", || Arc::strong_count(&part.0) == 1);
    no_violations(&late);
}

/// Mutant: pages that are being unlocked are refused.
#[test]
fn registering_waits_for_pages_that_are_being_unlocked_and_not_for_ever() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let memory = device.register(part.clone()).unwrap();
    late.hold(0);
    drop(memory);
    eventually("it is being unlocked", || late.is_holding());
    let refused = device.register(part.clone()).unwrap_err();
    assert!(refused.to_string().ends_with("is still being unlocked; try again"), "{refused}");
    assert_eq!(refused.error().kind(), ErrorKind::Busy);
    let registered = Flag::default();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let memory = device.register(part.clone());
            registered.raise();
            memory
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!registered.is_raised(), "its pages are locked");
        late.let_go();
        drop(waits.join().unwrap().unwrap());
    });
    no_violations(&late);
}

/// What the driver keeps is said, and waited for by nobody.
#[test]
fn what_the_driver_did_not_unlock_is_not_registered_again() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let memory = device.register(part.clone()).unwrap();
    late.fail_next(Call::Unregister, 0);
    drop(memory);
    let refused = device.register(part).unwrap_err();
    assert!(
        refused.to_string().contains("memory that the driver did not unlock; use other memory"),
        "{refused}"
    );
    no_violations(&late);
}

/// Mutant: it comes back before the memory is unlocked.
#[test]
fn memory_is_unregistered_when_nobody_shares_it() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let memory = device.register(part.clone()).unwrap();
    let clone = memory.clone();
    let refused = memory.unregister().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    drop(clone);
    let memory = refused.into_value();
    late.stall();
    let copy = start_copy(whole(&memory), &device, options()).unwrap();
    let refused = memory.unregister().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    assert_eq!(calls(&late, Call::Unregister), 0);
    late.release();
    drop(copy.wait().unwrap());
    late.fail_next(Call::Unregister, 0);
    let refused = refused.into_value().unregister().unwrap_err();
    assert!(matches!(refused.error(), Error::Driver { .. }), "{refused}");
    let memory = refused.into_value();
    assert_eq!(memory.memory_kind(), MemoryKind::Pinned);
    let refused = device.register(part.clone()).unwrap_err();
    assert!(matches!(refused.error(), Error::NotLockable { .. }), "{refused}");
    memory.unregister().unwrap();
    assert_eq!((calls(&late, Call::Unregister), Arc::strong_count(&part.0)), (2, 2));
    drop(refused);
    let here = thread::current().id();
    let owner = Lender::new(MIB, move || assert_eq!(thread::current().id(), here));
    device.register(owner).unwrap().unregister().unwrap();
    Device::host().register(part.clone()).unwrap().unregister().unwrap();
    device.register(part.clone()).unwrap().unregister().unwrap();
    assert_eq!(Arc::strong_count(&part.0), 1);
    no_violations(&late);
}

/// Mutants: a vector is given out while others use it; what the driver has not unlocked is given out.
#[test]
fn a_vector_is_copied_into_and_comes_back() {
    let (late, device) = late();
    let vec = spaced(1.0_f32, MIB / 2);
    let (start, capacity) = (vec.as_ptr(), vec.capacity());
    let held = device.register_vec(vec, &[2, MIB / 4]).unwrap();
    assert_eq!(held.memory_kind().unwrap(), MemoryKind::Pinned);
    let there = start_copy(Tensor::from(vec![2.5_f32; MIB / 2]), &device, options()).unwrap().wait().unwrap();
    let there = there.reshape(&[2, MIB / 4]).unwrap();
    let (mut held, report) =
        start_copy_into(there.clone(), held, options()).unwrap().wait_with_report().unwrap();
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes), (0, 0), "{report}");
    held.as_mut_slice::<f32>().unwrap()[0] = 4.0;

    // In flight, shared, of another type: it stays a tensor.
    late.stall();
    let copy = start_copy(held.clone(), &device, options()).unwrap();
    let refused = held.into_vec::<f32>().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    late.release();
    let back = copy.wait().unwrap();
    let refused = refused.into_value().into_vec::<u32>().unwrap_err();
    assert!(matches!(refused.error(), Error::WrongDType { .. }), "{refused}");
    let held = refused.into_value();
    late.fail_next(Call::Unregister, 0);
    let refused = held.into_vec::<f32>().unwrap_err();
    assert!(matches!(refused.error(), Error::Driver { .. }), "{refused}");
    let held = refused.into_value();
    assert_eq!(held.memory_kind().unwrap(), MemoryKind::Pinned);

    let vec = held.into_vec::<f32>().unwrap();
    assert_eq!((vec.as_ptr(), vec.capacity(), vec.len()), (start, capacity, MIB / 2));
    assert!(vec[0] == 4.0 && vec[1..].iter().all(|value| *value == 2.5));
    assert_eq!(calls(&late, Call::Unregister), 2);
    assert_eq!(bytes_of(&back)[..4], 4.0_f32.to_ne_bytes());
    no_violations(&late);
}

/// A copy down that nobody waits for writes it until it is over.
#[test]
fn a_vector_does_not_come_back_while_it_is_filled() {
    let (late, device) = late();
    let there = on(&device, &numbers(MIB));
    let held = device.register_vec(spaced(0_u8, MIB), &[MIB]).unwrap();
    late.stall();
    let handle = start_copy_into(there, held, options()).unwrap();
    let TimedWait::Pending(handle) = handle.wait_timeout(Duration::from_millis(5)).unwrap() else {
        panic!("the device stands still");
    };
    let Cancelled { value, into, .. } = handle.cancel();
    assert_eq!(calls(&late, Call::Unregister), 0);
    for held in [value, into].into_iter().flatten() {
        // The source is on a device, what was to be filled is not done.
        assert!(held.into_vec::<u8>().is_err());
    }
    late.release();
    eventually("it is unregistered", || calls(&late, Call::Unregister) == 1);
    no_violations(&late);
}

#[test]
fn small_results_come_down_into_one_vector() {
    let (late, device) =
        with(LateConfig { gather: Some(24), gather_strided: Some(176), ..LateConfig::new("late") });
    let there = on(&device, &numbers(100 * 256));
    let leaves = |tensor: &Tensor| -> Vec<_> {
        (0..100).map(|index| tensor.narrow(0, index * 256, 256).unwrap()).collect()
    };
    let held = device.register_vec(spaced(0_u8, 100 * 256), &[100 * 256]).unwrap();
    let parts = leaves(&held);
    drop(held);
    let (parts, report) =
        start_copy_into(leaves(&there), parts, options()).unwrap().wait_with_report().unwrap();
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert!(parts.iter().flat_map(|part| part.to_bytes().unwrap()).collect::<Vec<_>>() == numbers(100 * 256));
    no_violations(&late);
}

/// Mutant: bits are not looked at.
#[test]
fn bools_that_are_none_stay_in_their_tensor() {
    let (late, device) = late();
    let there = on(&device, &[7; 10]);
    let held = device.register_vec(spaced(true, 10), &[10]).unwrap();
    drop(there);
    let mut held = held;
    held.as_mut_bytes().unwrap()[3] = 7;
    let refused = held.into_vec::<bool>().unwrap_err();
    assert!(matches!(refused.error(), Error::InvalidBits { dtype: DType::Bool }), "{refused}");
    assert_eq!(calls(&late, Call::Unregister), 0);
    let mut held = refused.into_value();
    held.as_mut_bytes().unwrap()[3] = 0;
    assert_eq!(held.into_vec::<bool>().unwrap().iter().filter(|set| **set).count(), 9);
    no_violations(&late);
}

#[test]
fn vectors_come_out_of_ordinary_tensors_as_well() {
    let tensor = Tensor::from_vec(vec![1_u16, 2, 3, 4], &[2, 2]).unwrap();
    let row = tensor.narrow(0, 1, 1).unwrap();
    let refused = tensor.into_vec::<u16>().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    drop(row);
    assert_eq!(refused.into_value().into_vec::<u16>().unwrap(), [1, 2, 3, 4]);
    let zeros = Tensor::zeros(&[4], DType::U8, &Device::host()).unwrap();
    let lent = Tensor::from_owner(vec![1_u8], DType::U8, &[1]).unwrap();
    for none in [zeros, lent] {
        let refused = none.into_vec::<u8>().unwrap_err();
        assert!(matches!(refused.error(), Error::NotVector { .. }), "{refused}");
        assert!(
            refused.to_string().ends_with("does not lie in a vector; copy its elements (to_vec)"),
            "{refused}"
        );
    }
    let (_late, device) = late();
    let refused = on(&device, &[1, 2]).into_vec::<u8>().unwrap_err();
    assert!(
        matches!(refused.error(), Error::NotOnHost { device: there } if *there == device.id()),
        "{refused}"
    );
}

/// Its elements would be others than those of `to_vec`.
///
/// Mutant: whatever part of a vector a tensor shows, all of it comes out.
#[test]
fn what_shows_a_vector_otherwise_does_not_become_it() {
    let tensor = || Tensor::from_vec(vec![1_u16, 2, 3, 4], &[2, 2]).unwrap();
    let views = [
        tensor().narrow(0, 0, 1).unwrap(),
        tensor().narrow(0, 1, 1).unwrap(),
        tensor().narrow(0, 0, 0).unwrap(),
        tensor().transpose(0, 1).unwrap(),
        tensor().as_strided(&[4], &[0], 0).unwrap(),
        tensor().as_strided(&[8], &[0], 3).unwrap(),
    ];
    for view in views {
        let elements = view.to_vec::<u16>().unwrap();
        let shape_and_strides = format!("shape {:?} with strides {:?} ", view.shape(), &*view.strides());
        let refused = view.into_vec::<u16>().unwrap_err();
        assert!(matches!(refused.error(), Error::NotVector { .. }), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains(&shape_and_strides) && text.contains("4 elements") && text.contains("to_vec"),
            "{text}"
        );
        assert_eq!(refused.into_value().to_vec::<u16>().unwrap(), elements);
    }
    let same = tensor().reshape(&[4]).unwrap().unsqueeze(0).unwrap().transpose(0, 1).unwrap();
    assert_eq!(same.into_vec::<u16>().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_vector_of_no_elements_keeps_its_room() {
    let (_late, device) = late();
    for device in [device, Device::host()] {
        let vec = Vec::<f32>::with_capacity(1000);
        let start = vec.as_ptr();
        let vec = device.register_vec(vec, &[0, 5]).unwrap().into_vec::<f32>().unwrap();
        assert_eq!((vec.len(), vec.capacity(), vec.as_ptr()), (0, 1000, start));
    }
    assert_eq!(Tensor::from(Vec::<f64>::new()).into_vec::<f64>().unwrap().capacity(), 0);
}

/// Once nothing is in flight, whatever it holds.
///
/// Mutant: it never comes back.
#[test]
fn a_vector_comes_back_after_a_failed_copy_into_it() {
    let (late, device) = late();
    let there = on(&device, &numbers(MIB));
    for registered in [true, false] {
        let vec = spaced(7_u8, MIB);
        let held = match registered {
            true => device.register_vec(vec, &[MIB]).unwrap(),
            false => Tensor::from_vec(vec, &[MIB]).unwrap(),
        };
        late.stall();
        let hurried = options().deadline(Duration::from_millis(5));
        let failed = start_copy_into(there.clone(), held, hurried).unwrap().wait().unwrap_err();
        assert!(matches!(failed.error(), Error::DeadlineExceeded { .. }), "{failed:#}");
        let mut held = failed.into_both().1.unwrap();
        for _ in 0..10 {
            let refused = held.into_vec::<u8>().unwrap_err();
            assert!(matches!(refused.error(), Error::NotReady | Error::NotWritable { .. }), "{refused}");
            held = refused.into_value();
        }
        let read = held.to_bytes().unwrap_err();
        assert!(
            matches!(read, Error::CopyFailed(_)) && read.to_string().contains("start_copy_into"),
            "{read}"
        );
        late.release();
        let start = Instant::now();
        let vec = loop {
            match held.into_vec::<u8>() {
                Ok(vec) => break vec,
                Err(refused) if start.elapsed() < PATIENCE => held = refused.into_value(),
                Err(refused) => panic!("{refused}"),
            }
        };
        assert!(vec.iter().zip(numbers(MIB)).all(|(is, copied)| *is == 7 || *is == copied));
    }
    no_violations(&late);
}

#[test]
fn raw_memory_is_registered_until_its_owner_goes() {
    let (late, device) = late();
    let (memory, part) = apart(MIB);
    let start = memory[part].as_ptr();
    let gone = Flag::default();
    let flag = gone.clone();
    let owner = Box::new(Owner::new(memory, move |_| flag.raise()));
    late.fail_next(Call::Register, 0);
    // SAFETY: the memory is the owner's, and nobody writes to it.
    let register = |owner| unsafe { device.register_raw(start, MIB, owner) };
    let owner = register(owner).unwrap_err().into_value();
    assert!(!gone.is_raised());
    let memory = register(owner).unwrap();
    assert!(bytes_of(&on(&device, &whole(&memory).to_bytes().unwrap())) == numbers(MIB));
    drop(memory);
    eventually("the owner goes", || gone.is_raised());
    // SAFETY: nothing is there, which is what is refused.
    let refused = unsafe { device.register_raw(std::ptr::null(), 10, Box::new(())) }.unwrap_err();
    assert!(matches!(refused.error(), Error::InvalidMemory { .. }), "{refused}");
    no_violations(&late);
}

/// The host needs no page-locking, and memory of no bytes none either.
#[test]
fn where_nothing_must_be_locked_nothing_is() {
    let (late, device) = late();
    let host = Device::host();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = host.register(Lender::new(100, move || flag.raise())).unwrap();
    assert_eq!((memory.memory_kind(), memory.nbytes()), (MemoryKind::Pageable, 100));
    drop(memory);
    assert!(gone.is_raised(), "it goes as that of Tensor::from_owner");
    let mut ordinary = host.register_vec(spaced(1_u8, 4), &[4]).unwrap();
    ordinary.as_mut_slice::<u8>().unwrap()[0] = 3;
    assert_eq!(ordinary.into_vec::<u8>().unwrap(), [3, 1, 1, 1]);
    assert_eq!(device.register(Vec::new()).unwrap().nbytes(), 0);
    assert!(device.register_vec(Vec::<f32>::new(), &[0]).unwrap().into_vec::<f32>().unwrap().is_empty());
    assert_eq!(calls(&late, Call::Register), 0);
}

#[test]
fn what_is_refused_comes_back() {
    let (late, device) = late();
    late.fail_next(Call::Register, 0);
    let refused = device.register_vec(spaced(5_u8, 100), &[100]).unwrap_err();
    assert!(matches!(refused.error(), Error::Driver { .. }), "{refused}");
    assert_eq!(refused.into_value(), [5; 100]);
    let refused = device.register_vec(spaced(5_u8, 100), &[99]).unwrap_err();
    assert!(matches!(Error::from(refused), Error::ShapeMismatch { .. }));
    let memory = device.register(spaced(5_u8, 100)).unwrap();
    assert!(matches!(memory.tensor(DType::U8, &[10], 91), Err(Error::OutOfRange { .. })));
    assert!(matches!(memory.tensor(DType::U8, &[usize::MAX, 2], 0), Err(Error::SizeOverflow { .. })));
    assert!(matches!(memory.tensor(DType::F64, &[1], 1), Err(Error::Misaligned { .. })));
    let mut tensor = whole(&memory);
    drop(memory);
    assert!(matches!(tensor.as_mut_bytes(), Err(Error::NotWritable { .. })), "it is read-only");

    let mapped = LateConfig {
        mapped_staging: true,
        copy_granularity: Alignment::new(4).unwrap(),
        ..LateConfig::new("mapped")
    };
    let (_, device) = with(mapped);
    let refused = device.register(spaced(5_u8, 100)).unwrap_err();
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused}");
    assert_eq!(refused.into_value(), [5; 100]);
}
