//! The end of the process: drivers shut down then, and no thread may be inside one.

use std::ffi::c_int;
use std::time::Duration;

use crate::runtime::fork;
use crate::runtime::sync::{Instant, Mutex, OnceLock, statics};

/// How long the end of the process waits at most for threads of this crate: a call of a driver may never return.
const PATIENCE: Duration = Duration::from_secs(2);

statics! {
    static SERVICES: Mutex<Vec<Service>> = Mutex::new(Vec::new());
    // Of the first wait at the end of the process.
    static BEGIN: OnceLock<Instant> = OnceLock::new();
}

/// Threads of this crate that may be inside a driver.
#[derive(Clone, Copy)]
pub(crate) struct Service {
    /// Whether nothing is left for them to do.
    pub(crate) is_idle: fn() -> bool,
    /// They begin nothing any more.
    pub(crate) stop: fn(),
    /// Whether none of them does anything.
    pub(crate) is_at_rest: fn() -> bool,
}

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Makes the end of the process wait until `service` is idle, for about two seconds at most. Called once, before the service
/// starts its first thread.
pub(crate) fn register(service: Service) {
    fork::watch();
    SERVICES.lock().push(service);
    before_drivers();
}

/// Has the end of the process wait for the services before drivers that are loaded by now clean up: what is registered last runs first.
/// So it is called for each device anew, whose driver may have come since; an entry takes some 32 bytes, and waiting twice takes no time.
pub(crate) fn before_drivers() {
    // Miri has no such function, and an execution of the model is no process.
    if !cfg!(any(miri, shuttle)) {
        // SAFETY: `settle` is a function of this program, and `extern "C"` lets no panic out of it. Where it cannot be
        // registered, the process ends without waiting.
        let _ = unsafe { atexit(settle) };
    }
}

/// Whether nothing is in flight and no thread of this crate has anything to do.
pub(crate) fn is_idle() -> bool {
    services().iter().all(|service| (service.is_idle)())
}

fn services() -> Vec<Service> {
    SERVICES.lock().clone()
}

extern "C" fn settle() {
    // The threads are the parent's.
    if fork::is_child() {
        return;
    }
    // Whatever was registered how often: a device that answers no more is waited for once.
    let begin = *BEGIN.get_or_init(Instant::now);
    // What is in flight comes to its end, and what it holds goes, as far as the devices answer.
    wait_until(begin + PATIENCE, is_idle);
    let services = services();
    services.iter().for_each(|service| (service.stop)());
    wait_until(begin + PATIENCE + PATIENCE / 10, || services.iter().all(|service| (service.is_at_rest)()));
}

fn wait_until(end: Instant, holds: impl Fn() -> bool) {
    while !holds() && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(200));
    }
}
