//! How files are loaded.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transship_core::{Cast, Error};

use crate::error::LoadError;
use crate::wanted::{Filter, Narrow, Wanted};

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
    narrow: Option<Narrow>,
    casts: Vec<Cast>,
    direct_io: Option<bool>,
    progress: Option<Arc<Progress>>,
}

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

    /// Loads a part of some tensors: `rule` is given the name and the shape of each, and returns `None` for all of it, or a dimension and the items of
    /// that which are wanted. It is called as the filter is, with the names that pass that. What is wanted of the first dimension is read and no other
    /// byte; of other ones too, unless at most 16 KiB lie between two parts: those are read along and left out.
    ///
    /// ```
    /// # use transship_safetensors::LoadOptions;
    /// // The second of two ranks: half of the rows of these matrices, and half of the columns of those.
    /// let options = LoadOptions::default().narrow(|name, shape| match name.rsplit('.').nth(1)? {
    ///     "q_proj" | "up_proj" => Some((0, shape[0] / 2..shape[0])),
    ///     "o_proj" | "down_proj" => Some((1, shape[1] / 2..shape[1])),
    ///     _ => None,
    /// });
    /// ```
    pub fn narrow(
        mut self,
        rule: impl FnMut(&str, &[usize]) -> Option<(usize, Range<usize>)> + Send + 'static,
    ) -> Self {
        self.narrow = Some(Box::new(rule));
        self
    }

    /// Converts the tensors of one element type while they are loaded, as [`CopyOptions::cast`](transship_core::CopyOptions::cast) does: once for each type, the last one counts. The threads
    /// that read convert, so what goes over the link has the size that comes out. An integer that does not fit is [`LoadError::DoesNotFit`] when it is read,
    /// unless the cast is [`saturating`](Cast::saturating).
    pub fn cast(mut self, cast: Cast) -> Self {
        self.casts.retain(|known| known.from_dtype() != cast.from_dtype());
        self.casts.push(cast);
        self
    }

    /// Whether files are read past the page cache (`O_DIRECT`; Linux), which costs less processor time and drops nothing that is cached there. Without
    /// this, files are read so if what is loaded of them is more than half of the memory that is free, and only where they are not cached: smaller ones are
    /// cached for the next time. Parts below 256 KiB are read through it in any case, and so is all where the file system refuses: see
    /// [`Progress::direct_bytes`].
    pub fn direct_io(mut self, on: bool) -> Self {
        self.direct_io = Some(on);
        self
    }

    /// Counts there how far the call is, for another thread to look at.
    pub fn progress(mut self, progress: &Arc<Progress>) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Fails unless all values can be. What is wanted comes apart: it is for the calling thread alone.
    pub(crate) fn validated(self) -> Result<(Validated, Wanted), LoadError> {
        let (budget, threads) = (self.budget.unwrap_or(BUDGET), self.threads.unwrap_or(THREADS));
        require(budget >= LEAST_BUDGET, "budget", budget, "it must be at least 65536, the smallest block")?;
        require((1..=MOST_THREADS).contains(&threads), "threads", threads, "it must be 1 to 256")?;
        self.casts.iter().try_for_each(Cast::check).map_err(LoadError::Option)?;
        let wanted = Wanted { filter: self.filter, narrow: self.narrow, casts: self.casts };
        let (direct_io, progress) = (self.direct_io, self.progress.unwrap_or_default());
        Ok((Validated { budget, threads, direct_io, progress }, wanted))
    }
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = f.debug_struct("LoadOptions");
        options.field("budget", &self.budget).field("threads", &self.threads);
        options.field("filter", &self.filter.is_some()).field("narrow", &self.narrow.is_some());
        options.field("casts", &self.casts).field("direct_io", &self.direct_io);
        options.field("progress", &self.progress).finish()
    }
}

/// Options whose values can be.
pub(crate) struct Validated {
    pub(crate) budget: usize,
    pub(crate) threads: usize,
    pub(crate) direct_io: Option<bool>,
    pub(crate) progress: Arc<Progress>,
}

/// How far a call of [`load`](crate::load) is. Any thread may look at any time.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    read: AtomicU64,
    direct: AtomicU64,
}

impl Progress {
    /// Bytes of all tensors to load, as the files have them; 0 until all headers are read.
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes that were read out of the files. The device may still copy the last of them.
    pub fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes that were read past the page cache ([`LoadOptions::direct_io`]), with those around them: a disk is read by whole blocks. 0 if nothing was.
    pub fn direct_bytes(&self) -> u64 {
        self.direct.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, total: u64) {
        self.read.store(0, Ordering::Relaxed);
        self.direct.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub(crate) fn note_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_direct(&self, bytes: u64) {
        self.direct.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn require(holds: bool, name: &'static str, value: usize, reason: &'static str) -> Result<(), LoadError> {
    match holds {
        true => Ok(()),
        false => Err(LoadError::Option(Error::InvalidOption { name, value: value.to_string(), reason })),
    }
}
