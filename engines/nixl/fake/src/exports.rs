//! The functions, by the names and prototypes of NIXL's wrapper.h. Handles are boxes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::agents::{Agent, Request, agents};
use crate::lists::{GPU, List, Segment};

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 1;
const INVALID: c_int = -1;
const BACKEND: c_int = -2;

static WITHOUT_CUDA: AtomicBool = AtomicBool::new(false);
static HOLDS: AtomicBool = AtomicBool::new(false);
static POSTED: AtomicUsize = AtomicUsize::new(0);
static DESTROYED: AtomicUsize = AtomicUsize::new(0);
static MOVED_ON_GPUS: AtomicUsize = AtomicUsize::new(0);

/// An agent's name, and what it knows of others.
pub struct Own {
    name: CString,
    peers: Vec<(CString, Vec<Segment>)>,
}

/// What was heard: of whom, and what.
type Heard = Vec<(CString, Vec<Vec<u8>>)>;

/// Whether memory of devices is refused from here on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_without_cuda(is_without: bool) {
    WITHOUT_CUDA.store(is_without, Ordering::SeqCst);
}

/// Whether nothing ends from here on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_holds(holds: bool) {
    HOLDS.store(holds, Ordering::SeqCst);
}

/// How many transfers were posted.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_posted() -> usize {
    POSTED.load(Ordering::SeqCst)
}

/// How many agents were destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_destroyed() -> usize {
    DESTROYED.load(Ordering::SeqCst)
}

/// How many bytes were written between memory of devices.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_moved_on_gpus() -> usize {
    MOVED_ON_GPUS.load(Ordering::SeqCst)
}

/// # Safety
///
/// `value` was boxed here as a `T`, and nobody uses it any more; or it is null.
unsafe fn free<T>(value: *mut c_void) -> c_int {
    if value.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
    SUCCESS
}

