//! Files that lie: each is an error that names the file, the tensor and the place.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use support::{Entry, entry, file_of, folder, index_of, mixed, options, path_of, refused, with_header};
use transship::{Device, Error};
use transship_safetensors::{LoadError, load, load_files};

/// A tensor of four `f32`, as the header has it.
fn tensor(name: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn refused_header(header: &str, data: usize) -> LoadError {
    let folder = folder(&[("bad.safetensors", with_header(header, &vec![0; data]))]);
    refused(&path_of(&folder, "bad.safetensors"))
}

/// The error names the file, the tensor, and its place behind a header of this text.
#[track_caller]
fn names(error: &LoadError, header: &str, tensor: &str, data_offset: usize, words: &str) {
    let text = error.to_string();
    let offset = format!("byte {}", 8 + header.len() + data_offset);
    for part in ["bad.safetensors", &format!("{tensor:?}"), offset.as_str(), words] {
        assert!(text.contains(part), "no {part} in: {text}");
    }
}

#[test]
fn a_truncated_file_is_an_error_wherever_it_ends() {
    let whole = file_of(&[entry("a", 0, &[3], 1), entry("b", 12, &[5, 2], 2), entry("c", 1, &[100], 2)]);
    for length in 0..whole.len() {
        let folder = folder(&[("cut.safetensors", whole[..length].to_vec())]);
        let error = load(folder.path(), &Device::host(), options()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("cut.safetensors") && text.contains("truncated"), "{length}: {text}");
        assert!(
            matches!(error, LoadError::Header { .. } | LoadError::Truncated { .. }),
            "{length}: {error:?}"
        );
    }
}

/// catches: 200-overlap-allowed, 201-hole-allowed, 202-trailing-bytes-allowed
#[test]
fn tensors_that_do_not_cover_the_file_just_so_are_errors() {
    let header = format!("{{{},{}}}", tensor("a", "[4]", "[0,16]"), tensor("b", "[4]", "[12,28]"));
    names(&refused_header(&header, 28), &header, "b", 12, "overlaps");

    let header = format!("{{{},{}}}", tensor("a", "[4]", "[0,16]"), tensor("b", "[4]", "[0,16]"));
    names(&refused_header(&header, 16), &header, "b", 0, "overlaps");

    let header = format!("{{{},{}}}", tensor("a", "[4]", "[0,16]"), tensor("b", "[4]", "[20,36]"));
    names(&refused_header(&header, 36), &header, "b", 20, "hole");

    let header = format!("{{{}}}", tensor("a", "[4]", "[8,24]"));
    names(&refused_header(&header, 24), &header, "a", 8, "hole");

    let header = format!("{{{}}}", tensor("a", "[4]", "[0,16]"));
    let error = refused_header(&header, 19);
    assert!(
        matches!(error, LoadError::Trailing { bytes: 3, offset, .. } if offset == 8 + header.len() as u64 + 16)
    );

    let header = format!("{{{}}}", tensor("a", "[4]", "[0,16]"));
    let error = refused_header(&header, 15);
    assert!(matches!(error, LoadError::Truncated { .. }), "{error}");
    names(&error, &header, "a", 0, "truncated");
}

/// catches: 203-size-not-compared
#[test]
fn shapes_that_are_not_those_of_the_bytes_are_errors() {
    for (shape, offsets, words) in [
        ("[5]", "[0,16]", "160 bits"),
        ("[3]", "[0,16]", "96 bits"),
        ("[]", "[0,16]", "32 bits"),
        ("[4611686018427387904,8]", "[0,16]", "machine word"),
        ("[18446744073709551615]", "[0,16]", "machine word"),
        ("[9223372036854775808,0,2]", "[0,16]", "0 bits"),
    ] {
        let header = format!("{{{}}}", tensor("w", shape, offsets));
        let error = refused_header(&header, 16);
        assert!(matches!(error, LoadError::Tensor { .. }), "{error}");
        names(&error, &header, "w", 0, words);
    }
    let header = format!("{{{}}}", tensor("w", "[4]", "[16,0]"));
    names(&refused_header(&header, 16), &header, "w", 16, "ends before it begins");
    let header = format!("{{{}}}", tensor("w", "[4]", "[0,18446744073709551615]"));
    assert!(matches!(refused_header(&header, 16), LoadError::Truncated { .. }));
    let header = format!("{{{}}}", tensor("w", "[4]", "[18446744073709551599,18446744073709551615]"));
    assert!(matches!(refused_header(&header, 16), LoadError::Tensor { .. }));
    // Half a byte.
    let header = r#"{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    names(&refused_header(header, 1), header, "w", 0, "12 bits");
}

/// catches: 204-second-of-a-name-wins
#[test]
fn a_header_that_is_none_is_an_error() {
    for (header, words) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "a map of tensors"),
        ("{}}", "trailing"),
        (r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0]}}"#, "tensor \"a\""),
        (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, "tensor \"a\""),
        (r#"{"a":{"dtype":33,"shape":[],"data_offsets":[0,4]}}"#, "tensor \"a\""),
        (r#"{"a":{"shape":[],"data_offsets":[0,4]}}"#, "dtype"),
        (r#"{"a":4}"#, "tensor \"a\""),
        (r#"{"__metadata__":{"a":1}}"#, "string"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, "twice"),
    ] {
        let error = refused_header(header, 4);
        assert!(matches!(error, LoadError::Header { .. }), "{header}: {error}");
        assert!(error.to_string().contains(words), "{header}: {error}");
    }
    let twice = format!("{{{},{}}}", tensor("a", "[4]", "[0,16]"), tensor("a", "[4]", "[16,32]"));
    names(&refused_header(&twice, 32), &twice, "a", 16, "twice");
}

#[test]
fn a_header_of_more_than_100_mb_is_not_read() {
    let folder = folder(&[("long.safetensors", with_header("{}", &[]))]);
    let path = path_of(&folder, "long.safetensors");
    for (length, words) in
        [(100_000_001, "100000000 are allowed"), (u64::MAX, "are allowed"), (100_000_000, "in a file of")]
    {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        std::io::Write::write_all(&mut &file, &u64::to_le_bytes(length)).unwrap();
        let error = refused(&path).to_string();
        assert!(error.contains(words) && error.contains("long.safetensors"), "{error}");
        // A file that is as long as that, without the bytes.
        file.set_len(200_000_000).unwrap();
        let error = refused(&path).to_string();
        assert!(error.contains(if length == 100_000_000 { "at byte 10" } else { words }), "{error}");
        file.set_len(10).unwrap();
    }
}

#[test]
fn an_element_type_that_does_not_exist_here_is_named() {
    let header = r#"{"quantised":{"dtype":"F8_E5M2FNUZ","shape":[16],"data_offsets":[0,16]}}"#;
    let error = refused_header(header, 16);
    assert!(matches!(&error, LoadError::UnknownDType { dtype, .. } if dtype == "F8_E5M2FNUZ"));
    names(&error, header, "quantised", 0, "LoadOptions::filter");
    // One that the format does not have either, yet.
    let header = r#"{"newer":{"dtype":"F2","shape":[16],"data_offsets":[0,4]}}"#;
    let error = refused_header(header, 4);
    assert!(matches!(&error, LoadError::UnknownDType { dtype, .. } if dtype == "F2"));
    names(&error, header, "newer", 0, "LoadOptions::filter");
}

#[test]
fn the_place_in_a_header_that_is_no_json_is_named() {
    for (header, place) in [("{\"a\":4}", 5), ("{\n \"__metadata__\": {\n \"a\" 1}}", 26), ("{", 0)] {
        let error = refused_header(header, 4);
        assert!(
            matches!(error, LoadError::Header { offset, .. } if offset == 8 + place),
            "{header}: {error}"
        );
    }
}

#[test]
fn files_of_other_kinds_are_told() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n".to_vec();
    let index = index_of(&[("a.safetensors", &[entry("a", 1, &[4], 1)])]);
    for (file, words) in [(pointer, "git lfs pull"), (index, "an index is loaded by `load`")] {
        let folder = folder(&[("a.safetensors", file)]);
        let error = load_files([path_of(&folder, "a.safetensors")], &Device::host(), options()).unwrap_err();
        assert!(error.to_string().contains(words) && matches!(error, LoadError::Header { .. }), "{error}");
    }
}

/// A chain of errors prints each text once.
#[test]
fn errors_of_the_system_are_sources_and_no_part_of_the_text() {
    let error = refused(Path::new("no/such/file.safetensors"));
    assert_eq!(
        error.to_string(),
        "no/such/file.safetensors cannot be opened (entity not found); see to the path and its permissions, or fetch the file"
    );
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("os error 2") && !error.to_string().contains(&source), "{source}");
}

