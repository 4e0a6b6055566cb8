//! Ranks that meet.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::combine::{combine, size_of};
use crate::cuda::{Context, PageLocked};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const CUDA_ERROR: c_int = 1;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const IN_PROGRESS: c_int = 7;

/// The ranks of one id.
pub(crate) struct World {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: usize,
    left: usize,
    /// By their number.
    steps: HashMap<u64, Vec<Option<Sent>>>,
    aborted: bool,
}

/// What a rank has called, and what it sends.
#[derive(Clone)]
struct Sent {
    call: Call,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
}

/// What all ranks have to agree about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) op: c_int,
    pub(crate) root: c_int,
}

/// One rank.
pub(crate) struct Comm {
    world: Arc<World>,
    rank: usize,
    context: Context,
    steps: AtomicU64,
    pub(crate) state: AtomicI32,
    pub(crate) is_blocking: bool,
    /// How many calls of open groups have it.
    pub(crate) in_groups: AtomicUsize,
}

/// A collective of one rank that was called.
pub(crate) struct Submitted {
    pub(crate) comm: Arc<Comm>,
    pub(crate) call: Call,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) stream: usize,
}

impl World {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits until `done` gives something, or a rank has aborted.
    fn wait<T>(&self, mut done: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.aborted {
                return None;
            }
            if let Some(result) = done(&mut state) {
                return Some(result);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Comm {
    pub(crate) fn new(world: &Arc<World>, rank: usize, context: Context, is_blocking: bool) -> Arc<Self> {
        let (steps, state) = (AtomicU64::new(0), AtomicI32::new(SUCCESS));
        let in_groups = AtomicUsize::new(0);
        Arc::new(Self { world: world.clone(), rank, context, steps, state, is_blocking, in_groups })
    }

    pub(crate) fn join(&self) {
        self.world.change(|state| state.joined += 1);
        let joined = self.world.wait(|state| (state.joined == self.world.size).then_some(()));
        self.state.store(if joined.is_some() { SUCCESS } else { REMOTE_ERROR }, Ordering::Release);
    }

    /// Waits for the others, as the library does: they may still read what this rank has.
    pub(crate) fn leave(&self) {
        self.world.change(|state| state.left += 1);
        self.world.wait(|state| (state.left == self.world.size).then_some(()));
    }

    pub(crate) fn abort(&self) {
        self.context.keep_memory();
        self.world.change(|state| state.aborted = true);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.world.state.lock().unwrap_or_else(PoisonError::into_inner).aborted
    }
}

/// Carries out what was called in a group, and says how it went.
pub(crate) fn carry_out(group: &[Submitted]) -> c_int {
    let mut steps = Vec::new();
    for submitted in group {
        match submitted.send() {
            Some(step) => steps.push(step),
            None => return CUDA_ERROR,
        }
    }
    let received = group.iter().zip(steps).map(|(submitted, step)| submitted.receive(step));
    // All are carried out, whatever becomes of one.
    received.fold(SUCCESS, |first, code| if first == SUCCESS { code } else { first })
}

/// The same for all ranks of a process, in the order of their streams, and without waiting.
pub(crate) fn carry_out_in_order(group: Vec<Submitted>) -> c_int {
    let mut steps: Vec<Vec<Submitted>> = Vec::new();
    for submitted in group {
        let size = submitted.comm.world.size;
        match steps
            .iter_mut()
            .find(|step| step.len() < size && !step.iter().any(|other| other.is_of_rank_of(&submitted)))
        {
            Some(step) => step.push(submitted),
            None => steps.push(vec![submitted]),
        }
    }
    let is_whole = |step: &Vec<Submitted>| {
        step.len() == step[0].comm.world.size && step.iter().all(|submitted| submitted.call == step[0].call)
    };
    if !steps.iter().all(is_whole) {
        return INVALID_USAGE;
    }
    let done = steps.iter().map(|step| in_order(step));
    done.fold(SUCCESS, |first, done| if done.is_none() { CUDA_ERROR } else { first })
}

/// Brings down what all ranks send, behind their streams, has the host combine it, and takes up what comes, before what the streams are given
/// next.
fn in_order(step: &[Submitted]) -> Option<()> {
    let [first, ..] = step else { return None };
    let mut ranks = Vec::new();
    for submitted in step {
        let (comm, sent) = (&submitted.comm, submitted.bytes());
        let received = if submitted.call.kind == Kind::AllGather { sent * step.len() } else { sent };
        let (down, up) = (comm.context.page_locked(sent)?, comm.context.page_locked(received)?);
        comm.context.read_behind(submitted.stream, submitted.from, down, sent)?;
        if !Arc::ptr_eq(comm, &first.comm) {
            comm.context.precede(submitted.stream, &first.comm.context, first.stream)?;
        }
        ranks.push((comm.rank, down, up));
    }
    let (call, bytes, all) = (first.call, first.bytes(), ranks.clone());
    first.comm.context.call_host(first.stream, Box::new(move || combine_in_place(call, bytes, all)))?;
    for (submitted, (rank, _, up)) in step.iter().zip(ranks) {
        let context = &submitted.comm.context;
        if !Arc::ptr_eq(&submitted.comm, &first.comm) {
            first.comm.context.precede(first.stream, context, submitted.stream)?;
        }
        let received = if call.kind == Kind::AllGather { bytes * step.len() } else { bytes };
        if call.kind != Kind::Reduce || call.root as usize == rank {
            context.write_behind(submitted.stream, submitted.to, up, received)?;
        }
    }
    Some(())
}

/// By rank: what it sends, and where to what it gets.
fn combine_in_place(call: Call, bytes: usize, mut ranks: Vec<(usize, PageLocked, PageLocked)>) {
    ranks.sort_by_key(|(rank, ..)| *rank);
    // SAFETY: streams are behind the copies into it, which were of as many bytes.
    let sent: Vec<&[u8]> = ranks.iter().map(|(_, down, _)| unsafe { down.bytes(bytes) }).collect();
    for (rank, _, up) in &ranks {
        if let Some(received) = call.received(*rank, &sent) {
            // SAFETY: it was made for as many bytes, and streams have the copies out of it behind this.
            unsafe { up.write(&received) };
        }
    }
}

impl Call {
    /// What a rank gets of what all have sent.
    fn received(&self, rank: usize, sent: &[&[u8]]) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Reduce if self.root as usize != rank => None,
            Kind::AllReduce | Kind::Reduce => Some(combine(self.dtype, self.op, sent)),
            Kind::Broadcast => sent.get(self.root as usize).map(|bytes| bytes.to_vec()),
            Kind::AllGather => Some(sent.concat()),
        }
    }
}

impl Submitted {
    fn is_of_rank_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.comm, &other.comm)
    }

    fn bytes(&self) -> usize {
        self.call.count * size_of(self.call.dtype)
    }

    fn send(&self) -> Option<u64> {
        let Comm { world, rank, context, steps, .. } = &*self.comm;
        let is_silent = self.call.kind == Kind::Broadcast && self.call.root as usize != *rank;
        let bytes =
            if is_silent { Vec::new() } else { context.read(self.stream, self.from, self.bytes())? };
        let step = steps.fetch_add(1, Ordering::Relaxed);
        let sent = Sent { call: self.call, bytes };
        world.change(|state| {
            let ranks = state.steps.entry(step).or_insert_with(|| vec![None; world.size]);
            ranks[*rank] = Some(sent);
        });
        Some(step)
    }

    fn receive(&self, step: u64) -> c_int {
        let all = self
            .comm
            .world
            .wait(|state| state.steps.get(&step)?.iter().cloned().collect::<Option<Vec<Sent>>>());
        let Some(all) = all else { return REMOTE_ERROR };
        if all.iter().any(|sent| sent.call != self.call) {
            return INVALID_USAGE;
        }
        let ranks: Vec<&[u8]> = all.iter().map(|sent| &sent.bytes[..]).collect();
        let Some(bytes) = self.call.received(self.comm.rank, &ranks) else { return SUCCESS };
        self.comm.context.write(self.stream, self.to, &bytes).map_or(CUDA_ERROR, |()| SUCCESS)
    }
}
