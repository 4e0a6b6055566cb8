//! Tensors as arguments of kernels. A copy of the runtime stands for the kernel.

use transship_core::{CopyOptions, DType, Device, Error, Stream, Tensor, start_copy};
use transship_hip::{device_ptr, hip_stream, hip_view, stream_from_raw};

use crate::bed::{self, numbers};
use crate::driver::{Current, RawStream, copy_down_async};
use crate::stall::Stall;
use crate::suite::Outcome;

const COUNT: usize = 5000;

pub(crate) fn a_view_waits_for_its_copy() -> Outcome {
    let device = bed::warm_device(0);
    let (filling, using) = (RawStream::of(&device), RawStream::of(&device));
    // SAFETY: the streams outlive what is made of them.
    let (first, second) =
        unsafe { (stream_from_raw(&device, filling.handle)?, stream_from_raw(&device, using.handle)?) };
    let mut read = Tensor::empty_pinned(&[COUNT], DType::F32, &device)?;
    let stall = Stall::on(&device, filling.handle);
    let options = CopyOptions::default().stream(&first);
    let tensor = start_copy(Tensor::from(numbers(COUNT, 1)), &device, options)?.wait_on(&first)?;
    use_on(&tensor, &second, &mut read)?;
    assert!(!second.is_idle()?, "the stream did not wait for the copy");
    stall.release();
    second.synchronize()?;
    assert_eq!(read.to_vec::<f32>()?, numbers(COUNT, 1));
    drop(tensor);
    // What the copy keeps is on the books of this one.
    first.synchronize()?;
    Ok(())
}

pub(crate) fn memory_is_not_reused_before_its_last_use() -> Outcome {
    let device = bed::warm_device(0);
    let using = RawStream::of(&device);
    // SAFETY: the stream outlives what is made of it.
    let stream = unsafe { stream_from_raw(&device, using.handle)? };
    let mut read = Tensor::empty_pinned(&[COUNT], DType::F32, &device)?;
    let copy = |seed| bed::up(Tensor::from(numbers(COUNT, seed)), &device);
    let tensor = copy(1);
    let place = device_ptr(&tensor)?;
    let stall = Stall::on(&device, using.handle);
    use_on(&tensor, &stream, &mut read)?;
    drop(tensor);
    let elsewhere = (2..34).map(|seed| device_ptr(&copy(seed))).collect::<Result<Vec<_>, _>>()?;
    let distinct = elsewhere.iter().collect::<std::collections::BTreeSet<_>>().len();
    stall.release();
    stream.synchronize()?;
    assert!(!elsewhere.contains(&place), "memory was handed out again before its last use");
    assert!(distinct < elsewhere.len(), "no memory was reused at all: the case shows nothing");
    assert_eq!(read.to_vec::<f32>()?, numbers(COUNT, 1));
    Ok(())
}

/// Copies the elements of `tensor` to page-locked memory, which nobody reads before the stream was waited for.
fn use_on(tensor: &Tensor, stream: &Stream, to: &mut Tensor) -> Outcome {
    let view = hip_view::<f32>(tensor, stream)?;
    assert_eq!((view.as_ptr().expose_provenance() as u64, view.len()), (device_ptr(tensor)?, COUNT));
    let _current = Current::of(stream.device());
    // SAFETY: the view has so many elements, and so has the memory.
    unsafe { copy_down_async(to.as_mut_slice::<f32>()?, view.as_ptr(), hip_stream(stream)?) };
    Ok(())
}

/// Mutant: the view has no share of the memory.
pub(crate) fn forgets_views() -> Outcome {
    let device = bed::warm_device(0);
    let stream = device.create_stream(Default::default())?;
    let copy = |seed| bed::up(Tensor::from(numbers(COUNT, seed)), &device);
    let tensor = copy(1);
    let place = device_ptr(&tensor)?;
    let view = hip_view::<f32>(&tensor, &stream)?;
    drop(tensor);
    assert_eq!((view.as_ptr().expose_provenance() as u64, view.len()), (place, COUNT));
    std::mem::forget(view);
    stream.synchronize()?;
    let elsewhere = (2..34).map(|seed| device_ptr(&copy(seed))).collect::<Result<Vec<_>, _>>()?;
    assert!(!elsewhere.contains(&place), "memory of a view was handed out again");
    Ok(())
}

/// Its name is that of the first device, its work that of the second one's. Mutant: names are compared.
pub(crate) fn a_stream_that_is_passed_off_as_one_of_the_device_is_refused() -> Outcome {
    let (first, second) = (bed::warm_device(0), bed::device(1));
    let stream = second.create_stream(Default::default())?;
    let disguised = Stream::from_backend(&first, stream.backend_stream().clone());
    assert_eq!(disguised.device().id(), first.id());
    let tensor = bed::up(Tensor::from(numbers(COUNT, 1)), &first);
    let refused = hip_view::<f32>(&tensor, &disguised).err();
    assert!(matches!(refused, Some(Error::WrongStream { .. })), "{refused:?}");
    Ok(())
}

pub(crate) fn other_tensors_and_streams_are_refused() -> Outcome {
    let device = bed::device(0);
    let stream = device.create_stream(Default::default())?;
    let tensor = bed::up(Tensor::from_vec(vec![1.0_f32; 12], &[3, 4])?, &device);
    let refused = hip_view::<i32>(&tensor, &stream).err();
    assert!(matches!(refused, Some(Error::WrongDType { .. })), "{refused:?}");
    let refused = hip_view::<f32>(&tensor.narrow(1, 0, 2)?, &stream).err();
    assert!(matches!(refused, Some(Error::NotContiguous { .. })), "{refused:?}");
    let refused = hip_view::<f32>(&Tensor::from(vec![1.0_f32]), &stream).err();
    assert!(matches!(refused, Some(Error::Unsupported { .. })), "{refused:?}");
    let of_host = Device::host().create_stream(Default::default());
    if let Ok(of_host) = of_host {
        let refused = hip_view::<f32>(&tensor, &of_host).err();
        assert!(matches!(refused, Some(Error::Unsupported { .. })), "{refused:?}");
    }
    let view = hip_view::<f32>(&tensor, &stream)?;
    assert_eq!((view.len(), view.is_empty()), (12, false));
    assert!(hip_view::<f32>(&tensor.narrow(0, 0, 0)?, &stream)?.is_empty());
    Ok(())
}
