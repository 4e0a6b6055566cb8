//! A save leaves the old model or the new one, whatever happens to it, and nothing else.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::{folder, options};
use transship::{Device, Tensor};
use transship_safetensors::{LoadError, SaveError, SaveOptions, load, save};

/// Where the process of a child saves to.
const TARGET: &str = "TRANSSHIP_TEST_SAVE_TO";
/// Whether it saves several files.
const SHARDED: &str = "TRANSSHIP_TEST_SAVE_SHARDS";
const TENSORS: usize = 12;
const INDEX: &str = "model.safetensors.index.json";

/// A model all of whose bytes say which it is.
fn model(generation: u8) -> BTreeMap<String, Tensor> {
    let tensor = |number| Tensor::from(vec![generation; 50_000 + 70_000 * (number % 3)]);
    (0..TENSORS).map(|number| (format!("t{number:02}"), tensor(number))).collect()
}

fn save_options(is_sharded: bool, generation: u8) -> SaveOptions {
    let options = SaveOptions::default().threads(3).metadata([("generation", generation.to_string())]);
    if is_sharded { options.shard_bytes(300_000) } else { options }
}

fn save_generation(path: &Path, is_sharded: bool, generation: u8) -> Result<(), SaveError> {
    save(&model(generation), path, save_options(is_sharded, generation))
}

/// Which model is at `path`: all of it, and nothing of another one.
#[track_caller]
fn generation_of(path: &Path) -> Result<u8, LoadError> {
    let tensors = load(path, &Device::host(), options())?;
    let first = tensors.get("t00").unwrap().as_slice::<u8>().unwrap()[0];
    assert_eq!(tensors.len(), TENSORS);
    let differ = |tensor: &Tensor| tensor.as_slice::<u8>().unwrap().iter().any(|byte| *byte != first);
    assert_eq!(tensors.iter().find(|(_, tensor)| differ(tensor)).map(|(name, _)| name), None, "of {first}");
    assert!(tensors.files().iter().all(|file| file.metadata()["generation"] == first.to_string()));
    Ok(first)
}

fn files_of(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn path_of(folder: &Path, is_sharded: bool) -> PathBuf {
    folder.join(if is_sharded { "model" } else { "model.safetensors" })
}

/// What belongs there: a file, or an index with the files that it names.
#[track_caller]
fn check_nothing_else(folder: &Path, is_sharded: bool) {
    assert_eq!(files_of(folder).len(), 1, "{:?}", files_of(folder));
    if is_sharded {
        let model = path_of(folder, true);
        let index = fs::read_to_string(model.join(INDEX)).unwrap();
        let files = files_of(&model);
        let unnamed = files.iter().find(|file| *file != INDEX && !index.contains(file.as_str()));
        assert_eq!(unnamed, None, "{files:?}");
    }
}

/// The test below, as a process of its own: it saves until it is killed, or cannot.
fn child(path: &Path, is_sharded: bool) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_kill_at_any_moment_leaves_the_old_model_or_the_new_one", "--nocapture"]);
    command.env(TARGET, path);
    if is_sharded {
        command.env(SHARDED, "1");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn save_until_the_end(path: &Path) -> ! {
    let is_sharded = env::var_os(SHARDED).is_some();
    // The line that the parent waits for.
    println!("begins");
    for generation in (1..=255).cycle() {
        save_generation(path, is_sharded, generation).unwrap();
    }
    unreachable!("there are more generations")
}

/// A child that has begun to save.
fn started(path: &Path, is_sharded: bool) -> Child {
    let mut child = child(path, is_sharded).spawn().unwrap();
    let (mut text, mut byte) = (String::new(), [0]);
    let out = child.stdout.as_mut().unwrap();
    while !text.ends_with("begins\n") {
        out.read_exact(&mut byte).unwrap();
        text.push(byte[0] as char);
    }
    child
}

/// So many are killed; more if `TRANSSHIP_TEST_KILLS` says so.
fn kills() -> u64 {
    env::var("TRANSSHIP_TEST_KILLS").map_or(24, |text| text.parse().unwrap())
}

/// catches: 236-written-in-place
#[test]
fn a_kill_at_any_moment_leaves_the_old_model_or_the_new_one() {
    if let Some(path) = env::var_os(TARGET) {
        save_until_the_end(Path::new(&path));
    }
    for is_sharded in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), is_sharded);
        save_generation(&path, is_sharded, 7).unwrap();
        for kill in 0..kills() {
            let mut child = started(&path, is_sharded);
            // Microseconds, spread over a few saves.
            thread::sleep(Duration::from_micros(kill * 7919 % 30_011));
            child.kill().unwrap();
            child.wait().unwrap();
            generation_of(&path).unwrap();
        }
        save_generation(&path, is_sharded, 9).unwrap();
        assert_eq!(generation_of(&path).unwrap(), 9);
        check_nothing_else(folder.path(), is_sharded);
    }
}

