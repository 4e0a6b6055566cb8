//! Devices by number, by name, and those of the program.

use transship_core::{CopyOptions, DType, Device, Error, Tensor, start_copy};
use wgpu::DeviceType;

use super::Outcome;
use crate::bed::{Program, floats, numbers, up};

pub(crate) fn adapters_are_listed_in_an_order_that_stays() -> Outcome {
    let adapters = transship_wgpu::adapters()?;
    for (ordinal, adapter) in adapters.iter().enumerate() {
        assert_eq!((adapter.id.driver(), adapter.id.ordinal()), ("wgpu", ordinal));
        assert!(adapter.description.contains(&adapter.name), "{adapter:?}");
    }
    let is_software: Vec<_> = adapters.iter().map(|adapter| adapter.kind == DeviceType::Cpu).collect();
    assert!(is_software.is_sorted(), "software comes last: {adapters:?}");
    let first = &adapters[0];
    assert_eq!(transship_wgpu::find(&first.name.to_uppercase())?, Some(first.id));
    assert_eq!(transship_wgpu::find("no such adapter")?, None);
    let best = Device::best()?;
    assert_eq!(
        best.is_host(),
        first.kind == DeviceType::Cpu,
        "software is no better than the host: {best:?}"
    );
    Ok(())
}

pub(crate) fn copies_go_into_the_programs_own_device() -> Outcome {
    let program = Program::new();
    assert!(program.target.id().ordinal() >= 1 << 16);
    assert!(matches!(Device::open(program.target.id()), Err(Error::NoSuchDevice { .. })));
    let there = up(Tensor::from(numbers(1000, 1)), &program.target);
    let view = transship_wgpu::wgpu_view(&there)?;
    assert_eq!(view.bytes, 4000);
    assert_eq!(program.read(&view.buffer)[view.offset as usize / 4..][..1000], numbers(1000, 1));
    assert_eq!(floats(there), numbers(1000, 1));
    // SAFETY: it is not destroyed.
    let (device, queue) = unsafe { transship_wgpu::wgpu_device(&program.target) }?;
    assert!(device == program.device && queue == program.queue);
    Ok(())
}

/// wgpu does not tell whether two handles name one device: copies between such go over the host.
pub(crate) fn a_device_handed_in_twice_is_two() -> Outcome {
    let program = Program::new();
    // SAFETY: it is not destroyed.
    let other = unsafe { transship_wgpu::from_device(program.device.clone(), program.queue.clone()) }?;
    assert_ne!(other.id(), program.target.id());
    let there = up(Tensor::from(numbers(1000, 2)), &program.target);
    let over = start_copy(there, &other, CopyOptions::default())?.wait()?;
    let counters = other.counters();
    assert_eq!((counters.bytes_between, counters.bytes_up), (0, 4000));
    assert_eq!(floats(over), numbers(1000, 2));
    Ok(())
}

pub(crate) fn page_locked_tensors_are_refused() -> Outcome {
    let program = Program::new();
    let refused = Tensor::empty_pinned(&[10], DType::F32, &program.target);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}

pub(crate) fn several_threads_synchronize_at_once() -> Outcome {
    let program = Program::new();
    let synchronize = || (0..500).try_for_each(|_| program.target.synchronize());
    std::thread::scope(|scope| {
        let threads = [scope.spawn(synchronize), scope.spawn(synchronize), scope.spawn(synchronize)];
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok(())
}
