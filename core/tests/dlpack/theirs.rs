//! Tensors of another library, which counts how often each is let go of.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, Managed,
    device_type, type_code,
};

/// A tensor to be made, of two by three `i32` unless something else is said.
pub(crate) struct Theirs {
    pub(crate) words: Vec<u64>,
    pub(crate) shape: Option<Vec<i64>>,
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) ndim: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) device: DLDevice,
    pub(crate) byte_offset: u64,
    pub(crate) null: bool,
    pub(crate) version: DLPackVersion,
    pub(crate) flags: u64,
    pub(crate) on_delete: Box<dyn FnOnce() + Send>,
    pub(crate) deleted: Deleted,
}

/// How often the deleter was called.
#[derive(Clone, Default)]
pub(crate) struct Deleted(Arc<AtomicUsize>);

impl Deleted {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub(crate) const fn data_type(code: u8, bits: u8, lanes: u16) -> DLDataType {
    DLDataType { code, bits, lanes }
}

pub(crate) const fn device(device_type: i32, device_id: i32) -> DLDevice {
    DLDevice { device_type, device_id }
}

impl Theirs {
    /// The elements 0 to 5.
    pub(crate) fn matrix() -> Self {
        Self::of(&[0_i32, 1, 2, 3, 4, 5], &[2, 3])
    }

    pub(crate) fn of(values: &[i32], shape: &[i64]) -> Self {
        let mut words = vec![0_u64; values.len().div_ceil(2) + 1];
        bytemuck::cast_slice_mut::<_, i32>(&mut words)[..values.len()].copy_from_slice(values);
        Self {
            words,
            shape: Some(shape.to_vec()),
            strides: None,
            ndim: shape.len() as i32,
            dtype: data_type(type_code::INT, 32, 1),
            device: device(device_type::CPU, 0),
            byte_offset: 0,
            null: false,
            version: DLPackVersion { major: 1, minor: 0 },
            flags: 0,
            on_delete: Box::new(|| {}),
            deleted: Deleted::default(),
        }
    }

    pub(crate) fn strides(mut self, strides: &[i64]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    pub(crate) fn dtype(mut self, code: u8, bits: u8, lanes: u16) -> Self {
        self.dtype = data_type(code, bits, lanes);
        self
    }

    pub(crate) fn versioned(self) -> (NonNull<DLManagedTensorVersioned>, Deleted) {
        let (version, flags) = (self.version, self.flags);
        self.made(|dl_tensor, manager_ctx, deleter| DLManagedTensorVersioned {
            version,
            manager_ctx,
            deleter: Some(deleter),
            flags,
            dl_tensor,
        })
    }

    pub(crate) fn unversioned(self) -> (NonNull<DLManagedTensor>, Deleted) {
        self.made(|dl_tensor, manager_ctx, deleter| DLManagedTensor {
            dl_tensor,
            manager_ctx,
            deleter: Some(deleter),
        })
    }

    fn made<M: Context>(
        self,
        make: impl FnOnce(DLTensor, *mut c_void, unsafe extern "C" fn(*mut M)) -> M,
    ) -> (NonNull<M>, Deleted) {
        let deleted = self.deleted.clone();
        let kept = Box::into_raw(Box::new(self));
        // SAFETY: nobody else has it yet, and the lists stay where they are in memory.
        let theirs = unsafe { &mut *kept };
        let list = |list: &mut Option<Vec<i64>>| list.as_mut().map_or(null_mut(), |list| list.as_mut_ptr());
        let tensor = DLTensor {
            data: if theirs.null { null_mut() } else { theirs.words.as_mut_ptr().cast() },
            device: theirs.device,
            ndim: theirs.ndim,
            dtype: theirs.dtype,
            shape: list(&mut theirs.shape),
            strides: list(&mut theirs.strides),
            byte_offset: theirs.byte_offset,
        };
        let managed = Box::into_raw(Box::new(make(tensor, kept.cast(), delete::<M>)));
        (NonNull::new(managed).unwrap(), deleted)
    }
}

/// Where each struct has what belongs to its producer.
pub(crate) trait Context: Managed {
    fn context(&self) -> *mut c_void;
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
    fn tensor(&mut self) -> &mut DLTensor;
}

impl Context for DLManagedTensor {
    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }

    fn tensor(&mut self) -> &mut DLTensor {
        &mut self.dl_tensor
    }
}

impl Context for DLManagedTensorVersioned {
    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }

    fn tensor(&mut self) -> &mut DLTensor {
        &mut self.dl_tensor
    }
}

/// Lets the memory go, and spoils it before: whoever reads it later finds something else.
unsafe extern "C" fn delete<M: Context>(managed: *mut M) {
    // SAFETY: made by `made`, and called once, which the tests are about.
    let (managed, mut theirs) = unsafe {
        let managed = Box::from_raw(managed);
        let theirs = Box::from_raw(managed.context().cast::<Theirs>());
        (managed, theirs)
    };
    theirs.deleted.0.fetch_add(1, Ordering::SeqCst);
    theirs.words.fill(u64::MAX);
    (theirs.on_delete)();
    drop(managed);
}

/// Calls the deleter, as a consumer does at its end.
pub(crate) fn let_go<M: Context>(managed: NonNull<M>) {
    // SAFETY: a consumer has the struct until it calls this.
    unsafe {
        let deleter = (*managed.as_ptr()).deleter().unwrap();
        deleter(managed.as_ptr());
    }
}