#[test]
fn the_first_save_that_is_killed_leaves_no_part_of_a_model() {
    for kill in 0..kills() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), true);
        let mut child = started(&path, true);
        thread::sleep(Duration::from_micros(kill * 7919 % 9_001));
        child.kill().unwrap();
        child.wait().unwrap();
        match generation_of(&path) {
            Ok(_) | Err(LoadError::Open { .. } | LoadError::Folder { .. } | LoadError::Index { .. }) => {}
            Err(error) => panic!("{error}: {:?}", files_of(&path)),
        }
        save_generation(&path, true, 9).unwrap();
        assert_eq!(generation_of(&path).unwrap(), 9);
        check_nothing_else(folder.path(), true);
    }
}

/// At any moment: who reads the index finds all its files, and who finds files finds an index.
///
/// catches: 237-index-before-its-files, 238-old-files-removed-first, 239-first-files-are-taken-for-a-model
#[test]
fn an_index_names_files_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let models: Vec<_> = (0..40).map(|number| folder.path().join(number.to_string())).collect();
    let (now, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for (number, model) in models.iter().enumerate() {
                fs::create_dir(model).unwrap();
                now.store(number, Ordering::Relaxed);
                for generation in 1..4 {
                    save_generation(model, true, generation).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let model = &models[now.load(Ordering::Relaxed)];
            if model.exists() {
                check_now(model);
            }
        }
    });
}

/// Fails if files are there without an index, or if one is missing that the index names, and named before as after.
#[track_caller]
fn check_now(model: &Path) {
    let files = files_of(model);
    let index = || fs::read_to_string(model.join(INDEX)).ok();
    let Some(before) = index() else {
        let found = files.iter().find(|file| file.ends_with(".safetensors"));
        assert_eq!(found, None, "there is no index");
        return;
    };
    let words = before.split('"').filter(|word| word.ends_with(".safetensors"));
    let missing = words.into_iter().find(|file| !model.join(file).exists());
    assert!(missing.is_none() || index() != Some(before.clone()), "{missing:?} is not there");
}

/// Who reads meanwhile gets a whole model, or an error because a file was replaced under his eyes.
#[test]
fn who_reads_meanwhile_gets_one_model() {
    for is_sharded in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), is_sharded);
        save_generation(&path, is_sharded, 1).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for generation in 2..60 {
                    save_generation(&path, is_sharded, generation).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut read = 0;
            while !done.load(Ordering::Relaxed) {
                match generation_of(&path) {
                    Ok(_) => read += 1,
                    Err(LoadError::Changed { .. } | LoadError::Open { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(read > 0 || is_sharded, "no model was read");
        });
        assert_eq!(generation_of(&path).unwrap(), 59);
    }
}

#[test]
fn several_writers_leave_one_model_and_nothing_else() {
    for is_sharded in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), is_sharded);
        thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for round in 0..8 {
                        save_generation(path, is_sharded, 1 + writer * 8 + round).unwrap();
                    }
                });
            }
        });
        generation_of(&path).unwrap();
        save_generation(&path, is_sharded, 200).unwrap();
        assert_eq!(generation_of(&path).unwrap(), 200);
        check_nothing_else(folder.path(), is_sharded);
    }
}

