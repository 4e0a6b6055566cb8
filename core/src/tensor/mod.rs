//! A view of memory somewhere: who owns it, which streams use it. Never copies between devices.

pub(crate) mod allocate;
pub(crate) mod bulk_arc;
pub(crate) mod create;
pub(crate) mod host_copy;
pub(crate) mod interop;
pub(crate) mod layout;
pub(crate) mod layout_view;
#[cfg(feature = "ndarray")]
pub(crate) mod ndarray;
pub(crate) mod read;
pub(crate) mod storage;
pub(crate) mod strided_copy;
pub(crate) mod tensor;
pub(crate) mod view;
