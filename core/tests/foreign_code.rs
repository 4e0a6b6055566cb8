//! The program's own code, which locks, waits, panics and copies: destructors of memory that it has lent, wakers, drivers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/support/hostile.rs"]
mod hostile;
mod support;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use hostile::{Flag, Owner, PanicsWhenDropped, Task, waker};
use support::{Drops, bytes_of, eventually, in_time, late, no_violations, on};
use transship_core::backend::{Backend, BuiltinDriver, Driver, MemoryKind, RawMemory, StreamPriority};
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, Result, Stop, Tensor, TensorTree,
    TimedWait, Visitor, register_driver, start_copy,
};

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn lent(bytes: &[u8], on_drop: impl FnOnce() + Send + Sync + 'static) -> Tensor {
    Tensor::from_owner(Owner::new(bytes.to_vec(), move |_| on_drop()), DType::U8, &[bytes.len()]).unwrap()
}

/// Larger than what is copied at once, so that workers do.
fn lent_large(on_drop: impl FnOnce() + Send + Sync + 'static) -> Tensor {
    lent(&vec![1; 3 << 20], on_drop)
}

/// A program with pooled buffers: whoever holds its lock waits for another copy. Direct, staged and background copies.
///
/// Mutant: memory that was lent is dropped by whoever settles a stream.
#[test]
fn an_owner_may_lock_what_is_held_by_somebody_who_waits() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let pool = Arc::new(Mutex::new(Vec::<Vec<u8>>::new()));
    for how in 0..4 {
        let options = || options().background([BackgroundWork::Auto, BackgroundWork::Always][how % 2]);
        let returns = |bytes: usize| {
            let pool = pool.clone();
            let owner = Owner::new(vec![7; bytes], move |bytes| pool.lock().unwrap().push(bytes));
            Tensor::from_owner(owner, DType::U8, &[bytes]).unwrap()
        };
        pool.lock().unwrap().clear();
        late.stall();
        drop(start_copy(returns(64), &device, options()).unwrap());
        let awaited = start_copy(returns(3 << 20), &device, options()).unwrap();
        let awaits = thread::spawn(move || block_on(awaited).map(drop));
        let (device, pool, late) = (device.clone(), pool.clone(), late.clone());
        in_time(move || {
            let held = pool.lock().unwrap();
            let other = start_copy(Tensor::from(vec![9_u8; 8]), &device, CopyOptions::default()).unwrap();
            late.release();
            assert_eq!(if how < 2 { other.wait() } else { block_on(other) }.unwrap().nbytes(), 8);
            device.synchronize().unwrap();
            drop(held);
            awaits.join().unwrap().unwrap();
            eventually("the buffers come back", || !pool.lock().unwrap().is_empty());
        });
    }
    no_violations(&late);
}

/// Nothing waits for owners, however many of them wait.
#[test]
fn owners_that_wait_hold_up_nobody() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let go_on = Flag::default();
    let waiting = Arc::new(Mutex::new(0));
    for _ in 0..20 {
        let (go_on, waiting) = (go_on.clone(), waiting.clone());
        let owner = move || {
            *waiting.lock().unwrap() += 1;
            eventually("the owner may go on", || go_on.is_raised());
        };
        drop(start_copy(lent(&[1; 64], owner), &device, options()).unwrap());
    }
    let copies = device.clone();
    in_time(move || {
        copies.synchronize().unwrap();
        for _ in 0..10 {
            block_on(start_copy(Tensor::from(vec![1_u8; 8]), &copies, options()).unwrap()).unwrap();
            drop(start_copy(lent_large(|| {}), &copies, options()).unwrap().wait().unwrap());
        }
        copies.trim();
    });
    eventually("all of them wait", || *waiting.lock().unwrap() == 20);
    go_on.raise();
    no_violations(&late);
}

#[test]
fn an_owner_may_await_a_copy() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let (ended, awaits) = (Flag::default(), device.clone());
    let owner = {
        let ended = ended.clone();
        move || {
            late_poll(start_copy(Tensor::from(vec![1_u8; 8]), &awaits, options()).unwrap());
            ended.raise();
        }
    };
    late.stall();
    let copy = start_copy(lent(&[1; 64], owner), &device, options()).unwrap();
    drop(copy);
    late.release();
    eventually("the owner has awaited its copy", || ended.is_raised());
    in_time(move || late_poll(start_copy(Tensor::from(vec![2_u8; 8]), &device, options()).unwrap()));
    no_violations(&late);
}

