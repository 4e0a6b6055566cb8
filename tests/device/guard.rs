//! Invariant: what is current for the caller is so again after every call, on errors as well.

use transship_core::backend::{MemoryKind, RawMemory, StreamPriority};
use transship_core::{CopyOptions, DType, Device, Error, Tensor, start_copy};

use crate::bed;
use crate::driver::{capture_mode, current};
use crate::suite::Outcome;

/// Makes each kind of call of device 0 and looks at what is current behind it, and at what else the driver's tests say.
pub(crate) fn every_call(also: impl Fn(&str)) -> Outcome {
    let expected = current();
    let same = |call: &str| {
        assert_eq!(current(), expected, "what is current after {call}");
        assert_eq!(capture_mode(), 0, "the capture mode after {call}");
        also(call);
    };
    let device = bed::device(0);
    same("open");
    device.prepare(1 << 20)?;
    same("prepare");
    let stream = device.create_stream(StreamPriority::High)?;
    same("create_stream");
    stream.synchronize()?;
    same("synchronize of a stream");
    copies(&device, &same)?;
    errors(&device, &same)?;
    let event = stream.record()?;
    same("record");
    stream.wait_event(&event)?;
    same("wait of a stream");
    let mark = stream.mark_time()?;
    same("mark_time");
    drop((mark, event, stream));
    same("drop of a stream");
    device.synchronize()?;
    same("synchronize of a device");
    device.trim();
    same("trim");
    device.drain()?;
    same("drain");
    drop(device);
    same("drop of the device");
    Ok(())
}

fn copies(device: &Device, same: &impl Fn(&str)) -> Outcome {
    let source = || vec![Tensor::from(vec![1.5_f32; 5000]), Tensor::from(vec![7_u8; 3])];
    let handle = start_copy(source(), device, CopyOptions::default())?;
    same("start_copy");
    handle.is_ready()?;
    same("is_ready");
    let copied = handle.wait()?;
    same("wait");
    let handle = start_copy(copied, &Device::host(), CopyOptions::default())?;
    same("start_copy down");
    let back = handle.wait()?;
    same("wait for a copy down");
    assert_eq!(back[0].to_vec::<f32>()?, [1.5; 5000]);
    drop(back);
    same("drop of results on the host");
    drop(start_copy(source(), device, CopyOptions::default())?);
    same("drop of a handle");
    let zeros = Tensor::zeros(&[100], DType::F32, device)?;
    same("zeros");
    drop(zeros);
    same("drop of a tensor");
    let pinned = Tensor::empty_pinned(&[100], DType::F32, device)?;
    same("empty_pinned");
    drop(pinned);
    same("drop of a pinned tensor");
    Ok(())
}

fn errors(device: &Device, same: &impl Fn(&str)) -> Outcome {
    let much = device.limits().largest_buffer + 1;
    let refused = Tensor::empty(&[much], DType::U8, device);
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    same("an allocation that is refused");
    let bytes = [0_u8; 64];
    let address = bytes.as_ptr().expose_provenance() as u64;
    let memory = RawMemory::new(address, bytes.len(), MemoryKind::Device);
    // SAFETY: the memory outlives the call, which refuses it.
    let refused = unsafe { Tensor::from_raw(memory, Box::new(()), &[64], DType::U8, device) };
    assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "{refused:?}");
    same("a wrapping that is refused");
    Ok(())
}
