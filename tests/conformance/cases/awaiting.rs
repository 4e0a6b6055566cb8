//! Awaiting copies on every kind of executor, many at once, and with time-outs.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use transship::{PendingCopy, Tensor, TimedWait, start_copy};

use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(on_futures_block_on),
        case!(on_tokio_current_thread),
        case!(on_tokio_multi_thread),
        case!(on_a_hand_written_executor),
        case!(a_poll_of_a_copy_in_flight_is_pending),
        case!(copies_of_different_types_in_one_list),
        case!(wait_timeout_gives_the_handle_back),
        case!(polled_until_ready),
        case!(a_thousand_copies_on_one_thread).alone(),
    ]
}

/// A copy up and a copy down, awaited.
async fn there_and_back(bed: &Bed, sent: Vec<Tensor>) -> Result<Vec<Tensor>, Failed> {
    let there = start_copy(sent, &bed.device, bed.options())?.await?;
    Ok(start_copy(there, &bed.host, bed.options())?.await?)
}

fn compare(bed: &Bed, run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>, Failed>) -> Result<(), Failed> {
    let mut sent = bed.batch(30);
    sent.push(bed.bytes(5 << 20));
    let expected = Contents::of_all(&mut sent);
    assert_same(&expected, &Contents::of_all(&mut run(sent)?));
    Ok(())
}

fn on_futures_block_on(bed: &Bed) -> Result<(), Failed> {
    compare(bed, |sent| futures::executor::block_on(there_and_back(bed, sent)))
}

fn on_tokio_current_thread(bed: &Bed) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    compare(bed, |sent| runtime.block_on(there_and_back(bed, sent)))
}

/// Spawned, so that a poll may be on another thread than the one before.
fn on_tokio_multi_thread(bed: &Bed) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    compare(bed, |sent| {
        let there = start_copy(sent, &bed.device, bed.options())?;
        let there = runtime.block_on(runtime.spawn(there))??;
        let back = start_copy(there, &bed.host, bed.options())?;
        Ok(runtime.block_on(runtime.spawn(back))??)
    })
}

fn on_a_hand_written_executor(bed: &Bed) -> Result<(), Failed> {
    compare(bed, |sent| park_on(there_and_back(bed, sent)))
}

/// The smallest executor: the thread sleeps until the waker of its one task is called.
fn park_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn a_poll_of_a_copy_in_flight_is_pending(bed: &Bed) -> Result<(), Failed> {
    let held = bed.hold();
    let mut handle = start_copy(bed.batch(10), &bed.device, bed.options())?;
    let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
    match polled {
        Poll::Pending => assert!(!held.holds() || !handle.is_ready()?),
        Poll::Ready(done) => {
            assert!(!held.holds(), "nothing can have been copied");
            return Ok(done.map(drop)?);
        }
    }
    drop(held);
    // The waker of the last poll counts: this one would never be woken by the first.
    bed.down(park_on(handle)?).map(|_| ())
}

fn copies_of_different_types_in_one_list(bed: &Bed) -> Result<(), Failed> {
    let mut copies: Vec<Box<dyn PendingCopy>> = vec![
        Box::new(start_copy(bed.bytes(100), &bed.device, bed.options())?),
        Box::new(start_copy(bed.batch(9), &bed.device, bed.options())?),
        Box::new(start_copy((bed.bytes(2 << 20), "other"), &bed.device, bed.options())?),
    ];
    futures::executor::block_on(async {
        for copy in &mut copies {
            copy.done().await?;
        }
        Ok::<_, transship::Error>(())
    })?;
    let leaves: Vec<usize> = copies.iter().map(|copy| copy.report().leaves).collect();
    assert_eq!(leaves, [1, 9, 1]);
    for copy in &copies {
        assert!(copy.is_ready()? && copy.report().done_after.is_some());
    }
    Ok(())
}

fn wait_timeout_gives_the_handle_back(bed: &Bed) -> Result<(), Failed> {
    let mut held = Some(bed.hold());
    let mut sent = bed.batch(10);
    let expected = Contents::of_all(&mut sent);
    let mut handle = start_copy(sent, &bed.device, bed.options())?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let there = loop {
        match handle.wait_timeout(Duration::from_millis(2))? {
            TimedWait::Done(there) => break there,
            TimedWait::Pending(again) => handle = again,
        }
        assert!(Instant::now() < deadline, "the copy does not end");
        held = None;
    };
    assert!(held.is_none_or(|held| !held.holds()), "nothing can have been copied");
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    Ok(())
}

