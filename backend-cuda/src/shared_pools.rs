//! Pools that another process imports, by a descriptor, and the names of memory in them.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{self, CUmemAllocationHandleType_enum as HandleType};
use transship_core::backend::MemoryName;
use transship_core::{Error, Result};

use crate::calls::Calls;
use crate::pool_properties;

/// By its number, and the bit of descriptors in it. Since CUDA 11.3.
const SUPPORTED_HANDLE_TYPES: c_uint = 119;
const DESCRIPTOR_BIT: c_int = 1;
const DESCRIPTOR: sys::CUmemAllocationHandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

const SHARES_NO_MEMORY: &str = "share its memory with another process: its driver has no pools that can be exported; copy to the host first";

/// A new pool that can be exported.
pub(crate) fn create(calls: &Calls, device: sys::CUdevice, ordinal: c_int) -> Result<sys::CUmemoryPool> {
    check(calls, device)?;
    let mut properties = pool_properties::properties(ordinal);
    properties.handleTypes = DESCRIPTOR;
    let mut pool = std::ptr::null_mut();
    // SAFETY: the properties are read within the call; the handle is written to a local.
    unsafe { calls.pool_create(&mut pool, &properties)? };
    Ok(pool)
}

/// What another process imports it by.
///
/// # Safety
///
/// `pool` is one of [`create`] that was not destroyed.
pub(crate) unsafe fn export(calls: &Calls, pool: sys::CUmemoryPool) -> Result<OwnedFd> {
    let mut descriptor: c_int = -1;
    // SAFETY: for a handle of this type the driver writes the number of a descriptor; the rest is the caller's promise.
    unsafe { calls.pool_export((&raw mut descriptor).cast(), pool, DESCRIPTOR, 0)? };
    if descriptor < 0 {
        return Err(Error::Unsupported { device: calls.device(), what: SHARES_NO_MEMORY });
    }
    // SAFETY: the driver has opened it for its caller, who closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The pool of another process. The driver refuses descriptors of anything else.
pub(crate) fn import(
    calls: &Calls,
    device: sys::CUdevice,
    descriptor: BorrowedFd<'_>,
) -> Result<sys::CUmemoryPool> {
    check(calls, device)?;
    let handle = std::ptr::without_provenance_mut::<c_void>(descriptor.as_raw_fd() as usize);
    let mut pool = std::ptr::null_mut();
    // SAFETY: for a handle of this type the pointer is the number of a descriptor, which is open for the call; the result is written to a local.
    unsafe { calls.pool_import(&mut pool, handle, DESCRIPTOR, 0)? };
    Ok(pool)
}

/// The name of memory of a pool that can be exported.
///
/// # Safety
///
/// `address` was allocated from such a pool and not freed.
pub(crate) unsafe fn name(calls: &Calls, address: u64) -> Result<MemoryName> {
    let mut name = sys::CUmemPoolPtrExportData { reserved: [0; 64] };
    // SAFETY: the caller's promise; the name is written to a local.
    unsafe { calls.export_pointer(&mut name, address)? };
    Ok(name.reserved)
}

/// The memory of this name.
///
/// # Safety
///
/// `pool` is one of [`import`] that was not destroyed.
pub(crate) unsafe fn find(calls: &Calls, pool: sys::CUmemoryPool, name: &MemoryName) -> Result<u64> {
    let (mut address, mut name) = (0, sys::CUmemPoolPtrExportData { reserved: *name });
    // SAFETY: the caller's promise; the name is a local, and the address is written to one.
    unsafe { calls.import_pointer(&mut address, pool, &mut name)? };
    Ok(address)
}

fn check(calls: &Calls, device: sys::CUdevice) -> Result<()> {
    match calls.known_attribute(SUPPORTED_HANDLE_TYPES, device) {
        Some(kinds) if kinds & DESCRIPTOR_BIT != 0 => Ok(()),
        _ => Err(Error::Unsupported { device: calls.device(), what: SHARES_NO_MEMORY }),
    }
}
