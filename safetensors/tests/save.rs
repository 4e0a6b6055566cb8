//! What is saved: every byte, from every kind of device, as the format has it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Duration;

use late_backend::{Call, LateConfig};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use support::{
    DTYPES, Entry, bytes_of, check, devices, entry, file_of, folder, late, mixed, no_violations, options,
    path_of,
};
use transship::{
    CopyOptions, DType, Device, Error, Stop, StreamPriority, Tensor, TensorTree, Visitor, start_copy,
};
use transship_safetensors::{SaveError, SaveOptions, Tensors, load, save};

/// What the crate `safetensors` makes of the same tensors.
fn reference(entries: &[Entry], metadata: &[(&str, &str)]) -> Vec<u8> {
    let view = |entry: &'_ Entry| {
        let number = DTYPES.iter().position(|(name, _)| *name == entry.dtype).unwrap();
        FORMAT[number]
    };
    let views = entries.iter().map(|entry| {
        (entry.name.clone(), TensorView::new(view(entry), entry.shape.clone(), &entry.bytes).unwrap())
    });
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    safetensors::serialize(views, (!metadata.is_empty()).then_some(metadata)).unwrap()
}

const FORMAT: [Dtype; 17] = [
    Dtype::BOOL,
    Dtype::U8,
    Dtype::U16,
    Dtype::U32,
    Dtype::U64,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::F16,
    Dtype::BF16,
    Dtype::F32,
    Dtype::F64,
    Dtype::C64,
    Dtype::F8_E4M3,
    Dtype::F8_E5M2,
    Dtype::F8_E8M0,
];

fn loaded(entries: &[Entry], device: &Device) -> Tensors {
    let folder = folder(&[("in.safetensors", file_of(entries))]);
    load(folder.path(), device, options()).unwrap()
}

fn up<S: TensorTree>(tree: S, device: &Device) -> S {
    start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap()
}

/// catches: 232-window-at-the-start-of-its-tensor, 233-scratch-written-where-it-ends, 248-header-not-padded, 249-small-elements-first
#[test]
fn every_byte_is_saved_from_every_device() {
    let entries = mixed("layer", 1);
    let (folder, expected) =
        (tempfile::tempdir().unwrap(), reference(&entries, &[("made by", "a \"test\"")]));
    let path = path_of(&folder, "model.safetensors");
    for (device, late) in devices() {
        let tensors = loaded(&entries, &device);
        for (budget, threads) in [(64 << 10, 1), (128 << 10, 5), (1 << 20, 3), (64 << 20, 8)] {
            let options = SaveOptions::default().metadata([("made by", "a \"test\"")]);
            save(&tensors, &path, options.budget(budget).threads(threads)).unwrap();
            assert!(
                fs::read(&path).unwrap() == expected,
                "from {device:?} with {budget} bytes, {threads} threads"
            );
        }
        device.drain().unwrap();
        no_violations(late.as_ref());
    }
    let again = load(&path, &Device::host(), options()).unwrap();
    check(&again, &entries, &Device::host());
    assert_eq!(again.metadata("made by"), Some("a \"test\""));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_tensors_are_saved_as_others_save_them(
        shapes in proptest::collection::vec((0_usize..16, proptest::collection::vec(0_usize..40, 0..4)), 0..60),
        large in 0_usize..3 << 20,
        threads in 1_usize..6,
    ) {
        let one = |(number, (dtype, shape)): (usize, &(usize, Vec<usize>))| {
            entry(&format!("t{number}"), *dtype, shape, number)
        };
        let mut entries: Vec<_> = shapes.iter().enumerate().map(one).collect();
        entries.insert(entries.len() / 2, entry("large", 1, &[large], 7));
        let (handle, device) = late(LateConfig::new("late"));
        let (folder, expected) = (tempfile::tempdir().unwrap(), reference(&entries, &[]));
        let path = path_of(&folder, "a.safetensors");
        for device in [Device::host(), device] {
            let options = SaveOptions::default().budget(256 << 10).threads(threads);
            save(&loaded(&entries, &device), &path, options).unwrap();
            prop_assert!(fs::read(&path).unwrap() == expected);
        }
        no_violations(Some(&handle));
    }
}

