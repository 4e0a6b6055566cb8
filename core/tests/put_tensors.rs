//! Tensors that a manifest names are put into a structure, in whatever order that shows and visits its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;

use transship_core::{
    Alignment, DType, Device, Error, Manifest, Paths, Step, Stop, Tensor, TensorTree, Visitor,
};

fn packed<S: TensorTree>(tree: &S) -> Manifest {
    Manifest::packed(tree, Alignment::ONE).unwrap()
}

fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::empty(shape, dtype, &Device::host()).unwrap()
}

#[test]
fn tensors_are_put_where_the_manifest_says_or_nowhere() {
    let keys = || (0..40).map(|number| format!("k{number}"));
    let mut tree: HashMap<_, _> = keys().zip((0..40).map(|size| zeros(DType::U16, &[size]))).collect();
    let manifest = packed(&tree);
    let mut count = 0;
    let error = manifest.put_tensors(&mut tree, |leaf| {
        count += 1;
        if count == 40 { Err(Error::NotReady) } else { Ok(zeros(DType::U16, leaf.layout().shape())) }
    });
    assert!(matches!(error, Err(Error::NotReady)));
    assert!(tree.values().all(|tensor| tensor.to_vec::<u16>().unwrap().iter().all(|value| *value == 0)));
    let make = |number: u16, size: usize| Tensor::from(vec![number; size]);
    manifest
        .put_tensors(&mut tree, |leaf| {
            Ok(make(leaf.path()[3..leaf.path().len() - 2].parse().unwrap(), leaf.layout().numel()))
        })
        .unwrap();
    for (number, key) in keys().enumerate() {
        assert_eq!(tree[&key].as_slice::<u16>().unwrap(), vec![number as u16; number]);
    }

    let wrong = manifest.put_tensors(&mut tree, |_| Ok(Tensor::scalar(1_u16)));
    assert!(matches!(wrong, Err(Error::ManifestMismatch { path, .. }) if path == r#"["k0"]"#));
    tree.remove("k7");
    let wrong = manifest.put_tensors(&mut tree, |leaf| Ok(zeros(DType::U16, leaf.layout().shape())));
    assert!(matches!(wrong, Err(Error::ManifestMismatch { path, .. }) if path == r#"["k7"]"#));
}

#[test]
fn a_tree_that_visits_others_than_it_shows_is_an_error() {
    struct Two(Tensor, Tensor, usize);
    impl TensorTree for Two {
        fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
            match self.2 {
                0 => self.0.visit(visitor),
                1 => self.0.visit(visitor).and_then(|()| self.0.visit(visitor)),
                _ => Tensor::scalar(1_u8).visit(visitor),
            }
        }
        fn show(&self, paths: &mut transship_core::Paths<'_>) -> Result<(), Stop> {
            paths.part(transship_core::Step::Index(0), &self.0)?;
            paths.part(transship_core::Step::Index(1), &self.1)
        }
    }
    for way in 0..3 {
        let mut tree = Two(Tensor::scalar(1_u8), Tensor::scalar(2_u8), way);
        let put = packed(&tree).put_tensors(&mut tree, |_| Ok(Tensor::scalar(3_u8)));
        assert!(matches!(put, Err(Error::TreeChanged { first: 2, .. })), "{put:?}");
    }
}

/// Shows its tensors in their order, and visits those of the numbers; a number behind the last one is a tensor that it does not show.
struct InOrder(Vec<Tensor>, Vec<usize>);

impl TensorTree for InOrder {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        let Self(tensors, order) = self;
        order.iter().try_for_each(|number| match tensors.get_mut(*number) {
            Some(tensor) => tensor.visit(visitor),
            None => Tensor::scalar(0_u8).visit(visitor),
        })
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        let mut tensors = self.0.iter().enumerate();
        tensors.try_for_each(|(number, tensor)| paths.part(Step::Index(number), tensor))
    }
}

/// Puts its number into each of 12 tensors, whose paths are in another order than they are shown in: `[10]` comes before `[2]`.
fn put(order: Vec<usize>) -> (Result<(), Error>, Vec<u8>) {
    let mut tree = InOrder((0..12).map(|_| Tensor::scalar(99_u8)).collect(), order);
    let result = packed(&tree).put_tensors(&mut tree, |leaf| {
        Ok(Tensor::scalar(leaf.path().trim_matches(['[', ']']).parse::<u8>().unwrap()))
    });
    (result, tree.0.iter().map(|tensor| tensor.item().unwrap()).collect())
}

/// Deliberate bugs: tensors are put by the number of the visit alone; the first that comes out of order ends the search for all others.
#[test]
fn tensors_get_to_their_places_in_whatever_order_they_are_visited() {
    let shown: Vec<usize> = (0..12).collect();
    let turned: Vec<usize> = shown.iter().rev().copied().collect();
    let rotated: Vec<usize> = (0..12).map(|number| (number + 5) % 12).collect();
    let mut swapped = shown.clone();
    swapped.swap(3, 7);
    for order in [shown, turned, rotated, swapped] {
        let (result, values) = put(order.clone());
        result.unwrap();
        assert_eq!(values, (0..12).collect::<Vec<u8>>(), "{order:?}");
    }
}

/// Deliberate bugs: how many there were is not looked at; one that was put already is put again; what is not shown gets what comes next.
#[test]
fn tensors_that_are_visited_too_often_or_not_at_all_are_an_error() {
    let shown: Vec<usize> = (0..12).collect();
    let with = |at: usize, number: usize| {
        let mut order = shown.clone();
        order.insert(at, number);
        order
    };
    for order in [
        vec![],
        shown[..11].to_vec(),
        shown[1..].to_vec(),
        with(12, 0),
        with(12, 11),
        with(5, 4),
        with(5, 20),
        with(12, 20),
    ] {
        let (result, values) = put(order.clone());
        assert!(matches!(result, Err(Error::TreeChanged { first: 12, .. })), "{order:?}: {result:?}");
        // What was put is in its place.
        let right = |(number, value): (usize, &u8)| *value == 99 || usize::from(*value) == number;
        assert!(values.iter().enumerate().all(right), "{order:?}: {values:?}");
    }
}
