//! The way of NCCL, on two devices of CUDA or a stand-in for its driver, with a library whose ranks are threads of this process (`fake`).

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed unwrap fails the test"
)]

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use half::bf16;
use num_complex::Complex;
use transship::backend::CopyOp;
use transship::{
    CopyOptions, DType, Device, Layout, MemoryKind, Paths, RawMemory, SharedOwner, Stop, Tensor, TensorTree,
    Visitor, start_copy_into,
};
use transship_nccl::{Communicator, Error, Group, ReduceOp, UniqueId};

mod support;

use support::{devices, down, library, nccl, on, ranks};

const LIMIT: Duration = Duration::from_secs(20);
type Tree = HashMap<String, Tensor>;

/// How many collectives this thread has called.
fn calls() -> u64 {
    told(b"fake_nccl_calls")
}

/// Where the last one read.
fn read_from() -> u64 {
    told(b"fake_nccl_read_from")
}

fn told(name: &[u8]) -> u64 {
    // SAFETY: the function has this prototype.
    unsafe {
        let library = libloading::Library::new(library()).unwrap();
        let function: libloading::Symbol<'_, extern "C" fn() -> u64> = library.get(name).unwrap();
        function()
    }
}

/// The tree of a rank: element by element that of rank 0 times its number and one more. Many small tensors, none of its elements, large ones,
/// and one of each type.
fn tree(rank: i32) -> Tree {
    let times = rank + 1;
    let mut tree = Tree::new();
    for index in 0..60_i32 {
        let values: Vec<f32> = (0..index).map(|value| (value * times) as f32).collect();
        tree.insert(format!("many.{index}"), Tensor::from(values));
        tree.insert(format!("ids.{index}"), Tensor::from(vec![i64::from(index * times); 3]));
    }
    let large: Vec<i32> = (0..1_100_000).map(|value: i32| value * times).collect();
    tree.insert("large".to_owned(), Tensor::from_vec(large.clone(), &[1100, 1000]).unwrap());
    let turned = Tensor::from_vec(large, &[1100, 1000]).unwrap().transpose(0, 1).unwrap();
    tree.insert("turned".to_owned(), turned);
    tree.insert("u8".to_owned(), Tensor::from(vec![200_u8.wrapping_mul(times as u8); 5]));
    tree.insert("bf16".to_owned(), Tensor::scalar(bf16::from_f32(1.5 * times as f32)));
    tree.insert("complex".to_owned(), Tensor::scalar(Complex::new(0.5_f64, -2.0) * f64::from(times)));
    tree
}

/// How many blocks that makes: those of f32, i64, u8, bf16 and complex numbers, and two large tensors.
const BLOCKS: u64 = 7;

