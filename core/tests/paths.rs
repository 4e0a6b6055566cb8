//! A visit that borrows: each tensor with the path to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap, VecDeque};

use indexmap::IndexMap;
use transship_core::{
    Error, Key, MAX_DEPTH, Stop, Tensor, TensorTree, Value, Visitor, for_each_path, for_each_tensor,
};

fn tensor(number: u8) -> Tensor {
    Tensor::scalar(number)
}

/// The path, the name and the number of each tensor.
fn shown<S: TensorTree + ?Sized>(tree: &S) -> Vec<(String, String, u8)> {
    let mut shown = Vec::new();
    for_each_path(tree, |path, tensor| {
        shown.push((path.to_string(), path.name().to_owned(), tensor.item::<u8>()?));
        Ok(())
    })
    .unwrap();
    shown
}

fn names<S: TensorTree + ?Sized>(tree: &S) -> Vec<String> {
    shown(tree).into_iter().map(|(_, name, _)| name).collect()
}

/// catches: 230-name-keeps-the-last-step, 231-second-item-not-shown
#[test]
fn every_container_names_its_tensors() {
    let tree = BTreeMap::from([
        ("a.b", (vec![tensor(1), tensor(2)], 7_u32, Some(Box::new(tensor(3))))),
        ("c", (vec![], 8, None)),
    ]);
    let expected =
        [(r#"["a.b"].0[0]"#, "a.b.0.0", 1), (r#"["a.b"].0[1]"#, "a.b.0.1", 2), (r#"["a.b"].2"#, "a.b.2", 3)];
    assert_eq!(shown(&tree), expected.map(|(path, name, number)| (path.to_owned(), name.to_owned(), number)));

    assert_eq!(names(&[tensor(1), tensor(2)]), ["0", "1"]);
    assert_eq!(names([tensor(1), tensor(2)].as_slice()), ["0", "1"]);
    assert_eq!(names(&VecDeque::from([tensor(1)])), ["0"]);
    assert_eq!(names(&HashMap::from([(5_i64, tensor(1))])), ["5"]);
    assert_eq!(names(&IndexMap::from([("z", tensor(1)), ("a", tensor(2))])), ["z", "a"]);
    assert_eq!(names(&(Ok::<_, String>(tensor(1)), Err::<u8, _>(tensor(2)))), ["0", "1"]);
    assert_eq!(names(&BTreeMap::from([("say \"é\"\n".to_owned(), tensor(1))])), ["say \"é\"\n"]);
    assert_eq!(names(&BTreeMap::from([((1, "a"), tensor(1))])), [r#"(1, "a")"#]);
    assert_eq!(names(&tensor(1)), [""]);
    assert_eq!(names(&(1_u8, vec!["no tensor"])), [""; 0]);
    assert_eq!(names(&5_u8), [""; 0]);
}

#[test]
fn values_name_their_tensors() {
    let item = || Value::from(tensor(1));
    let keys = [Key::from("q"), Key::from(3), Key::from(true), Key::other('c')];
    let dict = Value::dict(keys.map(|key| (key, item())));
    let value = Value::list([item(), Value::tuple([item(), Value::other(5)]), dict]);
    assert_eq!(names(&value), ["0", "1.0", "2.q", "2.3", "2.true", "2.'c'"]);
}

#[test]
fn what_is_shown_is_what_a_visit_shows() {
    let mut tree = (vec![Some(tensor(1)), None, Some(tensor(2))], Ok::<_, Tensor>([tensor(3)]));
    let mut visited = Vec::new();
    for_each_tensor(&mut tree, |tensor| {
        visited.push(tensor.item::<u8>()?);
        Ok(())
    })
    .unwrap();
    assert_eq!(shown(&tree).iter().map(|(_, _, number)| *number).collect::<Vec<_>>(), visited);
}

struct Hidden(Tensor);

impl TensorTree for Hidden {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }
}

#[test]
fn a_type_that_does_not_show_its_tensors_is_named() {
    let tree = BTreeMap::from([("a", vec![Hidden(tensor(1))])]);
    let error = for_each_path(&tree, |_, _| Ok(())).unwrap_err();
    assert!(matches!(&error, Error::NotShown { path, .. } if path == r#"["a"][0]"#), "{error:?}");
    assert!(error.to_string().starts_with(r#"["a"][0]: paths::Hidden implements TensorTree without show()"#));
}

#[test]
fn an_error_ends_it() {
    let mut seen = 0;
    let result = for_each_path(&vec![tensor(1), tensor(2)], |_, _| {
        seen += 1;
        Err(Error::Cancelled)
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(seen, 1);
}

/// On the small stack of a test's thread.
#[test]
fn nesting_ends_in_an_error() {
    let deep = |levels| (0..levels).fold(Value::from(tensor(1)), |inside, _| Value::list([inside]));
    assert_eq!(names(&deep(MAX_DEPTH))[0].len(), 2 * MAX_DEPTH - 1);
    let error = for_each_path(&deep(MAX_DEPTH + 1), |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, Error::TooDeep { limit: MAX_DEPTH }), "{error}");
}