fn polled_until_ready(bed: &Bed) -> Result<(), Failed> {
    let handle = start_copy(bed.batch(10), &bed.device, bed.options())?;
    crate::bed::eventually("the copy", || handle.is_ready().expect("a healthy device"))?;
    assert!(handle.report().done_after.is_some());
    let there = handle.wait()?;
    bed.down(there).map(|_| ())
}

const MANY: usize = 1000;
/// Threads that transship may start, however many copies there are: its workers and its reactor.
const MOST_THREADS: usize = 11;

fn a_thousand_copies_on_one_thread(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    device.set_staging_budget(4 << 20)?;
    let mut sent: Vec<Vec<Tensor>> = (0..MANY).map(|_| bed.batch(4)).collect();
    let expected = Contents::of_all(&mut sent);
    let threads_before = threads();
    let held = bed.hold();
    let handles = sent.into_iter().map(|batch| start_copy(batch, &device, bed.options()));
    let tasks = handles.map(|handle| handle.map(|handle| Box::pin(handle) as Task<_>));
    let mut executor = Executor::new(tasks.collect::<Result<_, _>>()?);
    executor.run_ready();
    let (pending, most_threads) = (executor.pending(), threads());
    assert!(!held.holds() || pending == MANY, "{pending} are pending though nothing can have been copied");
    drop(held);
    executor.run_to_the_end();
    let wakes = executor.wakes();
    assert!(wakes >= pending, "{wakes} wakes for {pending} tasks that were pending");
    assert!(wakes <= 4 * MANY, "{wakes} wakes for {MANY} tasks");
    if let (Some(before), Some(most), Some(after)) = (threads_before, most_threads, threads()) {
        assert!(most.max(after) <= before + MOST_THREADS, "{before} threads, then {most}, then {after}");
    }
    let there: Vec<Vec<Tensor>> = executor.outputs().into_iter().collect::<Result<_, _>>()?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    Ok(())
}

/// How many threads this process has, where that can be told.
fn threads() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

type Task<O> = Pin<Box<dyn Future<Output = O>>>;

/// Runs many tasks on one thread, each only when its own waker was called.
struct Executor<O> {
    tasks: Vec<Option<Task<O>>>,
    outputs: Vec<Option<O>>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Ready {
    queue: Mutex<Vec<usize>>,
    arrived: Condvar,
    wakes: AtomicUsize,
}

struct TaskWaker {
    ready: Arc<Ready>,
    task: usize,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.wakes.fetch_add(1, Ordering::Relaxed);
        self.ready.queue.lock().unwrap().push(self.task);
        self.ready.arrived.notify_one();
    }
}

impl<O> Executor<O> {
    fn new(tasks: Vec<Task<O>>) -> Self {
        let ready = Arc::new(Ready::default());
        ready.queue.lock().unwrap().extend(0..tasks.len());
        Self {
            outputs: tasks.iter().map(|_| None).collect(),
            tasks: tasks.into_iter().map(Some).collect(),
            ready,
        }
    }

    fn pending(&self) -> usize {
        self.tasks.iter().flatten().count()
    }

    fn wakes(&self) -> usize {
        self.ready.wakes.load(Ordering::Relaxed)
    }

    fn outputs(self) -> Vec<O> {
        self.outputs.into_iter().flatten().collect()
    }

    /// Polls every task that was woken so far.
    fn run_ready(&mut self) {
        let woken = std::mem::take(&mut *self.ready.queue.lock().unwrap());
        for task in woken {
            let Some(future) = &mut self.tasks[task] else { continue };
            let waker = Waker::from(Arc::new(TaskWaker { ready: self.ready.clone(), task }));
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.outputs[task] = Some(output);
                self.tasks[task] = None;
            }
        }
    }

    fn run_to_the_end(&mut self) {
        let patience = Duration::from_secs(60);
        while self.pending() > 0 {
            let queue = self.ready.queue.lock().unwrap();
            let waited = self.ready.arrived.wait_timeout_while(queue, patience, |queue| queue.is_empty());
            assert!(!waited.unwrap().1.timed_out(), "{} tasks were never woken", self.pending());
            self.run_ready();
        }
    }
}
