//! How files are loaded.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transship_core::Error;

use crate::error::LoadError;

/// The default of [`LoadOptions::budget`], in bytes.
const BUDGET: usize = 64 << 20;
/// The smallest budget: one of the smallest blocks.
const LEAST_BUDGET: usize = 64 << 10;
/// The default of [`LoadOptions::threads`].
const THREADS: usize = 8;
/// More threads than these wait for each other.
const MOST_THREADS: usize = 256;

/// How files are loaded.
///
/// ```
/// use transship_safetensors::LoadOptions;
///
/// let options = LoadOptions::default().filter(|name| name.starts_with("encoder.")).budget(256 << 20);
/// ```
#[derive(Default)]
pub struct LoadOptions {
    budget: Option<usize>,
    threads: Option<usize>,
    filter: Option<Filter>,
    progress: Option<Arc<Progress>>,
}

/// Which names are wanted.
pub(crate) type Filter = Box<dyn FnMut(&str) -> bool + Send>;

impl LoadOptions {
    /// The most pinned memory that the call has at a time, in bytes (default: 64 MiB; at least 64 KiB). It is apart from the
    /// staging budget of the device, and not needed on the host.
    pub fn budget(mut self, bytes: usize) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// How many threads read, the calling one included: 1 to 256 (default: 8). A file system that answers late, over a network,
    /// may be worth more.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Loads the tensors alone whose names `keep` says `true` to (default: all). It is called on the calling thread, before anything is
    /// read. Files of a sharded model that hold none of these are not opened; in the others, all of the header is checked.
    pub fn filter(mut self, keep: impl FnMut(&str) -> bool + Send + 'static) -> Self {
        self.filter = Some(Box::new(keep));
        self
    }

    /// Counts there how far the call is, for another thread to look at.
    pub fn progress(mut self, progress: &Arc<Progress>) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Fails unless all values can be. The filter comes apart: it is for the calling thread alone.
    pub(crate) fn validated(self) -> Result<(Validated, Filter), LoadError> {
        let (budget, threads) = (self.budget.unwrap_or(BUDGET), self.threads.unwrap_or(THREADS));
        require(budget >= LEAST_BUDGET, "budget", budget, "it must be at least 65536, the smallest block")?;
        require((1..=MOST_THREADS).contains(&threads), "threads", threads, "it must be 1 to 256")?;
        let filter = self.filter.unwrap_or_else(|| Box::new(|_| true));
        Ok((Validated { budget, threads, progress: self.progress.unwrap_or_default() }, filter))
    }
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = f.debug_struct("LoadOptions");
        options.field("budget", &self.budget).field("threads", &self.threads);
        options.field("filter", &self.filter.is_some()).field("progress", &self.progress).finish()
    }
}

/// Options whose values can be.
pub(crate) struct Validated {
    pub(crate) budget: usize,
    pub(crate) threads: usize,
    pub(crate) progress: Arc<Progress>,
}

/// How far a call of [`load`](crate::load) is. Any thread may look at any time.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    read: AtomicU64,
}

impl Progress {
    /// Bytes of all tensors to load; 0 until all headers are read.
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes that were read out of the files. The device may still copy the last of them.
    pub fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, total: u64) {
        self.read.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub(crate) fn note_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn require(holds: bool, name: &'static str, value: usize, reason: &'static str) -> Result<(), LoadError> {
    match holds {
        true => Ok(()),
        false => Err(LoadError::Option(Error::InvalidOption { name, value: value.to_string(), reason })),
    }
}
