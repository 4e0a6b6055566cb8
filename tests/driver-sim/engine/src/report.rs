//! The end of the process: what is still open, what was wrong, and the exit code that says so.

use std::time::{Duration, Instant};

use crate::sim::{Sim, enter};

/// The exit code of a process that has broken a rule.
const FAILED: i32 = 86;
/// Threads of the program may still be giving things back when `main` has ended.
const GRACE: Duration = Duration::from_secs(3);

/// Has the end of the process looked at.
pub(crate) fn install() {
    // SAFETY: the function stays, since this library is never unloaded (it holds a thread).
    let _ = unsafe { libc::atexit(at_exit) };
}

/// Ends the process: the environment asks for something that there is not.
pub(crate) fn refuse(wrong: &str) -> ! {
    eprintln!("driver-sim: {wrong}");
    std::process::exit(FAILED)
}

extern "C" fn at_exit() {
    let mut sim = enter();
    if !sim.settings.leaks_allowed {
        sim.wait_until_closed();
        sim.call = "at exit";
        for left in sim.left_open(None) {
            sim.violation(format!("still open: {left}"));
        }
    }
    if sim.settings.report {
        eprintln!("{}", sim.counters);
    }
    if !sim.violations.is_empty() {
        eprintln!("driver-sim: {} violations; the seed was {}", sim.violations.len(), sim.settings.seed);
        // SAFETY: ends the process at once, which needs nothing.
        unsafe { libc::_exit(FAILED) };
    }
}

impl Sim {
    fn wait_until_closed(&mut self) {
        let start = Instant::now();
        while !self.left_open(None).is_empty() && start.elapsed() < GRACE {
            self.let_others();
            self.wait(Duration::from_millis(5));
        }
    }

    /// Everything that nobody has given back, on this device or on all, but for what a fault has made impossible to give
    /// back.
    pub(crate) fn left_open(&self, device: Option<usize>) -> Vec<String> {
        let counts = |on: usize| !self.devices[on].excused && device.is_none_or(|device| device == on);
        let mut left = Vec::new();
        for (number, context) in &self.contexts {
            if counts(context.device) && context.lost.is_none() {
                let things = self.left_in(*number);
                left.push(format!(
                    "a context of device {}, with {} things in it",
                    context.device,
                    things.len()
                ));
                left.extend(things);
            }
        }
        for pool in self.pools.values().filter(|pool| !pool.default && counts(pool.device)) {
            let state = if pool.destroyed { "with memory in use" } else { "never destroyed" };
            left.push(format!("a pool of {} on device {}, {state}", pool.call, pool.device));
        }
        left
    }

    /// What belongs to a context and was not given back, each with the call that made it.
    pub(crate) fn left_in(&self, context: u64) -> Vec<String> {
        let default = self.contexts.get(&context).map(|context| context.default_stream);
        let streams = self.streams.iter().filter(|(number, stream)| {
            stream.context == context && !stream.destroyed && Some(**number) != default
        });
        let events = self.events.values().filter(|event| event.context == context);
        let modules = self.modules.values().filter(|module| module.context == context);
        let graphs = self.graphs.values().filter(|graph| graph.context == context);
        let blocks = self.memory.blocks().map(|(_, block)| block).filter(|block| block.context == context);
        let streams = streams.map(|(_, stream)| format!("a stream of {}", stream.call));
        let events = events.map(|event| format!("an event of {}", event.call));
        let blocks = blocks
            .filter(|block| block.freeing.is_none())
            .map(|block| format!("{} bytes of {} at {:#x}", block.bytes, block.call, block.address));
        let modules = modules.map(|module| format!("a module of {}", module.call));
        let graphs = graphs.map(|graph| format!("a graph of {}", graph.call));
        streams.chain(events).chain(modules).chain(graphs).chain(blocks).collect()
    }
}
