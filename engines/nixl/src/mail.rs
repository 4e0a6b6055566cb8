//! What peers have said, until somebody asks for it.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};

use crate::arena::Range;
use crate::early::Early;
use crate::error::{Error, Result};
use crate::inbox::{Inbox, Offered};
use crate::wire::Message;

/// What all peers have said.
#[derive(Default)]
pub(crate) struct Mail {
    inboxes: HashMap<CString, Inbox>,
    /// What tells each peer from those that had its name before.
    added: HashMap<CString, u64>,
    sends: HashMap<u64, Sent>,
    /// Those to each peer that are to be offered, in their order.
    to_offer: HashMap<CString, VecDeque<u64>>,
    early: Early,
    /// Notifications that made no sense, came too late, or from nobody known.
    pub(crate) ignored: u64,
}

/// A tree that goes to a peer.
struct Sent {
    peer: CString,
    reply: Reply,
}

/// What a peer has said to a tree so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reply {
    /// From where on there is room for it.
    pub(crate) room: Option<usize>,
    pub(crate) end: Option<End>,
}

/// The last that a peer says to a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Refused(String),
}

impl Mail {
    /// Knows a peer, which has said nothing but what it said before it was known.
    pub(crate) fn add(&mut self, peer: CString, added: u64) {
        self.added.insert(peer.clone(), added);
        self.inboxes.insert(peer.clone(), Inbox::default());
        for bytes in self.early.take(&peer) {
            // No more was kept than one may offer: none is refused.
            let _ = self.deliver(&peer, &bytes, |_| false);
        }
    }

    /// Knows it no more.
    pub(crate) fn remove(&mut self, peer: &CStr) {
        self.added.remove(peer);
        self.inboxes.remove(peer);
    }

    pub(crate) fn knows(&self, peer: &CStr) -> bool {
        self.inboxes.contains_key(peer)
    }

    pub(crate) fn inbox(&mut self, peer: &CStr) -> Option<&mut Inbox> {
        self.inboxes.get_mut(peer)
    }

    /// Whether anything is under way with it.
    pub(crate) fn is_busy(&self, peer: &CStr) -> bool {
        let receives = self.inboxes.get(peer).is_some_and(Inbox::is_busy);
        receives || self.sends.values().any(|sent| sent.peer.as_c_str() == peer)
    }

    /// Takes a notification of `peer`, and says what to answer. `is_late` knows of which trees something is still being written.
    pub(crate) fn deliver(
        &mut self,
        peer: &CStr,
        bytes: &[u8],
        is_late: impl Fn(u64) -> bool,
    ) -> Option<Vec<u8>> {
        let Ok(message) = Message::from_bytes(bytes) else {
            self.ignored += 1;
            return None;
        };
        let Some(inbox) = self.inboxes.get_mut(peer) else {
            self.ignored += u64::from(!self.early.keep(peer, &message, bytes));
            return None;
        };
        let is_known = match message {
            Message::Offer { id, bytes, manifest } => {
                return inbox.offer(Offered { id, bytes, manifest: manifest.to_vec() });
            }
            Message::Written { id, bytes } => inbox.written(id, bytes),
            Message::Withdrawn { id } => inbox.withdraw(id),
            Message::Accepted { id, offset } => match self.reply(peer, id) {
                Some(reply) => reply.room.get_or_insert(offset) == &offset,
                // Nobody accepts twice who keeps to the rules: it hears of the end when that has come.
                None if is_late(id) => false,
                // It has ended meanwhile, and nothing was written: the peer need not wait.
                None => return Some(Message::Withdrawn { id }.to_bytes()),
            },
            Message::Done { id } => self.end(peer, id, End::Done),
            Message::Refused { id, reason } => self.end(peer, id, End::Refused(reason)),
        };
        self.ignored += u64::from(!is_known);
        None
    }

    fn end(&mut self, peer: &CStr, id: u64, end: End) -> bool {
        self.reply(peer, id).map(|reply| reply.end.get_or_insert(end)).is_some()
    }

    fn reply(&mut self, peer: &CStr, id: u64) -> Option<&mut Reply> {
        let sent = self.sends.get_mut(&id).filter(|sent| sent.peer.as_c_str() == peer);
        sent.map(|sent| &mut sent.reply)
    }

    /// The inbox of `peer`, if that is still the one that was `added`: its memory is elsewhere than that of others of its name.
    fn current(&mut self, peer: &CStr, added: u64) -> Result<&mut Inbox> {
        let inbox = self.inboxes.get_mut(peer).filter(|_| self.added.get(peer) == Some(&added));
        inbox.ok_or_else(|| Error::UnknownPeer { peer: peer.to_string_lossy().into_owned() })
    }

    /// Somebody receives from `peer`, behind those before.
    pub(crate) fn begin_receive(&mut self, turn: u64, peer: &CStr, added: u64) -> Result<()> {
        self.current(peer, added)?.queue(turn);
        Ok(())
    }

    /// Whoever receives has no tree after all, and waits for the next one, in front of those behind it.
    pub(crate) fn receive_again(&mut self, turn: u64, peer: &CStr, added: u64) -> Result<()> {
        self.current(peer, added)?.queue_again(turn);
        Ok(())
    }

