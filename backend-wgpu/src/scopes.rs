//! Errors of wgpu through error scopes, so that the uncaptured-error handler of the program never sees ours.

use futures::FutureExt;
use transship_core::{DeviceId, Error};
use wgpu::ErrorFilter;

/// Runs calls of wgpu on this thread and catches what goes wrong in them.
///
/// A lost device is not among that: wgpu tells it to the device's own callback only, and to those of mappings.
pub(crate) fn scoped<T>(device: &wgpu::Device, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    let internal = device.push_error_scope(ErrorFilter::Internal);
    let out_of_memory = device.push_error_scope(ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(ErrorFilter::Validation);
    let output = calls();
    // On every native API the answer is there at once.
    let caught = [validation, out_of_memory, internal].map(|scope| scope.pop().now_or_never().flatten());
    (output, caught.into_iter().flatten().next())
}

/// The error of `call`.
pub(crate) fn failed(device: DeviceId, call: &'static str, error: &wgpu::Error) -> Error {
    let code = match error {
        wgpu::Error::OutOfMemory { .. } => 1,
        wgpu::Error::Validation { .. } => 2,
        wgpu::Error::Internal { .. } => 3,
    };
    Error::Driver { device, call, code, message: error.to_string() }
}
