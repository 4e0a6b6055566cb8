//! Requests of the library, made once for each piece and posted again.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::mem;
use std::sync::Arc;

use crate::arena::Range;
use crate::error::Result;
use crate::nixl::agent::{RawAgent, Request, Status};
use crate::nixl::place::Place;

/// How many are kept for the next transfer of the same piece.
const MOST_KEPT: usize = 2048;

/// Bytes of this agent and where they go in a peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub(crate) peer: CString,
    pub(crate) from: usize,
    /// Where they go, and in which memory of the peer that is.
    pub(crate) to: usize,
    pub(crate) place: Place,
    pub(crate) bytes: usize,
}

#[derive(Default)]
pub(crate) struct Requests {
    kept: HashMap<Piece, Request>,
    abandoned: Vec<Abandoned>,
}

/// Under way, with nobody who waits for it.
struct Abandoned {
    request: Request,
    /// Where its bytes lie: it stays until it has ended.
    range: Arc<Range>,
    peer: CString,
    /// The tree that it is of, if the peer is to hear when nothing of that is under way any more.
    id: Option<u64>,
}

impl Requests {
    /// One that was posted before, or a new one.
    pub(crate) fn take(&mut self, agent: &mut RawAgent, piece: &Piece) -> Result<Request> {
        match self.kept.remove(piece) {
            Some(request) => Ok(request),
            None => agent.write_request(&piece.peer, piece.from, (piece.place, piece.to), piece.bytes),
        }
    }

    /// One that has done its work.
    pub(crate) fn keep(&mut self, agent: &mut RawAgent, piece: Piece, request: Request) {
        if self.kept.len() >= MOST_KEPT {
            self.kept.drain().for_each(|(_, request)| release(agent, request));
        }
        if let Some(double) = self.kept.insert(piece, request) {
            release(agent, double);
        }
    }

    /// One that nobody waits for any more, of the tree `id` if the [sweep](Self::sweep) is to say when that has ended.
    pub(crate) fn abandon(&mut self, peer: CString, request: Request, range: Arc<Range>, id: Option<u64>) {
        self.abandoned.push(Abandoned { request, range, peer, id });
    }

    /// Lets go of what has ended meanwhile. Says to whom which tree goes of which nothing is under way any more.
    pub(crate) fn sweep(&mut self, agent: &mut RawAgent) -> Vec<(CString, u64)> {
        let (mut ended, mut failed) = (Vec::new(), Vec::new());
        for Abandoned { request, range, peer, id } in mem::take(&mut self.abandoned) {
            let status = agent.status(&request);
            let released = if status == Status::UnderWay { Err(request) } else { agent.release(request) };
            if let Err(request) = released {
                self.abandoned.push(Abandoned { request, range, peer, id });
                continue;
            }
            match id {
                Some(id) if status == Status::Done => ended.push((peer, id)),
                // What was on its way when the connection broke may still arrive.
                Some(id) => failed.push(id),
                None => {}
            }
        }
        for left in &mut self.abandoned {
            left.id = left.id.filter(|id| !failed.contains(id));
        }
        ended.sort_unstable();
        ended.dedup();
        ended.retain(|(_, id)| {
            !failed.contains(id) && !self.abandoned.iter().any(|left| left.id == Some(*id))
        });
        ended
    }

    /// Whether anything of this tree is being written although nobody waits for it.
    pub(crate) fn is_late(&self, id: u64) -> bool {
        self.abandoned.iter().any(|left| left.id == Some(id))
    }

    /// Whether anything is being written to this peer although nobody waits for it.
    pub(crate) fn is_any_late(&self, peer: &CStr) -> bool {
        self.abandoned.iter().any(|left| left.peer.as_c_str() == peer)
    }

    /// Lets go of what is kept for a peer.
    pub(crate) fn forget(&mut self, agent: &mut RawAgent, peer: &CStr) {
        let kept = self.kept.extract_if(|piece, _| piece.peer.as_c_str() == peer);
        kept.for_each(|(_, request)| release(agent, request));
    }

    /// What is being written although nobody waits for it.
    pub(crate) fn set_aside(&self) -> impl Iterator<Item = &Range> {
        self.abandoned.iter().map(|left| &*left.range)
    }
}

fn release(agent: &mut RawAgent, request: Request) {
    // One that is not under way is let go of; the agent knows the others, and ends them with itself.
    let _ = agent.release(request);
}
