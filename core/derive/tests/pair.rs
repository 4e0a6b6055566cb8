//! How two values of a type are paired: fields by name, and only the same variants.

#![deny(warnings, clippy::all, clippy::pedantic, single_use_lifetimes, unused_qualifications)]
#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use transship_core::{CopyOptions, Tensor, TensorTree, for_each_path, start_copy_into};
use transship_derive::TensorTree;

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core", bound = "K: Eq + Hash + Debug")]
struct Batch<K> {
    step: u64,
    layers: HashMap<K, Layer>,
    r#type: Option<Tensor>,
    #[tensor_tree(skip)]
    note: &'static str,
}

#[derive(TensorTree)]
#[tensor_tree(crate = "transship_core")]
enum Layer {
    Linear { weight: Tensor, bias: Tensor },
    Scale(Tensor),
    Nothing,
}

fn tensor(byte: u8) -> Tensor {
    Tensor::from(vec![byte; 4])
}

fn batch(step: u64, layers: impl IntoIterator<Item = (&'static str, Layer)>) -> Batch<&'static str> {
    Batch { step, layers: layers.into_iter().collect(), r#type: Some(tensor(9)), note: "as it was" }
}

fn linear(byte: u8) -> Layer {
    Layer::Linear { weight: tensor(byte), bias: tensor(byte + 1) }
}

/// The error, with both structures whole.
fn refused<S: TensorTree>(value: S, into: S) -> String {
    let failed = start_copy_into(value, into, CopyOptions::default()).unwrap_err();
    let text = failed.error().to_string();
    assert!(matches!(failed.into_both(), (Some(_), Some(_))));
    text
}

/// Mutant: variants are not compared.
#[test]
fn what_is_new_comes_out_over_the_old_memory() {
    let layers = || [("a", linear(1)), ("b", Layer::Nothing), ("c", Layer::Scale(tensor(3)))];
    let held = batch(1, layers());
    let address = |batch: &Batch<&str>| match &batch.layers["a"] {
        Layer::Linear { weight, .. } => weight.address().unwrap(),
        _ => None,
    };
    let before = address(&held);
    let mut value = batch(2, layers().into_iter().rev());
    value.note = "new";
    value.layers.insert("a", linear(5));
    let filled = start_copy_into(value, held, CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!((filled.step, filled.note, address(&filled)), (2, "new", before));
    let Layer::Linear { weight, bias } = &filled.layers["a"] else { unreachable!() };
    assert_eq!((weight.to_bytes().unwrap(), bias.to_bytes().unwrap()), (vec![5; 4], vec![6; 4]));
}

#[test]
fn what_differs_is_named() {
    let other = refused(batch(1, [("a", linear(1))]), batch(1, [("a", Layer::Scale(tensor(1)))]));
    assert!(other.starts_with(r#".layers["a"]: Linear to copy, but Scale to copy into"#), "{other}");
    let mut without = batch(1, [("a", Layer::Nothing)]);
    without.r#type = None;
    let missing = refused(without, batch(1, [("a", Layer::Nothing)]));
    assert!(missing.starts_with(".type: None to copy, but Some to copy into"), "{missing}");
    let larger = Layer::Linear { weight: tensor(1), bias: Tensor::from(vec![1_u8; 5]) };
    let larger = refused(batch(1, [("a", larger)]), batch(1, [("a", linear(1))]));
    assert!(larger.starts_with(r#".layers["a"].bias has shape [5] of uint8"#), "{larger}");
    let scale = |bytes| batch(1, [("a", Layer::Scale(Tensor::from(vec![1_u8; bytes])))]);
    let longer = refused(scale(4), scale(5));
    assert!(longer.starts_with(r#".layers["a"].0 has shape [4]"#), "{longer}");
}

#[test]
fn fields_are_shown_by_name() {
    let batch = batch(3, [("b", linear(1)), ("c", Layer::Scale(tensor(3))), ("d", Layer::Nothing)]);
    let mut shown = Vec::new();
    for_each_path(&batch, |path, tensor| {
        shown.push((path.to_string(), path.name().to_owned(), tensor.as_slice::<u8>()?[0]));
        Ok(())
    })
    .unwrap();
    shown.sort();
    let expected = [
        (r#".layers["b"].bias"#, "layers.b.bias", 2),
        (r#".layers["b"].weight"#, "layers.b.weight", 1),
        (r#".layers["c"].0"#, "layers.c.0", 3),
        (".type", "type", 9),
    ];
    assert_eq!(shown, expected.map(|(path, name, byte)| (path.to_owned(), name.to_owned(), byte)));
}
