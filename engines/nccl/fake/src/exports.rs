//! The functions, by the names and prototypes of nccl.h.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::cuda::Context;
use crate::world::{
    CUDA_ERROR, Call, Comm, IN_PROGRESS, INVALID_USAGE, Kind, REMOTE_ERROR, SUCCESS, Submitted, World,
    carry_out, carry_out_in_order,
};

const ID_BYTES: usize = 128;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Id([u8; ID_BYTES]);

/// `ncclConfig_t` as 2.14 has it.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

static ABORTED_IN_GROUPS: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
static WORLDS: Mutex<Option<HashMap<[u8; ID_BYTES], Arc<World>>>> = Mutex::new(None);

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static READ_FROM: Cell<u64> = const { Cell::new(0) };
    static SLOW_GROUPS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static GROUP: RefCell<(usize, Vec<Submitted>)> = const { RefCell::new((0, Vec::new())) };
}

/// How many collectives this thread has called.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_calls() -> u64 {
    CALLS.get()
}

/// Where the last one that this thread has called reads.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_read_from() -> u64 {
    READ_FROM.get()
}

/// Has the end of each group of this thread take so many milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_slow_groups(milliseconds: u64) {
    SLOW_GROUPS.set(Duration::from_millis(milliseconds));
}

/// How many communicators were aborted that were in an open group, where the library still uses them.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_aborted_in_groups() -> u64 {
    ABORTED_IN_GROUPS.load(Ordering::Relaxed)
}

/// How many communicators were destroyed or aborted.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_ended() -> u64 {
    ENDED.load(Ordering::Relaxed)
}

/// As nccl.h says, as all below.
///
/// # Safety
///
/// As nccl.h says, as all below: pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { version.write(21_400) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut Id) -> c_int {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0x5a; ID_BYTES];
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    // SAFETY: the caller's promise.
    unsafe { id.write(Id(bytes)) };
    SUCCESS
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let words: &'static CStr = match code {
        SUCCESS => c"no error",
        INVALID_USAGE => c"ranks have called different things",
        REMOTE_ERROR => c"a rank has ended",
        IN_PROGRESS => c"in progress",
        _ => c"an error of CUDA",
    };
    words.as_ptr()
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(
    comms: *mut *const Comm,
    count: c_int,
    devices: *const c_int,
) -> c_int {
    let world = World::new(count as usize);
    for rank in 0..count as usize {
        // SAFETY: the caller's promise: as many devices, and room for as many communicators.
        let Some(context) = Context::of_device(unsafe { *devices.add(rank) }) else { return CUDA_ERROR };
        let comm = Arc::into_raw(Comm::new(&world, rank, context, true));
        // SAFETY: as above.
        unsafe { comms.add(rank).write(comm) };
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *const Comm,
    count: c_int,
    id: Id,
    rank: c_int,
    config: *const Config,
) -> c_int {
    // SAFETY: the caller's promise.
    let Config { size, magic, version, blocking } = unsafe { config.read() };
    if (size, magic, version, blocking) != (24, 0xcafe_beef, 21_400, 0) {
        return INVALID_USAGE;
    }
    let world = {
        let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
        let worlds = worlds.get_or_insert_default();
        worlds.entry(id.0).or_insert_with(|| World::new(count as usize)).clone()
    };
    let Some(context) = Context::current() else { return CUDA_ERROR };
    let joined = Comm::new(&world, rank as usize, context, false);
    joined.state.store(IN_PROGRESS, Ordering::Release);
    // SAFETY: as above.
    unsafe { comm.write(Arc::into_raw(joined.clone())) };
    thread::spawn(move || joined.join());
    IN_PROGRESS
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(_: *const Comm) -> c_int {
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *const Comm) -> c_int {
    ENDED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's promise: made by one of the above, and not used any more.
    let comm = unsafe { Arc::from_raw(comm) };
    // One thread destroys all ranks of a process, one behind the other.
    if !comm.is_blocking {
        comm.leave();
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *const Comm) -> c_int {
    // SAFETY: as above.
    let comm = unsafe { Arc::from_raw(comm) };
    ENDED.fetch_add(1, Ordering::Relaxed);
    if comm.in_groups.load(Ordering::Acquire) > 0 {
        ABORTED_IN_GROUPS.fetch_add(1, Ordering::Relaxed);
    }
    comm.abort();
    // Behind it nothing of this rank's is used any more.
    while comm.state.load(Ordering::Acquire) == IN_PROGRESS {
        thread::sleep(Duration::from_millis(1));
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *const Comm, state: *mut c_int) -> c_int {
    // SAFETY: the communicator is alive: the caller's promise.
    let comm = unsafe { &*comm };
    let own = comm.state.load(Ordering::Acquire);
    let known = if own == SUCCESS && comm.is_aborted() { REMOTE_ERROR } else { own };
    // SAFETY: the caller's promise.
    unsafe { state.write(known) };
    SUCCESS
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
    SUCCESS
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let group = GROUP.with_borrow_mut(|(depth, group)| {
        *depth -= 1;
        if *depth == 0 { std::mem::take(group) } else { Vec::new() }
    });
    thread::sleep(SLOW_GROUPS.get());
    for submitted in &group {
        submitted.comm.in_groups.fetch_sub(1, Ordering::Release);
    }
    submit(group)
}

/// Has streams carry a group out, or a thread.
fn submit(group: Vec<Submitted>) -> c_int {
    if group.iter().all(|submitted| submitted.comm.is_blocking) {
        return carry_out_in_order(group);
    }
    group.iter().for_each(|submitted| submitted.comm.state.store(IN_PROGRESS, Ordering::Release));
    thread::spawn(move || {
        let code = carry_out(&group);
        group.iter().for_each(|submitted| submitted.comm.state.store(code, Ordering::Release));
    });
    IN_PROGRESS
}

/// # Safety
///
/// `comm` is alive.
unsafe fn collective(
    comm: *const Comm,
    call: Call,
    from: *const c_void,
    to: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    CALLS.set(CALLS.get() + 1);
    READ_FROM.set(from.addr() as u64);
    // SAFETY: the caller's promise; the count is that of the clone.
    let comm = unsafe {
        Arc::increment_strong_count(comm);
        Arc::from_raw(comm)
    };
    let submitted =
        Submitted { comm, call, from: from.addr() as u64, to: to.addr() as u64, stream: stream.addr() };
    let alone = GROUP.with_borrow_mut(|(depth, group)| match *depth {
        0 => Some(submitted),
        _ => {
            submitted.comm.in_groups.fetch_add(1, Ordering::Release);
            group.push(submitted);
            None
        }
    });
    alone.map_or(SUCCESS, |alone| submit(vec![alone]))
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { collective(comm, Call { kind: Kind::AllReduce, count, dtype, op, root: 0 }, from, to, stream) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { collective(comm, Call { kind: Kind::Reduce, count, dtype, op, root }, from, to, stream) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { collective(comm, Call { kind: Kind::Broadcast, count, dtype, op: 0, root }, from, to, stream) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: *const Comm,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        collective(comm, Call { kind: Kind::AllGather, count, dtype, op: 0, root: 0 }, from, to, stream)
    }
}
