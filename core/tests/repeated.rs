//! Structures that look alike, put and packed again and again: what is remembered of the last one is never taken for one that differs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use support::{bytes_of, late};
use transship_core::{
    Alignment, CopyOptions, DType, Device, Error, Manifest, Paths, RepeatedPacking, RepeatedPut, Result,
    Step, Stop, Tensor, TensorTree, Visitor, start_copy,
};

const ALIGNMENT: Alignment = Alignment::ONE;

fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::empty(shape, dtype, &Device::host()).unwrap()
}

/// Twelve tensors of as many bytes each as their number says, in another order than that of their paths.
fn list() -> Vec<Tensor> {
    (1..=12).map(|size| zeros(DType::U8, &[size])).collect()
}

fn put_of<S: TensorTree>(tree: &S) -> RepeatedPut {
    RepeatedPut::new(Manifest::packed(tree, ALIGNMENT).unwrap())
}

/// Where the path of this tensor is among those of all twelve.
fn rank(number: u8) -> usize {
    let mut paths: Vec<String> = (0..12_u8).map(|number| format!("[{number}]")).collect();
    paths.sort();
    paths.iter().position(|path| *path == format!("[{number}]")).unwrap()
}

/// Puts `first` + its number into each tensor, and says how many were made.
fn put<S: TensorTree>(put: &RepeatedPut, tree: &mut S, first: u8) -> (Result<()>, usize) {
    let mut made = 0;
    let result = put.put_tensors(tree, |leaf| {
        made += 1;
        let number: u8 = leaf.path().trim_matches(['[', ']']).parse().unwrap();
        assert_eq!(leaf.number(), rank(number));
        let value = first + number;
        Tensor::from_vec(vec![value; leaf.layout().numel()], leaf.layout().shape())
    });
    (result, made)
}

#[track_caller]
fn differs(result: (Result<()>, usize), expected: &str) {
    match result {
        (Err(Error::ManifestMismatch { path, .. }), _) => assert_eq!(path, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tensors_are_put_in_their_places_each_time() {
    let (mut tree, known) = (list(), put_of(&list()));
    for first in [10, 20, 30] {
        let (result, made) = put(&known, &mut tree, first);
        result.unwrap();
        assert_eq!(made, 12);
        for (number, tensor) in tree.iter().enumerate() {
            assert_eq!(tensor.as_slice::<u8>().unwrap(), vec![first + number as u8; number + 1]);
        }
    }
}

/// catches: 676-any-path-is-known, 677-any-shape-is-known, 678-fewer-tensors-are-known
#[test]
fn what_differs_from_the_last_one_is_an_error_as_it_is_the_first_time() {
    for times in 0..3 {
        let known = put_of(&list());
        let like = || {
            for _ in 0..times {
                put(&known, &mut list(), 1).0.unwrap();
            }
        };
        // Another shape, type and path; fewer and more.
        like();
        let mut other = list();
        other[3] = zeros(DType::U8, &[2, 2]);
        differs(put(&known, &mut other, 1), "[3]");
        like();
        let mut other = list();
        other[7] = zeros(DType::I8, &[8]);
        differs(put(&known, &mut other, 1), "[7]");
        like();
        differs(put(&known, &mut list()[..11].to_vec(), 1), "[11]");
        like();
        let mut other = list();
        other.push(zeros(DType::U8, &[1]));
        differs(put(&known, &mut other, 1), "[12]");
        like();
        let mut other: BTreeMap<u8, Tensor> = (0..).zip(list()).collect();
        put(&known, &mut other, 1).0.unwrap();
        let last = other.remove(&11).unwrap();
        other.insert(12, last);
        differs(put(&known, &mut other, 1), "[11]");
        // And what is right is right behind all of these.
        put(&known, &mut list(), 1).0.unwrap();
    }
}

#[test]
fn either_all_are_put_or_none_each_time() {
    let known = put_of(&list());
    for _ in 0..3 {
        let mut tree = list();
        let count = Cell::new(0);
        let result = known.put_tensors(&mut tree, |leaf| {
            count.set(count.get() + 1);
            if count.get() == 12 { Err(Error::NotReady) } else { Ok(zeros(DType::U8, leaf.layout().shape())) }
        });
        assert!(matches!(result, Err(Error::NotReady)));
        let wrong = known.put_tensors(&mut tree, |_| Ok(Tensor::scalar(1_u8)));
        assert!(matches!(wrong, Err(Error::ManifestMismatch { path, .. }) if path == "[0]"));
        assert!(tree.iter().all(|tensor| tensor.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 0)));
        put(&known, &mut tree, 1).0.unwrap();
    }
}

/// A map shows its tensors in another order each time that it is made.
#[test]
fn maps_in_any_order_are_the_same_structure() {
    let map = || -> HashMap<u8, Tensor> { (0..).zip(list()).collect() };
    let (known, packing) =
        (put_of(&map()), RepeatedPacking::new(Manifest::packed(&map(), ALIGNMENT).unwrap(), ALIGNMENT));
    for first in 1..20 {
        let mut tree = map();
        put(&known, &mut tree, first).0.unwrap();
        for (number, tensor) in &tree {
            assert_eq!(tensor.as_slice::<u8>().unwrap(), vec![first + number; usize::from(*number) + 1]);
        }
        let expected = Manifest::packed_with_tensors(&tree, ALIGNMENT).unwrap().1;
        same(&packing.tensors(&tree).unwrap(), &expected);
    }
}

/// A structure that is put into while it is shown in another order than it is visited in.
#[test]
fn tensors_that_are_visited_in_another_order_get_to_their_places_each_time() {
    struct Turned(Vec<Tensor>);
    impl TensorTree for Turned {
        fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
            self.0.iter_mut().rev().try_for_each(|tensor| tensor.visit(visitor))
        }
        fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
            self.0.iter().enumerate().try_for_each(|(number, tensor)| paths.part(Step::Index(number), tensor))
        }
    }
    let (mut tree, known) = (Turned(list()), put_of(&list()));
    for first in [1, 2, 3] {
        put(&known, &mut tree, first).0.unwrap();
        for (number, tensor) in tree.0.iter().enumerate() {
            assert_eq!(tensor.as_slice::<u8>().unwrap(), vec![first + number as u8; number + 1]);
        }
    }
}

