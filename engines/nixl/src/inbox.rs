//! What one peer has offered, and how far that has got. Whatever it says, it costs a bounded amount of memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::arena::Range;
use crate::wire::Message;

/// How many trees of one peer may wait to be received.
pub(crate) const MOST_WAITING: usize = 256;
/// The bytes of the manifests of these.
pub(crate) const MOST_MANIFEST_BYTES: usize = 64 << 20;

/// What one peer has offered.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Offered>,
    /// Who waits for a tree of it, in their order.
    turns: VecDeque<u64>,
    receiving: HashMap<u64, Progress>,
    /// What the peer was given room for and nobody waits for any more: it may still write there.
    set_aside: HashMap<u64, Arc<Range>>,
}

/// A tree that a peer has offered.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) id: u64,
    pub(crate) bytes: usize,
    pub(crate) manifest: Vec<u8>,
}

/// How far the peer has got with a tree that is being received.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Bytes from the first one on.
    pub(crate) written: usize,
    /// It writes no more.
    pub(crate) is_withdrawn: bool,
}

impl Inbox {
    /// Whether a tree of it is being received. Who waits for one is in nobody's way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.receiving.is_empty()
    }

    /// Takes an offer, and says what to answer.
    pub(crate) fn offer(&mut self, offered: Offered) -> Option<Vec<u8>> {
        let id = offered.id;
        if self.knows(id) {
            // It is answered under the number that it shares with another one.
            return None;
        }
        if self.waiting.len() >= MOST_WAITING || self.manifest_bytes(&offered) > MOST_MANIFEST_BYTES {
            let reason = format!(
                "{} trees wait to be received, or {MOST_MANIFEST_BYTES} bytes of their manifests: no more are kept",
                self.waiting.len()
            );
            return Some(Message::Refused { id, reason }.to_bytes());
        }
        self.waiting.push_back(offered);
        None
    }

    /// So many bytes lie there. Whether there is such a tree.
    pub(crate) fn written(&mut self, id: u64, bytes: usize) -> bool {
        if let Some(progress) = self.receiving.get_mut(&id) {
            progress.written = progress.written.max(bytes);
            return true;
        }
        let is_set_aside = self.set_aside.contains_key(&id);
        self.set_aside.retain(|other, range| *other != id || bytes < range.bytes);
        is_set_aside
    }

    /// The peer writes no more of it. Whether there is such a tree.
    pub(crate) fn withdraw(&mut self, id: u64) -> bool {
        if let Some(progress) = self.receiving.get_mut(&id) {
            progress.is_withdrawn = true;
            return true;
        }
        let waiting = self.waiting.len();
        self.waiting.retain(|offered| offered.id != id);
        self.set_aside.remove(&id).is_some() || self.waiting.len() < waiting
    }

    /// Somebody receives, behind those before.
    pub(crate) fn queue(&mut self, turn: u64) {
        self.turns.push_back(turn);
    }

    /// This one waits again, in front of those that have begun behind it.
    pub(crate) fn queue_again(&mut self, turn: u64) {
        self.leave(turn);
        let before = self.turns.partition_point(|other| *other < turn);
        self.turns.insert(before, turn);
    }

    /// How many earlier receives have not got a tree, or room for it. `None` if this one does not wait here: a peer that was added anew has another inbox.
    pub(crate) fn before(&self, turn: u64) -> Option<usize> {
        self.turns.iter().position(|other| *other == turn)
    }

    /// Whether there is a tree for this one.
    pub(crate) fn may_take(&self, turn: u64) -> bool {
        self.turns.front() == Some(&turn) && !self.waiting.is_empty()
    }

    /// The next tree, once it is the turn of this one, which it keeps until it [leaves](Self::leave): those behind it get no room before it.
    pub(crate) fn next(&mut self, turn: u64) -> Option<Offered> {
        if !self.may_take(turn) {
            return None;
        }
        let offered = self.waiting.pop_front()?;
        self.receiving.insert(offered.id, Progress::default());
        Some(offered)
    }

    /// Whoever has this turn has room, or waits no more.
    pub(crate) fn leave(&mut self, turn: u64) {
        self.turns.retain(|other| *other != turn);
    }

    pub(crate) fn progress(&self, id: u64) -> Option<Progress> {
        self.receiving.get(&id).copied()
    }

    /// Nobody waits for it any more. `room`, which the peer was given, is set aside if it may still write there. What it has said.
    pub(crate) fn end(&mut self, id: u64, room: Option<Arc<Range>>) -> Progress {
        let progress = self.receiving.remove(&id).unwrap_or_default();
        if let Some(room) = room.filter(|room| !progress.is_withdrawn && progress.written < room.bytes) {
            self.set_aside.insert(id, room);
        }
        progress
    }

    /// Where the peer may still write although nobody waits for it.
    pub(crate) fn set_aside(&self) -> impl Iterator<Item = &Range> {
        self.set_aside.values().map(|range| &**range)
    }

    fn knows(&self, id: u64) -> bool {
        let is_waiting = self.waiting.iter().any(|offered| offered.id == id);
        is_waiting || self.receiving.contains_key(&id) || self.set_aside.contains_key(&id)
    }

    /// Those of all that wait, and of this one.
    fn manifest_bytes(&self, offered: &Offered) -> usize {
        self.waiting.iter().chain([offered]).map(|offered| offered.manifest.len()).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::arena::Arena;

    fn offered(id: u64) -> Offered {
        Offered { id, bytes: 100, manifest: b"m".to_vec() }
    }

    /// One that has begun to receive the tree of this number.
    fn receiving(id: u64) -> Inbox {
        let mut inbox = Inbox::default();
        assert!(inbox.offer(offered(id)).is_none());
        inbox.queue(0);
        assert_eq!(inbox.next(0).unwrap().id, id);
        inbox.leave(0);
        inbox
    }

    /// Deliberate bugs: a receive that was begun later takes the first tree, or the room that an earlier one waits for.
    #[test]
    fn trees_go_to_who_waits_in_order() {
        let mut inbox = Inbox::default();
        [1, 2].into_iter().for_each(|turn| inbox.queue(turn));
        [7, 8].into_iter().for_each(|id| assert!(inbox.offer(offered(id)).is_none()));
        assert!(inbox.next(2).is_none());
        assert_eq!(inbox.next(1).unwrap().id, 7);
        assert!(inbox.next(2).is_none());
        inbox.leave(1);
        assert_eq!(inbox.next(2).unwrap().id, 8);
        [7, 8].into_iter().for_each(|id| assert_eq!(inbox.end(id, None).written, 0));
        assert!(!inbox.is_busy());
    }

    /// Deliberate bug: a peer may fill the memory of this process.
    #[test]
    fn a_flood_is_refused() {
        let mut inbox = Inbox::default();
        let refused = (0..1000).filter(|id| inbox.offer(offered(*id)).is_some()).count();
        assert_eq!(refused, 1000 - MOST_WAITING);
        let (mut other, half) = (Inbox::default(), vec![0; MOST_MANIFEST_BYTES / 2]);
        let long = |id| Offered { id, bytes: 0, manifest: half.clone() };
        assert!((0..2).all(|id| other.offer(long(id)).is_none()));
        assert!(other.offer(offered(3)).is_some());
    }

    /// Deliberate bugs: room that the peer may still write to is used again, or never again.
    #[test]
    fn room_is_set_aside_until_the_peer_writes_no_more() {
        let arena = Arena::new(1 << 20, &transship::Device::host()).unwrap();
        let room = || arena.range(100).map(Arc::new);
        let says: [fn(&mut Inbox) -> bool; 2] = [|inbox| inbox.withdraw(3), |inbox| inbox.written(3, 100)];
        for last_word in says {
            let mut late = receiving(3);
            late.end(3, room());
            assert!(late.written(3, 99) && late.offer(offered(3)).is_none() && late.waiting.is_empty());
            assert_eq!((late.set_aside().count(), late.is_busy()), (1, false));
            assert!(arena.free_bytes() < arena.bytes());
            assert!(last_word(&mut late));
            assert_eq!((late.set_aside().count(), arena.free_bytes()), (0, arena.bytes()));
            let mut early = receiving(3);
            assert!(last_word(&mut early));
            early.end(3, room());
            assert_eq!((early.set_aside().count(), arena.free_bytes()), (0, arena.bytes()));
        }
    }

    /// Deliberate bugs: what was withdrawn is received all the same, or stays; what nobody has offered is believed.
    #[test]
    fn what_is_withdrawn_is_gone_or_marked() {
        let mut inbox = receiving(1);
        assert!(inbox.offer(offered(2)).is_none());
        assert!(inbox.withdraw(1) && inbox.progress(1).unwrap().is_withdrawn);
        assert!(inbox.withdraw(2));
        inbox.queue(1);
        assert!(inbox.next(1).is_none());
        assert!(!inbox.withdraw(2) && !inbox.written(2, 100));
    }
}
