//! What peers have said, until somebody asks for it. Whatever they say, it costs a bounded amount of memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::sync::Arc;

use crate::arena::Range;
use crate::wire::Message;

/// How many trees of one peer may wait to be received.
const MOST_WAITING: usize = 256;
/// The bytes of the manifests of these.
const MOST_MANIFEST_BYTES: usize = 64 << 20;

/// What all peers have said.
#[derive(Default)]
pub(crate) struct Mail {
    inboxes: HashMap<CString, Inbox>,
    sends: HashMap<u64, Sent>,
    /// Those to each peer that are to be offered, in their order.
    to_offer: HashMap<CString, VecDeque<u64>>,
    /// Notifications that made no sense, or came from nobody known.
    pub(crate) ignored: u64,
}

/// What one peer has said.
#[derive(Default)]
struct Inbox {
    waiting: VecDeque<Offered>,
    /// Who waits for a tree of it, in their order.
    turns: VecDeque<u64>,
    being_read: HashSet<u64>,
    /// What is offered and not answered.
    progress: HashMap<u64, Progress>,
}

/// A tree that a peer has offered.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) id: u64,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) manifest: Vec<u8>,
}

/// How far the peer has got with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) ready: usize,
    pub(crate) is_withdrawn: bool,
}

/// A tree that goes to a peer.
struct Sent {
    peer: CString,
    answer: Option<Answer>,
    /// Nobody waits for the answer any more; until it comes the peer may read there.
    set_aside: Option<Arc<Range>>,
}

/// What a peer says to a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Refused(String),
}

impl Mail {
    /// Knows a peer, which has said nothing.
    pub(crate) fn add(&mut self, peer: CString) {
        self.inboxes.insert(peer, Inbox::default());
    }

    pub(crate) fn knows(&self, peer: &CStr) -> bool {
        self.inboxes.contains_key(peer)
    }

    /// Whether anything is under way with it.
    pub(crate) fn is_busy(&self, peer: &CStr) -> bool {
        let receives = self
            .inboxes
            .get(peer)
            .is_some_and(|inbox| !inbox.turns.is_empty() || !inbox.being_read.is_empty());
        receives || self.sends.values().any(|sent| sent.peer.as_c_str() == peer && sent.set_aside.is_none())
    }

    /// A peer of this name has begun anew: what it was sent will not be answered.
    pub(crate) fn begin_anew(&mut self, peer: &CStr) {
        self.sends.retain(|_, sent| sent.peer.as_c_str() != peer);
    }

    /// Takes a notification of `peer`, and says what to answer.
    pub(crate) fn deliver(&mut self, peer: &CStr, bytes: &[u8]) -> Option<Vec<u8>> {
        let (Ok(message), Some(inbox)) = (Message::from_bytes(bytes), self.inboxes.get_mut(peer)) else {
            self.ignored += 1;
            return None;
        };
        match message {
            Message::Offer { id, offset, bytes, ready, manifest } => {
                return inbox.offer(Offered { id, offset, bytes, manifest: manifest.to_vec() }, ready);
            }
            Message::Ready { id, ready } => {
                if let Some(progress) = inbox.progress.get_mut(&id) {
                    progress.ready = progress.ready.max(ready);
                }
            }
            Message::Withdrawn { id } => return inbox.withdraw(id),
            Message::Done { id } => self.answer(peer, id, Answer::Done),
            Message::Refused { id, reason } => self.answer(peer, id, Answer::Refused(reason)),
        }
        None
    }

    fn answer(&mut self, peer: &CStr, id: u64, answer: Answer) {
        match self.sends.get_mut(&id) {
            Some(sent) if sent.peer.as_c_str() == peer => match sent.set_aside {
                None => sent.answer = Some(answer),
                Some(_) => drop(self.sends.remove(&id)),
            },
            _ => self.ignored += 1,
        }
    }

    /// A tree goes to `peer`, behind those before it.
    pub(crate) fn begin_send(&mut self, id: u64, peer: &CStr) {
        self.sends.insert(id, Sent { peer: peer.to_owned(), answer: None, set_aside: None });
        self.to_offer.entry(peer.to_owned()).or_default().push_back(id);
    }

