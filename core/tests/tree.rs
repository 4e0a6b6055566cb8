//! What a visit of the types of the standard library shows.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use transship_core::{Error, MAX_DEPTH, Stop, Tensor, TensorTree, Visitor, for_each_tensor};

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