/// Views of one memory, with gaps, transposed, broadcast, cut, and larger than a window.
fn views(device: &Device) -> BTreeMap<String, Tensor> {
    let numbers = (0..600_000_u32).map(|number| number.wrapping_mul(2_654_435_761)).collect();
    let whole = up(Tensor::from_vec(numbers, &[1000, 600]).unwrap(), device);
    BTreeMap::from([
        ("columns".to_owned(), whole.narrow(1, 13, 301).unwrap()),
        ("every_third".to_owned(), whole.slice(0, 1..1000, 3).unwrap()),
        ("transposed".to_owned(), whole.transpose(0, 1).unwrap()),
        ("one_column".to_owned(), whole.narrow(1, 7, 1).unwrap()),
        ("repeated".to_owned(), whole.as_strided(&[700, 600], &[0, 1], 600).unwrap()),
        ("rows".to_owned(), whole.narrow(0, 5, 3).unwrap()),
        ("element".to_owned(), whole.narrow(0, 5, 1).unwrap().narrow(1, 5, 1).unwrap()),
        ("whole".to_owned(), whole),
    ])
}

/// catches: 234-strides-forgotten
#[test]
fn views_are_saved_without_their_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_of(&folder, "views.safetensors");
    let expected: Vec<_> =
        views(&Device::host()).into_iter().map(|(name, view)| (name, bytes_of(&view))).collect();
    for (device, late) in devices() {
        for budget in [128 << 10, 64 << 20] {
            save(&views(&device), &path, SaveOptions::default().budget(budget)).unwrap();
            let file = fs::read(&path).unwrap();
            let saved = safetensors::SafeTensors::deserialize(&file).unwrap();
            assert_eq!(saved.len(), expected.len());
            for (name, bytes) in &expected {
                assert!(saved.tensor(name).unwrap().data() == bytes, "{name} from {device:?}");
            }
        }
        no_violations(late.as_ref());
    }
}

#[test]
fn names_are_made_of_fields_keys_and_indices() {
    let tensor = |byte: u8| Tensor::from(vec![byte; 3]);
    let layers = vec![
        BTreeMap::from([("attn.q", tensor(1)), ("attn.k", tensor(2))]),
        BTreeMap::from([("mlp \"é\"\n", tensor(3))]),
    ];
    let folder = tempfile::tempdir().unwrap();
    save(&(layers, Some(tensor(4)), "no tensor"), path_of(&folder, "a"), SaveOptions::default()).unwrap();
    let tensors = load(path_of(&folder, "a"), &Device::host(), options()).unwrap();
    assert_eq!(tensors.names().collect::<Vec<_>>(), ["0.0.attn.k", "0.0.attn.q", "0.1.mlp \"é\"\n", "1"]);
    assert_eq!(tensors.get("0.1.mlp \"é\"\n").unwrap().as_slice::<u8>().unwrap(), [3; 3]);
}

struct Hidden(Tensor);

impl TensorTree for Hidden {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }
}

/// The error; nothing is written.
#[track_caller]
fn refused<S: TensorTree>(tree: &S) -> SaveError {
    let folder = tempfile::tempdir().unwrap();
    let error = save(tree, path_of(&folder, "a.safetensors"), SaveOptions::default()).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{error}");
    error
}