/// catches: 240-removes-what-others-write, 241-stale-files-stay
#[test]
fn what_a_dead_writer_left_behind_goes_and_what_a_living_one_writes_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (stale, living) = (".transship-0123456789abcdef.tmp", ".transship-fedcba9876543210.tmp");
    let shard = "model-0123456789abcdef-00001-of-00002.safetensors";
    let living_shard = "model-fedcba9876543210-00001-of-00002.safetensors";
    let path = path_of(folder.path(), true);
    save_generation(&path, true, 1).unwrap();
    let names =
        [stale, living, shard, living_shard, ".transship-notes", "model-old-00001-of-00002.safetensors"];
    for name in names {
        fs::write(path.join(name), b"left behind").unwrap();
    }
    let held = [living, living_shard].map(|name| {
        let file = File::options().write(true).open(path.join(name)).unwrap();
        file.lock().unwrap();
        file
    });
    save_generation(&path, true, 2).unwrap();
    let there = |name: &str| path.join(name).exists();
    assert_eq!(names.map(there), [false, true, false, true, true, true]);
    drop(held);
    save_generation(&path, true, 3).unwrap();
    assert_eq!(names.map(there), [false, false, false, false, true, true]);
    assert_eq!(generation_of(&path).unwrap(), 3);
}

/// Files may have so many bytes at most in the process of the child: as if the disk were full.
///
/// catches: 242-failed-file-stays
#[test]
fn a_full_disk_leaves_the_old_model_and_nothing_else() {
    for is_sharded in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), is_sharded);
        save_generation(&path, is_sharded, 7).unwrap();
        let before = (files_of(folder.path()), is_sharded.then(|| files_of(&path)));
        let said = fails_with("ulimit -f 300", &child(&path, is_sharded));
        assert!(said.contains("Write") && said.contains("t0"), "{said}");
        assert_eq!((files_of(folder.path()), is_sharded.then(|| files_of(&path))), before);
        assert_eq!(generation_of(&path).unwrap(), 7);
    }
}

/// What the process says that fails where the system allows so much and no more.
#[track_caller]
fn fails_with(limit: &str, program: &Command) -> String {
    // Files are limited in blocks of 512 bytes. The signal is ignored, so that the call returns an error.
    let limited = Command::new("sh")
        .args(["-c", &format!("trap '' XFSZ; {limit}; exec \"$@\""), "sh"])
        .arg(program.get_program())
        .args(program.get_args())
        .envs(program.get_envs().map(|(key, value)| (key, value.unwrap())))
        .output()
        .unwrap();
    assert!(!limited.status.success());
    String::from_utf8_lossy(&limited.stderr).into_owned()
}

