//! Telling the stand-in what to do, from within the program under test.

use std::ffi::{CStr, c_char};

use crate::faults::Faults;
use crate::hold::Hold;
use crate::random::Random;
use crate::sim::{Device, enter};
use crate::{capture, context};

/// What is answered to a command or a name that is not known.
const UNKNOWN: i64 = -1;

/// Does what a command says; 0, or -1 if there is no such command.
///
/// # Safety
///
/// `command` points to a string that ends with a zero.
pub unsafe fn control(command: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    let Ok(command) = unsafe { CStr::from_ptr(command) }.to_str() else { return UNKNOWN };
    let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
    let mut sim = enter();
    match word {
        "faults" => match Faults::parse(rest) {
            Ok(faults) => sim.faults = faults,
            Err(_) => return UNKNOWN,
        },
        "hold" => match rest.parse() {
            Ok(after) => sim.hold = Hold::behind(after),
            Err(_) => return UNKNOWN,
        },
        "go" => {
            sim.hold = Hold::default();
            sim.notify();
        }
        "seed" => match rest.parse() {
            Ok(seed) => {
                sim.settings.seed = seed;
                sim.random = Random::new(seed);
            }
            Err(_) => return UNKNOWN,
        },
        "leaks" if rest == "allow" => sim.settings.leaks_allowed = true,
        "leaks" if rest == "fail" => sim.settings.leaks_allowed = false,
        "devices" => match rest.parse() {
            Ok(count) => sim.devices.resize_with(count, Device::default),
            Err(_) => return UNKNOWN,
        },
        "excuse" => sim.devices.iter_mut().for_each(|device| device.excused = true),
        "list" => sim.left_open(None).iter().for_each(|left| eprintln!("driver-sim: open: {left}")),
        _ => return UNKNOWN,
    }
    0
}

/// A figure by its name, or -1 if there is none of it: those of the counters, `violations`, `devices`, `held`, `fired`, and
/// `fired:cuInit` for calls of that name; of the calling thread `stack` and `capture-mode`; and of the first device `open:0`, `contexts:0`, `handles:0`, `blocks:0`.
///
/// # Safety
///
/// `name` points to a string that ends with a zero.
pub unsafe fn query(name: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else { return UNKNOWN };
    let sim = enter();
    let figure = match name {
        "violations" => Some(sim.violations.len() as u64),
        "devices" => Some(sim.devices.len() as u64),
        "held" => Some(u64::from(sim.hold.is_on())),
        "fired" => Some(sim.faults.fired),
        "stack" => Some(context::depth() as u64),
        "capture-mode" => Some(capture::mode() as u64),
        _ if name.starts_with("fired:") => Some(sim.faults.fired_at(&name["fired:".len()..])),
        _ => match name.split_once(':').map(|(word, device)| (word, device.parse())) {
            Some(("open", Ok(device))) => Some(sim.left_open(Some(device)).len() as u64),
            Some(("contexts", Ok(device))) => Some(sim.working_contexts(device).count() as u64),
            Some(("handles", Ok(device))) => sim.handles_on(device),
            Some(("blocks", Ok(device))) => sim.blocks_on(device),
            _ => sim.counters.figure(name),
        },
    };
    figure.and_then(|figure| i64::try_from(figure).ok()).unwrap_or(UNKNOWN)
}
