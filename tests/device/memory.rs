//! Memory that somebody else allocated, and page-locked memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::backend::{MemoryKind, RawMemory};
use transship_core::{
    CopyOptions, DType, Device, DeviceId, Error, Layout, SharedOwner, Tensor, start_copy, start_copy_into,
};

use crate::bed::{self, bytes, down};
use crate::driver::{
    Current, RawStream, SUCCESS, allocate, begin_capture, check, end_capture, free, is_current,
    is_page_locked, set_bytes, stream_from_raw,
};
use crate::stall::Stall;
use crate::suite::Outcome;

/// Frees memory of the driver, for which it finds the device current, and counts.
struct Owner {
    device: DeviceId,
    address: u64,
    freed: Arc<AtomicUsize>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let is_current = is_current(self.device);
        // SAFETY: allocated by the case, and owned by this alone.
        let result = unsafe { free(self.address) };
        // Not a panic: this may run on any thread. The case fails since the count stays.
        if is_current && result == SUCCESS {
            self.freed.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A tensor over `content`, in memory that counts when it is freed.
pub(crate) fn lent(device: &Device, content: &[u8], freed: &Arc<AtomicUsize>) -> Result<Tensor, Error> {
    let (memory, owner) = memory_of_others(device, content, freed);
    // SAFETY: the memory is valid until the owner goes, and nobody else knows of it.
    unsafe { Tensor::from_raw(memory, owner, &[content.len()], DType::U8, device) }
}

/// The same, which may be written.
pub(crate) fn lent_mut(device: &Device, content: &[u8], freed: &Arc<AtomicUsize>) -> Result<Tensor, Error> {
    let (memory, owner) = memory_of_others(device, content, freed);
    // SAFETY: as above.
    unsafe { Tensor::from_raw_mut(memory, owner, &[content.len()], DType::U8, device) }
}

fn memory_of_others(
    device: &Device,
    content: &[u8],
    freed: &Arc<AtomicUsize>,
) -> (RawMemory, Box<dyn Any + Send + Sync>) {
    let address = allocate(device, content);
    let owner = Owner { device: device.id(), address, freed: freed.clone() };
    (RawMemory::new(address, content.len(), MemoryKind::Device), Box::new(owner))
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
        stream.synchronize()?;
        assert!(bed::eventually(|| count() == before + 1), "the owner was not dropped after the last use");
    }
    Ok(())
}

/// The driver is asked about an allocation, and not about each piece of it. catches: 506-bounds-of-allocations-not-asked
pub(crate) fn many_pieces_of_one_allocation_cost_as_much_as_one() -> Outcome {
    const PIECES: usize = 300;
    let device = bed::warm_device(0);
    let content: Vec<u8> = (0..=255).cycle().take(100 * PIECES).collect();
    let freed = Arc::new(AtomicUsize::new(0));
    let whole = lent(&device, &content, &freed)?;
    let address = whole.address()?.ok_or("memory of a device has an address")?;
    let start = |number: usize| (number * 37 % PIECES) * 100;
    let piece = |number: usize| {
        let memory = RawMemory::new(address + start(number) as u64, 61, MemoryKind::Device);
        Ok::<_, Error>((memory, Layout::contiguous(DType::U8, &[61])?))
    };
    let owner = SharedOwner::new(whole, &device);
    let pieces = (0..PIECES).map(piece).collect::<Result<Vec<_>, _>>()?;
    let before = device.counters().driver_calls;
    // SAFETY: the owner keeps the memory, and nobody writes to it.
    let tensors = unsafe { owner.tensors(pieces) }?;
    let calls = device.counters().driver_calls - before;
    assert!(calls < 40, "{calls} calls of the driver");
    drop(owner);
    for (number, bytes) in bytes(down(tensors)).iter().enumerate() {
        assert_eq!(bytes, &content[start(number)..][..61], "piece {number}");
    }
    assert!(bed::eventually(|| freed.load(Ordering::SeqCst) == 1), "the owner was not dropped");
    Ok(())
}

/// A stream may be given more work as long as somebody holds it, also while it has none. Mutant: streams that are idle are forgotten when
/// the memory is filled anew.
pub(crate) fn refilled_memory_keeps_the_streams_that_it_was_handed_to() -> Outcome {
    const BYTES: usize = 50_000;
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    // SAFETY: the stream outlives what is made of it.
    let stream = unsafe { stream_from_raw(&device, raw.handle)? };
    let mut held = bed::up(Tensor::from(vec![0_u8; BYTES]), &device);
    held.record_stream(&stream)?;
    for round in 1..6_u8 {
        let into = CopyOptions::default();
        held = start_copy_into(Tensor::from(vec![round; BYTES]), held, into)?.wait()?;
    }
    let address = held.address()?.ok_or("memory of a device has an address")?;
    let stall = Stall::on(&device, raw.handle);
    {
        let _current = Current::of(&device);
        // SAFETY: the memory has so many bytes, and was handed to the stream.
        check("set bytes", unsafe { set_bytes(address, 9, BYTES, raw.handle) });
    }
    let copy = start_copy(held.clone(), &Device::host(), CopyOptions::default())?;
    drop(held);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(!copy.is_ready()?, "the copy did not wait for the stream");
    stall.release();
    assert!(
        copy.wait()?.as_slice::<u8>()?.iter().all(|byte| *byte == 9),
        "the copy went ahead of the stream"
    );
    stream.synchronize()?;
    Ok(())
}

/// Mutant: a stream that is captured counts as broken.
pub(crate) fn memory_that_goes_during_a_capture_comes_back_behind_it() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    // SAFETY: the stream outlives what is made of it, and is synchronized behind each capture.
    let stream = unsafe { stream_from_raw(&device, raw.handle)? };
    let freed = Arc::new(AtomicUsize::new(0));
    let count = || freed.load(Ordering::SeqCst);
    let leaks = transship_core::runtime_stats().leaks;
    for round in 0..20 {
        let tensors = [lent(&device, &[1; 5000], &freed)?, lent(&device, &[2; 5000], &freed)?];
        tensors.iter().try_for_each(|tensor| tensor.record_stream(&stream))?;
        let graph = {
            let _current = Current::of(&device);
            begin_capture(raw.handle);
            drop(tensors);
            std::thread::sleep(std::time::Duration::from_millis(1));
            let before = count();
            let graph = end_capture(raw.handle);
            assert_eq!(before, 2 * round, "memory went during the capture");
            graph
        };
        drop(graph.unwrap_or_else(|code| panic!("the capture was broken: {code:?}")));
        stream.synchronize()?;
        assert!(bed::eventually(|| count() == 2 * round + 2), "the memory did not come back");
    }
    assert_eq!(transship_core::runtime_stats().leaks, leaks);
    Ok(())
}

