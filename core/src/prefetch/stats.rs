//! How long a program has waited for its items, and for what.

use std::fmt;
use std::time::Duration;

/// How long a program has waited for prefetched items, and for what.
///
/// Where all of it is close to nothing beside the work between the items, the loader is not what holds the program up. Where
/// `source` is most of it, read faster; where `staging` is, gather less (larger tensors, pinned ones) or give staging a larger budget
/// (with [`Prefetched::hand_over`](crate::Prefetched::hand_over) and [`reuse`](crate::Prefetched::reuse) it is the wait for memory that the
/// device still fills); where `link` is, copy fewer bytes, or further ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefetchStats {
    /// Items that were handed out, errors included.
    pub items: u64,
    /// Those of them that were copied into memory that had come back.
    pub reused: u64,
    /// Time in which the source made items, and the program waited for that.
    pub source: Duration,
    /// Time to start copies, on the program's thread.
    pub start: Duration,
    /// Time in which the program waited for copies that were not submitted yet.
    pub staging: Duration,
    /// Time in which the program waited for copies that were submitted.
    pub link: Duration,
}

impl PrefetchStats {
    /// All that the program has waited.
    pub fn waited(&self) -> Duration {
        self.source + self.start + self.staging + self.link
    }
}

impl fmt::Display for PrefetchStats {
    /// One line, times in milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(
            f,
            "{} items, {} in used memory, waited {:.3} ms: source {:.3}, start {:.3}, staging {:.3}, link {:.3}",
            self.items,
            self.reused,
            ms(self.waited()),
            ms(self.source),
            ms(self.start),
            ms(self.staging),
            ms(self.link)
        )
    }
}
