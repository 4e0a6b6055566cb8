//! The rules of the simulated device itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use late_backend::{Call, LateConfig, LateHandle, SubmitFailure};
use transship_core::backend::{
    Backend, BackendStream, Buffer, CopyOp, Direction, HostSide, MemoryKind, RawMemory, Staging,
    StreamPriority, Ticket,
};
use transship_core::{Alignment, Error, Result};

const SIZE: usize = 16;

/// One device with a stream, a block and a buffer.
struct Bench {
    late: LateHandle,
    device: Arc<dyn Backend>,
    stream: Arc<dyn BackendStream>,
    block: Box<dyn Staging>,
    buffer: Box<dyn Buffer>,
}

impl Bench {
    fn new() -> Self {
        Self::with(LateConfig::new("late"))
    }

    fn with(config: LateConfig) -> Self {
        let late = LateHandle::new(config).unwrap();
        let device = late.backend(0);
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        let block = device.allocate_staging(SIZE, Direction::Upload).unwrap();
        let buffer = device.allocate(SIZE, &*stream).unwrap();
        Self { late, device, stream, block, buffer }
    }

    fn up(&self) -> CopyOp<'_> {
        CopyOp::Upload {
            from: HostSide::Staging(&*self.block, 0),
            to: &*self.buffer,
            to_offset: 0,
            bytes: SIZE,
        }
    }

    fn submit(&self, ops: &[CopyOp<'_>]) -> Result<u64> {
        self.submit_on(ops, &*self.stream)
    }

    fn submit_on(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<u64> {
        // SAFETY: the ranges are those of the tests' own blocks. Some tests break the other promises, which the device
        // under test must notice without touching freed memory.
        unsafe { self.device.submit(ops, stream) }.map(|submission| submission.position)
    }

    /// The bytes of the buffer, over a stream of its own.
    fn device_bytes(&self) -> Vec<u8> {
        let block = self.device.allocate_staging(SIZE, Direction::Download).unwrap();
        let stream = self.device.create_stream(StreamPriority::Normal).unwrap();
        let down = down(&*self.buffer, &*block);
        let position = self.submit_on(&[down], &*stream).unwrap();
        assert!(stream.wait(position, None).unwrap());
        read(&*block)
    }
}

fn down<'a>(from: &'a dyn Buffer, block: &'a dyn Staging) -> CopyOp<'a> {
    CopyOp::Download { from, from_offset: 0, to: HostSide::Staging(block, 0), bytes: SIZE }
}

fn fill(block: &dyn Staging, byte: u8) {
    let start = block.window().unwrap().at(0, block.bytes()).unwrap();
    // SAFETY: `at` has checked the range.
    unsafe { start.write_bytes(byte, block.bytes()) };
}

fn read(block: &dyn Staging) -> Vec<u8> {
    // SAFETY: the device fills new blocks with poison, so that all bytes are initialised.
    unsafe { std::slice::from_raw_parts(block.contents().unwrap().as_ptr(), block.bytes()) }.to_vec()
}

#[test]
fn a_copy_reads_its_source_when_it_runs() {
    let bench = Bench::new();
    fill(&*bench.block, 1);
    let position = bench.submit(&[bench.up()]).unwrap();
    fill(&*bench.block, 2);
    assert!(bench.stream.wait(position, None).unwrap());
    assert_eq!(bench.device_bytes(), [2; SIZE], "the late copy shows that the source was changed in flight");
}

#[test]
fn nothing_runs_unless_somebody_looks_and_then_one_operation_at_a_time() {
    let bench = Bench::with(LateConfig { polls_per_op: 2, ..LateConfig::new("late") });
    let position = bench.submit(&[bench.up(), bench.up()]).unwrap();
    let before = bench.late.pending();
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(bench.late.pending(), before);
    let polls = (1..).find(|_| bench.stream.reached().unwrap() == position).unwrap();
    assert_eq!(polls, 8, "two polls for the allocation, for each of two copies and for the position");
}

#[test]
fn new_memory_is_poison() {
    let bench = Bench::new();
    let position = bench.stream.record().unwrap();
    bench.stream.wait(position, None).unwrap();
    assert_eq!(bench.device_bytes(), [0xA5; SIZE]);
    assert!(bench.buffer.host_pointer().is_none());
}

#[test]
fn a_stalled_device_stands_still_until_it_is_released() {
    let bench = Bench::new();
    let position = bench.submit(&[bench.up()]).unwrap();
    bench.late.stall();
    for _ in 0..10 {
        assert_eq!(bench.stream.reached().unwrap(), 0);
    }
    assert!(!bench.stream.wait(position, Some(Duration::from_millis(5))).unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| bench.stream.wait(position, None).unwrap());
        std::thread::sleep(Duration::from_millis(5));
        assert!(!waiter.is_finished());
        bench.late.release();
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_stall_for_some_time_ends_by_itself() {
    let bench = Bench::new();
    let position = bench.submit(&[bench.up()]).unwrap();
    let start = Instant::now();
    bench.late.stall_for(Duration::from_millis(20));
    assert!(bench.stream.wait(position, None).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn one_stalled_stream_does_not_stop_the_others() {
    let bench = Bench::new();
    let other = bench.device.create_stream(StreamPriority::High).unwrap();
    bench.late.stall_stream(&*bench.stream);
    let (stalled, free) = (bench.submit(&[bench.up()]).unwrap(), other.record().unwrap());
    assert!(other.wait(free, None).unwrap());
    assert!(!bench.stream.wait(stalled, Some(Duration::from_millis(2))).unwrap());
}

#[test]
fn a_wait_for_another_stream_orders_the_copies() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let bench = Bench::with(LateConfig { seed, ..LateConfig::new("late") });
        fill(&*bench.block, 7);
        let position = bench.submit(&[bench.up()]).unwrap();
        let (other, result) = second_stream(&bench);
        other.wait_for(&*bench.stream, position).unwrap();
        let done = bench.submit_on(&[down(&*bench.buffer, &*result)], &*other).unwrap();
        assert!(other.wait(done, None).unwrap());
        assert_eq!(read(&*result), [7; SIZE]);
        assert_eq!(bench.late.violations(), [""; 0]);
    }
}

#[test]
fn a_missing_wait_shows_as_wrong_bytes() {
    let bench = Bench::new();
    let ready = bench.stream.record().unwrap();
    assert!(bench.stream.wait(ready, None).unwrap());
    fill(&*bench.block, 7);
    bench.submit(&[bench.up()]).unwrap();
    let (other, result) = second_stream(&bench);
    let done = bench.submit_on(&[down(&*bench.buffer, &*result)], &*other).unwrap();
    assert!(other.wait(done, None).unwrap());
    assert_eq!(read(&*result), [0xA5; SIZE]);
}

fn second_stream(bench: &Bench) -> (Arc<dyn BackendStream>, Box<dyn Staging>) {
    let stream = bench.device.create_stream(StreamPriority::Normal).unwrap();
    (stream, bench.device.allocate_staging(SIZE, Direction::Upload).unwrap())
}

#[test]
fn a_poll_gets_ahead_with_the_stream_that_its_own_waits_for() {
    let bench = Bench::new();
    let position = bench.submit(&[bench.up()]).unwrap();
    let other = bench.device.create_stream(StreamPriority::Normal).unwrap();
    other.wait_for(&*bench.stream, position).unwrap();
    let end = other.record().unwrap();
    assert!((0..5).any(|_| other.reached().unwrap() == end));
}

#[test]
fn a_position_that_was_never_recorded_is_a_violation_and_no_deadlock() {
    let bench = Bench::new();
    assert!(bench.stream.wait(1, None).is_err());
    assert!(bench.stream.wait_for(&*bench.stream, 1).is_err());
    assert_eq!(bench.late.violations().len(), 2);
}

#[test]
fn use_of_memory_that_is_gone_is_a_violation_and_touches_nothing() {
    let bench = Bench::new();
    bench.submit(&[bench.up()]).unwrap();
    let position = bench.stream.record().unwrap();
    let Bench { late, stream, block, buffer, .. } = bench;
    drop(block);
    assert!(stream.wait(position, None).unwrap());
    assert!(late.violations()[0].contains("staging block that was dropped"), "{:?}", late.violations());

    let bench = Bench::new();
    let position = bench.submit(&[bench.up()]).unwrap();
    drop(bench.buffer);
    assert!(bench.stream.wait(position, None).unwrap());
    assert!(bench.late.violations()[0].contains("device memory that was released"));
    drop(buffer);
}

#[test]
fn released_memory_lives_until_its_tickets_are_reached() {
    let bench = Bench::new();
    let position = bench.submit(&[bench.up()]).unwrap();
    let Bench { late, device, stream, mut buffer, block } = bench;
    assert!(buffer.release_after(&[Ticket { stream: stream.clone(), position }]));
    drop(buffer);
    assert_eq!(device.counters().device_bytes, SIZE as u64);
    assert!(stream.wait(position, None).unwrap());
    assert_eq!(device.counters().device_bytes, 0);
    assert_eq!(late.violations(), [""; 0]);
    drop(block);
}

#[test]
fn memory_is_not_usable_before_the_stream_that_it_was_allocated_on() {
    let bench = Bench::new();
    let other = bench.device.create_stream(StreamPriority::Normal).unwrap();
    let position = bench.submit_on(&[bench.up()], &*other).unwrap();
    assert!(other.wait(position, None).unwrap());
    assert!(bench.late.violations()[0].contains("allocated on"));
}

#[test]
fn what_breaks_the_contract_of_submit_is_refused() {
    let bench =
        Bench::with(LateConfig { copy_granularity: Alignment::new(4).unwrap(), ..LateConfig::new("late") });
    let stranger = Bench::new();
    let clear = |to_offset, bytes| CopyOp::Clear { to: &*bench.buffer, to_offset, bytes };
    for op in [clear(8, SIZE), clear(0, 3), clear(2, 4), stranger.up()] {
        assert!(bench.submit(&[op]).is_err());
    }
    assert_eq!(bench.late.violations().len(), 4);
    assert!(matches!(bench.submit_on(&[], &*stranger.stream), Err(Error::Unsupported { .. })));
}

#[test]
fn host_buffers_are_written_when_the_copy_runs() {
    let bench = Bench::new();
    let memory = HostBytes((0..SIZE).map(|_| std::cell::UnsafeCell::new(0)).collect());
    let to = HostSide::Buffer(&memory, 0);
    let op = CopyOp::Download { from: &*bench.buffer, from_offset: 0, to, bytes: SIZE };
    let position = bench.submit(&[op]).unwrap();
    assert_eq!(memory.first(), 0);
    assert!(bench.stream.wait(position, None).unwrap());
    assert_eq!(memory.first(), 0xA5);
    assert!(
        bench.late.blocking_calls_here().contains(&Call::Submit),
        "pageable memory makes a real driver wait"
    );
}

/// A stand-in for the host's own memory.
struct HostBytes(Vec<std::cell::UnsafeCell<u8>>);

// SAFETY: the test that uses it has one thread.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    fn first(&self) -> u8 {
        // SAFETY: nothing is in flight when the test asks.
        unsafe { *self.0[0].get() }
    }
}

