//! What tensors have on a device stays within its budget, whoever allocates, and comes back on every way on which memory does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/budget.rs"]
mod budget;
mod support;

use std::sync::{Arc, Barrier};
use std::thread;

use budget::{BUDGET, LONG_NAP, all_comes_back, limited, options, pending, stream_of, used};
use late_backend::{Call, CallRecord, LateConfig, LateHandle};
use support::{Kernel, bytes_of, eventually, in_time, late, on, two, with};
use transship_core::backend::{MemoryKind, RawMemory};
use transship_core::fill::Filler;
use transship_core::{
    BackgroundWork, DType, Device, Error, ErrorKind, Prefetch, PrefetchOptions, Stream, Tensor, TimedWait,
    start_copy, start_copy_into, start_copy_to_all,
};

fn zeros(bytes: usize, device: &Device) -> Result<Tensor, Error> {
    Tensor::zeros(&[bytes], DType::U8, device)
}

/// 3,000 bytes that are dropped while a stream that stands still reads them.
fn still_used(late: &LateHandle, device: &Device) -> (Stream, Kernel) {
    let (stream, tensor) = (stream_of(device), on(device, &[7; 3000]));
    tensor.record_stream(&stream).unwrap();
    late.stall_stream(&**stream.backend_stream());
    let kernel = Kernel::launch(&tensor, &stream);
    (stream, kernel)
}

/// catches: 450-device-memory-without-a-limit
#[test]
fn what_exceeds_the_budget_is_refused_with_the_figures_and_comes_back() {
    for when in [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never] {
        let (late, device) = limited();
        let kept = on(&device, &[7; 3000]);
        let source = vec![Tensor::from(vec![1_u8; 1000]), Tensor::from(vec![2_u8; 500])];
        let refused = start_copy(source, &device, options().background(when).packing(false))
            .and_then(|copy| in_time(move || copy.wait()))
            .unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::OutOfMemory);
        let figures = |error: &Error| matches!(error, Error::OverBudget { requested: 1500, used: 3000, leaving: 0, budget: 4096, device: refuses } if *refuses == device.id());
        assert!(figures(refused.error()), "{refused}");
        assert!(refused.error().to_string().contains("Device::set_memory_budget"), "{refused}");
        let back = refused.into_value().expect("the structure comes back");
        assert_eq!(used(&device), 3000, "{when:?}: neither of the two was allocated");
        drop(kept);
        let there = start_copy(back, &device, options()).unwrap().wait().unwrap();
        assert_eq!(bytes_of(&there[1]), [2; 500]);
        drop(there);
        all_comes_back(&late, &device);
    }
}

/// catches: 451-room-is-looked-for-first
#[test]
fn threads_never_find_the_same_room() {
    let (late, device) = limited();
    for _ in 0..50 {
        let start = Barrier::new(8);
        let allocate = || {
            start.wait();
            zeros(BUDGET / 4, &device)
        };
        let tensors: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(allocate)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let there = tensors.iter().filter(|tensor| tensor.is_ok()).count();
        assert_eq!(there, 4, "so many fit");
        assert_eq!(used(&device), BUDGET as u64);
        drop(tensors);
        all_comes_back(&late, &device);
    }
}

