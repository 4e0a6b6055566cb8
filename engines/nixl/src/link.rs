//! An agent of the library, which lets one thread in at a time, with all that is waited for through it.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::hash::BuildHasher as _;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transship::{Device, ForkCount};

use crate::arena::{Arena, Range};
use crate::error::{Error, Result};
use crate::mail::Mail;
use crate::nixl::agent::{RawAgent, Request, Status};
use crate::requests::{Piece, Requests};
use crate::wire::Message;

/// It goes when the last transfer has ended that uses it.
pub(crate) struct Link {
    state: Mutex<State>,
    forks: ForkCount,
    /// Goes behind the agent that has registered it.
    pub(crate) arena: Arc<Arena>,
    /// Where that is.
    pub(crate) device: Device,
    /// Of the next tree. Those of an earlier agent of this name are others.
    next_id: AtomicU64,
}

pub(crate) struct State {
    pub(crate) agent: RawAgent,
    pub(crate) mail: Mail,
    requests: Requests,
    /// What the library was told of each peer, which it is told again if it refuses what comes after that.
    loaded: HashMap<CString, Vec<u8>>,
    /// A peer that has begun anew had room that it may have written to until then. What cannot be known is whether it has gone: the memory is never unmapped.
    stays_mapped: bool,
}

impl State {
    /// Whether no write is under way that nobody waits for.
    pub(crate) fn is_nothing_late(&self) -> bool {
        self.requests.set_aside().next().is_none()
    }
}

/// How the registered memory of an agent is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes that are registered.
    pub registered: usize,
    /// Bytes that are free.
    pub free: usize,
    /// Transfers that did not end in time, and of which it is not known yet that they have ended. The library, or the peer, may still use their
    /// memory: it is free again once it says that they have.
    pub set_aside: usize,
    /// The bytes of these.
    pub set_aside_bytes: usize,
    /// Notifications that made no sense, came too late, or from nobody known.
    pub ignored: u64,
}

impl Link {
    /// # Safety
    ///
    /// `arena`, on `device`, is what `agent` has registered, all of it.
    pub(crate) unsafe fn new(agent: RawAgent, arena: Arc<Arena>, device: Device) -> Arc<Self> {
        let (mail, requests) = (Mail::default(), Requests::default());
        let state = State { agent, mail, requests, loaded: HashMap::new(), stays_mapped: false };
        let next_id = AtomicU64::new(RandomState::new().hash_one(0_u8));
        Arc::new(Self { state: Mutex::new(state), forks: ForkCount::now(), arena, device, next_id })
    }

    /// A number that no other tree and no other turn has.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Hears what peers have said, and looks after what is set aside. No code of the program runs under this lock.
    pub(crate) fn hear(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let State { agent, mail, requests, .. } = &mut *state;
        let mut answers = Vec::new();
        agent.notifications(|peer, bytes| {
            let answer = mail.deliver(peer, bytes, |id| requests.is_late(id));
            answers.extend(answer.map(|answer| (peer.to_owned(), answer)));
        })?;
        let ended = requests.sweep(agent).into_iter();
        answers.extend(ended.map(|(peer, id)| (peer, Message::Withdrawn { id }.to_bytes())));
        for (peer, answer) in answers {
            // A peer that has gone needs no answer.
            let _ = agent.notify(&peer, &answer);
        }
        Ok(state)
    }

