//! The cases, with the changes to the code that they were seen to fail with.

#[cfg(feature = "fusion")]
mod fusion;

use std::error::Error;
use std::time::Duration;

use burn_tensor::{Bool, Int, Tensor};
use transship::prelude::*;
use transship::{DType, Prefetch, PrefetchOptions, StreamPriority, Tensor as Leaf};
use transship_burn::{Error as BurnError, SharedDevice};

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Its name, what it needs, and what it does.
pub(crate) type Case = (&'static str, Needs, fn(&SharedDevice) -> Outcome);

/// What the device of a case has to be able to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Copies,
    Kernels,
}

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("a_structure_arrives_in_one_copy", Needs::Kernels, a_structure_arrives_in_one_copy),
        (
            "hundreds_of_small_tensors_arrive_in_one_copy",
            Needs::Copies,
            hundreds_of_small_tensors_arrive_in_one_copy,
        ),
        ("strides_are_left_out_on_the_way_up", Needs::Copies, strides_are_left_out_on_the_way_up),
        ("views_there_keep_their_strides", Needs::Kernels, views_there_keep_their_strides),
        (
            "aliases_stay_apart_when_burn_works_in_place",
            Needs::Kernels,
            aliases_stay_apart_when_burn_works_in_place,
        ),
        (
            "memory_used_again_waits_for_the_kernels_before",
            Needs::Kernels,
            memory_used_again_waits_for_the_kernels_before,
        ),
        ("a_structure_becomes_burns_at_once", Needs::Kernels, a_structure_becomes_burns_at_once),
        ("hundreds_of_tensors_become_burns_at_once", Needs::Copies, hundreds_of_tensors_become_burns_at_once),
        #[cfg(feature = "fusion")]
        (
            "a_structure_is_few_operations_of_few_looks",
            Needs::Copies,
            fusion::a_structure_is_few_operations_of_few_looks,
        ),
        (
            "the_same_tensor_twice_in_a_structure_stays_apart",
            Needs::Kernels,
            the_same_tensor_twice_in_a_structure_stays_apart,
        ),
        ("a_structure_amid_queued_work", Needs::Kernels, a_structure_amid_queued_work),
        (
            "other_threads_use_a_structure_that_is_queued",
            Needs::Kernels,
            other_threads_use_a_structure_that_is_queued,
        ),
        ("memory_stays_while_only_burn_has_it", Needs::Copies, memory_stays_while_only_burn_has_it),
        ("kernels_come_behind_a_copy_under_way", Needs::Kernels, kernels_come_behind_a_copy_under_way),
        ("a_result_shown_late_is_waited_for", Needs::Copies, a_result_shown_late_is_waited_for),
        ("other_threads_wait_for_a_result_too", Needs::Copies, other_threads_wait_for_a_result_too),
        ("what_burn_reads_is_not_written", Needs::Copies, what_burn_reads_is_not_written),
        (
            "what_burn_has_recorded_reads_what_was_there",
            Needs::Kernels,
            what_burn_has_recorded_reads_what_was_there,
        ),
        (
            "batches_in_memory_that_is_used_again_stay_apart",
            Needs::Kernels,
            batches_in_memory_that_is_used_again_stay_apart,
        ),
        ("memory_that_burn_was_shown_goes", Needs::Copies, memory_that_burn_was_shown_goes),
        ("what_burn_holds_comes_back", Needs::Copies, what_burn_holds_comes_back),
        (
            "what_another_thread_works_on_in_place_comes_back",
            Needs::Kernels,
            what_another_thread_works_on_in_place_comes_back,
        ),
        ("results_come_back_in_one_structure", Needs::Kernels, results_come_back_in_one_structure),
        ("a_structure_of_burns_tensors_comes_back", Needs::Copies, a_structure_of_burns_tensors_comes_back),
        ("hundreds_of_burns_tensors_come_back", Needs::Copies, hundreds_of_burns_tensors_come_back),
        (
            "the_same_tensor_of_burns_comes_back_twice",
            Needs::Copies,
            the_same_tensor_of_burns_comes_back_twice,
        ),
        ("what_burn_has_dropped_is_still_copied", Needs::Kernels, what_burn_has_dropped_is_still_copied),
        ("what_does_not_fit_is_an_error", Needs::Copies, what_does_not_fit_is_an_error),
        (
            "what_from_burn_gave_is_copied_before_it_is_shown",
            Needs::Copies,
            what_from_burn_gave_is_copied_before_it_is_shown,
        ),
        (
            "what_does_not_fit_in_a_structure_says_where",
            Needs::Copies,
            what_does_not_fit_in_a_structure_says_where,
        ),
    ]
}

