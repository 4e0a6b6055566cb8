//! A memory pool of our own: the device's default pool is shared with other libraries, which set its attributes too.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys;
use transship_core::Result;

use crate::context::{Context, ordinal};

/// A pool that keeps its memory: allocating from it in a steady state costs no system call.
pub(crate) struct Pool {
    context: Arc<Context>,
    handle: sys::CUmemoryPool,
}

// SAFETY: a pool handle may be used by any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool on the device of `context`; `None` if the device has no pools.
    pub(crate) fn create(context: &Arc<Context>) -> Result<Option<Self>> {
        let driver = context.enter()?;
        let mut supported = 0;
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        // SAFETY: the context is current; the result is written to a local.
        unsafe { driver.device_attribute(&mut supported, attribute, context.device())? };
        if supported == 0 {
            return Ok(None);
        }
        let mut handle = std::ptr::null_mut();
        let properties = properties(ordinal(context.id()));
        // SAFETY: as above; the properties are read within the call.
        unsafe { driver.pool_create(&mut handle, &properties)? };
        let pool = Self { context: context.clone(), handle };
        let mut keep_all = u64::MAX;
        let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit number, read within the call.
        unsafe { driver.pool_set_attribute(pool.handle, threshold, (&raw mut keep_all).cast())? };
        Ok(Some(pool))
    }

    pub(crate) fn handle(&self) -> sys::CUmemoryPool {
        self.handle
    }

    /// Bytes held from the driver, idle ones included.
    pub(crate) fn reserved_bytes(&self) -> Result<u64> {
        let mut bytes = 0_u64;
        let attribute = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        let value: *mut c_void = (&raw mut bytes).cast();
        // SAFETY: the attribute is a 64-bit number, written to a local; the pool is alive.
        unsafe { self.context.enter()?.pool_attribute(self.handle, attribute, value)? };
        Ok(bytes)
    }

    /// Gives idle memory back to the driver.
    pub(crate) fn trim(&self) -> Result<()> {
        // SAFETY: the pool is alive.
        unsafe { self.context.enter()?.pool_trim(self.handle, 0) }
    }

    /// Lets another device read and write all memory of the pool.
    pub(crate) fn open_to(&self, peer: &Context) -> Result<()> {
        let access = sys::CUmemAccessDesc {
            location: location(ordinal(peer.id())),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the context is current, the pool alive; one description is read within the call.
        unsafe { self.context.enter()?.pool_set_access(self.handle, &access, 1) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: created by `create`. The driver keeps what is not freed yet until it is.
            let _ = unsafe { driver.pool_destroy(self.handle) };
        }
    }
}

/// Ordinary memory of one device, not shared with other processes.
fn properties(ordinal: c_int) -> sys::CUmemPoolProps {
    // SAFETY: every field is a number, a pointer or an enum with a value 0, in every version of the struct.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

/// The field of the ordinal lies inside of a union in newer versions of the bindings, always at the same place.
fn location(ordinal: c_int) -> sys::CUmemLocation {
    const { assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>()) };
    // SAFETY: a number and an enum with a value 0.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the struct is two words (asserted), of which the first is the type and the second the ordinal.
    unsafe { (&raw mut location).cast::<c_int>().add(1).write(ordinal) };
    location
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_the_type_and_then_the_ordinal() {
        let location = location(5);
        // SAFETY: both are eight bytes without padding.
        let words: [i32; 2] = unsafe { std::mem::transmute(location) };
        assert_eq!(words, [1, 5]);
    }
}