#[test]
fn many_threads_stay_within_the_budget_by_the_figures_of_the_backend() {
    let (late, device) = limited();
    let work = {
        let device = device.clone();
        move |thread: u8| {
            for copy in 0..40_u8 {
                let source = vec![Tensor::from(vec![thread; 700]), Tensor::from(vec![copy; 300])];
                match start_copy(source, &device, options()).and_then(|copy| copy.wait()) {
                    Ok(there) => assert_eq!(bytes_of(&there[0]), [thread; 700]),
                    Err(refused) => assert_eq!(refused.error().kind(), ErrorKind::OutOfMemory, "{refused}"),
                }
            }
        }
    };
    in_time(move || {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let work = work.clone();
                thread::spawn(move || work(thread))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let peak = device.memory().unwrap().peak_used.unwrap();
    assert!(peak <= BUDGET as u64, "{peak} bytes");
    all_comes_back(&late, &device);
}

/// catches: 452-reserved-for-ever-after-an-error
#[test]
fn what_a_driver_refuses_does_not_count() {
    let (late, device) = limited();
    for call in [Call::Allocate, Call::Submit, Call::Record] {
        late.fail_next(call, 0);
        let _ = zeros(2000, &device).map(drop);
        late.fail_next(call, 0);
        let _ = Tensor::empty(&[2000], DType::U8, &device).map(drop);
        late.fail_next(call, 0);
        let _ = start_copy(Tensor::from(vec![1_u8; 2000]), &device, options()).map(|copy| copy.wait());
        late.fail_no_more();
        all_comes_back(&late, &device);
    }
    assert!(zeros(BUDGET, &device).is_ok());
}

/// catches: 453-counted-as-free-while-a-stream-uses-it
#[test]
fn dropped_memory_counts_until_its_streams_have_come_by() {
    let (late, device) = limited();
    let (stream, kernel) = still_used(&late, &device);
    thread::sleep(LONG_NAP);
    assert_eq!(used(&device), 3000);
    let refused = zeros(2000, &device).unwrap_err();
    assert!(matches!(refused, Error::OverBudget { used: 3000, leaving: 3000, .. }), "{refused}");
    assert!(refused.to_string().contains("Device::synchronize"), "{refused}");
    let never = options().background(BackgroundWork::Never);
    let busy = start_copy(Tensor::from(vec![1_u8; 2000]), &device, never).unwrap_err();
    assert_eq!(busy.error().kind(), ErrorKind::Busy, "{busy}");
    late.release();
    stream.synchronize().unwrap();
    drop(zeros(2000, &device).expect("whoever reserves looks himself"));
    assert_eq!(kernel.result(), [7; 3000]);
    all_comes_back(&late, &device);
}

/// catches: 454-waits-for-no-room
#[test]
fn a_copy_waits_for_room_that_streams_will_make() {
    let (late, device) = limited();
    let (_stream, kernel) = still_used(&late, &device);
    let mut copy = start_copy(Tensor::from(vec![1_u8; 2000]), &device, options()).unwrap();
    copy = match copy.wait_timeout(LONG_NAP).unwrap() {
        TimedWait::Pending(copy) => copy,
        TimedWait::Done(_) => panic!("there is no room for it"),
    };
    let too_large = start_copy(Tensor::from(vec![1_u8; 5000]), &device, options()).unwrap_err();
    assert_eq!(too_large.error().kind(), ErrorKind::OutOfMemory, "{too_large}");
    late.release();
    let there = in_time(move || copy.wait()).unwrap();
    assert_eq!(bytes_of(&there), [1; 2000]);
    assert_eq!(kernel.result(), [7; 3000]);
    drop(there);
    all_comes_back(&late, &device);
}

#[test]
fn a_copy_that_waits_for_room_is_given_up_when_it_is_not_wanted() {
    let (late, device) = limited();
    let (_stream, kernel) = still_used(&late, &device);
    let start = |options| start_copy(Tensor::from(vec![1_u8; 2000]), &device, options).unwrap();
    drop(start(options()));
    let late_one = start(options().deadline(LONG_NAP));
    let failed = in_time(move || late_one.wait()).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::OutOfMemory, "{failed}");
    // Neither keeps a worker: all of them are there for others, and the memory of neither is counted.
    late.release();
    assert_eq!(kernel.result(), [7; 3000]);
    all_comes_back(&late, &device);
}

#[test]
fn streams_are_not_kept_by_memory_that_waits_for_them() {
    let (late, device) = limited();
    drop(on(&device, &[1; 30]));
    let before = late.streams_held();
    for _ in 0..100 {
        let (stream, tensor) = (stream_of(&device), on(&device, &[1; 30]));
        tensor.record_stream(&stream).unwrap();
        drop((tensor, stream));
    }
    eventually("the streams go", || late.streams_held() == before);
    all_comes_back(&late, &device);
}

/// catches: 455-leaked-memory-counts-as-free
#[test]
fn leaked_memory_stays_counted() {
    let (late, device) = limited();
    let (stream, tensor) = (stream_of(&device), on(&device, &[1; 300]));
    tensor.record_stream(&stream).unwrap();
    late.capture(&**stream.backend_stream(), true);
    drop(tensor);
    let kept = on(&device, &[1; 50]);
    let before = transship_core::runtime_stats().leaks;
    late.break_device();
    eventually("it is leaked", || transship_core::runtime_stats().leaks > before);
    // The figures of the device itself cannot be had any more.
    let refused = zeros(BUDGET, &device).unwrap_err();
    assert!(matches!(refused, Error::OverBudget { used: 350, leaving: 0, .. }), "{refused}");
    drop(kept);
}

/// catches: 456-several-copies-count-for-one
#[test]
fn each_device_of_several_has_its_own() {
    let (late, one, other) = two(LateConfig::new("late"));
    for device in [&one, &other] {
        device.set_memory_budget(BUDGET).unwrap();
    }
    let both = [one.clone(), other.clone()];
    let source = || vec![Tensor::from(vec![5_u8; 2000])];
    let first = start_copy_to_all(source(), &both, options()).unwrap();
    let first: Vec<_> = first.into_iter().map(|copy| in_time(move || copy.wait()).unwrap()).collect();
    assert_eq!((used(&one), used(&other)), (2000, 2000));
    other.set_memory_budget(3000).unwrap();
    let second = start_copy_to_all(source(), &both, options()).unwrap();
    let mut second = second.into_iter().map(|copy| in_time(move || copy.wait()));
    let there = second.next().unwrap().unwrap();
    assert_eq!(bytes_of(&there[0]), [5; 2000]);
    assert_eq!(second.next().unwrap().unwrap_err().error().kind(), ErrorKind::OutOfMemory);
    assert_eq!((used(&one), used(&other)), (4000, 2000));
    drop((first, there));
    all_comes_back(&late, &one);
    all_comes_back(&late, &other);
}

#[test]
fn what_nobody_allocates_does_not_count() {
    let (late, device) = limited();
    let held = on(&device, &[1; 4000]);
    let held = start_copy_into(Tensor::from(vec![2_u8; 4000]), held, options()).unwrap().wait().unwrap();
    let address = held.address().unwrap().expect("memory of a device has an address");
    let memory = RawMemory::new(address, 4000, MemoryKind::Device);
    // SAFETY: the owner keeps the memory, which nobody writes.
    let wrapped = unsafe { Tensor::from_raw(memory, Box::new(held), &[4000], DType::U8, &device) }.unwrap();
    assert_eq!(used(&device), 4000);
    assert_eq!(bytes_of(&wrapped), [2; 4000]);
    drop(wrapped);
    all_comes_back(&late, &device);
}

#[test]
fn a_budget_below_what_is_used_frees_nothing() {
    let (late, device) = late();
    assert_eq!(device.memory().unwrap().budget, None);
    let kept = on(&device, &[3; 1000]);
    device.set_memory_budget(500).unwrap();
    assert_eq!(device.memory().unwrap().budget, Some(500));
    assert!(zeros(1, &device).is_err());
    let nothing = start_copy(Tensor::from(Vec::<f32>::new()), &device, options()).unwrap().wait().unwrap();
    assert_eq!(nothing.nbytes(), 0);
    assert_eq!(bytes_of(&kept), [3; 1000]);
    device.set_memory_budget(usize::MAX).unwrap();
    assert_eq!(device.memory().unwrap().budget, None);
    drop((zeros(4000, &device).unwrap(), kept));
    all_comes_back(&late, &device);
    let refused = Device::host().set_memory_budget(500).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn what_loaders_fill_counts_and_parts_keep_all_of_it() {
    let (late, device) = limited();
    let mut filler = Filler::new(&device, 64 << 10).unwrap();
    assert_eq!(filler.allocate(3000, 1).unwrap(), 0);
    assert!(matches!(filler.allocate(3000, 1), Err(Error::OverBudget { used: 3000, .. })));
    let tensor = filler.finish().unwrap().tensor(0, 0, &[3000], DType::U8).unwrap();
    let mut parts = tensor.split(0, &[1000, 2000]).unwrap();
    assert_eq!(used(&device), 3000);
    drop(parts.pop());
    assert_eq!(used(&device), 3000, "the other part keeps all of it");
    drop(parts);
    all_comes_back(&late, &device);
}

#[test]
fn memory_that_may_be_written_open_counts_once() {
    let (late, device) = with(LateConfig { largest_open: 1 << 20, ..LateConfig::new("late") });
    device.set_memory_budget(BUDGET).unwrap();
    let there = on(&device, &[1; BUDGET]);
    assert_eq!(used(&device), BUDGET as u64);
    drop(there);
    let writable = LateConfig { host_writable: true, ..LateConfig::new("late") };
    all_comes_back(&late, &device);
    let (late, device) = with(writable);
    device.set_memory_budget(BUDGET).unwrap();
    let shared = Arc::new(Tensor::empty(&[BUDGET], DType::U8, &device).unwrap());
    assert_eq!(used(&device), BUDGET as u64);
    drop(shared);
    all_comes_back(&late, &device);
}

/// Nobody waits for the copy but its stream, so nobody has asked whether it is over.
/// catches: 469-copies-that-are-over-fill-the-budget
#[test]
fn copies_that_only_a_stream_has_waited_for_leave_room_when_they_are_over() {
    let (late, device) = limited();
    let stream = stream_of(&device);
    // Which may not wait.
    let never = options().background(BackgroundWork::Never);
    for round in 0..20_u8 {
        let copy = start_copy(Tensor::from(vec![round; 3000]), &device, never.clone()).unwrap();
        let tensor = copy.wait_on(&stream).unwrap();
        stream.synchronize().unwrap();
        drop(tensor);
    }
    drop(stream);
    all_comes_back(&late, &device);
}

/// A kernel reads each item, which the program drops at once: what is in use is in flight.
#[test]
fn items_that_a_stream_takes_over_are_all_there_within_the_budget() {
    for (when, depth) in [(BackgroundWork::Auto, 2), (BackgroundWork::Auto, 6), (BackgroundWork::Always, 6)] {
        let (late, device) = limited();
        let stream = stream_of(&device);
        let prefetch = PrefetchOptions::default().depth(depth).copy(options().background(when));
        let source = (0..200_u8).map(|number| Tensor::from(vec![number; BUDGET / 8]));
        let mut items = source.prefetch(&device, prefetch).hand_over(&stream);
        let kernels: Vec<_> = in_time(move || {
            let launch = |item: Result<Tensor, _>| Kernel::launch(&item.expect("none is lost"), &stream);
            (&mut items).map(launch).collect()
        });
        assert_eq!(kernels.len(), 200);
        for (number, kernel) in kernels.into_iter().enumerate() {
            assert_eq!(kernel.result(), vec![number as u8; BUDGET / 8]);
        }
        assert!(device.memory().unwrap().peak_used.is_some_and(|peak| peak <= BUDGET as u64));
        all_comes_back(&late, &device);
    }
}

/// Idle memory of items of the old size is all that the budget has room for when items of another size come.
///
/// catches: 589-idle-memory-makes-no-room
#[test]
fn items_of_another_size_have_the_room_of_idle_ones() {
    let room_of_three = |number: usize| if number < 12 { BUDGET / 3 } else { BUDGET / 3 - 100 };
    for sizes in [room_of_three, |number| BUDGET / 3 - number] {
        let (late, device) = limited();
        let source = (0..24).map(|number| Tensor::from(vec![number as u8; sizes(number)]));
        let mut items = source.prefetch(&device, PrefetchOptions::default().depth(2).copy(options())).reuse();
        for number in 0..24 {
            let item = items.next().unwrap().expect("none is refused");
            assert_eq!(item.nbytes(), sizes(number));
        }
        drop(items);
        all_comes_back(&late, &device);
    }
}

/// 1,000 bytes that a copy fills, which waits for a stream that stands still, and which the program has dropped.
fn still_filled(late: &LateHandle, device: &Device) -> Stream {
    let stream = stream_of(device);
    late.stall_stream(&**stream.backend_stream());
    drop(start_copy(Tensor::from(vec![2_u8; 1000]), device, options().stream(&stream)).unwrap());
    stream
}

/// catches: 471-room-is-waited-for-for-ever
#[test]
fn a_copy_waits_for_no_tensor_that_the_program_holds() {
    let (late, device) = limited();
    let held = on(&device, &[7; 3000]);
    let _stream = still_filled(&late, &device);
    let copy = pending(start_copy(Tensor::from(vec![1_u8; 2000]), &device, options()).unwrap());
    late.release();
    let refused = in_time(move || copy.wait()).unwrap_err();
    assert!(
        matches!(refused.error(), Error::OverBudget { requested: 2000, used: 3000, leaving: 0, .. }),
        "{refused}"
    );
    assert_eq!(bytes_of(&refused.into_value().expect("it comes back")), [1; 2000]);
    assert_eq!(bytes_of(&held), [7; 3000]);
    drop(held);
    all_comes_back(&late, &device);
}

/// catches: 472-waits-for-what-began-later
#[test]
fn what_begins_later_is_not_waited_for() {
    let (late, device) = limited();
    let held = on(&device, &[7; 2500]);
    let first = still_filled(&late, &device);
    let copy = pending(start_copy(Tensor::from(vec![1_u8; 2000]), &device, options()).unwrap());
    let later = stream_of(&device);
    late.stall_stream(&**later.backend_stream());
    let at_once = options().background(BackgroundWork::Never).stream(&later);
    drop(start_copy(held.clone(), &Device::host(), at_once).unwrap());
    late.release_stream(&**first.backend_stream());
    let refused = in_time(move || copy.wait()).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::OutOfMemory, "{refused}");
    late.release();
    drop(held);
    all_comes_back(&late, &device);
}

/// catches: 473-room-is-taken-by-who-comes-later
#[test]
fn room_goes_to_who_has_waited_longest() {
    let (late, device) = limited();
    let (held, dropped) = (on(&device, &[7; 2000]), on(&device, &[7; 1000]));
    let _stream = still_filled(&late, &device);
    let first = pending(start_copy(Tensor::from(vec![1_u8; 1000]), &device, options()).unwrap());
    drop(dropped);
    let later = zeros(1000, &device);
    assert!(later.is_err(), "the room has gone to who waits, though its thread may not know that yet");
    assert_eq!(bytes_of(&in_time(move || first.wait()).unwrap()), [1; 1000]);
    late.release();
    drop(held);
    all_comes_back(&late, &device);
}

#[test]
fn a_copy_waits_for_those_that_workers_carry_out() {
    let (late, device) = limited();
    device.set_memory_budget(13_000).unwrap();
    // A worker waits for the device, which stands still, before it submits the next piece.
    late.stall();
    let paced = options().max_bytes_in_flight(4096);
    let carried = start_copy(Tensor::from(vec![2_u8; 12_000]), &device, paced).unwrap();
    eventually("it has its memory", || used(&device) == 12_000);
    drop(carried);
    let copy = pending(start_copy(Tensor::from(vec![1_u8; 2000]), &device, options()).unwrap());
    late.release();
    assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [1; 2000]);
    all_comes_back(&late, &device);
}

