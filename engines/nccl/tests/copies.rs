//! Groups of copies, against a plain reference: on the host, on a simulated device that copies as late as it may, and on devices of CUDA
//! where there are two.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed unwrap fails the test"
)]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use late_backend::{LateConfig, LateHandle};
use num_complex::Complex;
use transship::{
    Alignment, CopyOptions, DType, Device, Element, Paths, Stop, Tensor, TensorTree, Visitor, start_copy,
};
use transship_nccl::{Error, Group, ReduceOp};

/// Devices of two ranks.
fn beds() -> Vec<[Device; 2]> {
    static LATE: OnceLock<LateHandle> = OnceLock::new();
    LATE.get_or_init(|| late_backend::install(LateConfig { devices: 2, ..LateConfig::new("late") }).unwrap());
    let open = |name: &str| Device::open(name.parse().unwrap());
    let late = || [open("late:0").unwrap(), open("late:1").unwrap()];
    let mut beds = vec![[Device::host(), Device::host()], late(), [late()[1].clone(), Device::host()]];
    match (open("cuda:0"), open("cuda:1")) {
        (Ok(first), Ok(second)) => beds.push([first, second]),
        _ => assert!(std::env::var_os("TRANSSHIP_REQUIRE").is_none(), "there are no two devices of CUDA"),
    }
    beds
}

fn on<S: TensorTree>(device: &Device, tree: S) -> S {
    start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap()
}

fn down<S: TensorTree>(tree: S) -> S {
    on(&Device::host(), tree)
}

fn vector<T: Element>(values: &[T]) -> Tensor {
    Tensor::from(values)
}

/// The trees of two ranks with the same tensors, and what their sum is.
fn summands() -> ([HashMap<String, Tensor>; 2], HashMap<String, Tensor>) {
    let (mut trees, mut sums) = ([HashMap::new(), HashMap::new()], HashMap::new());
    let mut add = |name: &str, summands: [Tensor; 2], sum: Tensor| {
        for (tree, summand) in trees.iter_mut().zip(summands) {
            tree.insert(name.to_owned(), summand);
        }
        sums.insert(name.to_owned(), sum);
    };
    add("u8", [vector(&[1_u8, 250, 255]), vector(&[2_u8, 10, 255])], vector(&[3_u8, 4, 254]));
    add("i16", [vector(&[i16::MAX, -1]), vector(&[1_i16, -1])], vector(&[i16::MIN, -2]));
    add("u64", [vector(&[u64::MAX]), vector(&[2_u64])], vector(&[1_u64]));
    add("i32", [vector(&[i32::MIN, 5]), vector(&[-1_i32, 6])], vector(&[i32::MAX, 11]));
    add(
        "f32",
        [vector(&[0.1_f32, f32::MAX]), vector(&[0.2_f32, f32::MAX])],
        vector(&[0.1_f32 + 0.2, f32::INFINITY]),
    );
    add("f64", [vector(&[0.1_f64]), vector(&[0.2_f64])], vector(&[0.1_f64 + 0.2]));
    // The halves round to even: 2048 + 1 to 2048, 256 + 1 to 256.
    let halves = [2048.0, 1.5].map(f16::from_f32);
    add(
        "f16",
        [vector(&halves), vector(&[1.0, 0.25].map(f16::from_f32))],
        vector(&[2048.0, 1.75].map(f16::from_f32)),
    );
    add("bf16", [vector(&[bf16::from_f32(256.0)]), vector(&[bf16::ONE])], vector(&[bf16::from_f32(256.0)]));
    let complex = |re: f32, im: f32| vector(&[Complex::new(re, im)]);
    add("complex", [complex(1.0, 2.0), complex(0.5, -2.0)], complex(1.5, 0.0));
    add("none", [vector::<f32>(&[]), vector::<f32>(&[])], vector::<f32>(&[]));
    for index in 0..40_u8 {
        let values = |factor: u8| vector(&vec![i64::from(index) * i64::from(factor); usize::from(index)]);
        add(&format!("many.{index}"), [values(1), values(10)], values(11));
    }
    (trees, sums)
}