// SAFETY: the vector is never changed.
unsafe impl Buffer for HostBytes {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }

    fn address(&self) -> Option<u64> {
        None
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        NonNull::new(self.0.as_ptr().cast::<u8>().cast_mut()).map(|start| (start, true))
    }
}

#[test]
fn devices_of_one_driver_are_peers_unless_told_otherwise() {
    for peers in [true, false] {
        let bench = Bench::with(LateConfig { devices: 2, peers, ..LateConfig::new("late") });
        let second = bench.late.backend(1);
        assert_eq!(second.reaches(&*bench.device), peers);
        assert!(second.reaches(&*second));
        let stream = second.create_stream(StreamPriority::Normal).unwrap();
        let target = second.allocate(SIZE, &*stream).unwrap();
        let (from, to) = (&*bench.buffer, &*target);
        let op = CopyOp::Between { from, from_offset: 0, to, to_offset: 0, bytes: SIZE };
        stream.wait_for(&*bench.stream, bench.stream.record().unwrap()).unwrap();
        // SAFETY: both buffers live until the wait below.
        let submitted = unsafe { second.submit(&[op], &*stream) };
        assert_eq!(submitted.is_ok(), peers);
        if let Ok(submission) = submitted {
            assert!(stream.wait(submission.position, None).unwrap());
            assert_eq!(bench.late.violations(), [""; 0]);
        }
    }
}

