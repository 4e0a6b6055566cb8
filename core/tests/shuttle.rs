//! Threads in whatever order: each test runs a few thousand times, each time by another schedule, in which threads are switched at any
//! access to a lock, an atomic or a condition (`core/src/runtime/sync`). A wake-up that is lost is a deadlock there, every time.
//!
//! A failure prints its seed: `SHUTTLE_RANDOM_SEED=N bash .ci/run shuttle` begins with that schedule, and
//! `TRANSSHIP_SCHEDULES=N` tries so many instead of the usual number.

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join;
use late_backend::{Call, LateConfig, LateHandle};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use transship_core::backend::StreamPriority;
use transship_core::runtime::sync::{Condvar, Mutex, is_idle};
use transship_core::{
    BackgroundWork, CopyError, CopyHandle, CopyOptions, CopyPolicy, DType, Device, Error, Tensor, TimedWait,
    runtime_stats, start_copy, start_copy_to_all,
};

/// The smallest staging block.
const BLOCK: usize = 64 << 10;
/// A budget of device memory.
const ROOM: usize = 2500;
/// Longer than any execution takes.
const LONG: Duration = Duration::from_secs(3600);
/// An execution that takes longer than this will never end.
const STEPS: usize = 200_000;
const SEED: u64 = 0x7472_616e_7373_6869;

/// Runs `test` by so many random schedules, and by as many in which few threads are held up, but for long.
fn explore(schedules: usize, test: fn()) {
    let schedules = std::env::var("TRANSSHIP_SCHEDULES").map_or(schedules, |number| number.parse().unwrap());
    run(RandomScheduler::new_from_seed(SEED, schedules), test);
    run(PctScheduler::new_from_seed(SEED, 3, schedules), test);
}

fn run(scheduler: impl Scheduler + 'static, test: fn()) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    shuttle::Runner::new(scheduler, config).run(test);
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn at_once_or_never() -> CopyOptions {
    options().background(BackgroundWork::Never)
}

fn by_workers() -> CopyOptions {
    options().background(BackgroundWork::Always)
}

/// Devices of one driver, each with so much staging memory.
fn devices<const N: usize>(staging: usize) -> (LateHandle, [Device; N]) {
    let late = LateHandle::new(LateConfig { devices: N, ..LateConfig::new("late") }).unwrap();
    let devices = std::array::from_fn(|ordinal| {
        let device = Device::from_backend(late.backend(ordinal)).unwrap();
        device.set_staging_budget(staging).unwrap();
        device
    });
    (late, devices)
}

/// Bytes that differ from place to place.
fn bytes(count: usize, from: u8) -> Vec<u8> {
    (0..count).map(|index| (index / 61) as u8 ^ from).collect()
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    start_copy(tensor.clone(), &Device::host(), options()).unwrap().wait().unwrap().to_bytes().unwrap()
}

fn choose(limit: u32) -> u32 {
    thread_rng().gen_range(0..limit)
}

fn eventually(mut holds: impl FnMut() -> bool) {
    while !holds() {
        thread::yield_now();
    }
}

/// Polls only when it is woken; shuttle's own looks again whenever the thread had to wait for a lock.
fn block_on<F: Future>(future: F) -> F::Output {
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(signal.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut woken = signal.woken.lock();
        while !std::mem::take(&mut *woken) {
            signal.wake.wait(&mut woken);
        }
    }
}

#[derive(Default)]
struct Signal {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }
}

/// The same for a task that another thread wakes as well. Each poll is with another waker, and only the last one counts.
fn block_on_busily<F: Future>(future: F) -> F::Output {
    let other = Arc::new(Mutex::new(None::<Waker>));
    let poked = other.clone();
    let poking = thread::spawn(move || {
        for _ in 0..4 {
            let waker = poked.lock().take();
            waker.into_iter().for_each(Waker::wake);
            thread::yield_now();
        }
    });
    let (mut future, mut last) = (pin!(future), Arc::<OfOnePoll>::default());
    let output = block_on(poll_fn(|context| {
        drop(last.0.lock().take());
        last = Arc::new(OfOnePoll(Mutex::new(Some(context.waker().clone()))));
        *other.lock() = Some(context.waker().clone());
        future.as_mut().poll(&mut Context::from_waker(&Waker::from(last.clone())))
    }));
    poking.join().unwrap();
    output
}

