//! Fails loudly where a thread is stuck.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::arena::Arena;

/// Longer than any single step takes, on however busy a machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Watches until it is stopped or the process ends.
pub(crate) struct Watchdog {
    places: Vec<Arc<Place>>,
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What a thread is doing.
pub(crate) struct Place {
    doing: Mutex<(Instant, u64, String)>,
    failed: Arc<AtomicBool>,
}

impl Place {
    /// Whether another thread has panicked: nothing else will be learned.
    pub(crate) fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// To be held by the thread: tells the others if it panics.
    pub(crate) fn guard(&self) -> impl Drop + use<'_> {
        Guard(&self.failed)
    }

    /// Another step begins.
    pub(crate) fn note(&self, step: u64, doing: impl Into<String>) {
        *self.doing.lock().unwrap() = (Instant::now(), step, doing.into());
    }
}

struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Watchdog {
    pub(crate) fn start(arena: Arc<Arena>, threads: usize) -> Self {
        let failed = Arc::new(AtomicBool::new(false));
        let doing = || Mutex::new((Instant::now(), 0, "starting".to_owned()));
        let place = || Arc::new(Place { doing: doing(), failed: failed.clone() });
        let places: Vec<_> = (0..threads).map(|_| place()).collect();
        let stopped = Arc::new(AtomicBool::new(false));
        let (watched, over) = (places.clone(), stopped.clone());
        let thread = thread::spawn(move || watch(&arena, &watched, &over));
        Self { places, stopped, thread }
    }

    pub(crate) fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }

    pub(crate) fn place(&self, number: usize) -> Arc<Place> {
        self.places[number].clone()
    }
}

fn watch(arena: &Arena, places: &[Arc<Place>], over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(200));
        arena.forget_calls();
        let stuck = |place: &Arc<Place>| place.doing.lock().is_ok_and(|at| at.0.elapsed() > LIMIT);
        if places.iter().any(stuck) {
            report(arena, places);
            // Whoever is stuck cannot be joined.
            process::exit(101);
        }
    }
}

fn report(arena: &Arena, places: &[Arc<Place>]) {
    eprintln!("a thread is stuck for {LIMIT:?}:");
    for (number, place) in places.iter().enumerate() {
        if let Ok(at) = place.doing.lock() {
            eprintln!("thread {number}: step {}, {} for {:?}", at.1, at.2, at.0.elapsed());
        }
    }
    eprintln!("{arena}");
}
