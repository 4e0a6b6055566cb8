//! Memory that is held and filled.

use std::time::{Duration, Instant};

use late_backend::LateHandle;
use transship::{CopyOptions, CopyPolicy, Device, Tensor, start_copy, start_copy_into};
use transship_nixl::{Error, Failed};

use crate::late_devices::{late, stall};
use crate::pair_of;
use crate::support::{LIMIT, Pair};

/// Large ones that are cut, what lies between them, and two whose elements do not lie in one run.
fn cut_and_whole(seed: u8) -> Vec<Tensor> {
    let words = |count: usize| -> Vec<u32> {
        (0..count as u32).map(|word| word.wrapping_mul(2_654_435_761) ^ u32::from(seed)).collect()
    };
    vec![
        Tensor::from_vec(words(3 << 20), &[3, 1 << 10, 1 << 10]).unwrap(),
        Tensor::from(vec![seed; 3]),
        Tensor::from(vec![seed; (5 << 20) + 7]),
        Tensor::from_vec(words(1 << 20), &[1 << 10, 1 << 10]).unwrap().transpose(0, 1).unwrap(),
        Tensor::from(words(2 << 20)).slice(0, 0..2 << 20, 2).unwrap(),
        Tensor::from(Vec::<f64>::new()),
    ]
}

/// Why a receive into `held` fails, whose memory cannot be filled.
fn refused(pair: &Pair, held: Vec<Tensor>) -> Failed<Vec<Tensor>> {
    let sent = pair.sender.start_send(&cut_and_whole(1), &pair.to, LIMIT).unwrap();
    let refused = pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap().wait().unwrap_err();
    sent.wait().unwrap_err();
    refused
}

/// Tensors of the host that a late device was to fill.
fn failed(late: &LateHandle, device: &Device, held: Vec<Tensor>) -> Vec<Tensor> {
    let source = start_copy(held.clone(), device, CopyOptions::default()).unwrap().wait().unwrap();
    let held = held.into_iter().map(|tensor| Tensor::zeros(tensor.shape(), tensor.dtype(), &Device::host()));
    let held: Vec<Tensor> = held.collect::<Result<_, _>>().unwrap();
    stall(late);
    let options = CopyOptions::default().deadline(Duration::from_millis(10));
    let failed = start_copy_into(source, held, options).unwrap().wait().unwrap_err();
    late.release();
    let held = failed.into_both().1.unwrap();
    assert!(held.iter().all(|tensor| tensor.is_ready().is_err() || tensor.numel() == 0));
    held
}

fn assert_is(held: &[Tensor], seed: u8) {
    for (number, (held, expected)) in held.iter().zip(cut_and_whole(seed)).enumerate() {
        assert_eq!((held.shape(), held.strides()), (expected.shape(), expected.strides()), "{number}");
        assert!(held.to_bytes().unwrap() == expected.to_bytes().unwrap(), "{number}: wrong bytes");
    }
}

fn addresses(held: &[Tensor]) -> Vec<Option<u64>> {
    held.iter().map(|tensor| tensor.address().unwrap()).collect()
}

/// Deliberate bugs: parts of a tensor change places, or lie elsewhere; it comes back in another shape; it cannot be cut twice; a tensor with gaps is cut as if it had none.
#[test]
fn large_tensors_are_filled_in_parts_where_they_lie() {
    let pair = pair_of("parts", [32 << 20; 2]);
    let mut held = cut_and_whole(0);
    let before = addresses(&held);
    for seed in 1..4 {
        held = pair.pass(&cut_and_whole(seed), held);
        assert_is(&held, seed);
        assert_eq!(addresses(&held), before);
    }
    assert_eq!(held.remove(0).into_vec::<u32>().unwrap().len(), 3 << 20);
}