#[track_caller]
fn same(one: &[(usize, Tensor)], other: &[(usize, Tensor)]) {
    let places = |tensors: &[(usize, Tensor)]| -> Vec<_> {
        tensors.iter().map(|(offset, tensor)| (*offset, tensor.as_bytes().unwrap().to_vec())).collect()
    };
    assert_eq!(places(one), places(other));
}

/// catches: 679-any-sharing-is-known
#[test]
fn what_is_packed_again_is_packed_as_it_is_the_first_time() {
    let tensor = |value: u8| Tensor::from(vec![value; 5]);
    let apart =
        |value| vec![tensor(value), Tensor::from(Vec::<u8>::new()), tensor(value + 1), tensor(value + 2)];
    let tied = |value| {
        let first = tensor(value);
        vec![first.clone(), Tensor::from(Vec::<u8>::new()), tensor(value + 1), first]
    };
    let crossed = |value| {
        let first = tensor(value);
        vec![first.clone(), Tensor::from(Vec::<u8>::new()), first, tensor(value + 1)]
    };
    let kinds: [&dyn Fn(u8) -> Vec<Tensor>; 3] = [&apart, &tied, &crossed];
    for (number, kind) in kinds.iter().enumerate() {
        let packing = RepeatedPacking::new(Manifest::packed(&kind(0), ALIGNMENT).unwrap(), ALIGNMENT);
        for value in 1..4 {
            let tree = kind(value);
            let _held = tree.clone();
            let expected = Manifest::packed_with_tensors(&tree, ALIGNMENT).unwrap().1;
            same(&packing.tensors(&tree).unwrap(), &expected);
            for other in kinds.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, kind)| kind)
            {
                assert!(matches!(packing.tensors(&other(value)), Err(Error::ManifestMismatch { .. })));
            }
            assert!(packing.tensors(&kind(value)[..3].to_vec()).is_err());
        }
    }
}