/// A file for each of 40 tensors, all of them smaller than a block, and an index that is not.
///
/// catches: 441-unfinished-index-stays
#[test]
fn a_first_save_that_fails_leaves_an_empty_folder_and_says_what_to_do() {
    if let Some(path) = env::var_os(TARGET) {
        let tensors: Vec<_> = (0..40_u8).map(Tensor::scalar).collect();
        panic!("{}", save(&tensors, path, SaveOptions::default().shard_bytes(1)).unwrap_err());
    }
    for (limit, file, words) in [
        ("ulimit -f 1", INDEX, "could not be written (file too large); make room there"),
        ("ulimit -n 24", ".tmp", "raise the limit of open files (ulimit -n), or save to fewer files"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), true);
        let mut program = Command::new(env::current_exe().unwrap());
        let name = "a_first_save_that_fails_leaves_an_empty_folder_and_says_what_to_do";
        program.args(["--exact", name, "--nocapture"]).env(TARGET, &path);
        let said = fails_with(limit, &program);
        assert!(said.contains(file) && said.contains(words), "{said}");
        assert_eq!((files_of(folder.path()), files_of(&path)), (vec!["model".to_owned()], Vec::new()));
        save_generation(&path, true, 3).unwrap();
        assert_eq!(generation_of(&path).unwrap(), 3);
    }
    // Where not even a header has room.
    let folder = tempfile::tempdir().unwrap();
    let said = fails_with("ulimit -f 0", &child(&path_of(folder.path(), false), false));
    assert!(said.contains("model.safetensors") && !said.contains("__metadata__"), "{said}");
    assert_eq!(files_of(folder.path()), Vec::<String>::new());
}

/// catches: 246-whatever-an-index-names-goes
#[test]
fn files_that_the_old_index_names_go_and_no_others() {
    let folder = folder(&[("config.json", b"{}".to_vec())]);
    save_generation(folder.path(), true, 1).unwrap();
    // A model of somebody else, whose index names what is no tensors as well.
    for name in files_of(folder.path()).iter().filter(|name| name.contains("model")) {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let index = r#"{"weight_map":{"a":"part.safetensors","b":"config.json"}}"#;
    fs::write(folder.path().join(INDEX), index).unwrap();
    for name in ["part.safetensors", "other.safetensors"] {
        fs::write(folder.path().join(name), b"of somebody else").unwrap();
    }
    save_generation(folder.path(), true, 2).unwrap();
    let files = files_of(folder.path());
    let there = |name: &str| files.iter().any(|file| file == name);
    assert!(!there("part.safetensors") && there("other.safetensors") && there("config.json"), "{files:?}");
    assert_eq!(generation_of(folder.path()).unwrap(), 2);
}

/// catches: 247-beside-a-model-without-index
#[test]
fn a_folder_that_is_not_for_one_more_model_is_left_alone() {
    let old = || ("old.safetensors", b"a model".to_vec());
    for (files, word) in [
        (vec![old()], "old.safetensors"),
        (vec![("other.safetensors.index.json", b"{}".to_vec())], "other.safetensors.index.json"),
    ] {
        let folder = folder(&files);
        let error = save_generation(folder.path(), true, 1).unwrap_err();
        assert!(matches!(error, SaveError::Path { .. }) && error.to_string().contains(word), "{error}");
        assert_eq!(files_of(folder.path()).len(), 1);
    }
    let folder = folder(&[old()]);
    let file = folder.path().join("old.safetensors");
    let error = save_generation(&file, true, 1).unwrap_err();
    assert!(error.to_string().contains("is a file"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"a model");
    let error = save_generation(&folder.path().join("no/such"), true, 1).unwrap_err();
    assert!(matches!(error, SaveError::File { done: "created", .. }), "{error}");
    let error = save_generation(&folder.path().join("no/such.safetensors"), false, 1).unwrap_err();
    assert!(matches!(error, SaveError::File { done: "opened", .. }), "{error}");
}

/// catches: 243-replaces-what-is-no-file
#[test]
fn what_is_no_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = save_generation(&socket, false, 1).unwrap_err();
    assert!(error.to_string().contains("no regular file"), "{error}");
    assert!(!fs::metadata(&socket).unwrap().is_file());
}

#[test]
fn a_link_is_replaced_and_not_what_it_leads_to() {
    let folder = folder(&[("blob", b"shared".to_vec())]);
    let link = folder.path().join("model.safetensors");
    std::os::unix::fs::symlink("blob", &link).unwrap();
    save_generation(&link, false, 3).unwrap();
    assert_eq!(fs::read(folder.path().join("blob")).unwrap(), b"shared");
    assert_eq!(generation_of(&link).unwrap(), 3);
}