/// Deliberate bugs: held memory is lost with a receive that gets no tree, or in another shape where it cannot be cut.
#[test]
fn large_held_memory_comes_back_from_a_receive_that_fails() {
    let pair = pair_of("comes back", [32 << 20; 2]);
    let (held, shared) = (cut_and_whole(0), cut_and_whole(0));
    let clones: Vec<Tensor> = shared.to_vec();
    let before = [addresses(&held), addresses(&shared)];
    let late =
        pair.receiver.start_receive_into(held, &pair.from, Duration::ZERO).unwrap().wait().unwrap_err();
    assert!(matches!(*late.error, Error::TimedOut { .. }), "{late}");
    // What others hold is neither written nor cut.
    let refused = refused(&pair, shared);
    assert!(refused.error.to_string().contains("shared with another tensor"), "{refused}");
    assert_is(&clones, 0);
    drop(clones);
    for (failed, before) in [late, refused].into_iter().zip(before) {
        let held = failed.value.unwrap();
        assert_eq!(addresses(&held), before);
        assert_is(&pair.pass(&cut_and_whole(2), held), 2);
    }
}

/// Deliberate bugs: an error names a tensor by its number in the copy of a piece; a tensor that was cut is lost with a transfer that ends in the middle.
#[test]
fn held_memory_that_cannot_be_filled_is_named_as_in_the_tree() {
    let pair = pair_of("named", [32 << 20; 2]);
    let held = cut_and_whole(0);
    let (shared, before) = (held[2].clone(), addresses(&held));
    let refused = refused(&pair, held);
    assert!(refused.error.to_string().starts_with("[2] to copy into: "), "{refused}");
    // What was filled in parts before that comes back as it was handed in.
    drop(shared);
    let held = refused.value.unwrap();
    assert_eq!(addresses(&held), before);
    assert_is(&pair.pass(&cut_and_whole(2), held), 2);
}

/// Deliberate bugs: tensors of one memory are filled by several copies, each of which finds that the others hold it; by a copy that comes before their bytes.
#[test]
fn tensors_of_one_memory_are_filled_together() {
    let pair = pair_of("together", [32 << 20; 2]);
    let tree = |seed: u8| -> Vec<Tensor> {
        let mut tree: Vec<Tensor> =
            (0..80_u8).map(|number| Tensor::from(vec![number.wrapping_mul(3) ^ seed; 50_000])).collect();
        tree.push(Tensor::from(vec![seed; 6 << 20]));
        tree
    };
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let mut held = start_copy(tree(0), &Device::host(), options).unwrap().wait().unwrap();
    assert!(held[0].shares_memory_with(&held[79]) && !held[0].shares_memory_with(&held[80]));
    let before = addresses(&held);
    for seed in 1..8 {
        held = pair.pass(&tree(seed), held);
        for (held, expected) in held.iter().zip(tree(seed)) {
            assert!(held.to_bytes().unwrap() == expected.to_bytes().unwrap());
        }
        assert_eq!(addresses(&held), before);
    }
}

/// Deliberate bug: a view without elements is left where it is, and holds the memory that is filled.
#[test]
fn views_without_elements_are_filled_with_their_memory() {
    let pair = pair_of("nothing", [1 << 20; 2]);
    let held = || {
        let whole = Tensor::from(vec![0_u8; 8]);
        let lone = Tensor::from(Vec::<u8>::new());
        vec![
            whole.narrow(0, 0, 4).unwrap(),
            whole.narrow(0, 4, 4).unwrap(),
            whole.narrow(0, 4, 0).unwrap(),
            lone,
        ]
    };
    let tree: Vec<Tensor> = held().iter().map(|one| Tensor::from(vec![6_u8; one.numel()])).collect();
    let held = pair.pass(&tree, held());
    for (held, tree) in held.iter().zip(&tree) {
        assert_eq!(held.to_bytes().unwrap(), tree.to_bytes().unwrap());
    }
    assert!(held[0].shares_memory_with(&held[1]));
    // Nothing arrives at all.
    let nothing = |held: &[Tensor]| held[2..].to_vec();
    assert_eq!(pair.pass(&nothing(&tree), nothing(&held)).len(), 2);
}

