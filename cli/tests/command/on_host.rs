//! Without any device.

use libtest_mimic::{Failed, Trial};

use crate::run::Run;

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(&str, fn()); 6] = [
        ("the_host_is_listed", the_host_is_listed),
        ("the_doctor_looks_at_everything", the_doctor_looks_at_everything),
        ("a_device_that_is_not_there_is_a_problem", a_device_that_is_not_there_is_a_problem),
        ("text_says_the_same", text_says_the_same),
        ("arguments_without_sense_end_with_2", arguments_without_sense_end_with_2),
        (
            "names_of_no_device_are_named_with_those_there_are",
            names_of_no_device_are_named_with_those_there_are,
        ),
    ];
    let trial = |(name, case): (&str, fn())| {
        let run = move || -> Result<(), Failed> {
            case();
            Ok(())
        };
        Trial::test(format!("host::{name}"), run)
    };
    cases.into_iter().map(trial).collect()
}

fn the_host_is_listed() {
    let run = Run::of(&["devices", "--json"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let listing = run.json();
    let devices = listing["devices"].as_array().unwrap();
    let host = devices.iter().find(|device| device["id"] == "host").unwrap();
    assert!(host["free_memory"].as_u64().unwrap() <= host["total_memory"].as_u64().unwrap());
    let drivers = listing["drivers"].as_array().unwrap();
    for name in ["host", "cuda", "hip", "wgpu"] {
        let driver = drivers.iter().find(|driver| driver["name"] == name).unwrap();
        let usable = driver["devices"].as_u64().unwrap() > 0;
        assert_eq!(usable, driver["missing"].is_null(), "{driver}");
    }
}

/// Whatever is wrong with this machine: the exit code, the summary and the findings agree.
fn the_doctor_looks_at_everything() {
    let run = Run::of(&["doctor", "--json", "--mib", "1"]);
    let report = run.json();
    let findings = report["findings"].as_array().unwrap();
    let is_sick = findings.iter().any(|found| found["level"] == "problem");
    assert_eq!((report["healthy"].as_bool(), run.code), (Some(!is_sick), Some(i32::from(is_sick))));
    for check in ["driver", "locked-memory", "host-memory", "huge-pages"] {
        assert!(findings.iter().any(|found| found["check"] == check), "no {check}: {}", run.out);
    }
    let is_bad = |level: &serde_json::Value| level == "problem" || level == "warning";
    assert!(
        findings.iter().all(|found| !is_bad(&found["level"]) || found["cure"].is_string()),
        "{}",
        run.out
    );
}

/// catches: 257-missing-devices-are-no-problem
fn a_device_that_is_not_there_is_a_problem() {
    let run = Run::of(&["doctor", "cuda:9999", "--json"]);
    assert_eq!(run.code, Some(1), "{}", run.out);
    let found = run.findings("problem", "device");
    assert_eq!((found.len(), found[0]["subject"].as_str()), (1, Some("cuda:9999")), "{}", run.out);
    assert!(run.json()["copies"].as_array().unwrap().is_empty());
    assert!(names_those_there_are(found[0]["cure"].as_str().unwrap()), "{}", run.out);
}

fn text_says_the_same() {
    let run = Run::of(&["doctor", "cuda:9999"]);
    assert_eq!(run.code, Some(1), "{}", run.out);
    assert!(run.out.contains("PROBLEM  device cuda:9999: "), "{}", run.out);
    let listing = Run::of(&["devices"]);
    assert!(listing.code == Some(0) && listing.out.contains("host"), "{}", listing.out);
}

fn arguments_without_sense_end_with_2() {
    let wrong: [&[&str]; 6] = [
        &[],
        &["what"],
        &["doctor", "cuda:x"],
        &["doctor", "--mib", "0"],
        &["doctor", "--mib", "-1"],
        &["devices", "--yaml"],
    ];
    for arguments in wrong {
        let run = Run::of(arguments);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{arguments:?}: {}", run.err);
        assert!(!run.err.is_empty());
    }
    assert!(Run::of(&["doctor", "--mib", "-1"]).err.contains("4096"), "it names the range");
    assert_eq!(Run::of(&["--help"]).code, Some(0));
}

/// By hand: with the names of any driver it is a problem of this machine, and ends with 1.
fn names_of_no_device_are_named_with_those_there_are() {
    for name in ["nonsense", "nonsense:3", "cuda:x", "CUDA"] {
        let run = Run::of(&["doctor", name]);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
        assert!(run.err.contains(name) && names_those_there_are(&run.err), "{}", run.err);
    }
}

/// The host is always there.
fn names_those_there_are(text: &str) -> bool {
    text.split_once("devices that are there: ").is_some_and(|(_, names)| names.contains("host"))
}
