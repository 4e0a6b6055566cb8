//! Arenas on two devices of CUDA, or a stand-in for its driver, with a library whose agents are of this process (`fake`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;
use transship::cuda::cudarc::driver::sys;
use transship::cuda::{CudaBackend, cu_stream};
use transship::{
    CopyOptions, DType, Device, Layout, MemoryKind, RawMemory, SharedOwner, Stream, StreamPriority, Tensor,
    TensorTree, start_copy, start_copy_into,
};
use transship_nixl::{Agent, AgentOptions, Error};

mod support;

use support::{LIMIT, Pair, library, nixl};

/// Of the tree below, with what lies between its tensors, in whole pages.
const TREE_BYTES: usize = 68 << 20;
/// More than a piece of a tree on a GPU.
const LARGE: usize = 65 << 20;
type Tree = Vec<(String, Tensor)>;

/// What the library is told is told all agents: one test at a time.
static TOLD: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It stays loaded: it remembers what it was told.
fn fake() -> &'static Library {
    static FAKE: OnceLock<Library> = OnceLock::new();
    // SAFETY: it has no initialisers.
    FAKE.get_or_init(|| unsafe { Library::new(library()) }.unwrap())
}

/// Something that the library is told, until this is dropped.
struct Told(&'static str);

impl Told {
    fn new(name: &'static str) -> Self {
        tell(name, true);
        Self(name)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        tell(self.0, false);
    }
}

fn tell(name: &str, whether: bool) {
    // SAFETY: the functions that are told something have this prototype.
    unsafe { fake().get::<extern "C" fn(bool)>(name.as_bytes()).unwrap()(whether) };
}

fn ask(name: &str) -> usize {
    // SAFETY: the functions that are asked have this prototype.
    unsafe { fake().get::<extern "C" fn() -> usize>(name.as_bytes()).unwrap()() }
}

fn moved_on_gpus() -> usize {
    ask("fake_nixl_moved_on_gpus")
}

/// Work submitted to a stream from now on starts only when this is dropped.
struct Stall(Arc<(Mutex<bool>, Condvar)>);

impl Stall {
    fn on(stream: &Stream) -> Self {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let lent = Arc::into_raw(Arc::clone(&gate)).cast_mut().cast::<c_void>();
        let backend = CudaBackend::of(&**stream.device().backend()).unwrap();
        let _current = backend.context().enter().unwrap();
        // SAFETY: the stream is alive and of the current context; the function takes over the gate that is lent to it, and calls nothing of the driver.
        let code = unsafe { sys::cuLaunchHostFunc(cu_stream(stream).unwrap(), Some(hold), lent) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        Self(gate)
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// # Safety
///
/// `lent` is a share of a gate.
unsafe extern "C" fn hold(lent: *mut c_void) {
    // SAFETY: the caller's promise.
    let gate = unsafe { Arc::from_raw(lent.cast::<(Mutex<bool>, Condvar)>()) };
    drop(gate.1.wait_while(gate.0.lock().unwrap(), |is_open| !*is_open).unwrap());
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "not {what} within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Longer than what wrongly does not wait takes.
fn for_a_while() {
    thread::sleep(Duration::from_millis(300));
}

fn gpu(number: usize) -> Device {
    Device::open(format!("cuda:{number}").parse().unwrap()).unwrap()
}

fn on<S: TensorTree>(device: &Device, tree: S) -> S {
    start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap()
}

/// With an arena each, of so many bytes, on these devices.
fn pair_of(name: &str, arenas: [&Device; 2], bytes: usize) -> Pair {
    Pair::new(name, arenas.map(|device| AgentOptions::default().arena_bytes(bytes).arena_on(device)))
}

/// Many small tensors, one that is cut, one twice, a turned one, one without elements. All bytes depend on the seed.
fn tree(seed: u8) -> Tree {
    let byte = |at: usize| (at % 251) as u8 ^ seed;
    let mut tree: Tree = (0..60_usize)
        .map(|number| {
            (format!("many.{number}"), Tensor::from((0..number * 37).map(byte).collect::<Vec<_>>()))
        })
        .collect();
    let large = Tensor::from((0..251).map(byte).collect::<Vec<u8>>().repeat(LARGE / 251));
    let words: Vec<i32> = (0..6000).map(|word| word ^ i32::from(seed)).collect();
    let turned = Tensor::from_vec(words, &[60, 100]).unwrap().transpose(0, 1).unwrap();
    let tied = Tensor::from(vec![f64::from(seed); 9]);
    tree.extend([
        ("large".to_owned(), large),
        ("turned".to_owned(), turned),
        ("tied.a".to_owned(), tied.clone()),
        ("tied.b".to_owned(), tied),
        ("none".to_owned(), Tensor::from(Vec::<u16>::new())),
    ]);
    tree
}

/// Places for such a tree, with other bytes.
fn places(device: &Device) -> Tree {
    let empty = |(name, tensor): (String, Tensor)| {
        (name, Tensor::zeros(tensor.shape(), tensor.dtype(), device).unwrap())
    };
    tree(0).into_iter().map(empty).collect()
}

fn assert_same(tree: &Tree, expected: &Tree) {
    let down = on(&Device::host(), tree.clone());
    assert_eq!(down.len(), expected.len());
    for (name, tensor) in &down {
        let (_, expected) = expected.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (expected.dtype(), expected.shape()), "{name}");
        assert!(tensor.to_bytes().unwrap() == expected.to_bytes().unwrap(), "{name}: wrong bytes");
    }
}

/// Each arena has room for one tree: the next one is packed and written where the one before was.
///
/// Deliberate bugs: a device is not current where the library is called; memory of the pool is registered.
#[test]
fn trees_go_from_gpu_to_gpu_again_and_again() {
    let _alone = alone();
    let (one, other) = (gpu(0), gpu(1));
    let pair = pair_of("again", [&one, &other], TREE_BYTES);
    let mut held = places(&other);
    let addresses =
        |tree: &Tree| tree.iter().map(|(_, tensor)| tensor.address().unwrap()).collect::<Vec<_>>();
    let before = (addresses(&held), moved_on_gpus());
    for seed in 1..5 {
        let expected = tree(seed);
        held = pair.pass(&on(&one, expected.clone()), held);
        assert_same(&held, &expected);
    }
    assert_eq!(addresses(&held), before.0);
    assert!(moved_on_gpus() - before.1 > 4 * (LARGE / 251 * 251), "the bytes went elsewhere");
    let usage = [pair.sender.usage(), pair.receiver.usage()];
    assert!(usage.iter().all(|usage| usage.free == usage.registered && usage.set_aside == 0), "{usage:?}");
}

/// Deliberate bugs: a piece is written once its packing is submitted, and not when the device has come by; or once that of the piece before it has.
#[test]
fn nothing_is_written_before_the_device_has_packed_it() {
    let _alone = alone();
    let one = gpu(0);
    // On the host nothing but the sender waits for a device.
    let pair = pair_of("packed", [&one, &Device::host()], TREE_BYTES);
    let bytes: Vec<u8> = (0..2 << 20).map(|at: usize| (at % 253) as u8).collect();
    // All of the first piece, and some of the second.
    let large = vec![3_u8; LARGE];
    let ready = on(&one, vec![Tensor::from(large.clone())]);
    let stream = one.create_stream(StreamPriority::Normal).unwrap();
    let stall = Stall::on(&stream);
    let filled = start_copy(vec![Tensor::from(bytes.clone())], &one, CopyOptions::default().stream(&stream));
    let filled = filled.unwrap().wait_on(&stream).unwrap();
    let before = ask("fake_nixl_posted");
    let sent = pair.sender.start_send(&(ready, filled), &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap();
    eventually("written", || ask("fake_nixl_posted") > before);
    for_a_while();
    assert_eq!(ask("fake_nixl_posted"), before + 1, "written before it is there");
    drop(stall);
    let received = received.wait().unwrap();
    sent.wait().unwrap();
    let mut shown = (vec![Tensor::from(vec![0_u8; LARGE])], vec![Tensor::from(vec![0_u8; 2 << 20])]);
    received.put_into(&mut shown).unwrap();
    let shown = on(&Device::host(), shown);
    assert!(shown.0[0].to_bytes().unwrap() == large, "wrong bytes");
    assert!(shown.1[0].to_bytes().unwrap() == bytes, "wrong bytes");
}

/// Deliberate bug: a piece is described by the kind of memory that the other side has.
#[test]
fn peers_have_their_arenas_where_they_like() {
    let _alone = alone();
    let (host, one, other) = (Device::host(), gpu(0), gpu(1));
    for (name, arenas) in [("down", [&one, &host]), ("up", [&host, &other]), ("here", [&one, &one])] {
        let pair = pair_of(name, arenas, TREE_BYTES);
        for (seed, from, to) in [(1, &one, &other), (2, &host, &one), (3, &other, &host)] {
            let expected = tree(seed);
            assert_same(&pair.pass(&on(from, expected.clone()), places(to)), &expected);
        }
    }
}

/// Deliberate bug: what lies in the arena is given out as a tensor that is the program's.
#[test]
fn what_is_received_is_copied_out_of_the_arena() {
    let _alone = alone();
    let (one, other) = (gpu(0), gpu(1));
    let pair = pair_of("received", [&one, &other], TREE_BYTES);
    for seed in 1..4 {
        let expected = tree(seed);
        let sent = pair.sender.start_send(&on(&one, expected.clone()), &pair.to, LIMIT).unwrap();
        let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap().wait().unwrap();
        sent.wait().unwrap();
        let mut shown = places(&Device::host());
        received.put_into(&mut shown).unwrap();
        let (_, large) = shown.iter().find(|(name, _)| name == "large").unwrap();
        assert!(matches!(large.elements_address::<u8>(), Err(transship::Error::SharedMemory)));
        let there = on(&other, shown.clone());
        let (_, copied) = there.iter().find(|(name, _)| name == "large").unwrap();
        assert_ne!(copied.address().unwrap(), large.address().unwrap());
        drop((shown, received));
        assert_same(&there, &expected);
    }
    let usage = pair.receiver.usage();
    assert_eq!(usage.free, usage.registered);
}

/// Deliberate bugs: what is still being written on a device is used again; the arena goes while it is.
#[test]
fn what_does_not_end_in_time_keeps_its_memory() {
    let _alone = alone();
    let (one, other) = (gpu(0), gpu(1));
    let pair = pair_of("late", [&one, &other], 4 << 20);
    let tensors = on(&one, vec![Tensor::from(vec![9_u8; 3 << 20])]);
    // Time enough to begin on a machine that has much else to do.
    let limits = [6, 9].map(Duration::from_secs);
    let holds = Told::new("fake_nixl_holds");
    let sent = pair.sender.start_send(&tensors, &pair.to, limits[0]).unwrap();
    let held = vec![Tensor::zeros(&[3 << 20], tensors[0].dtype(), &other).unwrap()];
    let received = pair.receiver.start_receive_into(held, &pair.from, limits[1]).unwrap();
    let error = sent.wait().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let failed = received.wait().unwrap_err();
    assert!(matches!(*failed.error, Error::TimedOut { .. }), "{failed}");
    for agent in [&pair.sender, &pair.receiver] {
        assert_eq!((agent.usage().set_aside, agent.usage().free), (1, 1 << 20));
    }
    assert!(matches!(pair.sender.start_send(&tensors, &pair.to, LIMIT), Err(Error::ArenaFull { .. })));
    drop(holds);
    for agent in [&pair.sender, &pair.receiver] {
        eventually("ended", || agent.usage().set_aside == 0);
    }
    let held = on(&Device::host(), pair.pass(&tensors, failed.value.unwrap()));
    assert!(held[0].to_bytes().unwrap() == vec![9; 3 << 20], "wrong bytes");
}

/// Deliberate bugs: bytes that lay in the memory before are there for peers; the memory is never given back.
#[test]
fn an_arena_is_empty_and_goes_with_its_agent() {
    let _alone = alone();
    let device = gpu(0);
    let reserved = || device.memory().unwrap().reserved.unwrap();
    let before = reserved();
    let agent = |name: &str| {
        let options = AgentOptions::default().arena_bytes(8 << 20).arena_on(&device);
        Agent::new(&nixl(), name, options).unwrap()
    };
    let first = agent("first");
    assert!(reserved() >= before + (8 << 20));
    drop(first);
    assert_eq!(reserved(), before);
    let second = agent("second");
    let metadata = second.metadata().unwrap();
    let start = u64::from_le_bytes(metadata[21..29].try_into().unwrap());
    let memory = RawMemory::new(start, 8 << 20, MemoryKind::Device);
    let layout = Layout::contiguous(DType::U8, &[8 << 20]).unwrap();
    // SAFETY: the arena is there as long as the agent.
    let all = unsafe { SharedOwner::new((), &device).tensor_over_shared(memory, layout) }.unwrap();
    assert!(on(&Device::host(), all).to_bytes().unwrap() == vec![0; 8 << 20]);
    drop(second);
    assert_eq!(reserved(), before);
}

/// Deliberate bug: a library without CUDA is an error that says neither that nor what to do.
#[test]
fn a_library_without_cuda_is_an_error_that_says_what_to_do() {
    let _alone = alone();
    let without = Told::new("fake_nixl_without_cuda");
    let made = Agent::new(&nixl(), "without", AgentOptions::default().arena_on(&gpu(1)));
    drop(without);
    let error = made.unwrap_err();
    assert!(matches!(error, Error::NotRegistered { code: -2, .. }), "{error}");
    for word in ["cuda:1", "without support of CUDA", "UCX_TLS", "arena_on"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    let on_host = Agent::new(&nixl(), "without", AgentOptions::default().arena_bytes(4096));
    assert!(on_host.is_ok());
}

/// Deliberate bug: the room is given to others when unpacking is submitted, and not when the device has come by.
#[test]
fn room_is_kept_until_the_device_has_unpacked_it() {
    let _alone = alone();
    let (one, other) = (gpu(0), gpu(1));
    let pair = pair_of("unpacked", [&one, &other], 4 << 20);
    let tensors = on(&one, vec![Tensor::from(vec![5_u8; 4 << 20])]);
    let stream = other.create_stream(StreamPriority::Normal).unwrap();
    // What is received goes into tensors that a stalled stream still fills.
    let busy = || {
        let held = vec![Tensor::zeros(&[4 << 20], tensors[0].dtype(), &other).unwrap()];
        let stall = Stall::on(&stream);
        let filler = on(&other, vec![Tensor::from(vec![7_u8; 4 << 20])]);
        let held = start_copy_into(filler, held, CopyOptions::default().stream(&stream)).unwrap();
        (stall, held.wait_on(&stream).unwrap())
    };
    let is_kept = || {
        for_a_while();
        let usage = pair.receiver.usage();
        usage.free == 0 && usage.set_aside == 0
    };
    let (stall, held) = busy();
    let before = moved_on_gpus();
    let sent = pair.sender.start_send(&tensors, &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap();
    eventually("written", || moved_on_gpus() > before);
    assert!(is_kept() && !sent.is_ready() && !received.is_ready());
    drop(stall);
    let held = on(&Device::host(), received.wait().unwrap());
    sent.wait().unwrap();
    assert!(held[0].to_bytes().unwrap() == vec![5; 4 << 20], "wrong bytes");

    let (stall, held) = busy();
    let sent = pair.sender.start_send(&tensors, &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap().wait().unwrap();
    sent.wait().unwrap();
    let mut shown = tensors.clone();
    received.put_into(&mut shown).unwrap();
    let copy = start_copy_into(shown, held, CopyOptions::default()).unwrap();
    drop(received);
    assert!(is_kept() && !copy.is_ready().unwrap());
    drop(stall);
    let held = on(&Device::host(), copy.wait().unwrap());
    assert!(held[0].to_bytes().unwrap() == vec![5; 4 << 20], "wrong bytes");
    eventually("free", || pair.receiver.usage().free == pair.receiver.usage().registered);
}