/// Programs that hold streams of others make one of ours for each call. Mutant: each is noted as a stream of its own.
pub(crate) fn a_stream_that_is_wrapped_for_each_request_is_noted_once() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    let weights = bed::up(Tensor::from(vec![3_u8; 5000]), &device);
    let mut wrapped = Vec::new();
    for request in 0..100_u8 {
        // SAFETY: the stream outlives what is made of it.
        let stream = unsafe { stream_from_raw(&device, raw.handle)? };
        let tree = vec![weights.clone(), Tensor::from(vec![request; 100])];
        drop(start_copy(tree, &device, CopyOptions::default())?.wait_on(&stream)?);
        stream.synchronize()?;
        wrapped.push(Arc::downgrade(stream.backend_stream()));
    }
    let held = || wrapped.iter().filter(|stream| stream.strong_count() > 0).count();
    assert!(bed::eventually(|| held() <= 1), "{} objects for one stream are held", held());
    // The one that was noted stands for the stream, whatever is submitted to it by others.
    let stall = Stall::on(&device, raw.handle);
    let place = weights.address()?;
    drop(weights);
    let again = bed::up(Tensor::from(vec![4_u8; 5000]), &device);
    assert_ne!(again.address()?, place, "memory was given out again before the stream came by");
    stall.release();
    Ok(())
}

pub(crate) fn page_locked_memory_of_others_is_known() -> Outcome {
    let device = bed::device(0);
    let mut owner = Tensor::empty_pinned(&[10_000], DType::U8, &device)?;
    owner.as_mut_slice::<u8>()?.fill(9);
    let address = owner.as_slice::<u8>()?.as_ptr().expose_provenance() as u64;
    let wrap = |kind, owner: Box<dyn Any + Send + Sync>| {
        let memory = RawMemory::new(address, 10_000, kind);
        // SAFETY: the memory is the owner's, or not used: the call refuses it; nobody writes it any more.
        unsafe { Tensor::from_raw(memory, owner, &[10_000], DType::U8, &device) }
    };
    for kind in [MemoryKind::Device, MemoryKind::Managed] {
        let refused = wrap(kind, Box::new(()));
        assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "as {kind:?}: {refused:?}");
    }
    let tensor = wrap(MemoryKind::Pinned, Box::new(owner))?;
    assert_eq!(tensor.memory_kind()?, MemoryKind::Pinned);
    assert_eq!(bytes(down(bed::up(tensor, &device))), [[9; 10_000]]);
    Ok(())
}

/// Mutant: the driver is not asked, and its device writes to memory that it has not page-locked.
pub(crate) fn page_locked_memory_of_others_is_written_by_the_device() -> Outcome {
    let device = bed::warm_device(0);
    let mut ordinary = vec![0_u8; 100_000];
    let mut pinned = Tensor::empty_pinned(&[100_000], DType::U8, &device)?;
    let locked = pinned.as_mut_slice::<u8>()?.as_mut_ptr().expose_provenance() as u64;
    let wrap = |address, owner: Box<dyn Any + Send + Sync>| {
        let memory = RawMemory::new(address, 100_000, MemoryKind::Pinned);
        // SAFETY: the memory is the owner's, or not used: the call refuses it; nobody else writes or reads it.
        unsafe { Tensor::from_raw_mut(memory, owner, &[100_000], DType::U8, &device) }
    };
    let refused = wrap(ordinary.as_mut_ptr().expose_provenance() as u64, Box::new(()));
    assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "{refused:?}");
    let held = wrap(locked, Box::new(pinned))?;
    let there = bed::up(Tensor::from(vec![7_u8; 100_000]), &device);
    let (held, report) = start_copy_into(there, held, CopyOptions::default())?.wait_with_report()?;
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert_eq!(held.to_bytes()?, [7; 100_000]);
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
        let memory = RawMemory::new(address, bytes, kind);
        // SAFETY: the memory is not used: the call refuses it.
        let refused = unsafe { Tensor::from_raw(memory, Box::new(()), &[1024], DType::F32, &device) };
        assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "{what}: {refused:?}");
    }
    let memory = RawMemory::new(device_address + 1, 8, MemoryKind::Device);
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
    assert!(is_page_locked(&device, address), "the driver knows it as something else");
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