/// catches: 616-whatever-comes-is-the-same
#[test]
fn what_is_known_of_the_last_one_is_given_for_what_is_like_it_alone() {
    let tensor = |value: u8, size: usize| Tensor::from(vec![value; size]);
    let tree = |value| BTreeMap::from([("a", tensor(value, 5)), ("b", tensor(value, 7))]);
    let (packing, first) = RepeatedPacking::of(&tree(1), ALIGNMENT).unwrap();
    same(&first, &Manifest::packed_with_tensors(&tree(1), ALIGNMENT).unwrap().1);
    packing.manifest().check_same(&Manifest::packed(&tree(1), ALIGNMENT).unwrap()).unwrap();
    for value in 2..5 {
        let known = packing.tensors_of_same(&tree(value)).unwrap().unwrap();
        same(&known, &Manifest::packed_with_tensors(&tree(value), ALIGNMENT).unwrap().1);
    }
    let shared = tensor(1, 5);
    let others = [
        BTreeMap::from([("a", tensor(1, 5))]),
        BTreeMap::from([("a", tensor(1, 5)), ("b", tensor(1, 7)), ("c", tensor(1, 1))]),
        BTreeMap::from([("a", tensor(1, 5)), ("c", tensor(1, 7))]),
        BTreeMap::from([("a", tensor(1, 5)), ("b", tensor(1, 8))]),
        BTreeMap::from([("a", tensor(1, 5)), ("b", Tensor::from(vec![1_i8; 7]))]),
        BTreeMap::from([("a", tensor(1, 5)), ("b", tensor(1, 7).reshape(&[1, 7]).unwrap())]),
        BTreeMap::new(),
    ];
    for other in others {
        assert!(packing.tensors_of_same(&other).unwrap().is_none(), "{:?}", other.keys());
        assert!(packing.tensors_of_same(&tree(9)).unwrap().is_some(), "it is not forgotten");
    }
    // What is shared makes another one of it, either way.
    let (apart, tied) = ([tensor(1, 5), tensor(2, 5)], [shared.clone(), shared]);
    let packing = RepeatedPacking::of(&apart, ALIGNMENT).unwrap().0;
    assert!(packing.tensors_of_same(&tied).unwrap().is_none());
    let packing = RepeatedPacking::of(&tied, ALIGNMENT).unwrap().0;
    assert!(packing.tensors_of_same(&apart).unwrap().is_none());
    assert_eq!(packing.tensors_of_same(&tied).unwrap().unwrap().len(), 1);
}

#[test]
fn parts_of_one_piece_of_memory_are_told_apart() {
    let whole = Tensor::from((0..30_u8).collect::<Vec<_>>());
    let parts = |starts: [usize; 3]| starts.map(|start| whole.narrow(0, start, 10).unwrap()).to_vec();
    let packing = RepeatedPacking::new(Manifest::packed(&parts([0, 10, 20]), ALIGNMENT).unwrap(), ALIGNMENT);
    for starts in [[0, 10, 20], [20, 0, 10], [0, 10, 20], [1, 2, 3]] {
        let expected = Manifest::packed_with_tensors(&parts(starts), ALIGNMENT).unwrap().1;
        same(&packing.tensors(&parts(starts)).unwrap(), &expected);
    }
    assert!(packing.tensors(&parts([0, 0, 10])).is_err());
    // Strides make no other tensor of it.
    let square = Tensor::from_vec((0..9_u8).collect::<Vec<_>>(), &[3, 3]).unwrap();
    let packing =
        RepeatedPacking::new(Manifest::packed(&vec![square.clone()], ALIGNMENT).unwrap(), ALIGNMENT);
    for tree in [vec![square.clone()], vec![square.transpose(0, 1).unwrap()], vec![square]] {
        let (manifest, tensors) = Manifest::packed_with_tensors(&tree, ALIGNMENT).unwrap();
        packing.manifest().check_same(&manifest).unwrap();
        let again = packing.tensors(&tree).unwrap();
        assert_eq!(again[0].1.to_vec::<u8>().unwrap(), tensors[0].1.to_vec::<u8>().unwrap());
    }
}

/// Strides make no other structure of it, and are not those of what is put there.
///
/// catches: 683-strides-of-the-last-structure
#[test]
fn what_is_made_has_the_layout_of_the_manifest_each_time() {
    let square = || zeros(DType::U8, &[3, 3]);
    let turned = || square().transpose(0, 1).unwrap();
    let packed = Manifest::packed(&vec![square()], ALIGNMENT).unwrap();
    let strided = Manifest::of(&vec![turned()]).unwrap();
    for (manifest, strides) in [(packed, [3, 1]), (strided, [1, 3])] {
        let known = RepeatedPut::new(manifest);
        for mut tree in [vec![turned()], vec![square()], vec![turned()]] {
            let make = |leaf: &transship_core::ManifestLeaf<'_>| {
                assert_eq!(leaf.layout().strides()[..], strides);
                let bytes = Tensor::from((0..9_u8).collect::<Vec<_>>());
                bytes.as_strided(leaf.layout().shape(), &leaf.layout().strides(), 0)
            };
            known.put_tensors(&mut tree, make).unwrap();
            assert_eq!(tree[0].strides()[..], strides);
        }
    }
}

