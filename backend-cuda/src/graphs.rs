//! Having the graph of a capture hold what its copies use, by functions that old drivers lack.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::ptr::NonNull;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use transship_core::backend::stream_ordered::GRAPHS_HOLD_NOTHING;
use transship_core::{Error, Result};

use crate::calls::Calls;
use crate::library::find;

/// What a capture is that goes on.
const ACTIVE: u32 = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32;
const NO_DESTRUCTOR_SYNC: c_uint = sys::CUuserObject_flags_enum::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
const MOVE: c_uint = sys::CUuserObjectRetain_flags_enum::CU_GRAPH_USER_OBJECT_MOVE as c_uint;

type End = unsafe extern "C" fn(*mut c_void);

/// Enums are integers here: a newer driver may know more of them.
struct Functions {
    capture_info: unsafe extern "C" fn(
        sys::CUstream,
        *mut u32,
        *mut u64,
        *mut sys::CUgraph,
        *mut *const sys::CUgraphNode,
        *mut usize,
    ) -> CUresult,
    create: unsafe extern "C" fn(*mut sys::CUuserObject, *mut c_void, End, c_uint, c_uint) -> CUresult,
    release: unsafe extern "C" fn(sys::CUuserObject, c_uint) -> CUresult,
    retain: unsafe extern "C" fn(sys::CUgraph, sys::CUuserObject, c_uint, c_uint) -> CUresult,
}

/// Fails if the driver lacks one of them.
fn functions(calls: &Calls) -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    // SAFETY: each field has the prototype that NVIDIA's header has for its name, with 32-bit integers for enums.
    let resolve = || unsafe {
        Some(Functions {
            capture_info: find(&["cuStreamGetCaptureInfo_v2"])?,
            create: find(&["cuUserObjectCreate"])?,
            release: find(&["cuUserObjectRelease"])?,
            retain: find(&["cuGraphRetainUserObject"])?,
        })
    };
    let unsupported = || Error::Unsupported { device: calls.device(), what: GRAPHS_HOLD_NOTHING };
    FUNCTIONS.get_or_init(resolve).as_ref().ok_or_else(unsupported)
}

/// An object that calls `end` with `share` when it goes.
///
/// # Safety
///
/// `end` may be called so, once, on any thread.
pub(crate) unsafe fn create_share(calls: &Calls, share: *mut c_void, end: End) -> Result<NonNull<c_void>> {
    let functions = functions(calls)?;
    let mut object = ptr::null_mut();
    calls.counted();
    // SAFETY: the result is written to a local; the rest is the caller's promise.
    let code = unsafe { (functions.create)(&mut object, share, end, 1, NO_DESTRUCTOR_SYNC) };
    calls.check("cuUserObjectCreate", code)?;
    let nothing = || calls.error("cuUserObjectCreate", CUresult::CUDA_ERROR_UNKNOWN);
    NonNull::new(object.cast()).ok_or_else(nothing)
}

/// Gives the one reference to the object to the graph into which the stream is being captured.
///
/// # Safety
///
/// The stream is alive and of the current context, and nobody ends its capture meanwhile. The reference is the caller's.
pub(crate) unsafe fn move_share(calls: &Calls, object: NonNull<c_void>, stream: sys::CUstream) -> Result<()> {
    let functions = functions(calls)?;
    let (mut status, mut graph) = (0, ptr::null_mut());
    calls.counted();
    // SAFETY: the caller's promise; two results are written to locals, and the driver leaves out those for which null is passed.
    let code = unsafe {
        let (id, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        (functions.capture_info)(stream, &mut status, id, &mut graph, nodes, count)
    };
    calls.check("cuStreamGetCaptureInfo", code)?;
    if status != ACTIVE || graph.is_null() {
        let why = "and that was broken";
        return Err(Error::StreamCaptured { device: calls.device(), why });
    }
    calls.counted();
    // SAFETY: the graph is that of a capture that goes on (caller); the reference is the caller's.
    let code = unsafe { (functions.retain)(graph, object.as_ptr().cast(), 1, MOVE) };
    calls.check("cuGraphRetainUserObject", code)
}

/// Gives a reference to the object up.
///
/// # Safety
///
/// It is the caller's.
pub(crate) unsafe fn release_share(calls: &Calls, object: NonNull<c_void>) -> Result<()> {
    let functions = functions(calls)?;
    calls.counted();
    // SAFETY: the caller's promise.
    let code = unsafe { (functions.release)(object.as_ptr().cast(), 1) };
    calls.check("cuUserObjectRelease", code)
}
