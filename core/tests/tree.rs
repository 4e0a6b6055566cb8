//! What a visit of the types of the standard library shows.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use transship_core::{
    CopyOptions, CopyPolicy, Device, Error, MAX_DEPTH, Stop, Tensor, TensorTree, Visitor, for_each_path,
    for_each_tensor, start_copy, start_copy_into, start_copy_to_all,
};

fn tensor(id: f32) -> Tensor {
    Tensor::from_vec(vec![id], &[1]).unwrap()
}

fn id(tensor: &Tensor) -> f32 {
    tensor.as_slice::<f32>().unwrap()[0]
}

/// The numbers of the tensors of `tree`, in the order of the visit.
fn ids<T: TensorTree + ?Sized>(tree: &mut T) -> Vec<f32> {
    let mut ids = Vec::new();
    for_each_tensor(tree, |tensor| {
        ids.push(id(tensor));
        Ok(())
    })
    .unwrap();
    ids
}

/// Panics when it is looked at, though it might hold a tensor.
struct Mine;

impl TensorTree for Mine {
    const MAY_HOLD_TENSORS: bool = false;

    fn visit(&mut self, _: &mut Visitor<'_>) -> Result<(), Stop> {
        unreachable!("a type that holds no tensor was looked into")
    }
}

/// Nested without an end that a type could name.
struct Chain {
    tensor: Tensor,
    next: Option<Box<Chain>>,
}

impl TensorTree for Chain {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.nested(|visitor| {
            self.tensor.visit(visitor)?;
            self.next.visit(visitor)
        })
    }
}

fn chain(length: usize) -> Chain {
    let end = Chain { tensor: tensor(0.0), next: None };
    (1..length).fold(end, |next, id| Chain { tensor: tensor(id as f32), next: Some(Box::new(next)) })
}

#[test]
fn a_tensor_is_a_tree() {
    assert_eq!(ids(&mut tensor(7.0)), [7.0]);
}

#[test]
fn collections_are_visited_in_order() {
    assert_eq!(ids(&mut vec![tensor(0.0), tensor(1.0)]), [0.0, 1.0]);
    assert_eq!(ids(&mut [tensor(0.0), tensor(1.0)]), [0.0, 1.0]);
    assert_eq!(ids(&mut [tensor(0.0), tensor(1.0)][..]), [0.0, 1.0]);
    assert_eq!(ids(&mut vec![tensor(0.0), tensor(1.0)].into_boxed_slice()), [0.0, 1.0]);
    assert_eq!(ids(&mut VecDeque::from([tensor(0.0), tensor(1.0)])), [0.0, 1.0]);
    assert_eq!(ids(&mut BTreeMap::from([("b", tensor(1.0)), ("a", tensor(0.0))])), [0.0, 1.0]);
    assert_eq!(ids(&mut IndexMap::<_, _>::from_iter([("b", tensor(0.0)), ("a", tensor(1.0))])), [0.0, 1.0]);
    assert_eq!(ids(&mut Box::new(tensor(0.0))), [0.0]);
}

#[test]
fn hash_maps_are_visited_in_the_same_order_each_time() {
    let mut map: HashMap<usize, Tensor> = (0..100).map(|index| (index, tensor(index as f32))).collect();
    let first = ids(&mut map);
    assert_eq!(first, ids(&mut map));
    let mut sorted = first;
    sorted.sort_by(f32::total_cmp);
    assert!(sorted.iter().enumerate().all(|(index, id)| index as f32 == *id) && sorted.len() == 100);
}

#[test]
fn what_may_be_there_is_visited_if_it_is() {
    assert_eq!(ids(&mut Some(tensor(0.0))), [0.0]);
    assert_eq!(ids(&mut None::<Tensor>), []);
    assert_eq!(ids(&mut Ok::<_, String>(tensor(0.0))), [0.0]);
    assert_eq!(ids(&mut Err::<u64, _>(tensor(1.0))), [1.0]);
}