/// catches: 684-whatever-is-there-is-replaced
#[test]
fn a_tensor_that_has_come_to_the_place_of_another_one_is_not_replaced() {
    use std::sync::Mutex;
    /// Its tensors change places when it is visited.
    struct Restless(Mutex<Vec<Tensor>>);
    impl TensorTree for Restless {
        fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
            let tensors = self.0.get_mut().unwrap();
            tensors.swap(0, 1);
            tensors.iter_mut().try_for_each(|tensor| tensor.visit(visitor))
        }
        fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
            let tensors = self.0.lock().unwrap();
            tensors
                .iter()
                .enumerate()
                .try_for_each(|(number, tensor)| paths.part(Step::Index(number), tensor))
        }
    }
    let tensors = || vec![zeros(DType::U8, &[2]), zeros(DType::U8, &[3])];
    let known = put_of(&tensors());
    for _ in 0..2 {
        let make = |leaf: &transship_core::ManifestLeaf<'_>| Ok(zeros(DType::U8, leaf.layout().shape()));
        let result = known.put_tensors(&mut Restless(Mutex::new(tensors())), make);
        assert!(matches!(result, Err(Error::TreeChanged { .. })), "{result:?}");
    }
}

#[test]
fn what_is_prepared_and_not_put_changes_nothing() {
    let known = put_of(&list());
    for first in [1, 2, 3] {
        let mut tree = list();
        let make = |leaf: &transship_core::ManifestLeaf<'_>| {
            Tensor::from_vec(vec![first; leaf.layout().numel()], leaf.layout().shape())
        };
        drop(known.prepare(&mut tree, make).unwrap());
        assert!(tree.iter().all(|tensor| tensor.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 0)));
        known.prepare(&mut tree, make).unwrap().put().unwrap();
        assert!(tree.iter().all(|tensor| tensor.as_slice::<u8>().unwrap().iter().all(|byte| *byte == first)));
    }
}

const LINE: Alignment = Alignment::new(64).unwrap();

/// Tensors of these sizes, in bytes, in one piece of the device's memory.
fn in_one_piece(device: &Device, sizes: &[usize], first: u8) -> Vec<Tensor> {
    let tree: Vec<_> = (first..).zip(sizes).map(|(value, size)| Tensor::from(vec![value; *size])).collect();
    start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap()
}