/// Awaits with a first poll that is too early.
fn late_poll<S: TensorTree>(mut copy: CopyHandle<S>) {
    let early = Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop()));
    match early {
        Poll::Ready(done) => drop(done.unwrap()),
        Poll::Pending => drop(block_on(copy).unwrap()),
    }
}

/// Of its own request, on its own thread, and before `wait` returns; in nobody else's.
///
/// Mutant: whoever settles a stream drops the memory of all copies on it.
#[test]
fn who_waits_drops_what_he_has_lent_and_nothing_else() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    for mode in [BackgroundWork::Auto, BackgroundWork::Always] {
        let dropped_by = Arc::new(OnceLock::new());
        let owner = {
            let dropped_by = dropped_by.clone();
            move || dropped_by.set(thread::current().id()).unwrap()
        };
        let first =
            start_copy(lent(&[1; 64], owner), &device, options().stream(&stream).background(mode)).unwrap();
        let drops = Drops::default();
        let second = start_copy(drops.tensor(vec![2; 64]), &device, options().stream(&stream)).unwrap();
        second.wait().unwrap();
        assert_eq!(drops.count(), 1);
        stream.synchronize().unwrap();
        assert!(dropped_by.get().is_none(), "its own handle is not asked yet");
        first.wait().unwrap();
        assert_eq!(dropped_by.get(), Some(&thread::current().id()), "{mode:?}");
    }
    no_violations(&late);
}

/// A tensor over memory of the device that the program lends.
fn lent_by_device(device: &Device, on_drop: impl FnOnce() + Send + Sync + 'static) -> Tensor {
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let buffer = device.backend().allocate(64, &**stream.backend_stream()).unwrap();
    stream.synchronize().unwrap();
    let memory = RawMemory::new(buffer.address().unwrap(), 64, MemoryKind::Device);
    let owner = Box::new((Mutex::new(Owner::new(Vec::new(), move |_| on_drop())), buffer));
    // SAFETY: the owner holds the buffer, whose allocation is done and which nobody writes.
    unsafe { Tensor::from_raw(memory, owner, &[64], DType::U8, device) }.unwrap()
}

/// Somebody else finds the copy done; and who waits may hold what the owner of another copy wants.
///
/// catches: 124-lent-dropped-by-who-settles, 127-lent-kept-by-nobody
#[test]
fn what_a_device_has_read_is_dropped_by_its_own_waiter() {
    in_time(|| {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        let options = || options().stream(&stream);
        let (dropped_by, pool) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(0)));
        let (owner, locks) = (dropped_by.clone(), pool.clone());
        let owned = lent_by_device(&device, move || owner.set(thread::current().id()).unwrap());
        let locking = lent_by_device(&device, move || *locks.lock().unwrap() += 1);

        late.stall();
        let copy = start_copy(owned, &Device::host(), options()).unwrap();
        // It lets go of the source here: the device alone uses it.
        let TimedWait::Pending(copy) = copy.wait_timeout(Duration::ZERO).unwrap() else {
            panic!("it stands still")
        };
        drop(start_copy(locking, &Device::host(), options()).unwrap());
        let held = pool.lock().unwrap();
        late.release();
        stream.synchronize().unwrap();
        assert!(dropped_by.get().is_none(), "its own handle is not asked yet");
        copy.wait().unwrap();
        assert_eq!(dropped_by.get(), Some(&thread::current().id()));
        drop(held);
        eventually("the other one is dropped as well", || *pool.lock().unwrap() == 1);
        no_violations(&late);
    });
}

#[test]
fn the_panic_of_an_owner_is_met_by_its_own_request() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let options = || options().stream(&stream);
    for _ in 0..20 {
        let panics = || lent(&[1; 64], || panic!("the owner panics"));
        drop(start_copy(panics(), &device, options()).unwrap());
        let kept = start_copy(panics(), &device, options()).unwrap();
        let other = start_copy(Tensor::from(vec![3_u8; 8]), &device, options()).unwrap();
        assert_eq!(bytes_of(&other.wait().unwrap()), [3; 8]);
        stream.synchronize().unwrap();
        let met = catch_unwind(AssertUnwindSafe(move || kept.wait().map(drop)));
        assert_eq!(met.unwrap_err().downcast_ref::<&str>(), Some(&"the owner panics"));
    }
    device.synchronize().unwrap();
    no_violations(&late);
}

