//! The functions of NCCL that are used, by the prototypes of its header since version 2.14. Enums are numbers: another one coming from a
//! newer library would be undefined behaviour.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// A communicator of the library's.
pub(crate) type RawComm = *mut c_void;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const IN_PROGRESS: c_int = 7;

/// The size of what tells ranks of one communicator from others.
pub(crate) const ID_BYTES: usize = 128;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawId(pub(crate) [u8; ID_BYTES]);

/// `ncclConfig_t` as version 2.14 has it. Later ones read as much as `size` says, and take nothing of what has come since from one that
/// says 2.14 in `version`.
#[repr(C)]
pub(crate) struct RawConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// Where a field of later versions begins, in what would be padding.
    undefined: c_int,
}

impl RawConfig {
    /// Of a communicator whose calls return at once.
    pub(crate) fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
            undefined: c_int::MIN,
        }
    }
}

pub(crate) struct Functions {
    pub(crate) get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(crate) get_unique_id: unsafe extern "C" fn(*mut RawId) -> c_int,
    pub(crate) get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(crate) comm_init_all: unsafe extern "C" fn(*mut RawComm, c_int, *const c_int) -> c_int,
    pub(crate) comm_init_rank_config:
        unsafe extern "C" fn(*mut RawComm, c_int, RawId, c_int, *mut RawConfig) -> c_int,
    pub(crate) comm_finalize: unsafe extern "C" fn(RawComm) -> c_int,
    pub(crate) comm_destroy: unsafe extern "C" fn(RawComm) -> c_int,
    pub(crate) comm_abort: unsafe extern "C" fn(RawComm) -> c_int,
    pub(crate) comm_get_async_error: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    pub(crate) group_start: unsafe extern "C" fn() -> c_int,
    pub(crate) group_end: unsafe extern "C" fn() -> c_int,
    /// From, to, elements, type, operation, communicator, stream.
    pub(crate) all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    /// From, to, elements, type, operation, root, communicator, stream.
    pub(crate) reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        c_int,
        RawComm,
        *mut c_void,
    ) -> c_int,
    /// From, to, elements, type, root, communicator, stream.
    pub(crate) broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    /// From, to, elements of one rank, type, communicator, stream.
    pub(crate) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, *mut c_void) -> c_int,
}

impl Functions {
    /// # Errors
    ///
    /// The name of the first function that is missing.
    pub(crate) fn of(library: &Library) -> Result<Self, &'static str> {
        // SAFETY: each field has the prototype that nccl.h has for the name beside it, with handles as pointers and enums as numbers.
        unsafe {
            Ok(Self {
                get_version: find(library, "ncclGetVersion")?,
                get_unique_id: find(library, "ncclGetUniqueId")?,
                get_error_string: find(library, "ncclGetErrorString")?,
                comm_init_all: find(library, "ncclCommInitAll")?,
                comm_init_rank_config: find(library, "ncclCommInitRankConfig")?,
                comm_finalize: find(library, "ncclCommFinalize")?,
                comm_destroy: find(library, "ncclCommDestroy")?,
                comm_abort: find(library, "ncclCommAbort")?,
                comm_get_async_error: find(library, "ncclCommGetAsyncError")?,
                group_start: find(library, "ncclGroupStart")?,
                group_end: find(library, "ncclGroupEnd")?,
                all_reduce: find(library, "ncclAllReduce")?,
                reduce: find(library, "ncclReduce")?,
                broadcast: find(library, "ncclBroadcast")?,
                all_gather: find(library, "ncclAllGather")?,
            })
        }
    }
}

/// # Safety
///
/// `F` is the pointer type of a function with the prototype of the one that the library has under this name.
unsafe fn find<F: Copy>(library: &Library, name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|function| *function).map_err(|_| name)
}