/// Each tensor lies in the copied piece where the manifest says.
fn check_piece(packing: &RepeatedPacking, whole: &Tensor, tree: &[Tensor]) {
    let (bytes, mut seen) = (bytes_of(whole), 0);
    assert_eq!(packing.manifest().chunks(), [bytes.len()]);
    packing
        .manifest()
        .for_each_leaf(|leaf| {
            let number: usize = leaf.path().trim_matches(['[', ']']).parse().unwrap();
            let end = leaf.offset() + leaf.layout().nbytes();
            assert_eq!(bytes[leaf.offset()..end], bytes_of(&tree[number]), "{number}");
            assert_eq!(leaf.chunk().is_some(), leaf.layout().numel() > 0);
            seen += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, tree.len());
}

#[test]
fn what_lies_in_one_piece_is_copied_as_one() {
    const SIZES: [usize; 6] = [5, 100, 0, 16, 64, 33];
    let (_late, device) = late();
    let mut tree = in_one_piece(&device, &SIZES, 1);
    // The same memory twice.
    tree.push(tree[3].clone());
    let (packing, whole) = RepeatedPacking::of_one_piece(&tree, LINE).unwrap().unwrap();
    check_piece(&packing, &whole, &tree);
    for first in [20, 40, 60] {
        let mut next = in_one_piece(&device, &SIZES, first);
        next.push(next[3].clone());
        let known = packing.tensors_of_same(&next).unwrap().unwrap();
        assert_eq!((known.len(), known[0].0), (1, 0));
        check_piece(&packing, &known[0].1, &next);
    }
    // A tree that looks so and lies otherwise has its tensors' places, if the manifest is the same.
    let aligned = in_one_piece(&device, &[64, 64], 1);
    let (piece, _) = RepeatedPacking::of_one_piece(&aligned, LINE).unwrap().unwrap();
    let (packed, tensors) = RepeatedPacking::of(&aligned, LINE).unwrap();
    assert_eq!(piece.manifest(), packed.manifest());
    assert!(piece.has_places_of(&piece) && packed.has_places_of(&packed));
    assert!(!piece.has_places_of(&packed) && !packed.has_places_of(&piece));
    let apart: Vec<_> = [1, 2].map(|value| in_one_piece(&device, &[64], value).remove(0)).into();
    let places = |tensors: &[(usize, Tensor)]| tensors.iter().map(|(offset, _)| *offset).collect::<Vec<_>>();
    assert_eq!(places(&piece.tensors(&apart).unwrap()), places(&tensors));
    assert_eq!(places(&piece.tensors(&aligned).unwrap()), [0]);
    assert!(matches!(piece.tensors(&tree), Err(Error::ManifestMismatch { .. })));
}

/// catches: 689-whatever-lies-between-is-padding, 692-pieces-begin-anywhere, 696-read-whole-on-the-host
#[test]
fn only_padding_may_lie_between_the_tensors_of_a_piece() {
    let (_late, device) = late();
    let is_one = |tree: &[Tensor]| RepeatedPacking::of_one_piece(&tree.to_vec(), LINE).unwrap().is_some();
    let all = in_one_piece(&device, &[64, 16, 64, 8, 64], 1);
    assert!(is_one(&all) && is_one(&all[..2]));
    // Another one lies between, and be it small.
    assert!(!is_one(&[all[0].clone(), all[2].clone()]));
    assert!(!is_one(&[&all[..3], &all[4..]].concat()));
    assert!(!is_one(&all[..1]), "one tensor needs no piece");
    // They begin where no line of the caches does, overlap, have gaps of their own, or lie in two pieces.
    assert!(!is_one(&in_one_piece(&device, &[16, 64, 64], 1)[1..]));
    assert!(!is_one(&[all[0].narrow(0, 0, 50).unwrap(), all[0].narrow(0, 40, 20).unwrap()]));
    assert!(!is_one(&[all[0].clone(), all[1].as_strided(&[8], &[2], 0).unwrap()]));
    assert!(!is_one(&[all[0].clone(), in_one_piece(&device, &[64, 64], 9).remove(1)]));
    assert!(!is_one(&[]));
    // On the host, where whoever has the bytes could read what was never written.
    let host = start_copy(all, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert!(!is_one(&host[..2]));
}

/// catches: 691-wherever-it-lies-in-a-piece, 693-known-with-any-strides, 694-known-wherever-it-begins
#[test]
fn what_lies_otherwise_is_no_piece_that_is_known() {
    const SIZES: [usize; 3] = [64, 64, 64];
    let (_late, device) = late();
    let (packing, _) =
        RepeatedPacking::of_one_piece(&in_one_piece(&device, &SIZES, 1), LINE).unwrap().unwrap();
    let is_known = |tree: &[Tensor]| packing.tensors_of_same(&tree.to_vec()).unwrap().is_some();
    let tree = in_one_piece(&device, &SIZES, 10);
    assert!(is_known(&tree));
    let [first, second, third] = tree.try_into().unwrap();
    assert!(!is_known(&[second.clone(), first.clone(), third.clone()]));
    assert!(!is_known(&[first.clone(), first.clone(), third.clone()]));
    assert!(!is_known(&[first.clone(), second.clone(), in_one_piece(&device, &SIZES, 20).remove(2)]));
    assert!(!is_known(&[first.clone(), second.clone(), Tensor::from(vec![1_u8; 64])]));
    let turned = in_one_piece(&device, &[64, 64, 64], 40);
    let square = |tensor: &Tensor| tensor.reshape(&[8, 8]).unwrap();
    let squares: Vec<_> = turned.iter().map(square).collect();
    let (of_squares, _) = RepeatedPacking::of_one_piece(&squares, LINE).unwrap().unwrap();
    assert!(of_squares.tensors_of_same(&squares).unwrap().is_some());
    let transposed = vec![squares[0].transpose(0, 1).unwrap(), squares[1].clone(), squares[2].clone()];
    assert!(of_squares.tensors_of_same(&transposed).unwrap().is_none());
    assert!(!is_known(&[first, second]));
    assert!(!is_known(&in_one_piece(&device, &[16, 64, 64, 64], 50)[1..]));
    // As parts of a tensor that no plan has packed: whose what lies between is nobody knows.
    let whole = in_one_piece(&device, &[192], 30).remove(0);
    assert!(!is_known(&[0, 64, 128].map(|start| whole.narrow(0, start, 64).unwrap())));
}
