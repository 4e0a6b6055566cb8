//! How far a copy is, as a stream.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::join;
use futures::{Stream, StreamExt};
use late_backend::{LateConfig, LateHandle};
use support::{eventually, in_time, late, no_violations, with};
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, CopyPolicy, CopyProgress, DType, Device, ProgressStream, Tensor,
    start_copy,
};

const BYTES: usize = 24 << 20;
const TOTAL: u64 = BYTES as u64;

fn options() -> CopyOptions {
    CopyOptions::default().policy(CopyPolicy::Always).background(BackgroundWork::Always)
}

fn started(device: &Device) -> CopyHandle<Tensor> {
    start_copy(Tensor::from(vec![1_u8; BYTES]), device, options()).unwrap()
}

/// A copy without staging that is submitted and waits for a device that stands still.
fn submitted(late: &LateHandle, device: &Device) -> CopyHandle<Tensor> {
    let source = Tensor::empty_pinned(&[BYTES], DType::U8, device).unwrap();
    late.stall();
    let handle = start_copy(source, device, options().packing(false)).unwrap();
    eventually("it is submitted", || handle.report().submitted_after.is_some());
    handle
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll(stream: &mut ProgressStream, wakes: &Arc<Wakes>) -> Poll<Option<CopyProgress>> {
    Pin::new(stream).poll_next(&mut Context::from_waker(&Waker::from(wakes.clone())))
}

/// All items that are there, and whether the stream has ended.
fn drain(stream: &mut ProgressStream, wakes: &Arc<Wakes>) -> (Vec<u64>, bool) {
    let mut arrived = Vec::new();
    loop {
        match poll(stream, wakes) {
            Poll::Ready(Some(item)) => arrived.push(item.arrived_bytes),
            Poll::Ready(None) => return (arrived, true),
            Poll::Pending => return (arrived, false),
        }
    }
}

fn is_growing(items: &[u64]) -> bool {
    items.is_sorted_by(|one, next| one < next)
}

#[test]
fn a_stream_of_progress_grows_and_ends_with_the_copy() {
    let (late, device) = late();
    for device in [device, Device::host()] {
        for _ in 0..10 {
            let device = device.clone();
            in_time(move || {
                let handle = started(&device);
                let items = handle.progress_stream().map(|item| (item.arrived_bytes, item.total_bytes));
                let (copied, items) = block_on(join(handle, items.collect::<Vec<_>>()));
                assert_eq!(copied.unwrap().nbytes(), BYTES);
                assert!(items.iter().all(|(_, total)| *total == TOTAL), "{items:?}");
                let arrived: Vec<_> = items.into_iter().map(|(arrived, _)| arrived).collect();
                assert!(is_growing(&arrived) && arrived.len() <= 102, "{arrived:?}");
                assert_eq!(arrived.last(), Some(&TOTAL), "{arrived:?}");
            });
        }
    }
    no_violations(&late);
}

/// Of pieces that are less than a percent each the last one is held up, until the stream has had its item for the others.
///
/// catches: 366-too-little-for-the-last-item
#[test]
fn the_last_item_comes_however_little_has_arrived_since_the_one_before() {
    let paced = |device: &Device| {
        let options = options().max_bytes_in_flight(4096);
        start_copy(Tensor::from(vec![1_u8; 200 * 4096]), device, options).unwrap()
    };
    let (late, device) = late();
    paced(&device).wait().unwrap();
    let calls = late.calls().len();
    let is_tried = (0..calls).rev().any(|call| {
        late.hold(call);
        let handle = paced(&device);
        eventually("a call is held or the copy is done", || late.is_holding() || handle.is_ready().unwrap());
        let before = handle.progress();
        let is_near = (before.total_bytes - before.total_bytes / 100..before.total_bytes)
            .contains(&before.arrived_bytes);
        if is_near {
            let (mut stream, wakes) = (handle.progress_stream(), Arc::<Wakes>::default());
            assert_eq!(drain(&mut stream, &wakes), (vec![before.arrived_bytes], false));
            late.let_go();
            eventually("its task is woken", || wakes.count() > 0);
            assert_eq!(drain(&mut stream, &wakes), (vec![before.total_bytes], true));
        }
        late.let_go();
        handle.wait().unwrap();
        is_near
    });
    assert!(is_tried, "no call of the last piece was held");
    no_violations(&late);
}

/// catches: 367-nobody-looks-for-progress
#[test]
fn a_task_is_woken_when_more_has_arrived_and_not_before() {
    let (late, device) = late();
    let handle = submitted(&late, &device);
    let (mut stream, wakes) = (handle.progress_stream(), Arc::<Wakes>::default());
    assert_eq!(drain(&mut stream, &wakes), (vec![0], false));
    thread::sleep(Duration::from_millis(50));
    assert_eq!((wakes.count(), drain(&mut stream, &wakes)), (0, (vec![], false)), "woken for nothing");
    late.release();
    let mut arrived = Vec::new();
    loop {
        eventually("its task is woken", || wakes.count() > 0);
        let wakes_until_now = Arc::<Wakes>::default();
        let (items, ended) = drain(&mut stream, &wakes_until_now);
        arrived.extend(items);
        if ended {
            break;
        }
        eventually("its task is woken again", || wakes_until_now.count() > 0);
    }
    assert!(is_growing(&arrived) && arrived.last() == Some(&TOTAL), "{arrived:?}");
    assert_eq!(poll(&mut stream, &wakes), Poll::Ready(None));
    handle.wait().unwrap();
    no_violations(&late);
}

/// catches: 368-the-first-waker-of-a-stream-stays
#[test]
fn the_last_task_that_has_polled_is_woken() {
    let (late, device) = late();
    let handle = submitted(&late, &device);
    let mut stream = handle.progress_stream();
    let [first, last] = [(); 2].map(|()| Arc::<Wakes>::default());
    assert!(!drain(&mut stream, &first).1 && !drain(&mut stream, &last).1);
    late.release();
    eventually("the last task is woken", || last.count() == 1);
    assert_eq!(first.count(), 0);
    handle.wait().unwrap();
    no_violations(&late);
}

#[test]
fn a_copy_that_fails_or_is_given_up_ends_its_stream() {
    let (late, device) = with(LateConfig::new("late"));
    late.stall();
    let [cancelled, dropped, failed] = [(); 3].map(|()| started(&device));
    let streams = [&cancelled, &dropped, &failed].map(CopyHandle::progress_stream);
    drop(failed.progress_stream());
    assert!(cancelled.cancel().value.is_some());
    drop(dropped);
    let waiting = thread::spawn(move || streams.map(|stream| block_on(stream.collect::<Vec<_>>())));
    thread::sleep(Duration::from_millis(20));
    late.break_device();
    for items in in_time(|| waiting.join().unwrap()) {
        assert!(items.iter().all(|item| item.arrived_bytes < TOTAL), "{items:?}");
    }
    assert!(failed.wait().is_err());
}