#[test]
fn tuples_of_every_length_are_visited_in_order() {
    let t = |id: u8| tensor(f32::from(id));
    assert_eq!(ids(&mut (t(0),)), [0.0]);
    assert_eq!(ids(&mut (t(0), "two", t(1), 3)), [0.0, 1.0]);
    let mut longest = (t(0), t(1), t(2), t(3), t(4), t(5), t(6), t(7), t(8), t(9), t(10), t(11));
    assert_eq!(ids(&mut longest), (0..12).map(|id| id as f32).collect::<Vec<_>>());
}

#[test]
fn what_is_put_in_during_the_visit_stays_there() {
    let mut tree = (String::from("name"), vec![(17_u64, tensor(0.0))], Some([tensor(1.0)]));
    for_each_tensor(&mut tree, |seen| {
        *seen = tensor(id(seen) + 10.0);
        Ok(())
    })
    .unwrap();
    assert_eq!((tree.0.as_str(), tree.1[0].0), ("name", 17));
    assert_eq!(ids(&mut tree), [10.0, 11.0]);
}

#[test]
fn types_without_tensors_are_not_looked_into() {
    ids(&mut vec![Mine]);
    ids(&mut [Mine]);
    ids(&mut [Mine][..]);
    ids(&mut VecDeque::from([Mine]));
    ids(&mut (Mine, Mine));
    ids(&mut Some(Mine));
    ids(&mut Box::new(Mine));
    ids(&mut Ok::<_, Mine>(Mine));
    ids(&mut BTreeMap::from([(0, Mine)]));
    ids(&mut HashMap::from([(0, Mine)]));
    ids(&mut IndexMap::<_, _>::from_iter([(0, Mine)]));
    ids(&mut vec![Some(Box::new([(0, Mine)]))]);
}

#[test]
fn whether_a_type_may_hold_tensors_is_known_to_the_compiler() {
    const {
        assert!(!<Vec<u64>>::MAY_HOLD_TENSORS);
        assert!(!<HashMap<String, Vec<Option<(f32, &str)>>>>::MAY_HOLD_TENSORS);
        assert!(!<(PathBuf, Duration, Arc<str>, PhantomData<Tensor>, HashSet<u8>)>::MAY_HOLD_TENSORS);
        assert!(!<Result<[u8; 4], Box<str>>>::MAY_HOLD_TENSORS);
        assert!(<Result<u8, Tensor>>::MAY_HOLD_TENSORS);
        assert!(<(u8, u8, Vec<Option<Box<Tensor>>>)>::MAY_HOLD_TENSORS);
        assert!(<HashMap<u8, [Tensor; 2]>>::MAY_HOLD_TENSORS);
        assert!(<Option<Box<Chain>>>::MAY_HOLD_TENSORS);
    }
}

#[test]
#[cfg_attr(miri, ignore = "a thousand levels take half a minute, and have no unsafe code of their own")]
fn deep_nesting_is_an_error() {
    // A link is three levels: the struct, the option and the box; the last one has no box.
    let fits = (MAX_DEPTH + 1) / 3;
    assert_eq!(ids(&mut chain(fits)).len(), fits);
    let too_deep = for_each_tensor(&mut chain(fits + 1), |_| Ok(()));
    assert!(matches!(too_deep, Err(Error::TooDeep { limit: MAX_DEPTH })), "{too_deep:?}");
}

#[test]
fn what_the_visitor_refuses_ends_the_visit() {
    let mut tree = (tensor(0.0), vec![tensor(1.0), tensor(2.0)], tensor(3.0));
    let mut seen = 0;
    let result = for_each_tensor(&mut tree, |tensor| {
        seen += 1;
        if id(tensor) == 1.0 { Err(Error::NotReady) } else { Ok(()) }
    });
    assert!(matches!(result, Err(Error::NotReady)));
    assert_eq!(seen, 2);
}

