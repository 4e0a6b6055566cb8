//! Every element type.

use libtest_mimic::Failed;
use transship::{DType, Tensor};

use crate::bed::Bed;
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    let each = DType::ALL.iter().map(|&dtype| {
        let name = format!("{dtype:?}_up_and_down").to_lowercase();
        Case::new(module_path!(), &name, move |bed| up_and_down(bed, dtype))
    });
    each.chain([case!(all_in_one_structure), case!(values_are_those_that_went_in)]).collect()
}

fn up_and_down(bed: &Bed, dtype: DType) -> Result<(), Failed> {
    let tensors: Vec<Tensor> = [&[][..], &[1], &[7], &[3, 5], &[2, 3, 4], &[1, 1, 1, 1, 9]]
        .map(|shape| bed.tensor(dtype, shape))
        .into();
    let trip = bed.round_trip(tensors, bed.options())?;
    assert!(trip.value.iter().all(|tensor| tensor.dtype() == dtype));
    assert_eq!((trip.up.leaves, trip.up.packed), (6, 6));
    Ok(())
}

fn all_in_one_structure(bed: &Bed) -> Result<(), Failed> {
    let tensors: Vec<Tensor> = DType::ALL.iter().map(|dtype| bed.tensor(*dtype, &[5, 3])).collect();
    let trip = bed.round_trip(tensors, bed.options())?;
    assert_eq!((trip.up.packed, trip.up.chunks), (DType::ALL.len(), 1));
    for (tensor, &dtype) in trip.value.iter().zip(DType::ALL) {
        assert_eq!(tensor.offset() % dtype.alignment().bytes(), 0, "{dtype} at {}", tensor.offset());
    }
    Ok(())
}

/// Independent of the comparison that the other cases use.
fn values_are_those_that_went_in(bed: &Bed) -> Result<(), Failed> {
    let floats = vec![1.5_f32, -0.0, f32::INFINITY, f32::MIN_POSITIVE];
    let truths = vec![true, false, true];
    let numbers = vec![i64::MIN, -1, i64::MAX];
    let sent = (Tensor::from(floats.clone()), Tensor::from(truths.clone()), Tensor::from(numbers.clone()));
    let (first, second, third) = bed.down(bed.up(sent)?)?;
    assert_eq!(first.as_slice::<f32>()?, floats);
    assert_eq!(second.as_slice::<bool>()?, truths);
    assert_eq!(third.as_slice::<i64>()?, numbers);
    Ok(())
}
