//! Tensors as arguments of shaders.

use transship_core::{CopyOptions, Error, Tensor, start_copy};

use super::Outcome;
use crate::bed::{Program, numbers};
use crate::shader::{Doubling, Part};

/// Packed tightly the leaves are read through one binding of the whole chunk; packed to be bindable each of them has a binding
/// too.
pub(crate) fn a_leaf_is_bound_alone_where_it_is_aligned() -> Outcome {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    let aligned = program.target.limits().bindable_alignment.bytes();
    let leaves = || (0..6).map(|seed| Tensor::from(numbers(5 + seed, seed))).collect::<Vec<_>>();
    let tight = start_copy(leaves(), &program.target, CopyOptions::default().packed_alignment(4))?.wait()?;
    let views = tight.iter().map(transship_wgpu::wgpu_view).collect::<Result<Vec<_>, _>>()?;
    assert!(views.iter().all(|view| view.buffer == views[0].buffer), "they share a chunk");
    let refused = views.iter().filter_map(|view| view.binding().err()).collect::<Vec<_>>();
    let says = |error: &Error| {
        matches!(error, Error::Misaligned { alignment, .. } if *alignment == aligned)
            && error.to_string().contains("CopyOptions::bindable(true)")
    };
    assert!(!refused.is_empty() && refused.iter().all(says), "{refused:?}");
    for (seed, view) in views.iter().enumerate() {
        let count = 5 + seed as u64;
        let result = doubling.results(&program, count);
        doubling.submit(&program, &Part { source: &view.buffer, first: view.offset / 4, count }, &result, 0);
        let doubled: Vec<f32> = numbers(5 + seed, seed).iter().map(|number| number * 2.0).collect();
        assert_eq!(program.read(&result), doubled);
    }
    let bindable = CopyOptions::default().bindable(true);
    let bindable = start_copy(leaves(), &program.target, bindable)?.wait()?;
    for (seed, tensor) in bindable.iter().enumerate() {
        let view = transship_wgpu::wgpu_view(tensor)?;
        let binding = view.binding()?;
        assert_eq!((binding.offset, binding.size.map(u64::from)), (view.offset, Some(4 * (5 + seed as u64))));
    }
    Ok(())
}

pub(crate) fn what_is_on_no_wgpu_device_has_no_view() -> Outcome {
    let program = Program::new();
    let on_host = Tensor::from(numbers(4, 0));
    assert!(matches!(transship_wgpu::wgpu_view(&on_host), Err(Error::Unsupported { .. })));
    let empty = crate::bed::up(Tensor::from(numbers(0, 0)), &program.target);
    assert!(matches!(transship_wgpu::wgpu_view(&empty), Err(Error::Unsupported { .. })));
    Ok(())
}
