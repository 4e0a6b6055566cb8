//! The cases, with the changes to the code that they were seen to fail with.

use std::error::Error;

use burn_tensor::{Bool, Int, Tensor};
use transship::prelude::*;
use transship::{DType, StreamPriority, Tensor as Leaf};
use transship_burn::{Error as BurnError, SharedDevice};

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

pub(crate) type Case = (&'static str, fn(&SharedDevice) -> Outcome);

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("a_structure_arrives_in_one_copy", a_structure_arrives_in_one_copy),
        ("hundreds_of_small_tensors_arrive_in_one_copy", hundreds_of_small_tensors_arrive_in_one_copy),
        ("strides_are_left_out_on_the_way_up", strides_are_left_out_on_the_way_up),
        ("views_there_keep_their_strides", views_there_keep_their_strides),
        ("aliases_stay_apart_when_burn_works_in_place", aliases_stay_apart_when_burn_works_in_place),
        ("memory_used_again_waits_for_the_kernels_before", memory_used_again_waits_for_the_kernels_before),
        ("memory_stays_while_only_burn_has_it", memory_stays_while_only_burn_has_it),
        ("kernels_come_behind_a_copy_under_way", kernels_come_behind_a_copy_under_way),
        ("results_come_back_in_one_structure", results_come_back_in_one_structure),
        ("what_burn_has_dropped_is_still_copied", what_burn_has_dropped_is_still_copied),
        ("what_does_not_fit_is_an_error", what_does_not_fit_is_an_error),
    ]
}

fn up<S: TensorTree>(value: S, gpu: &SharedDevice) -> Result<S, transship::Error> {
    Ok(transship::start_copy(value, gpu.device(), CopyOptions::default())?.wait()?)
}

fn down<S: TensorTree>(value: S) -> Result<S, transship::Error> {
    Ok(transship::start_copy(value, &transship::Device::host(), CopyOptions::default())?.wait()?)
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + seed * 1009) % 10_007) as f32).collect()
}

#[derive(TensorTree)]
struct Batch {
    images: Leaf,
    name: String,
    extra: Vec<Option<Leaf>>,
    mask: Leaf,
    scale: Leaf,
    nothing: Leaf,
}

/// Fails with the start of the chunk, and not that of the tensor, in `handle_of`.
fn a_structure_arrives_in_one_copy(gpu: &SharedDevice) -> Outcome {
    let batch = Batch {
        images: Leaf::from_vec(numbers(24, 1), &[2, 3, 4])?,
        name: "front".to_owned(),
        extra: vec![Some(Leaf::from(vec![1_i32, -2, 3])), None],
        mask: Leaf::from(vec![1_u32, 0, 1, 1, 0]),
        scale: Leaf::from_vec(vec![0.25_f32], &[])?,
        nothing: Leaf::from_vec(Vec::<f32>::new(), &[0, 7])?,
    };
    let before = gpu.device().counters();
    let batch = up(batch, gpu)?;
    assert_eq!(gpu.device().counters().copies - before.copies, 1);
    assert_eq!((&*batch.name, batch.extra.len()), ("front", 2));

    let images: Tensor<3> = gpu.to_burn(&batch.images)?;
    assert_eq!(images.dims(), [2, 3, 4]);
    assert_eq!(images.clone().into_data().try_to_vec::<f32>()?, numbers(24, 1));
    assert_eq!((images * 2.0).sum().into_scalar::<f32>(), 2.0 * numbers(24, 1).iter().sum::<f32>());
    let extra: Tensor<1, Int> = gpu.to_burn(batch.extra[0].as_ref().unwrap())?;
    assert_eq!(extra.into_data().try_to_vec::<i32>()?, [1, -2, 3]);
    let mask: Tensor<1, Bool> = gpu.to_burn(&batch.mask)?;
    assert_eq!(mask.int().into_data().iter::<i32>().collect::<Vec<_>>(), [1, 0, 1, 1, 0]);
    let scale: Tensor<1> = gpu.to_burn(&batch.scale)?;
    assert_eq!(scale.into_scalar::<f32>(), 0.25);
    let nothing: Tensor<2> = gpu.to_burn(&batch.nothing)?;
    assert_eq!(nothing.dims(), [0, 7]);
    Ok(())
}

