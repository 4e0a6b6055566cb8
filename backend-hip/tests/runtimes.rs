//! What is said about runtimes that cannot be used: missing functions, no device, unknown codes. Each runtime is a small
//! library made here, which a child process finds in front of any other.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use transship_core::Error;
use transship_core::backend::Driver;
use transship_hip::HipDriver;

/// The answers about whatever runtime this machine has agree; a child of the tests below prints them.
#[test]
fn all_answers_agree() {
    let opened = HipDriver.open(0);
    match (HipDriver.is_available(), HipDriver.device_count(), opened) {
        (Ok(()), 1.., Ok(_)) => println!("answer: available"),
        (Err(Error::DriverUnavailable { driver: "hip", reason }), 0, Err(opened)) => {
            assert!(matches!(&opened, Error::DriverUnavailable { reason: same, .. } if *same == reason));
            println!("answer: {reason}");
        }
        (available, count, opened) => panic!("{available:?}, {count} devices, {:?}", opened.map(drop)),
    }
}

#[test]
fn each_function_that_is_missing_is_named() {
    let functions = functions();
    assert!(functions.len() > 40, "{functions:?}");
    for missing in &functions {
        let answer = Runtime { without: Some(missing), ..Runtime::new("missing") }.answer();
        assert_eq!(answer, format!("libamdhip64.so lacks {missing}; install ROCm 5.2 or later"));
    }
}

#[test]
fn no_device_is_an_answer_of_its_own() {
    for (code, count) in [(0, 0), (100, 7), (101, 7)] {
        let answer = Runtime { code, count, ..Runtime::new("no-device") }.answer();
        assert!(answer.starts_with("the HIP runtime is there and finds no device"), "{code}: {answer}");
    }
}

#[test]
fn a_code_that_no_version_had_so_far_is_passed_on() {
    let answer = Runtime { code: 4_000_000_000, ..Runtime::new("code") }.answer();
    assert!(answer.contains("hipGetDeviceCount") && answer.contains("4000000000"), "{answer}");
}

/// A library that has every function, of which each answers `code`.
struct Runtime {
    name: &'static str,
    without: Option<&'static str>,
    code: u32,
    count: i32,
}

impl Runtime {
    fn new(name: &'static str) -> Self {
        Self { name, without: None, code: 0, count: 0 }
    }

    fn source(&self) -> String {
        let functions = functions().into_iter().filter(|function| Some(*function) != self.without);
        let body = |function: &str| match function {
            "hipGetDeviceCount" => {
                format!("(int* count) {{ *count = {}; return {}u; }}", self.count, self.code)
            }
            "hipGetErrorName" | "hipGetErrorString" => "(unsigned code) { return 0; }".to_owned(),
            _ => format!("(void) {{ return {}u; }}", self.code),
        };
        let kind =
            |function: &str| if function.starts_with("hipGetError") { "const char* " } else { "unsigned " };
        functions.map(|function| format!("{}{function}{}\n", kind(function), body(function))).collect()
    }

    /// What a program says that finds this runtime.
    fn answer(&self) -> String {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(self.name);
        fs::create_dir_all(&folder).unwrap();
        let (source, library) = (folder.join("runtime.c"), folder.join("libamdhip64.so"));
        fs::write(&source, self.source()).unwrap();
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(compiled.unwrap().success(), "{}", source.display());
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child =
            child.args(["--exact", "all_answers_agree", "--nocapture"]).env("LD_LIBRARY_PATH", folder);
        let output = child.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let answer = text.lines().find_map(|line| line.split_once("answer: "));
        answer.unwrap_or_else(|| panic!("{text}")).1.to_owned()
    }
}

/// The functions that the backend needs, as its own file names them.
fn functions() -> Vec<&'static str> {
    let file = include_str!("../src/calls.rs");
    let declared = file.lines().filter_map(|line| {
        let (_, function) = line.strip_prefix("    ")?.split_once(" = ")?;
        Some(function.split_once('(')?.0).filter(|function| function.starts_with("hip"))
    });
    let found =
        file.lines().filter_map(|line| Some(line.split_once("find(library, \"")?.1.split_once("\")?")?.0));
    declared.chain(found).collect()
}
