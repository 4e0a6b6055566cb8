//! Invariant: the caller's context is current again after every call, on errors as well.

use cudarc::driver::sys;
use transship_core::backend::{MemoryKind, RawMemory, StreamPriority};
use transship_core::{CopyOptions, DType, Device, Error, Tensor, start_copy};

use super::Outcome;
use crate::bed;
use crate::driver::{Current, OtherContext, capture_mode, current};

pub(crate) fn no_context_stays_none() -> Outcome {
    assert!(current_or_none().is_null(), "the thread of a case begins without a context");
    every_call(std::ptr::null_mut())
}

pub(crate) fn another_context_stays_current() -> Outcome {
    drop(bed::device(0));
    let other = OtherContext::create();
    let _current = Current::push(other.0);
    every_call(other.0)
}

/// Makes each kind of call and looks at the context behind it.
fn every_call(expected: sys::CUcontext) -> Outcome {
    let same = |call: &str| {
        assert_eq!(current(), expected, "the current context after {call}");
        assert_eq!(capture_mode(), 0, "the capture mode after {call}");
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
    stream.wait(&event)?;
    same("wait of a stream");
    let mark = stream.mark_time()?;
    same("mark_time");
    drop((mark, event, stream));
    same("drop of a stream");
    device.synchronize()?;
    same("synchronize of a device");
    device.trim();
    same("trim");
    device.shutdown()?;
    same("shutdown");
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
    let memory = RawMemory { address, bytes: bytes.len(), kind: MemoryKind::Device };
    // SAFETY: the memory outlives the call, which refuses it.
    let refused = unsafe { Tensor::from_raw(memory, Box::new(()), &[64], DType::U8, device) };
    assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "{refused:?}");
    same("a wrapping that is refused");
    Ok(())
}

/// [`current`], on a thread that may be the first to call the driver.
fn current_or_none() -> sys::CUcontext {
    // The driver must be initialised first; opening a device on another thread leaves this one alone.
    let opened = std::thread::spawn(|| drop(bed::device(0))).join();
    assert!(opened.is_ok());
    current()
}
