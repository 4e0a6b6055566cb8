//! Buffers that nobody uses any more, kept for the next tensors of about their size: all but small ones.
//!
//! The driver takes milliseconds for new memory: for 256 MiB a third of the time of the copy that fills it. wgpu cuts buffers out of
//! blocks of up to 256 MiB, but gives back each block whose buffers are gone, except one.

use std::collections::VecDeque;

use parking_lot::Mutex;
use transship_core::{Error, Result};

/// Smaller buffers are cheap: it takes many of them to fill a block of wgpu's.
const SMALLEST: usize = 1 << 20;
/// The most that is kept, in bytes, and so the largest buffer that is.
const MOST: usize = 1 << 30;
/// How many sizes lie between one power of two and the next: rounding up to one of them adds an eighth at the most.
const STEPS: usize = 8;

/// How large a buffer for `bytes` bytes is made, so that others of about that size can use it again; `None` if it is not
/// kept. No buffer may be larger than `largest`.
pub(crate) fn rounded_size(bytes: usize, largest: usize) -> Option<usize> {
    if !(SMALLEST..=MOST).contains(&bytes) {
        return None;
    }
    let size = bytes.next_multiple_of((1 << bytes.ilog2()) / STEPS);
    (size <= largest).then_some(size)
}

/// The buffers of one device that are not small.
///
/// Those in use and those kept have together at most twice the bytes that were ever in use at once; what was kept first
/// goes first.
pub(crate) struct Recycled<B>(Mutex<State<B>>);

struct State<B> {
    /// With their sizes, in the order in which they came.
    kept: VecDeque<(usize, B)>,
    kept_bytes: usize,
    in_use: u64,
    most_in_use: u64,
}

impl<B> Recycled<B> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { kept: VecDeque::new(), kept_bytes: 0, in_use: 0, most_in_use: 0 }))
    }

    /// A buffer of `size` bytes, which [`rounded_size`] has given: one that is kept, or a new one. It is in use until
    /// [`put_back`](Self::put_back).
    pub(crate) fn take_or(&self, size: usize, create: impl FnOnce() -> Result<B>) -> Result<B> {
        let kept = self.0.lock().take(size);
        let buffer = kept.map_or_else(create, Ok)?;
        let surplus = self.0.lock().begin_use(size);
        drop(surplus);
        Ok(buffer)
    }

    /// Ends the use of a buffer of `size` bytes, and keeps it; `None` if it may be somebody else's as well.
    pub(crate) fn put_back(&self, size: usize, buffer: Option<B>) {
        let surplus = self.0.lock().end_use(size, buffer);
        drop(surplus);
    }

    /// Lets go of what is kept; returns how many bytes.
    pub(crate) fn trim(&self) -> usize {
        let mut state = self.0.lock();
        let (kept, bytes) = (std::mem::take(&mut state.kept), std::mem::take(&mut state.kept_bytes));
        drop(state);
        drop(kept);
        bytes
    }

    /// What `create` gives; if there is no memory left for it, what it gives once nothing is kept.
    pub(crate) fn make_room<T>(&self, create: impl Fn() -> Result<T>) -> Result<T> {
        match create() {
            Err(Error::OutOfMemory { .. }) if self.trim() > 0 => create(),
            other => other,
        }
    }

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().kept_bytes
    }
}

impl<B> State<B> {
    /// The newest of the size: what there is too much of grows old.
    fn take(&mut self, size: usize) -> Option<B> {
        let index = self.kept.iter().rposition(|(kept, _)| *kept == size)?;
        self.kept_bytes -= size;
        self.kept.remove(index).map(|(_, buffer)| buffer)
    }

    fn begin_use(&mut self, size: usize) -> Vec<B> {
        self.in_use += size as u64;
        self.most_in_use = self.most_in_use.max(self.in_use);
        self.surplus()
    }

    fn end_use(&mut self, size: usize, buffer: Option<B>) -> Vec<B> {
        self.in_use -= size as u64;
        if let Some(buffer) = buffer {
            self.kept_bytes += size;
            self.kept.push_back((size, buffer));
        }
        self.surplus()
    }