#[test]
fn calls_fail_on_demand_once() {
    let bench = Bench::new();
    bench.late.fail_next(Call::Allocate, 1);
    let allocate = || bench.device.allocate(1, &*bench.stream).is_ok();
    assert_eq!([allocate(), allocate(), allocate()], [true, false, true]);
    bench.late.fail_next(Call::Query, 0);
    assert!(bench.stream.reached().is_err());
    assert!(bench.stream.reached().is_ok());
}

#[test]
fn a_call_is_held_up_on_demand() {
    let bench = Bench::new();
    bench.late.hold(1);
    assert!(bench.stream.reached().is_ok(), "those of this thread go on");
    let (late, device, stream) = (bench.late.clone(), bench.device.clone(), bench.stream.clone());
    let others = thread::spawn(move || {
        let first = stream.reached().is_ok() && !late.is_holding();
        (first, device.allocate(1, &*stream).is_ok())
    });
    while !bench.late.is_holding() {
        thread::yield_now();
    }
    assert!(!others.is_finished() && bench.stream.reached().is_ok());
    bench.late.let_go();
    assert_eq!(others.join().unwrap(), (true, true));
    assert!(!bench.late.is_holding());
}

#[test]
fn a_failing_submit_has_finished_what_it_did() {
    let submit_failure = SubmitFailure::AfterOps(1);
    let bench = Bench::with(LateConfig { submit_failure, ..LateConfig::new("late") });
    fill(&*bench.block, 9);
    bench.late.fail_next(Call::Submit, 0);
    let clear = CopyOp::Clear { to: &*bench.buffer, to_offset: 0, bytes: SIZE };
    assert!(bench.submit(&[bench.up(), clear]).is_err());
    assert_eq!(bench.late.pending(), 0);
    assert_eq!(bench.device_bytes(), [9; SIZE]);
}

