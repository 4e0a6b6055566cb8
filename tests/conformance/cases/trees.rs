//! Containers, derived types, values, and how deeply they may be nested.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use indexmap::IndexMap;
use libtest_mimic::Failed;
use transship::{DType, Error, IntoTensors, Tensor, TensorTree, Value, start_copy};

use crate::bed::Bed;
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(containers),
        case!(derived_struct),
        case!(derived_enum),
        case!(derived_generic),
        case!(shared_structure),
        case!(structure_of_arrays),
        case!(value_with_other_leaves),
        case!(three_hundred_levels),
        case!(ten_thousand_levels_are_refused),
    ]
}

fn containers(bed: &Bed) -> Result<(), Failed> {
    let leaf = || bed.tensor(DType::F32, &[3]);
    let hashed: HashMap<&str, Tensor> = [("a", leaf()), ("b", leaf())].into();
    let sorted: BTreeMap<i32, Vec<Tensor>> = [(1, vec![leaf()]), (-5, vec![leaf(), leaf()])].into();
    let ordered: IndexMap<char, (Tensor, u8)> = [('z', (leaf(), 1)), ('a', (leaf(), 2))].into();
    let queue: VecDeque<Tensor> = [leaf(), leaf()].into();
    let few = (Some(leaf()), None::<Tensor>, Box::new(leaf()), [leaf(), leaf()], Ok::<_, String>(leaf()));
    let trip = bed.round_trip((hashed, sorted, ordered, queue, few), bed.options())?;
    assert_eq!(trip.up.leaves, 2 + 3 + 2 + 2 + 5);
    let (hashed, sorted, ordered, _, few) = trip.value;
    assert!(hashed.contains_key("a") && hashed.contains_key("b"));
    assert_eq!(sorted.keys().copied().collect::<Vec<_>>(), [-5, 1]);
    let tags: Vec<_> = ordered.iter().map(|(key, (_, tag))| (*key, *tag)).collect();
    assert_eq!(tags, [('z', 1), ('a', 2)]);
    assert!(few.0.is_some() && few.1.is_none() && few.4.is_ok());
    Ok(())
}

#[derive(TensorTree)]
struct Camera {
    boxes: Tensor,
    name: String,
    depth: Option<Tensor>,
    /// Of a type that knows nothing of tensors.
    #[tensor_tree(skip)]
    lens: Lens,
}

#[derive(Debug, PartialEq)]
struct Lens(f32);

fn derived_struct(bed: &Bed) -> Result<(), Failed> {
    let camera = |name: &str, depth| Camera {
        boxes: bed.tensor(DType::F32, &[4, 4]),
        name: name.to_owned(),
        depth,
        lens: Lens(1.4),
    };
    let sent = vec![camera("front", None), camera("rear", Some(bed.tensor(DType::F16, &[9])))];
    let name = sent[0].name.as_ptr();
    let trip = bed.round_trip(sent, bed.options())?;
    assert_eq!(trip.up.leaves, 3);
    let [front, rear] = &trip.value[..] else { panic!("two cameras") };
    assert_eq!((front.name.as_str(), rear.name.as_str()), ("front", "rear"));
    assert_eq!(front.name.as_ptr(), name, "what is no tensor stays where it is");
    assert!(front.depth.is_none() && rear.depth.is_some());
    assert_eq!((&front.lens, rear.boxes.shape()), (&Lens(1.4), &[4, 4][..]));
    Ok(())
}

#[derive(TensorTree)]
enum Sample {
    Nothing,
    Image(Tensor, u32),
    Sequence { frames: Vec<Tensor>, rate: f64 },
}

fn derived_enum(bed: &Bed) -> Result<(), Failed> {
    let frames = vec![bed.bytes(10), bed.bytes(20)];
    let sent =
        vec![Sample::Image(bed.bytes(7), 42), Sample::Nothing, Sample::Sequence { frames, rate: 29.97 }];
    let trip = bed.round_trip(sent, bed.options())?;
    assert_eq!(trip.up.leaves, 3);
    let [Sample::Image(_, 42), Sample::Nothing, Sample::Sequence { frames, rate }] = &trip.value[..] else {
        panic!("other variants came back");
    };
    assert_eq!((frames.len(), *rate), (2, 29.97));
    Ok(())
}

#[derive(TensorTree)]
struct Labelled<T, const N: usize> {
    parts: [T; N],
    label: &'static str,
}

fn derived_generic(bed: &Bed) -> Result<(), Failed> {
    let inner = |label| Labelled { parts: [bed.bytes(3), bed.bytes(5)], label };
    let sent = Labelled { parts: [inner("one"), inner("two"), inner("three")], label: "all" };
    let trip = bed.round_trip(sent, bed.options())?;
    assert_eq!(trip.up.leaves, 6);
    assert_eq!((trip.value.label, trip.value.parts[2].label), ("all", "three"));
    Ok(())
}

