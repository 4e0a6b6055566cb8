//! Types of every form, and what a visit of them shows.

#![deny(warnings, clippy::all, clippy::pedantic, single_use_lifetimes, unused_qualifications)]
#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use transship_core::{Error, MAX_DEPTH, Tensor, TensorTree, for_each_tensor};
use transship_derive::TensorTree;

fn tensor(id: f32) -> Tensor {
    Tensor::from_vec(vec![id], &[1]).unwrap()
}

/// The numbers of the tensors of `tree`, in the order of the visit.
fn ids(tree: &mut impl TensorTree) -> Vec<f32> {
    let mut ids = Vec::new();
    for_each_tensor(tree, |tensor| {
        ids.push(tensor.as_slice::<f32>()?[0]);
        Ok(())
    })
    .unwrap();
    ids
}

/// No `TensorTree`.
#[derive(Debug, PartialEq)]
struct Opaque(u8);

#[derive(PartialEq, Eq, Hash, Debug)]
struct OpaqueKey;

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Named {
    z: Tensor,
    name: String,
    a: (Tensor, u64),
    #[tensor_tree(skip)]
    opaque: Opaque,
    m: Vec<Tensor>,
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Tuple(Tensor, #[tensor_tree(skip)] Opaque, Option<Tensor>);

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Unit;

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
enum Every {
    Unit,
    Tuple(Tensor, u8, Tensor),
    Named {
        first: Tensor,
        second: Box<Every>,
    },
    #[tensor_tree(skip)]
    Skipped(Opaque),
    PartlySkipped(#[tensor_tree(skip)] Opaque, Tensor),
}

#[derive(Debug, Clone, Copy, PartialEq, TensorTree)]
#[tensor_tree(crate = "transship_core")]
enum Label {
    Car,
    Person,
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
enum Never {}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Node {
    tensor: Tensor,
    next: Option<Box<Node>>,
    children: HashMap<u8, Vec<Node>>,
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Tree<T> {
    value: T,
    children: Vec<Tree<T>>,
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Generic<'a, T, U: Iterator, M, S, const N: usize>
where
    T: Debug,
    U::Item: Debug,
{
    name: &'a str,
    items: [T; N],
    next: Option<U::Item>,
    last: Option<<U as Iterator>::Item>,
    marker: PhantomData<M>,
    #[tensor_tree(skip)]
    source: (U, S),
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core", bound = "K: Eq + Hash + Debug, V: TensorTree")]
struct Lookup<K, V>(HashMap<K, V>);

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Unsized<T: ?Sized> {
    count: u8,
    rest: T,
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
struct Odd {
    r#type: Tensor,
    visitor: Tensor,
    __visitor: Tensor,
    __field0: Tensor,
    self_: Tensor,
    #[deprecated]
    old: Tensor,
}

#[test]
fn fields_are_visited_in_their_order_and_all_else_stays() {
    let mut named = Named {
        z: tensor(0.0),
        name: "front".into(),
        a: (tensor(1.0), 17),
        opaque: Opaque(3),
        m: vec![tensor(2.0), tensor(3.0)],
    };
    for_each_tensor(&mut named, |seen| {
        *seen = tensor(seen.as_slice::<f32>()?[0] + 10.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(ids(&mut named), [10.0, 11.0, 12.0, 13.0]);
    assert_eq!((named.name.as_str(), named.a.1, named.opaque), ("front", 17, Opaque(3)));
    assert_eq!(named.z.as_slice::<f32>().unwrap(), [10.0]);
    assert_eq!(named.m[1].as_slice::<f32>().unwrap(), [13.0]);

    let mut tuple = Tuple(tensor(0.0), Opaque(1), Some(tensor(1.0)));
    assert_eq!(ids(&mut tuple), [0.0, 1.0]);
    assert_eq!(tuple.1, Opaque(1));
    assert_eq!(ids(&mut Unit), []);
}

#[test]
fn every_variant_is_visited() {
    assert_eq!(ids(&mut Every::Unit), []);
    assert_eq!(ids(&mut Every::Tuple(tensor(0.0), 1, tensor(2.0))), [0.0, 2.0]);
    let second = Box::new(Every::Tuple(tensor(1.0), 0, tensor(2.0)));
    assert_eq!(ids(&mut Every::Named { first: tensor(0.0), second }), [0.0, 1.0, 2.0]);
    let mut skipped = Every::Skipped(Opaque(1));
    assert_eq!(ids(&mut skipped), []);
    assert!(matches!(skipped, Every::Skipped(Opaque(1))));
    let mut partly = Every::PartlySkipped(Opaque(2), tensor(1.0));
    assert_eq!(ids(&mut partly), [1.0]);
    assert!(matches!(partly, Every::PartlySkipped(Opaque(2), _)));
}

#[test]
fn types_without_visited_fields_are_not_looked_into() {
    const {
        assert!(!<Vec<Label>>::MAY_HOLD_TENSORS && !Unit::MAY_HOLD_TENSORS && !Never::MAY_HOLD_TENSORS);
        assert!(Node::MAY_HOLD_TENSORS && Every::MAY_HOLD_TENSORS);
    }
    let mut labels = vec![Label::Car, Label::Person];
    assert_eq!(ids(&mut labels), []);
    assert_eq!(labels, [Label::Car, Label::Person]);
}

#[test]
fn recursive_types_are_visited_down_to_the_limit() {
    let node = |id, next| Node { tensor: tensor(id), next, children: HashMap::new() };
    let mut root = node(0.0, Some(Box::new(node(1.0, None))));
    root.children.insert(0, vec![node(2.0, None)]);
    assert_eq!(ids(&mut root), [0.0, 1.0, 2.0]);

    let leaf = Tree { value: tensor(1.0), children: vec![] };
    assert_eq!(ids(&mut Tree { value: tensor(0.0), children: vec![leaf] }), [0.0, 1.0]);

    let chain = |length| (1..length).fold(node(0.0, None), |next, _| node(0.0, Some(Box::new(next))));
    // A link is three levels: the struct, the option and the box; the last one has no box.
    let fits = (MAX_DEPTH + 1) / 3;
    assert_eq!(ids(&mut chain(fits)).len(), fits);
    let too_deep = for_each_tensor(&mut chain(fits + 1), |_| Ok(()));
    assert!(matches!(too_deep, Err(Error::TooDeep { limit: MAX_DEPTH })), "{too_deep:?}");
}

#[test]
fn generic_types_ask_only_for_what_they_visit() {
    let mut generic = Generic::<'_, _, _, Opaque, _, 2> {
        name: "x",
        items: [tensor(0.0), tensor(1.0)],
        next: Some(tensor(2.0)),
        last: None,
        marker: PhantomData,
        source: (std::iter::empty::<Tensor>(), Opaque(0)),
    };
    assert_eq!(ids(&mut generic), [0.0, 1.0, 2.0]);
    assert_eq!((generic.name, generic.source.1), ("x", Opaque(0)));

    assert_eq!(ids(&mut Lookup(HashMap::from([(OpaqueKey, tensor(0.0))]))), [0.0]);

    let unsized_: &mut Unsized<[Tensor]> = &mut Unsized { count: 2, rest: [tensor(0.0), tensor(1.0)] };
    let mut seen = 0;
    for_each_tensor(unsized_, |_| {
        seen += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, unsized_.count);
}

#[test]
fn names_of_fields_do_not_clash_with_generated_ones() {
    #[allow(deprecated)]
    let mut odd = Odd {
        r#type: tensor(0.0),
        visitor: tensor(1.0),
        __visitor: tensor(2.0),
        __field0: tensor(3.0),
        self_: tensor(4.0),
        old: tensor(5.0),
    };
    assert_eq!(ids(&mut odd), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

/// Nothing that the generated code needs comes from the names in scope.
mod shadowed {
    #![allow(dead_code, non_upper_case_globals, reason = "the names are what is tested")]

    struct Result;
    struct Ok;
    struct Err;
    struct TensorTree;
    struct Visitor;
    struct Stop;
    mod core {}
    const visitor: u8 = 0;

    #[derive(transship_derive::TensorTree)]
    #[tensor_tree(crate = "::transship_core")]
    pub(super) struct Shadowed {
        pub(super) tensor: transship_core::Tensor,
    }
}

#[test]
fn generated_code_does_not_depend_on_names_in_scope() {
    assert_eq!(ids(&mut shadowed::Shadowed { tensor: tensor(0.0) }), [0.0]);
}