#[test]
fn a_broken_device_fails_every_call_and_every_wait() {
    let bench = Bench::new();
    let position = bench.submit(&[bench.up()]).unwrap();
    bench.late.stall();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| bench.stream.wait(position, None));
        std::thread::sleep(Duration::from_millis(5));
        bench.late.break_device();
        assert!(waiter.join().unwrap().is_err());
    });
    bench.late.release();
    assert!(bench.stream.reached().is_err());
    assert!(bench.stream.record().is_err());
    assert!(bench.submit(&[]).is_err());
    assert!(bench.device.allocate_staging(1, Direction::Upload).is_err());
    assert_eq!(bench.late.pending(), 3, "the allocation, the copy and the position never run");
}

#[test]
fn memory_ends_with_the_figures() {
    let config = LateConfig { device_memory: 24, staging_memory: 24, ..LateConfig::new("late") };
    let bench = Bench::with(config);
    let refused = bench.device.allocate(10, &*bench.stream).err().unwrap();
    assert!(matches!(refused, Error::OutOfMemory { requested: 10, free: 8, total: 24, .. }), "{refused:?}");
    let refused = bench.device.allocate_staging(25, Direction::Upload).err().unwrap();
    assert!(matches!(refused, Error::TooLarge { requested: 25, limit: 24, .. }), "{refused:?}");
    drop(bench.block);
    assert!(bench.device.allocate_staging(24, Direction::Upload).is_ok());
    assert_eq!(bench.device.counters().staging_high_water, 24);
}

#[test]
fn blocking_calls_are_told_apart_by_thread() {
    let bench = Bench::new();
    bench.late.clear_calls();
    let position = bench.submit(&[bench.up()]).unwrap();
    std::thread::scope(|scope| scope.spawn(|| bench.stream.wait(position, None).unwrap()).join()).unwrap();
    assert_eq!(bench.late.blocking_calls_here(), []);
    drop(bench.block);
    assert_eq!(bench.late.blocking_calls_here(), [Call::DropStaging]);
    assert_eq!(bench.late.calls().len(), 3);
}

#[test]
fn wrapped_memory_is_that_of_its_owner() {
    let bench = Bench::new();
    let address = bench.buffer.address().unwrap();
    let wrap = |memory, owner| {
        // SAFETY: the owner is the buffer itself, or the wrap is refused.
        unsafe { bench.device.wrap(memory, owner) }
    };
    let kind = MemoryKind::Device;
    for (address, bytes, kind) in
        [(address, SIZE + 1, kind), (3, 1, kind), (address, 1, MemoryKind::Pageable)]
    {
        assert!(matches!(
            wrap(RawMemory::new(address, bytes, kind), Box::new(())),
            Err(Error::InvalidMemory { .. })
        ));
    }
    let mut wrapped = wrap(RawMemory::new(address + 4, 4, kind), Box::new(bench.buffer)).unwrap();
    assert_eq!(wrapped.address(), Some(address + 4));
    let used = Ticket { stream: bench.stream.clone(), position: bench.stream.record().unwrap() };
    assert!(wrapped.release_after(&[used]));
    drop(wrapped);
    assert_eq!(bench.device.counters().device_bytes, SIZE as u64);
    bench.device.synchronize().unwrap();
    assert_eq!(bench.device.counters().device_bytes, 0);
}