#[test]
fn what_is_shared_is_visited_as_the_own_of_each() {
    let shared = Arc::new(vec![tensor(0.0), tensor(1.0)]);
    let mut tree = (Arc::clone(&shared), Some(Arc::clone(&shared)));
    for_each_tensor(&mut tree, |seen| {
        *seen = tensor(id(seen) + 10.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(ids(&mut tree), [10.0, 11.0, 10.0, 11.0]);
    assert_eq!(shared.iter().map(id).collect::<Vec<_>>(), [0.0, 1.0], "others keep theirs");

    let mut alone = Arc::new(vec![tensor(2.0)]);
    let address = Arc::as_ptr(&alone);
    assert_eq!(ids(&mut alone), [2.0]);
    assert_eq!(Arc::as_ptr(&alone), address, "what nobody shares is not cloned");
}

/// Cannot be cloned while it is looked at.
struct Never;

impl Clone for Never {
    fn clone(&self) -> Self {
        unreachable!("what holds no tensor was cloned")
    }
}

impl TensorTree for Never {
    const MAY_HOLD_TENSORS: bool = false;

    fn visit(&mut self, _: &mut Visitor<'_>) -> Result<(), Stop> {
        unreachable!("a type that holds no tensor was looked into")
    }
}

#[test]
fn what_is_shared_and_holds_no_tensor_is_not_cloned() {
    const { assert!(!<Arc<Never>>::MAY_HOLD_TENSORS) };
    let shared = Arc::new(Never);
    ids(&mut Arc::clone(&shared));
    ids(&mut (Arc::clone(&shared), vec![Arc::clone(&shared)]));
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_copy_of_what_is_shared_leaves_the_others_as_they_are() {
    let host = Device::host();
    let shared = Arc::new(vec![tensor(0.0), tensor(1.0)]);
    let options = || CopyOptions::default().policy(CopyPolicy::Always);
    let copy = start_copy(vec![Arc::clone(&shared), Arc::clone(&shared)], &host, options()).unwrap();
    assert_eq!(shared.iter().map(id).collect::<Vec<_>>(), [0.0, 1.0], "while it is in flight, too");
    let copies = copy.wait().unwrap();
    assert!(!Arc::ptr_eq(&copies[0], &copies[1]), "sharing of the structure is lost");
    assert!(copies[0][1].shares_memory_with(&copies[1][1]), "that of the memory is not");
    assert!(!copies[0][1].shares_memory_with(&shared[1]));
    assert_eq!(copies.iter().flat_map(|copy| copy.iter().map(id)).collect::<Vec<_>>(), [0.0, 1.0, 0.0, 1.0]);

    let all = start_copy_to_all(Arc::clone(&shared), &[host.clone(), host.clone()], options()).unwrap();
    for copy in all {
        assert_eq!(copy.wait().unwrap().iter().map(id).collect::<Vec<_>>(), [0.0, 1.0]);
    }

    let refused = start_copy(Arc::clone(&shared), &host, options().max_chunk_bytes(0)).unwrap_err();
    assert_eq!(refused.into_value().unwrap().iter().map(id).collect::<Vec<_>>(), [0.0, 1.0]);
    assert_eq!(shared.iter().map(id).collect::<Vec<_>>(), [0.0, 1.0]);
}

#[test]
fn what_is_shared_is_paired_and_shown() {
    let value = Arc::new(vec![tensor(7.0)]);
    let mut names = Vec::new();
    for_each_path(&value, |path, _| {
        names.push(path.to_string());
        Ok(())
    })
    .unwrap();
    assert_eq!(names, ["[0]"]);

    let held = Arc::new(vec![tensor(0.0)]);
    let filled = start_copy_into(Arc::clone(&value), held, CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(id(&filled[0]), 7.0);
    let others = Arc::clone(&filled);
    let refused = start_copy_into(value, filled, CopyOptions::default()).unwrap_err();
    assert!(
        matches!(refused.error(), Error::UnsuitedTensor { error, .. } if matches!(**error, Error::NotWritable { .. })),
        "{refused:#}"
    );
    assert_eq!(id(&others[0]), 7.0);
}
