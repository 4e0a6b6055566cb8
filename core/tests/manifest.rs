//! Manifests: what they say, that both sides say it in the same bytes, and that bytes of strangers are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fmt::{Debug, Formatter};

use proptest::prelude::*;
use transship_core::{
    Alignment, CopyOptions, DType, Device, Error, Key, Manifest, Paths, Stop, Tensor, TensorTree, Value,
    Visitor, for_each_path, start_copy,
};

/// Path, type, shape, chunk and offset.
type Said = (String, DType, Vec<usize>, Option<usize>, usize);

fn said(manifest: &Manifest) -> Vec<Said> {
    let mut said = Vec::new();
    manifest
        .for_each_leaf(|leaf| {
            let (path, layout) = (leaf.path().to_owned(), leaf.layout());
            said.push((path, layout.dtype(), layout.shape().to_vec(), leaf.chunk(), leaf.offset()));
            Ok(())
        })
        .unwrap();
    said
}

fn align(bytes: usize) -> Alignment {
    Alignment::new(bytes).unwrap()
}

fn packed<S: TensorTree>(tree: &S) -> Manifest {
    Manifest::packed(tree, align(16)).unwrap()
}

fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::empty(shape, dtype, &Device::host()).unwrap()
}

/// `body` with the hash that it should have.
fn hashed(body: &[u8]) -> Vec<u8> {
    [body, &twox_hash::XxHash3_64::oneshot(body).to_le_bytes()].concat()
}

#[track_caller]
fn refused(body: &[u8], why: &str) {
    match Manifest::from_bytes(hashed(body)) {
        Err(Error::InvalidManifest { reason, .. }) if reason.contains(why) => {}
        other => panic!("{other:?} for {body:?}, which should have been: {why}"),
    }
}

/// The example of docs/MANIFEST.md, byte by byte.
#[test]
fn the_format_is_what_its_document_says() {
    let weight = zeros(DType::F32, &[2, 3]).transpose(0, 1).unwrap();
    let tree =
        BTreeMap::from([("bias", zeros(DType::BF16, &[300])), ("b", zeros(DType::U8, &[0])), ("w", weight)]);
    let manifest = Manifest::of(&tree).unwrap();
    let body = [
        &b"TSMF\x01"[..],
        &[2, 0xd8, 0x04, 24], // two chunks: 600 and 24 bytes
        &[3],                 // three leaves
        &[0, 5],
        b"[\"b\"]",
        &[2, 1, 0, 0],
        &[3, 5],
        b"ias\"]",
        &[11, 1, 0xac, 0x02, 1, 0],
        &[2, 3],
        b"w\"]",
        &[0x8c, 2, 3, 2, 1, 3, 2, 0],
    ]
    .concat();
    assert_eq!(manifest.to_bytes(), hashed(&body));
    assert_eq!(manifest.hash(), 0x27019ff172590d88);
}

#[test]
fn a_manifest_says_where_tensors_lie() {
    let whole = Tensor::from((0..100_u8).collect::<Vec<_>>());
    let tree = vec![
        whole.narrow(0, 10, 20).unwrap(),
        Tensor::from(vec![1_u32, 2]),
        whole.slice(0, 0..100, 3).unwrap(),
        Tensor::from(Vec::<f64>::new()),
    ];
    let manifest = Manifest::of(&tree).unwrap();
    assert_eq!(manifest.chunks(), [100, 8]);
    let expected = [
        ("[0]", DType::U8, vec![20], Some(0), 10),
        ("[1]", DType::U32, vec![2], Some(1), 0),
        ("[2]", DType::U8, vec![34], Some(0), 0),
        ("[3]", DType::F64, vec![0], None, 0),
    ];
    let expected =
        expected.map(|(path, dtype, shape, chunk, offset)| (path.to_owned(), dtype, shape, chunk, offset));
    assert_eq!(said(&manifest), expected);
    manifest
        .for_each_leaf(|leaf| {
            let strides = leaf.layout().explicit_strides();
            assert_eq!(strides, (leaf.path() == "[2]").then_some(&[3][..]));
            Ok(())
        })
        .unwrap();
}