    /// A tree goes to `peer`, behind those before it.
    pub(crate) fn begin_send(&mut self, id: u64, peer: &CStr, added: u64) -> Result<()> {
        self.current(peer, added)?;
        self.sends.insert(id, Sent { peer: peer.to_owned(), reply: Reply::default() });
        self.to_offer.entry(peer.to_owned()).or_default().push_back(id);
        Ok(())
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

    pub(crate) fn reply_to(&self, id: u64) -> Reply {
        self.sends.get(&id).map(|sent| sent.reply.clone()).unwrap_or_default()
    }

    /// Nobody waits for what the peer says to it any more.
    pub(crate) fn end_send(&mut self, id: u64) {
        self.sends.remove(&id);
    }

    /// Where peers may still write although nobody waits for them.
    pub(crate) fn set_aside(&self) -> impl Iterator<Item = &Range> {
        self.inboxes.values().flat_map(Inbox::set_aside)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::inbox::{MOST_MANIFEST_BYTES, MOST_WAITING};

    const PEER: &CStr = c"peer";

    fn mail() -> Mail {
        let mut mail = Mail::default();
        mail.add(PEER.to_owned(), 7);
        mail
    }

    /// Deliberate bug: what is not understood is taken for something.
    #[test]
    fn what_makes_no_sense_is_counted() {
        let mut mail = mail();
        for bytes in [&b""[..], b"TSNX", b"TSNX\x02\x04aaaaaaaa", b"TSNX\x02\x06aaaaaaaa", b"GET / HTTP/1.1"]
        {
            assert!(mail.deliver(PEER, bytes, |_| false).is_none());
        }
        assert!(mail.deliver(c"stranger", &Message::Done { id: 1 }.to_bytes(), |_| false).is_none());
        assert_eq!(mail.ignored, 6);
    }

    /// Deliberate bugs: what an agent says that is not known is kept without limit; it is forgotten; others get it.
    #[test]
    fn what_is_offered_early_is_kept_within_limits() {
        let mut mail = mail();
        let offer = |id, manifest| Message::Offer { id, bytes: 8, manifest }.to_bytes();
        let large = vec![1; MOST_MANIFEST_BYTES];
        mail.deliver(c"early", &offer(1000, &large), |_| false);
        assert_eq!(mail.ignored, 1);
        for id in 0..MOST_WAITING as u64 {
            mail.deliver(if id % 2 == 0 { c"early" } else { c"other" }, &offer(id, b"m"), |_| false);
        }
        mail.deliver(c"early", &offer(1001, b"m"), |_| false);
        assert_eq!(mail.ignored, 2);
        mail.add(c"early".to_owned(), 9);
        mail.deliver(c"early", &Message::Withdrawn { id: 4 }.to_bytes(), |_| false);
        mail.deliver(c"other", &Message::Withdrawn { id: 5 }.to_bytes(), |_| false);
        mail.add(c"other".to_owned(), 10);
        for (peer, ids) in [(c"early", [0, 2, 6]), (c"other", [1, 3, 7])] {
            let inbox = mail.inbox(peer).unwrap();
            inbox.queue(1);
            assert_eq!(ids.map(|_| inbox.next(1).unwrap().id), ids);
        }
        assert_eq!(mail.ignored, 2);
    }

    /// Deliberate bugs: a peer answers for another one; it moves room that it has given already.
    #[test]
    fn only_the_peer_it_was_sent_to_answers_and_once() {
        let mut mail = mail();
        mail.add(c"other".to_owned(), 8);
        mail.begin_send(3, PEER, 7).unwrap();
        assert!(mail.deliver(c"other", &Message::Done { id: 3 }.to_bytes(), |_| false).is_none());
        assert_eq!((mail.reply_to(3), mail.ignored), (Reply::default(), 1));
        for offset in [4096, 8192] {
            assert!(mail.deliver(PEER, &Message::Accepted { id: 3, offset }.to_bytes(), |_| false).is_none());
        }
        assert_eq!((mail.reply_to(3), mail.ignored), (Reply { room: Some(4096), end: None }, 2));
        assert!(mail.deliver(PEER, &Message::Done { id: 3 }.to_bytes(), |_| false).is_none());
        assert!(
            mail.deliver(PEER, &Message::Refused { id: 3, reason: String::new() }.to_bytes(), |_| false)
                .is_none()
        );
        assert_eq!(mail.reply_to(3).end, Some(End::Done));
        mail.end_send(3);
        assert!(!mail.is_busy(PEER));
    }

    /// Deliberate bug: what is sent to a peer of before goes to where its memory was, in the process that has its name now.
    #[test]
    fn nothing_goes_to_a_peer_of_before() {
        let mut mail = mail();
        mail.add(PEER.to_owned(), 8);
        assert!(mail.begin_send(3, PEER, 7).is_err() && mail.begin_receive(4, PEER, 7).is_err());
        assert!(mail.begin_send(3, c"stranger", 7).is_err() && !mail.is_busy(PEER));
        assert!(mail.begin_send(3, PEER, 8).is_ok() && mail.is_busy(PEER));
    }

    /// Deliberate bugs: a peer that accepts what has ended meanwhile waits for it until its deadline, and keeps the room;
    /// one that accepts twice hears that nothing is under way while something is.
    #[test]
    fn who_accepts_too_late_hears_that_nothing_comes() {
        let mut mail = mail();
        mail.begin_send(3, PEER, 7).unwrap();
        mail.end_send(3);
        let answer = mail.deliver(PEER, &Message::Accepted { id: 3, offset: 0 }.to_bytes(), |_| false);
        assert_eq!(answer, Some(Message::Withdrawn { id: 3 }.to_bytes()));
        assert_eq!(mail.ignored, 0);
        let again = mail.deliver(PEER, &Message::Accepted { id: 3, offset: 0 }.to_bytes(), |id| id == 3);
        assert_eq!((again, mail.ignored), (None, 1));
    }
}
