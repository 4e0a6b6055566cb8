//! How far ahead copies are started.

use crate::job::options::CopyOptions;

/// How far ahead of the program the copies of a source's items are started, and how they are done.
///
/// ```
/// use transship_core::{CopyOptions, PrefetchOptions};
///
/// let options = PrefetchOptions::default().depth(4).max_bytes(512 << 20).copy(CopyOptions::default());
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct PrefetchOptions {
    pub(crate) depth: usize,
    pub(crate) max_bytes: Option<usize>,
    pub(crate) copy: CopyOptions,
}

impl PrefetchOptions {
    /// How many items are on their way, or have arrived, beside the one that the program has or waits for; 2 by default. With 0 each
    /// item is copied when it is asked for. They are all started when the first item is asked for.
    pub fn depth(mut self, items: usize) -> Self {
        self.depth = items;
        self
    }

    /// How many bytes of tensors these items may have together; no limit by default, where too many are
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory). An item that is larger by itself is ahead alone. One more item is taken
    /// from the source, and held back until there is room. Tensors that are on the device already count, and so do those that share
    /// memory; memory kept by [`Prefetched::reuse`](crate::Prefetched::reuse) does not. Each item is visited once more for this.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// How each item is copied. A deadline begins when the copy is started, ahead of the program: under a budget of device memory the
    /// item waits so long for those that the program drops. A stream must be one of the device that the item goes to.
    pub fn copy(mut self, options: CopyOptions) -> Self {
        self.copy = options;
        self
    }
}

impl Default for PrefetchOptions {
    fn default() -> Self {
        Self { depth: 2, max_bytes: None, copy: CopyOptions::default() }
    }
}