#[test]
fn cancelling_drops_what_was_lent_and_a_poll_does_not() {
    let (late, device) = late();
    let here = thread::current().id();
    let dropped_by = Arc::new(Mutex::new(Vec::new()));
    let owner = || {
        let dropped_by = dropped_by.clone();
        lent(&[1; 64], move || dropped_by.lock().unwrap().push(thread::current().id()))
    };
    block_on(start_copy(owner(), &device, options()).unwrap()).unwrap();
    drop(start_copy(owner(), &device, options()).unwrap());
    eventually("both are dropped", || dropped_by.lock().unwrap().len() == 2);
    assert!(dropped_by.lock().unwrap().iter().all(|thread| *thread != here), "a poll and a drop never block");
    let cancelled = start_copy(owner(), &device, options()).unwrap().cancel();
    device.synchronize().unwrap();
    drop(cancelled.value);
    eventually("it is dropped", || dropped_by.lock().unwrap().len() == 3);
    no_violations(&late);
}

/// Panics with something that panics again.
struct Panics;

impl Task for Panics {
    fn woken(&self) {
        panic_any(PanicsWhenDropped("the payload panics"));
    }
}

/// Mutant: payloads of panics are dropped.
#[test]
fn a_waker_that_panics_twice_takes_nobody_with_it() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    for _ in 0..5 {
        late.stall();
        let mut copy = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
        let panics = waker(Arc::new(Panics));
        assert!(Pin::new(&mut copy).poll(&mut Context::from_waker(&panics)).is_pending());
        let other = start_copy(Tensor::from(vec![2_u8; 8]), &device, options()).unwrap();
        let (sender, woken) = mpsc::channel();
        thread::spawn(move || sender.send(block_on(other).map(|tensor| tensor.nbytes())));
        thread::sleep(Duration::from_millis(2));
        late.release();
        assert_eq!(woken.recv_timeout(support::PATIENCE).expect("the other is woken").unwrap(), 8);
        drop(copy);
    }
    let panics = lent(&[1; 64], || panic_any(PanicsWhenDropped("the payload panics")));
    drop(start_copy(panics, &device, options()).unwrap());
    device.synchronize().unwrap();
    block_on(start_copy(Tensor::from(vec![2_u8; 8]), &device, options()).unwrap()).unwrap();
    no_violations(&late);
}

/// Asks the library whenever it is touched.
struct Asks {
    device: Device,
    lock: Arc<Mutex<()>>,
}

impl Asks {
    fn ask(&self) {
        let _held = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        start_copy(Tensor::from(vec![1_u8; 8]), &self.device, options()).unwrap().wait().unwrap();
    }
}

impl Task for Asks {
    fn cloned(&self) {
        self.ask();
    }

    fn woken(&self) {
        self.ask();
    }

    fn dropped(&self) {
        self.ask();
    }
}

/// Mutant: the waker that is replaced is dropped under the lock of the copy.
#[test]
fn wakers_may_copy_whenever_they_are_touched() {
    let (late, device) = late();
    let (_, other) = support::late();
    device.prepare(64).unwrap();
    late.stall();
    let copies = device.clone();
    let work = move || {
        let mut copy = start_copy(Tensor::from(vec![1_u8; 8]), &copies, options()).unwrap();
        for _ in 0..3 {
            let asks = waker(Arc::new(Asks { device: other.clone(), lock: Arc::default() }));
            assert!(Pin::new(&mut copy).poll(&mut Context::from_waker(&asks)).is_pending());
        }
        copy
    };
    let copy = in_time(work);
    late.release();
    in_time(move || block_on(copy).unwrap());
    no_violations(&late);
}

/// A structure that others reach as well.
struct Shared(Arc<Mutex<Tensor>>);

impl TensorTree for Shared {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> std::result::Result<(), Stop> {
        visitor.tensor(&mut self.0.lock().unwrap())
    }
}

/// Who waits for a copy helps to carry it out, and must not have anything of it left to do when the program's code runs.
///
/// Mutant: the structure is put together before units are carried.
#[test]
fn a_visit_may_wait_for_who_waits_for_the_copy() {
    let (late, device) = late();
    for bytes in [10, 3 << 20] {
        for _ in 0..20 {
            let shared = Arc::new(Mutex::new(Tensor::from(vec![1_u8; bytes])));
            let options = options().background(BackgroundWork::Always);
            let copy = start_copy(Shared(shared.clone()), &device, options).unwrap();
            let waits = device.clone();
            let other = thread::spawn(move || {
                let _held = shared.lock().unwrap();
                waits.drain().unwrap();
            });
            in_time(move || copy.wait().map(drop)).unwrap();
            other.join().unwrap();
        }
    }
    no_violations(&late);
}

