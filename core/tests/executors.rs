//! A handle is a future for any executor: no wake-up is lost, none is superfluous.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

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
const ROUNDS: usize = 1000;
/// And so many of them may take as long as a test waits for anything.
const IN_TIME: usize = 100;

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
    let always = options().policy(CopyPolicy::Always).background(BackgroundWork::Always);
    let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), to, always).unwrap();
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

/// catches: 03-waker-after-the-last-check
#[test]
fn a_copy_that_ends_while_it_is_polled_wakes_its_task() {
    let (late, device) = late();
    for device in [Device::host(), device] {
        for _ in 0..ROUNDS / IN_TIME {
            let device = device.clone();
            in_time(move || (0..IN_TIME).for_each(|_| no_wake_up_is_lost(&device)));
        }
    }
    no_violations(&late);
}

/// So many large copies are polled by tasks that have other things to do.
const BUSY_ROUNDS: usize = 200;

/// The waker of one poll. Says which, when it is woken.
struct OfOnePoll {
    number: usize,
    woken: Mutex<Sender<usize>>,
}

impl Wake for OfOnePoll {
    fn wake(self: Arc<Self>) {
        let _ = self.woken.lock().unwrap().send(self.number);
    }
}

/// Polls `future` as a task that another thread wakes `pokes` times, at any moment. Every `renewed`-th poll is by another task: only the
/// waker of the last poll counts.
fn poll_busily<F: Future + Unpin>(mut future: F, renewed: usize, pokes: usize) -> F::Output {
    let (woken, wakes) = mpsc::channel();
    let other = Arc::new(Mutex::new(None::<Waker>));
    let poked = other.clone();
    let poking = thread::spawn(move || {
        for _ in 0..pokes {
            poked.lock().unwrap().take().into_iter().for_each(Waker::wake);
            thread::yield_now();
        }
    });
    let mut polls = 0;
    let mut waker = Waker::noop().clone();
    let output = loop {
        let number = polls / renewed;
        if polls % renewed == 0 {
            waker = Waker::from(Arc::new(OfOnePoll { number, woken: Mutex::new(woken.clone()) }));
        }
        polls += 1;
        *other.lock().unwrap() = Some(waker.clone());
        // What was woken before a poll has had its poll.
        while wakes.try_recv().is_ok() {}
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            break output;
        }
        while wakes.recv_timeout(PATIENCE).expect("the task of the last poll is woken") != number {}
    };
    poking.join().unwrap();
    output
}

fn busy_tasks_are_woken(to: &Device) {
    for round in 0..BUSY_ROUNDS {
        let bytes = (1 << 20) + ((round % 7) << 19);
        let always = options().policy(CopyPolicy::Always).background(BackgroundWork::Always);
        let (renewed, pokes) = ([1, 2, usize::MAX][round % 3], round * 37 % 100);
        let handle = start_copy(Tensor::from(vec![1_u8; bytes]), to, always).unwrap();
        match round % 5 {
            0 => {
                thread::sleep(Duration::from_micros(round as u64 * 7 % 600));
                poll_busily(handle.cancel().in_flight, renewed, pokes).unwrap();
            }
            _ => assert_eq!(poll_busily(handle, renewed, pokes).unwrap().nbytes(), bytes),
        }
    }
}

/// The task has other things to do, or the handle goes from task to task.
///
/// catches: 369-the-first-waker-of-a-copy-stays
#[test]
fn a_task_that_is_polled_at_any_moment_is_woken_at_the_end() {
    busy_tasks_are_woken(&Device::host());
    let (late, device) = late();
    busy_tasks_are_woken(&device);
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