fn assert_same(tree: &Tree, expected: &Tree) {
    assert_eq!(tree.len(), expected.len());
    for (name, tensor) in tree {
        let expected = &expected[name];
        assert_eq!((tensor.dtype(), tensor.shape()), (expected.dtype(), expected.shape()), "{name}");
        assert_eq!(tensor.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{name}");
    }
}

/// Deliberate bugs: a block is a tensor; the program's own tensor is written; tensors are told apart by the order of the map; the sum is that
/// of one rank; strides are forgotten.
#[test]
fn a_group_adds_whole_trees_by_few_calls() {
    let devices = devices();
    let group = Group::with_nccl(&nccl(), &devices).unwrap();
    assert_eq!(group.nccl().unwrap().version(), 21_400);
    let own = |rank: usize| on(&devices[rank], tree(rank as i32));
    // As a program has it that goes on using them.
    let (kept, trees) = (own(0), vec![own(0), own(1)]);
    let large = trees[0]["large"].clone();
    let before = calls();
    let sums = group.all_reduce(trees, ReduceOp::Sum).unwrap();
    assert_eq!(calls() - before, 2 * BLOCKS);
    for (sum, device) in sums.into_iter().zip(&devices) {
        assert!(sum.values().all(|tensor| tensor.device_id().unwrap() == device.id()));
        assert_same(&down(sum), &tree(2));
    }
    assert_eq!(down(large).to_bytes().unwrap(), tree(0)["large"].to_bytes().unwrap());
    // From the host and back to it; to the second rank.
    for to in [&devices[1], &Device::host()] {
        let sum = group.reduce(vec![kept.clone(), tree(1)], ReduceOp::Sum, to).unwrap();
        assert!(sum.values().all(|tensor| tensor.device_id().unwrap() == to.id()));
        assert_same(&down(sum), &tree(2));
    }
    assert_same(&down(kept), &tree(0));
    let reals = || vec![Tensor::from(vec![1.0_f32, -3.0])];
    let most =
        group.all_reduce(vec![reals(), vec![Tensor::from(vec![-1.0_f32, -2.0])]], ReduceOp::Max).unwrap();
    assert_eq!(down(most)[1][0].as_slice::<f32>().unwrap(), [1.0, -2.0]);
    let failed =
        group.all_reduce(vec![Tensor::scalar(1_i16), Tensor::scalar(2_i16)], ReduceOp::Sum).unwrap_err();
    assert!(
        matches!(*failed.error, Error::NotReducible { dtype: DType::I16, by_nccl: true, .. }),
        "{failed}"
    );
    // Nothing that is packed.
    let large = |rank: usize| on(&devices[rank], tree(rank as i32)["large"].clone());
    for sum in group.all_reduce(vec![large(0), large(1)], ReduceOp::Sum).unwrap() {
        assert_eq!(down(sum).to_bytes().unwrap(), tree(2)["large"].to_bytes().unwrap());
    }
    // What a sum lies in is written, and filled again, as other memory.
    let sums = group.all_reduce(vec![reals(), reals()], ReduceOp::Sum).unwrap();
    let sum = sums.into_iter().next().unwrap();
    let again = start_copy_into(reals(), sum, CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(down(again)[0].as_slice::<f32>().unwrap(), [1.0, -3.0]);
    assert!(
        group
            .all_reduce(vec![Vec::<Tensor>::new(), vec![]], ReduceOp::Sum)
            .unwrap()
            .iter()
            .all(Vec::is_empty)
    );
}

/// Deliberate bugs: a packed tree is packed once more; memory of the program is read between its tensors; tensors that lie in another order,
/// further apart, or at the right places of other memory, are taken for a block; results are not; the given memory is written.
#[test]
fn what_lies_packed_is_read_where_it_lies() {
    let devices = devices();
    let group = Group::with_nccl(&nccl(), &devices).unwrap();
    // With gaps in between, and a tensor without elements.
    let values = |rank: usize| [5, 3, 0, 8, 1].map(|count| vec![1.5 * (rank + 1) as f32; count]);
    let floats = |rank: usize| on(&devices[rank], values(rank).map(Tensor::from).to_vec());
    // The sums, and whether NCCL has read the tensors of the second rank where they lie.
    let reduce = |second: &[Tensor]| {
        let first = floats(0);
        let expected: Vec<Vec<u8>> = second
            .iter()
            .map(|tensor| down(tensor.clone()).to_vec::<f32>().unwrap())
            .map(|values| values.iter().flat_map(|value| (value + 1.5).to_le_bytes()).collect())
            .collect();
        let first = first.into_iter().zip(second).map(|(own, like)| match own.shape() == like.shape() {
            true => own,
            false => on(&devices[0], Tensor::from(vec![1.5_f32; like.numel()])),
        });
        let sums = group.all_reduce(vec![first.collect(), second.to_vec()], ReduceOp::Sum).unwrap();
        let is_in_place = read_from() == second[0].address().unwrap().unwrap();
        for sum in &sums {
            assert!(!sum[0].shares_memory_with(&second[0]));
            let bytes: Vec<_> = down(sum.clone()).iter().map(|tensor| tensor.to_bytes().unwrap()).collect();
            assert_eq!(bytes, expected);
        }
        (sums, is_in_place)
    };
    let packed = floats(1);
    assert!(packed[0].shares_memory_with(&packed[4]));
    let (sums, is_in_place) = reduce(&packed);
    assert!(is_in_place);
    assert_eq!(
        down(packed.clone()).iter().map(|tensor| tensor.to_vec::<f32>().unwrap()).collect::<Vec<_>>(),
        values(1)
    );
    // So do results.
    assert!(reduce(&sums[1]).1);
    // Other orders, other distances, memory of their own each.
    let (mut turned, run) = (packed.clone(), on(&devices[1], Tensor::from(vec![4.0_f32; 40])));
    turned.swap(0, 1);
    assert!(!reduce(&turned).1);
    let apart: Vec<_> = [(0, 5), (12, 3), (16, 0), (16, 8), (24, 1)]
        .map(|(start, count)| run.narrow(0, start, count).unwrap())
        .to_vec();
    assert!(!reduce(&apart).1);
    let places = [(0, 5), (8, 3), (12, 0), (12, 8), (20, 1)];
    let at = |whole: &Tensor, (start, count)| whole.narrow(0, start, count).unwrap();
    assert!(reduce(&places.map(|place| at(&run, place))).1);
    let strangers = places.map(|place| at(&on(&devices[1], Tensor::from(vec![4.0_f32; 40])), place));
    assert!(!reduce(&strangers).1);
    let alone = values(1).map(|values| on(&devices[1], Tensor::from(values))).to_vec();
    assert!(!reduce(&alone).1);
    // As a block lies, in memory of the program: what is between them is not read.
    let owner = SharedOwner::new(run.clone(), &devices[1]);
    let pieces = [(0_u64, 5_usize), (8, 3), (12, 1), (16, 8), (24, 1)].map(|(start, count)| {
        let memory =
            RawMemory::new(run.address().unwrap().unwrap() + 4 * start, 4 * count, MemoryKind::Device);
        (memory, Layout::contiguous(DType::F32, &[count]).unwrap())
    });
    // SAFETY: the owner has the memory, which is filled and nobody writes.
    let lent = unsafe { owner.tensors(pieces) }.unwrap();
    assert!(lent[0].shares_memory_with(&lent[4]));
    assert!(!reduce(&lent).1);
}

/// Deliberate bug: a list is read at the address that it does not have.
#[test]
fn pieces_that_are_one_tensor_are_packed() {
    let devices = devices();
    let group = Group::with_nccl(&nccl(), &devices).unwrap();
    let memory = [0, 1]
        .map(|rank| on(&devices[rank], Tensor::from((0..40).map(|byte| byte << rank).collect::<Vec<u8>>())));
    let lists = memory.each_ref().map(|memory| {
        let owner = SharedOwner::new(memory.clone(), &memory.device().unwrap());
        let start = memory.address().unwrap().unwrap();
        let piece = |(from, to, bytes)| (RawMemory::new(start + from, bytes, MemoryKind::Device), to);
        // SAFETY: the owner has the memory, which is filled and nobody writes.
        unsafe { owner.gathered([(30, 0, 4), (8, 4, 12), (0, 16, 1)].map(piece)) }.unwrap()
    });
    let sums = group.all_reduce(lists.map(|list| vec![list]).to_vec(), ReduceOp::Sum).unwrap();
    let expected: Vec<u8> = (30..34).chain(8..20).chain([0]).map(|byte| 3 * byte).collect();
    for sum in down(sums) {
        assert_eq!(sum[0].as_slice::<u8>().unwrap(), expected);
    }
}

/// Deliberate bug: what is read where it lies does not come behind the streams that its memory was handed to.
#[test]
fn what_is_read_where_it_lies_comes_behind_streams_that_write_it() {
    let devices = devices();
    let group = Group::with_nccl(&nccl(), &devices).unwrap();
    let floats = |value: f32| vec![Tensor::from(vec![value; 5000]), Tensor::from(vec![value; 3])];
    let stream = devices[1].create_stream(transship::StreamPriority::Normal).unwrap();
    for round in 0..20 {
        let trees = [0, 1].map(|rank| on(&devices[rank], floats(4.0)));
        trees[1][0].record_stream(&stream).unwrap();
        // Stands for a kernel that writes the tensor in place.
        let to = trees[1][0].buffer().unwrap();
        let clear = CopyOp::Clear { to, to_offset: trees[1][0].offset(), bytes: 4 * 5000 };
        // SAFETY: the range is that of the tensor, which nobody else uses, and its memory was handed to the stream.
        unsafe { devices[1].backend().submit(&[clear], &**stream.backend_stream()) }.unwrap();
        let sums = group.all_reduce(trees.to_vec(), ReduceOp::Sum).unwrap();
        assert_eq!(read_from(), trees[1][0].address().unwrap().unwrap());
        for sum in down(sums) {
            assert_eq!(sum[0].as_slice::<f32>().unwrap(), [4.0; 5000], "round {round}");
            assert_eq!(sum[1].as_slice::<f32>().unwrap(), [8.0; 3]);
        }
    }
}

/// Deliberate bugs: the root gets what others have; trees come in another order; a rank's own tensors are left where they lie.
#[test]
fn ranks_on_their_own_reduce_broadcast_and_gather() {
    let outcomes = ranks(LIMIT, |mut communicator| {
        let (rank, device) = (communicator.rank() as i32, communicator.device().clone());
        let sum = communicator.all_reduce(on(&device, tree(rank)), ReduceOp::Sum).unwrap().wait().unwrap();
        let all = communicator.all_gather(tree(rank)).unwrap().wait().unwrap();
        let stream = device.create_stream(transship::StreamPriority::Normal).unwrap();
        let root = communicator.broadcast(tree(rank), 1).unwrap().wait_on(&stream).unwrap();
        let is_there = |tree: &Tree| tree.values().all(|tensor| tensor.device_id().unwrap() == device.id());
        assert!(is_there(&sum) && is_there(&root) && all.iter().all(is_there));
        communicator.check().unwrap();
        (down(sum), down(all), down(root))
    });
    for (sum, all, root) in outcomes {
        assert_same(&sum, &tree(2));
        assert_eq!(all.len(), 2);
        (0..).zip(&all).for_each(|(rank, own)| assert_same(own, &tree(rank)));
        assert_same(&root, &tree(1));
    }
}

/// What shows no paths.
struct Hidden(Tensor);

impl TensorTree for Hidden {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }
}

/// Deliberate bugs: ranks do not tell each other what they call, or the tree, the operation or the root is left out of that. The library
/// would say what a real one would hang on.
#[test]
fn ranks_that_differ_get_an_error_and_go_on() {
    let tree = || BTreeMap::from([("a", Tensor::from(vec![1_u8])), ("b", Tensor::from(vec![1.0_f32, 2.0]))]);
    let errors = ranks(LIMIT, |mut communicator| {
        let is_first = communicator.rank() == 0;
        let mut errors = Vec::new();
        let mut other = tree();
        if !is_first {
            other.insert("b", Tensor::from(vec![1.0_f32, 2.0, 3.0]));
        }
        errors.push(*communicator.all_reduce(other, ReduceOp::Sum).unwrap_err().error);
        let mut other = tree();
        if !is_first {
            other.insert("b", Tensor::from(vec![1_i32, 2]));
        }
        errors.push(*communicator.all_gather(other).unwrap_err().error);
        let mut other = tree();
        if !is_first {
            other.remove("b");
        }
        errors.push(*communicator.broadcast(other, 0).unwrap_err().error);
        let op = if is_first { ReduceOp::Sum } else { ReduceOp::Max };
        errors.push(*communicator.all_reduce(tree(), op).unwrap_err().error);
        errors.push(*communicator.broadcast(tree(), communicator.rank()).unwrap_err().error);
        let mixed = match is_first {
            true => communicator.all_reduce(tree(), ReduceOp::Sum).map(drop),
            false => communicator.broadcast(tree(), 1).map(drop),
        };
        errors.push(*mixed.unwrap_err().error);
        let refused = match is_first {
            true => communicator.all_reduce(tree(), ReduceOp::Sum).map(drop).unwrap_err().error,
            false => {
                communicator
                    .all_reduce(Hidden(Tensor::scalar(1_u8)), ReduceOp::Sum)
                    .map(drop)
                    .unwrap_err()
                    .error
            }
        };
        errors.push(*refused);
        let good = communicator.all_reduce(tree(), ReduceOp::Sum).unwrap().wait().unwrap();
        assert_eq!(down(good)["b"].as_slice::<f32>().unwrap(), [2.0, 4.0]);
        errors
    });
    for errors in &errors {
        for error in &errors[..3] {
            assert!(
                matches!(error, Error::RanksDiffer { rank: 1, error: transship::Error::ManifestMismatch { path, .. } } if path == r#"["b"]"#),
                "{error}"
            );
        }
        assert!(
            errors[3].to_string().contains("all_reduce by Max, and rank 0 all_reduce by Sum"),
            "{}",
            errors[3]
        );
        assert!(
            errors[4].to_string().contains("broadcast from rank 1, and rank 0 broadcast from rank 0"),
            "{}",
            errors[4]
        );
        assert!(
            errors[5].to_string().contains("broadcast from rank 1, and rank 0 all_reduce by Sum"),
            "{}",
            errors[5]
        );
    }
    assert!(matches!(errors[1][6], Error::Transship(transship::Error::NotShown { .. })), "{}", errors[1][6]);
    assert!(errors[0][6].to_string().contains("a tree that it cannot take"), "{}", errors[0][6]);
}

/// A tensor, and a bug of the program at the look of this number.
struct Panicking {
    tensor: Tensor,
    visits: Cell<u32>,
    panics_at_visit: u32,
    shows: Cell<u32>,
    panics_at_show: u32,
}

impl TensorTree for Panicking {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.visits.set(self.visits.get() + 1);
        assert_ne!(self.visits.get(), self.panics_at_visit, "a bug in visit");
        self.tensor.visit(visitor)
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.shows.set(self.shows.get() + 1);
        assert_ne!(self.shows.get(), self.panics_at_show, "a bug in show");
        self.tensor.show(paths)
    }
}

/// Who catches panics, as executors and pools of threads do, goes on with the next call. Deliberate bugs: the panic leaves the call before the others have heard of it; it does where they
/// compare their trees.
#[test]
fn a_tree_that_panics_shifts_no_call() {
    // In which look of rank 1, and whether its tree has another shape: then trees are shown once more.
    for (visit, show, differs) in [(1, 0, false), (0, 1, false), (0, 2, true)] {
        ranks(LIMIT, |mut communicator| {
            let rank = communicator.rank();
            for step in 0..4_u8 {
                let is_bad = step == 1 && rank == 1;
                let count = if is_bad && differs { 3 } else { 2 };
                let [visits, shows] = [visit, show].map(|at| if is_bad { at } else { 0 });
                let tree = Panicking {
                    tensor: Tensor::from(vec![10 * step; count]),
                    visits: Cell::new(0),
                    panics_at_visit: visits,
                    shows: Cell::new(0),
                    panics_at_show: shows,
                };
                let reduce = || communicator.all_reduce(tree, ReduceOp::Sum).map(|sum| sum.wait().unwrap());
                match (catch_unwind(AssertUnwindSafe(reduce)), step) {
                    (Err(panic), 1) => {
                        assert_eq!(rank, 1);
                        assert!(panic.downcast_ref::<String>().unwrap().contains("a bug in"));
                    }
                    (Ok(Err(failed)), 1) => assert_eq!(rank, 0, "{failed}"),
                    (Ok(Ok(sum)), _) => {
                        assert_ne!(step, 1);
                        assert_eq!(down(sum.tensor).to_vec::<u8>().unwrap(), [20 * step; 2]);
                    }
                    (outcome, _) => panic!("rank {rank} in step {step}: {:?}", outcome.is_err()),
                }
            }
        });
    }
}

/// Deliberate bugs: the others are waited for without an end; what an abort has ended counts as done.
#[test]
fn a_rank_that_dies_or_stays_away_ends_the_others() {
    let short = Duration::from_millis(300);
    // Stays away.
    let outcomes = ranks(short, |mut communicator| {
        if communicator.rank() == 1 {
            thread::sleep(short * 3);
            return None;
        }
        let started = Instant::now();
        let error = *communicator.all_reduce(tree(0), ReduceOp::Sum).unwrap_err().error;
        assert!(started.elapsed() < short * 3);
        let later = *communicator.all_reduce(tree(0), ReduceOp::Sum).unwrap_err().error;
        assert!(matches!(later, Error::Aborted) && matches!(communicator.check(), Err(Error::Aborted)));
        Some(error)
    });
    assert!(matches!(outcomes[0], Some(Error::TimedOut { limit, .. }) if limit == short), "{outcomes:?}");
    // Dies while the other one waits for it.
    let outcomes = ranks(LIMIT, |mut communicator| {
        if communicator.rank() == 1 {
            thread::sleep(Duration::from_millis(100));
            communicator.abort();
            return None;
        }
        Some(*communicator.all_reduce(tree(0), ReduceOp::Sum).unwrap_err().error)
    });
    assert!(matches!(&outcomes[0], Some(Error::Nccl { code: 6, .. })), "{outcomes:?}");
    // Is aborted by its own process before it is waited for.
    let outcomes = ranks(LIMIT, |mut communicator| {
        match communicator.all_reduce(tree(0), ReduceOp::Sum) {
            Ok(pending) => {
                communicator.abort();
                pending.wait().unwrap_err()
            }
            // The other one was faster.
            Err(failed) => *failed.error,
        }
    });
    assert!(
        outcomes.iter().all(|error| matches!(error, Error::Aborted | Error::Nccl { .. })),
        "{outcomes:?}"
    );
    // Never joins.
    let (nccl, [device, _]) = (nccl(), devices());
    let alone = Communicator::join(&nccl, &UniqueId::new(&nccl).unwrap(), 0, 2, &device, short);
    assert!(matches!(alone, Err(Error::TimedOut { what: "joining", .. })));
    let none = Communicator::join(&nccl, &UniqueId::new(&nccl).unwrap(), 2, 2, &device, short);
    assert!(matches!(none, Err(Error::NoSuchRank { rank: 2, ranks: 2 })));
}

/// Deliberate bug: a rank that does not exist is refused before the others hear of it.
#[test]
fn a_root_that_does_not_exist_shifts_no_call() {
    let outcomes = ranks(LIMIT, |mut communicator| {
        let rank = communicator.rank();
        let mut root =
            |root| communicator.broadcast(Tensor::scalar(7_u8), root).map(|pending| pending.wait().unwrap());
        let both = root(2).unwrap_err();
        assert!(matches!(*both.error, Error::NoSuchRank { rank: 2, ranks: 2 }), "{both}");
        assert_eq!(down(root(1).unwrap()).item::<u8>().unwrap(), 7);
        let own = root(if rank == 1 { 2 } else { 0 }).map(drop);
        (
            own.map_err(|failed| failed.to_string()),
            communicator.broadcast(Tensor::scalar(8_u8), 0).unwrap().wait().unwrap(),
        )
    });
    for (own, after) in outcomes {
        assert!(own.unwrap_err().contains("broadcast from rank 2"));
        assert_eq!(down(after).item::<u8>().unwrap(), 8);
    }
}

/// Deliberate bugs: places are looked for where a tree still shares them; a copy of a tree is filled that shares them.
#[test]
fn ranks_may_share_what_their_trees_hold() {
    let shared = Arc::new(Tensor::from(vec![1.0_f32]));
    let outcomes = ranks(LIMIT, |mut communicator| {
        let own =
            || if communicator.rank() == 1 { shared.clone() } else { Arc::new(Tensor::from(vec![1.0_f32])) };
        let (one, other) = (vec![own()], own());
        let sum = communicator.all_reduce(one, ReduceOp::Sum).unwrap().wait().unwrap();
        let all = communicator.all_gather(other).unwrap().wait().unwrap();
        (
            down(sum)[0].item::<f32>().unwrap(),
            down(all).iter().map(|one| one.item::<f32>().unwrap()).collect::<Vec<_>>(),
        )
    });
    assert_eq!(outcomes, [(2.0, vec![1.0, 1.0]), (2.0, vec![1.0, 1.0])]);
    assert_eq!(shared.item::<f32>().unwrap(), 1.0);
    let group = Group::with_nccl(&nccl(), &devices()).unwrap();
    let sums = group.all_reduce(vec![shared.clone(), shared], ReduceOp::Sum).unwrap();
    assert!(down(sums).iter().all(|sum| sum.item::<f32>().unwrap() == 2.0));
}

/// The library has a communicator from the begin of a group to its end. Deliberate bugs: it is locked for single calls alone; an aborter keeps the communicator.
#[test]
fn a_rank_is_aborted_from_other_threads_and_in_no_group() {
    let outcomes = ranks(LIMIT, |mut communicator| {
        // SAFETY: the function has this prototype.
        unsafe {
            let library = libloading::Library::new(library()).unwrap();
            let slow: libloading::Symbol<'_, extern "C" fn(u64)> =
                library.get(b"fake_nccl_slow_groups").unwrap();
            slow(200);
        }
        let aborter = communicator.aborter();
        let watches = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            aborter.abort();
            aborter
        });
        let error = *communicator.all_reduce(tree(0), ReduceOp::Sum).unwrap_err().error;
        let aborter = watches.join().unwrap();
        drop(communicator);
        aborter.abort();
        error
    });
    assert!(
        outcomes.iter().all(|error| matches!(error, Error::Aborted | Error::Nccl { .. })),
        "{outcomes:?}"
    );
    assert_eq!(told(b"fake_nccl_aborted_in_groups"), 0);
    let group = Group::with_nccl(&nccl(), &devices()).unwrap();
    assert!(group.nccl().is_ok());
}

