//! How tensors are saved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transship_core::Error;

use crate::save::error::SaveError;

/// The default of [`SaveOptions::budget`], in bytes.
const BUDGET: usize = 64 << 20;
/// The smallest block of pinned memory, in bytes.
const LEAST_WINDOW: usize = 64 << 10;
/// Larger windows are no faster, in bytes.
const LARGEST_WINDOW: usize = 8 << 20;
/// The default of [`SaveOptions::threads`].
const THREADS: usize = 8;
/// More threads than these wait for each other.
const MOST_THREADS: usize = 256;

/// How tensors are saved.
///
/// ```
/// use transship_safetensors::SaveOptions;
///
/// let options = SaveOptions::default().metadata([("format", "pt")]).shard_bytes(5 << 30);
/// ```
#[derive(Debug, Clone, Default)]
pub struct SaveOptions {
    budget: Option<usize>,
    threads: Option<usize>,
    shard_bytes: Option<u64>,
    metadata: BTreeMap<String, String>,
    progress: Option<Arc<SaveProgress>>,
}

impl SaveOptions {
    /// The most memory on the host that tensors of other devices take at a time, in bytes (default: 64 MiB; at least 64 KiB). It is
    /// pinned as far as the device's [budget of results](transship_core::Device::set_result_budget) goes, which what is kept ready for the
    /// next copies counts to as well. Views whose gaps the device does not leave out come down with their gaps.
    pub fn budget(mut self, bytes: usize) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// How many threads copy and write, the calling one included: 1 to 256 (default: 8). A small budget does with fewer.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Saves to a folder, as files of about so many bytes of tensors with an index (default: one file). A tensor that is larger has a file
    /// of its own.
    pub fn shard_bytes(mut self, bytes: u64) -> Self {
        self.shard_bytes = Some(bytes);
        self
    }

    /// Writes these to the `__metadata__` of each file, such as those of a [`LoadedFile`](crate::LoadedFile); of several with one key, the last.
    pub fn metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.metadata.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Counts there how far the call is, for another thread to look at.
    pub fn progress(mut self, progress: &Arc<SaveProgress>) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Fails unless all values can be.
    pub(crate) fn validated(self) -> Result<Validated, SaveError> {
        let (budget, threads) = (self.budget.unwrap_or(BUDGET), self.threads.unwrap_or(THREADS));
        require(budget >= LEAST_WINDOW, "budget", budget, "it must be at least 65536, the smallest block")?;
        require((1..=MOST_THREADS).contains(&threads), "threads", threads, "it must be 1 to 256")?;
        require(self.shard_bytes != Some(0), "shard_bytes", 0, "it must be at least 1")?;
        let threads = threads.min(budget / LEAST_WINDOW);
        let most = (budget / threads).min(LARGEST_WINDOW);
        // A block of pinned memory is as large as the next power of two.
        let window_bytes = 1 << most.ilog2();
        let Self { shard_bytes, metadata, progress, .. } = self;
        Ok(Validated { threads, window_bytes, shard_bytes, metadata, progress: progress.unwrap_or_default() })
    }
}

/// Options whose values can be.
pub(crate) struct Validated {
    pub(crate) threads: usize,
    /// What each thread has on the host at a time: a power of two.
    pub(crate) window_bytes: usize,
    pub(crate) shard_bytes: Option<u64>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) progress: Arc<SaveProgress>,
}

/// How far a call of [`save`](crate::save()) is. Any thread may look at any time.
#[derive(Debug, Default)]
pub struct SaveProgress {
    total: AtomicU64,
    written: AtomicU64,
}

impl SaveProgress {
    /// Bytes of all tensors to save; 0 until the structure was gone through.
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes of tensors that were written to files. When these are all, the disk may still have to take the last of them, and the files are not in their places.
    pub fn written_bytes(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, total: u64) {
        self.written.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub(crate) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn require(holds: bool, name: &'static str, value: usize, reason: &'static str) -> Result<(), SaveError> {
    match holds {
        true => Ok(()),
        false => Err(SaveError::Option(Error::InvalidOption { name, value: value.to_string(), reason })),
    }
}
