//! Children of `fork`, such as the workers of a data loader: what needs the threads, locks or drivers of the parent is refused
//! there, and drops neither wait nor touch any of it. The parent goes on.

#![cfg(all(unix, not(miri)))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use late_backend::LateConfig;
use support::held::{batch, bytes, options, up};
use support::{no_violations, on, with};
use transship_core::backend::StreamPriority;
use transship_core::fill::{FillBlock, Filler, Part};
use transship_core::{
    BackgroundWork, DType, Device, Error, PendingCopy, Result, Tensor, drivers, start_copy, start_copy_into,
    start_copy_to_all,
};

/// How `work` ends in a child: its process is killed where it hangs.
fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child calls what may be called in the child of a process with threads, as far as this crate keeps what it says:
    // glibc keeps its own locks in order.
    match unsafe { libc::fork() } {
        0 => {
            let ended = catch_unwind(AssertUnwindSafe(work));
            // Not `_exit`: what runs at the end of a process shall not wait either. Not that of `std`: it takes a lock of its own, which a
            // thread that was just starting may have had.
            // SAFETY: no other thread of this process can call it.
            unsafe { libc::exit(if ended.is_ok() { 0 } else { 1 }) }
        }
        child => {
            assert!(child > 0);
            let begin = Instant::now();
            let mut status = 0;
            // SAFETY: a child of this process, and memory for its status.
            while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
                if begin.elapsed() > Duration::from_secs(10) {
                    // SAFETY: a child that nobody has waited for yet.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                }
                thread::sleep(Duration::from_millis(1));
            }
            status
        }
    }
}

/// Ends the threads, after a panic as well.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[track_caller]
fn is_refused<T>(result: Result<T>) {
    let error = result.err().expect("refused");
    assert!(matches!(error, Error::Forked), "{error}");
    assert!(error.to_string().contains("start this process anew"), "{error}");
}

/// A filler that has submitted a block, and one of its blocks that is half full.
fn filling(device: &Device) -> (Filler, FillBlock) {
    let mut filler = Filler::new(device, 256 << 10).unwrap();
    let memory = filler.allocate(64, 1).unwrap();
    let block = || {
        let mut block = filler.block().unwrap();
        block.append(&[7; 64]).unwrap();
        block
    };
    filler.submit(block(), &[Part { memory, to_offset: 0, from_offset: 0, bytes: 64 }]).unwrap();
    let half_full = block();
    (filler, half_full)
}

/// Deliberate bugs: the child is not told from its parent; memory of devices is given back in a child.
///
/// catches: 588-a-child-waits-for-the-lock-of-the-staging
#[test]
fn children_are_refused_what_they_cannot_have_and_leak_what_they_drop() {
    let config = LateConfig { gather: Some(32), ..LateConfig::new("late-fork") };
    let (late, device) = with(config.clone());
    let (busy_late, busy) = with(config);
    device.prepare(1 << 16).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Over(&over);
        // So that there are locks to be found locked.
        for background in [BackgroundWork::Always, BackgroundWork::Auto] {
            let (busy, over) = (&busy, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let there = start_copy(batch(1), busy, options().background(background)).unwrap();
                    assert_eq!(bytes(&there.wait().unwrap()), bytes(&batch(1)));
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = (device.staging_usage(), device.result_usage(), device.counters());
            }
        });
        for round in 0..40 {
            let host = Tensor::from(vec![1_u8, 2, 3]);
            let (there, held, filled) = (up(batch(2), &device), up(batch(1), &device), on(&busy, &[1]));
            let mut pinned = Tensor::empty_pinned(&[8], DType::U8, &device).unwrap();
            pinned.as_mut_bytes().unwrap().fill(5);
            let mut memory = Vec::with_capacity(128 << 10); // pages of its own behind it
            memory.resize(8, 6_u8);
            let registered = device.register_vec(memory, &[8]).unwrap();
            let stream = device.create_stream(StreamPriority::Normal).unwrap();
            there[0].record_stream(&stream).unwrap();
            let finished = start_copy(batch(4), &device, options()).unwrap();
            let (filler, its_block) = filling(&device);
            device.synchronize().unwrap();
            assert!(finished.is_ready().unwrap());
            late.stall();
            let [finishing, dropped_while_busy] = [(); 2].map(|()| filling(&device));
            let start = |background| start_copy(batch(3), &device, options().background(background)).unwrap();
            let waited = [start(BackgroundWork::Auto), start(BackgroundWork::Always)];
            let mut awaited = [start(BackgroundWork::Auto), start(BackgroundWork::Always)];
            let cancelled = [start(BackgroundWork::Auto), start(BackgroundWork::Always)];
            let dropped = start_copy_into(batch(5), held, options()).unwrap();
            // Of the parent, in the end.
            let mine = start_copy(batch(6), &device, options()).unwrap();
            let code = in_child(|| {
                assert_eq!(host.as_slice::<u8>().unwrap(), [1, 2, 3]);
                assert_eq!(pinned.as_slice::<u8>().unwrap(), [5; 8]);
                assert_eq!(registered.as_slice::<u8>().unwrap(), [6; 8]);
                let refused = registered.into_vec::<u8>().unwrap_err();
                assert!(matches!(refused.error(), Error::Forked), "{refused}");
                drop(refused);
                is_refused(device.register(vec![1_u8; 8]).map_err(Error::from));
                is_refused(start_copy(host.clone(), &device, options()).map_err(Error::from));
                is_refused(start_copy(host.clone(), &Device::host(), options()).map_err(Error::from));
                is_refused(start_copy_into(host.clone(), filled.clone(), options()).map_err(Error::from));
                is_refused(
                    start_copy_to_all(host.clone(), &[device.clone(), busy.clone()], options())
                        .map_err(Error::from),
                );
                is_refused(Device::open("late-fork:0".parse().unwrap()));
                is_refused(Device::best());
                is_refused(Device::from_backend(device.backend().clone()));
                is_refused(device.prepare(1));
                is_refused(device.synchronize());
                is_refused(device.drain());
                is_refused(device.create_stream(StreamPriority::Normal));
                is_refused(device.set_staging_budget(1 << 20));
                is_refused(Tensor::zeros(&[4], DType::U8, &device));
                is_refused(stream.record());
                is_refused(stream.synchronize());
                assert_eq!((device.trim(), device.staging_usage().in_use), (0, 0));
                assert!(drivers().is_empty());
                for copy in waited {
                    is_refused(copy.is_ready());
                    is_refused(copy.wait().map_err(Error::from));
                }
                let [first, second] = &mut awaited;
                is_refused(block_on(first).map_err(Error::from));
                is_refused(block_on(second.done()));
                for copy in cancelled {
                    let cancelled = copy.cancel();
                    assert!(cancelled.value.is_none());
                    is_refused(cancelled.in_flight.wait());
                    is_refused(block_on(cancelled.in_flight));
                }
                is_refused(filler.block());
                is_refused(filler.submit(its_block, &[]));
                is_refused(finishing.0.finish());
                drop((finishing.1, filler, dropped_while_busy));
                drop((awaited, dropped, there, pinned, stream, filled, host, finished));
                drop((device.clone(), busy.clone()));
            });
            assert_eq!(code, 0, "the child of round {round} (9: it had to be killed)");
            late.release();
            assert_eq!(bytes(&mine.wait().unwrap()), bytes(&batch(6)));
        }
    });
    device.drain().unwrap();
    no_violations(&late);
    no_violations(&busy_late);
}
