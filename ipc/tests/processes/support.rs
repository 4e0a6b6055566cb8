//! What all cases share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use late_backend::{LateConfig, LateHandle};
use libtest_mimic::Trial;
use tempfile::TempDir;
use transship_core::{CopyOptions, Device, DeviceId, Tensor, start_copy};
use transship_ipc::{Batch, Feed, FeedOptions, IpcError, Loader};

pub(crate) type Tree = BTreeMap<String, Tensor>;

/// Nothing takes so long but what hangs.
pub(crate) const LONG: Duration = Duration::from_secs(25);

/// Not a stand-in.
static A_DRIVER_IS_THERE: AtomicBool = AtomicBool::new(false);

pub(crate) fn case(name: &str, run: fn()) -> Trial {
    Trial::test(name, move || {
        let before = settled(held);
        run();
        eventually("what was opened and mapped has gone", || held() == before);
        Ok(())
    })
}

/// A device whose calls fail on demand.
pub(crate) fn that_fails() -> (LateHandle, Device) {
    let late = LateHandle::new(LateConfig::new("fails")).unwrap();
    let device = Device::from_backend(late.backend(0)).unwrap();
    (late, device)
}

/// What the batch of this number has: small tensors, and one that is copied as it lies.
pub(crate) fn batch(number: u64) -> Tree {
    let bytes = |length: u64, factor: u64| {
        (0..length).map(|at| (at * factor + number * 31) as u8).collect::<Vec<_>>()
    };
    let image = bytes(300 << 10, 7);
    Tree::from([
        ("ids".to_owned(), Tensor::from(vec![number; 5])),
        ("image".to_owned(), Tensor::from_vec(image, &[300, 1024]).unwrap()),
        ("odd".to_owned(), Tensor::from(bytes(1 + number % 9, 3))),
        ("nothing".to_owned(), Tensor::from(Vec::<f32>::new())),
    ])
}

/// The same with other bytes.
pub(crate) fn like(number: u64) -> Tree {
    let zeros = |tensor: &Tensor| Tensor::empty(tensor.shape(), tensor.dtype(), &Device::host()).unwrap();
    batch(number).iter().map(|(name, tensor)| (name.clone(), zeros(tensor))).collect()
}

pub(crate) fn options() -> FeedOptions {
    FeedOptions::new(400 << 10).slots(2)
}

/// A folder for a socket, and where that is.
pub(crate) fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feed");
    (folder, path)
}

pub(crate) fn devices() -> [&'static Device; 2] {
    static HOST: LazyLock<Device> = LazyLock::new(Device::host);
    static LATE: LazyLock<Device> = LazyLock::new(|| {
        let late = LateHandle::new(LateConfig::new("late")).unwrap();
        Device::from_backend(late.backend(0)).unwrap()
    });
    [&HOST, &LATE]
}

/// A case on the first device of CUDA. It is ignored where there is none, unless the environment requires one.
pub(crate) fn cuda_case(name: &str, run: fn(&Device)) -> Trial {
    device_case("cuda", name, run)
}

/// The same on that of HIP.
pub(crate) fn hip_case(name: &str, run: fn(&Device)) -> Trial {
    device_case("hip", name, run)
}

fn device_case(driver: &'static str, name: &str, run: fn(&Device)) -> Trial {
    let required = std::env::var("TRANSSHIP_REQUIRE").is_ok_and(|required| required.contains(driver));
    let is_missing = !required && Device::open(id(driver, 0)).is_err();
    let trial = Trial::test(name, move || {
        let device = Device::open(id(driver, 0)).unwrap();
        if !device.description().contains("driver-sim") {
            A_DRIVER_IS_THERE.store(true, Ordering::Relaxed);
        }
        let before = settled(held);
        run(&device);
        eventually("what was opened and mapped has gone", || held() == before);
        Ok(())
    });
    trial.with_ignored_flag(is_missing)
}

pub(crate) fn id(driver: &str, ordinal: usize) -> DeviceId {
    // Drivers are known once their crates are named.
    use {transship_cuda as _, transship_hip as _};
    format!("{driver}:{ordinal}").parse().unwrap()
}

/// Copies a batch to `device` and back, and compares every byte.
pub(crate) fn check(batch_there: &Batch, device: &Device) {
    let number = batch_there.number();
    let mut tree = like(number);
    batch_there.put_into(&mut tree).unwrap();
    let there = start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap();
    compare(there, number);
}

pub(crate) fn compare(there: Tree, number: u64) {
    let back = start_copy(there, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    for (name, expected) in batch(number) {
        assert_eq!(back[&name].to_bytes().unwrap(), expected.to_bytes().unwrap(), "{name} of {number}");
    }
}

pub(crate) fn next<I: Iterator<Item = u64>>(feed: &mut Feed<I>) -> Option<Batch> {
    feed.next_within(LONG).unwrap()
}

/// Welcomes so many loaders and gives them work, and does not listen to what they make of it.
pub(crate) fn welcome<I: Iterator<Item = u64>>(feed: &mut Feed<I>, loaders: usize) {
    let begin = Instant::now();
    while feed.loaders() < loaders {
        assert!(begin.elapsed() < LONG, "{} of {loaders} loaders came", feed.loaders());
        hand_out(feed);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Listens to loaders and gives them work, while nothing is due.
#[track_caller]
pub(crate) fn hand_out<I: Iterator<Item = u64>>(feed: &mut Feed<I>) {
    match feed.next_within(Duration::ZERO) {
        Err(IpcError::TimedOut { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// A loader of this process, the so many-th one, which has work.
pub(crate) fn connect<I: Iterator<Item = u64>>(feed: &mut Feed<I>, path: &Path, count: usize) -> Loader {
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| Loader::connect(path).unwrap());
        welcome(feed, count);
        loader.join().unwrap()
    })
}

/// Has it make its next batch, which must be this one.
#[track_caller]
pub(crate) fn make(loader: &mut Loader, number: u64) {
    let job = loader.next_job().unwrap().unwrap();
    assert_eq!(job.number(), number);
    job.write(&batch(number)).unwrap();
}

#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}: not within {LONG:?}: {:?}", held());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is held once that stays the same: a device of the case before may still be closed, by another thread.
fn settled<H: PartialEq>(held: impl Fn() -> H) -> H {
    loop {
        let before = held();
        std::thread::sleep(Duration::from_millis(20));
        if held() == before {
            return before;
        }
    }
}

/// How many descriptors the process has open, how much shared memory it has mapped, and how many threads listen to importers.
pub(crate) fn held() -> (usize, usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:transship")).count();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten().map(name);
    let listening = threads.filter(|name| name.starts_with("transship-lent")).count();
    // A driver opens and closes what it likes, also for cases that come behind the one that has loaded it.
    let counts = !A_DRIVER_IS_THERE.load(Ordering::Relaxed);
    let open = if counts { fs::read_dir("/proc/self/fd").unwrap().count() } else { 0 };
    (open, shared, listening)
}
