//! Buffers of the program as tensors.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::{
    Alignment, CopyOptions, DType, Device, DeviceId, Error, StreamPriority, Tensor, start_copy_into,
};
use transship_wgpu::{BufferSource, OwnedBuffer, WgpuBuffer};
use wgpu::BufferUsages;

use super::Outcome;
use crate::bed::{Program, eventually, floats, numbers, up};

pub(crate) fn a_buffer_becomes_a_tensor() -> Outcome {
    let program = Program::new();
    let buffer = program.buffer(4096, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let bytes: Vec<u8> = numbers(1024, 1).iter().flat_map(|number| number.to_le_bytes()).collect();
    program.queue.write_buffer(&buffer, 0, &bytes);
    let tensor = transship_wgpu::wrap_buffer(&program.target, buffer.clone(), 96, &[10, 100], DType::F32)?;
    let view = transship_wgpu::wgpu_view(&tensor)?;
    assert!(view.buffer == buffer);
    assert_eq!((view.offset, view.bytes), (96, 4000));
    assert_eq!(floats(tensor.narrow(0, 3, 2)?.contiguous()?), numbers(1024, 1)[24 + 300..24 + 500]);
    assert_eq!(floats(tensor), numbers(1024, 1)[24..1024]);
    // The program's buffer is still the program's.
    assert_eq!(program.read(&buffer), numbers(1024, 1));
    Ok(())
}

/// All of it, parts of it, and one part out of another: wgpu itself copies between two buffers only.
pub(crate) fn a_buffer_is_copied_into() -> Outcome {
    let program = Program::new();
    let buffer = program.buffer(4096, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let held = transship_wgpu::wrap_buffer(&program.target, buffer.clone(), 0, &[4, 256], DType::F32)?;
    let value = |rows, seed| Tensor::from_vec(numbers(rows * 256, seed), &[rows, 256]);
    let held = start_copy_into(value(4, 1)?, held, CopyOptions::default())?.wait()?;
    assert_eq!(program.read(&buffer), numbers(1024, 1));

    let mut parts = held.split(0, &[1, 2, 1])?;
    let middle = start_copy_into(value(2, 2)?, parts.remove(1), CopyOptions::default())?.wait()?;
    let first = parts.remove(0);
    let first = start_copy_into(parts.remove(0), first, CopyOptions::default())?.wait()?;
    assert_eq!(floats(first), numbers(1024, 1)[768..]);
    drop(middle);
    let expected = [&numbers(1024, 1)[768..], &numbers(512, 2), &numbers(1024, 1)[768..]].concat();
    assert_eq!(program.read(&buffer), expected);

    let read_only = program.buffer(4096, BufferUsages::COPY_SRC);
    let held = transship_wgpu::wrap_buffer(&program.target, read_only, 0, &[4, 256], DType::F32)?;
    let refused = start_copy_into(value(4, 1)?, held, CopyOptions::default()).err();
    let refused = refused.ok_or("a buffer without COPY_DST was written")?;
    let why = format!("{:?}", refused.error());
    assert!(why.contains("lent read-only"), "{why}");
    Ok(())
}

/// A view that ends within a granule is refused, since the elements behind it are the program's; a tensor that does so is filled.
///
/// Deliberate bug: memory that the program has lent to be written is filled as if it were our own.
///
/// catches: 734-elements-of-a-lender-overwritten
pub(crate) fn what_lies_behind_a_view_of_a_buffer_is_kept() -> Outcome {
    let program = Program::new();
    let buffer = program.buffer(64, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    program.queue.write_buffer(&buffer, 0, &[7; 64]);
    let wrap = |count| transship_wgpu::wrap_buffer(&program.target, buffer.clone(), 4, &[count], DType::U8);
    let whole = wrap(8)?;
    let view = whole.narrow(0, 0, 5)?;
    drop(whole);
    let refused = start_copy_into(Tensor::from(vec![1_u8; 5]), view, CopyOptions::default());
    let refused = refused.err().ok_or("elements behind a view were overwritten")?;
    let why = refused.error().to_string();
    assert!(why.contains("0x5 is not a multiple of 4"), "{why}");
    assert_eq!(program.read(&buffer), vec![f32::from_le_bytes([7; 4]); 16]);

    let filled = start_copy_into(Tensor::from(vec![1_u8; 9]), wrap(9)?, CopyOptions::default())?.wait()?;
    let end = filled.narrow(0, 4, 5)?;
    drop(filled);
    drop(start_copy_into(Tensor::from(vec![2_u8; 5]), end, CopyOptions::default())?.wait()?);
    let bytes = program.read(&buffer).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>();
    assert_eq!((&bytes[..13], &bytes[16..]), (&[7, 7, 7, 7, 1, 1, 1, 1, 2, 2, 2, 2, 2][..], &[7; 48][..]));
    Ok(())
}

/// An allocator that gives out one part of one buffer after the other, and counts those that are kept.
struct Pages {
    buffer: wgpu::Buffer,
    end: AtomicUsize,
    kept: Arc<()>,
}

// SAFETY: parts are multiples of 256 apart and never given out again; owners are counters.
unsafe impl BufferSource for Pages {
    fn alignment(&self) -> Alignment {
        Alignment::new(256).unwrap()
    }

    fn largest(&self) -> usize {
        4096
    }

    fn allocate(&self, bytes: usize, device: DeviceId) -> transship_core::Result<OwnedBuffer> {
        let offset = self.end.fetch_add(bytes.next_multiple_of(256), Ordering::Relaxed);
        if offset + bytes > self.buffer.size() as usize {
            let (kind, requested) = ("device", bytes);
            return Err(Error::OutOfMemory { device, kind, requested, free: 0, total: 0 });
        }
        Ok(OwnedBuffer { buffer: self.buffer.clone(), offset, owner: Box::new(self.kept.clone()) })
    }
}

pub(crate) fn tensors_lie_in_memory_of_another_allocator() -> Outcome {
    let program = Program::new();
    let buffer = program.buffer(8192, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let kept = Arc::new(());
    let pages = Pages { buffer: buffer.clone(), end: AtomicUsize::new(512), kept: kept.clone() };
    let (device, queue) = (program.device.clone(), program.queue.clone());
    // SAFETY: it is not destroyed.
    let target = unsafe { transship_wgpu::from_device_with(device, queue, Box::new(pages)) }?;
    assert_eq!(target.limits().bindable_alignment.bytes(), 256);

    let there = up(vec![Tensor::from(numbers(10, 1)), Tensor::from(numbers(20, 2))], &target);
    let memory: &dyn Any = there[0].buffer()?;
    assert!(
        memory.downcast_ref().and_then(WgpuBuffer::owner).is_some_and(<dyn Any + Send + Sync>::is::<Arc<()>>)
    );
    for (tensor, seed) in there.iter().zip(1..) {
        let view = transship_wgpu::wgpu_view(tensor)?;
        assert!(view.buffer == buffer && view.offset >= 512 && view.offset.is_multiple_of(4));
        let start = view.offset as usize / 4;
        assert_eq!(program.read(&buffer)[start..][..10 * seed], numbers(10 * seed, seed));
    }
    assert_eq!(target.counters().device_bytes, there[0].retained_bytes() as u64);
    assert_eq!(Arc::strong_count(&kept), 3, "one for the allocator, one for the block");
    drop(there);
    assert!(eventually(|| Arc::strong_count(&kept) == 2), "the owner is still there");

    let refused = Tensor::empty(&[2000], DType::F32, &target);
    assert!(matches!(refused, Err(Error::TooLarge { limit: 4096, .. })), "{refused:?}");
    let held: Vec<_> = (0..7).map_while(|_| Tensor::empty(&[1000], DType::F32, &target).ok()).collect();
    assert_eq!(held.len(), 1, "512, 256 and 4096 of 8192 bytes are given out");
    Ok(())
}

pub(crate) fn a_lent_part_is_read_and_kept() -> Outcome {
    let program = Program::new();
    let buffer = program.buffer(4096, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let bytes: Vec<u8> = numbers(1024, 3).iter().flat_map(|number| number.to_le_bytes()).collect();
    program.queue.write_buffer(&buffer, 0, &bytes);
    let kept = Arc::new(());
    let lend = |offset, count: usize| {
        let owned = OwnedBuffer { buffer: buffer.clone(), offset, owner: Box::new(kept.clone()) };
        transship_wgpu::lend_buffer(&program.target, owned, &[count], DType::F32)
    };
    let refused =
        start_copy_into(Tensor::from(numbers(100, 4)), lend(256, 100)?, CopyOptions::default()).err();
    let why = format!("{:?}", refused.ok_or("a lent part was written")?.error());
    assert!(why.contains("lent read-only"), "{why}");
    let part = lend(256, 100)?;
    assert!(Arc::strong_count(&kept) >= 2);
    assert_eq!(floats(part), numbers(1024, 3)[64..164]);
    assert!(eventually(|| Arc::strong_count(&kept) == 1), "the owner is still there");

    assert!(matches!(lend(2, 1), Err(Error::Misaligned { .. })));
    assert!(matches!(lend(4000, 100), Err(Error::OutOfRange { .. })));
    assert!(eventually(|| Arc::strong_count(&kept) == 1), "an owner of what was refused is still there");
    Ok(())
}

pub(crate) fn wrong_buffers_are_refused() -> Outcome {
    let program = Program::new();
    let storage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let wrap = |size, usage, offset, count: usize, dtype| {
        let buffer = program.buffer(size, usage);
        transship_wgpu::wrap_buffer(&program.target, buffer, offset, &[count], dtype)
    };
    let text = |refused: transship_core::Result<transship_core::Tensor>| match refused {
        Err(Error::InvalidMemory { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(text(wrap(64, BufferUsages::STORAGE, 0, 16, DType::F32)).contains("add COPY_SRC"));
    assert!(text(wrap(63, storage, 0, 10, DType::F32)).contains("multiples of 4"));
    assert!(text(wrap(64, storage, 2, 10, DType::U8)).contains("multiples of 4"));
    assert!(matches!(wrap(64, storage, 0, 17, DType::F32), Err(Error::OutOfRange { .. })));
    assert!(matches!(wrap(64, storage, 60, 2, DType::F32), Err(Error::OutOfRange { .. })));
    assert!(matches!(wrap(64, storage, 68, 1, DType::F32), Err(Error::OutOfRange { .. })));
    assert!(matches!(wrap(64, storage, 4, 2, DType::F64), Err(Error::Misaligned { .. })));
    assert!(wrap(64, storage, 60, 1, DType::F32).is_ok());
    let buffer = program.buffer(64, storage);
    let refused = transship_wgpu::wrap_buffer(&Device::host(), buffer, 0, &[1], DType::F32);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}

/// Whoever has the buffer could destroy it, under a thread that writes to it. Deliberate bug: it is shown.
pub(crate) fn what_the_host_writes_is_not_shown() -> Outcome {
    let program = Program::on_own_device();
    let stream = program.target.create_stream(StreamPriority::Normal)?;
    let buffer = program.target.backend().allocate_open(64, &**stream.backend_stream())?;
    let any: &dyn Any = &*buffer;
    let shown = any.downcast_ref::<WgpuBuffer>().ok_or("a buffer of wgpu")?;
    assert_eq!(shown.buffer().is_none(), buffer.window().is_some());
    assert!(program.target.limits().largest_open == 0 || shown.buffer().is_none());
    // SAFETY: nobody writes it.
    unsafe { buffer.close() }?;
    assert!(shown.buffer().is_some());
    Ok(())
}
