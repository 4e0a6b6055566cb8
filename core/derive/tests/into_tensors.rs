//! Structures of arrays, the types of tensors that they become, and the way back.

#![deny(warnings, clippy::all, clippy::pedantic, single_use_lifetimes, unused_qualifications, missing_docs)]
#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use transship_core::{
    CopyOptions, CopyPolicy, DType, Device, Error, IntoTensors, Tensor, TensorTree, for_each_path, start_copy,
};
use transship_derive::IntoTensors;

/// No `TensorTree`.
#[derive(Debug, Clone, PartialEq)]
struct Opaque(u8);

/// A camera.
#[derive(IntoTensors, Debug, Clone, PartialEq)]
#[tensor_tree(crate = "transship_core", tensors = DeviceCamera, derive(Debug, Clone))]
pub struct Camera {
    /// Its boxes.
    #[tensor_tree(tensors)]
    pub boxes: Vec<[f32; 4]>,
    /// Its classes.
    #[tensor_tree(tensors)]
    pub class_ids: Option<Box<[i64]>>,
    /// Its name.
    pub name: String,
    #[tensor_tree(skip)]
    opaque: Opaque,
}

#[derive(IntoTensors, Debug, Clone, PartialEq)]
#[tensor_tree(crate = "transship_core", tensors = DeviceBatch)]
struct Batch {
    #[tensor_tree(tensors)]
    cameras: Vec<Camera>,
    #[tensor_tree(tensors)]
    by_name: BTreeMap<String, Vec<Vec<u8>>>,
    #[tensor_tree(tensors)]
    shared: Arc<[f32]>,
    #[tensor_tree(tensors)]
    pair: (Vec<bool>, Arc<Vec<u16>>),
    #[tensor_tree(tensors)]
    last: Option<Box<Camera>>,
    id: u64,
    jpeg: Vec<u8>,
}

fn camera(name: &str) -> Camera {
    Camera {
        boxes: vec![[0.0, 0.5, 1.0, 2.0]; 3],
        class_ids: Some(Box::from([7, 8, 9])),
        name: name.to_owned(),
        opaque: Opaque(3),
    }
}

fn batch() -> Batch {
    Batch {
        cameras: vec![camera("front"), Camera { class_ids: None, ..camera("rear") }],
        by_name: BTreeMap::from([
            ("a".to_owned(), vec![vec![1, 2], vec![]]),
            ("b".to_owned(), vec![vec![3]]),
        ]),
        shared: Arc::from([0.25; 5]),
        pair: (vec![true, false], Arc::new(vec![1, 2])),
        last: Some(Box::new(camera("last"))),
        id: 17,
        jpeg: vec![0xFF, 0xD8],
    }
}

fn there(batch: Batch) -> DeviceBatch {
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    start_copy(batch.into_tensors(), &Device::host(), options).unwrap().wait().unwrap()
}

/// The paths of all tensors, with their shapes.
fn shapes<S: TensorTree>(tree: &S) -> Vec<String> {
    let mut shapes = Vec::new();
    for_each_path(tree, |path, tensor| {
        shapes.push(format!("{path} {:?}", tensor.shape()));
        Ok(())
    })
    .unwrap();
    shapes
}

#[test]
fn arrays_become_tensors_and_all_else_stays() {
    let batch = batch();
    let jpeg = batch.jpeg.as_ptr();
    let there = there(batch);
    assert_eq!((there.id, there.jpeg.as_ptr(), &there.cameras[1].name[..]), (17, jpeg, "rear"));
    assert_eq!(there.cameras[0].opaque, Opaque(3));
    assert!(there.cameras[1].class_ids.is_none());
    assert_eq!(
        shapes(&there),
        [
            ".cameras[0].boxes [3, 4]",
            ".cameras[0].class_ids [3]",
            ".cameras[1].boxes [3, 4]",
            r#".by_name["a"][0] [2]"#,
            r#".by_name["a"][1] [0]"#,
            r#".by_name["b"][0] [1]"#,
            ".shared [5]",
            ".pair.0 [2]",
            ".pair.1 [2]",
            ".last.boxes [3, 4]",
            ".last.class_ids [3]",
        ]
    );
    assert_eq!(there.pair.0.dtype(), DType::Bool);
    assert!(there.shared.shares_memory_with(&there.pair.0), "packed");
    assert_eq!(Batch::from_tensors(there).unwrap(), self::batch());
}

/// The addresses of vectors that the batch has.
fn addresses(batch: &Batch) -> [usize; 4] {
    let class_ids = batch.cameras[0].class_ids.as_ref().unwrap();
    let [one, two] = [class_ids.as_ptr().addr(), batch.by_name["b"][0].as_ptr().addr()];
    [one, two, batch.pair.0.as_ptr().addr(), batch.pair.1.as_ptr().addr()]
}