/// catches: 235-second-of-a-name-wins
#[test]
fn tensors_that_cannot_be_named_are_errors() {
    let tensor = || Tensor::from(vec![1_u8]);
    let nested = BTreeMap::from([("b", vec![tensor()])]);
    let twice = refused(&BTreeMap::from([("a", Ok(nested)), ("a.b", Err(vec![tensor()]))]));
    assert_eq!(
        twice.to_string(),
        r#"the tensors ["a"]["b"][0] and ["a.b"][0] are both named "a.b.0"; give one of them another field or key"#
    );
    assert!(matches!(refused(&tensor()), SaveError::NoName { path } if path.is_empty()));
    let empty = refused(&BTreeMap::from([("", tensor())]));
    assert!(matches!(&empty, SaveError::NoName { path } if path == r#"[""]"#), "{empty}");
    let reserved = refused(&BTreeMap::from([("__metadata__", tensor())]));
    assert!(matches!(reserved, SaveError::ReservedName { .. }), "{reserved}");
    let hidden = refused(&vec![Hidden(tensor())]);
    assert!(matches!(&hidden, SaveError::Tree(Error::NotShown { path, .. }) if path == "[0]"), "{hidden}");
    let complex = Tensor::zeros(&[2], DType::Complex128, &Device::host()).unwrap();
    let complex = refused(&BTreeMap::from([("wave", complex)]));
    assert!(matches!(&complex, SaveError::DType { tensor, .. } if tensor == "wave"), "{complex}");
}

#[test]
fn options_that_cannot_be_are_errors() {
    for (options, name) in [
        (SaveOptions::default().budget(65_535), "budget"),
        (SaveOptions::default().threads(0), "threads"),
        (SaveOptions::default().threads(257), "threads"),
        (SaveOptions::default().shard_bytes(0), "shard_bytes"),
    ] {
        let error = save(&vec![Tensor::scalar(1_u8)], "never", options).unwrap_err();
        assert!(
            matches!(error, SaveError::Option(Error::InvalidOption { name: wrong, .. }) if wrong == name)
        );
    }
}

#[test]
fn a_tensor_that_is_still_filled_is_waited_for() {
    let (handle, device) = late(LateConfig::new("late"));
    let folder = tempfile::tempdir().unwrap();
    let compute = device.create_stream(StreamPriority::Normal).unwrap();
    let host = BTreeMap::from([("a", Tensor::from(vec![7_u8; 3 << 20]))]);
    handle.stall_for(Duration::from_millis(100));
    let tensors = start_copy(host, &device, CopyOptions::default()).unwrap().wait_on(&compute).unwrap();
    assert!(!tensors["a"].is_ready().unwrap());
    save(&tensors, path_of(&folder, "a.safetensors"), SaveOptions::default()).unwrap();
    let again = load(folder.path(), &Device::host(), options()).unwrap();
    assert!(again.get("a").unwrap().as_slice::<u8>().unwrap().iter().all(|byte| *byte == 7));
    no_violations(Some(&handle));
}

#[test]
fn a_device_that_fails_at_any_call_is_an_error_and_leaves_the_old_file() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", b"old".to_vec())]);
    let path = path_of(&folder, "a.safetensors");
    for call in [Call::Staging, Call::Submit] {
        let mut failed = 0;
        for after in [0, 1, 2, 5, 11] {
            let (late, device) = late(LateConfig::new("late"));
            let tensors = loaded(&entries, &device);
            late.fail_next(call, after);
            let saved = save(&tensors, &path, SaveOptions::default().budget(256 << 10).threads(3));
            late.fail_no_more();
            match saved {
                Ok(()) => assert!(fs::read(&path).unwrap() == reference(&entries, &[])),
                Err(error) => {
                    failed += 1;
                    assert!(matches!(error, SaveError::Device { .. }), "{call:?} {after}: {error}");
                    assert!(error.to_string().contains("a.safetensors: tensor \"t."), "{error}");
                    assert_eq!(fs::read(&path).unwrap(), b"old");
                }
            }
            assert_eq!(files_of(folder.path()), ["a.safetensors"]);
            fs::write(&path, b"old").unwrap();
            no_violations(Some(&late));
        }
        // Without a staging block results are ordinary memory.
        assert!(failed > 0 || matches!(call, Call::Staging), "no {call:?} has failed");
    }
}

fn files_of(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_model_of_several_files_has_an_index() {
    let entries: Vec<_> =
        (0..10).map(|number| entry(&format!("t{number}"), number, &[1000], number)).collect();
    let bytes: usize = entries.iter().map(|entry| entry.bytes.len()).sum();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let tensors = loaded(&entries, &Device::host());
    let options_of = |bytes| SaveOptions::default().shard_bytes(bytes).metadata([("format", "pt")]);
    for (shard_bytes, files) in [(1, 10), (9000, 5), (u64::MAX, 1)] {
        save(&tensors, &path, options_of(shard_bytes)).unwrap();
        let names = files_of(&path);
        let shards = names.iter().filter(|name| name.ends_with(&format!("-of-{files:05}.safetensors")));
        assert_eq!((shards.count(), names.len()), (files, files + 1), "{names:?}");
        let index = fs::read_to_string(path.join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_str(&index).unwrap();
        assert_eq!(index["metadata"]["total_size"], bytes);
        assert_eq!(index["weight_map"].as_object().unwrap().len(), entries.len());
        let again = load(&path, &Device::host(), options()).unwrap();
        check(&again, &entries, &Device::host());
        assert!(again.files().iter().all(|file| file.metadata()["format"] == "pt"));
    }
    // To a folder that is there, without a word about files.
    save(&tensors, &path, SaveOptions::default()).unwrap();
    assert_eq!(files_of(&path).len(), 2);
}

#[test]
fn no_tensors_are_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let none: Vec<Tensor> = Vec::new();
    save(&none, folder.path().join("none.safetensors"), SaveOptions::default()).unwrap();
    assert!(load(folder.path().join("none.safetensors"), &Device::host(), options()).unwrap().is_empty());
    save(&none, folder.path().join("none"), SaveOptions::default().shard_bytes(1 << 20)).unwrap();
    assert!(load(folder.path().join("none"), &Device::host(), options()).unwrap().is_empty());
}

#[test]
fn what_is_loaded_is_saved_as_it_was() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let tensors = load(folder.path(), &Device::host(), options()).unwrap();
    let metadata = tensors.files()[0].metadata();
    save(&tensors, path_of(&folder, "a.safetensors"), SaveOptions::default().metadata(metadata)).unwrap();
    let again = load(folder.path(), &Device::host(), options()).unwrap();
    assert_eq!(again.files()[0].metadata(), metadata);
    check(&again, &entries, &Device::host());
}

/// catches: 228-index-written-over
#[test]
fn a_single_file_is_not_in_the_way_of_a_model() {
    let folder = folder(&[]);
    let (at, model) = (
        |name: &str| folder.path().join(name),
        |value: u8| BTreeMap::from([("a", Tensor::from(vec![value]))]),
    );
    let model_folder = at("model");
    save(&model(1), &model_folder, SaveOptions::default().shard_bytes(8)).unwrap();
    let shard = files_of(&model_folder).into_iter().find(|name| name.ends_with(".safetensors")).unwrap();
    for (path, why) in [
        (model_folder.join("model.safetensors.index.json"), "name of an index"),
        (model_folder.join(&shard), "lies beside model.safetensors.index.json"),
        (model_folder.join("model.safetensors"), "lies beside model.safetensors.index.json"),
        (at("new/"), "names no file"),
        (Path::new("").to_owned(), "names no file"),
    ] {
        let refused = save(&model(2), &path, SaveOptions::default()).unwrap_err();
        assert!(matches!(&refused, SaveError::Path { .. }) && refused.to_string().contains(why), "{refused}");
    }
    assert_eq!(files_of(folder.path()), ["model"]);
    let loaded = load(&model_folder, &Device::host(), options()).unwrap();
    assert_eq!(loaded.get("a").unwrap().as_slice::<u8>().unwrap(), [1]);
    save(&model(3), model_folder.join("optimizer.safetensors"), SaveOptions::default()).unwrap();

    fs::write(model_folder.join("model.safetensors"), b"of another program").unwrap();
    let refused = save(&model(4), &model_folder, SaveOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("has model.safetensors as well"), "{refused}");
}

#[test]
fn an_index_that_could_not_be_loaded_is_not_written() {
    let folder = folder(&[]);
    let path = folder.path().join("model");
    let names = ('a'..='z').map(|letter| letter.to_string().repeat(4 << 20));
    let model: BTreeMap<_, _> = names.map(|name| (name, Tensor::from(vec![1_u8]))).collect();
    let refused = save(&model, &path, SaveOptions::default().shard_bytes(1)).unwrap_err();
    assert!(refused.to_string().contains("would need an index of"), "{refused}");
    assert!(files_of(&path).is_empty());
}

#[test]
fn a_folder_without_its_first_model_says_so() {
    let folder = folder(&[(
        "model.safetensors.index.json",
        br#"{"unfinished": "the first save to this folder has not come to its end; save again"}"#.to_vec(),
    )]);
    let refused = load(folder.path(), &Device::host(), options()).unwrap_err();
    assert!(refused.to_string().contains("the first save to its folder"), "{refused}");
    save(&BTreeMap::from([("a", Tensor::from(vec![1_u8]))]), folder.path(), SaveOptions::default()).unwrap();
    assert_eq!(load(folder.path(), &Device::host(), options()).unwrap().len(), 1);
}