/// Deliberate bug: a tensor that is all of its memory is filled apart from an empty view of it.
#[test]
fn a_view_without_elements_and_all_of_its_memory_are_filled_together() {
    let pair = pair_of("all and nothing", [64 << 20; 2]);
    let filler = |byte: u8| Tensor::from(vec![byte; 12 << 20]);
    for bytes in [1000, 9 << 20] {
        for (at, empty_first) in [(0, true), (bytes / 2, true), (bytes, true), (0, false), (bytes, false)] {
            let held = |byte: u8| {
                let whole = Tensor::from(vec![byte; bytes]);
                let empty = whole.narrow(0, at, 0).unwrap();
                let [first, last] = if empty_first { [empty, whole] } else { [whole, empty] };
                vec![first, filler(byte), last]
            };
            for byte in 1..4 {
                let tree: Vec<Tensor> =
                    held(byte).iter().map(|one| Tensor::from(one.to_bytes().unwrap())).collect();
                let filled = pair.pass(&tree, held(0));
                assert!(
                    filled.iter().all(|one| one.as_slice::<u8>().unwrap().iter().all(|found| *found == byte))
                );
                assert!(filled[0].shares_memory_with(&filled[2]));
            }
        }
    }
}

/// Deliberate bug: `run_of` looks at the first tensor alone that lies in the memory of all parts.
#[test]
fn views_without_elements_are_filled_with_their_part_of_a_tensor() {
    let pair = pair_of("neighbours", [64 << 20; 2]);
    let held = |byte: u8, is_cut: bool| {
        let parts = Tensor::from(vec![byte; 3000]).split(0, &[1000; 3]).unwrap();
        let cut = |part: usize, at: usize, bytes: usize| parts[part].narrow(0, at, bytes).unwrap();
        let mut tree: Vec<Tensor> =
            (0..3).flat_map(|part| [0, 500, 1000].map(|at| cut(part, at, 0))).collect();
        let sizes: &[usize] = if is_cut { &[100, 300, 600] } else { &[1000] };
        let mut at = 0;
        for bytes in sizes {
            tree.extend((0..3).rev().map(|part| cut(part, at, *bytes)));
            tree.push(Tensor::from(vec![byte; 5 << 20]));
            at += bytes;
        }
        tree.push(cut(2, 7, 0));
        tree
    };
    for (byte, is_cut) in (1..7).zip([true, false].into_iter().cycle()) {
        let tree = held(byte, is_cut);
        let tree: Vec<Tensor> = tree.iter().map(|one| Tensor::from(one.to_bytes().unwrap())).collect();
        let filled = pair.pass(&tree, held(0, is_cut));
        assert!(filled.iter().all(|one| one.as_slice::<u8>().unwrap().iter().all(|found| *found == byte)));
    }
}

/// Deliberate bugs: memory that a copy has failed to fill is cut, and lost with a receive that fails; what cannot be sent is named by its number in a piece.
#[test]
fn what_a_copy_has_failed_to_fill_is_kept_and_named() {
    let pair = pair_of("failed", [32 << 20; 2]);
    let (late, device) = late("failing");
    let mut held = failed(&late, &device, cut_and_whole(0));
    // The first piece fails, and no part of the others is filled.
    held[0] = Tensor::zeros(held[0].shape(), held[0].dtype(), &Device::host()).unwrap();
    let (shared, before) = (held[0].clone(), addresses(&held));
    let mut held = refused(&pair, held).value.unwrap();
    assert_eq!(addresses(&held), before);
    drop(shared);
    let mut tree = cut_and_whole(1);
    tree[3] = held[3].clone();
    let sent = pair.sender.start_send(&tree, &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap();
    let error = sent.wait().unwrap_err();
    assert!(error.to_string().starts_with("[3] to copy: "), "{error}");
    // It may not have heard of that tree, and would take the next one.
    drop((received, tree));
    // Who carried the copy that was late lets go of the memory in his own time.
    let begun = Instant::now();
    let received = loop {
        let sent = pair.sender.start_send(&cut_and_whole(2), &pair.to, LIMIT).unwrap();
        match pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap().wait() {
            Ok(received) => break received,
            Err(failed) => held = failed.value.unwrap(),
        }
        sent.wait().unwrap_err();
        assert!(begun.elapsed() < LIMIT);
    };
    let bytes = |tensors: &[Tensor]| tensors.iter().map(|one| one.to_bytes().unwrap()).collect::<Vec<_>>();
    assert!(bytes(&received) == bytes(&cut_and_whole(2)));
}
