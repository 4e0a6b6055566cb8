//! Copies that are waited for no longer than the transfer that they are of.

use std::collections::BTreeSet;
use std::time::Duration;

use transship::{CopyHandle, Device, DeviceId, Manifest, ManifestLeaf, Tensor, TimedWait};

use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// How long after the deadline a copy may take that nothing holds up.
const GRACE: Duration = Duration::from_millis(250);

/// A copy between the arena and tensors.
pub(crate) struct Copying {
    /// What it is to do.
    what: &'static str,
    devices: Vec<DeviceId>,
    handle: CopyHandle<Vec<Tensor>>,
}

impl Copying {
    /// Between the arena, which lies on `device`, and tensors on others.
    pub(crate) fn new(
        what: &'static str,
        device: &Device,
        others: BTreeSet<DeviceId>,
        handle: CopyHandle<Vec<Tensor>>,
    ) -> Self {
        let mut devices: BTreeSet<_> = others.into_iter().chain([device.id()]).collect();
        if devices.len() > 1 {
            // It is not the one that is late.
            devices.remove(&Device::host().id());
        }
        let devices = devices.into_iter().collect();
        Self { what, devices, handle }
    }

    /// Whether it is done, well or not: who waits for it then does not wait.
    pub(crate) fn is_done(&self) -> bool {
        self.handle.is_ready().unwrap_or(true)
    }

    /// The tensors that it has filled; where it has not, those that come back.
    pub(crate) fn wait(self, deadline: Deadline) -> Result<Vec<Tensor>, (Error, Option<Vec<Tensor>>)> {
        let Self { what, devices, handle } = self;
        if is_on_host(&devices) {
            // Nothing there is late, and who waits without a limit copies as well.
            return handle.wait().map_err(|failed| (failed.error().clone().into(), failed.into_both().1));
        }
        match handle.wait_timeout(deadline.left_with(GRACE)) {
            Ok(TimedWait::Done(tensors)) => Ok(tensors),
            Ok(TimedWait::Pending(handle)) => {
                // The device keeps what it still uses.
                let into = handle.cancel().into;
                Err((Error::DeviceLate { what, devices, limit: deadline.limit }, into))
            }
            Err(failed) => Err((failed.error().clone().into(), failed.into_both().1)),
        }
    }

    /// Nobody wants it any more: returns once nothing of the program is held but what a device still uses.
    pub(crate) fn end(self) {
        if is_on_host(&self.devices) {
            drop(self.handle.wait());
        } else {
            drop(self.handle.cancel());
        }
    }
}

fn is_on_host(devices: &[DeviceId]) -> bool {
    devices.iter().all(DeviceId::is_host)
}

/// The error of a copy of some tensors of a packed tree, with the path that one has there. `is_it` says of which of those a leaf is.
pub(crate) fn named(
    error: transship::Error,
    manifest: &Manifest,
    is_it: impl Fn(usize, &ManifestLeaf<'_>) -> bool,
) -> transship::Error {
    let transship::Error::UnsuitedTensor { mut index, mut path, role, error } = error else { return error };
    let (copied, mut is_named) = (index, false);
    let named = manifest.for_each_leaf(|leaf| {
        if !is_named && is_it(copied, leaf) {
            (index, path, is_named) = (leaf.number(), leaf.path().to_owned(), true);
        }
        Ok(())
    });
    debug_assert!(named.is_ok());
    transship::Error::UnsuitedTensor { index, path, role, error }
}

/// Where tensors are.
pub(crate) fn devices_of<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> BTreeSet<DeviceId> {
    tensors.into_iter().filter_map(|tensor| Some(tensor.device().ok()?.id())).collect()
}