/// catches: 476-other-devices-hold-memory-unseen
#[test]
fn a_copy_waits_for_what_leaves_for_another_device() {
    let (late, one, other) = two(LateConfig::new("late"));
    one.set_memory_budget(BUDGET).unwrap();
    let there = on(&one, &[5; 3000]);
    let stream = stream_of(&other);
    late.stall_stream(&**stream.backend_stream());
    let moved = start_copy(there, &other, options().stream(&stream)).unwrap().wait_on(&stream).unwrap();
    let copy = pending(start_copy(Tensor::from(vec![1_u8; 2000]), &one, options()).unwrap());
    late.release();
    assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [1; 2000]);
    assert_eq!(bytes_of(&moved), [5; 3000]);
    all_comes_back(&late, &one);
}

#[test]
fn a_device_that_is_lost_ends_the_wait() {
    let (late, device) = limited();
    let _held = on(&device, &[7; 3000]);
    let _stream = still_filled(&late, &device);
    let copy = pending(start_copy(Tensor::from(vec![1_u8; 2000]), &device, options()).unwrap());
    late.break_device();
    in_time(move || copy.wait()).unwrap_err();
}

/// catches: 750-a-stream-is-asked-for-each-piece
#[test]
fn a_stream_is_asked_once_for_all_that_leaves_behind_it() {
    const PIECES: usize = 100;
    let (late, device) = limited();
    let stream = stream_of(&device);
    late.stall_stream(&**stream.backend_stream());
    let pieces = [(); PIECES].map(|()| zeros(16, &device).unwrap());
    drop(start_copy(Tensor::from(vec![1_u8; 64]), &device, options().stream(&stream)).unwrap());
    pieces.iter().for_each(|piece| piece.record_stream(&stream).unwrap());
    drop(pieces);
    late.clear_calls();
    assert!(used(&device) >= PIECES as u64 * 16, "they wait for the stream");
    let is_asked =
        |record: &&CallRecord| record.call == Call::Query && record.thread == thread::current().id();
    let asked = late.calls().iter().filter(is_asked).count();
    assert!((1..PIECES / 10).contains(&asked), "{asked}");
    late.release();
    all_comes_back(&late, &device);
}