fn up<S: TensorTree>(value: S, gpu: &SharedDevice) -> Result<S, transship::Error> {
    Ok(transship::start_copy(value, gpu.device(), gpu.copy_options())?.wait()?)
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
    // First: with `fusion` it is computed when it is read.
    assert_eq!((one * 2.0).into_data().try_to_vec::<f32>()?[1], numbers(1000, 5)[1] * 2.0);
    assert_eq!(other.into_data().try_to_vec::<f32>()?, numbers(1000, 5));
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

/// Tensors of several ranks and kinds, without elements or dimensions, transposed, and places without one. Fails where `fill` goes
/// through an array from its end, and with row-major strides in `dimensions`.
fn a_structure_becomes_burns_at_once(gpu: &SharedDevice) -> Outcome {
    type Wanted = (Tensor<2>, [Tensor<1, Int>; 2], Vec<Option<Tensor<3>>>, (Tensor<1, Bool>, Tensor<1>));
    let labels = |first: i32| Leaf::from(vec![first, 2, 1]);
    let leaves = (
        Leaf::from_vec(Vec::<f32>::new(), &[0, 3])?,
        [labels(3), labels(4)],
        vec![Some(Leaf::from_vec(numbers(24, 1), &[2, 3, 4])?), None],
        (Leaf::from(vec![1_u32, 0, 1]), Leaf::from_vec(vec![0.25_f32], &[])?),
    );
    let mut leaves = up(leaves, gpu)?;
    leaves.2[0] = leaves.2[0].as_ref().map(|leaf| leaf.transpose(0, 2)).transpose()?;
    let (nothing, [three, four], images, (mask, scale)): Wanted = gpu.to_burn_all(&leaves)?;
    assert_eq!(nothing.dims(), [0, 3]);
    assert_eq!(three.into_data().try_to_vec::<i32>()?, [3, 2, 1]);
    assert_eq!(four.into_data().try_to_vec::<i32>()?, [4, 2, 1]);
    let [Some(images), None] = &images[..] else { return Err("one, and none".into()) };
    assert_eq!(images.dims(), [4, 3, 2]);
    let expected: Vec<_> =
        (0..24).map(|at| numbers(24, 1)[at % 2 * 12 + at / 2 % 3 * 4 + at / 6] + 1.0).collect();
    assert_eq!((images.clone() + 1.0).into_data().try_to_vec::<f32>()?, expected);
    assert_eq!(mask.int().into_data().iter::<i32>().collect::<Vec<_>>(), [1, 0, 1]);
    assert_eq!(scale.into_scalar::<f32>(), 0.25);
    assert!(gpu.to_burn_all::<Vec<Tensor<1>>>(&Vec::new())?.is_empty());
    Ok(())
}

/// More than one operation of burn's shows. Fails where the first of those is all.
fn hundreds_of_tensors_become_burns_at_once(gpu: &SharedDevice) -> Outcome {
    let leaves: Vec<_> = (0..528).map(|number| Leaf::from(numbers(1 + number % 97, number))).collect();
    let mut tensors: Vec<Tensor<1>> = gpu.to_burn_all(&up(leaves, gpu)?)?;
    // Dropped before anything asked for it.
    drop(tensors.drain(100..200));
    let there = (0..100).chain(200..528);
    for (number, tensor) in there.zip(tensors) {
        assert_eq!(tensor.into_data().try_to_vec::<f32>()?, numbers(1 + number % 97, number), "{number}");
    }
    Ok(())
}

/// burn works in place on neither. Fails where both are one tensor to burn, by one id.
fn the_same_tensor_twice_in_a_structure_stays_apart(gpu: &SharedDevice) -> Outcome {
    let leaf = up(Leaf::from(numbers(1000, 5)), gpu)?;
    let [one, other]: [Tensor<1>; 2] = gpu.to_burn_all(&[leaf.clone(), leaf])?;
    // First: with `fusion` it is computed when it is read.
    assert_eq!((one * 2.0).into_data().try_to_vec::<f32>()?[1], numbers(1000, 5)[1] * 2.0);
    assert_eq!(other.into_data().try_to_vec::<f32>()?, numbers(1000, 5));
    Ok(())
}

/// With `fusion` what burn has queued before and behind may be one kernel. Fails where a tensor's shape is the one that the operation says.
fn a_structure_amid_queued_work(gpu: &SharedDevice) -> Outcome {
    let [first, second] = [numbers(60, 1), numbers(60, 2)];
    let [made_of_first, made_of_second] =
        [Leaf::from_vec(first.clone(), &[6, 10])?, Leaf::from_vec(second.clone(), &[10, 6])?];
    let (one, other) = up((made_of_first, made_of_second), gpu)?;
    for round in 0..3 {
        let queued = Tensor::<2>::ones([6, 10], gpu.burn()) * 3.0 + round;
        let (one, other, dropped): (Tensor<2>, Tensor<2>, Tensor<2>) =
            gpu.to_burn_all(&(one.clone(), other.transpose(0, 1)?, one.clone()))?;
        drop(dropped);
        let sum = one * 2.0 + queued + other;
        let expected: Vec<_> =
            (0..60).map(|at| first[at] * 2.0 + 3.0 + round as f32 + second[at % 10 * 6 + at / 10]).collect();
        assert_eq!(sum.into_data().try_to_vec::<f32>()?, expected, "round {round}");
    }
    Ok(())
}

/// They read it, and drop what they do not read, while the thread that has asked for it computes.
fn other_threads_use_a_structure_that_is_queued(gpu: &SharedDevice) -> Outcome {
    for seed in 0..5 {
        let leaves: Vec<_> = (0..70).map(|number| Leaf::from(numbers(500, seed + number))).collect();
        let leaves = up(leaves, gpu)?;
        let queued = Tensor::<1>::ones([500], gpu.burn()) * 3.0;
        let mut tensors: Vec<Tensor<1>> = gpu.to_burn_all(&leaves)?;
        drop(leaves);
        let others: Vec<_> = (0..2)
            .map(|half| {
                let tensors = tensors.split_off(35 - 35 * half);
                std::thread::spawn(move || {
                    let read = |tensor: Tensor<1>| (tensor + 1.0).into_data().try_to_vec::<f32>();
                    tensors.into_iter().step_by(2).map(read).collect::<Result<Vec<_>, _>>()
                })
            })
            .collect();
        let sum = queued + 1.0;
        for (half, other) in others.into_iter().enumerate() {
            let first = 35 - 35 * half;
            for (read, number) in
                other.join().map_err(|_| "it has panicked")??.iter().zip((first..).step_by(2))
            {
                let expected: Vec<_> = numbers(500, seed + number).iter().map(|value| value + 1.0).collect();
                assert_eq!(*read, expected, "{number}");
            }
        }
        assert_eq!(sum.into_data().try_to_vec::<f32>()?, [4.0; 500]);
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
        let copy =
            transship::start_copy(leaf, gpu.device(), gpu.copy_options()).map_err(transship::Error::from)?;
        let leaf = copy.wait_on(&stream).map_err(transship::Error::from)?;
        let tensor: Tensor<1> = gpu.to_burn(&leaf)?;
        assert_eq!((tensor + 1.0).into_data().try_to_vec::<f32>()?[777], numbers(1 << 20, seed)[777] + 1.0);
    }
    Ok(())
}

/// The stream that reads `early` waits for all that was allocated before. Fails on CUDA where a chunk keeps the handle that it was
/// allocated with (`rename`).
fn a_result_shown_late_is_waited_for(gpu: &SharedDevice) -> Outcome {
    let stream = gpu.device().create_stream(StreamPriority::Normal)?;
    for seed in 0..5 {
        let (leaf, options) = (Leaf::from(numbers(1 << 20, seed)), gpu.copy_options().stream(&stream));
        let late = transship::start_copy(leaf, gpu.device(), options).and_then(|copy| copy.wait_on(&stream));
        let late = late.map_err(transship::Error::from)?;
        let early = up(Leaf::from(numbers(100, seed)), gpu)?;
        let early: Tensor<1> = gpu.to_burn(&early)?;
        assert_eq!(early.into_data().try_to_vec::<f32>()?, numbers(100, seed));
        let late: Tensor<1> = gpu.to_burn(&late)?;
        assert!(late.into_data().try_to_vec::<f32>()? == numbers(1 << 20, seed), "seed {seed}");
    }
    Ok(())
}

/// Fails on CUDA where only the stream of the thread that calls `to_burn` waits.
fn other_threads_wait_for_a_result_too(gpu: &SharedDevice) -> Outcome {
    let stream = gpu.device().create_stream(StreamPriority::Normal)?;
    for seed in 0..5 {
        let copy =
            transship::start_copy(Leaf::from(numbers(1 << 20, seed)), gpu.device(), gpu.copy_options());
        let leaf = copy.and_then(|copy| copy.wait_on(&stream)).map_err(transship::Error::from)?;
        let tensor: Tensor<1> = gpu.to_burn(&leaf)?;
        let read = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>();
        let others = [0, 1].map(|_| {
            std::thread::spawn({
                let tensor = tensor.clone();
                move || read(tensor)
            })
        });
        for other in others {
            assert!(other.join().unwrap()? == numbers(1 << 20, seed), "seed {seed}");
        }
    }
    Ok(())
}

/// Deliberate bug: no clone in `Shown`. On wgpu burn's kernels are recorded and submitted later, on CUDA nobody knows when they have read it.
fn what_burn_reads_is_not_written(gpu: &SharedDevice) -> Outcome {
    let into = up(Leaf::from(numbers(1000, 1)), gpu)?;
    let shown: Tensor<1> = gpu.to_burn(&into)?;
    let copy_into =
        |into| transship::start_copy_into(Leaf::from(numbers(1000, 2)), into, CopyOptions::default());
    let Err(refused) = copy_into(into) else { return Err("memory that burn may read was written".into()) };
    let into = refused.into_both().1.ok_or("the memory is gone")?;
    assert_eq!(shown.into_data().try_to_vec::<f32>()?, numbers(1000, 1));

    // burn has let go of it, which an allocation finds out, soon after its last read has ended.
    let mut held = Some(into);
    for _ in 0..1000 {
        drop(up(Leaf::from(numbers(10, 3)), gpu)?);
        let into = held.take().ok_or("the memory is gone")?;
        let refused = match copy_into(into) {
            Ok(copy) => {
                let filled = copy.wait().map_err(transship::Error::from)?;
                let shown: Tensor<1> = gpu.to_burn(&filled)?;
                assert_eq!(shown.into_data().try_to_vec::<f32>()?, numbers(1000, 2));
                return Ok(());
            }
            Err(refused) => refused,
        };
        held = refused.into_both().1;
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("memory that burn has let go of is not written".into())
}

/// Deliberate bugs: no clone in `Shown`; on wgpu, a look without `submit_all` before. What burn has dropped is read by kernels that
/// are recorded, and not submitted.
fn what_burn_has_recorded_reads_what_was_there(gpu: &SharedDevice) -> Outcome {
    let mut written = 0;
    for round in 0..21 {
        let (into, other) =
            (up(Leaf::from(vec![1.0_f32; 100]), gpu)?, up(Leaf::from(vec![5.0_f32; 10]), gpu)?);
        let shown: Tensor<1> = gpu.to_burn(&into)?;
        let own = shown.clone() * 2.0;
        drop(shown);
        // The second and third find out that burn has let go of it.
        match round % 3 {
            0 => {}
            1 => drop(up(Leaf::from(vec![5.0_f32; 10]), gpu)?),
            _ => drop(gpu.to_burn::<1, burn_tensor::Float>(&other)?),
        }
        let next = Leaf::from(vec![9.0_f32; 100]);
        if let Ok(copy) = transship::start_copy_into(next, into, CopyOptions::default()) {
            drop(copy.wait().map_err(transship::Error::from)?);
            written += 1;
        }
        assert_eq!(own.into_data().try_to_vec::<f32>()?, [2.0; 100], "round {round}");
    }
    // With `fusion` burn still has what it has queued; on CUDA the kernel may still run.
    let is_sure = gpu.device().id().driver() == "wgpu" && cfg!(not(feature = "fusion"));
    assert!(!is_sure || written == 14, "{written}");
    Ok(())
}

/// Deliberate bug: no clone in `Shown`. Each step reads its batch alone, and what burn is done with is used again.
fn batches_in_memory_that_is_used_again_stay_apart(gpu: &SharedDevice) -> Outcome {
    for size in [64, 3000] {
        let source = (0..40_u32).map(|number| vec![Leaf::from(vec![number as f32; size])]);
        let options = PrefetchOptions::default().copy(gpu.copy_options());
        let mut batches = source.prefetch(gpu.device(), options).reuse();
        let mut seen = Vec::new();
        for batch in &mut batches {
            let batch = batch.map_err(|error| error.to_string())?;
            let batch: Tensor<1> = gpu.to_burn(&batch[0])?;
            seen.push((batch.clone().sum(), batch * 1.0));
        }
        for (number, (sum, own)) in seen.into_iter().enumerate() {
            assert_eq!(sum.into_scalar::<f32>(), (number * size) as f32, "batch {number} of {size}");
            assert_eq!(own.into_data().try_to_vec::<f32>()?, vec![number as f32; size], "batch {number}");
        }
        // With `fusion` burn still has what it has queued; on CUDA kernels may still run.
        let is_sure = gpu.device().id().driver() == "wgpu" && cfg!(not(feature = "fusion"));
        assert!(!is_sure || batches.stats().reused > 0, "{}", batches.stats());
    }
    Ok(())
}

/// Deliberate bug: nobody looks in `allocate` and `to_burn`.
fn memory_that_burn_was_shown_goes(gpu: &SharedDevice) -> Outcome {
    let batch = |number| -> Result<u64, Box<dyn Error>> {
        let leaf = up(Leaf::from(numbers(50_000, number)), gpu)?;
        let shown: Tensor<1> = gpu.to_burn(&leaf)?;
        assert_eq!(shown.into_data().try_to_vec::<f32>()?[1], numbers(2, number)[1]);
        Ok(gpu.device().counters().device_bytes)
    };
    let early = (0..10).map(batch).collect::<Result<Vec<_>, _>>()?.into_iter().max();
    let late = (10..200).map(batch).collect::<Result<Vec<_>, _>>()?.into_iter().max();
    let (early, late) = early.zip(late).ok_or("no batches")?;
    assert!(late <= early + 5 * 200_000, "{early} bytes, then {late}");
    Ok(())
}

/// Without a kernel between. Fails without the stream that `lend` puts the copy behind.
fn what_burn_holds_comes_back(gpu: &SharedDevice) -> Outcome {
    for seed in 0..5 {
        let made = |seed| {
            Tensor::<1>::from_data(burn_tensor::TensorData::new(numbers(70_000, seed), [70_000]), gpu.burn())
        };
        let [first, second] = [gpu.from_burn(made(seed))?, gpu.from_burn(made(seed + 1))?];
        let (first, second) = down((first, second))?;
        assert!(first.to_vec::<f32>()? == numbers(70_000, seed), "seed {seed}");
        assert!(second.to_vec::<f32>()? == numbers(70_000, seed + 1), "seed {seed}");
    }
    Ok(())
}

/// This thread's stream has waited for the other's before that works in place. Fails on CUDA without the wait for `made_on` in `lend`.
fn what_another_thread_works_on_in_place_comes_back(gpu: &SharedDevice) -> Outcome {
    const ROUNDS: usize = 100;
    let (give, take) = std::sync::mpsc::channel();
    let (seen, go_on) = std::sync::mpsc::channel();
    let device = gpu.burn().clone();
    let other = std::thread::spawn(move || {
        let mut sum = Tensor::<1>::zeros([1 << 20], &device) + 1.0;
        give.send(Tensor::<1>::ones([10], &device)).unwrap();
        go_on.recv().unwrap();
        for _ in 0..ROUNDS {
            sum = sum + 1.0;
        }
        give.send(sum).unwrap();
    });
    assert_eq!(take.recv()?.into_data().try_to_vec::<f32>()?, [1.0; 10]);
    seen.send(())?;
    let here = Tensor::<1>::ones([10], gpu.burn()) * 7.0;
    let (here, sum) = down(gpu.from_burn((here, take.recv()?))?)?;
    assert!(sum.to_vec::<f32>()?.iter().all(|value| *value == 1.0 + ROUNDS as f32));
    assert_eq!(here.to_vec::<f32>()?, [7.0; 10]);
    other.join().map_err(|_| "the other thread has panicked")?;
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

/// Tensors of several ranks and kinds, without elements, transposed, and places without one. Fails where those without elements come last, or
/// `put` goes through the second part of a tuple first.
fn a_structure_of_burns_tensors_comes_back(gpu: &SharedDevice) -> Outcome {
    let matrix = Tensor::<1>::from_data(burn_tensor::TensorData::new(numbers(60, 1), [60]), gpu.burn());
    let matrix = matrix.reshape([6, 10]);
    let labels = |first: i32| Tensor::<1, Int>::from_ints([first, 2, 1], gpu.burn());
    let mask = Tensor::<1, Bool>::from_bool([true, false, true], gpu.burn());
    let nothing = Tensor::<2>::from_data(burn_tensor::TensorData::new(numbers(0, 1), [0, 3]), gpu.burn());
    let tree = (nothing, [labels(3), labels(4)], vec![Some(matrix.transpose()), None], (mask,));
    let (nothing, labels, matrix, (mask,)) = down(gpu.from_burn(tree)?)?;
    assert_eq!((nothing.shape(), nothing.dtype()), (&[0, 3][..], DType::F32));
    assert_eq!(labels[0].to_vec::<i32>()?, [3, 2, 1]);
    assert_eq!(labels[1].to_vec::<i32>()?, [4, 2, 1]);
    let [Some(matrix), None] = &matrix[..] else { return Err("one, and none".into()) };
    let expected: Vec<_> =
        (0..10).flat_map(|column| (0..6).map(move |row| numbers(60, 1)[row * 10 + column])).collect();
    assert_eq!((matrix.shape(), matrix.to_vec::<f32>()?), (&[10, 6][..], expected));
    let mask: Vec<_> = match mask.dtype() {
        DType::U8 => mask.to_vec::<u8>()?.into_iter().map(u32::from).collect(),
        _ => mask.to_vec::<u32>()?,
    };
    assert_eq!(mask, [1, 0, 1]);
    assert!(gpu.from_burn(Vec::<Tensor<1>>::new())?.is_empty());
    Ok(())
}

/// Many lie in one allocation of cubecl's. Fails where pieces begin at the start of what they lie in.
fn hundreds_of_burns_tensors_come_back(gpu: &SharedDevice) -> Outcome {
    let values = |number| numbers(1 + number % 97, number);
    let made = |number| {
        let values = values(number);
        let shape = [values.len()];
        Tensor::<1>::from_data(burn_tensor::TensorData::new(values, shape), gpu.burn())
    };
    let tensors: Vec<_> = (0..528).map(made).collect();
    let lent = gpu.from_burn(tensors)?;
    let before = gpu.device().counters();
    let there = down(lent)?;
    // Without a kernel, as on a CPU's adapter, each is copied by itself.
    assert!(gpu.device().id().driver() != "cuda" || gpu.device().counters().copies - before.copies == 1);
    for (number, tensor) in there.iter().enumerate() {
        assert_eq!(tensor.to_vec::<f32>()?, values(number), "{number}");
    }
    Ok(())
}

fn the_same_tensor_of_burns_comes_back_twice(gpu: &SharedDevice) -> Outcome {
    let made = Tensor::<1>::from_data(burn_tensor::TensorData::new(numbers(1000, 3), [1000]), gpu.burn());
    let [first, second] = down(gpu.from_burn([made.clone(), made])?)?;
    assert_eq!(first.to_vec::<f32>()?, numbers(1000, 3));
    assert_eq!(second.to_vec::<f32>()?, numbers(1000, 3));
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
    // As it says.
    let options = gpu.copy_options().bindable(true).policy(transship::CopyPolicy::Always);
    let copied = transship::start_copy(there.narrow(0, 1, 3)?, gpu.device(), options);
    let copied = copied.and_then(|copy| copy.wait()).map_err(transship::Error::from)?;
    assert_eq!(gpu.to_burn::<1, burn_tensor::Float>(&copied)?.into_data().try_to_vec::<f32>()?, [1.0; 3]);
    let complex = up(Leaf::zeros(&[2], DType::Complex64, &transship::Device::host())?, gpu)?;
    let refused = gpu.to_burn::<1, burn_tensor::Float>(&complex).map(|_| ());
    assert!(matches!(refused, Err(BurnError::NoSuchElements { .. })), "{refused:?}");
    Ok(())
}

/// Fails where the error says no more than to copy to the device: what is there already stays where it is.
fn what_from_burn_gave_is_copied_before_it_is_shown(gpu: &SharedDevice) -> Outcome {
    let there = up(Leaf::from(vec![1.0_f32, 2.0]), gpu)?;
    let lent = gpu.from_burn(gpu.to_burn::<1, burn_tensor::Float>(&there)?)?;
    let refused = gpu.to_burn::<1, burn_tensor::Float>(&lent).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("copy_options(), and CopyPolicy::Always"), "{refused}");
    let options = gpu.copy_options().policy(transship::CopyPolicy::Always);
    let copied = transship::start_copy(lent, gpu.device(), options).and_then(|copy| copy.wait());
    let shown = gpu.to_burn::<1, burn_tensor::Float>(&copied.map_err(transship::Error::from)?)?;
    assert_eq!(shown.into_data().try_to_vec::<f32>()?, [1.0, 2.0]);
    Ok(())
}

/// Fails where the tensors are not numbered.
fn what_does_not_fit_in_a_structure_says_where(gpu: &SharedDevice) -> Outcome {
    let host = Leaf::from(vec![1.0_f32; 100]);
    let there = up(host.clone(), gpu)?;
    let path_of = |refused: BurnError| match refused {
        BurnError::InStructure { path, error } => Ok((path, *error)),
        other => Err(other),
    };
    let leaves = (there.clone(), vec![Some(there.clone()), None, Some(host)]);
    let refused = gpu.to_burn_all::<(Tensor<1>, Vec<Option<Tensor<1>>>)>(&leaves).map(|_| ());
    let refused = refused.unwrap_err();
    // Who prints all sources prints it once.
    assert!(refused.source().is_none());
    let (path, error) = path_of(refused)?;
    assert!(path == ".1[2]" && matches!(error, BurnError::NotShared { .. }), "{path}: {error}");
    let refused = gpu.to_burn_all::<[Tensor<1, Int>; 1]>(&[there]).map(|_| ());
    let (path, error) = path_of(refused.unwrap_err())?;
    assert!(path == "[0]" && matches!(error, BurnError::NoSuchElements { .. }), "{path}: {error}");
    Ok(())
}
