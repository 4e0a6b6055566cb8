//! Memory that was freed behind streams which have not come by, as a budget counts it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend;
use crate::backend::Ticket;
use crate::error::{Error, Result};
use crate::runtime::sync::atomic::{AtomicU8, Ordering};

/// All that leaves one device.
#[derive(Default)]
pub(crate) struct LeavingMemory {
    all: Vec<Leaving>,
    /// How many pieces there were so far.
    entered: u64,
}

/// A piece of it.
pub(crate) struct Leaving {
    /// How many had entered before it.
    turn: u64,
    bytes: usize,
    behind: SmallVec<[Ticket; 1]>,
    /// Where the memory is dropped only behind that: what became of it.
    fate: Option<Fate>,
}

/// What becomes of memory that counts as leaving until somebody says so.
#[derive(Clone, Default)]
pub(crate) struct Fate(Arc<AtomicU8>);

/// Fates of memory.
const THERE: u8 = 0;
const DROPPED: u8 = 1;
const LOST: u8 = 2;

impl LeavingMemory {
    pub(crate) fn entered(&self) -> u64 {
        self.entered
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all.iter().map(|leaving| leaving.bytes).sum()
    }

    /// Whether the first `count` pieces are free, or lost, as far as [`take_over`](Self::take_over) has found out.
    pub(crate) fn are_over(&self, count: u64) -> bool {
        self.all.first().is_none_or(|first| first.turn >= count)
    }

    /// Adds a piece, which is free when every ticket of `behind` is reached, and the memory is dropped whose `fate` this is. Whether it is the only one.
    pub(crate) fn add(&mut self, bytes: usize, behind: SmallVec<[Ticket; 1]>, fate: Option<Fate>) -> bool {
        self.all.push(Leaving { turn: self.entered, bytes, behind, fate });
        self.entered += 1;
        self.all.len() == 1
    }

    /// Takes out what streams have come by; returns how many bytes of it are free. What is lost goes as well, and stays counted.
    pub(crate) fn take_over(&mut self) -> (usize, Vec<Leaving>) {
        let (mut freed, mut reached) = (0, Reached::default());
        let is_over = |leaving: &mut Leaving| match leaving.is_over(&mut reached) {
            Ok(true) => {
                freed += leaving.bytes;
                true
            }
            Ok(false) => false,
            Err(_) => true,
        };
        let over = self.all.extract_if(.., is_over).collect();
        (freed, over)
    }
}

impl Leaving {
    /// Whether no stream uses it any more; an error if nobody will ever know, so that it is leaked.
    fn is_over(&self, reached: &mut Reached) -> Result<bool> {
        match self.fate.as_ref().map(|fate| fate.0.load(Ordering::Acquire)) {
            Some(THERE) => return Ok(false),
            Some(LOST) => return Err(Error::Taken),
            _ => {}
        }
        self.behind.iter().try_fold(true, |over, ticket| Ok(over && reached.is_reached(ticket)?))
    }
}

impl Fate {
    pub(crate) fn dropped(&self) {
        self.0.store(DROPPED, Ordering::Release);
    }

    /// It is leaked, and stays counted.
    pub(crate) fn lost(&self) {
        self.0.store(LOST, Ordering::Release);
    }
}

/// How far streams have come, by their addresses. Each is asked once, however much memory leaves behind it.
#[derive(Default)]
struct Reached(SmallVec<[(usize, Result<u64>); 2]>);

impl Reached {
    fn is_reached(&mut self, ticket: &Ticket) -> Result<bool> {
        let stream = Arc::as_ptr(&ticket.stream).addr();
        let known = self.0.iter().position(|(known, _)| *known == stream);
        let index = known.unwrap_or_else(|| {
            self.0.push((stream, backend::stream::reached(&*ticket.stream)));
            self.0.len() - 1
        });
        match self.0.get(index) {
            Some((_, reached)) => Ok(reached.clone()? >= ticket.position),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: what is lost counts as free, or keeps all that came behind it from being so.
    #[test]
    fn what_is_lost_goes_and_is_not_free() {
        let (mut leaving, [lost, dropped, there]) =
            (LeavingMemory::default(), [(); 3].map(|()| Fate::default()));
        for (bytes, fate) in [(1, &lost), (20, &dropped), (300, &there)] {
            leaving.add(bytes, SmallVec::new(), Some(fate.clone()));
        }
        assert_eq!((leaving.take_over().0, leaving.bytes()), (0, 321));
        lost.lost();
        dropped.dropped();
        assert_eq!((leaving.take_over().0, leaving.bytes()), (20, 300));
        assert!(leaving.are_over(2) && !leaving.are_over(3));
        there.dropped();
        assert_eq!((leaving.take_over().0, leaving.bytes()), (300, 0));
        assert!(leaving.are_over(3) && leaving.is_empty());
    }
}
