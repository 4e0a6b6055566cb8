//! Pools. Their descriptions and attributes have the same layouts and numbers in both.

use std::ffi::c_uint;

use crate::exports::forward;

forward! {
    [creates] fn hipMemPoolCreate(pool: *mut usize, properties: usize) = cuMemPoolCreate(pool, properties);
    [destroys] fn hipMemPoolDestroy(pool: usize) = cuMemPoolDestroy(pool);
    fn hipMemPoolTrimTo(pool: usize, keep: usize) = cuMemPoolTrimTo(pool, keep);
    fn hipMemPoolSetAttribute(pool: usize, attribute: c_uint, value: usize) =
        cuMemPoolSetAttribute(pool, attribute, value);
    fn hipMemPoolGetAttribute(pool: usize, attribute: c_uint, value: usize) =
        cuMemPoolGetAttribute(pool, attribute, value);
    fn hipMemPoolSetAccess(pool: usize, access: usize, count: usize) =
        cuMemPoolSetAccess(pool, access, count);
}
