//! A view of memory somewhere: who owns it, which streams use it. Never copies between devices.

pub(crate) mod allocate;
pub(crate) mod bulk_arc;
pub(crate) mod device_list;
pub(crate) mod for_backends;
pub(crate) mod from_host;
pub(crate) mod gather_list;
pub(crate) mod host_access;
pub(crate) mod into_vec;
pub(crate) mod layout;
pub(crate) mod lent_together;
pub(crate) mod memory;
#[cfg(feature = "ndarray")]
pub(crate) mod ndarray;
pub(crate) mod non_temporal;
pub(crate) mod parts;
pub(crate) mod registered;
pub(crate) mod shared_owner;
pub(crate) mod split;
pub(crate) mod storage;
pub(crate) mod strided_copy;
pub(crate) mod strides;
pub(crate) mod tensor;
pub(crate) mod view;
pub(crate) mod view_arithmetic;