fn hundreds_of_small_tensors_arrive_in_one_copy(gpu: &SharedDevice) -> Outcome {
    let leaves: Vec<_> = (0..528).map(|number| Leaf::from(numbers(1 + number % 97, number))).collect();
    let before = gpu.device().counters();
    let leaves = up(leaves, gpu)?;
    assert_eq!(gpu.device().counters().copies - before.copies, 1);
    for (number, leaf) in leaves.iter().enumerate() {
        let tensor: Tensor<1> = gpu.to_burn(leaf)?;
        assert_eq!(tensor.into_data().try_to_vec::<f32>()?, numbers(1 + number % 97, number), "{number}");
    }
    Ok(())
}

fn strides_are_left_out_on_the_way_up(gpu: &SharedDevice) -> Outcome {
    let whole = Leaf::from_vec(numbers(60, 3), &[6, 10])?;
    let part = up(whole.transpose(0, 1)?.narrow(0, 2, 3)?, gpu)?;
    let part: Tensor<2> = gpu.to_burn(&part)?;
    let expected: Vec<_> =
        (2..5).flat_map(|column| (0..6).map(move |row| numbers(60, 3)[row * 10 + column])).collect();
    assert_eq!(part.into_data().try_to_vec::<f32>()?, expected);
    Ok(())
}

/// Fails with row-major strides in `dimensions`.
fn views_there_keep_their_strides(gpu: &SharedDevice) -> Outcome {
    let whole = up(Leaf::from_vec(numbers(60, 4), &[6, 10])?, gpu)?;
    let turned: Tensor<2> = gpu.to_burn(&whole.transpose(0, 1)?)?;
    assert_eq!(turned.dims(), [10, 6]);
    let expected: Vec<_> =
        (0..10).flat_map(|column| (0..6).map(move |row| numbers(60, 4)[row * 10 + column] + 1.0)).collect();
    assert_eq!((turned + 1.0).into_data().try_to_vec::<f32>()?, expected);
    Ok(())
}

/// burn works in place where a handle is alone. Two handles of one chunk never are: cubecl counts those of the whole allocation.
fn aliases_stay_apart_when_burn_works_in_place(gpu: &SharedDevice) -> Outcome {
    let leaf = Leaf::from(numbers(1000, 5));
    let [first, second] = up([leaf.clone(), leaf], gpu)?;
    assert!(first.shares_memory_with(&second));
    let (one, other): (Tensor<1>, Tensor<1>) = (gpu.to_burn(&first)?, gpu.to_burn(&second)?);
    drop((first, second));
    let doubled = one * 2.0;
    assert_eq!(other.into_data().try_to_vec::<f32>()?, numbers(1000, 5));
    assert_eq!(doubled.into_data().try_to_vec::<f32>()?[1], numbers(1000, 5)[1] * 2.0);
    Ok(())
}

/// The kernel must be submitted before the copy that uses its input's memory again. Passes without `flush` in `place` as well, as long
/// as cubecl's `get_resource` submits too.
fn memory_used_again_waits_for_the_kernels_before(gpu: &SharedDevice) -> Outcome {
    for round in 0..20 {
        let leaf = up(Leaf::from(vec![1.0_f32; 5000]), gpu)?;
        let input: Tensor<1> = gpu.to_burn(&leaf)?;
        let kept = gpu.to_burn::<1, burn_tensor::Float>(&leaf)?;
        let output = input + 1.0; // not submitted yet
        drop((kept, leaf));
        let next = up(Leaf::from(vec![7.0_f32; 5000]), gpu)?;
        assert_eq!(output.into_data().try_to_vec::<f32>()?, [2.0; 5000], "round {round}");
        let next: Tensor<1> = gpu.to_burn(&next)?;
        assert_eq!(next.into_data().try_to_vec::<f32>()?, [7.0; 5000], "round {round}");
    }
    Ok(())
}

fn memory_stays_while_only_burn_has_it(gpu: &SharedDevice) -> Outcome {
    let kept: Tensor<1> = gpu.to_burn(&up(Leaf::from(numbers(3000, 6)), gpu)?)?;
    let others: Vec<_> =
        (0..8).map(|_| up(Leaf::from(vec![9.0_f32; 3000]), gpu)).collect::<Result<_, _>>()?;
    assert_eq!(kept.into_data().try_to_vec::<f32>()?, numbers(3000, 6));
    drop(others);
    Ok(())
}