/// Two owners in one structure, and one that keeps what it has.
fn shared_structure(bed: &Bed) -> Result<(), Failed> {
    let shared = Arc::new(vec![bed.bytes(7), bed.tensor(DType::F32, &[5])]);
    let [number, bytes] = [shared[1].to_bytes()?, shared[0].to_bytes()?];
    let trip = bed.round_trip([Arc::clone(&shared), Arc::clone(&shared)], bed.options())?;
    assert_eq!(trip.up.leaves, 4);
    assert!(trip.value[0][1].shares_memory_with(&trip.value[1][1]) || bed.device.is_host());
    assert_eq!((shared[1].to_bytes()?, shared[0].to_bytes()?), (number, bytes));
    assert!(shared[0].device_id()?.is_host());
    Ok(())
}

#[derive(IntoTensors, Clone, Debug, PartialEq)]
#[tensor_tree(tensors = DeviceLabels, derive(Debug))]
struct Labels {
    #[tensor_tree(tensors)]
    boxes: Vec<[f32; 4]>,
    #[tensor_tree(tensors)]
    masks: Vec<Vec<bool>>,
    #[tensor_tree(tensors)]
    weights: Arc<[f64]>,
    jpeg: Vec<u8>,
}

fn structure_of_arrays(bed: &Bed) -> Result<(), Failed> {
    let labels = Labels {
        boxes: vec![[0.0, 0.5, 1.0, 1.5]; 9],
        masks: vec![vec![true; 11], vec![], vec![false, true]],
        weights: Arc::from([0.25; 3]),
        jpeg: vec![0xFF, 0xD8],
    };
    let trip =
        bed.round_trip(vec![labels.clone().into_tensors(), labels.clone().into_tensors()], bed.options())?;
    assert_eq!(trip.up.leaves, 10);
    assert_eq!(Vec::<Labels>::from_tensors(trip.value)?, [labels.clone(), labels]);
    Ok(())
}

fn value_with_other_leaves(bed: &Bed) -> Result<(), Failed> {
    let list = Value::list([bed.bytes(9).into(), Value::other(String::from("text")), Value::list([])]);
    let tuple = Value::tuple([bed.tensor(DType::F64, &[2]).into(), Value::other(7_u8)]);
    let dict = Value::dict([("list", list), ("tuple", tuple), ("alone", bed.bytes(1).into())]);
    let trip = bed.round_trip(dict, bed.options())?;
    assert_eq!(trip.up.leaves, 3);
    let entries = trip.value.as_dict().expect("a dict");
    let keys: Vec<_> = entries.keys().filter_map(|key| key.as_str()).collect();
    assert_eq!(keys, ["list", "tuple", "alone"]);
    let text = trip.value.get("list").and_then(|list| list.index(1)).and_then(Value::downcast_ref::<String>);
    assert_eq!(text.map(String::as_str), Some("text"));
    assert!(matches!(trip.value.get("tuple"), Some(Value::Tuple(items)) if items.len() == 2));
    Ok(())
}

fn nested(levels: usize, leaf: Tensor) -> Value {
    (0..levels).fold(Value::from(leaf), |inner, _| Value::list([inner]))
}

fn innermost(mut value: &Value) -> (usize, &Value) {
    let mut levels = 0;
    while let Some(inner) = value.index(0) {
        value = inner;
        levels += 1;
    }
    (levels, value)
}

fn three_hundred_levels(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(nested(300, bed.bytes(11)), bed.options())?;
    assert_eq!(innermost(&trip.value).0, 300);
    Ok(())
}

fn ten_thousand_levels_are_refused(bed: &Bed) -> Result<(), Failed> {
    let leaf = bed.bytes(11);
    let bytes = leaf.to_bytes()?;
    let sent = Value::list([bed.bytes(3).into(), nested(10_000, leaf)]);
    let failed = start_copy(sent, &bed.device, bed.options()).expect_err("too deep");
    assert!(matches!(failed.error(), Error::TooDeep { limit } if *limit < 10_000), "{failed}");
    let back = failed.into_value().expect("the value comes back");
    let first = back.index(0).and_then(Value::as_tensor).expect("a tensor");
    assert_eq!(first.to_bytes()?.len(), 3, "it was taken before the visit ended, and is back");
    let (levels, leaf) = innermost(back.index(1).expect("the deep one"));
    assert_eq!((levels, leaf.as_tensor().expect("a tensor").to_bytes()?), (10_000, bytes));
    drop(back);
    bed.still_works()
}