struct AtTheEnd(Device, mpsc::Sender<Result<usize>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let copied = || -> Result<usize> {
            let _scope = self.0.enter();
            assert!(Device::current().is_host(), "nothing is entered at the end of a thread");
            let there = start_copy(Tensor::from(vec![1_u8; 8]), &self.0, options())?.wait()?;
            let large = start_copy(vec![lent_large(|| {}), there], &self.0, options())?.wait()?;
            let back = start_copy(large, &Device::host(), options())?;
            Ok(block_on(back)?.len())
        };
        let _ = self.1.send(copied());
    }
}

/// Mutant: thread-locals are asked for with `with`.
#[test]
fn copies_may_start_at_the_end_of_a_thread() {
    thread_local! {
        static LAST: OnceLock<AtTheEnd> = const { OnceLock::new() };
    }
    let (late, device) = late();
    let (sender, copied) = mpsc::channel();
    let copies = device.clone();
    thread::spawn(move || {
        // Registered first, so it goes last.
        LAST.with(|last| last.set(AtTheEnd(copies.clone(), sender)).map_err(drop).unwrap());
        let _scope = copies.enter();
        start_copy(on(&copies, &[1; 8]), &Device::host(), options()).unwrap().wait().unwrap();
    });
    assert_eq!(copied.recv_timeout(support::PATIENCE).unwrap().unwrap(), 2);
    no_violations(&late);
}

/// What it lets go of goes to other threads: at its end a thread has no place for it.
///
/// Mutant: what is let go of there is dropped at once, under the lock of the stream.
#[test]
fn what_a_device_has_read_is_dropped_under_no_lock_at_the_end_of_a_thread() {
    struct Last(Device, mpsc::Sender<usize>);

    impl Drop for Last {
        fn drop(&mut self) {
            let (device, dropped) = (self.0.clone(), self.1.clone());
            let owner = move || {
                start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap().wait().unwrap();
                dropped.send(8).unwrap();
            };
            let source = lent_by_device(&self.0, owner);
            let copy = start_copy(source, &Device::host(), options()).unwrap();
            // It lets go of the source here: the device alone uses it.
            let _ = self.1.send(match copy.wait_timeout(Duration::ZERO).unwrap() {
                TimedWait::Done(there) => there.nbytes(),
                TimedWait::Pending(copy) => copy.wait().unwrap().nbytes(),
            });
        }
    }

    thread_local! {
        static LAST: OnceLock<Last> = const { OnceLock::new() };
    }
    let (late, device) = late();
    let (sender, ended) = mpsc::channel();
    let copies = device.clone();
    thread::spawn(move || {
        // Registered first, so it goes last.
        LAST.with(|last| last.set(Last(copies.clone(), sender)).map_err(drop).unwrap());
        start_copy(on(&copies, &[1; 8]), &Device::host(), options()).unwrap().wait().unwrap();
    });
    let mut ends: Vec<usize> =
        (0..2).map(|_| ended.recv_timeout(support::PATIENCE).expect("it ends")).collect();
    ends.sort_unstable();
    assert_eq!(ends, [8, 64], "its owner, and the copy");
    no_violations(&late);
}

/// What the device still does is unknown then: its memory is leaked, and whoever waits is told.
///
/// catches: 749-a-panic-of-a-stream-goes-through
#[test]
fn a_stream_that_panics_when_it_is_asked_ends_its_copies() {
    let (late, device) = late();
    let start = || start_copy(Tensor::from(vec![1_u8; 64]), &device, options()).unwrap();
    late.stall();
    let [awaited, asked, dropped, waited] = [(); 4].map(|()| start());
    let deadline =
        start_copy(Tensor::from(vec![1_u8; 64]), &device, options().deadline(support::PATIENCE)).unwrap();
    let awaits = thread::spawn(move || block_on(awaited));
    thread::sleep(Duration::from_millis(20));
    late.panic_when_asked();
    late.release();
    let is_panic =
        |error: &Error| matches!(error, Error::Panicked { message } if message.contains("was told to panic"));
    let error = in_time(move || awaits.join().unwrap()).unwrap_err();
    assert!(is_panic(error.error()), "{error:#}");
    let error = asked.is_ready().unwrap_err();
    assert!(is_panic(&error), "{error}");
    drop((asked, dropped));
    for copy in [waited, deadline] {
        let error = in_time(move || block_on(copy)).unwrap_err();
        assert!(is_panic(error.error()), "{error:#}");
    }
    assert_eq!(bytes_of(&start_copy(on_host(), &Device::host(), options()).unwrap().wait().unwrap()), [7; 8]);
}

