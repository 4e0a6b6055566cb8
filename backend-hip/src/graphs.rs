//! Having the graph of a capture hold what its copies use, by functions that old runtimes lack, and that AMD calls a beta.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::ptr::NonNull;

use hip_sys::hiprt;
use libloading::Library;
use transship_core::backend::stream_ordered::GRAPHS_HOLD_NOTHING;
use transship_core::{Error, Result};

use crate::calls::{Calls, find};

/// What a capture is that goes on.
const ACTIVE: u32 = 1;
const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;

type End = unsafe extern "C" fn(*mut c_void);

/// Handles of graphs, nodes and objects are pointers here.
pub(crate) struct GraphFunctions {
    capture_info: unsafe extern "C" fn(
        hiprt::hipStream_t,
        *mut u32,
        *mut u64,
        *mut *mut c_void,
        *mut *const *mut c_void,
        *mut usize,
    ) -> u32,
    create: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, End, c_uint, c_uint) -> u32,
    release: unsafe extern "C" fn(*mut c_void, c_uint) -> u32,
    retain: unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint, c_uint) -> u32,
}

impl GraphFunctions {
    /// Looks every function up; the answer is the name of the first that is missing.
    pub(crate) fn resolve(library: &Library) -> Result<Self, &'static str> {
        // SAFETY: each field has the prototype that AMD's header has for its name, with 32-bit integers for enums.
        unsafe {
            Ok(Self {
                capture_info: find(library, "hipStreamGetCaptureInfo_v2")?,
                create: find(library, "hipUserObjectCreate")?,
                release: find(library, "hipUserObjectRelease")?,
                retain: find(library, "hipGraphRetainUserObject")?,
            })
        }
    }
}

impl Calls {
    /// Fails if the runtime lacks one of them.
    fn graphs(&self) -> Result<&'static GraphFunctions> {
        let unsupported = || Error::Unsupported { device: self.device(), what: GRAPHS_HOLD_NOTHING };
        self.functions.graphs.as_ref().ok_or_else(unsupported)
    }

    /// An object that calls `end` with `share` when it goes.
    ///
    /// # Safety
    ///
    /// `end` may be called so, once, on any thread.
    pub(crate) unsafe fn create_share(&self, share: *mut c_void, end: End) -> Result<NonNull<c_void>> {
        let functions = self.graphs()?;
        let mut object = ptr::null_mut();
        self.counted();
        // SAFETY: the result is written to a local; the rest is the caller's promise.
        let code = unsafe { (functions.create)(&mut object, share, end, 1, NO_DESTRUCTOR_SYNC) };
        self.check("hipUserObjectCreate", code)?;
        let what = "create an object that a graph can hold";
        NonNull::new(object).ok_or(Error::Unsupported { device: self.device(), what })
    }

    /// Gives the one reference to the object to the graph into which the stream is being captured.
    ///
    /// # Safety
    ///
    /// The stream is alive and of the current device, and nobody ends its capture meanwhile. The reference is the caller's.
    pub(crate) unsafe fn move_share(
        &self,
        object: NonNull<c_void>,
        stream: hiprt::hipStream_t,
    ) -> Result<()> {
        let functions = self.graphs()?;
        let (mut status, mut graph) = (0, ptr::null_mut());
        self.counted();
        // SAFETY: the caller's promise; two results are written to locals, and the runtime leaves out those for which null is passed.
        let code = unsafe {
            let (id, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            (functions.capture_info)(stream, &mut status, id, &mut graph, nodes, count)
        };
        self.check("hipStreamGetCaptureInfo_v2", code)?;
        if status != ACTIVE || graph.is_null() {
            let why = "and that was broken";
            return Err(Error::StreamCaptured { device: self.device(), why });
        }
        self.counted();
        // SAFETY: the graph is that of a capture that goes on (caller); the reference is the caller's.
        let code = unsafe { (functions.retain)(graph, object.as_ptr(), 1, MOVE) };
        self.check("hipGraphRetainUserObject", code)
    }

    /// Gives a reference to the object up.
    ///
    /// # Safety
    ///
    /// It is the caller's.
    pub(crate) unsafe fn release_share(&self, object: NonNull<c_void>) -> Result<()> {
        let functions = self.graphs()?;
        self.counted();
        // SAFETY: the caller's promise.
        let code = unsafe { (functions.release)(object.as_ptr(), 1) };
        self.check("hipUserObjectRelease", code)
    }
}