fn kernels_come_behind_a_copy_under_way(gpu: &SharedDevice) -> Outcome {
    let stream = gpu.device().create_stream(StreamPriority::Normal)?;
    for seed in 0..5 {
        let leaf = Leaf::from(numbers(1 << 20, seed));
        let copy = transship::start_copy(leaf, gpu.device(), CopyOptions::default())
            .map_err(transship::Error::from)?;
        let leaf = copy.wait_on(&stream).map_err(transship::Error::from)?;
        let tensor: Tensor<1> = gpu.to_burn(&leaf)?;
        assert_eq!((tensor + 1.0).into_data().try_to_vec::<f32>()?[777], numbers(1 << 20, seed)[777] + 1.0);
    }
    Ok(())
}

/// Fails without the strides in `from_burn`.
fn results_come_back_in_one_structure(gpu: &SharedDevice) -> Outcome {
    let scores: Tensor<2> = gpu.to_burn(&up(Leaf::from_vec(numbers(60, 7), &[6, 10])?, gpu)?)?;
    let labels = Tensor::<1, Int>::from_ints([3, 2, 1], gpu.burn()) + 1;
    let wanted = (gpu.from_burn((scores + 1.0).transpose())?, vec![gpu.from_burn(labels)?]);
    let (scores, labels) = down(wanted)?;
    let expected: Vec<_> =
        (0..10).flat_map(|column| (0..6).map(move |row| numbers(60, 7)[row * 10 + column] + 1.0)).collect();
    assert_eq!(scores.shape(), [10, 6]);
    assert_eq!(scores.to_vec::<f32>()?, expected);
    assert_eq!(labels[0].dtype(), DType::I32);
    assert_eq!(labels[0].to_vec::<i32>()?, [4, 3, 2]);
    let nothing = gpu.from_burn(Tensor::<2>::zeros([0, 3], gpu.burn()))?;
    assert_eq!(down(nothing)?.shape(), [0, 3]);
    Ok(())
}

/// Fails where the owner of the lent memory holds neither the tensor nor its place.
fn what_burn_has_dropped_is_still_copied(gpu: &SharedDevice) -> Outcome {
    let lent = gpu.from_burn(Tensor::<1>::ones([4000], gpu.burn()) * 3.0)?;
    let others: Vec<_> =
        (0..8).map(|_| up(Leaf::from(vec![9.0_f32; 4000]), gpu)).collect::<Result<_, _>>()?;
    assert_eq!(down(lent)?.to_vec::<f32>()?, [3.0; 4000]);
    drop(others);
    Ok(())
}

/// Fails without the check of the alignment.
fn what_does_not_fit_is_an_error(gpu: &SharedDevice) -> Outcome {
    let host = Leaf::from(vec![1.0_f32; 100]);
    let refused = gpu.to_burn::<1, burn_tensor::Float>(&host).map(|_| ());
    assert!(matches!(refused, Err(BurnError::NotShared { .. })), "{refused:?}");
    let there = up(host, gpu)?;
    let refused = gpu.to_burn::<2, burn_tensor::Float>(&there).map(|_| ());
    assert!(matches!(refused, Err(BurnError::WrongRank { expected: 2, actual: 1 })), "{refused:?}");
    let refused = gpu.to_burn::<1, Int>(&there).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("float32") && refused.to_string().contains("int32"), "{refused}");
    let refused = gpu.to_burn::<1, burn_tensor::Float>(&there.narrow(0, 1, 3)?).map(|_| ());
    assert!(matches!(refused, Err(BurnError::Misaligned { offset: _, alignment: 2.. })), "{refused:?}");
    let complex = up(Leaf::zeros(&[2], DType::Complex64, gpu.device())?, gpu)?;
    let refused = gpu.to_burn::<1, burn_tensor::Float>(&complex).map(|_| ());
    assert!(matches!(refused, Err(BurnError::NoSuchElements { .. })), "{refused:?}");
    Ok(())
}