fn assert_same(tree: &HashMap<String, Tensor>, expected: &HashMap<String, Tensor>) {
    assert_eq!(tree.len(), expected.len());
    for (name, tensor) in tree {
        let expected = &expected[name];
        assert_eq!((tensor.dtype(), tensor.shape()), (expected.dtype(), expected.shape()), "{name}");
        assert_eq!(tensor.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{name}");
    }
}

/// Deliberate bugs: tensors are paired in the order of the map; integers do not wrap; halves are added as floats and rounded once; a rank
/// gets what it had.
#[test]
fn two_ranks_add_bit_by_bit() {
    for devices in beds() {
        let ([one, other], sums) = summands();
        let trees = vec![on(&devices[0], one), on(&devices[1], other)];
        let group = Group::of_copies(&devices).unwrap();
        let reduced = group.all_reduce(trees, ReduceOp::Sum).unwrap();
        assert_eq!(reduced.len(), 2);
        for (tree, device) in reduced.into_iter().zip(&devices) {
            assert!(tree.values().all(|tensor| tensor.device_id().unwrap() == device.id()));
            assert_same(&down(tree), &sums);
        }
    }
}

/// Deliberate bug: the sum goes to the first rank, wherever it was asked for.
#[test]
fn a_sum_goes_to_one_device_or_the_host() {
    for devices in beds() {
        for to in [&devices[1], &Device::host()] {
            let ([one, other], sums) = summands();
            let group = Group::of_copies(&devices).unwrap();
            let sum = group.reduce(vec![on(&devices[0], one), other], ReduceOp::Sum, to).unwrap();
            assert!(sum.values().all(|tensor| tensor.device_id().unwrap() == to.id()));
            assert_same(&down(sum), &sums);
        }
    }
}

/// Deliberate bugs: the last rank is left out; smaller and larger are exchanged.
#[test]
fn floats_are_rounded_once_for_each_rank() {
    let host = Device::host();
    let group = Group::of_copies(&[host.clone(), host.clone(), host]).unwrap();
    let ranks = [[0.1_f32, -7.0], [0.2, 1e-9], [0.3, 3.0]];
    let trees = || ranks.iter().map(|values| vector(values)).collect::<Vec<_>>();
    for tree in group.all_reduce(trees(), ReduceOp::Sum).unwrap() {
        assert_eq!(tree.as_slice::<f32>().unwrap(), [0.1_f32 + 0.2 + 0.3, -7.0 + 1e-9 + 3.0]);
    }
    for tree in group.all_reduce(trees(), ReduceOp::Min).unwrap() {
        assert_eq!(tree.as_slice::<f32>().unwrap(), [0.1, -7.0]);
    }
    for mut tree in group.all_reduce(trees(), ReduceOp::Max).unwrap() {
        assert_eq!(tree.as_slice::<f32>().unwrap(), [0.3, 3.0]);
        // Ranks on one device share no memory.
        tree.as_mut_slice::<f32>().unwrap()[0] = 0.0;
    }
}

/// Deliberate bugs: trees are compared by the number of their tensors, by types alone, or by shapes alone; another tensor is named.
#[test]
fn ranks_that_differ_are_told_where() {
    let group = Group::of_copies(&[Device::host(), Device::host()]).unwrap();
    let tree = || BTreeMap::from([("a", vector(&[1_u8])), ("b", vector(&[1.0_f32, 2.0]))]);
    let others = [
        (r#"["b"]"#, BTreeMap::from([("a", vector(&[1_u8])), ("b", vector(&[1.0_f32, 2.0, 3.0]))])),
        (r#"["b"]"#, BTreeMap::from([("a", vector(&[1_u8])), ("b", vector(&[1_i32, 2]))])),
        (r#"["b"]"#, BTreeMap::from([("a", vector(&[1_u8]))])),
        (r#"["A"]"#, BTreeMap::from([("A", vector(&[1_u8])), ("b", vector(&[1.0_f32, 2.0]))])),
        (r#"["c"]"#, {
            let mut more = tree();
            more.insert("c", vector(&[0_u8]));
            more
        }),
    ];
    for (expected, other) in others {
        let failed = group.all_reduce(vec![tree(), other.clone()], ReduceOp::Sum).unwrap_err();
        assert!(
            matches!(&*failed.error, Error::RanksDiffer { rank: 1, error: transship::Error::ManifestMismatch { path, .. } } if path == expected),
            "{failed}"
        );
        // What was given comes back.
        assert_eq!(failed.value[0]["b"].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert!(group.all_gather(vec![tree(), other.clone()]).is_err());
        assert!(group.reduce(vec![tree(), other], ReduceOp::Sum, &Device::host()).is_err());
    }
    let few = group.all_reduce(vec![tree()], ReduceOp::Sum).unwrap_err();
    assert!(matches!(*few.error, Error::WrongCount { what: "trees", actual: 1, ranks: 2 }));
    assert!(matches!(Group::of_copies(&[]), Err(Error::NoSuchRank { rank: 0, ranks: 0 })));
}

/// Deliberate bug: what cannot be added is left as it is.
#[test]
fn what_cannot_be_added_is_named() {
    let group = Group::of_copies(&[Device::host(), Device::host()]).unwrap();
    let f8 = Tensor::zeros(&[4], DType::F8E5M2, &Device::host()).unwrap();
    for (last, op) in [
        (vector(&[true]), ReduceOp::Sum),
        (f8, ReduceOp::Max),
        (vector(&[Complex::new(1.0_f64, 0.0)]), ReduceOp::Min),
    ] {
        let tree = || vec![vector(&[1_u8]), last.clone()];
        let failed = group.all_reduce(vec![tree(), tree()], op).unwrap_err();
        assert!(
            matches!(&*failed.error, Error::NotReducible { path, dtype, .. } if path == "[1]" && *dtype == last.dtype()),
            "{failed}"
        );
    }
}

/// Deliberate bugs: parts begin at the same place; sizes are taken in another order; a part has the bytes behind it.
#[test]
fn scattered_parts_come_together_again() {
    for devices in beds() {
        let group = Group::of_copies(&devices).unwrap();
        let matrix = |factor: i32| {
            let values: Vec<i32> = (0..24).map(|value| value * factor).collect();
            Tensor::from_vec(values, &[6, 4]).unwrap()
        };
        let tree = || on(&devices[0], vec![matrix(1), matrix(-1)]);
        for (dim, sizes) in [(0, [2, 4]), (0, [6, 0]), (1, [1, 3]), (1, [0, 4])] {
            let parts = group.scatter(tree(), dim, &sizes).unwrap();
            for (part, (device, size)) in parts.iter().zip(devices.iter().zip(sizes)) {
                assert_eq!((part[1].shape()[dim], part[1].device_id().unwrap()), (size, device.id()));
            }
            let last = down(parts[1].clone());
            let expected = matrix(1).narrow(dim, sizes[0], sizes[1]).unwrap();
            assert_eq!(last[0].to_vec::<i32>().unwrap(), expected.to_vec::<i32>().unwrap());
            for to in [&devices[1], &Device::host()] {
                let whole = group.gather(parts.clone(), dim, to).unwrap();
                assert_eq!(whole[0].device_id().unwrap(), to.id());
                let whole = down(whole);
                assert_eq!(whole[0].to_vec::<i32>().unwrap(), matrix(1).to_vec::<i32>().unwrap());
                assert_eq!(whole[1].to_vec::<i32>().unwrap(), matrix(-1).to_vec::<i32>().unwrap());
            }
        }
    }
}

/// Deliberate bug: sizes that add up to less are taken.
#[test]
fn what_cannot_be_cut_or_put_together_is_named() {
    let group = Group::of_copies(&[Device::host(), Device::host()]).unwrap();
    let tree = || vec![Tensor::from_vec(vec![0_u8; 6], &[3, 2]).unwrap(), vector(&[0_u8; 4])];
    for (dim, sizes) in [(0, [1, 2]), (0, [1, 1]), (0, [usize::MAX, 4])] {
        let failed = group.scatter(tree(), dim, &sizes).unwrap_err();
        let named = if sizes == [1, 2] { "[1]" } else { "[0]" };
        assert!(matches!(&*failed.error, Error::NotScattered { path, .. } if path == named), "{failed}");
    }
    let failed = group.scatter(tree(), 1, &[1, 1]).unwrap_err();
    assert!(
        matches!(&*failed.error, Error::NoSuchDimension { path, rank: None, dim: 1, .. } if path == "[1]"),
        "{failed}"
    );
    assert!(matches!(
        *group.scatter(tree(), 0, &[3]).unwrap_err().error,
        Error::WrongCount { what: "sizes", .. }
    ));
    // No elements, and more rows than a machine word counts.
    let rows = |count| Tensor::from_vec(Vec::<u8>::new(), &[count, 0]).unwrap();
    let failed = group.gather(vec![rows(usize::MAX), rows(2)], 0, &Device::host()).unwrap_err();
    assert!(matches!(*failed.error, Error::Transship(transship::Error::SizeOverflow { .. })), "{failed}");
    let other = vec![Tensor::from_vec(vec![0_u8; 3], &[3, 1]).unwrap(), vector(&[0_u8; 4])];
    let failed = group.gather(vec![tree(), other], 0, &Device::host()).unwrap_err();
    assert!(matches!(&*failed.error, Error::NotGathered { path, rank: 1, .. } if path == "[0]"), "{failed}");
    let failed = group.gather(vec![tree(), tree()], 1, &Device::host()).unwrap_err();
    assert!(
        matches!(&*failed.error, Error::NoSuchDimension { path, rank: Some(0), dim: 1, .. } if path == "[1]"),
        "{failed}"
    );
}

/// Deliberate bugs: places are looked for where a tree still shares them; trees are changed one after the other, as far as they fit.
#[test]
fn what_trees_share_stays_as_it_was() {
    let group = Group::of_copies(&[Device::host(), Device::host()]).unwrap();
    let shared = Arc::new(vector(&[1_i32, 2]));
    let trees = || {
        vec![
            (vector(&[1_i32]), shared.clone(), shared.clone()),
            (vector(&[10_i32]), shared.clone(), shared.clone()),
        ]
    };
    for (one, other, again) in group.all_reduce(trees(), ReduceOp::Sum).unwrap() {
        assert_eq!(one.as_slice::<i32>().unwrap(), [11]);
        assert_eq!(
            (other.as_slice::<i32>().unwrap(), again.as_slice::<i32>().unwrap()),
            (&[2, 4][..], &[2, 4][..])
        );
    }
    let sum = group.reduce(trees(), ReduceOp::Sum, &Device::host()).unwrap();
    assert_eq!(
        (sum.0.as_slice::<i32>().unwrap(), sum.1.as_slice::<i32>().unwrap()),
        (&[11][..], &[2, 4][..])
    );
    let gathered = group.gather(trees(), 0, &Device::host()).unwrap();
    assert_eq!(gathered.2.as_slice::<i32>().unwrap(), [1, 2, 1, 2]);
    assert_eq!(group.all_gather(trees()).unwrap()[1][0].1.as_slice::<i32>().unwrap(), [1, 2]);
    assert_eq!(shared.as_slice::<i32>().unwrap(), [1, 2]);
}

/// Shows one tensor, and from the visit of this number on another one as well.
#[derive(Debug)]
struct Growing {
    tensors: [Tensor; 2],
    visits: usize,
}

impl TensorTree for Growing {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.visits = self.visits.saturating_sub(1);
        let shown = if self.visits == 0 { 2 } else { 1 };
        self.tensors.iter_mut().take(shown).try_for_each(|tensor| tensor.visit(visitor))
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.tensors[0].show(paths)
    }
}

/// Deliberate bug: trees are changed one after the other, as far as they fit.
#[test]
fn a_tree_that_grows_leaves_all_as_they_were() {
    let group = Group::of_copies(&[Device::host(), Device::host()]).unwrap();
    let tree = |visits| Growing { tensors: [vector(&[1_i32]), vector(&[5_i32])], visits };
    let failed = group.all_reduce(vec![tree(100), tree(2)], ReduceOp::Sum).unwrap_err();
    assert!(matches!(*failed.error, Error::Transship(transship::Error::TreeChanged { .. })), "{failed}");
    for tree in &failed.value {
        assert_eq!(tree.tensors[0].as_slice::<i32>().unwrap(), [1]);
    }
}

/// Deliberate bug: each rank gets its own tree in the place of those of others.
#[test]
fn every_rank_gets_the_trees_of_all() {
    for devices in beds() {
        let group = Group::of_copies(&devices).unwrap();
        let tree = |rank: usize| on(&devices[rank], vec![vector(&[rank as u8; 3]), vector(&[rank as f32])]);
        for (trees, device) in group.all_gather(vec![tree(0), tree(1)]).unwrap().into_iter().zip(&devices) {
            assert!(trees.iter().flatten().all(|tensor| tensor.device_id().unwrap() == device.id()));
            let trees = down(trees);
            assert_eq!(trees[0][0].as_slice::<u8>().unwrap(), [0; 3]);
            assert_eq!(
                (trees[1][0].as_slice::<u8>().unwrap(), trees[1][1].item::<f32>().unwrap()),
                (&[1; 3][..], 1.0)
            );
        }
        let copies = group.broadcast(tree(1)).unwrap();
        assert!(!copies[0][0].shares_memory_with(&copies[1][0]));
        for (copy, device) in copies.into_iter().zip(&devices) {
            assert_eq!(copy[0].device_id().unwrap(), device.id());
            assert_eq!(down(copy)[0].as_slice::<u8>().unwrap(), [1; 3]);
        }
    }
}

/// `Debug` leaves out what tells keys apart.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Layer(u32);

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("attn")
    }
}

/// Deliberate bugs: tensors of keys that print alike are told apart by the order of their map; only where trees show theirs in another order is that looked for.
#[test]
fn keys_that_print_alike_are_refused() {
    let host = Device::host();
    let group = Group::of_copies(&[host.clone(), host.clone()]).unwrap();
    let tree = |times: u8| {
        (1..=2).map(|number| (Layer(number.into()), vector(&[number * times]))).collect::<HashMap<_, _>>()
    };
    // Maps of a few random orders.
    for _ in 0..20 {
        let failed = group.reduce(vec![tree(1), tree(10)], ReduceOp::Sum, &host).unwrap_err();
        let Error::Transship(error) = &*failed.error else { panic!("{failed}") };
        assert!(matches!(error, transship::Error::KeysPrintAlike { path } if path == "[attn]"), "{failed}");
    }
}

/// Deliberate bugs: each result has an allocation of its own; tensors lie behind each other without regard to where kernels read; on the host results share memory.
#[test]
fn small_tensors_are_gathered_into_one_allocation() {
    for devices in beds() {
        let group = Group::of_copies(&devices).unwrap();
        let tree = |rank: usize| {
            on(&devices[rank], (0..50).map(|size| vector(&vec![rank as u8; size + 1])).collect::<Vec<_>>())
        };
        for to in &devices {
            let gathered = group.gather(vec![tree(0), tree(1)], 0, to).unwrap();
            for (size, tensor) in (1..).zip(&gathered) {
                assert_eq!(tensor.shares_memory_with(&gathered[0]), size == 1 || !to.is_host(), "{to:?}");
                assert!(to.is_host() || tensor.offset().is_multiple_of(16));
                let bytes = on(&Device::host(), tensor.clone()).to_bytes().unwrap();
                assert_eq!(bytes, [vec![0; size], vec![1; size]].concat());
            }
        }
    }
}

/// A device that copies multiples of 4 bytes, as those of wgpu do. Deliberate bug: what it refuses to fill is an error of the call, and does not go by way of the host.
#[test]
fn what_a_device_of_granules_takes_in_no_parts_goes_by_the_host() {
    let config = LateConfig { copy_granularity: Alignment::new(4).unwrap(), ..LateConfig::new("granules") };
    late_backend::install(config).unwrap();
    let to = Device::open("granules:0".parse().unwrap()).unwrap();
    // One rank, whose tensors have what lies between them behind them; two, of which one begins within 4 bytes.
    for ranks in [1, 2] {
        let group = Group::of_copies(&vec![Device::host(); ranks]).unwrap();
        let tree = |rank: usize| (1..20).map(|size| vector(&vec![rank as u8; size])).collect::<Vec<_>>();
        let gathered = group.gather((0..ranks).map(tree).collect(), 0, &to).unwrap();
        for (size, tensor) in (1..).zip(gathered) {
            let expected: Vec<u8> = (0..ranks).flat_map(|rank| vec![rank as u8; size]).collect();
            assert_eq!(on(&Device::host(), tensor).to_bytes().unwrap(), expected);
        }
    }
}