/// Mutant: vectors are copied on the way.
#[test]
fn a_copy_that_is_refused_gives_the_vectors_back() {
    let batch = batch();
    let before = addresses(&batch);
    let none = CopyOptions::default().max_chunk_bytes(0);
    let refused = start_copy(batch.into_tensors(), &Device::host(), none).unwrap_err();
    let batch = Batch::from_tensors(refused.into_value().unwrap()).unwrap();
    assert_eq!(addresses(&batch), before, "where they lay");
    assert_eq!(batch, self::batch());
}

#[test]
fn what_is_shared_is_lent_in_place() {
    let shared: Arc<[f32]> = Arc::from([1.0, 2.0]);
    let vec = Arc::new(vec![3_u8, 4]);
    let tensors = (Arc::clone(&shared), Arc::clone(&vec)).into_tensors();
    let address = |tensor: &Tensor| tensor.address().unwrap().unwrap();
    assert_eq!(address(&tensors.0), shared.as_ptr().addr() as u64);
    assert_eq!(address(&tensors.1), vec.as_ptr().addr() as u64);
    let mut own = Tensor::from(Arc::new(vec![5_u8]));
    own.as_mut_slice::<u8>().unwrap()[0] = 6;
    let mut lent = tensors.1;
    assert!(matches!(lent.as_mut_slice::<u8>(), Err(Error::NotWritable { .. })));
    drop((shared, vec));
    assert_eq!(
        (tensors.0.to_vec::<f32>().unwrap(), lent.to_vec::<u8>().unwrap()),
        (vec![1.0, 2.0], vec![3, 4])
    );
}

/// Mutant: what was made before the failure is lost.
#[test]
fn what_becomes_no_arrays_comes_back_whole() {
    let break_one: [fn(&mut DeviceBatch); 5] = [
        |batch| batch.cameras[1].boxes = Tensor::from(vec![1.0_f32; 12]),
        |batch| batch.cameras[0].boxes = Tensor::from_vec(vec![1.0_f32; 6], &[2, 3]).unwrap(),
        |batch| batch.by_name.get_mut("b").unwrap()[0] = Tensor::from(vec![1_i8]),
        |batch| batch.shared = Tensor::scalar(1.0_f32),
        |batch| batch.pair.1 = Tensor::from(vec![1.5_f32]),
    ];
    for (index, break_one) in break_one.into_iter().enumerate() {
        let mut there = there(batch());
        break_one(&mut there);
        let before = shapes(&there);
        let refused = Batch::from_tensors(there).unwrap_err();
        let is_told = match (index, refused.error()) {
            (0, error) => matches!(error, Error::WrongRank { asked: 2, .. }),
            (1, Error::ShapeMismatch { shape, expected, actual, .. }) => {
                (&shape[..], *expected, *actual) == (&[2, 4], 32, 24)
            }
            (2, error) => matches!(error, Error::WrongDType { actual: DType::I8, asked: DType::U8 }),
            (3, error) => matches!(error, Error::WrongRank { asked: 1, .. }),
            (_, error) => matches!(error, Error::WrongDType { actual: DType::F32, asked: DType::U16 }),
        };
        assert!(is_told, "{index}: {refused}");
        let mut there = refused.into_value();
        assert_eq!(shapes(&there), before, "{index}");
        assert_eq!((there.id, there.jpeg.len()), (17, 2));
        let whole = self::there(batch());
        there.cameras[0].boxes = whole.cameras[0].boxes.clone();
        there.cameras[1].boxes = whole.cameras[1].boxes.clone();
        (there.by_name, there.shared, there.pair.1) = (whole.by_name, whole.shared, whole.pair.1);
        assert_eq!(Batch::from_tensors(there).unwrap(), batch(), "{index}");
    }
}

