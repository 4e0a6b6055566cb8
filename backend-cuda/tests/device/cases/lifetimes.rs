//! How long a device stays open.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::{CopyOptions, Device, DeviceId, Stream, Tensor, start_copy};
use transship_cuda::{CudaBackend, CudaStream};

use crate::bed::{self, down, numbers, up};
use crate::driver::{RawStream, is_current, is_primary_context_active};
use crate::stall::Stall;
use crate::suite::Outcome;

pub(crate) fn an_open_device_is_one_instance_and_can_be_opened_again() -> Outcome {
    let device = bed::device(0);
    let again = bed::device(0);
    assert!(Arc::ptr_eq(device.backend(), again.backend()), "two instances of one device");
    let tensor = up(Tensor::from(numbers(1000, 1)), &device);
    let backend = Arc::downgrade(device.backend());
    drop((device, again));
    assert!(backend.upgrade().is_some(), "a tensor keeps its device open");
    assert_eq!(down(tensor).to_vec::<f32>()?, numbers(1000, 1));
    let released = bed::eventually(|| backend.upgrade().is_none() && !is_primary_context_active());
    assert!(released, "the device is still open, or its context retained");
    let device = bed::device(0);
    assert_eq!(down(up(Tensor::from(numbers(1000, 2)), &device)).to_vec::<f32>()?, numbers(1000, 2));
    assert_eq!(Device::list().iter().filter(|id| id.driver() == "cuda").count(), devices());
    Ok(())
}

fn devices() -> usize {
    let drivers = transship_core::drivers();
    drivers.iter().find(|driver| driver.name == "cuda").map_or(0, |driver| driver.devices)
}

/// Counts if it finds its device current.
struct Owner(DeviceId, Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        if is_current(self.0) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Nobody waits for the copy that is the last to use the stream: the owner goes on a thread for owners.
///
/// Mutant: it is handed over without its device.
pub(crate) fn the_owner_of_a_stream_finds_its_device_current() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    let found = Arc::new(AtomicUsize::new(0));
    let backend: &dyn Any = &**device.backend();
    let context = backend.downcast_ref::<CudaBackend>().expect("a device of CUDA").context();
    let owner = Box::new(Owner(device.id(), found.clone()));
    // SAFETY: the stream outlives what is made of it, which is gone when its owner is.
    let kept = unsafe { CudaStream::kept(context, raw.handle, owner) };
    let stream = Stream::from_backend(&device, Arc::new(kept));
    let stall = Stall::on(&device, raw.handle);
    let source = Tensor::from(numbers(1000, 1));
    let copy = start_copy(source, &device, CopyOptions::default().stream(&stream))?;
    drop((copy, stream));
    assert_eq!(found.load(Ordering::SeqCst), 0, "the stream is in use");
    stall.release();
    assert!(bed::eventually(|| found.load(Ordering::SeqCst) == 1), "the device was not current");
    Ok(())
}
