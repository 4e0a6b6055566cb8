//! Memory of devices, by a simulated driver that is called as that of NVIDIA.

use std::ptr::NonNull;

use late_backend::{LateConfig, LateHandle};
use transship_core::backend::StreamPriority;
use transship_core::dlpack::{DLManagedTensorVersioned, device_type, flag};
use transship_core::{
    Alignment, CopyOptions, DType, Device, Error, Stream, Tensor, start_copy, start_copy_into,
};

use crate::support::{Kernel, bytes_of, eventually, no_violations, on, two, with};
use crate::theirs::{Theirs, device, let_go};

fn cuda() -> (LateHandle, Device) {
    with(LateConfig::new("cuda"))
}

fn stream(device: &Device) -> Stream {
    device.create_stream(StreamPriority::Normal).unwrap()
}

fn flags(managed: NonNull<DLManagedTensorVersioned>) -> u64 {
    // SAFETY: it is there until it is let go of.
    unsafe { (*managed.as_ptr()).flags }
}

/// A tensor on the device that stream `filled` fills, and nothing has been waited for.
fn filled_later(late: &LateHandle, device: &Device, filled: &Stream) -> Tensor {
    device.prepare(64).unwrap();
    late.stall();
    let options = CopyOptions::default();
    start_copy(Tensor::from(vec![7_u8; 8]), device, options).unwrap().wait_on(filled).unwrap()
}

#[test]
fn memory_of_a_device_goes_out_and_comes_back() {
    let (late, gpu) = cuda();
    let tensor = on(&gpu, &[1, 2, 3, 4]);
    let address = tensor.address().unwrap().unwrap();
    let managed = tensor.into_dlpack(None).unwrap();
    // SAFETY: it is there until it is let go of.
    let said = unsafe { (*managed.as_ptr()).dl_tensor };
    assert_eq!((said.device, said.data.addr() as u64), (device(device_type::CUDA, 0), address));
    assert_eq!(flags(managed), 0, "nothing else has the memory");
    let stream = stream(&gpu);
    // SAFETY: our own struct, whose memory nobody writes.
    let back = unsafe { Tensor::from_dlpack(managed, Some(&stream)) }.unwrap();
    assert_eq!((back.device_id().unwrap(), back.address().unwrap()), (gpu.id(), Some(address)));
    assert_eq!(bytes_of(&back), [1, 2, 3, 4]);
    drop(back);
    no_violations(&late);
}

/// catches: 292-import-not-ordered
#[test]
fn what_comes_in_is_used_behind_the_stream_of_its_producer() {
    let (late, gpu) = cuda();
    let producer = stream(&gpu);
    let pending = filled_later(&late, &gpu, &producer);
    let managed = pending.into_dlpack(Some(&producer)).unwrap();
    // SAFETY: our own struct, whose memory is filled in order of `producer`.
    let back = unsafe { Tensor::from_dlpack(managed, Some(&producer)) }.unwrap();
    assert!(!back.is_ready().unwrap());
    let copy = start_copy(back, &Device::host(), CopyOptions::default()).unwrap();
    late.release();
    assert_eq!(copy.wait().unwrap().as_slice::<u8>().unwrap(), [7; 8]);
    no_violations(&late);
}

/// catches: 291-unfilled-memory-goes-out, 293-consumer-not-ordered
#[test]
fn the_consumer_comes_behind_the_copy() {
    let (late, gpu) = cuda();
    let consumer = stream(&gpu);
    late.stall();
    // No stream was told of it.
    let tensor = Tensor::zeros(&[8], DType::U8, &gpu).unwrap();
    let failed = tensor.into_dlpack(None).unwrap_err();
    assert!(matches!(failed.error(), Error::NotReady), "{failed}");
    let tensor = failed.into_tensor();
    let reader = tensor.clone();
    let managed = tensor.into_dlpack(Some(&consumer)).unwrap();
    assert_eq!(flags(managed), flag::READ_ONLY);
    let kernel = Kernel::launch(&reader, &consumer);
    drop(reader);
    late.release();
    assert_eq!(kernel.result(), [0; 8]);
    let_go(managed);
    gpu.synchronize().unwrap();
    no_violations(&late);
}

/// catches: 294-consumer-not-recorded
#[test]
fn memory_stays_for_the_consumers_work_after_the_deleter() {
    let (late, gpu) = cuda();
    let consumer = stream(&gpu);
    let tensor = on(&gpu, &[3; 8]);
    let reader = tensor.clone();
    let managed = tensor.into_dlpack(Some(&consumer)).unwrap();
    late.stall();
    let kernel = Kernel::launch(&reader, &consumer);
    drop(reader);
    let_go(managed);
    late.release();
    assert_eq!(kernel.result(), [3; 8]);
    no_violations(&late);
}

/// A stream that still uses the memory is waited for as well.
///
/// catches: 295-uses-not-ordered
#[test]
fn the_consumer_comes_behind_other_streams() {
    let (late, gpu) = cuda();
    let (other, consumer) = (stream(&gpu), stream(&gpu));
    let tensor = on(&gpu, &[3; 8]);
    tensor.record_stream(&other).unwrap();
    late.stall();
    let kernel = Kernel::launch(&tensor, &other);
    let failed = tensor.into_dlpack(None).unwrap_err();
    assert!(matches!(failed.error(), Error::NotReady), "{failed}");
    let managed = failed.into_tensor().into_dlpack(Some(&consumer)).unwrap();
    assert_eq!(flags(managed), 0);
    let behind = consumer.record().unwrap();
    late.release();
    assert!(behind.wait(None).unwrap());
    // The simulated device runs what is waited for, and no more.
    assert!(other.is_idle().unwrap());
    assert_eq!(kernel.result(), [3; 8]);
    let_go(managed);
    no_violations(&late);
}

