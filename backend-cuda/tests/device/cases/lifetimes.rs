//! How long a device stays open.

use std::sync::Arc;

use transship_core::{Device, Tensor};

use crate::bed::{self, down, numbers, up};
use crate::driver::is_primary_context_active;
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
