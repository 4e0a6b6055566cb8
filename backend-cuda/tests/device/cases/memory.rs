//! Memory that somebody else allocated, and page-locked memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys;
use transship_core::backend::{MemoryKind, RawMemory};
use transship_core::{CopyOptions, DType, Device, Error, Tensor, start_copy};
use transship_cuda::stream_from_raw;

use super::Outcome;
use crate::bed::{self, bytes, down};
use crate::driver::{RawStream, allocate, current, memory_type};
use crate::stall::Stall;

/// Frees memory of `cuMemAlloc`, for which it finds the context current, and counts.
struct Owner {
    context: usize,
    address: sys::CUdeviceptr,
    freed: Arc<AtomicUsize>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let is_current = current().addr() == self.context;
        // SAFETY: allocated by the case, and owned by this alone.
        let result = unsafe { sys::cuMemFree_v2(self.address) };
        // Not a panic: this may run on any thread. The case fails since the count stays.
        if is_current && result == sys::CUresult::CUDA_SUCCESS {
            self.freed.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A tensor over `content`, in memory that counts when it is freed.
fn lent(device: &Device, content: &[u8], freed: &Arc<AtomicUsize>) -> Result<Tensor, Error> {
    let address = allocate(device, content);
    let owner = Owner { context: bed::backend(device).cu_context().addr(), address, freed: freed.clone() };
    let memory = RawMemory { address, bytes: content.len(), kind: MemoryKind::Device };
    // SAFETY: the memory is valid until the owner goes, and nobody else knows of it.
    unsafe { Tensor::from_raw(memory, Box::new(owner), &[content.len()], DType::U8, device) }
}

pub(crate) fn memory_of_others_is_freed_after_its_last_use() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    // SAFETY: the stream outlives what is made of it.
    let stream = unsafe { stream_from_raw(&device, raw.handle)? };
    let content: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let freed = Arc::new(AtomicUsize::new(0));
    let count = || freed.load(Ordering::SeqCst);

    let tensor = lent(&device, &content, &freed)?;
    let twin = tensor.narrow(0, 5, 100)?;
    assert_eq!(bytes(down(tensor)), [&content[..]]);
    assert_eq!(bytes(down(twin.clone())), [&content[5..105]]);
    assert_eq!(count(), 0, "a view must keep the memory");
    drop(twin);
    assert!(bed::eventually(|| count() == 1), "the owner was not dropped");

    // Twice: while a copy reads it, and while work on a stream may.
    for (before, with_copy) in [(1, true), (2, false)] {
        let tensor = lent(&device, &content, &freed)?;
        let stall = Stall::on(&device, raw.handle);
        let options = CopyOptions::default().stream(&stream);
        let start = || start_copy(tensor.clone(), &Device::host(), options);
        let handle = if with_copy { Some(start()?) } else { None };
        tensor.record_stream(&stream)?;
        drop(tensor);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(count(), before, "the owner was dropped before the last use on a stalled stream");
        stall.release();
        if let Some(handle) = handle {
            assert_eq!(bytes(handle.wait()?), [&content[..]]);
        }
        device.synchronize()?;
        assert!(bed::eventually(|| count() == before + 1), "the owner was not dropped after the last use");
    }
    Ok(())
}

pub(crate) fn wrong_addresses_are_refused() -> Outcome {
    let device = bed::device(0);
    let on_host = vec![0_u8; 4096];
    let host_address = on_host.as_ptr().expose_provenance() as u64;
    let freed = Arc::new(AtomicUsize::new(0));
    let there = lent(&device, &[0; 4096], &freed)?;
    let device_address = there.address()?.unwrap();
    let wrong = [
        (host_address, 4096, MemoryKind::Device, "host memory as that of a device"),
        (0, 4096, MemoryKind::Device, "null"),
        (u64::MAX - 10, 4096, MemoryKind::Device, "beyond the end of all addresses"),
        (device_address, 1 << 40, MemoryKind::Device, "more than there is"),
        (device_address, 4096, MemoryKind::Pinned, "device memory as that of the host"),
        (device_address, 4096, MemoryKind::Pageable, "device memory as ordinary"),
        (device_address, 4096, MemoryKind::Managed, "device memory as managed"),
    ];
    for (address, bytes, kind, what) in wrong {
        let memory = RawMemory { address, bytes, kind };
        // SAFETY: the memory is not used: the call refuses it.
        let refused = unsafe { Tensor::from_raw(memory, Box::new(()), &[1024], DType::F32, &device) };
        assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "{what}: {refused:?}");
    }
    let memory = RawMemory { address: device_address + 1, bytes: 8, kind: MemoryKind::Device };
    // SAFETY: as above.
    let refused = unsafe { Tensor::from_raw(memory, Box::new(()), &[2], DType::F32, &device) };
    assert!(matches!(refused, Err(Error::Misaligned { .. })), "{refused:?}");
    // SAFETY: as above.
    let refused = unsafe { Tensor::from_raw(memory, Box::new(()), &[9], DType::U8, &device) };
    assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    Ok(())
}

pub(crate) fn an_empty_pinned_tensor_is_page_locked() -> Outcome {
    let device = bed::device(0);
    let mut tensor = Tensor::empty_pinned(&[100_000], DType::F32, &device)?;
    assert_eq!(tensor.memory_kind()?, MemoryKind::Pinned);
    let address = tensor.as_slice::<f32>()?.as_ptr().expose_provenance() as u64;
    let kind = memory_type(&device, address);
    assert_eq!(kind, sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32, "the driver knows it as {kind}");
    let numbers = bed::numbers(100_000, 3);
    tensor.as_mut_slice::<f32>()?.copy_from_slice(&numbers);
    let (copied, report) = start_copy(tensor, &device, CopyOptions::default())?.wait_with_report()?;
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes, report.copies), (0, 0, 1));
    assert_eq!(report.copied_bytes, 400_000);
    let back = down(copied);
    assert_eq!(back.memory_kind()?, MemoryKind::Pinned);
    assert_eq!(back.to_vec::<f32>()?, numbers);
    Ok(())
}
