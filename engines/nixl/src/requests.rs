//! Requests of the library, made once for each piece and posted again.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;

use crate::arena::Range;
use crate::error::Result;
use crate::nixl::agent::{RawAgent, Request, Status};

/// How many are kept for the next transfer of the same piece.
const MOST_KEPT: usize = 1024;

/// Bytes of a peer and where they go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub(crate) peer: CString,
    /// Where they lie in the peer.
    pub(crate) from: usize,
    /// Where they go.
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

#[derive(Default)]
pub(crate) struct Requests {
    kept: HashMap<Piece, Request>,
    /// Under way, with nobody who waits for them.
    abandoned: Vec<(Request, Arc<Range>)>,
}

impl Requests {
    /// One that was posted before, or a new one.
    pub(crate) fn take(&mut self, agent: &mut RawAgent, piece: &Piece) -> Result<Request> {
        match self.kept.remove(piece) {
            Some(request) => Ok(request),
            None => agent.read_request(&piece.peer, piece.from, piece.to, piece.bytes),
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

    /// One that nobody waits for any more. `range`, which it fills, stays until it has ended.
    pub(crate) fn abandon(&mut self, agent: &mut RawAgent, request: Request, range: Arc<Range>) {
        self.abandoned.push((request, range));
        self.sweep(agent);
    }

    /// Lets go of what has ended meanwhile.
    pub(crate) fn sweep(&mut self, agent: &mut RawAgent) {
        for (request, range) in std::mem::take(&mut self.abandoned) {
            let has_ended = agent.status(&request) != Status::UnderWay;
            match if has_ended { agent.release(request) } else { Err(request) } {
                Ok(()) => drop(range),
                Err(request) => self.abandoned.push((request, range)),
            }
        }
    }

    /// Lets go of what is kept for a peer.
    pub(crate) fn forget(&mut self, agent: &mut RawAgent, peer: &CStr) {
        let kept = self.kept.extract_if(|piece, _| piece.peer.as_c_str() == peer);
        kept.for_each(|(_, request)| release(agent, request));
    }

    /// What is filled although nobody waits for it.
    pub(crate) fn set_aside(&self) -> impl Iterator<Item = &Range> {
        self.abandoned.iter().map(|(_, range)| &**range)
    }
}

fn release(agent: &mut RawAgent, request: Request) {
    // One that is not under way is let go of; the agent knows the others, and ends them with itself.
    let _ = agent.release(request);
}