/// catches: 564-shared-memory-is-copied-twice
#[test]
fn packed_tensors_lie_in_one_chunk_and_share_it() {
    let shared = Tensor::from(vec![1_u8; 5]);
    let strided = zeros(DType::F64, &[4, 2]).transpose(0, 1).unwrap();
    let tree = (shared.clone(), zeros(DType::U16, &[3]), strided, shared, Tensor::scalar(1_u8));
    let manifest = Manifest::packed(&tree, align(64)).unwrap();
    let places: Vec<_> = said(&manifest).into_iter().map(|leaf| (leaf.3, leaf.4)).collect();
    assert_eq!(places, [(Some(0), 0), (Some(0), 64), (Some(0), 128), (Some(0), 0), (Some(0), 192)]);
    assert_eq!(manifest.chunks(), [193]);

    let empty = Manifest::packed(&vec![Tensor::from(Vec::<u8>::new())], align(64)).unwrap();
    assert_eq!((empty.chunks(), empty.len()), (&[][..], 1));
    let endless = Tensor::scalar(1_u8).as_strided(&[usize::MAX / 3], &[0], 0).unwrap();
    let error = Manifest::packed(&vec![endless; 2], align(64)).map(|_| ()).err();
    // They are over the same memory, but not in one run: each would have its own.
    assert!(matches!(error, Some(Error::TooLarge { .. })), "{error:?}");
}

/// catches: 534-leaves-in-the-order-of-the-map
#[test]
fn the_order_of_maps_does_not_matter() {
    let names: Vec<String> = (0..200).map(|number| format!("layer {number}")).collect();
    let map = || {
        names
            .iter()
            .map(|name| (name.clone(), Tensor::from(vec![0_u8; name.len()])))
            .collect::<HashMap<_, _>>()
    };
    let (one, other) = (packed(&map()), packed(&map()));
    assert_eq!(one, other);
    one.check_same(&other).unwrap();
}

/// `Debug` leaves out what tells keys apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Layer(u32);

impl Debug for Layer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("attn")
    }
}

/// Deliberate bug: tensors of keys that print alike are told apart by the order of their map, which is another one in each process.
#[test]
fn keys_that_print_alike_are_refused() {
    let entry = |number| (Layer(number), vec![zeros(DType::U8, &[2])]);
    let error = Manifest::packed(&vec![HashMap::from([1, 2].map(entry))], align(8)).unwrap_err();
    assert!(matches!(&error, Error::KeysPrintAlike { path } if path == "[0][attn][0]"), "{error}");
    Manifest::of(&BTreeMap::from([1, 2].map(entry))).unwrap_err();
    // One key, and parts without names of their own.
    assert_eq!(Manifest::of(&HashMap::from([entry(1)])).unwrap().len(), 1);
    assert_eq!(Manifest::of(&Unnamed([1, 2].map(|size| zeros(DType::U8, &[size])))).unwrap().len(), 2);
}

/// Shows its tensors by no names.
struct Unnamed([Tensor; 2]);

impl TensorTree for Unnamed {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.iter_mut().try_for_each(|tensor| tensor.visit(visitor))
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.0.iter().try_for_each(|tensor| tensor.show(paths))
    }
}

#[test]
fn a_tensor_takes_few_bytes() {
    let camera = |_| {
        let names = ["boxes", "labels", "masks", "depth", "intrinsics", "timestamp"];
        BTreeMap::from(names.map(|name| (name, zeros(DType::F32, &[3, 7, 640]))))
    };
    let tree: BTreeMap<_, Vec<_>> = BTreeMap::from([("samples", (0..88).map(camera).collect())]);
    for manifest in [Manifest::of(&tree).unwrap(), packed(&tree)] {
        assert_eq!(manifest.len(), 528);
        assert!(manifest.to_bytes().len() < 40 * manifest.len(), "{}", manifest.to_bytes().len());
    }
}