    /// Whether it is its turn to be offered.
    pub(crate) fn may_offer(&self, id: u64, peer: &CStr) -> bool {
        self.to_offer.get(peer).is_some_and(|ids| ids.front() == Some(&id))
    }

    /// It is offered, or never will be.
    pub(crate) fn is_offered(&mut self, id: u64, peer: &CStr) {
        if let Some(ids) = self.to_offer.get_mut(peer) {
            ids.retain(|other| *other != id);
        }
    }

    pub(crate) fn answer_to(&self, id: u64) -> Option<Answer> {
        self.sends.get(&id)?.answer.clone()
    }

    /// Nobody waits for the answer any more. `set_aside` stays until it comes.
    pub(crate) fn end_send(&mut self, id: u64, set_aside: Option<Arc<Range>>) {
        match self.sends.get_mut(&id) {
            Some(sent) if sent.answer.is_none() && set_aside.is_some() => sent.set_aside = set_aside,
            _ => drop(self.sends.remove(&id)),
        }
    }

    /// Somebody receives of `peer`, behind those before.
    pub(crate) fn queue(&mut self, peer: &CStr, turn: u64) {
        if let Some(inbox) = self.inboxes.get_mut(peer) {
            inbox.turns.push_back(turn);
        }
    }

    /// The next tree of `peer`, once it is the turn of this one.
    pub(crate) fn next(&mut self, peer: &CStr, turn: u64) -> Option<Offered> {
        let inbox = self.inboxes.get_mut(peer).filter(|inbox| inbox.turns.front() == Some(&turn))?;
        let offered = inbox.waiting.pop_front()?;
        inbox.turns.pop_front();
        inbox.being_read.insert(offered.id);
        Some(offered)
    }

    pub(crate) fn progress(&self, peer: &CStr, id: u64) -> Option<Progress> {
        self.inboxes.get(peer)?.progress.get(&id).copied()
    }

    /// It is answered.
    pub(crate) fn end_read(&mut self, peer: &CStr, id: u64) {
        if let Some(inbox) = self.inboxes.get_mut(peer) {
            inbox.progress.remove(&id);
            inbox.being_read.remove(&id);
        }
    }

    /// Whoever has this turn waits no more.
    pub(crate) fn leave(&mut self, peer: &CStr, turn: u64) {
        if let Some(inbox) = self.inboxes.get_mut(peer) {
            inbox.turns.retain(|other| *other != turn);
        }
    }

    /// What peers may still read although nobody waits for them.
    pub(crate) fn set_aside(&self) -> impl Iterator<Item = &Range> {
        self.sends.values().filter_map(|sent| sent.set_aside.as_deref())
    }
}

impl Inbox {
    fn offer(&mut self, offered: Offered, ready: usize) -> Option<Vec<u8>> {
        let id = offered.id;
        let reason = if self.progress.contains_key(&id) {
            // It is answered under the number that it shares with another one.
            return None;
        } else if self.waiting.len() >= MOST_WAITING || self.manifest_bytes(&offered) > MOST_MANIFEST_BYTES {
            "too many trees wait to be received, or too long manifests"
        } else {
            self.progress.insert(id, Progress { ready, is_withdrawn: false });
            self.waiting.push_back(offered);
            return None;
        };
        Some(Message::Refused { id, reason: reason.to_owned() }.to_bytes())
    }

    /// Those of all that wait, and of this one.
    fn manifest_bytes(&self, offered: &Offered) -> usize {
        self.waiting.iter().chain([offered]).map(|offered| offered.manifest.len()).sum()
    }