#[test]
fn marks_take_the_time_when_the_stream_comes_by() {
    let bench = Bench::new();
    let first = bench.stream.mark().unwrap();
    let second = bench.stream.mark().unwrap();
    assert!(matches!(second.elapsed_since(&*first), Err(Error::NotReady)));
    bench.device.synchronize().unwrap();
    assert!(second.elapsed_since(&*first).unwrap() >= 0.0);
}

#[test]
fn drivers_are_registered_by_name_and_independent() {
    let one = late_backend::install(LateConfig { devices: 2, ..LateConfig::new("late-one") }).unwrap();
    let two = late_backend::install(LateConfig::new("late-two")).unwrap();
    assert!(matches!(late_backend::install(LateConfig::new("late-one")), Err(Error::DriverExists { .. })));
    one.break_device();
    assert!(one.driver().open(1).is_err());
    let device = two.driver().open(0).unwrap();
    assert_eq!(device.device().to_string(), "late-two:0");
    let missing = two.driver().open(1).err().unwrap();
    assert!(matches!(missing, Error::NoSuchDevice { count: 1, .. }));
}

#[test]
fn an_open_buffer_is_the_hosts_alone() {
    let bench = Bench::with(LateConfig { largest_open: SIZE, ..LateConfig::new("late") });
    assert!(bench.buffer.window().is_none(), "it was not allocated open");
    let open = bench.device.allocate_open(SIZE, &*bench.stream).unwrap();
    let start = open.window().unwrap().at(0, SIZE).unwrap();
    // SAFETY: `at` has checked the range.
    unsafe { start.write_bytes(9, SIZE) };
    let block = bench.device.allocate_staging(SIZE, Direction::Download).unwrap();
    assert!(bench.submit(&[down(&*open, &*block)]).is_err());
    assert_eq!(bench.late.violations().len(), 1);
    // SAFETY: what is written was written above.
    unsafe { open.close() }.unwrap();
    assert!(open.window().is_none());
    let position = bench.submit(&[down(&*open, &*block)]).unwrap();
    assert!(bench.stream.wait(position, None).unwrap());
    assert_eq!(read(&*block), [9; SIZE]);
    assert!(bench.device.allocate_open(SIZE + 1, &*bench.stream).is_err());
}

fn mapped() -> Bench {
    Bench::with(LateConfig { mapped_staging: true, ..LateConfig::new("late") })
}

#[test]
fn a_mapped_block_is_out_of_reach_while_a_copy_uses_it() {
    let bench = mapped();
    fill(&*bench.block, 7);
    bench.late.stall();
    let position = bench.submit(&[bench.up()]).unwrap();
    assert!(bench.block.window().is_none());
    bench.late.release();
    assert!(bench.stream.wait(position, None).unwrap());
    assert!(bench.block.window().is_some());
    assert!(bench.block.contents().is_none(), "it is for uploads");
    assert_eq!(bench.device_bytes(), [7; SIZE]);
    assert!(bench.late.violations().is_empty());
}

#[test]
fn a_second_submission_that_uses_a_mapped_block_is_noticed() {
    let bench = mapped();
    fill(&*bench.block, 7);
    bench.late.stall();
    bench.submit(&[bench.up(), bench.up()]).unwrap();
    assert!(bench.submit(&[bench.up()]).is_err());
    assert_eq!(bench.late.violations().len(), 1);
}

#[test]
fn a_mapped_block_used_against_its_direction_is_noticed() {
    let bench = mapped();
    assert!(bench.submit(&[down(&*bench.buffer, &*bench.block)]).is_err());
    assert_eq!(bench.late.violations().len(), 1);
}

#[test]
fn a_buffer_of_a_broken_granule_is_noticed() {
    let granules = Alignment::new(4).unwrap();
    let bench = Bench::with(LateConfig { copy_granularity: granules, ..LateConfig::new("late") });
    assert!(bench.device.allocate(5, &*bench.stream).is_err());
    assert_eq!(bench.late.violations().len(), 1);
}
