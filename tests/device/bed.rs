//! What several cases need, whatever the driver. What differs from one to another is in the `driver` of each backend's tests.

#[path = "../support/eventually.rs"]
mod eventually;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

pub(crate) use eventually::eventually;

use transship_core::{
    CopyHandle, CopyOptions, Device, DeviceId, Tensor, TensorTree, for_each_tensor, start_copy,
};

use crate::driver::NAME;

/// Opens device `ordinal`.
pub(crate) fn device(ordinal: usize) -> Device {
    Device::open(DeviceId::new(NAME, ordinal).unwrap()).unwrap()
}

/// Opens device `ordinal` and runs copies both ways, so that nothing is allocated from the driver while a stream is
/// stalled: that may wait for the device.
pub(crate) fn warm_device(ordinal: usize) -> Device {
    let device = device(ordinal);
    device.prepare(1 << 20).unwrap();
    let there = (0..4).map(|seed| up(Tensor::from(numbers(10_000, seed)), &device)).collect::<Vec<_>>();
    for tensor in &there {
        drop(down(tensor.clone()));
    }
    device
}

/// `count` numbers that differ from those of another seed and are exact as floats, also after 1 is added.
pub(crate) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + seed * 1009) % 1_000_003) as f32).collect()
}

/// Copies to `device` and waits.
pub(crate) fn up<S: TensorTree>(value: S, device: &Device) -> S {
    let handle = start_copy(value, device, CopyOptions::default());
    handle.and_then(CopyHandle::wait).unwrap_or_else(|error| panic!("{error}"))
}

/// Copies to the host and waits.
pub(crate) fn down<S: TensorTree>(value: S) -> S {
    up(value, &Device::host())
}

/// The bytes of every tensor of a structure on the host.
pub(crate) fn bytes<S: TensorTree>(mut value: S) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = |tensor: &mut Tensor| {
        bytes.push(tensor.to_bytes()?);
        Ok(())
    };
    for_each_tensor(&mut value, read).unwrap();
    bytes
}

/// Polls once, with a waker that does nothing.
pub(crate) fn poll_once<S: TensorTree>(handle: &mut CopyHandle<S>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(Pin::new(handle).poll(&mut context), Poll::Ready(_))
}