    fn withdraw(&mut self, id: u64) -> Option<Vec<u8>> {
        if self.being_read.contains(&id) {
            // Who reads it sees that, and answers.
            self.progress.get_mut(&id)?.is_withdrawn = true;
            return None;
        }
        self.waiting.retain(|offered| offered.id != id);
        self.progress.remove(&id);
        Some(Message::Refused { id, reason: "it was withdrawn".to_owned() }.to_bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::arena::Arena;

    const PEER: &CStr = c"peer";

    fn offer(id: u64) -> Vec<u8> {
        Message::Offer { id, offset: 0, bytes: 8, ready: 8, manifest: b"m" }.to_bytes()
    }

    fn mail() -> Mail {
        let mut mail = Mail::default();
        mail.add(PEER.to_owned());
        mail
    }

    /// Deliberate bug: a receive that was begun later takes the first tree.
    #[test]
    fn trees_go_to_who_waits_in_order() {
        let mut mail = mail();
        [1, 2].into_iter().for_each(|turn| mail.queue(PEER, turn));
        [7, 8].into_iter().for_each(|id| assert!(mail.deliver(PEER, &offer(id)).is_none()));
        assert!(mail.next(PEER, 2).is_none());
        assert_eq!(mail.next(PEER, 1).unwrap().id, 7);
        assert_eq!(mail.next(PEER, 2).unwrap().id, 8);
        [7, 8].into_iter().for_each(|id| mail.end_read(PEER, id));
        assert!(!mail.is_busy(PEER));
    }

    /// Deliberate bug: a peer may fill the memory of this process.
    #[test]
    fn a_flood_is_refused_and_what_makes_no_sense_is_counted() {
        let mut mail = mail();
        let refused = (0..1000).filter(|id| mail.deliver(PEER, &offer(*id)).is_some()).count();
        assert_eq!(refused, 1000 - MOST_WAITING);
        let (mut other, half) = (self::mail(), vec![0; MOST_MANIFEST_BYTES / 2]);
        let long = |id| Message::Offer { id, offset: 0, bytes: 0, ready: 0, manifest: &half }.to_bytes();
        assert!((0..2).all(|id| other.deliver(PEER, &long(id)).is_none()));
        assert!(other.deliver(PEER, &offer(3)).is_some());
        for bytes in [&b""[..], b"TSNX", b"TSNX\x02\x03aaaaaaaa", b"GET / HTTP/1.1"] {
            assert!(mail.deliver(PEER, bytes).is_none());
        }
        assert!(mail.deliver(c"stranger", &offer(1)).is_none());
        assert_eq!(mail.ignored, 5);
    }

    /// Deliberate bug: a peer answers for another one.
    #[test]
    fn only_the_peer_it_was_sent_to_answers() {
        let mut mail = mail();
        mail.add(c"other".to_owned());
        mail.begin_send(3, PEER);
        assert!(mail.deliver(c"other", &Message::Done { id: 3 }.to_bytes()).is_none());
        assert_eq!((mail.answer_to(3), mail.ignored), (None, 1));
        assert!(mail.deliver(PEER, &Message::Done { id: 3 }.to_bytes()).is_none());
        assert_eq!(mail.answer_to(3), Some(Answer::Done));
    }

    /// Deliberate bug: memory that a peer may still read is used again, or never again.
    #[test]
    fn memory_is_set_aside_until_the_answer_comes() {
        let (mut mail, arena) = (mail(), Arena::new(1 << 20).unwrap());
        mail.begin_send(3, PEER);
        mail.end_send(3, arena.range(100).map(Arc::new));
        assert_eq!((mail.set_aside().count(), mail.is_busy(PEER)), (1, false));
        assert!(arena.free_bytes() < arena.bytes());
        assert!(mail.deliver(PEER, &Message::Refused { id: 3, reason: String::new() }.to_bytes()).is_none());
        assert_eq!((mail.set_aside().count(), arena.free_bytes()), (0, arena.bytes()));
    }

    /// Deliberate bug: what was withdrawn is read all the same, or stays.
    #[test]
    fn what_is_withdrawn_is_gone_or_marked() {
        let mut mail = mail();
        [1, 2].into_iter().for_each(|id| assert!(mail.deliver(PEER, &offer(id)).is_none()));
        mail.queue(PEER, 0);
        assert_eq!(mail.next(PEER, 0).unwrap().id, 1);
        let withdrawn = |id| Message::Withdrawn { id }.to_bytes();
        assert!(mail.deliver(PEER, &withdrawn(1)).is_none());
        assert!(mail.progress(PEER, 1).unwrap().is_withdrawn);
        assert!(mail.deliver(PEER, &withdrawn(2)).is_some());
        mail.queue(PEER, 1);
        assert!(mail.next(PEER, 1).is_none());
    }
}