    /// Fails in a child that was forked: the lock and the library are the parent's.
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.forks.is_now() { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range of the arena for a tree.
    pub(crate) fn range(&self, bytes: usize) -> Result<Arc<Range>> {
        self.arena.range(bytes).map(Arc::new).ok_or_else(|| self.full(bytes))
    }

    /// There is no such range.
    pub(crate) fn full(&self, bytes: usize) -> Error {
        let Usage { registered, set_aside_bytes, .. } = self.usage();
        Error::ArenaFull { asked: bytes, bytes: registered, set_aside: set_aside_bytes }
    }

    pub(crate) fn usage(&self) -> Usage {
        if self.check_here().is_err() {
            return Usage::default();
        }
        // What cannot be heard is no reason to say nothing.
        let state = self.hear().unwrap_or_else(|_| self.lock());
        let set_aside = state.mail.set_aside().chain(state.requests.set_aside());
        let (set_aside, set_aside_bytes) = count(set_aside);
        Usage {
            registered: self.arena.bytes(),
            free: self.arena.free_bytes(),
            set_aside,
            set_aside_bytes,
            ignored: state.mail.ignored,
        }
    }

    /// # Errors
    ///
    /// [`Error::Broken`].
    pub(crate) fn notify(&self, peer: &CStr, message: &Message<'_>) -> Result<()> {
        let told = self.lock().agent.notify(peer, &message.to_bytes());
        told.map_err(|error| match error {
            Error::Nixl { code, .. } => Error::Broken { peer: peer.to_string_lossy().into_owned(), code },
            other => other,
        })
    }

    /// Takes a peer, or one of the same name anew. The number that tells it from those before.
    pub(crate) fn add(&self, name: CString, of_library: &[u8]) -> Result<u64> {
        let mut state = self.hear()?;
        let State { agent, mail, requests, loaded, stays_mapped } = &mut *state;
        let refused = |reason| Error::NotAdded { peer: name.to_string_lossy().into_owned(), reason };
        if mail.knows(&name) {
            if mail.is_busy(&name) {
                return Err(refused("a transfer with it is under way; wait for that"));
            }
            if requests.is_any_late(&name) {
                // The library needs what it knows of the peer until they have ended.
                return Err(refused(
                    "what was written to the one before is still under way; add it again later",
                ));
            }
            requests.forget(agent, &name);
            agent.forget(&name)?;
        }
        let has_room_of_ours = mail.inbox(&name).is_some_and(|inbox| inbox.set_aside().next().is_some());
        let is_loaded = agent.load(of_library).and_then(|other| {
            if other == name {
                return Ok(());
            }
            if !mail.knows(&other) {
                agent.forget(&other)?;
            }
            Err(refused("its metadata is that of another agent"))
        });
        if let Err(error) = is_loaded {
            // The one before stays what it was, or is known no more if the library does not take it again.
            let before = loaded.get(&name).map(|before| agent.load(before));
            if before.is_some_and(|again| again.is_err()) {
                mail.remove(&name);
                loaded.remove(&name);
                *stays_mapped |= has_room_of_ours;
            }
            return Err(error);
        }
        *stays_mapped |= has_room_of_ours;
        let added = self.next_id();
        loaded.insert(name.clone(), of_library.to_vec());
        mail.add(name, added);
        Ok(added)
    }

    /// Begins to write a piece of the tree `id`, which lies in `range`.
    ///
    /// # Safety
    ///
    /// `range` has all of the piece, and nobody writes there before it has ended.
    pub(crate) unsafe fn post(self: &Arc<Self>, id: u64, piece: Piece, range: &Arc<Range>) -> Result<Posted> {
        let mut state = self.lock();
        let State { agent, requests, .. } = &mut *state;
        let request = requests.take(agent, &piece)?;
        // SAFETY: the caller's promise; `Posted` keeps the range until the request has ended.
        let status = unsafe { agent.post(&request) };
        drop(state);
        let (link, range) = (Arc::clone(self), Arc::clone(range));
        Ok(Posted { link, piece, range, id: Some(id), request: Some(request), status })
    }

    /// Nobody waits for these any more.
    pub(crate) fn set_aside(&self, posted: impl Iterator<Item = Posted>) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        for mut posted in posted {
            if let Some(request) = posted.request.take() {
                state.requests.abandon(
                    posted.piece.peer.clone(),
                    request,
                    Arc::clone(&posted.range),
                    posted.id,
                );
            }
            ended.push(posted);
        }
        drop(state);
        drop(ended);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.forks.is_now() {
            mem::forget(Arc::clone(&self.arena));
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let State { agent, mail, requests, stays_mapped, .. } = state;
        requests.sweep(agent);
        if *stays_mapped || requests.set_aside().chain(mail.set_aside()).next().is_some() {
            // Within a machine a peer writes by the address alone, and may do so when this agent has gone; of its own requests, which are told to end
            // with it, no library says that they have.
            mem::forget(Arc::clone(&self.arena));
        }
    }
}

/// A piece that is being written. Dropped before its end, it is set aside.
pub(crate) struct Posted {
    link: Arc<Link>,
    piece: Piece,
    range: Arc<Range>,
    /// The tree that it is of, if the peer is to hear when nothing of that is under way any more.
    id: Option<u64>,
    /// `None` once it has ended.
    request: Option<Request>,
    status: Status,
}

impl Posted {
    /// Whether it lies in the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`].
    pub(crate) fn is_done(&mut self) -> Result<bool> {
        let Some(request) = self.request.take() else { return Ok(true) };
        let mut state = self.link.lock();
        let State { agent, requests, .. } = &mut *state;
        if self.status == Status::UnderWay {
            self.status = agent.status(&request);
        }
        match self.status {
            Status::UnderWay => {
                self.request = Some(request);
                Ok(false)
            }
            Status::Done => {
                requests.keep(agent, self.piece.clone(), request);
                Ok(true)
            }
            Status::Failed(code) => {
                requests.abandon(self.piece.peer.clone(), request, Arc::clone(&self.range), None);
                Err(Error::Broken { peer: self.piece.peer.to_string_lossy().into_owned(), code })
            }
        }
    }

    /// The peer hears nothing when it has ended.
    pub(crate) fn hush(&mut self) {
        self.id = None;
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let (peer, range) = (self.piece.peer.clone(), Arc::clone(&self.range));
            self.link.lock().requests.abandon(peer, request, range, self.id);
        }
    }
}

/// How many there are, each once, and their bytes.
fn count<'a>(ranges: impl Iterator<Item = &'a Range>) -> (usize, usize) {
    let (mut seen, mut bytes) = (HashSet::new(), 0);
    for range in ranges {
        if seen.insert(range.offset) {
            bytes += range.bytes;
        }
    }
    (seen.len(), bytes)
}
