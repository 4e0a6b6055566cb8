//! What the tests of the budget of a device's memory share.

use std::time::Duration;

use late_backend::LateHandle;
use transship_core::backend::StreamPriority;
use transship_core::{CopyOptions, Device, Stream};

use super::late;

pub(crate) const BUDGET: usize = 4096;
/// In which whoever looks after memory has looked.
pub(crate) const LONG_NAP: Duration = Duration::from_millis(5);

pub(crate) fn options() -> CopyOptions {
    CopyOptions::default()
}

pub(crate) fn limited() -> (LateHandle, Device) {
    let (late, device) = late();
    device.set_memory_budget(BUDGET).unwrap();
    (late, device)
}

pub(crate) fn used(device: &Device) -> u64 {
    device.memory().unwrap().tensors.unwrap()
}

pub(crate) fn stream_of(device: &Device) -> Stream {
    device.create_stream(StreamPriority::Normal).unwrap()
}