    /// What is too much, for the caller to drop without the lock.
    fn surplus(&mut self) -> Vec<B> {
        let most = (MOST as u64).min(2 * self.most_in_use - self.in_use);
        let mut surplus = Vec::new();
        while self.kept_bytes as u64 > most {
            let Some((size, buffer)) = self.kept.pop_front() else { break };
            self.kept_bytes -= size;
            surplus.push(buffer);
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::cell::Cell;

    use transship_core::DeviceId;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes a buffer of each size, all at once, and puts them back; how many of them are new.
    fn use_together(recycled: &Recycled<usize>, sizes: &[usize]) -> usize {
        let new = Cell::new(0);
        let create = |size| {
            new.set(new.get() + 1);
            Ok(size)
        };
        let taken: Vec<usize> =
            sizes.iter().map(|size| recycled.take_or(*size, || create(*size)).unwrap()).collect();
        assert_eq!(taken, sizes, "a buffer of another size");
        taken.into_iter().for_each(|size| recycled.put_back(size, Some(size)));
        new.get()
    }

    fn out_of_memory<T>() -> Result<T> {
        let device = DeviceId::new("wgpu", 0)?;
        Err(Error::OutOfMemory { device, kind: "device", requested: 1, free: 0, total: 0 })
    }

    #[test]
    fn a_size_is_an_eighth_larger_at_the_most() {
        for bytes in (SMALLEST..=MOST).step_by(999_996) {
            let size = rounded_size(bytes, usize::MAX).unwrap();
            assert!(size >= bytes && size - bytes < bytes / STEPS + 1, "{size} for {bytes}");
            assert_eq!(rounded_size(size, usize::MAX), Some(size));
        }
        assert_eq!(rounded_size(255 * MIB, usize::MAX), Some(256 * MIB));
        assert_eq!(rounded_size(255 * MIB, 256 * MIB - 4), None, "larger than the device allows");
        assert_eq!(rounded_size(SMALLEST - 4, usize::MAX), None);
        assert_eq!(rounded_size(MOST + 4, usize::MAX), None);
    }

    #[test]
    fn what_was_put_back_is_taken_again() {
        let recycled = Recycled::new();
        assert_eq!(use_together(&recycled, &[64 * MIB, 64 * MIB]), 2);
        assert_eq!(use_together(&recycled, &[64 * MIB, 64 * MIB]), 0);
        assert_eq!(use_together(&recycled, &[32 * MIB]), 1);
        assert_eq!(recycled.bytes(), 160 * MIB);
        recycled.take_or(64 * MIB, out_of_memory).unwrap();
        recycled.put_back(64 * MIB, None);
        assert_eq!(recycled.bytes(), 96 * MIB, "what is somebody else's is not kept");
    }

    #[test]
    fn a_device_holds_twice_what_was_in_use_at_the_most() {
        let recycled = Recycled::new();
        use_together(&recycled, &[64 * MIB]);
        use_together(&recycled, &[48 * MIB]);
        assert_eq!(recycled.bytes(), 112 * MIB);
        assert_eq!(use_together(&recycled, &[32 * MIB]), 1, "the oldest makes room");
        assert_eq!(recycled.bytes(), 80 * MIB);
        recycled.take_or(64 * MIB, || Ok(64 * MIB)).unwrap();
        assert_eq!(recycled.bytes(), 32 * MIB, "64 in use");
    }

    #[test]
    fn the_most_holds_however_much_was_in_use() {
        let recycled = Recycled::new();
        assert_eq!(use_together(&recycled, &[MOST / 2; 5]), 5);
        assert_eq!(recycled.bytes(), MOST);
        assert_eq!(use_together(&recycled, &[MOST / 2; 5]), 3);
    }

    #[test]
    fn trim_lets_go_of_everything() {
        let recycled = Recycled::new();
        use_together(&recycled, &[64 * MIB, 16 * MIB]);
        assert_eq!((recycled.trim(), recycled.bytes(), recycled.trim()), (80 * MIB, 0, 0));
        assert_eq!(use_together(&recycled, &[64 * MIB]), 1);
    }

    #[test]
    fn what_is_kept_makes_room_for_what_is_new() {
        let recycled = Recycled::new();
        let tries = Cell::new(0);
        let create = || {
            tries.set(tries.get() + 1);
            if recycled.bytes() > 0 { out_of_memory() } else { Ok(()) }
        };
        use_together(&recycled, &[64 * MIB]);
        assert!(recycled.make_room(create).is_ok());
        assert_eq!(tries.get(), 2);
        let create = || {
            tries.set(tries.get() + 1);
            out_of_memory::<()>()
        };
        assert!(recycled.make_room(create).is_err());
        assert_eq!(tries.get(), 3, "there was nothing to let go of");
    }
}
