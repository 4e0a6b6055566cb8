//! The two structs of DLPack as one.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::dlpack::abi::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, VERSION, flag};
use crate::error::{Error, Result};

/// A struct of DLPack that says how it is let go of: [`DLManagedTensorVersioned`], or [`DLManagedTensor`] of before. Sealed.
pub trait Managed: sealed::Struct {}

impl Managed for DLManagedTensor {}
impl Managed for DLManagedTensorVersioned {}

pub(crate) mod sealed {
    use super::{DLTensor, NonNull, Result, c_void};

    /// # Safety
    ///
    /// What is [made](Self::new) has each of its parts where the functions below look for it.
    pub unsafe trait Struct: Sized + 'static {
        /// The tensor, and whether the memory must not be written.
        ///
        /// # Safety
        ///
        /// `this` is a valid struct of the version that it says.
        #[doc(hidden)]
        unsafe fn read(this: NonNull<Self>) -> Result<(DLTensor, bool)>;

        /// # Safety
        ///
        /// As [`read`](Self::read), which has accepted it; it is not used any more.
        #[doc(hidden)]
        unsafe fn delete(this: NonNull<Self>);

        /// # Safety
        ///
        /// `this` is a valid struct.
        #[doc(hidden)]
        unsafe fn context(this: NonNull<Self>) -> *mut c_void;

        #[doc(hidden)]
        fn new(
            tensor: DLTensor,
            read_only: bool,
            context: *mut c_void,
            deleter: unsafe extern "C" fn(*mut Self),
        ) -> Self;

        /// Whether it can say that the memory must not be written.
        #[doc(hidden)]
        const SAYS_READ_ONLY: bool;
    }
}

// SAFETY: `new` fills all fields.
unsafe impl sealed::Struct for DLManagedTensor {
    const SAYS_READ_ONLY: bool = false;

    unsafe fn read(this: NonNull<Self>) -> Result<(DLTensor, bool)> {
        // SAFETY: the caller's promise.
        Ok((unsafe { (*this.as_ptr()).dl_tensor }, false))
    }

    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = (*this.as_ptr()).deleter {
                deleter(this.as_ptr());
            }
        }
    }

    unsafe fn context(this: NonNull<Self>) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { (*this.as_ptr()).manager_ctx }
    }

    fn new(
        dl_tensor: DLTensor,
        _: bool,
        manager_ctx: *mut c_void,
        deleter: unsafe extern "C" fn(*mut Self),
    ) -> Self {
        Self { dl_tensor, manager_ctx, deleter: Some(deleter) }
    }
}

// SAFETY: `new` fills all fields.
unsafe impl sealed::Struct for DLManagedTensorVersioned {
    const SAYS_READ_ONLY: bool = true;

    unsafe fn read(this: NonNull<Self>) -> Result<(DLTensor, bool)> {
        let this = this.as_ptr();
        // SAFETY: the caller's promise; every version begins like this.
        let version = unsafe { (*this).version };
        if version.major != VERSION.major {
            let value = format!("{}.{}", version.major, version.minor);
            let reason = "structs of version 1 can be read; ask the producer for one (max_version)";
            return Err(Error::InvalidDlpack { field: "version", value, reason });
        }
        // SAFETY: the caller's promise; all of version 1 are laid out like this.
        let (flags, tensor) = unsafe { ((*this).flags, (*this).dl_tensor) };
        Ok((tensor, flags & flag::READ_ONLY != 0))
    }

    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = (*this.as_ptr()).deleter {
                deleter(this.as_ptr());
            }
        }
    }

    unsafe fn context(this: NonNull<Self>) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { (*this.as_ptr()).manager_ctx }
    }

    fn new(
        dl_tensor: DLTensor,
        read_only: bool,
        manager_ctx: *mut c_void,
        deleter: unsafe extern "C" fn(*mut Self),
    ) -> Self {
        let flags = if read_only { flag::READ_ONLY } else { 0 };
        Self { version: VERSION, manager_ctx, deleter: Some(deleter), flags, dl_tensor }
    }
}
