//! A device without memory left.

use transship_core::{DType, Error, Tensor};

use crate::bed::{self, down, numbers, up};
use crate::driver::memory_info;
use crate::suite::Outcome;

pub(crate) fn more_than_the_device_has_is_too_large() -> Outcome {
    let device = bed::device(0);
    let asked = device.limits().largest_buffer + 1;
    match Tensor::empty(&[asked], DType::U8, &device) {
        Err(Error::TooLarge { requested, limit, kind, .. }) => {
            assert_eq!((requested, limit, kind), (asked, asked - 1, "device"));
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

pub(crate) fn a_full_device_says_so_and_recovers() -> Outcome {
    let device = bed::device(0);
    let (_, total) = memory_info(&device);
    let third = total / 3;
    let mut tensors = Vec::new();
    let error = loop {
        match Tensor::empty(&[third], DType::U8, &device) {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => break error,
        }
        assert!(tensors.len() <= 3, "more memory than there is");
    };
    println!("after {} tensors of {third} bytes: {error}", tensors.len());
    match error {
        Error::OutOfMemory { requested, free, total: all, kind, device: asked } => {
            assert_eq!((requested, kind, asked), (third, "device", device.id()));
            assert_eq!(all, total);
            assert!(free > 0 && free < third, "{free} bytes are said to be free");
        }
        other => panic!("{other:?}"),
    }
    let held = device.counters().device_bytes;
    assert!(held >= (tensors.len() * third) as u64);
    tensors.clear();
    device.synchronize()?;
    assert_eq!(down(up(Tensor::from(numbers(5000, 4)), &device)).to_vec::<f32>()?, numbers(5000, 4));
    // What was given back can be had again.
    let again = Tensor::empty(&[third], DType::U8, &device)?;
    device.synchronize()?;
    assert!(again.is_ready()?);
    drop(again);
    device.trim();
    println!("held from the driver: {held} bytes full, {} after trim", device.counters().device_bytes);
    Ok(())
}
