//! Structures known only at run time.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::thread;

use indexmap::IndexMap;
use transship_core::{Error, Key, MAX_DEPTH, Tensor, Value, for_each_tensor};

fn tensor(id: f32) -> Tensor {
    Tensor::from_vec(vec![id], &[1]).unwrap()
}

fn value(id: f32) -> Value {
    tensor(id).into()
}

fn ids(tree: &mut Value) -> Vec<f32> {
    let mut ids = Vec::new();
    for_each_tensor(tree, |tensor| {
        ids.push(tensor.as_slice::<f32>()?[0]);
        Ok(())
    })
    .unwrap();
    ids
}

/// A tensor inside of so many lists, tuples and dicts by turns.
fn nested(levels: usize) -> Value {
    (0..levels).fold(value(0.0), |inside, level| match level % 3 {
        0 => Value::list([inside]),
        1 => Value::tuple([inside, Value::other(level)]),
        _ => Value::dict([("inside", inside), ("flat", Value::list([]))]),
    })
}

/// Runs `test` on a stack of the size that threads have if nobody asks for another.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(2 << 20).spawn(test).unwrap().join().unwrap();
}

#[test]
fn tensors_are_visited_in_order_and_all_else_stays() {
    let mut tree = Value::dict([
        ("z", Value::list([value(0.0), value(1.0)])),
        ("a", Value::tuple([Value::other("label"), value(2.0)])),
        ("m", Value::dict([(3, value(3.0)), (-1, Value::other(17_u64))])),
    ]);
    for_each_tensor(&mut tree, |seen| {
        *seen = tensor(seen.as_slice::<f32>()?[0] + 10.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(ids(&mut tree), [10.0, 11.0, 12.0, 13.0]);
    let label = tree.get("a").and_then(|tuple| tuple.index(0)).and_then(Value::downcast_ref::<&str>);
    assert_eq!(label, Some(&"label"));
    let number = tree.get("m").and_then(|dict| dict.get(&-1_i64)).and_then(Value::downcast_ref::<u64>);
    assert_eq!(number, Some(&17));
    let keys: Vec<_> = tree.as_dict().unwrap().keys().filter_map(Key::as_str).collect();
    assert_eq!(keys, ["z", "a", "m"]);
    assert!(matches!(tree.get("a"), Some(Value::Tuple(items)) if items.len() == 2));
}

#[test]
fn keys_of_every_kind_are_found_and_kept_apart() {
    let keys = [
        Key::from("1"),
        Key::from(1),
        Key::from(true),
        Key::other((1, "b")),
        Key::other((1, "c")),
        Key::other(1_u8),
        Key::other(String::from("1")),
    ];
    let dict = Value::dict(keys.iter().cloned().enumerate().map(|(index, key)| (key, Value::other(index))));
    assert_eq!(dict.as_dict().map(IndexMap::len), Some(keys.len()));
    let found = |value: Option<&Value>| value.and_then(Value::downcast_ref::<usize>).copied();
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(found(dict.get(key)), Some(index), "{key:?}");
    }
    assert_eq!(found(dict.get("1")), Some(0));
    assert_eq!(found(dict.get(&1_i64)), Some(1));
    assert_eq!(found(dict.get(&true)), Some(2));
    assert_eq!(found(dict.get(&Key::other((1, "c")))), Some(4));
    assert_eq!(keys[3].downcast_ref::<(i32, &str)>(), Some(&(1, "b")));
}

#[test]
fn what_is_missing_is_none() {
    let tree = Value::dict([("list", Value::list([value(0.0)]))]);
    assert!(tree.get("other").is_none() && tree.get(&0_i64).is_none() && tree.index(0).is_none());
    assert!(tree.get("list").unwrap().index(1).is_none());
    assert!(tree.get("list").unwrap().get("list").is_none());
    assert!(tree.as_tensor().is_none() && tree.as_list().is_none() && tree.as_dict().is_some());
    assert!(tree.downcast_ref::<u8>().is_none());
}

#[test]
fn values_come_out_as_what_they_are_or_come_back() {
    assert_eq!(value(1.0).into_tensor().unwrap().as_slice::<f32>().unwrap(), [1.0]);
    assert_eq!(Value::tuple([value(0.0), value(1.0)]).into_list().unwrap().len(), 2);
    assert_eq!(Value::dict([("a", value(0.0))]).into_dict().unwrap().len(), 1);
    assert_eq!(Value::other(String::from("text")).downcast::<String>().unwrap(), "text");

    let other = Value::other(3_u8).into_tensor().unwrap_err().into_list().unwrap_err();
    let other = other.into_dict().unwrap_err().downcast::<i8>().unwrap_err();
    assert_eq!(other.downcast::<u8>().unwrap(), 3);
}

#[test]
fn values_are_taken_apart_by_match() {
    let tree: Value = [value(0.0), Value::other(1)].into_iter().collect();
    let Value::List(items) = tree else { unreachable!() };
    let kinds: Vec<_> = items
        .into_iter()
        .map(|item| match item {
            Value::Tensor(tensor) => tensor.shape().len(),
            Value::Other(other) => other.downcast::<i32>().map_or(7, |_| 8),
            _ => 9,
        })
        .collect();
    assert_eq!(kinds, [1, 8]);
}

#[test]
#[cfg_attr(miri, ignore = "so many levels take Miri many minutes")]
fn a_visit_goes_as_deep_as_allowed_and_no_deeper() {
    on_a_small_stack(|| {
        assert_eq!(ids(&mut nested(MAX_DEPTH)), [0.0]);
        for levels in [MAX_DEPTH + 1, MAX_DEPTH + 2, 100_000] {
            let result = for_each_tensor(&mut nested(levels), |_| Ok(()));
            assert!(matches!(result, Err(Error::TooDeep { limit: MAX_DEPTH })), "{result:?}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "so many levels take Miri many minutes")]
fn deep_nesting_is_dropped_without_recursion() {
    on_a_small_stack(|| drop(nested(1_000_000)));
    on_a_small_stack(|| drop(nested(100_000).into_list()));
    on_a_small_stack(|| {
        let mut wide: Vec<_> = (0..4).map(|_| nested(50_000)).collect();
        wide.truncate(2);
        drop(Value::from(wide));
    });
}

#[test]
fn everything_inside_is_dropped() {
    let counted = std::sync::Arc::new(());
    let tree = (0..100).fold(Value::list([]), |inside, _| {
        Value::list([
            Value::other(counted.clone()),
            inside,
            Value::dict([("x", Value::other(counted.clone()))]),
        ])
    });
    assert_eq!(std::sync::Arc::strong_count(&counted), 201);
    drop(tree);
    assert_eq!(std::sync::Arc::strong_count(&counted), 1);
}

#[test]
#[cfg_attr(miri, ignore = "so many levels take Miri many minutes")]
fn debug_prints_what_is_there_down_to_some_depth() {
    let tree = Value::dict([("a", Value::tuple([Value::other(0), Value::list([])]))]);
    assert_eq!(format!("{tree:?}"), r#"{"a": (Other(..), [])}"#);
    on_a_small_stack(|| {
        let tree = nested(100_000);
        assert!(format!("{tree:?}").contains(".."));
        assert!(format!("{tree:#?}").len() < 10_000);
    });
}

#[test]
fn values_go_to_other_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Value>();
}