fn shards() -> (Vec<Entry>, Vec<Entry>) {
    (mixed("one", 1), mixed("two", 2))
}

/// catches: 205-any-path-in-an-index
#[test]
fn names_in_an_index_are_plain_file_names() {
    let one = vec![entry("a", 1, &[4], 1)];
    for name in
        ["", ".", "..", "../a.safetensors", "/a.safetensors", "b/a.safetensors", r"b\\a.safetensors", "c:a"]
    {
        let index = index_of(&[(name, &one)]);
        let folder = folder(&[("a.safetensors", file_of(&one)), ("model.safetensors.index.json", index)]);
        let error = refused(folder.path());
        assert!(matches!(error, LoadError::Index { .. }), "{name}: {error}");
        let text = error.to_string();
        assert!(
            text.contains("plain file name") && text.contains("\"a\"") && text.contains("index.json"),
            "{text}"
        );
    }
}

/// catches: 206-missing-tensor-not-noticed, 207-same-name-in-two-files
#[test]
fn an_index_and_its_files_agree() {
    let (one, two) = shards();
    let files = |index: Vec<u8>| {
        folder(&[
            ("a.safetensors", file_of(&one)),
            ("b.safetensors", file_of(&two)),
            ("m.safetensors.index.json", index),
        ])
    };
    let more = [one.clone(), vec![entry("further", 1, &[1], 1)]].concat();
    let missing = refused(files(index_of(&[("a.safetensors", &more), ("b.safetensors", &two)])).path());
    assert!(matches!(&missing, LoadError::Missing { tensor, .. } if tensor == "further"), "{missing}");
    assert!(missing.to_string().contains("a.safetensors") && missing.to_string().contains("index.json"));

    let unnamed = refused(files(index_of(&[("a.safetensors", &one[1..]), ("b.safetensors", &two)])).path());
    assert!(
        matches!(&unnamed, LoadError::NotInIndex { tensor, offset, .. } if *tensor == one[0].name && *offset > 8)
    );

    let elsewhere = [two.clone(), vec![one[5].clone()]].concat();
    let without: Vec<_> = one.iter().filter(|entry| entry.name != one[5].name).cloned().collect();
    let error =
        refused(files(index_of(&[("a.safetensors", &without), ("b.safetensors", &elsewhere)])).path());
    assert!(matches!(error, LoadError::NotInIndex { .. } | LoadError::Missing { .. }), "{error}");

    let twice = format!(r#"{{"weight_map":{{"{0}":"a.safetensors","{0}":"b.safetensors"}}}}"#, one[0].name);
    let error = refused(files(twice.into_bytes()).path());
    assert!(matches!(&error, LoadError::Index { reason, .. } if reason.contains("twice")), "{error}");

    for text in ["", "{}", "[]", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        let error = refused(files(text.as_bytes().to_vec()).path());
        assert!(matches!(error, LoadError::Index { .. }), "{text}: {error}");
    }
    let error = refused(files(index_of(&[("no.safetensors", &one)])).path());
    assert!(matches!(&error, LoadError::Open { path, .. } if path.ends_with("no.safetensors")), "{error}");
    assert!(error.to_string().contains("m.safetensors.index.json names, cannot be opened"), "{error}");
}

#[test]
fn files_with_the_same_name_of_a_tensor_are_not_one_model() {
    let (one, two) = shards();
    let again = [two, vec![one[7].clone()]].concat();
    let folder = folder(&[("a.safetensors", file_of(&one)), ("b.safetensors", file_of(&again))]);
    let error = refused(folder.path());
    assert!(matches!(&error, LoadError::Twice { tensor, path, other, offset, .. }
        if *tensor == one[7].name && path.ends_with("b.safetensors") && other.ends_with("a.safetensors") && *offset > 8));
    let path = path_of(&folder, "a.safetensors");
    assert!(matches!(load_files([&path, &path], &Device::host(), options()), Err(LoadError::Twice { .. })));
}

#[test]
fn what_is_no_file_is_an_error() {
    let empty = folder(&[("config.json", b"{}".to_vec())]);
    assert!(matches!(refused(empty.path()), LoadError::Folder { .. }));
    let indices =
        [("a.safetensors.index.json", b"{}".to_vec()), ("b.safetensors.index.json", b"{}".to_vec())];
    let error = refused(folder(&indices).path()).to_string();
    assert!(error.contains("2 indices"), "{error}");
    assert!(matches!(refused(Path::new("no/such/file.safetensors")), LoadError::Open { .. }));
    let inside = tempfile::tempdir().unwrap();
    std::fs::create_dir(path_of(&inside, "x.safetensors")).unwrap();
    let error = refused(inside.path()).to_string();
    assert!(error.contains("x.safetensors") && error.contains("no regular file"), "{error}");
}

/// A file of the system that cannot be read at its start.
#[test]
#[cfg(target_os = "linux")]
fn an_error_of_the_system_names_the_file_and_the_place() {
    let error = refused(Path::new("/proc/self/mem"));
    assert!(matches!(error, LoadError::Read { offset: 0, .. }), "{error}");
    assert!(error.to_string().starts_with("/proc/self/mem cannot be read at byte 0"), "{error}");
}

#[test]
fn options_that_cannot_be_are_errors() {
    let folder = folder(&[("a.safetensors", file_of(&[]))]);
    for (options, name) in [
        (options().budget(65_535), "budget"),
        (options().threads(0), "threads"),
        (options().threads(257), "threads"),
    ] {
        let error = load(folder.path(), &Device::host(), options).unwrap_err();
        assert!(
            matches!(error, LoadError::Option(Error::InvalidOption { name: wrong, .. }) if wrong == name)
        );
    }
}