/// The waker of one poll. Wakes nobody after the next one.
#[derive(Default)]
struct OfOnePoll(Mutex<Option<Waker>>);

impl Wake for OfOnePoll {
    fn wake(self: Arc<Self>) {
        let waker = self.0.lock().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Every copy is over, or comes to its end without anybody's help, and what it has used is given back.
fn nothing_is_left<const N: usize>(late: &LateHandle, devices: [Device; N]) {
    eventually(is_idle);
    for device in &devices {
        // What has ended without anybody who waits for it is let go of by the next one who asks.
        device.synchronize().unwrap();
        device.drain().unwrap();
        let (staging, counters) = (device.staging_usage(), device.counters());
        assert!(staging.high_water <= staging.budget, "{staging:?}");
        assert_eq!((staging.in_use, staging.idle, staging.waiting), (0, 0, 0));
        assert_eq!((counters.device_bytes, counters.staging_bytes), (0, 0));
    }
    drop(devices);
    eventually(is_idle);
    assert_eq!(runtime_stats().leaks, 0);
    assert!(late.violations().is_empty(), "{:?}", late.violations());
}

/// Runs each on a thread of its own until all are done.
fn at_once(threads: impl IntoIterator<Item = Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Three threads, one block: whoever waits for it gets it, whatever comes of the others.
#[test]
fn nobody_who_waits_for_a_block_is_forgotten() {
    explore(1500, || {
        let (late, [device]) = devices(BLOCK);
        at_once((0..3_u8).map(|number| -> Box<dyn FnOnce() + Send> {
            let device = device.clone();
            Box::new(move || {
                let source = bytes(1000, number);
                let copy = start_copy(Tensor::from(source.clone()), &device, by_workers()).unwrap();
                if choose(4) > 0 {
                    assert_eq!(bytes_of(&copy.wait().unwrap()), source);
                }
            })
        }));
        nothing_is_left(&late, [device]);
    });
}

/// While a worker waits for the only block nobody else gets it.
///
/// catches: 95-queue-jumped
#[test]
fn who_waits_for_a_block_is_served_first() {
    explore(1500, || {
        let (late, [device]) = devices(BLOCK);
        let block = start_copy(Tensor::from(bytes(1000, 1)), &device, by_workers()).unwrap();
        eventually(|| device.staging_usage().in_use > 0);
        let waiting = start_copy(Tensor::from(bytes(1000, 2)), &device, by_workers()).unwrap();
        let impatient = {
            let device = device.clone();
            thread::spawn(move || {
                for _ in 0..4 {
                    let is_waiting = device.staging_usage().waiting > 0;
                    let served = start_copy(Tensor::from(bytes(1000, 3)), &device, at_once_or_never());
                    assert!(!is_waiting || served.is_err() || device.staging_usage().waiting == 0);
                }
            })
        };
        assert_eq!(bytes_of(&block.wait().unwrap()), bytes(1000, 1));
        assert_eq!(bytes_of(&waiting.wait().unwrap()), bytes(1000, 2));
        impatient.join().unwrap();
        nothing_is_left(&late, [device]);
    });
}

/// Two workers wait for a block. The first of them gets the next one, which its device then keeps from the second.
///
/// catches: 92-worker-leaves-its-tasks, 94-last-in-the-queue-first
#[test]
fn who_waits_for_a_block_is_served_in_order() {
    explore(1500, || {
        let (late, [device]) = devices(BLOCK);
        let stalled = device.create_stream(StreamPriority::Normal).unwrap();
        late.stall_stream(&**stalled.backend_stream());
        let start =
            |number, options| start_copy(Tensor::from(bytes(1000, number)), &device, options).unwrap();
        let holder = start(0, by_workers().stream(&stalled));
        eventually(|| device.staging_usage().in_use > 0);
        let first = start(1, by_workers().stream(&stalled));
        eventually(|| device.staging_usage().waiting == 1);
        let second = start(2, by_workers());
        eventually(|| device.staging_usage().waiting == 2);
        device.set_staging_budget(2 * BLOCK).unwrap();
        eventually(|| device.staging_usage().waiting == 1);
        for _ in 0..20 {
            assert!(!second.is_ready().unwrap());
            thread::yield_now();
        }
        late.release();
        for (number, copy) in [holder, first, second].into_iter().enumerate() {
            assert_eq!(bytes_of(&copy.wait().unwrap()), bytes(1000, number as u8));
        }
        nothing_is_left(&late, [device]);
    });
}

/// All fit as soon as what is in flight has ended, so none is refused, whoever is given up meanwhile.
///
/// catches: 524-nobody-goes-on-with-who-was-served
#[test]
fn nobody_who_waits_for_room_is_forgotten() {
    explore(1000, || {
        let (late, [device]) = devices(4 * BLOCK);
        device.set_memory_budget(2500).unwrap();
        let stalled = device.create_stream(StreamPriority::Normal).unwrap();
        late.stall_stream(&**stalled.backend_stream());
        drop(start_copy(Tensor::from(bytes(1000, 0)), &device, options().stream(&stalled)).unwrap());
        let copy = |size| copying(&device, size, None);
        let released = late.clone();
        let release: Box<dyn FnOnce() + Send> = Box::new(move || released.release());
        at_once([copy(1000), copy(1000), copy(500), release]);
        nothing_is_left(&late, [device]);
    });
}

/// The program holds too much for two copies with a deadline, which stand aside; one without passes them. All have room beside each other
/// when the program lets go, whoever is given up meanwhile, and never more than there is.
///
/// catches: 632-memory-that-is-back-goes-to-nobody
#[test]
fn nobody_who_stands_aside_is_forgotten() {
    explore(1000, || {
        let (late, [device]) = devices(4 * BLOCK);
        device.set_memory_budget(ROOM).unwrap();
        let held = there(&device, 2000);
        let copy = |size, limit| copying(&device, size, limit);
        at_once([copy(1500, Some(LONG)), copy(600, Some(LONG)), copy(400, None), Box::new(|| drop(held))]);
        assert!(device.memory().unwrap().peak_used.unwrap() <= ROOM as u64);
        nothing_is_left(&late, [device]);
    });
}

/// A copy stands aside, and one behind it needs less. That one gets no room before it, and all that there is as soon as it leaves: it is
/// cancelled or dropped, or meets its deadline, while the program lets go of some memory.
///
/// catches: 633-who-comes-looks-for-no-room, 634-who-leaves-serves-nobody, 635-who-stands-aside-is-passed
#[test]
fn who_stands_behind_one_that_stands_aside_waits_for_that_one_alone() {
    explore(1000, || {
        let (late, [device]) = devices(4 * BLOCK);
        device.set_memory_budget(ROOM).unwrap();
        let (held, dropped) = (there(&device, 1000), there(&device, 1000));
        let (stays, meets_deadline) = (choose(3) == 0, choose(3) == 0);
        let limit = if !stays && meets_deadline { Duration::from_millis(1) } else { LONG };
        let start = |size: usize, limit: Duration| {
            let when = if choose(2) == 0 { options() } else { by_workers() };
            start_copy(Tensor::from(bytes(size, 1)), &device, when.deadline(limit)).expect("room may come")
        };
        let much = start(1600, limit);
        let letting_go = thread::spawn(move || drop(dropped));
        let little = start(600, LONG);
        if stays {
            letting_go.join().unwrap();
            for _ in 0..10 {
                assert!(!little.is_ready().unwrap());
                thread::yield_now();
            }
            drop(held);
            assert_eq!(much.wait().unwrap().nbytes(), 1600);
            assert_eq!(block_on(little).unwrap().nbytes(), 600);
        } else {
            match choose(2) {
                _ if meets_deadline => {
                    let refused = much.wait().unwrap_err();
                    assert!(matches!(refused.error(), Error::OverBudget { .. }), "{refused}");
                }
                0 => drop(much.cancel()),
                _ => drop(much),
            }
            let by_task = choose(2) == 0;
            let little = if by_task { block_on(little) } else { little.wait() };
            assert_eq!(little.expect("nobody is before it").nbytes(), 600);
            letting_go.join().unwrap();
            drop(held);
        }
        assert!(device.memory().unwrap().peak_used.unwrap() <= ROOM as u64);
        nothing_is_left(&late, [device]);
    });
}

/// Copies so many bytes, by whom chance says, and ends that in some way.
fn copying(device: &Device, size: usize, limit: Option<Duration>) -> Box<dyn FnOnce() + Send> {
    let device = device.clone();
    Box::new(move || {
        let when = if choose(2) == 0 { options() } else { by_workers() };
        let when = limit.into_iter().fold(when, CopyOptions::deadline);
        let source = bytes(size, 1);
        let copy = start_copy(Tensor::from(source.clone()), &device, when).expect("room comes");
        end_of(copy, &source, false);
    })
}

/// A tensor that the program holds.
fn there(device: &Device, size: usize) -> Tensor {
    start_copy(Tensor::from(bytes(size, 2)), device, options()).unwrap().wait().unwrap()
}

/// One task, whose copy the reactor settles, or a worker ends, or that fails there.
#[test]
fn no_wake_up_is_lost() {
    explore(1500, || {
        let (late, [device]) = devices(4 * BLOCK);
        let may_fail = fail_sometimes(&late, &[Call::Submit]);
        let (to, options) = match choose(3) {
            0 => (device.clone(), options()),
            1 => (device.clone(), by_workers()),
            _ => (Device::host(), by_workers()),
        };
        run_task(&to, options, may_fail);
        drop(to);
        nothing_is_left(&late, [device]);
    });
}

/// A worker submits a copy while its task comes to wait for it: one of the two sees the other.
///
/// catches: 96-attended-without-the-lock
#[test]
fn a_task_that_comes_while_its_copy_is_submitted_is_woken() {
    explore(3000, || {
        let (late, [device]) = devices(4 * BLOCK);
        let copy = start_copy(Tensor::from(bytes(8, 1)), &device, by_workers()).unwrap();
        drop(block_on(copy).unwrap());
        nothing_is_left(&late, [device]);
    });
}

/// A task that has other things to do, and may be shown the progress of its copy.
#[test]
fn a_busy_task_is_woken_at_the_end_of_its_copy() {
    explore(1500, || {
        let (late, [device]) = devices(4 * BLOCK);
        let to = if choose(2) == 0 { device.clone() } else { Device::host() };
        let options = by_workers().policy(CopyPolicy::Always);
        let copy = start_copy(Tensor::from(bytes(1000, 5)), &to, options).unwrap();
        let progress = copy.progress_stream().map(|item| item.arrived_bytes);
        match choose(3) {
            0 => assert_eq!(block_on_busily(copy).unwrap().nbytes(), 1000),
            1 => block_on_busily(copy.cancel().in_flight).unwrap(),
            _ => {
                let (tensor, items) = block_on_busily(join(copy, progress.collect::<Vec<_>>()));
                assert_eq!((tensor.unwrap().nbytes(), items.last()), (1000, Some(&1000)));
            }
        }
        drop(to);
        nothing_is_left(&late, [device]);
    });
}

/// The reactor may be about to park when the next copy comes.
///
/// catches: 93-reactor-parks-without-a-look
#[test]
fn copies_one_after_the_other_are_looked_after() {
    explore(1500, || {
        let (late, [device]) = devices(BLOCK);
        device.prepare(8).unwrap();
        for _ in 0..6 {
            // Nobody else looks after it.
            drop(start_copy(Tensor::from(bytes(8, 1)), &device, at_once_or_never()).unwrap());
            eventually(|| device.staging_usage().in_use == 0);
        }
        nothing_is_left(&late, [device]);
    });
}

/// Two tasks, and somebody else who settles what they wait for.
#[test]
fn copies_are_settled_by_whoever_comes_first() {
    explore(1000, || {
        let (late, [device]) = devices(4 * BLOCK);
        let task = |options: CopyOptions| -> Box<dyn FnOnce() + Send> {
            let device = device.clone();
            Box::new(move || run_task(&device, options, false))
        };
        let other = device.clone();
        let settle = move || (0..3).for_each(|_| other.synchronize().unwrap());
        at_once([task(options()), task(by_workers()), Box::new(settle)]);
        nothing_is_left(&late, [device]);
    });
}

fn run_task(to: &Device, options: CopyOptions, may_fail: bool) {
    let source = bytes(1000, 5);
    let copy = start_copy(Tensor::from(source.clone()), to, options.policy(CopyPolicy::Always));
    match copy.and_then(block_on) {
        Ok(_) if may_fail => {}
        Ok(tensor) => assert_eq!(bytes_of(&tensor), source),
        Err(error) => assert!(may_fail && is_of_driver(&error), "{error}"),
    }
}

/// Lets one of `calls` fail, in half of the runs.
fn fail_sometimes(late: &LateHandle, calls: &[Call]) -> bool {
    let fails = choose(2) == 0;
    if fails {
        late.fail_next(calls[choose(calls.len() as u32) as usize], choose(3) as usize);
    }
    fails
}

fn is_of_driver(error: &CopyError<Tensor>) -> bool {
    matches!(error.error(), Error::Driver { .. })
}

/// What the units of a copy are carried through: three of them, by three workers, two of which have a block.
const UNITS: usize = 3 * BLOCK;

/// How a copy ends that somebody stops, and that may fail.
fn end_of(copy: CopyHandle<Tensor>, expected: &[u8], may_fail: bool) {
    let ended = match choose(5) {
        0 => return drop(copy),
        1 => return drop(copy.cancel()),
        2 => block_on(copy),
        3 => match copy.wait_timeout(Duration::from_millis(1)) {
            Ok(TimedWait::Done(tensor)) => Ok(tensor),
            Ok(TimedWait::Pending(copy)) => copy.wait(),
            Err(error) => Err(error),
        },
        _ => copy.wait(),
    };
    match ended {
        Ok(tensor) if !may_fail => assert_eq!(bytes_of(&tensor), expected),
        // The failure may meet the way back.
        Ok(tensor) => drop(tensor),
        Err(error) => assert!(may_fail && is_of_driver(&error), "{error}"),
    }
}

/// Who carries the last unit of a copy concludes it, and nobody else does.
///
/// catches: 91-submitter-leaves-without-a-look
#[test]
fn a_crew_concludes_its_copy_once() {
    explore(1500, || {
        let (late, [device]) = devices(UNITS);
        let may_fail = fail_sometimes(&late, &[Call::Submit, Call::Staging, Call::Allocate]);
        let source = bytes(2 * BLOCK + 7, 9);
        let Ok(copy) = start_copy(Tensor::from(source.clone()), &device, by_workers()) else {
            unreachable!()
        };
        end_of(copy, &source, may_fail);
        nothing_is_left(&late, [device]);
    });
}

/// The same for copies to two devices that share blocks, each of which ends in its own way.
#[test]
fn a_crew_of_two_copies_concludes_each_once() {
    explore(1500, || {
        let (late, targets) = devices::<2>(UNITS);
        let may_fail = fail_sometimes(&late, &[Call::Submit, Call::Staging, Call::Allocate]);
        let source = bytes(2 * BLOCK + 7, 9);
        let copies = start_copy_to_all(Tensor::from(source.clone()), &targets, by_workers()).unwrap();
        let source: Arc<[u8]> = source.into();
        at_once(copies.into_iter().map(|copy| -> Box<dyn FnOnce() + Send> {
            let source = source.clone();
            Box::new(move || end_of(copy, &source, may_fail))
        }));
        nothing_is_left(&late, targets);
    });
}

/// Whoever sees a copy done finds its sources free, although somebody else is just letting go of them.
///
/// catches: 90-published-before-release
#[test]
fn sources_are_free_when_the_copy_is_done() {
    explore(1500, || {
        let (late, [device]) = devices(BLOCK);
        let mut source = Tensor::empty_pinned(&[1000], DType::U8, &device).unwrap();
        source.as_mut_bytes().unwrap().copy_from_slice(&bytes(1000, 3));
        let direct = options().packing(false);
        let copy = start_copy(source.clone(), &device, direct).unwrap();
        let other = device.clone();
        let settling = thread::spawn(move || other.synchronize().unwrap());
        let by_task = choose(2) == 0;
        let there = if by_task { block_on(copy) } else { copy.wait() }.unwrap();
        source.as_mut_bytes().expect("nobody else has it").fill(0);
        assert_eq!(bytes_of(&there), bytes(1000, 3));
        settling.join().unwrap();
        drop((source, there));
        nothing_is_left(&late, [device]);
    });
}

/// A copy ends in time or fails, whichever comes first; not both, and not neither.
#[test]
fn a_deadline_is_met_or_missed() {
    explore(12_000, || {
        let (late, [device]) = devices(BLOCK);
        let limit = Duration::from_micros(100);
        let options = if choose(2) == 0 { options() } else { by_workers() };
        let source = bytes(BLOCK + 7, 9);
        let copy = start_copy(Tensor::from(source.clone()), &device, options.deadline(limit)).unwrap();
        let by_task = choose(2) == 0;
        match if by_task { block_on(copy) } else { copy.wait() } {
            Ok(tensor) => assert_eq!(bytes_of(&tensor), source),
            Err(error) => assert!(matches!(error.error(), Error::DeadlineExceeded { .. }), "{error}"),
        }
        nothing_is_left(&late, [device]);
    });
}
