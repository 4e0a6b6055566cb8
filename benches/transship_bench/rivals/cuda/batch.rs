//! `cuMemcpyBatchAsync`, where the driver has it. Found at run time: the bindings of other versions know another prototype.

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use libloading::Library;
use transship::cuda::cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::Result;

/// Some drivers fail above 4 to 8 thousand copies.
const MOST_COPIES: usize = 4096;
/// The source is read in order of the stream.
const SOURCE_IN_STREAM_ORDER: c_uint = 1;

/// The prototype of CUDA 13.
pub(super) type Function = unsafe extern "C" fn(
    destinations: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut Attributes,
    attribute_indices: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> c_uint;

/// `CUmemcpyAttributes`.
#[repr(C)]
pub(super) struct Attributes {
    order: c_uint,
    source_hint: [c_int; 2],
    destination_hint: [c_int; 2],
    flags: c_uint,
}

pub(super) fn function() -> Option<Function> {
    // SAFETY: the prototype is that of NVIDIA's header for this name.
    unsafe { library()?.get::<Function>(b"cuMemcpyBatchAsync_v2") }.ok().map(|function| *function)
}

/// Whether the driver has a function of this name.
pub(super) fn has(name: &[u8]) -> bool {
    // SAFETY: the address is not used.
    library().is_some_and(|library| unsafe { library.get::<*const ()>(name) }.is_ok())
}

fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: the library is loaded already; its initialisers have no preconditions.
    LIBRARY.get_or_init(|| unsafe { Library::new("libcuda.so.1") }.ok()).as_ref()
}

/// Addresses on both sides, and sizes.
#[derive(Default)]
pub(super) struct Copies {
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    bytes: Vec<usize>,
}

impl Copies {
    pub(super) fn clear(&mut self) {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
    }

    pub(super) fn push(&mut self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        self.to.push(to);
        self.from.push(from);
        self.bytes.push(bytes);
    }

    /// # Safety
    ///
    /// All places must be valid, and left alone, until the copies are done.
    pub(super) unsafe fn submit(&mut self, function: Function, stream: CUstream) -> Result<()> {
        let mut attributes = Attributes {
            order: SOURCE_IN_STREAM_ORDER,
            source_hint: [0; 2],
            destination_hint: [0; 2],
            flags: 0,
        };
        let mut first = 0;
        for start in (0..self.to.len()).step_by(MOST_COPIES) {
            let count = MOST_COPIES.min(self.to.len() - start);
            let [to, from] = [&mut self.to, &mut self.from].map(|addresses| addresses[start..].as_mut_ptr());
            let bytes = self.bytes[start..].as_mut_ptr();
            // SAFETY: there are `count` elements behind each pointer; the places are the caller's promise.
            let code = unsafe { function(to, from, bytes, count, &mut attributes, &mut first, 1, stream) };
            if code != 0 {
                return Err(format!("cuMemcpyBatchAsync_v2: error {code}").into());
            }
        }
        Ok(())
    }
}