#[test]
fn a_result_on_the_host_goes_out_when_it_is_there() {
    let (late, gpu) = cuda();
    let there = on(&gpu, &[5; 8]);
    let pinned = Tensor::empty_pinned(&[16], DType::U8, &gpu).unwrap();
    let managed = pinned.into_dlpack(None).unwrap();
    // SAFETY: it is there until it is let go of. PyTorch takes no kDLCUDAHost.
    assert_eq!(unsafe { (*managed.as_ptr()).dl_tensor.device }, device(device_type::CPU, 0));
    assert_eq!(flags(managed), 0);
    let_go(managed);

    // Host memory that work of a stream fills: not ready until that is done.
    let producer = stream(&gpu);
    late.stall();
    let _work = Kernel::launch(&there, &producer);
    let (theirs, deleted) = Theirs::matrix().versioned();
    // SAFETY: nobody writes it behind that point.
    let tensor = unsafe { Tensor::from_dlpack(theirs, Some(&producer)) }.unwrap();
    assert!(matches!(tensor.as_slice::<i32>(), Err(Error::NotReady)));
    let failed = tensor.into_dlpack(Some(&producer)).unwrap_err();
    assert!(matches!(failed.error(), Error::NotReady), "{failed}");
    let tensor = failed.into_tensor();
    late.release();
    producer.synchronize().unwrap();
    assert_eq!(tensor.as_slice::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
    let managed = tensor.into_dlpack(None).unwrap();
    assert_eq!(flags(managed), flag::READ_ONLY);
    let_go(managed);
    assert_eq!(deleted.count(), 1);
    no_violations(&late);
}

/// catches: 301-deleter-while-its-stream-writes
#[test]
fn the_deleter_comes_behind_the_stream_of_its_producer() {
    let (late, gpu) = cuda();
    let there = on(&gpu, &[5; 8]);
    let producer = stream(&gpu);
    late.stall();
    let _work = Kernel::launch(&there, &producer);
    let (theirs, deleted) = Theirs::matrix().versioned();
    // SAFETY: nobody writes the memory behind that point.
    let tensor = unsafe { Tensor::from_dlpack(theirs, Some(&producer)) }.unwrap();
    assert!(!tensor.is_ready().unwrap());
    drop(tensor);
    assert_eq!(deleted.count(), 0, "the stream may still write");
    late.release();
    producer.synchronize().unwrap();
    eventually("the deleter is called", || deleted.count() == 1);

    late.stall();
    let kernel = Kernel::launch(&there, &producer);
    let managed = there.into_dlpack(None).unwrap();
    // SAFETY: as above.
    drop(unsafe { Tensor::from_dlpack(managed, Some(&producer)) }.unwrap());
    late.release();
    assert_eq!(kernel.result(), [5; 8]);
    no_violations(&late);
}

/// catches: 296-refused-memory-is-let-go-of
#[test]
fn what_the_driver_refuses_stays_with_the_caller() {
    let (late, first, second) = two(LateConfig::new("cuda"));
    let cuda = |ordinal| Theirs { device: device(device_type::CUDA, ordinal), ..Theirs::matrix() };
    let refuse = |theirs: Theirs, behind: &Stream| {
        let (managed, deleted) = theirs.versioned();
        // SAFETY: it says what it is not, which the simulated driver knows.
        let error = unsafe { Tensor::from_dlpack(managed, Some(behind)) }.unwrap_err();
        assert_eq!(deleted.count(), 0, "{error}");
        let_go(managed);
        assert_eq!(deleted.count(), 1);
        error
    };
    let error = refuse(cuda(0), &stream(&first));
    assert!(matches!(error, Error::InvalidMemory { .. }), "{error}");
    let error = refuse(cuda(1), &stream(&first));
    assert!(
        matches!(error, Error::WrongStream { actual, expected } if actual == first.id() && expected == second.id())
    );
    no_violations(&late);

    let granularity = Alignment::new(4).unwrap();
    let (late, gpu) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("cuda") });
    let bytes = Theirs { device: device(device_type::CUDA, 0), ..Theirs::of(&[1], &[3]).dtype(1, 8, 1) };
    let error = refuse(bytes, &stream(&gpu));
    assert!(error.to_string().contains("whole granules of 4 bytes"), "{error}");
    no_violations(&late);
}

#[test]
fn memory_of_a_device_that_may_be_written_is_filled() {
    let (late, gpu) = cuda();
    let stream = stream(&gpu);
    let managed = on(&gpu, &[0; 8]).into_dlpack(Some(&stream)).unwrap();
    // SAFETY: our own struct, which nobody else uses.
    let held = unsafe { Tensor::from_dlpack_mut(managed, Some(&stream)) }.unwrap();
    let address = held.address().unwrap();
    let source = Tensor::from(vec![9_u8; 8]);
    let filled = start_copy_into(source, held, CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!((filled.address().unwrap(), bytes_of(&filled)), (address, vec![9; 8]));
    drop(filled);
    no_violations(&late);
}
