//! The end of the process: what is still open, what was wrong, and the exit code that says so.

use std::time::{Duration, Instant};

use crate::sim::{Device, Kind, Sim, enter, since};

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
        let objects = self.user_objects.values().filter(|_| device.is_none());
        left.extend(objects.map(|object| format!("an object of {}", object.call)));
        left
    }

    /// What belongs to a context and was not given back, each with the call that made it.
    pub(crate) fn left_in(&self, context: u64) -> Vec<String> {
        let mut left = self.handles_in(context);
        left.extend(self.blocks_in(context));
        left
    }

    /// Of [`left_in`](Self::left_in) streams, events, modules and graphs.
    pub(crate) fn handles_in(&self, context: u64) -> Vec<String> {
        let is_default =
            |stream| self.contexts.get(&context).is_some_and(|context| context.is_default(stream));
        // Handles grow: what belongs to a context was made after it.
        let streams = self.streams.range(since(context, Kind::Stream)..).filter(|(number, stream)| {
            stream.context == context && !stream.destroyed && !is_default(**number)
        });
        let events = self.events.range(since(context, Kind::Event)..).map(|(_, event)| event);
        let events = events.filter(|event| event.context == context);
        let modules = self.modules.values().filter(|module| module.context == context);
        let graphs = self.graphs.values().filter(|graph| graph.context == context);
        let streams = streams.map(|(_, stream)| format!("a stream of {}", stream.call));
        let events = events.map(|event| format!("an event of {}", event.call));
        let modules = modules.map(|module| format!("a module of {}", module.call));
        let graphs = graphs.map(|graph| format!("a graph of {}", graph.call));
        streams.chain(events).chain(modules).chain(graphs).collect()
    }

    /// Of [`left_in`](Self::left_in) allocations.
    fn blocks_in(&self, context: u64) -> Vec<String> {
        let blocks = self.memory.blocks().map(|(_, block)| block);
        blocks
            .filter(|block| block.context == context && block.freeing.is_none())
            .map(|block| format!("{} bytes of {} at {:#x}", block.bytes, block.call, block.address))
            .collect()
    }

    /// Streams, events, modules, graphs and pools of a device that are open, and what contexts have left behind of them
    /// under faults. Those of lost contexts cannot be given back and do not count.
    pub(crate) fn handles_on(&self, device: usize) -> Option<u64> {
        let Device { handles_left, excused, .. } = self.devices.get(device)?;
        let pools = self.pools.values().filter(|pool| !excused && !pool.default && pool.device == device);
        let open = self.working_contexts(device).map(|context| self.handles_in(context).len());
        Some(*handles_left + (pools.count() + open.sum::<usize>()) as u64)
    }

    /// The same for allocations.
    pub(crate) fn blocks_on(&self, device: usize) -> Option<u64> {
        let open = self.working_contexts(device).map(|context| self.blocks_in(context).len());
        Some(self.devices.get(device)?.blocks_left + open.sum::<usize>() as u64)
    }

    /// The contexts of a device that are not lost.
    pub(crate) fn working_contexts(&self, device: usize) -> impl Iterator<Item = u64> {
        let contexts = self.contexts.iter();
        let working = contexts.filter(move |(_, context)| context.device == device && context.lost.is_none());
        working.map(|(number, _)| *number)
    }
}
