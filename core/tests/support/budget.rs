//! What the tests of the budget of a device's memory share.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::time::Duration;

use late_backend::LateHandle;
use transship_core::backend::StreamPriority;
use transship_core::{CopyHandle, CopyOptions, Device, Stream, TensorTree, TimedWait};

use super::support::{eventually, late, no_violations};

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

#[track_caller]
pub(crate) fn pending<S: TensorTree>(copy: CopyHandle<S>) -> CopyHandle<S> {
    match copy.wait_timeout(LONG_NAP).unwrap() {
        TimedWait::Pending(copy) => copy,
        TimedWait::Done(_) => panic!("there is no room for it"),
    }
}

#[track_caller]
pub(crate) fn all_comes_back(late: &LateHandle, device: &Device) {
    eventually("all memory comes back", || {
        device.synchronize().unwrap();
        used(device) == 0
    });
    no_violations(late);
}
