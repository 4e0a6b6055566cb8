//! On a stand-in for a driver, sound and with faults. HIP's passes its calls on to that of CUDA, whose functions have the faults.

use crate::run::Run;

type Case = (&'static str, fn(&str) -> Result<(), String>);

pub(crate) const CASES: [Case; 9] = [
    ("devices_are_listed", devices_are_listed),
    ("a_listing_ends_though_a_driver_does_not_answer", a_listing_ends_though_a_driver_does_not_answer),
    (
        "a_device_that_hangs_is_found_and_the_others_are_looked_at",
        a_device_that_hangs_is_found_and_the_others_are_looked_at,
    ),
    ("a_sound_device_is_copied_to_and_back", a_sound_device_is_copied_to_and_back),
    ("a_copy_that_comes_back_wrong_is_a_problem", a_copy_that_comes_back_wrong_is_a_problem),
    ("a_copy_that_fails_is_a_problem", a_copy_that_fails_is_a_problem),
    ("a_copy_that_does_not_end_is_a_problem", a_copy_that_does_not_end_is_a_problem),
    ("a_copy_larger_than_what_is_free_is_not_begun", a_copy_larger_than_what_is_free_is_not_begun),
    ("a_driver_without_devices_is_a_problem", a_driver_without_devices_is_a_problem),
];

fn devices_are_listed(driver: &str) -> Result<(), String> {
    for peers in ["0", "1"] {
        let run = Run::with(&["devices", "--json"], &[("DRIVER_SIM_PEERS", peers)]);
        expect(run.code == Some(0), &run)?;
        let listing = run.json();
        let devices = listing["devices"].as_array().unwrap();
        let first =
            devices.iter().find(|device| device["id"] == format!("{driver}:0")).ok_or("no device 0")?;
        expect(first["pci"] == "0000:01:00.0" && first["compute_capability"] == "9.0", &run)?;
        expect(first["uuid"].is_string() && first["free_memory"].as_u64() > Some(0), &run)?;
        let links = listing["links"].as_array().unwrap();
        let name = |ordinal: u8| format!("{driver}:{ordinal}");
        let link =
            links.iter().find(|link| link["to"] == name(0) && link["from"] == name(1)).ok_or("no link")?;
        expect(link["direct"] == (peers == "1"), &run)?;
    }
    Ok(())
}

/// By hand: without its limit it does not end. Another driver may answer or not: one stand-in is behind both.
fn a_listing_ends_though_a_driver_does_not_answer(_: &str) -> Result<(), String> {
    let faults = [("DRIVER_SIM_FAULTS", "any-cuInit@5=hang"), ("DRIVER_SIM_LEAKS", "allow")];
    let run = Run::with(&["devices", "--json", "--timeout", "2"], &faults);
    expect(run.code == Some(1) && run.err.contains("--timeout"), &run)?;
    let listing = run.json();
    let unanswered = listing["unanswered"].as_array().unwrap();
    let is_of_gpus = |name: &str| name.starts_with("cuda") || name.starts_with("hip");
    let named = |name: &serde_json::Value| name.as_str().is_some_and(|name| run.err.contains(name));
    expect(!unanswered.is_empty() && unanswered.iter().all(named), &run)?;
    expect(unanswered.iter().any(|name| name.as_str().is_some_and(is_of_gpus)), &run)?;
    let devices = listing["devices"].as_array().unwrap();
    let host = devices.iter().find(|device| device["id"] == "host").ok_or("no host")?;
    expect(host["error"].is_null() && host["free_memory"].as_u64() > Some(0), &run)
}

/// It hangs before there is a copy to wait for; which of the two, and whether the other one hangs as well, is up to the stand-in.
fn a_device_that_hangs_is_found_and_the_others_are_looked_at(driver: &str) -> Result<(), String> {
    let faults = [("DRIVER_SIM_FAULTS", "any-cuInit@5=hang"), ("DRIVER_SIM_LEAKS", "allow")];
    let ids = [0, 1].map(|ordinal| format!("{driver}:{ordinal}"));
    let run = Run::with(&["doctor", &ids[0], &ids[1], "--json", "--mib", "4", "--timeout", "12"], &faults);
    let (hang, work) = (run.findings("problem", "copy"), run.findings("ok", "copy"));
    let is_looked_at = |id: &String| hang.iter().chain(&work).any(|found| found["subject"] == **id);
    expect(run.code == Some(1) && !hang.is_empty() && ids.iter().all(is_looked_at), &run)
}

fn a_sound_device_is_copied_to_and_back(driver: &str) -> Result<(), String> {
    let run = doctor(driver, &[]);
    let found = run.findings("ok", "copy");
    expect(found.len() == 1 && found[0]["subject"] == format!("{driver}:0"), &run)?;
    let report = run.json();
    let copies = report["copies"].as_array().unwrap();
    expect(copies.len() == 1 && copies[0]["bytes"] == 4 << 20, &run)?;
    expect(copies[0]["up_seconds"].as_f64() > Some(0.0) && run.findings("problem", "copy").is_empty(), &run)
}

/// catches: 258-bytes-not-compared
fn a_copy_that_comes_back_wrong_is_a_problem(driver: &str) -> Result<(), String> {
    let run = doctor(driver, &[("DRIVER_SIM_FAULTS", "cuMemcpyDtoHAsync_v2@1=wrong")]);
    copy_is_a_problem(&run, "byte ")
}

fn a_copy_that_fails_is_a_problem(driver: &str) -> Result<(), String> {
    let run = doctor(driver, &[("DRIVER_SIM_FAULTS", "cuMemcpyHtoDAsync_v2@1+=unknown")]);
    copy_is_a_problem(&run, "unknown error")
}

fn a_copy_that_does_not_end_is_a_problem(driver: &str) -> Result<(), String> {
    let faults = [("DRIVER_SIM_FAULTS", "cuMemcpyHtoDAsync_v2@1=hang"), ("DRIVER_SIM_LEAKS", "allow")];
    copy_is_a_problem(&doctor_within("2", driver, &faults), "of --timeout")
}

/// Each device has 256 MiB. An allocation would fail otherwise than by what is free.
fn a_copy_larger_than_what_is_free_is_not_begun(driver: &str) -> Result<(), String> {
    let arguments = ["doctor", driver, "--json", "--mib", "257"];
    let faults = ("DRIVER_SIM_FAULTS", "cuMemAllocAsync@1+=unknown;cuMemAllocFromPoolAsync@1+=unknown");
    let run = Run::with(&arguments, &[("DRIVER_SIM_MEMORY_MIB", "256"), faults]);
    copy_is_a_problem(&run, "257.0 MiB do not fit")
}

fn a_driver_without_devices_is_a_problem(driver: &str) -> Result<(), String> {
    let run = doctor(driver, &[("DRIVER_SIM_DEVICES", "0")]);
    let found = run.findings("problem", "device");
    expect(run.code == Some(1) && found.len() == 1 && found[0]["subject"] == format!("{driver}:0"), &run)
}

fn doctor(driver: &str, environment: &[(&str, &str)]) -> Run {
    doctor_within("60", driver, environment)
}

fn doctor_within(seconds: &str, driver: &str, environment: &[(&str, &str)]) -> Run {
    Run::with(&["doctor", driver, "--json", "--mib", "4", "--timeout", seconds], environment)
}

fn copy_is_a_problem(run: &Run, words: &str) -> Result<(), String> {
    let found = run.findings("problem", "copy");
    expect(run.code == Some(1) && found.len() == 1, run)?;
    expect(found[0]["what"].as_str().is_some_and(|what| what.contains(words)), run)?;
    expect(found[0]["cure"].is_string(), run)
}

fn expect(holds: bool, run: &Run) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| format!("exit code {:?}: {}{}", run.code, run.out, run.err))
}