#[test]
fn a_tensor_that_a_copy_has_is_refused() {
    struct Asks(Vec<Tensor>, bool);
    impl TensorTree for Asks {
        fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
            if std::mem::take(&mut self.1) {
                self.0.visit(visitor)?;
                assert!(matches!(Manifest::of(&self.0), Err(Error::Taken)));
                assert!(matches!(Manifest::packed(&self.0, align(16)), Err(Error::Taken)));
                return Ok(());
            }
            self.0.visit(visitor)
        }
    }
    let tree = Asks(vec![Tensor::scalar(1_u8)], true);
    start_copy(tree, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    let shows_nothing = Asks(vec![Tensor::scalar(1_u8)], false);
    assert!(matches!(Manifest::of(&shows_nothing), Err(Error::NotShown { .. })));
}

/// catches: 535-shapes-not-compared
#[test]
fn the_first_tensor_that_differs_is_named() {
    let tree = |shape: &[usize], last: &str| {
        BTreeMap::from([
            ("a".to_owned(), zeros(DType::U8, &[4])),
            ("b".to_owned(), zeros(DType::I32, shape)),
            (last.to_owned(), zeros(DType::U8, &[1])),
        ])
    };
    let own = packed(&tree(&[2, 3], "c"));
    let mismatch = |other: &Manifest| match own.check_same(other) {
        Err(Error::ManifestMismatch { path, own, other }) => (path, own, other),
        same => panic!("{same:?}"),
    };
    let text = |(path, own, other): (&str, &str, &str)| (path.to_owned(), own.to_owned(), other.to_owned());

    let other_shape = packed(&tree(&[3, 2], "c"));
    assert_eq!(mismatch(&other_shape), text((r#"["b"]"#, "int32 [2, 3]", "int32 [3, 2]")));
    assert_eq!(mismatch(&packed(&tree(&[2, 3], "bb"))), text((r#"["bb"]"#, "no tensor", "uint8 [1]")));
    assert_eq!(mismatch(&packed(&tree(&[2, 3], "d"))), text((r#"["c"]"#, "uint8 [1]", "no tensor")));
    let mut fewer = tree(&[2, 3], "c");
    fewer.remove("c");
    assert_eq!(mismatch(&packed(&fewer)), text((r#"["c"]"#, "uint8 [1]", "no tensor")));
    assert!(own.check_tensors(&other_shape).is_err() && other_shape.check_tensors(&own).is_err());

    let elsewhere = Manifest::packed(&tree(&[2, 3], "c"), align(64)).unwrap();
    own.check_tensors(&elsewhere).unwrap();
    assert_eq!(
        mismatch(&elsewhere),
        text((
            r#"["b"]"#,
            "byte 16 of chunk 0",
            "byte 64 of chunk 0 (tensors over the same memory share a place)"
        ))
    );
    let larger = hashed(b"TSMF\x01\x01\x09\x01\x00\x00\x02\x00\x01\x00");
    let smaller = hashed(b"TSMF\x01\x01\x08\x01\x00\x00\x02\x00\x01\x00");
    let error = Manifest::from_bytes(larger).unwrap().check_same(&Manifest::from_bytes(smaller).unwrap());
    assert!(matches!(error, Err(Error::ManifestMismatch { path, .. }) if path.is_empty()));
}

/// catches: 530-hash-not-looked-at
#[test]
fn what_is_cut_or_changed_is_refused() {
    let manifest = packed(&vec![zeros(DType::F32, &[2, 3]), zeros(DType::U8, &[300])]);
    let bytes = manifest.to_bytes();
    assert_eq!(&Manifest::from_bytes(bytes.to_vec()).unwrap(), &manifest);
    for end in 0..bytes.len() {
        assert!(Manifest::from_bytes(bytes[..end].to_vec()).is_err(), "cut at {end}");
    }
    for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1 << bit;
        assert!(Manifest::from_bytes(changed).is_err(), "bit {bit} of byte {at}");
    }
}

/// catches: 531-tensors-behind-their-chunk, 532-number-of-chunks-trusted
#[test]
fn bytes_of_strangers_are_refused_with_the_reason() {
    const HEAD: &[u8] = b"TSMF\x01";
    let with = |rest: &[u8]| [HEAD, rest].concat();
    refused(b"", "ends too early");
    refused(b"TSMF\x02\0\0", "version 1");
    refused(b"RIFF\x01\0\0", "version 1");
    refused(&with(&[]), "ends too early");
    refused(&with(&[3, 1]), "fewer chunks");
    refused(&with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), "fewer chunks");
    refused(&with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), "machine word");
    refused(&with(&[0xff; 11]), "machine word");
    refused(&with(&[0x80, 0]), "longer than it needs");
    refused(
        &with(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0]),
        "larger than any memory",
    );
    refused(&with(&[0, 0, 0]), "behind the last tensor");
    refused(&with(&[0, 0xff, 0xff, 0x7f, 0]), "fewer tensors");

    let leaf = |leaf: &[u8]| with(&[&[1, 8, 1], leaf].concat());
    assert!(Manifest::from_bytes(hashed(&leaf(&[0, 1, b'a', 2, 1, 8, 1, 0]))).is_ok());
    refused(&leaf(&[1, 1, b'a', 2, 0, 1, 0]), "shares more");
    refused(&leaf(&[0, 9, b'a', 2, 0, 1, 0]), "ends too early");
    refused(&leaf(&[0, 1, 0xff, 2, 0, 1, 0]), "UTF-8");
    refused(&leaf(&[0, 0, 0, 0, 1, 0]), "no element type");
    refused(&leaf(&[0, 0, 19, 0, 1, 0]), "no element type");
    refused(&leaf(&[0, 0, 0xff, 0, 1, 0]), "no element type");
    refused(&leaf(&[0, 0, 2, 9, 1, 0]), "fewer dimensions");
    refused(&leaf(&[0, 0, 2, 1, 9, 1, 0]), "does not lie in its chunk");
    refused(&leaf(&[0, 0, 2, 1, 8, 1, 1]), "does not lie in its chunk");
    refused(&leaf(&[0, 0, 2, 1, 8, 2, 0]), "does not lie in its chunk");
    refused(&leaf(&[0, 0, 2, 1, 8, 0]), "does not lie in its chunk");
    refused(&leaf(&[0, 0, 2, 1, 0, 1, 0]), "does not lie in its chunk");
    let last = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    refused(&leaf(&[&[0, 0, 2, 1, 8, 1], &last[..]].concat()), "does not lie in its chunk");
    refused(&leaf(&[&[0, 0, 2, 1], &last[..], &[1, 0]].concat()), "more bytes than any memory");
    refused(&leaf(&[&[0, 0, 0x82, 1, 2], &last[..], &[1, 0]].concat()), "more bytes than any memory");
    refused(&leaf(&[0, 0, 0x82, 1, 8, 1, 1, 0]), "has strides");
    refused(&leaf(&[0, 0, 0x82, 1, 8, 2, 1, 0]), "does not lie in its chunk");

    let leaves = |leaves: &[&[u8]]| with(&[&[0, leaves.len() as u8], &leaves.concat()[..]].concat());
    let (a, b) = ([0, 1, b'a', 2, 1, 0, 0], [0, 1, b'b', 2, 1, 0, 0]);
    assert!(Manifest::from_bytes(hashed(&leaves(&[&a, &b]))).is_ok());
    assert!(Manifest::from_bytes(hashed(&leaves(&[&a, &[1, 0, 2, 1, 0, 0]]))).is_ok(), "two of one path");
    refused(&leaves(&[&b, &a]), "not in order");
    refused(&leaves(&[&a, &a]), "not in order");
    refused(&leaves(&[&a, &[0, 0, 2, 1, 0, 0]]), "not in order");
    let umlaut = [0, 2, 0xc3, 0xa4, 2, 1, 0, 0];
    refused(&leaves(&[&umlaut, &[1, 1, 0xb6, 2, 1, 0, 0]]), "UTF-8");
    refused(&leaves(&[&umlaut, &[1, 1, b'a', 2, 1, 0, 0]]), "shares more");
}

/// catches: 533-paths-of-any-length
#[test]
fn paths_that_share_a_long_beginning_are_not_a_way_to_fill_the_memory() {
    let mut body = b"TSMF\x01\0".to_vec();
    body.extend([0xd0, 0x0f, 0, 0xe0, 0xd4, 0x03]); // 2,000 tensors; 60,000 letters
    body.extend([b'a'; 60_000]);
    body.extend([2, 1, 0, 0]);
    for _ in 1..2_000 {
        body.extend([0xe0, 0xd4, 0x03, 0, 2, 1, 0, 0]);
    }
    refused(&body, "too long");
}

fn tree() -> impl Strategy<Value = Sketch> {
    let leaf = (prop::sample::select(DType::ALL), prop::collection::vec(0..5_usize, 0..4), any::<bool>())
        .prop_map(|(dtype, shape, turned)| Sketch::Tensor(dtype, shape, turned));
    leaf.prop_recursive(4, 60, 6, |inside| {
        prop_oneof![
            prop::collection::vec(inside.clone(), 0..6).prop_map(Sketch::List),
            prop::collection::btree_map("[a-cä\"\u{1F600}]{0,3}", inside, 0..6).prop_map(Sketch::Dict),
        ]
    })
}

#[derive(Debug, Clone)]
enum Sketch {
    Tensor(DType, Vec<usize>, bool),
    List(Vec<Sketch>),
    Dict(BTreeMap<String, Sketch>),
}

fn build(sketch: &Sketch) -> Value {
    match sketch {
        Sketch::Tensor(dtype, shape, turned) => {
            let tensor = zeros(*dtype, shape);
            let turns = *turned && shape.len() > 1;
            if turns { tensor.transpose(0, 1).unwrap().into() } else { tensor.into() }
        }
        Sketch::List(items) => Value::list(items.iter().map(build)),
        Sketch::Dict(items) => {
            Value::dict(items.iter().map(|(key, item)| (Key::from(key.as_str()), build(item))))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    /// What is read says what was written, whatever the structure.
    #[test]
    fn manifests_come_back(sketch in tree()) {
        let tree = build(&sketch);
        let mut shown = Vec::new();
        for_each_path(&tree, |path, tensor| {
            shown.push((path.to_string(), tensor.dtype(), tensor.shape().to_vec()));
            Ok(())
        }).unwrap();
        shown.sort_by(|one, other| one.0.cmp(&other.0));
        for manifest in [Manifest::of(&tree).unwrap(), packed(&tree)] {
            let read = Manifest::from_bytes(manifest.to_bytes().to_vec()).unwrap();
            prop_assert_eq!(&read, &manifest);
            prop_assert_eq!(read.hash(), manifest.hash());
            let found: Vec<_> = said(&read).into_iter().map(|(path, dtype, shape, ..)| (path, dtype, shape)).collect();
            prop_assert_eq!(&found, &shown);
            manifest.check_same(&read).unwrap();
        }
        Manifest::of(&tree).unwrap().check_tensors(&packed(&tree)).unwrap();
    }

    /// One byte that is another one is refused, or says something else in its only form.
    #[test]
    fn changed_bytes_say_something_else(sketch in tree(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let manifest = packed(&build(&sketch));
        let mut body = manifest.to_bytes()[..manifest.to_bytes().len() - 8].to_vec();
        let at = at.index(body.len());
        prop_assume!(body[at] != byte);
        body[at] = byte;
        if let Ok(other) = Manifest::from_bytes(hashed(&body)) {
            prop_assert!(manifest.check_same(&other).is_err());
            prop_assert_eq!(other.to_bytes(), hashed(&body));
        }
    }
}
