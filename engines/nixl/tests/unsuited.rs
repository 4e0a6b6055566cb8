//! Devices that no arena can lie on.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use late_backend::LateConfig;
use transship::Device;
use transship_nixl::{Agent, AgentOptions, Error, Nixl};

/// Deliberate bug: what is no GPU of CUDA is registered as one.
#[test]
fn a_device_of_another_kind_is_an_error_that_names_it() {
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nixl.so");
    // SAFETY: it behaves as NIXL.
    let nixl = unsafe { Nixl::open(library) }.unwrap();
    let _late = late_backend::install(LateConfig::new("late")).unwrap();
    let device = Device::open("late:0".parse().unwrap()).unwrap();
    let error = Agent::new(&nixl, "unsuited", AgentOptions::default().arena_on(&device)).unwrap_err();
    assert!(matches!(error, Error::UnsuitedDevice { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&device.id().to_string()) && text.contains("no GPU of CUDA"), "{text}");
    assert!(text.contains("arena_on"), "{text}");
}