fn boxed<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// As wrapper.h says, as all below.
///
/// # Safety
///
/// As wrapper.h says, as all below: pointers are valid, handles are of these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_create_agent(name: *const c_char, agent: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    agents().insert(name.clone(), Agent::default());
    // SAFETY: as above.
    unsafe { agent.write(boxed(Own { name, peers: Vec::new() })) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_agent(agent: *mut c_void) -> c_int {
    DESTROYED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    agents().remove(&unsafe { own(agent) }.name);
    // SAFETY: as above.
    unsafe { free::<Own>(agent) }
}

/// # Safety
///
/// As above.
unsafe fn own<'a>(agent: *mut c_void) -> &'a mut Own {
    // SAFETY: the caller's promise; one thread at a time calls with it.
    unsafe { &mut *agent.cast::<Own>() }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_get_plugin_params(
    _: *mut c_void,
    _: *const c_char,
    kinds: *mut *mut c_void,
    parameters: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        kinds.write(boxed(0_u8));
        parameters.write(boxed(0_u8));
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_mem_list(list: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<u8>(list) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_params_add(_: *mut c_void, _: *const c_char, _: *const c_char) -> c_int {
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_params(parameters: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<u8>(parameters) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_create_backend(
    _: *mut c_void,
    _: *const c_char,
    _: *mut c_void,
    backend: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { backend.write(boxed(0_u8)) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_backend(backend: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<u8>(backend) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_create_reg_dlist(kind: c_int, list: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { list.write(boxed(List { kind, segments: Vec::new() })) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_reg_dlist_add_desc(
    list: *mut c_void,
    address: usize,
    bytes: usize,
    device: u64,
    _: *const c_void,
    _: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let list = unsafe { &mut *list.cast::<List>() };
    list.segments.push(Segment { kind: list.kind, address, bytes, device });
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_reg_dlist(list: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<List>(list) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_register_mem(
    agent: *mut c_void,
    list: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (own, list) = unsafe { (own(agent), &*list.cast::<List>()) };
    let refused = list.kind == GPU && WITHOUT_CUDA.load(Ordering::SeqCst);
    if refused || !list.segments.iter().all(Segment::may_be_registered) {
        return BACKEND;
    }
    let mut agents = agents();
    let Some(agent) = agents.get_mut(&own.name) else { return INVALID };
    agent.registered.extend(&list.segments);
    SUCCESS
}

/// The name; what is registered is looked up by it.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_get_local_md(
    agent: *mut c_void,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise; the copy is the caller's to free.
    unsafe {
        let name = &own(agent).name;
        data.write(libc::strdup(name.as_ptr()).cast());
        bytes.write(name.as_bytes().len());
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_load_remote_md(
    agent: *mut c_void,
    data: *const c_void,
    bytes: usize,
    name: *mut *mut c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (own, data) = unsafe { (own(agent), std::slice::from_raw_parts(data.cast::<u8>(), bytes)) };
    let Ok(peer) = CString::new(data) else { return INVALID };
    let Some(registered) = agents().get(&peer).map(|peer| peer.registered.clone()) else { return BACKEND };
    // SAFETY: as above; the copy is the caller's to free.
    unsafe { name.write(libc::strdup(peer.as_ptr())) };
    own.peers.push((peer, registered));
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_invalidate_remote_md(agent: *mut c_void, peer: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (own, peer) = unsafe { (own(agent), CStr::from_ptr(peer)) };
    own.peers.retain(|(name, _)| name.as_c_str() != peer);
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_create_xfer_dlist(kind: c_int, list: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { nixl_capi_create_reg_dlist(kind, list) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_xfer_dlist_add_desc(
    list: *mut c_void,
    address: usize,
    bytes: usize,
    device: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { nixl_capi_reg_dlist_add_desc(list, address, bytes, device, null_mut(), 0) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_xfer_dlist(list: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<List>(list) }
}

/// One segment each, of what is registered on its side.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_create_xfer_req(
    agent: *mut c_void,
    _: c_int,
    from: *mut c_void,
    to: *mut c_void,
    peer: *const c_char,
    request: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (own, peer) = unsafe { (own(agent), CStr::from_ptr(peer)) };
    // SAFETY: as above.
    let (from, to) = unsafe { (&*from.cast::<List>(), &*to.cast::<List>()) };
    let ([from], [to]) = (&from.segments[..], &to.segments[..]) else { return INVALID };
    let registered = agents().get(&own.name).map(|agent| agent.registered.clone()).unwrap_or_default();
    let known = own.peers.iter().find(|(name, _)| name.as_c_str() == peer);
    let theirs = known.is_some_and(|(_, theirs)| theirs.iter().any(|whole| whole.has(to)));
    if from.bytes != to.bytes || !theirs || !registered.iter().any(|whole| whole.has(from)) {
        return INVALID;
    }
    // SAFETY: as above.
    unsafe { request.write(boxed(Request { from: *from, to: *to, left: None })) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_post_xfer_req(
    _: *mut c_void,
    request: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let request = unsafe { &mut *request.cast::<Request>() };
    POSTED.fetch_add(1, Ordering::SeqCst);
    if request.left.is_some() {
        return INVALID;
    }
    // SAFETY: as above.
    if unsafe { request.post() } { IN_PROGRESS } else { BACKEND }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_get_xfer_status(_: *mut c_void, request: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let request = unsafe { &mut *request.cast::<Request>() };
    if request.left.is_some() && HOLDS.load(Ordering::SeqCst) {
        return IN_PROGRESS;
    }
    if (request.from.kind, request.to.kind) == (GPU, GPU) && request.left.is_some() {
        MOVED_ON_GPUS.fetch_add(request.from.bytes, Ordering::SeqCst);
    }
    // SAFETY: as above.
    if unsafe { request.finish() } { SUCCESS } else { BACKEND }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_release_xfer_req(_: *mut c_void, request: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { &*request.cast::<Request>() }.left.is_some() { BACKEND } else { SUCCESS }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_xfer_req(request: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<Request>(request) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_create_notif_map(map: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { map.write(boxed(Heard::new())) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_destroy_notif_map(map: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { free::<Heard>(map) }
}

/// # Safety
///
/// As above.
unsafe fn heard<'a>(map: *mut c_void) -> &'a mut Heard {
    // SAFETY: the caller's promise; one thread at a time calls with it.
    unsafe { &mut *map.cast::<Heard>() }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_get_notifs(agent: *mut c_void, map: *mut c_void, _: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let (own, heard) = unsafe { (own(agent), heard(map)) };
    let mut agents = agents();
    let Some(agent) = agents.get_mut(&own.name) else { return INVALID };
    for (from, bytes) in agent.heard.drain(..) {
        match heard.iter_mut().find(|(name, _)| *name == from) {
            Some((_, all)) => all.push(bytes),
            None => heard.push((from, vec![bytes])),
        }
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_notif_map_size(map: *mut c_void, size: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { size.write(heard(map).len()) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_notif_map_get_agent_at(
    map: *mut c_void,
    index: usize,
    name: *mut *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some((from, _)) = unsafe { heard(map) }.get(index) else { return INVALID };
    // SAFETY: as above.
    unsafe { name.write(from.as_ptr()) };
    SUCCESS
}

/// # Safety
///
/// As above.
unsafe fn heard_of<'a>(map: *mut c_void, name: *const c_char) -> Option<&'a Vec<Vec<u8>>> {
    // SAFETY: the caller's promise.
    let (heard, name) = unsafe { (heard(map), CStr::from_ptr(name)) };
    heard.iter().find(|(from, _)| from.as_c_str() == name).map(|(_, all)| all)
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_notif_map_get_notifs_size(
    map: *mut c_void,
    name: *const c_char,
    size: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(all) = (unsafe { heard_of(map, name) }) else { return INVALID };
    // SAFETY: as above.
    unsafe { size.write(all.len()) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_notif_map_get_notif(
    map: *mut c_void,
    name: *const c_char,
    index: usize,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(one) = unsafe { heard_of(map, name) }.and_then(|all| all.get(index)) else { return INVALID };
    // SAFETY: as above.
    unsafe {
        data.write(one.as_ptr().cast());
        bytes.write(one.len());
    }
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_notif_map_clear(map: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { heard(map) }.clear();
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nixl_capi_gen_notif(
    agent: *mut c_void,
    peer: *const c_char,
    data: *const c_void,
    bytes: usize,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (own, peer) = unsafe { (own(agent), CStr::from_ptr(peer)) };
    // SAFETY: as above.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec();
    let mut agents = agents();
    let Some(peer) = agents.get_mut(peer) else { return BACKEND };
    peer.heard.push((own.name.clone(), data));
    SUCCESS
}