/// The threads and the connections of the library are its parent's. Deliberate bugs: a child is let through; its drop aborts.
#[test]
fn a_forked_child_is_refused_and_ends_nothing() {
    let group = Group::with_nccl(&nccl(), &devices()).unwrap();
    let ones = || vec![Tensor::from(vec![1.0_f32]), Tensor::from(vec![1.0_f32])];
    group.all_reduce(ones(), ReduceOp::Sum).unwrap();
    // SAFETY: the functions of the file are called by their prototypes.
    let fake = unsafe { libloading::Library::new(library()) }.unwrap();
    // SAFETY: the function has this prototype.
    let ended: extern "C" fn() -> u64 = *unsafe { fake.get(b"fake_nccl_ended") }.unwrap();
    // SAFETY: the child allocates, which the C library allows, and ends without anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends a child that hangs.
        unsafe { libc::alarm(20) };
        let before = ended();
        let refused = group.all_reduce(ones(), ReduceOp::Sum).is_err();
        drop(group);
        let ended = ended() - before;
        // SAFETY: it ends this process.
        unsafe { libc::_exit(if refused && ended == 0 { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the status goes to a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    for sum in down(group.all_reduce(ones(), ReduceOp::Sum).unwrap()) {
        assert_eq!(sum.item::<f32>().unwrap(), 2.0);
    }
}