fn on_host() -> Tensor {
    Tensor::from(vec![7_u8; 8])
}

/// A driver that panics, or lies.
struct Broken(&'static str);

impl Broken {
    fn panics_in(&self, call: &str) {
        assert!(self.0 != call, "{call} of a broken driver");
    }
}

impl Driver for Broken {
    fn name(&self) -> &'static str {
        self.0
    }

    fn preference(&self) -> u32 {
        self.panics_in("preference");
        0
    }

    fn is_available(&self) -> Result<()> {
        self.panics_in("is-available");
        match self.0 {
            "unavailable" => {
                Err(Error::DriverUnavailable { driver: self.0, reason: "it says so".to_owned() })
            }
            _ => Ok(()),
        }
    }

    fn device_count(&self) -> usize {
        self.panics_in("device-count");
        if self.0 == "minus-one" { usize::MAX } else { 1 }
    }

    fn open(&self, _: usize) -> Result<Arc<dyn Backend>> {
        self.panics_in("open");
        Ok(support::late().1.backend().clone())
    }
}

/// Mutants: a panic of one goes on to whoever lists devices; a number that is too large is believed.
#[test]
fn a_driver_that_panics_or_lies_takes_no_device_from_the_others() {
    in_time(|| {
        let names =
            ["preference", "is-available", "device-count", "minus-one", "unavailable", "open", "other-name"];
        names.iter().for_each(|name| register_driver(Arc::new(Broken(name))).unwrap());
        let listed: Vec<String> = Device::list().iter().map(ToString::to_string).collect();
        assert!(listed.contains(&"host".to_owned()), "{listed:?}");
        let of = |name: &str| listed.iter().filter(|id| id.starts_with(name)).count();
        assert_eq!(names.map(of), [1, 0, 0, 0, 0, 1, 1], "{listed:?}");
        let drivers = transship_core::drivers();
        let known = |name: &str| drivers.iter().find(|driver| driver.name == name).unwrap().clone();
        assert_eq!(names.map(|name| known(name).devices), [1, 0, 0, 0, 0, 1, 1]);
        let why = |name| known(name).unavailable.unwrap().to_string();
        assert!(why("device-count").contains("device-count of a broken driver"), "{}", why("device-count"));
        assert!(why("minus-one").contains("18446744073709551615 devices"), "{}", why("minus-one"));
        let open = |name: &str| Device::open(format!("{name}:0").parse().unwrap()).unwrap_err().to_string();
        assert!(open("open").contains("open of a broken driver"), "{}", open("open"));
        assert!(open("other-name").contains("its device is late:0"), "{}", open("other-name"));
        drop(Device::best().unwrap());
    });
}

/// Asks for all devices when it is asked for its name.
struct Curious {
    name: &'static str,
    devices: usize,
}

impl Driver for Curious {
    fn name(&self) -> &'static str {
        assert!(!Device::list().is_empty(), "the host is there");
        self.name
    }

    fn preference(&self) -> u32 {
        0
    }

    fn is_available(&self) -> Result<()> {
        Ok(())
    }

    fn device_count(&self) -> usize {
        self.devices
    }

    fn open(&self, _: usize) -> Result<Arc<dyn Backend>> {
        Err(Error::NotReady)
    }
}

#[test]
fn a_driver_may_ask_for_devices_when_it_is_asked_for_its_name() {
    in_time(|| {
        let curious = || Arc::new(Curious { name: "curious", devices: 0 });
        register_driver(curious()).unwrap();
        let again = register_driver(curious()).unwrap_err();
        assert!(matches!(again, Error::DriverExists { name: "curious" }), "{again}");
        let none = Device::open("curious:0".parse().unwrap()).unwrap_err();
        assert!(matches!(none, Error::NoSuchDevice { .. }), "{none}");
    });
}

// One that is a part of the program, and asks while it is made as well.
inventory::submit! {
    BuiltinDriver(|| {
        assert!(!Device::list().is_empty(), "the host is there");
        Arc::new(Curious { name: "builtin", devices: 1 })
    })
}

/// Whoever asks meanwhile waits for the list to be complete.
///
/// Mutant: a driver that asks for devices while it is taken up waits for itself.
#[test]
fn so_may_one_that_is_a_part_of_the_program() {
    in_time(|| {
        let ask = || Device::list().contains(&"builtin:0".parse().unwrap());
        let asked: Vec<_> = (0..4).map(|_| thread::spawn(ask)).collect();
        assert!(asked.into_iter().all(|asked| asked.join().unwrap()));
    });
}
