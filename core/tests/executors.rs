//! A handle is a future for any executor: no wake-up is lost, none is superfluous.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll, Wake, Waker};

use futures::executor::block_on;
use support::{PATIENCE, bytes_of, eventually, in_time, late, no_violations};
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, CopyPolicy, Device, Error, PendingCopy, Tensor, Value,
    start_copy,
};

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// So many copies meet the moment between a look and a registration, on a loaded machine as well.
const ROUNDS: usize = 2000;

/// Counts how often it was woken.
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

fn poll(handle: &mut CopyHandle<Tensor>, wakes: &Arc<Wakes>) -> Option<Tensor> {
    let waker = Waker::from(wakes.clone());
    match Pin::new(handle).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(done) => Some(done.unwrap()),
        Poll::Pending => None,
    }
}

/// Polls with a new waker each time; whenever the copy has ended after a poll that said pending, that waker must be woken.
fn no_wake_up_is_lost(to: &Device) {
    let always = || options().policy(CopyPolicy::Always).background(BackgroundWork::Always);
    for _ in 0..ROUNDS {
        let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), to, always()).unwrap();
        loop {
            let wakes = Arc::default();
            if poll(&mut handle, &wakes).is_some() {
                break;
            }
            if handle.is_ready().unwrap() {
                eventually("the last waker is woken", || wakes.count() > 0);
            }
        }
    }
}

/// catches: 03-waker-after-the-last-check
#[test]
fn a_copy_that_ends_while_it_is_polled_wakes_its_task() {
    in_time(|| no_wake_up_is_lost(&Device::host()));
    let (late, device) = late();
    in_time(move || no_wake_up_is_lost(&device));
    no_violations(&late);
}

#[test]
fn the_waker_of_the_last_poll_is_woken_and_no_other() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
    let (first, second) = (Arc::default(), Arc::default());
    assert!(poll(&mut handle, &first).is_none());
    assert!(poll(&mut handle, &second).is_none());
    late.release();
    eventually("the second waker is woken", || second.count() > 0);
    assert_eq!((first.count(), second.count()), (0, 1));
    let done = poll(&mut handle, &second).expect("a woken task finds its copy done");
    assert_eq!(bytes_of(&done), [1; 8]);
    no_violations(&late);
}

#[test]
fn a_handle_that_is_polled_after_its_end_is_an_error() {
    let (_, device) = late();
    let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
    block_on(&mut handle).unwrap();
    for _ in 0..2 {
        let again = block_on(&mut handle).unwrap_err();
        assert!(matches!(again.error(), Error::Finished));
        assert!(again.into_value().is_none());
    }
}

#[test]
fn a_handle_may_move_to_another_thread_between_polls() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
    assert!(poll(&mut handle, &Arc::default()).is_none());
    late.release();
    assert_eq!(bytes_of(&in_time(move || block_on(handle)).unwrap()), [1; 8]);
}

#[test]
fn pending_copies_of_different_structures_are_waited_for_together() {
    let (late, device) = late();
    late.stall();
    let mut one = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
    let mut other =
        start_copy(Value::list([Tensor::from(vec![2_u8; 8]).into()]), &device, options()).unwrap();
    let mut pending: [&mut dyn PendingCopy; 2] = [&mut one, &mut other];
    assert!(pending.iter().all(|copy| !copy.is_ready().unwrap() && copy.report().done_after.is_none()));
    late.release();
    for copy in &mut pending {
        block_on(copy.done()).unwrap();
        assert!(copy.is_ready().unwrap() && copy.report().done_after.is_some());
    }
    assert_eq!(bytes_of(&one.wait().unwrap()), [1; 8]);
    let list = other.wait().unwrap();
    assert_eq!(bytes_of(list.index(0).and_then(Value::as_tensor).unwrap()), [2; 8]);
    no_violations(&late);
}

/// One of many tasks on one thread.
struct Task {
    number: usize,
    wakes: AtomicUsize,
    ready: Sender<usize>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.ready.send(self.number).expect("the executor listens");
    }
}

#[test]
fn a_thousand_copies_wake_their_tasks_once_each() {
    const COPIES: usize = 1000;
    let (late, device) = late();
    late.stall();
    let (ready, woken) = mpsc::channel();
    let mut tasks: Vec<_> = (0..COPIES)
        .map(|number| {
            let bytes = number.to_le_bytes().to_vec();
            let handle = start_copy(Tensor::from(bytes), &device, options()).unwrap();
            (Arc::new(Task { number, wakes: AtomicUsize::new(0), ready: ready.clone() }), Some(handle))
        })
        .collect();
    let poll = |(task, handle): &mut (Arc<Task>, Option<CopyHandle<Tensor>>)| {
        let running = handle.as_mut()?;
        match Pin::new(running).poll(&mut Context::from_waker(&Waker::from(task.clone()))) {
            Poll::Ready(done) => {
                *handle = None;
                Some((task.number, done.unwrap()))
            }
            Poll::Pending => None,
        }
    };
    assert!(tasks.iter_mut().all(|task| poll(task).is_none()), "the device stands still");
    late.release();
    let mut done = Vec::new();
    while done.len() < COPIES {
        let number = woken.recv_timeout(PATIENCE).expect("a task is woken");
        done.extend(poll(&mut tasks[number]));
    }
    for (number, tensor) in done.into_iter().step_by(97) {
        assert_eq!(bytes_of(&tensor), number.to_le_bytes());
    }
    assert!(tasks.iter().all(|(task, _)| task.wakes.load(Ordering::SeqCst) <= 2));
    no_violations(&late);
}
