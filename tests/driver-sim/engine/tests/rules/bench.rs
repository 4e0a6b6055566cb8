//! What several cases need.

#[path = "../../../../support/eventually.rs"]
mod eventually;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use eventually::eventually;

use driver_sim_engine::{Failure, Grid, Return, Sim, call};

pub(crate) const BYTES: usize = 4096;

/// Makes a call that must succeed.
pub(crate) fn must<R>(name: &'static str, body: impl FnOnce(&mut Sim) -> Result<R, Failure>) -> R {
    call(name, body).unwrap_or_else(|failure| panic!("{name}: {failure:?}"))
}

/// A context of the first device, current for this thread, and two streams.
pub(crate) struct Bench {
    pub(crate) context: u64,
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl Bench {
    pub(crate) fn new() -> Self {
        must("init", Sim::initialise);
        let context = must("retain", |sim| sim.retain_primary(0));
        must("push", |sim| sim.push_context(context));
        let [first, second] = [(); 2].map(|()| must("create_stream", |sim| sim.create_stream(false, 0)));
        Self { context, first, second }
    }

    pub(crate) fn allocate(&self) -> u64 {
        must("allocate", |sim| sim.allocate(BYTES))
    }

    pub(crate) fn allocate_on(&self, stream: u64) -> u64 {
        must("allocate_ordered", |sim| sim.allocate_ordered(BYTES, None, stream))
    }

    pub(crate) fn pinned(&self, value: u8) -> Pinned {
        let pinned = Pinned(must("allocate_pinned", |sim| sim.allocate_pinned(BYTES, true)));
        pinned.fill(value);
        pinned
    }

    pub(crate) fn up(&self, to: u64, from: u64, stream: u64) {
        must("copy_up", |sim| sim.copy_up(to, from, BYTES, stream, Return::AtOnce));
    }

    pub(crate) fn down(&self, to: u64, from: u64, stream: u64) {
        must("copy_down", |sim| sim.copy_down(to, from, BYTES, stream, Return::AtOnce));
    }

    pub(crate) fn synchronize(&self, stream: u64) {
        must("synchronize", |sim| sim.synchronize_stream(stream));
    }

    /// Holds a stream up until the gate is opened.
    pub(crate) fn hold(&self, stream: u64, gate: &'static AtomicBool) {
        let data = std::ptr::from_ref(gate).cast_mut().cast::<c_void>();
        must("launch_host", |sim| sim.launch_host(stream, wait_for_gate, data));
    }

    /// Launches the kernel that copies what a table says, which has one entry.
    pub(crate) fn gather(&self, table: Pinned, entry: [u64; 3], stream: u64) {
        // SAFETY: the table is as long as an entry at the least.
        unsafe { table.pointer().cast::<[u64; 3]>().write(entry) };
        let module = must("load_module", Sim::load_module);
        let kernel = must("find_kernel", |sim| sim.find_kernel(module, "transship_gather"));
        let grid = Grid { blocks: 1, threads: 256 };
        let argument = |_, to: &mut [u8]| to.copy_from_slice(&table.0.to_ne_bytes());
        must("launch_kernel", |sim| sim.launch_kernel(kernel, grid, stream, argument));
        must("unload_module", |sim| sim.unload_module(module));
    }

    /// Gives everything of the bench back.
    pub(crate) fn close(self) {
        for stream in [self.first, self.second] {
            self.synchronize(stream);
            must("destroy_stream", |sim| sim.destroy_stream(stream));
        }
        must("release", |sim| sim.release_primary(0));
    }
}

/// Page-locked memory.
#[derive(Clone, Copy)]
pub(crate) struct Pinned(pub(crate) u64);

impl Pinned {
    pub(crate) fn fill(&self, value: u8) {
        // SAFETY: so many bytes were allocated there.
        unsafe { self.pointer().write_bytes(value, BYTES) };
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: as above, and they are poison at the least.
        unsafe { std::slice::from_raw_parts(self.pointer(), BYTES) }.to_vec()
    }

    pub(crate) fn free(&self) {
        must("free_pinned", |sim| sim.free_pinned(self.0));
    }

    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

/// # Safety
///
/// `gate` points to an `AtomicBool` that lives for ever.
unsafe extern "C" fn wait_for_gate(gate: *mut c_void) {
    // SAFETY: the caller's promise.
    let gate = unsafe { &*gate.cast_const().cast::<AtomicBool>() };
    assert!(eventually(|| gate.load(Ordering::SeqCst)), "nobody opens the gate");
}