#[derive(IntoTensors, Debug, PartialEq)]
#[tensor_tree(crate = "transship_core", tensors = DeviceSample)]
enum Sample {
    Nothing,
    Image(#[tensor_tree(tensors)] Vec<u8>, u32),
    Sequence {
        #[tensor_tree(tensors)]
        frames: Vec<Sample>,
        rate: f64,
    },
    #[tensor_tree(skip)]
    Broken(Opaque),
}

#[test]
fn enums_become_enums_of_the_same_variants() {
    let samples = || {
        let frames = vec![Sample::Image(vec![1, 2], 3), Sample::Nothing];
        vec![Sample::Sequence { frames, rate: 29.97 }, Sample::Broken(Opaque(1)), Sample::Image(vec![], 0)]
    };
    let tensors = samples().into_tensors();
    assert_eq!(shapes(&tensors), ["[0].frames[0].0 [2]", "[2].0 [0]"]);
    assert!(
        matches!(&tensors[0], DeviceSample::Sequence { rate, .. } if rate.to_bits() == 29.97_f64.to_bits())
    );
    assert_eq!(Vec::<Sample>::from_tensors(tensors).unwrap(), samples());
}

#[derive(IntoTensors, Debug, PartialEq)]
#[tensor_tree(crate = "transship_core", tensors = DeviceGeneric)]
struct Generic<'a, T, U, const N: usize>
where
    U: Debug,
{
    #[tensor_tree(tensors)]
    items: Vec<T>,
    #[tensor_tree(tensors)]
    nodes: Vec<Generic<'a, T, U, N>>,
    kept: Option<U>,
    name: &'a str,
    numbers: [u8; N],
}

#[derive(IntoTensors)]
#[tensor_tree(crate = "transship_core", tensors = DeviceTuple, bound = "T: IntoTensors")]
struct Tuple<T>(#[tensor_tree(tensors)] HashMap<u8, T>, #[tensor_tree(tensors)] Vec<T>);

#[derive(IntoTensors, Debug, PartialEq)]
#[tensor_tree(crate = "transship_core", tensors = DeviceNode)]
struct Node<T> {
    #[tensor_tree(tensors)]
    values: Vec<T>,
    #[tensor_tree(tensors)]
    next: Option<Box<Self>>,
    #[tensor_tree(tensors)]
    pairs: Vec<(Self, String)>,
    #[tensor_tree(skip)]
    marker: std::marker::PhantomData<fn(&Self)>,
}

#[test]
fn types_that_hold_themselves_become_such() {
    let node = |next, pairs| Node { values: vec![1_u8], next, pairs, marker: std::marker::PhantomData };
    let leaf = || node(None, vec![]);
    let tree = || node(Some(Box::new(leaf())), vec![(leaf(), "a".to_owned())]);
    let tensors = tree().into_tensors();
    assert_eq!(shapes(&tensors), [".values [1]", ".next.values [1]", ".pairs[0].0.values [1]"]);
    assert_eq!(Node::from_tensors(tensors).unwrap(), tree());
}

#[test]
fn generic_types_become_generic_types() {
    let node = |nodes| Generic { items: vec![1.5_f32], nodes, kept: Some(7_u8), name: "x", numbers: [1, 2] };
    let tensors: DeviceGeneric<'_, f32, u8, 2> = node(vec![node(vec![])]).into_tensors();
    assert_eq!(shapes(&tensors), [".items [1]", ".nodes[0].items [1]"]);
    assert_eq!(Generic::from_tensors(tensors).unwrap(), node(vec![node(vec![])]));

    // In the place of elements, structures.
    let of_structs =
        Generic { items: vec![camera("a")], nodes: vec![], kept: Some(()), name: "y", numbers: [] };
    assert_eq!(shapes(&of_structs.into_tensors()), [".items[0].boxes [3, 4]", ".items[0].class_ids [3]"]);

    let tensors = Tuple(HashMap::from([(1, vec![2_u32])]), vec![]).into_tensors();
    assert_eq!(shapes(&tensors), [".0[1] [1]"]);
}

#[test]
fn what_was_converted_on_the_way_is_told() {
    use transship_core::Cast;
    let options = CopyOptions::default().cast(Cast::new(DType::F32, DType::F64));
    let there = start_copy(camera("front").into_tensors(), &Device::host(), options).unwrap().wait().unwrap();
    let refused = Camera::from_tensors(there).unwrap_err();
    assert!(matches!(refused.error(), Error::WrongDType { actual: DType::F64, asked: DType::F32 }));
    assert_eq!(refused.into_value().boxes.shape(), [3, 4]);
}

/// Nothing that the generated code needs comes from the names in scope.
mod shadowed {
    #![allow(dead_code, reason = "the names are what is tested")]

    struct Result;
    struct Ok;
    struct Err;
    struct IntoTensors;
    struct TensorTree;
    struct Refused;
    struct Tensor;
    mod core {}

    #[derive(transship_derive::IntoTensors)]
    #[tensor_tree(crate = "::transship_core", tensors = DeviceShadowed)]
    pub(super) struct Shadowed {
        #[tensor_tree(tensors)]
        pub(super) r#type: Vec<f32>,
        #[tensor_tree(tensors)]
        pub(super) __field0: Vec<u8>,
        pub(super) __tensors: u8,
    }
}

#[test]
fn generated_code_does_not_depend_on_names_in_scope() {
    let tensors = shadowed::Shadowed { r#type: vec![0.0], __field0: vec![1, 2], __tensors: 3 }.into_tensors();
    assert_eq!(shapes(&tensors), [".type [1]", ".__field0 [2]"]);
    let arrays = shadowed::Shadowed::from_tensors(tensors).ok().unwrap();
    assert_eq!((arrays.r#type, arrays.__field0, arrays.__tensors), (vec![0.0], vec![1, 2], 3));
}
