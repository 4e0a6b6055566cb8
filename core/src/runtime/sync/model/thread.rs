//! Threads that end with the execution, as those of a process end with it.

use std::io;
use std::num::NonZero;
use std::time::Duration;

pub use shuttle::thread::yield_now;

/// Lets other threads run first, whatever the schedule: a thread that sleeps waits for them.
pub fn sleep(_time: Duration) {
    yield_now();
}

#[derive(Default)]
pub struct Builder;

impl Builder {
    pub fn new() -> Self {
        Self
    }

    pub fn name(self, _name: String) -> Self {
        self
    }

    pub fn spawn(self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        // Unlike a thread, a task is not waited for once its handle is gone.
        drop(shuttle::future::spawn(async move { run() }));
        Ok(())
    }
}

/// A scope in which no thread can be started: whoever opens one does all the work.
pub struct Scope;

pub fn scope<T>(run: impl FnOnce(&Scope) -> T) -> T {
    run(&Scope)
}

impl Builder {
    pub fn spawn_scoped(self, _scope: &Scope, _run: impl FnOnce()) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The same number on every machine, so that schedules are the same.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    NonZero::new(3).ok_or_else(|| io::ErrorKind::Unsupported.into())
}
